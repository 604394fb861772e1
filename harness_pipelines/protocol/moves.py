"""Units of work: recorded before any file is written, taking effect at most once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.bounds import OffsetRange, Vector
from harness_pipelines.protocol.claims import Stage

ATTEMPTS_MAX = 10  #: attempts, whatever ended them, before the next ones are smaller
NO_RESULT = "the attempt ended without a result"  #: what is noted of one that left no error


class MoveState(StrEnum):
    PLANNED = "PLANNED"
    COMMITTED = "COMMITTED"
    ABANDONED = "ABANDONED"
    QUARANTINED = "QUARANTINED"


class MoveClosed(HarnessError):
    """The move is closed or has a later attempt: this attempt must not publish (S9)."""

    recovery = Recovery.REFRESH


class MoveStuck(HarnessError):
    """A move failed in every attempt and blocks its stage until an operator acts."""

    way_on = "fix the cause that `harness status TABLE` names, stop the worker, run `harness run TABLE --retry-stuck`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One unit of work of a stage: what it takes, on which base, in which schema, in which attempt."""

    move_id: int
    table_id: int
    stage: Stage
    shard: int
    lo: Vector
    hi: Vector
    base_version: int
    schema_version: int
    state: MoveState
    attempt: int
    epoch: int
    rows: int | None = None
    parts: tuple[str, ...] = ()  #: of the batch view, by path in its tree: a request to rewrite them
    recall: int | None = None  #: the request to recall or release rows that it answers
    nonce: str = ""  #: no other move has it, one of the same number neither; "": the move is older than nonces

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The non-empty ranges of the move, by partition."""
        return tuple(
            OffsetRange(partition=p, low=self.lo[p], high=self.hi[p])
            for p in sorted(self.lo)
            if self.hi[p] > self.lo[p]
        )

    @property
    def branch(self) -> str:
        """Iceberg branch that this attempt alone writes to."""
        return branch_of(self.move_id, self.attempt)


def branch_of(move_id: int, attempt: int) -> str:
    """The name of an attempt's branch."""
    return f"move_{move_id}_{attempt}"


_BRANCH = re.compile(r"move_(\d{1,18})_\d+")


def move_of(branch: str) -> int | None:
    """The move that *branch* is an attempt of; ``None`` for a branch or tag of another writer."""
    named = _BRANCH.fullmatch(branch)
    return int(named[1]) if named else None


def plan_ranges(lag: Mapping[int, OffsetRange], *, offsets_max: int) -> tuple[dict[int, int], dict[int, int]]:
    """Choose what a move takes of *lag*, by partition: all of it, at most about *offsets_max* offsets.

    Partitions share the budget evenly, so that no partition starves while another one is far behind;
    what a partition does not need is given to the others.
    """
    behind = sorted((r for r in lag.values() if r.span), key=lambda r: (r.span, r.partition))
    lo, hi, budget = {}, {}, offsets_max
    for left, wanted in zip(range(len(behind), 0, -1), behind, strict=True):
        take = min(wanted.span, max(budget // left, 1))
        lo[wanted.partition] = wanted.low
        hi[wanted.partition] = wanted.low + take
        budget -= take
    return lo, hi


def halve(lo: Vector, hi: Vector) -> dict[int, int]:
    """The end of the first half of a move that failed too often; a single offset stays as it is."""
    return {p: lo[p] + max((hi[p] - lo[p]) // 2, min(1, hi[p] - lo[p])) for p in lo}


def can_halve(move: Move) -> bool:
    """Return whether half of a move is less than all of it."""
    return any(taken.span > 1 for taken in move.ranges)


def budget_of(move: Move, *, bytes_max: int) -> int:
    """Bytes that this attempt of a move without ranges may take: half as many after every `ATTEMPTS_MAX` attempts.

    Attempts that take Spark or their worker down look like outages and do not count as failures; with a smaller budget
    one of them fits at last. What it leaves is due for the next move.
    """
    return bytes_max >> ((move.attempt - 1) // ATTEMPTS_MAX)


def waited_s(since_s: float, *, seen_s: float = 0.0) -> float:
    """Seconds since the last move of a stage: *since_s* by the database's clock; at least *seen_s*, as a worker saw.

    Endless where the move lies ahead of that clock, which was set back since: the next move settles it.
    """
    return inf if since_s < 0 else max(since_s, seen_s)


def may_relayout(*, rows_wait: bool, last_merged: bool) -> bool:
    """Whether the next move of otree may be a relayout: they take turns with merges, so that neither starves (L8).

    *rows_wait*: there is something to merge. *last_merged*: the last move was a merge.
    """
    return last_merged or not rows_wait


def check_open(move: Move, current: Move | None) -> None:
    """Only the attempt that the ledger records as open may publish.

    Raises: MoveClosed (REFRESH).
    """
    if current is None:
        raise MoveClosed(f"move {move.move_id} is not in the ledger; nothing was written")
    if current.nonce != move.nonce:
        raise MoveClosed(f"another move was given the number {move.move_id}; nothing was written")
    if current.state is not MoveState.PLANNED:
        raise MoveClosed(f"move {move.move_id} is {current.state} already; nothing was written")
    if current.attempt != move.attempt or current.epoch != move.epoch:
        raise MoveClosed(
            f"move {move.move_id}: attempt {move.attempt} (epoch {move.epoch}) was superseded by "
            f"attempt {current.attempt} (epoch {current.epoch}); nothing was written"
        )


def closed_by(why: str, noted: str | None) -> str:
    """The text of a closed move's row: *why*, and the error that was *noted* last."""
    return f"{why}; its last error: {noted}" if noted else why


def next_attempt(move: Move, *, epoch: int) -> Move:
    """The same range, base and schema under a new attempt number (S25)."""
    return replace(move, attempt=move.attempt + 1, epoch=epoch)


def took_effect(move: Move, current: Move | None) -> bool:
    """What a lost answer of COMMIT meant, from the move's row read under the locks of the publish."""
    ours = current is not None and current.nonce == move.nonce and current.attempt == move.attempt
    return ours and current is not None and current.state is MoveState.COMMITTED


def dead_branches(branches: Iterable[str], moves: Iterable[tuple[int, int, str]]) -> list[str]:
    """Those of *branches* whose attempt can no longer be published; *moves* are (id, newest attempt, state)."""
    alive = {branch_of(move_id, attempt) for move_id, attempt, state in moves if state == MoveState.PLANNED}
    return sorted({name for name in branches if move_of(name) is not None} - alive)
