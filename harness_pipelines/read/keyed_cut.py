"""The newest versions of a keyed table as chunks, and which rows they hide: what is new since the cut before is added.

The rules are in `protocol.keyed_cuts`, see decision 0057. Each server has its own levels. It names files of a cut
before again only while the ledger has the row of the cut that it named them in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Protocol

import numpy as np
import pyarrow as pa

from harness_pipelines.ports.access import (
    HasBatchKeys,
    HasBufferReader,
    HasCutFiles,
    HasCuts,
    HasLakeReads,
    HasLeases,
    HasTables,
)
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged, CutImpossible, CutOvertaken
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.cuts import Chunk, CutBounds
from harness_pipelines.protocol.key_hashes import KeyHasher, Keys, Places, hasher, in_order, matches
from harness_pipelines.protocol.keyed_cuts import (
    Cold,
    Level,
    check_partitions,
    cut_off,
    folded,
    found_in,
    hiding,
    hot_keys,
    joined,
    newest_of,
    renumbered,
    to_join,
)
from harness_pipelines.protocol.ranges import first_of, offset_count, rest_of
from harness_pipelines.protocol.reading.fold import int_column
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan, part_within
from harness_pipelines.protocol.reading.selection import Selection, table_columns
from harness_pipelines.read.plan import Looked
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.predicate import PARTITION

FOLDING_S_MAX = 60.0  #: for the levels of one cut; what was read of the batch view's keys stays for the next one
#: What is read at once: offsets, few at first, since nothing is known of the rows; and bytes of rows.
PIECE_OFFSETS, PIECE_OFFSETS_MAX, PIECE_BYTES_MAX = 8_192, 262_144, 32 * 2**20
WAIT_PER_S, WAIT_S_MAX = 10.0, 300.0  #: before what was over the limits is tried again, for each second that it took
KEYED = "newest of each key, "  #: begins the maker of chunks of a keyed table


class Ports(HasBatchKeys, HasBufferReader, HasCutFiles, HasCuts, HasLakeReads, HasLeases, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Recalled:
    """The keys of a chunk of recalled rows, which are rows of the batch view."""

    path: str
    keys: Keys  #: in order
    places: Places
    partitions: Places


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hot:
    """What is above the batch view, as of one cut."""

    maker: str
    low: Vector
    high: Vector
    stream_hi: Vector
    view: tuple[str, ...] = ()  #: the metadata and the bounds of the batch view, and the chunks of recalled rows
    files: Mapping[str, str]  #: of the batch view, recalled chunks last: by path that of the delete file, or ""
    recalled: tuple[_Recalled, ...] = ()
    levels: tuple[Level, ...] = ()  #: oldest first
    cut: Cut | None = None  #: that names its files


class KeyedCuts:
    """The levels of one table in this process; one thread at a time. *check* raises where files of a cut are lost."""

    def __init__(self, stores: Ports, *, keep: timedelta, check: Callable[[Cut], None]) -> None:
        self._stores, self._keep, self._check = stores, keep, check
        self._known: _Hot | None = None
        self._over: tuple[object, float, CutOverLimits] | None = None  #: for which state, until when, and why

    def maker(
        self,
        looked: Looked,
        bounds: CutBounds,
        newest: Cut | None,
        *,
        maker: str,
        recalled: Iterable[Chunk],
        check: Callable[[], None],
    ) -> KeyedChunks:
        """What makes the chunks of the next cut; *recalled* are those of recalled rows, of which it may hide some.

        Raises: CutOverLimits where it was too much a short time ago.
        """
        low = {p: batch_hi for p, (_, batch_hi, _, _) in bounds.items()}
        state = (maker, tuple(sorted(low.items())), looked.table.spec.serve)
        if self._over is not None and self._over[0] == state and time.monotonic() < self._over[1]:
            raise self._over[2]
        begun = self._usable(looked, bounds, newest, maker) or _Hot(
            maker=maker, low=low, high={}, stream_hi={}, files={}
        )
        sequence = newest.sequence + 1 if newest else 0
        making = _Making(self._stores, looked, maker=maker, sequence=sequence, check=check)
        return KeyedChunks(making, begun, bounds, recalled, known=self._knows, over=partial(self._is_over, state))

    def _is_over(self, state: object, over: CutOverLimits, took_s: float) -> None:
        self._over = (state, time.monotonic() + min(WAIT_PER_S * took_s, WAIT_S_MAX), over)

    def _knows(self, known: _Hot) -> None:
        self._known, self._over = known, None

    def _usable(self, looked: Looked, bounds: CutBounds, newest: Cut | None, maker: str) -> _Hot | None:
        """What is known, if it can be gone on from: no bound has fallen, and its files are there."""
        known = self._known
        if known is None or known.cut is None or newest is None or newest.is_over or known.maker != maker:
            return None
        if _has_fallen(known, bounds) or self._fell_meanwhile(looked, known.cut, bounds):
            return None
        if newest.sequence != known.cut.sequence:
            try:  # another server's cut names other files; ours stay while the row of ours does
                self._stores.cuts.serve(known.cut, keep=self._keep)
                self._check(known.cut)
            except (CutOvertaken, CutDamaged):
                return None
        return known

    def _fell_meanwhile(self, looked: Looked, cut: Cut, bounds: CutBounds) -> bool:
        """Whether a version after that of *cut* had more in the batch view than *bounds* have.

        What it had more may have been corrected by a replay, and is hot again: levels from before lack that.
        """
        now = looked.plan.version
        merged = self._stores.cuts.merged(looked.table, above=cut.version, below=now) if now > cut.version + 1 else {}
        return any(p not in bounds or bounds[p][1] < batch_hi for p, batch_hi in merged.items())


def _has_fallen(known: _Hot, bounds: CutBounds) -> bool:
    """Whether a partition has vanished, or one of its bounds is lower: by a revert, or a view that is begun again."""
    return bool(known.low.keys() - bounds.keys()) or any(
        batch_hi < known.low.get(p, 0) or stream_hi < known.stream_hi.get(p, 0) or high < known.high.get(p, 0)
        for p, (_, batch_hi, stream_hi, high) in bounds.items()
    )


def _named(chunk: Chunk | None, named: Mapping[str, Chunk]) -> Chunk | None:
    return None if chunk is None else named[chunk.path]


class KeyedChunks:
    """`ChunkMaker` of a keyed table: the newest version of each key, what these hide, and recalled rows."""

    def __init__(
        self,
        making: _Making,
        begun: _Hot,
        bounds: CutBounds,
        recalled: Iterable[Chunk],
        *,
        known: Callable[[_Hot], None],
        over: Callable[[CutOverLimits, float], None],
    ) -> None:
        self._making, self._begun, self._bounds, self._recalled = making, begun, bounds, recalled
        self._known, self._over = known, over
        self._made: _Hot | None = None

    def chunks(self) -> Iterator[Chunk]:
        """Raises: CutOverLimits, KeyInTwoPartitions, KeysMeet; as `ArrowReader.read`, `CutFiles` and `BatchKeys`."""
        recalled = list(self._recalled)
        began = time.monotonic()
        try:
            made = self._making.advanced(self._begun, self._bounds, recalled)
        except CutOverLimits as over:
            self._over(over, time.monotonic() - began)
            raise
        self._made = made
        yield from recalled
        for level in made.levels:
            yield from (file for file in (level.chunk, level.hides) if file is not None)

    def published(self, cut: Cut) -> None:
        """The ledger has *cut*, which was made of `chunks`: the next one may name its files again."""
        assert self._made is not None, "a cut is made of all chunks"
        named = {chunk.path: chunk for chunk in cut.chunks}
        levels = tuple(
            replace(level, chunk=_named(level.chunk, named), hides=_named(level.hides, named))
            for level in self._made.levels
        )
        self._known(replace(self._made, levels=levels, cut=cut))

    @property
    def written(self) -> int:
        return self._making.written

    @property
    def rows(self) -> int:
        return self._making.rows


class _Making:
    """The files of one cut."""

    def __init__(self, stores: Ports, looked: Looked, *, maker: str, sequence: int, check: Callable[[], None]) -> None:
        self.written = self.rows = 0  #: files that this cut writes, and rows in them
        self._check_lease, self._began = check, time.monotonic()
        self._stores, self._table, self._plan = stores, looked.table, looked.plan
        self._version, self._maker, self._sequence = looked.state.version, KEYED + maker, sequence
        self._reader = ArrowReader.of(stores)
        self._hasher: KeyHasher = hasher()
        self._at_once = PIECE_OFFSETS
        self._files: Mapping[str, str] = {}
        self._recalled: tuple[_Recalled, ...] = ()

    def advanced(self, hot: _Hot, bounds: CutBounds, recalled: Sequence[Chunk]) -> _Hot:
        """*hot* as it is at *bounds*, with all files written."""
        low, stream_hi, high = ({p: bound[at] for p, bound in bounds.items()} for at in (1, 2, 3))
        levels = [rest for level in hot.levels if (rest := cut_off(level, low)) is not None]
        self._files, self._recalled = hot.files, hot.recalled
        if (view := self._view(recalled)) != hot.view:
            levels = self._moved(levels, recalled)
        left = {p: run for p, at in low.items() if (run := (max(hot.high.get(p, at), at), high[p]))[0] < run[1]}
        while left:
            ranges = first_of(sorted(left.items()), self._at_once)
            left = dict(rest_of(left.items(), ranges))
            levels = self._added(levels, ranges)
            self._check_size(levels)
            self._check()
        levels = [self._with_deletes(level) for level in levels]
        return _Hot(
            maker=hot.maker,
            low=low,
            high=high,
            stream_hi=stream_hi,
            view=view,
            files=self._files,
            recalled=self._recalled,
            levels=tuple(levels),
        )

    @property
    def _key(self) -> tuple[str, ...]:
        return self._plan.key

    def _view(self, recalled: Sequence[Chunk]) -> tuple[str, ...]:
        parts = [f"{p.metadata} {sorted(p.low.items())} {sorted(p.high.items())}" for p in batch_of(self._plan).lake]
        return (*parts, *(chunk.path for chunk in recalled))

    # -- a batch view that moves ----------------------------------------------------------------------------

    def _moved(self, levels: list[Level], recalled: Sequence[Chunk]) -> list[Level]:
        """*levels* over the batch view as it is now: what is hot is looked for in the files that are new."""
        was, of_view = self._files, self._stores.batch_keys.files(self._plan)
        self._recalled = tuple(self._index_of(chunk) for chunk in recalled)
        self._files = {**of_view, **{one.path: "" for one in self._recalled}}
        numbers = {path: number for number, path in enumerate(self._files)}
        levels = [level if level.is_whole else self._joined([level], None) for level in levels]
        kept = renumbered(Cold.of([level.cold for level in levels]), list(was), numbers)
        new = [number for path, number in numbers.items() if path not in was]
        found = [self._live_now(kept)]
        for level, rest in newest_of(levels):
            found.append(self._find(level, rest, among=new))
            self._check()
        return hiding(
            levels, Cold.of(found), was=list(was), now=list(self._files), table=self._table.name, key=self._key
        )

    def _live_now(self, cold: Cold) -> Cold:
        """*cold* with what the batch view itself hides by now; a recalled row is shown by it."""
        live = np.ones(len(cold), np.bool_)
        in_view = np.flatnonzero(cold.files < len(self._files) - len(self._recalled))
        live[in_view] = self._stores.batch_keys.live(self._plan, cold.take(in_view))
        return replace(cold, live=live)

    def _find(self, level: Level, rest: Places, *, among: Sequence[int] | None) -> Cold:
        """The rows of the batch view with the keys of *level* at *rest*; recalled ones are rows of it."""
        keys = np.ascontiguousarray(level.keys[:, rest])
        first = len(self._files) - len(self._recalled)
        in_view = None if among is None else [number for number in among if number < first]
        values = level.values if len(rest) == len(level) else level.values.take(pa.array(rest))
        found = [self._stores.batch_keys.find(self._plan, values, keys, among=in_view)]
        for number, recalled in enumerate(self._recalled, first):
            if among is None or number in among:
                one, other = matches(keys, recalled.keys)
                found.append(
                    Cold(
                        keys=keys[:, one],
                        files=np.full(len(one), number),
                        places=recalled.places[other],
                        live=np.ones(len(one), np.bool_),
                        partitions=recalled.partitions[other],
                    )
                )
        return Cold.of(found)

    def _index_of(self, chunk: Chunk) -> _Recalled:
        for known in self._recalled:
            if known.path == chunk.path:
                return known
        rows = self._stores.cut_files.read_chunk(self._table, self._plan, chunk)
        keys = self._hasher.of([rows.column(name) for name in self._key])
        order = in_order(keys)
        partitions = int_column(rows, PARTITION)[order]
        return _Recalled(
            path=chunk.path, keys=np.ascontiguousarray(keys[:, order]), places=order, partitions=partitions
        )

    # -- what is new ----------------------------------------------------------------------------------------

    def _added(self, levels: list[Level], ranges: Ranges) -> list[Level]:
        """*levels* with one more, of the versions in *ranges*, and with those that it is joined with."""
        rows = self._reader.newest(hot_of(self._plan, ranges), Selection(coordinates=True))
        self._check_lease()
        self._at_once = _next_size(ranges, rows.nbytes)
        level, puts = folded(rows, key=self._key, ranges=ranges, hasher=self._hasher)
        if not len(level):
            return levels
        warm, rest = found_in(levels, level, table=self._table.name, key=self._key)
        cold = self._find(level, rest, among=None)
        check_partitions(level, cold, table=self._table.name, key=self._key)
        level, puts = replace(level, warm=warm, cold=cold), puts.select(list(table_columns(self._plan)))
        count = to_join(levels, level, puts.nbytes)
        if not count:
            return [*levels, self._written(level, puts)]
        return [*levels[:-count], self._joined([*levels[-count:], level], puts)]

    def _joined(self, levels: Sequence[Level], puts: pa.Table | None) -> Level:
        """*levels* as one; *puts* are the rows of the last one, if they are in no file."""
        empty = pa.schema([column.arrow for column in table_columns(self._plan).values()]).empty_table()
        rows = [
            empty if level.chunk is None else self._stores.cut_files.read_chunk(self._table, self._plan, level.chunk)
            for level in levels
        ]
        if puts is not None:
            rows[-1] = puts
        found = joined(levels, [one.num_rows for one in rows])
        return self._written(found.level, pa.concat_tables(rows).take(pa.array(found.rows)))

    def _written(self, level: Level, rows: pa.Table) -> Level:
        chunk = None
        if rows.num_rows:
            self.written, self.rows = self.written + 1, self.rows + rows.num_rows
            chunk = self._stores.cut_files.write_chunk(
                self._table, self._version, rows, ranges=level.ranges, maker=self._maker, sequence=self._sequence
            )
        return replace(level, chunk=chunk, is_whole=True)

    def _with_deletes(self, level: Level) -> Level:
        if level.hides is not None or not (hidden := level.hidden(list(self._files))):
            return level
        written = self._stores.cut_files.write_hidden(self._table, self._version, hidden, sequence=self._sequence)
        self.written, self.rows = self.written + 1, self.rows + written.rows
        return replace(level, hides=written)

    def _check(self) -> None:
        self._check_lease()
        if time.monotonic() - self._began > FOLDING_S_MAX:
            said = f"folding its newest versions takes longer than {FOLDING_S_MAX:g} s"
            raise CutOverLimits(f"{self._table.name}: {said}")

    def _check_size(self, levels: Sequence[Level]) -> None:
        allowed = self._table.spec.serve.hot_rows
        if sum(map(len, levels)) > allowed and (count := hot_keys(levels)) > allowed:
            raise CutOverLimits(
                f"{self._table.name}: {count:,} keys have a version above the batch view, a cut folds up to "
                f"{allowed:,} (`serve.hot_rows`)"
            )


def _next_size(ranges: Ranges, size: int) -> int:
    """How many offsets are read next, after rows of *size* bytes in *ranges*."""
    offsets = offset_count(ranges)
    return max(1, min(PIECE_OFFSETS_MAX, 4 * offsets, PIECE_BYTES_MAX * offsets // max(size, 1)))


# -- parts of a plan --------------------------------------------------------------------------------------------


def as_served(looked: Looked) -> Looked:
    """The state that a cut shows, if it can be one.

    Raises: CutImpossible for a keyed table without a batch view, whose lake is a changelog.
    """
    if looked.plan.key and not looked.table.view_set.clustered:
        said = "a keyed table with `views: stream` has only a changelog in the lake"
        raise CutImpossible(f"{looked.table.name}: {said}")
    return looked


def check_buffered(looked: Looked) -> None:
    """Raises: CutOverLimits for a table without a buffer, whose newest records are in the log alone."""
    if not looked.table.intake.buffered:
        said = "a record that is in the log alone may still become another row"
        raise CutOverLimits(f"{looked.table.name} has no buffer, and {said}; a cut shows what is merged")


def merged_bounds(plan: ReadPlan) -> CutBounds:
    """Those of the state of the last merge of a keyed table, for which no row has to be compared by its key."""
    return {p: (b.start, b.batch_hi, b.batch_hi, b.batch_hi) for p, b in plan.bounds.items()}


def shows_as_much(bounds: CutBounds, cut: Cut | None) -> bool:
    """Whether no partition ends below that of *cut*: who has read that may be given a cut of *bounds* (S4)."""
    return cut is None or all(p in bounds and bounds[p][3] >= high for p, (_, _, _, high) in cut.bounds.items())


def as_written(plan: ReadPlan) -> ReadPlan:
    """What of *plan* a cut names as it is: of a keyed table the batch view alone. Its bounds say how far all goes.

    What is in a later version's view by now is not among it: the rows above the lake are in chunks.
    """
    if plan.key:
        return batch_of(plan)
    return replace(plan, lake=tuple(one for one in plan.lake if not is_later(one, plan)))


def is_later(part: LakePart, plan: ReadPlan) -> bool:
    """Whether *part* has rows that were above the lake in the version of *plan*, and are in a later view by now."""
    return any(high > plan.bounds[p].stream_hi for p, high in part.high.items())


def batch_of(plan: ReadPlan) -> ReadPlan:
    """Of the plan of a keyed table the batch view alone, without what was recalled."""
    lake = tuple(part for part in plan.lake if part.view == "batch")
    return replace(plan, lake=lake, overlay=None, buffer=None, tail=None)


def hot_of(plan: ReadPlan, ranges: Ranges) -> ReadPlan:
    """Of the plan of a keyed table what lies in *ranges* above the batch view."""
    stream = (part_within(part, ranges) for part in plan.lake if part.view == "stream")
    lake = tuple(part for part in stream if part is not None)
    return replace(plan, lake=lake, overlay=None, buffer=part_within(plan.buffer, ranges), tail=None)
