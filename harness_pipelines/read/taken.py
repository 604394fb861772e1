"""The moves that brought records into a table, with what replays changed since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from harness_pipelines.ports.access import HasCorrections, HasProof, HasReaders
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds, vector_from_json
from harness_pipelines.protocol.digest import added, parsed
from harness_pipelines.protocol.schema.schemas import ids_of

CHECKPOINT = "checkpoint"  #: in place of a trigger: moves that were folded into one row


class Ports(HasCorrections, HasProof, HasReaders, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenMove:
    """A committed move that took records, or a checkpoint of such: the ledger's account of some ranges."""

    move_id: int
    stage: str
    trigger: str
    lo: Mapping[int, int]
    hi: Mapping[int, int]
    rows: int
    digests: Mapping[int, int]  #: of the rows per partition; empty where none were recorded

    @property
    def title(self) -> str:
        """Its words in a finding."""
        return f"{self.stage} {'moves up to' if self.trigger == CHECKPOINT else 'move'} {self.move_id}"

    def ends_below(self, bounds: Mapping[int, Bounds]) -> bool:
        """True if all of it lies below what the audit sees."""
        return all(p in bounds and high <= bounds[p].buffer_hi for p, high in self.hi.items())


def taken_moves(stores: Ports, table: TableRow) -> list[TakenMove]:
    """The moves that brought records into *table*: those of ingest, or of tier where there is no buffer."""
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
        for row in stores.proof.taken(table)
    ]
    return with_corrections(moves, corrections_of(stores, table))


def _has_more(table: TableRow, schema_version: int) -> bool:
    """True if rows had a column, or a field in one, that was dropped since: their digest cannot be made again."""
    there = {*ids_of(table.fields)}
    return any(id_ not in there for id_ in ids_of(table.at_schema(schema_version).fields))


@dataclass(frozen=True, slots=True)
class ReplayEffect:
    """The effects of replays on one record: digests; None: no row."""

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


def corrections_of(stores: Ports, table: TableRow) -> dict[int, dict[int, ReplayEffect]]:
    """What became of records that replays put back, replaced or removed, by partition and offset."""
    found: dict[int, dict[int, ReplayEffect]] = {}
    for one in stores.corrections(table).over(stores.readers).in_effect():
        was, digest = (None if text is None else parsed(text) for text in (one.was, one.digest))
        found.setdefault(one.partition, {})[one.offset] = ReplayEffect(was, digest)
    return found


def with_corrections(
    moves: Sequence[TakenMove], corrections: Mapping[int, Mapping[int, ReplayEffect]]
) -> list[TakenMove]:
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
