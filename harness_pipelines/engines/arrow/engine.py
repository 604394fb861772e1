"""Arrow as the engine of the stages: it reads and writes in this process, and knows no JVM.

What it holds in memory is bounded: batches of rows, a row group, and of a keyed merge one record per key. Rows that
have to be put in order wait on this machine's disk where they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.engines.arrow.attempts import Attempts, Work
from harness_pipelines.engines.arrow.log import LogRanges, viewed
from harness_pipelines.engines.arrow.merge import ArrowKeyChanges, newest_of
from harness_pipelines.engines.arrow.pieces import Pieces, Places
from harness_pipelines.engines.arrow.sources import BufferRows, FileRows, Source, StreamRows, ints, with_layer
from harness_pipelines.errors import UsageError
from harness_pipelines.layout import curve
from harness_pipelines.layout.columns import column_values
from harness_pipelines.layout.row_hash import drawn, row_hash
from harness_pipelines.ports.engine import CheckCounts, KeyChanges, Rows
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.compaction import Run, WideRun
from harness_pipelines.protocol.lake.wide import file_ranges
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.versions import Version

if TYPE_CHECKING:
    from harness_pipelines.formats.schema.registry import Schemas
    from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
    from harness_pipelines.layout.files import FileStats
    from harness_pipelines.layout.tree import RegionTree
    from harness_pipelines.ports.buffer import BufferReads
    from harness_pipelines.ports.decoded import DecodedRange
    from harness_pipelines.ports.lake import LakeReads
    from harness_pipelines.ports.lake_writes import AttemptFiles, AttemptWrites
    from harness_pipelines.ports.source import Log
    from harness_pipelines.protocol.reading.narrowing import Ranges

_CURVE = "_harness_curve"
REFUSED_HELD_MAX = 50_000  #: records, before it is known that the move takes them
MERGE_OFFSETS_MAX = 4_000_000  #: of a keyed merge, which holds a record per key


class ArrowEngine:
    """`harness_pipelines.ports.engine.Engine` in this process."""

    def __init__(
        self,
        *,
        buffer: Callable[[], BufferReads],
        lake: Callable[[], LakeReads],
        writes: Callable[[], AttemptWrites],
        log: Callable[[], Log],
        schemas: Callable[[], Schemas],
    ) -> None:
        self._buffer, self._lake, self._writes, self._log, self._schemas = buffer, lake, writes, log, schemas
        self._attempts = Attempts()

    def check(self, tables: Sequence[TableRow], *, tasks: bool) -> None:
        """Raises: UsageError for tasks on executors."""
        if tasks:
            raise _no_executors()

    def offsets_max(self, table: TableRow, stage: Stage) -> int | None:
        return MERGE_OFFSETS_MAX if stage is Stage.OTREE and table.spec.key else None

    @contextmanager
    def _staging(self, table: TableRow, move: Move) -> Iterator[tuple[Work, AttemptFiles]]:
        with (
            self._attempts.working((table.table_id, move.stage)) as work,
            self._writes().writing(table, move) as files,
        ):
            yield work, files
            work.check()

    def write_segments(self, table: TableRow, move: Move, segments: Sequence[SegmentRef], *, rows: int) -> None:
        source = BufferRows(
            buffer=self._buffer(),
            table=table,
            segments=segments,
            ranges={r.partition: (r.low, r.high) for r in move.ranges},
            layer=_tiered_layer(table),
        )
        with self._staging(table, move) as (work, files):
            _write_parts(source.tables(files.schema.names), _parts_of(move, files), files, work)

    def write_log(self, table: TableRow, move: Move, *, check: CheckCounts) -> tuple[int, list[RefusedRecord]]:
        records, layer = LogRanges(self._log(), self._schemas(), table, move), _tiered_layer(table)
        seen, refused = _Seen(), list[RefusedRecord]()

        def rows_of(work: Work) -> Iterator[pa.Table]:
            for part in work.each(records.decoded()):
                seen.note(part)
                if part.rows.num_rows:
                    rows = viewed(table, part.rows)
                    yield with_layer(rows, layer) if layer else rows
            refused.extend(seen.settled(check, lambda: work.each(records.decoded())))

        with self._staging(table, move) as (work, files):
            _write_parts(rows_of(work), _parts_of(move, files), files, work)
        return seen.rows, refused

    def write_runs(
        self, table: TableRow, move: Move, *, metadata: str, runs: Sequence[Run | WideRun], file_bytes: int
    ) -> None:
        with self._staging(table, move) as (work, files):
            for run in runs:
                source = StreamRows(
                    lake=self._lake(),
                    table=table,
                    metadata=metadata,
                    ranges={hull.partition: (hull.low, hull.high) for hull in run.hulls},
                    files=frozenset(file.path for file in run.files),
                )
                rows = source.tables(files.schema.names)
                if isinstance(run, WideRun):
                    _write_parts(rows, run.parts, files, work, file_bytes=file_bytes)
                else:  # its rows lie in the order of the new files
                    _write_cut(work.each(rows), run.pieces, files, file_bytes=file_bytes)

    @contextmanager
    def arranging(self, table: TableRow, move: Move, *, rows: int) -> Iterator[_Arranging]:
        with self._staging(table, move) as (work, files):
            yield _Arranging(table=table, work=work, files=files, lake=self._lake(), buffer=self._buffer)

    def run_tasks(
        self, ranges: Sequence[OffsetRange], work: Callable[[Iterable[Any]], Iterable[Any]], result: Any
    ) -> list[Mapping[str, Any]]:
        raise _no_executors()

    def interrupt(self) -> None:
        self._attempts.interrupt()

    def give_up(self, table: TableRow, stage: Stage) -> None:
        self._attempts.give_up((table.table_id, stage))


def _tiered_layer(table: TableRow) -> float:
    """The share of the sample layer, where tier writes the view that has one."""
    return table.spec.layout.sample if table.view_set.mixed else 0.0


@dataclass(slots=True)
class _Seen:
    """What the records of a move became."""

    rows: int = 0
    refused: int = 0
    held: list[RefusedRecord] = field(default_factory=list)  #: the first of the refused

    def note(self, part: DecodedRange) -> None:
        self.rows, self.refused = self.rows + part.rows.num_rows, self.refused + len(part.refused)
        if len(self.held) < REFUSED_HELD_MAX:
            self.held += part.refused

    def settled(self, check: CheckCounts, again: Callable[[], Iterator[DecodedRange]]) -> list[RefusedRecord]:
        """All that were refused, once *check* lets them pass; more than are held are read *again*."""
        if not self.refused:
            return []
        check(self.rows, self.refused, lambda: self.held[0])
        if len(self.held) == self.refused:
            return self.held
        return [record for part in again() for record in part.refused]


def _no_executors() -> UsageError:
    return UsageError("ingest on executors needs Spark, and HARNESS_ENGINE is arrow: run without `--ingest-on spark`")


def _parts_of(move: Move, files: AttemptFiles) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each file of a move."""
    parts = file_ranges(move.ranges)
    return [(taken,) for part in parts for taken in part] if files.is_partitioned else parts


def _write_parts(
    tables: Iterable[pa.Table],
    parts: Sequence[tuple[OffsetRange, ...]],
    files: AttemptFiles,
    work: Work,
    *,
    file_bytes: int | None = None,
) -> None:
    """Write rows that come in any order, one file per part, by partition and offset."""
    with Pieces(len(parts), by=(PARTITION, OFFSET)) as dealt:
        for rows in work.each(tables):
            dealt.add(rows, _part_of(rows, parts))
        for number, part in enumerate(parts):
            files.write(work.each(dealt.sorted(number)), partition=part[0].partition, file_bytes=file_bytes)


def _part_of(rows: pa.Table, parts: Sequence[tuple[OffsetRange, ...]]) -> Places:
    """The number of each row's part; their ranges ascend by partition and offset."""
    ranges = [(number, taken) for number, part in enumerate(parts) for taken in part]
    numbers, highs = (np.array(found, np.int64) for found in ([n for n, _ in ranges], [r.high for _, r in ranges]))
    found = np.searchsorted([taken.partition for _, taken in ranges], ints(rows, PARTITION))
    while np.any(beyond := ints(rows, OFFSET) >= highs[found]):
        found[beyond] += 1
    return numbers[found]


def _write_cut(
    tables: Iterator[pa.Table], pieces: Sequence[OffsetRange], files: AttemptFiles, *, file_bytes: int
) -> None:
    """Write rows of one partition, in offset order, one file per piece; pieces ascend."""
    left: pa.Table | None = None

    def below(high: int) -> Iterator[pa.Table]:
        nonlocal left
        while (rows := left if left is not None else next(tables, None)) is not None:
            end = int(np.searchsorted(ints(rows, OFFSET), high))
            left = rows.slice(end) if end < rows.num_rows else None
            if end:
                yield rows.slice(0, end)
            if left is not None:
                return

    for piece in pieces:
        files.write(below(piece.high), partition=piece.partition, file_bytes=file_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arranging:
    """`harness_pipelines.ports.engine.Arranging`; rows are a `Source`."""

    table: TableRow
    work: Work
    files: AttemptFiles
    lake: LakeReads
    buffer: Callable[[], BufferReads]

    def stream_rows(self, metadata: str, ranges: Ranges) -> Rows:
        layer = self.table.spec.layout.sample
        return Rows(StreamRows(lake=self.lake, table=self.table, metadata=metadata, ranges=ranges, layer=layer))

    def file_rows(self, metadata: str, files: Sequence[FileStats]) -> Rows:
        return Rows(FileRows(lake=self.lake, table=self.table, metadata=metadata, files=files))

    def recalled_rows(self, version: Version) -> Rows:
        bounds = version.bounds.items()
        return Rows(
            BufferRows(
                buffer=self.buffer(),
                table=self.table,
                segments=self.table.overlaid(version.overlays),
                ranges={p: (b.start, b.batch_hi) for p, b in bounds if b.start < b.batch_hi},
                layer=self.table.spec.layout.sample,
            )
        )

    @contextmanager
    def newest(self, rows: Rows, *, recalled: Rows | None = None) -> Iterator[KeyChanges]:
        source, apart = _source(rows), None if recalled is None else _source(recalled)
        folded = newest_of(self.table, source, recalled=apart)
        yield ArrowKeyChanges(table=self.table, lake=self.lake, source=source, folded=folded)

    def sample(self, rows: Rows, columns: Sequence[IndexedColumn], *, share: float) -> tuple[ColumnValues, ...]:
        names, found = [column.name for column in columns], list[pa.Table]()
        for part in self.work.each(_source(rows).tables(list(dict.fromkeys([*names, PARTITION, OFFSET])))):
            taken = part.select(names)
            if share < 1:
                taken = taken.filter(pa.array(drawn(ints(part, PARTITION), ints(part, OFFSET), share=share)))
            found.append(taken)
        if not found:
            return tuple(column_values(column, []) for column in columns)
        together = pa.concat_tables(found)
        return tuple(to_values(together.column(column.name), column) for column in columns)

    def write_pieces(
        self, rows: Rows, tree: RegionTree, values: Sequence[ColumnValues], *, pieces: Sequence[int]
    ) -> None:
        starts, counts = np.concatenate([[0], np.cumsum(pieces)]).astype(np.int64), np.asarray(pieces, np.int64)
        extents, names = curve.extents_of(tree, values), self.files.schema.names
        with Pieces(int(starts[-1]), by=(_CURVE, PARTITION, OFFSET)) as dealt:
            for part in self.work.each(_source(rows).tables(names)):
                found = [to_values(part.column(column.name), column) for column in tree.columns]
                leaf = tree.route(found)
                places = pa.array(curve.places(tree, found, leaf, extents))
                share = row_hash(ints(part, PARTITION), ints(part, OFFSET)) % counts[leaf]
                dealt.add(part.append_column(_CURVE, places), starts[leaf] + share)
            for number in range(len(dealt)):
                self.files.write(self.work.each(dealt.sorted(number)))

    def write_one_piece(self, rows: Rows) -> None:
        with Pieces(1, by=(PARTITION, OFFSET)) as dealt:
            for part in self.work.each(_source(rows).tables(self.files.schema.names)):
                dealt.add(part, 0)
            self.files.write(self.work.each(dealt.sorted(0)))


def _source(rows: Rows) -> Source:
    return cast("Source", rows)
