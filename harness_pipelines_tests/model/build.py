"""Small ints of the models to the values of the protocol, and the protocol's verdicts as plain results.

Everything here calls the real functions; results are cached, because a model asks the same small questions often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.changes.reverts import Retained, check_revert, fenced, plan_revert, reverted
from harness_pipelines.protocol.claims import Claim, Stage, check_claim, may_take
from harness_pipelines.protocol.lake.files import check_merged_into, check_untouched, condemned_before
from harness_pipelines.protocol.moves import Move, MoveState, check_open, took_effect
from harness_pipelines.protocol.versions import (
    Version,
    View,
    ViewName,
    advance,
    check_base,
    kept_versions,
    trim_floor,
    unanswered,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GRACE, RETENTION = timedelta(minutes=10), timedelta(hours=24)
_ALIVE, _ENDED = NOW + timedelta(minutes=1), NOW
_MINUTES_OLD, _MINUTES_YOUNG = 20, 1  #: since a file was written
_AGED, _SETTLED, _FRESH = NOW - timedelta(hours=30), NOW - timedelta(minutes=20), NOW - timedelta(minutes=1)
PLANNED, COMMITTED, ABANDONED = MoveState.PLANNED.value, MoveState.COMMITTED.value, MoveState.ABANDONED.value
Vec = tuple[int, ...]  #: an offset per partition


class ClaimRow(NamedTuple):
    """A row of ``claims``: *holder* is a worker's index, -1 somebody who is gone."""

    holder: int
    epoch: int
    alive: bool  #: the lease has not ended


NO_RANGE = -1  #: ``lo`` and ``hi`` of a move without ranges: it moves no bound


class MoveRow(NamedTuple):
    """A row of ``moves``; its number is its place in the table."""

    lo: int
    hi: int
    base: int
    state: str
    attempt: int
    epoch: int
    effects: int = 0  #: how often it took effect
    stage: str = "tier"


def verdict(ask: Callable[[], object]) -> str | None:
    """The name of the refusal, ``None`` if there is none."""
    try:
        ask()
    except HarnessError as refused:
        return type(refused).__name__
    return None


def vector(values: Vec) -> dict[int, int]:
    return dict(enumerate(values))


# -- claims -------------------------------------------------------------------------------------------------


def _claim(holder: int, epoch: int, alive: bool) -> Claim:
    until = _ALIVE if alive else _ENDED
    return Claim(table_id=1, stage=Stage.TIER, shard=0, holder=str(holder), epoch=epoch, lease_until=until)


@cache
def free(row: ClaimRow) -> bool:
    """May a thief take the claim?"""
    return may_take(_claim(*row), now=NOW)


@cache
def fenced_out(holder: int, epoch: int, row: ClaimRow) -> str | None:
    """Does the fence refuse the claim of *epoch* that *holder* believes to have?"""
    return verdict(lambda: check_claim(_claim(holder, epoch, True), _claim(*row), now=NOW))


# -- moves --------------------------------------------------------------------------------------------------


@cache
def move(number: int, row: MoveRow) -> Move:
    return Move(
        move_id=number,
        table_id=1,
        stage=Stage(row.stage),
        shard=0,
        lo={} if row.lo == NO_RANGE else {0: row.lo},
        hi={} if row.lo == NO_RANGE else {0: row.hi},
        base_version=row.base,
        schema_version=1,
        state=MoveState(row.state),
        attempt=row.attempt,
        epoch=row.epoch,
    )


@cache
def closed(number: int, mine: MoveRow, current: MoveRow) -> str | None:
    """Is the attempt *mine* not the open one any more?"""
    return verdict(lambda: check_open(move(number, mine), move(number, current)))


@cache
def took(number: int, mine: MoveRow, current: MoveRow) -> bool:
    return took_effect(move(number, mine), move(number, current))


# -- versions -----------------------------------------------------------------------------------------------


class Published(NamedTuple):
    """A row of ``versions``; its number is its place in the table, from 1 on."""

    stream_hi: Vec
    buffer_hi: Vec
    snapshot: int
    files: Vec = ()  #: what its stream view holds: offsets, or names of files
    revert_of: int = 0
    batch_hi: Vec = ()  #: empty, and no snapshot, in a table without a batch view
    batch_snapshot: int = 0
    batch_files: Vec = ()


@cache
def version(number: int, row: Published, committed_at: datetime = NOW) -> Version:
    bounds = zip(row.batch_hi or (0,) * len(row.stream_hi), row.stream_hi, row.buffer_hi, strict=True)
    batch = View(metadata=f"batch-{number}.json", snapshot=row.batch_snapshot) if row.batch_snapshot else None
    return Version(
        table_id=1,
        version=number,
        stream=View(metadata=f"{number}.json", snapshot=row.snapshot),
        batch=batch,
        schema_version=1,
        bounds={p: Bounds(start=0, batch_hi=m, stream_hi=s, buffer_hi=b) for p, (m, s, b) in enumerate(bounds)},
        move_id=None,
        committed_at=committed_at,
        revert_of=row.revert_of or None,
    )


@cache
def versions(rows: tuple[Published, ...], settled: int = 0, aged: int = 0, first: int = 1) -> tuple[Version, ...]:
    """Rows ``first..`` as versions; *settled* of all are older than the grace, *aged* of them than the retention."""
    made = []
    for at, row in enumerate(rows):
        age = _AGED if at < aged else _SETTLED if at < settled else _FRESH
        made.append(version(at + 1, row, age + timedelta(seconds=at)))
    return tuple(made[first - 1 :])


@cache
def foreign(row: Published, number: int, base_snapshot: int, view: ViewName = "stream") -> str | None:
    """Is the snapshot that was built on not the one that the head published?"""
    return verdict(lambda: check_base(version(number, row), base_snapshot, table="t.t", view=view))


@cache
def following(number: int, head: Published, taken: MoveRow, buffer_hi: int) -> Published | str:
    """The version after *head*, with its own number as its view's snapshot and no files yet; or the refusal."""
    try:
        made = advance(
            version(number, head),
            move(1, taken),
            view=View(metadata="", snapshot=number + 1),
            buffer_hi={0: buffer_hi},
            starts={0: 0},
            now=NOW,
        )
    except HarnessError as refused:
        return type(refused).__name__
    return _published(made)


def advanced(number: int, head: Published, taken: MoveRow, buffer_hi: int) -> tuple[int, int] | str:
    """``(stream_hi, buffer_hi)`` of the version after *head*, or the refusal."""
    made = following(number, head, taken, buffer_hi)
    return made if isinstance(made, str) else (made.stream_hi[0], made.buffer_hi[0])


def _published(made: Version) -> Published:
    bounds = made.bounds[0]
    return Published(
        stream_hi=(bounds.stream_hi,),
        buffer_hi=(bounds.buffer_hi,),
        snapshot=made.stream.snapshot,
        revert_of=made.revert_of or 0,
        batch_hi=(bounds.batch_hi,),
        batch_snapshot=made.batch.snapshot if made.batch else 0,
    )


@cache
def kept_from(rows: tuple[Published, ...], aged: int) -> int:
    """The oldest version that the retention keeps."""
    return kept_versions(versions(rows, aged, aged), retention=RETENTION, now=NOW)[0].version


@cache
def pinned(rows: tuple[Published, ...], named: tuple[tuple[int, Vec], ...]) -> tuple[Version, ...]:
    """The versions of *named*, each with the `buffer_hi` that its snapshot was made with; no bound is above it."""
    known = versions(rows)
    found = []
    for number, highs in named:
        at = known[number - 1]
        bounds = {
            p: replace(b, batch_hi=min(b.batch_hi, high), stream_hi=min(b.stream_hi, high), buffer_hi=high)
            for (p, b), high in zip(sorted(at.bounds.items()), highs, strict=True)
        }
        found.append(replace(at, bounds=bounds))
    return tuple(found)


@cache
def floor(
    rows: tuple[Published, ...],
    settled: int,
    leased: Vec = (),
    aged: int = 0,
    first: int = 1,
    named: tuple[tuple[int, Vec], ...] = (),
) -> Vec:
    """The trim floor with the versions *leased* and *named*; the first *aged* versions are not retained any more."""
    known = versions(rows, settled, aged, first)
    every = versions(rows, settled, aged)
    kept = [*kept_versions(known, retention=RETENTION, now=NOW), *pinned(rows, named)]
    waiting = unanswered(kept, known)
    found = trim_floor(known, [every[v - 1] for v in leased], waiting=waiting, grace=GRACE, now=NOW)
    return tuple(found[p] for p in range(len(rows[0].stream_hi)))


# -- files --------------------------------------------------------------------------------------------------


@cache
def may_condemn(is_old: bool, planned_before: bool, is_open: bool) -> bool:
    """Is a file old enough to be condemned? An open move was planned a minute before its file was written."""
    written = NOW - timedelta(minutes=_MINUTES_OLD if is_old else _MINUTES_YOUNG)
    planned = written - timedelta(minutes=1) if planned_before else NOW
    horizon = condemned_before(oldest_open=planned if is_open else None, grace=GRACE, now=NOW)
    return written < horizon


@cache
def touched(seen: tuple[tuple[int, int], ...], live: tuple[tuple[int, int], ...]) -> str | None:
    """Are data files, each with its delete file, not any more as they were seen? A name below zero stands for none."""
    then, now = ({str(n): str(d) if d >= 0 else None for n, d in files} for files in (seen, live))
    return verdict(lambda: check_untouched(then, now))


@cache
def merged_elsewhere(snapshot: int, base_snapshot: int) -> str | None:
    """Is the snapshot that a keyed merge was made of not the one that it is built on?"""
    return verdict(lambda: check_merged_into(snapshot, base_snapshot, table="", move_id=1))


# -- reverts ------------------------------------------------------------------------------------------------


class Revert(NamedTuple):
    """What a revert may do and does, as `protocol.reverts` says."""

    refused: str | None
    closes: tuple[int, ...]  #: numbers of the moves that are abandoned
    claims: tuple[ClaimRow, ...]  #: as they are left


@cache
def revert(
    rows: tuple[Published, ...],
    target: int,
    hot_from: int,
    moves: tuple[MoveRow, ...],
    claims: tuple[ClaimRow, ...],
    retained_from: int = 1,
) -> Revert:
    """A revert of the head to version *target*, with the buffer from *hot_from* on."""
    known = versions(rows)
    plan = plan_revert(
        known[-1],
        known[target - 1],
        known[retained_from - 1 :],
        Retained(retained_from=retained_from, hot="buffer", hot_from={0: hot_from}),
        starts={0: 0},
        moves=[move(number, row) for number, row in enumerate(moves)],
        claims=[_claim(*claim) for claim in claims],
    )
    left = [fenced(claim, now=NOW) for claim in plan.claims]
    return Revert(
        refused=verdict(lambda: check_revert(plan)),
        closes=tuple(m.move_id for m in plan.open_moves),
        claims=tuple(ClaimRow(int(c.holder), c.epoch, c.lease_until > NOW) for c in left),
    )


@cache
def restoring(rows: tuple[Published, ...], target: int, buffer_hi: int) -> Published:
    """The version that a revert to *target* publishes, with its own number as the snapshot of each view."""
    known = versions(rows)
    made = reverted(
        known[-1],
        known[target - 1],
        views={name: View(metadata="", snapshot=len(rows) + 1) for name in known[-1].views},
        buffer_hi={0: buffer_hi},
        starts={0: 0},
        move_id=1,
        now=NOW,
    )
    old = rows[target - 1]
    return _published(made)._replace(files=old.files, batch_files=old.batch_files)
