"""What the pure rules promise together: nothing that somebody was given goes, moves tile the log, once is once.

`lives` plays a table's life over plain numbers (rows are offsets, a segment is the set of its rows), so that each
rule is judged by rows, not by the bounds that it reasons with.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import BoundaryGap, Bounds, BoundsBroken, buffered, covers
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import Move, MoveClosed, MoveState, check_open, halve, next_attempt, plan_ranges
from harness_pipelines.protocol.reading.reads import Cut, cut_now, cut_of_version
from harness_pipelines.protocol.segments import may_hold, may_retire, needed, retirable
from harness_pipelines.protocol.versions import (
    Version,
    View,
    advance,
    answering_version,
    kept_versions,
    reached_versions,
    trim_floor,
    unanswered,
)

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GRACE, RETENTION = timedelta(minutes=10), timedelta(minutes=30)
Row = tuple[int, int]  # partition, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A segment: what a writer put into it, and what closing it recorded."""

    name: int
    state: str
    max_hi: dict[int, int] | None
    rows: frozenset[Row]


@dataclass(slots=True)
class Life:
    """A table that lives: what is committed, published, buffered, and what readers were given."""

    now: datetime
    bounds: dict[int, Bounds]
    versions: list[Version]
    segments: list[Rows]
    leases: list[tuple[Version, Cut[Rows]]] = field(default_factory=list)
    retained_from: int = 1

    def ingest(self, partition: int, count: int) -> None:
        at, last = self.bounds[partition], self.segments[-1]
        taken = {(partition, at.buffer_hi + i) for i in range(count)}
        self.bounds[partition] = replace(at, buffer_hi=at.buffer_hi + count)
        self.segments[-1] = replace(last, rows=last.rows | taken)

    def rotate(self) -> None:
        closed = replace(self.segments[-1], state="closed", max_hi={p: b.buffer_hi for p, b in self.bounds.items()})
        fresh = Rows(name=closed.name + 1, state="open", max_hi=None, rows=frozenset())
        self.segments[-1:] = [closed, fresh]

    def publish(self, offsets_max: int) -> None:
        lo, hi = plan_ranges(buffered(self.bounds), offsets_max=offsets_max)
        made = advance(
            self.versions[-1],
            a_move(lo, hi),
            view=View(metadata=f"{len(self.versions) + 1}", snapshot=len(self.versions) + 1),
            buffer_hi={p: b.buffer_hi for p, b in self.bounds.items()},
            starts={p: b.start for p, b in self.bounds.items()},
            now=self.now,
        )
        self.versions.append(made)
        self.bounds = dict(made.bounds)

    def look(self, back: int) -> None:
        version = self.versions[max(-1 - back, -len(self.versions))]
        if version.version >= self.retained_from:
            now = back == 0
            cut = cut_now(version, self.bounds, self.segments) if now else self.cut(version)
            self.leases.append((version, cut))

    def cut(self, version: Version) -> Cut[Rows]:
        return cut_of_version(version, self.versions[version.version :], self.segments)

    def trim(self) -> None:
        known = [v for v in self.versions if v.version >= self.retained_from]
        kept = kept_versions(known, retention=RETENTION, now=self.now)
        starts = {p: b.start for p, b in self.bounds.items()}
        leased = [version for version, _ in self.leases]
        floor = starts | trim_floor(known, leased, waiting=unanswered(kept, known), grace=GRACE, now=self.now)
        gone = {s.name for s in retirable(self.segments, floor)}
        self.segments = [replace(s, state="retired") if s.name in gone else s for s in self.segments]
        self.retained_from = kept[0].version


def a_move(lo: dict[int, int], hi: dict[int, int]) -> Move:
    return Move(
        move_id=1,
        table_id=1,
        stage=Stage.TIER,
        shard=0,
        lo=lo,
        hi=hi,
        base_version=1,
        schema_version=1,
        state=MoveState.PLANNED,
        attempt=1,
        epoch=1,
    )


def rows_between(low: dict[int, int], high: dict[int, int]) -> set[Row]:
    return {(p, o) for p in high for o in range(low[p], high[p])}


@st.composite
def lives(draw: st.DrawFn) -> Life:
    """A life of up to 20 acts; readers, trims and partitions that join among them."""
    partitions = range(draw(st.integers(1, 2)))
    bounds = {p: Bounds.at(draw(st.integers(0, 3))) for p in partitions}
    first = Version(
        table_id=1,
        version=1,
        stream=View(metadata="1", snapshot=1),
        schema_version=1,
        bounds=dict(bounds),
        move_id=None,
        committed_at=BEGIN,
    )
    segment = Rows(name=1, state="open", max_hi=None, rows=frozenset())
    life = Life(BEGIN, bounds, [first], [segment])
    for act, number in draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=20)):
        match act:
            case 0 | 1:
                life.ingest(number % len(life.bounds), number + 1)
            case 2 | 3:
                life.publish(offsets_max=number + 1)
            case 4:
                life.rotate()
            case 5:
                life.look(number)
            case 6:
                life.now += timedelta(minutes=7 * number)
            case 7:
                life.trim()
            case _ if len(life.bounds) < 4:
                life.bounds[len(life.bounds)] = Bounds.at(number)
    return life


def given_rows(life: Life, version: Version, cut: Cut[Rows]) -> set[Row]:
    """What a reader of *cut* finds now; the stream view of a version holds all below its ``stream_hi``."""
    starts = {p: b.start for p, b in cut.bounds.items()}
    stream_hi = {p: b.stream_hi for p, b in cut.bounds.items()}
    buffer_hi = {p: b.buffer_hi for p, b in cut.bounds.items()}
    found = rows_between(starts, stream_hi)
    above = rows_between(stream_hi, buffer_hi)
    if cut.answered_by is not None:
        reach = cut.answered_by.stream_hi
        return found | {(p, o) for p, o in above if o < reach.get(p, starts[p])}
    named = {s.name for s in cut.segments}
    there = [s for s in life.segments if s.state != "retired" and s.name in named]
    return found | {row for s in there for row in s.rows if row in above}


# -- readers ------------------------------------------------------------------------------------------------


@given(lives())
def test_what_a_lease_was_given_is_there_whatever_happens_afterwards(life: Life):
    """S2, S10: neither a move nor a trim takes a row from a living lease."""
    life.now += 2 * RETENTION
    life.trim()

    for version, cut in life.leases:
        starts = {p: b.start for p, b in cut.bounds.items()}
        promised = rows_between(starts, {p: b.buffer_hi for p, b in cut.bounds.items()})
        assert given_rows(life, version, cut) == promised


@given(lives())
def test_every_version_that_is_retained_can_be_read_in_full(life: Life):
    life.trim()

    for version in life.versions[life.retained_from - 1 :]:
        cut = life.cut(version)
        starts = {p: b.start for p, b in cut.bounds.items()}
        promised = rows_between(starts, {p: b.buffer_hi for p, b in cut.bounds.items()})
        assert given_rows(life, version, cut) == promised


@given(lives())
def test_no_row_that_only_the_buffer_has_retires(life: Life):
    """S13, without any reader."""
    life.leases.clear()
    life.now += 2 * RETENTION
    life.trim()

    kept = {row for s in life.segments if s.state != "retired" for row in s.rows}
    assert (
        rows_between({p: b.stream_hi for p, b in life.bounds.items()}, {p: b.buffer_hi for p, b in life.bounds.items()})
        <= kept
    )


@given(lives())
def test_a_revert_within_the_grace_finds_its_rows(life: Life):
    life.trim()

    recent = [v for v in life.versions if v.committed_at > life.now - GRACE]
    kept = {row for s in life.segments if s.state != "retired" for row in s.rows}
    for version in recent:
        low = {p: version.stream_hi.get(p, b.start) for p, b in life.bounds.items()}
        assert rows_between(low, {p: b.stream_hi for p, b in life.bounds.items()}) <= kept


@given(lives())
def test_in_the_end_only_the_open_segment_is_left(life: Life):
    """L5: once all is published and nobody reads, time lets every closed segment go."""
    life.leases.clear()
    life.rotate()
    life.publish(offsets_max=10_000)
    life.now += 2 * RETENTION
    life.trim()

    assert [s.state for s in life.segments[:-1]] == ["retired"] * (len(life.segments) - 1)


@given(lives())
def test_a_partition_that_no_version_knows_holds_no_segment_back(life: Life):
    """Such a one has no rows yet: its start is the floor."""
    life.leases.clear()
    life.publish(offsets_max=10_000)
    life.bounds[len(life.bounds)] = Bounds.at(7)
    life.rotate()
    life.now += 2 * RETENTION
    life.trim()

    assert [s.state for s in life.segments[:-1]] == ["retired"] * (len(life.segments) - 1)


@given(lives(), st.data())
def test_files_of_all_that_can_be_read_are_reached(life: Life, data: st.DataObject):
    """S10: retained and leased versions, bases of open moves, and whoever answers for them."""
    base = data.draw(st.sampled_from(life.versions)).version
    leased = {version.version for version, _ in life.leases}

    reached = reached_versions(life.versions, retained_from=life.retained_from, leased=leased, bases=[base])

    numbers = {v.version for v in reached}
    assert {base, *leased, *range(life.retained_from, len(life.versions) + 1)} <= numbers
    for _, cut in life.leases:
        assert cut.answered_by is None or cut.answered_by.version in numbers
    for version in life.versions[life.retained_from - 1 :]:
        answering = life.cut(version).answered_by
        assert answering is None or answering.version in numbers


@given(lives(), st.data())
def test_whoever_answers_for_a_version_has_all_its_rows_and_is_the_first(life: Life, data: st.DataObject):
    old = data.draw(st.sampled_from(life.versions))

    found = answering_version(old, life.versions)

    holding = [v.version for v in life.versions if v.version >= old.version and covers(v.stream_hi, old.buffer_hi)]
    assert (found and found.version) == min(holding, default=None)


# -- segments -----------------------------------------------------------------------------------------------


@given(lives(), st.dictionaries(st.integers(0, 3), st.integers(0, 30)))
def test_a_segment_with_a_row_that_is_asked_for_is_named_and_does_not_retire(life: Life, low: dict[int, int]):
    asked = [s for s in life.segments if any(p in low and o >= low[p] for p, o in s.rows)]

    assert all(may_hold(s.max_hi, low) for s in asked)
    assert all(s in needed(life.segments, low) for s in asked if s.state != "retired")
    assert not any(may_retire(s.max_hi, dict.fromkeys(life.bounds, 0) | low) for s in asked)


# -- moves --------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 9), st.integers(0, 60))), st.integers(1, 40))
def test_moves_one_after_another_take_every_offset_once(lag: dict[int, tuple[int, int]], offsets_max: int):
    """S6: they tile what was buffered, whatever the budget, also when every second one is halved."""
    bounds = {p: Bounds(start=low, batch_hi=low, stream_hi=low, buffer_hi=low + n) for p, (low, n) in lag.items()}
    wanted = rows_between({p: b.stream_hi for p, b in bounds.items()}, {p: b.buffer_hi for p, b in bounds.items()})
    taken: list[Row] = []
    for turn in range(sum(n for _, n in lag.values()) + 1):
        lo, hi = plan_ranges(buffered(bounds), offsets_max=offsets_max)
        if not lo:
            break
        hi = halve(lo, hi) if turn % 2 else hi
        taken += rows_between(lo, hi)
        bounds = {p: replace(b, stream_hi=hi.get(p, b.stream_hi)) for p, b in bounds.items()}

    assert (len(taken), set(taken)) == (len(wanted), wanted)


@given(lives())
def test_a_move_that_took_effect_fits_nowhere_again(life: Life):
    """S6, S9: neither the same move nor another one from the same bound."""
    head = life.versions[-1]
    ends = {p: b.buffer_hi + 5 for p, b in life.bounds.items()}
    starts = {p: b.start for p, b in life.bounds.items()}
    lo = {0: head.bounds[0].stream_hi}
    move = a_move(lo, {0: lo[0] + 1})
    following = advance(head, move, view=head.stream, buffer_hi=ends, starts=starts, now=life.now)

    for again in (move, a_move(lo, {0: lo[0] + 3}), a_move({0: lo[0] + 2}, {0: lo[0] + 3})):
        with pytest.raises(BoundaryGap):
            advance(following, again, view=head.stream, buffer_hi=ends, starts=starts, now=life.now)


@given(lives(), st.integers(1, 9))
def test_nothing_is_published_that_was_not_ingested(life: Life, beyond: int):
    head, ends = life.versions[-1], {p: b.buffer_hi for p, b in life.bounds.items()}
    move = a_move({0: head.bounds[0].stream_hi}, {0: ends[0] + beyond})

    with pytest.raises(BoundsBroken):
        advance(
            head,
            move,
            view=head.stream,
            buffer_hi=ends,
            starts=dict.fromkeys(ends, 0),
            now=life.now,
        )


@given(lives())
def test_versions_are_numbered_without_gaps_and_never_cover_less(life: Life):
    """S3."""
    assert [v.version for v in life.versions] == list(range(1, len(life.versions) + 1))
    for before, after in zip(life.versions, life.versions[1:], strict=False):
        assert covers(after.stream_hi, before.stream_hi)
        assert covers(after.buffer_hi, before.buffer_hi)


@given(st.lists(st.sampled_from(["again", "commit", "abandon"]), max_size=6))
def test_of_all_attempts_of_a_move_at_most_one_may_publish(acts: list[str]):
    """S9: whatever happened, the ledger's row lets one attempt through, or none."""
    current = a_move({0: 0}, {0: 5})
    attempts = [current]
    for act in acts:
        if act == "again" and current.state is MoveState.PLANNED:
            current = next_attempt(current, epoch=current.epoch + 1)
            attempts.append(current)
        elif act != "again":
            current = replace(current, state=MoveState.COMMITTED if act == "commit" else MoveState.ABANDONED)

    let_through = []
    for attempt in attempts:
        try:
            check_open(attempt, current)
        except MoveClosed:
            continue
        let_through.append(attempt)
    assert let_through == ([attempts[-1]] if current.state is MoveState.PLANNED else [])
    assert len({attempt.branch for attempt in attempts}) == len(attempts)
