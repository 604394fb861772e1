"""Compare counts and digests of committed moves with the rows of the tiers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from harness_pipelines.audit.proof.jobs import Job, PartitionAudit
from harness_pipelines.audit.proof.report import Account
from harness_pipelines.protocol.lake.signoff import SignOff, covered
from harness_pipelines.read.taken import TakenMove

if TYPE_CHECKING:
    pass

ACCEPT_LOSS = "accept-loss"
Known: TypeAlias = Mapping[int, tuple[Job, PartitionAudit]]


def torn(
    moves: Iterable[TakenMove], signed: Mapping[int, Sequence[SignOff]], log_starts: Mapping[int, int]
) -> set[SignOff]:
    """Signed ranges that must be read again: a move extends beyond them, where Kafka has no records.

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
    """Return the moves that disagree with the tiers, and the ranges whose rows have the digest that ingest recorded."""

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
    """Compare each move that can be checked alone with the rows that the tiers hold in its ranges."""
    wrong: list[Account] = []
    vouched: dict[int, list[tuple[int, int]]] = {}
    bounds = {p: job.bounds for p, (job, _) in known.items()}
    signed = {p: job.signed for p, (job, _) in known.items()}
    for move in moves:
        if not move.ends_below(bounds):
            continue  # it extends above what the lease shows
        if _straddling(move, signed) or all(covered(low, move.hi[p], signed[p]) for p, low in move.lo.items()):
            continue  # the audit that signed it off has checked it; Kafka is the reference for the rest
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
        title=move.title,
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
