"""Compare counts and digests of committed moves with the rows of the tiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from harness_pipelines.audit.proof.jobs import Job, PartitionAudit
from harness_pipelines.audit.proof.report import Account
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds, vector_from_json
from harness_pipelines.protocol.digest import added, parsed
from harness_pipelines.protocol.lake.signoff import SignOff, covered
from harness_pipelines.protocol.schema.schemas import ids_of

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores

ACCEPT_LOSS = "accept-loss"
Known: TypeAlias = Mapping[int, tuple[Job, PartitionAudit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMove:
    """A committed move that took records: the ledger's account of some ranges."""

    move_id: int
    stage: str
    trigger: str
    lo: Mapping[int, int]
    hi: Mapping[int, int]
    rows: int
    digests: Mapping[int, int]  #: of the rows per partition; empty where none were recorded

    def ends_below(self, bounds: Mapping[int, Bounds]) -> bool:
        """True if all of it lies below what the audit sees."""
        return all(p in bounds and high <= bounds[p].buffer_hi for p, high in self.hi.items())


def taken_moves(stores: Stores, table: TableRow) -> list[TakenMove]:
    """The moves that brought records into *table*: those of ingest, or of tier where there is no buffer."""
    stage = "tier" if table.spec.buffer == "none" else "ingest"
    moves = [
        TakenMove(
            move_id=row["move_id"],
            stage=row["stage"],
            trigger=row["trigger"],
            lo=vector_from_json(row["lo"]),
            hi=vector_from_json(row["hi"]),
            rows=row["rows"],
            digests={} if _has_more(table, row["schema_version"]) else vector_from_json(row["digests"] or {}),
        )
        for row in stores.tables.database.rows("audit/taken", {"table_id": table.table_id, "stage": stage})
    ]
    return with_corrections(moves, corrections_of(stores, table))


def _has_more(table: TableRow, schema_version: int) -> bool:
    """True if rows had a column, or a field in one, that was dropped since: their digest cannot be made again."""
    there = {*ids_of(table.fields)}
    return any(id_ not in there for id_ in ids_of(table.at_schema(schema_version).fields))


@dataclass(frozen=True, slots=True)
class Corrected:
    """What replays made of one record: digests, None where there is no row."""

    was: int | None  #: of the row that was brought
    digest: int | None  #: of the row that is there

    @property
    def rows(self) -> int:
        """How many there are more."""
        return (self.digest is not None) - (self.was is not None)

    @property
    def change(self) -> int:
        """What it adds to a sum of digests."""
        return (self.digest or 0) - (self.was or 0)


def corrections_of(stores: Stores, table: TableRow) -> dict[int, dict[int, Corrected]]:
    """What became of records that replays put back, replaced or removed, by partition and offset."""
    found: dict[int, dict[int, Corrected]] = {}
    for one in stores.corrections(table).over(stores.readers).in_effect():
        was, digest = (None if text is None else parsed(text) for text in (one.was, one.digest))
        found.setdefault(one.partition, {})[one.offset] = Corrected(was, digest)
    return found


def with_corrections(moves: Sequence[TakenMove], corrections: Mapping[int, Mapping[int, Corrected]]) -> list[TakenMove]:
    """*moves*, each with what replays have made of its ranges since it took them."""
    if not corrections:
        return list(moves)
    found = []
    for move in moves:
        inside = {
            p: [one for offset, one in corrections.get(p, {}).items() if low <= offset < move.hi[p]]
            for p, low in move.lo.items()
        }
        sums = {p: added(digest, sum(c.change for c in inside.get(p, ()))) for p, digest in move.digests.items()}
        rows = sum(one.rows for those in inside.values() for one in those)
        found.append(replace(move, rows=move.rows + rows, digests=sums))
    return found


def torn(
    moves: Iterable[TakenMove], signed: Mapping[int, Sequence[SignOff]], log_starts: Mapping[int, int]
) -> set[SignOff]:
    """Signed ranges that must be read again, because a move goes on outside of them where Kafka vouches for nothing.

    A move is judged as a whole; the sum of a signed range counts for it only if all of the range belongs to it.
    """
    found: set[SignOff] = set()
    while True:
        left = {p: [s for s in ranges if s not in found] for p, ranges in signed.items()}
        more = {s for move in moves if _is_open(move, left, log_starts) for s in _straddling(move, left)}
        if not more:
            return found
        found |= more


def _is_open(move: TakenMove, signed: Mapping[int, Sequence[SignOff]], log_starts: Mapping[int, int]) -> bool:
    return any(
        low < log_starts.get(p, 0) and not covered(low, min(move.hi[p], log_starts[p]), signed.get(p, ()))
        for p, low in move.lo.items()
    )


def _straddling(move: TakenMove, signed: Mapping[int, Sequence[SignOff]]) -> list[SignOff]:
    return [
        one
        for p, low in move.lo.items()
        for one in signed.get(p, ())
        if one.overlaps(low, move.hi[p]) and not one.lies_in(low, move.hi[p])
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accounts:
    """Moves that do not agree with the tiers, and ranges whose rows have the digest that ingest recorded."""

    wrong: tuple[Account, ...]
    vouched: Mapping[int, Sequence[tuple[int, int]]]

    def doubts(self, partition: int, low: int, high: int) -> bool:
        """True if a move that disagrees reaches into ``[low, high)``."""
        return any(partition in a.lo and a.lo[partition] < high and low < a.hi[partition] for a in self.wrong)

    def vouch_for(self, partition: int, low: int, high: int) -> bool:
        """True if ingest's digests prove all of ``[low, high)``."""
        for lo, hi in sorted(self.vouched.get(partition, ())):
            if lo <= low < hi:
                low = hi
        return low >= high


def settle(moves: Sequence[TakenMove], known: Known) -> Accounts:
    """Compare every move that can be judged by itself with what the tiers hold in its ranges."""
    wrong: list[Account] = []
    vouched: dict[int, list[tuple[int, int]]] = {}
    bounds = {p: job.bounds for p, (job, _) in known.items()}
    signed = {p: job.signed for p, (job, _) in known.items()}
    for move in moves:
        if not move.ends_below(bounds):
            continue  # it goes on above what the lease shows
        if _straddling(move, signed) or all(covered(low, move.hi[p], signed[p]) for p, low in move.lo.items()):
            continue  # judged by the audit that signed it off; Kafka vouches for the rest
        rows, changed = 0, []
        for p, low in sorted(move.lo.items()):
            found, digest = known[p][1].tally.within(low, move.hi[p])
            rows += found
            if digest != move.digests.get(p, digest):
                changed.append(p)
        by_kafka = [p for p, low in move.lo.items() if known[p][0].log_start <= low]
        # Each record of these was compared with Kafka's: what is wrong has been named by its offset.
        named = [p for p in by_kafka if any(known[p][1].findings.counts.values())]
        changed = [p for p in changed if p not in named]
        if changed or (rows != move.rows and len(by_kafka) < len(move.lo)):
            wrong.append(_account(move, known, rows=rows, changed=changed))
        else:
            for p in move.digests:
                vouched.setdefault(p, []).append((move.lo[p], move.hi[p]))
    return Accounts(wrong=tuple(wrong), vouched=vouched)


def _account(move: TakenMove, known: Known, *, rows: int, changed: Sequence[int]) -> Account:
    return Account(
        move_id=move.move_id,
        stage=move.stage,
        rows=move.rows,
        found=rows,
        lo=dict(move.lo),
        hi=dict(move.hi),
        changed=changed,
        holes=[
            (p, max(low, move.lo[p]), min(high, move.hi[p]))
            for p in sorted(move.lo)
            for low, high in known[p][1].holes
            if low < move.hi[p] and high > move.lo[p]
        ],
    )
