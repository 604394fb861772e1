"""Spark as the engine of the stages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from harness_pipelines.formats.schema.registry import SchemaSource
from harness_pipelines.layout.tree import indexed_columns
from harness_pipelines.ports.buffer import SegmentScans
from harness_pipelines.ports.engine import CheckCounts, KeyChanges, LakeScans, Rows
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.ports.source import OpenLog
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.compaction import Run, WideRun
from harness_pipelines.protocol.lake.wide import file_ranges, is_wide
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.settings import Settings

# PySpark is imported by what uses it: a worker that runs no stage on Spark does not need it.
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from harness_pipelines.engines.spark.sessions import SparkSessions
    from harness_pipelines.engines.spark.view import Pins
    from harness_pipelines.engines.spark.write import BranchTarget
    from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
    from harness_pipelines.layout.files import FileStats
    from harness_pipelines.layout.tree import RegionTree
    from harness_pipelines.protocol.reading.narrowing import Ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAccess:
    """The codec's parts that are sent to executors."""

    registry: SchemaSource
    open_log: OpenLog


class SparkEngine:
    """`harness_pipelines.ports.engine.Engine`, in the stages' session of *sessions*."""

    def __init__(
        self,
        settings: Settings,
        sessions: Callable[[], SparkSessions],
        *,
        log: LogAccess,
        scans: SegmentScans,
        lake: LakeScans,
    ) -> None:
        self._settings, self._sessions, self._log, self._scans, self._lake = settings, sessions, log, scans, lake

    def check(self) -> None:
        """Raises: UsageError where PySpark is not installed."""
        from harness_pipelines.engines.spark.session import import_pyspark

        import_pyspark()

    @contextmanager
    def _staging(self, table: TableRow, move: Move) -> Iterator[tuple[SparkSession, BranchTarget]]:
        """Spark and where the attempt writes. Raises: what `SparkSessions.working` and `write.explained` do."""
        from harness_pipelines.engines.spark import kafka, write

        place = None if table.intake.buffered else kafka.tls_place(self._settings)
        target = write.BranchTarget(catalog=self._settings.catalog_name, table=table, move=move)
        owner = table.table_id, move.stage
        shown = f"{table.name}: {move.stage} move {move.move_id}, attempt {move.attempt}"
        with self._sessions().working(owner, shown=shown) as session, write.explained(table, move, kafka=place):
            yield session, target

    def write_segments(self, table: TableRow, move: Move, segments: Sequence[SegmentRef]) -> None:
        from harness_pipelines.engines.spark import cluster, write
        from harness_pipelines.engines.spark.session import segments_address

        files = file_ranges(move.ranges)
        source = self._scans, segments_address(self._settings)
        with self._staging(table, move) as (spark, target):
            frame = write.read_segments(spark, table, segments=segments, tasks=files, source=source)
            write.append_to_branch(cluster.with_layer(frame, _tiered_layer(table)), target)

    def write_log(self, table: TableRow, move: Move, *, check: CheckCounts) -> tuple[int, list[RefusedRecord]]:
        from pyspark.errors import PySparkException

        from harness_pipelines.engines.spark import kafka
        from harness_pipelines.engines.spark.executors import own_reader

        with self._staging(table, move) as (spark, target):

            def by_spark(*, headers: bool = False) -> DataFrame:
                return kafka.read_kafka(spark, self._settings, table.spec, move.ranges, headers=headers)

            def by_ourselves(*, headers: bool = False) -> DataFrame:
                wanted = headers or kafka.has_headers(table.spec)
                return own_reader.read_log(
                    spark, table, move.ranges, open_log=self._log.open_log, settings=self._settings, headers=wanted
                )

            try:
                rows, seen, refused = self._decoded(table, target, by_spark, check)
            except PySparkException as error:
                if not own_reader.time_overflows(error):
                    raise
                rows, seen, refused = self._decoded(table, target, by_ourselves, check)  # the failed write left nothing
        if seen != rows + len(refused):
            raise StagedWrong(
                f"{table.name}: move {move.move_id}: {seen} records gave {rows} rows and {len(refused)} refused"
            )
        return rows, refused

    def _decoded(
        self, table: TableRow, target: BranchTarget, read: Callable[..., DataFrame], check: CheckCounts
    ) -> tuple[int, int, list[RefusedRecord]]:
        """Write what *read* gives, decoded: rows, rows and refused together, and the refused records."""
        from harness_pipelines.engines.spark import cluster, kafka, view, write

        rows_of = kafka.decoded_rows(read(), table, self._log.registry)
        if is_wide(len(target.move.ranges)):
            rows_of = view.in_parts(rows_of, file_ranges(target.move.ranges))
        counted = write.append_counted(cluster.with_layer(rows_of, _tiered_layer(table)), target)
        rows, seen = counted or write.counts_of(rows_of)  # before any of the refused is here, however many there are
        if rows == seen:
            return rows, seen, []
        check(rows, seen - rows, lambda: kafka.one_refused(read(headers=True), table, self._log.registry))
        return rows, seen, kafka.judged_again(read(headers=True), table, self._log.registry)

    def write_runs(
        self, table: TableRow, move: Move, *, metadata: str, runs: Sequence[Run | WideRun], file_bytes: int
    ) -> None:
        from harness_pipelines.engines.spark import view, write
        from harness_pipelines.engines.spark.view import Pins

        with self._staging(table, move) as (spark, target):
            rows = view.rows_in_pieces(spark, metadata, runs, Pins.of(self._settings, self._lake))
            write.append_to_branch(rows, target, file_bytes=file_bytes)

    @contextmanager
    def arranging(self, table: TableRow, move: Move) -> Iterator[_Arranging]:
        with self._staging(table, move) as (spark, target):
            yield _Arranging(
                spark=spark, target=target, table=table, settings=self._settings, scans=self._scans, lake=self._lake
            )

    def run_tasks(
        self, ranges: Sequence[OffsetRange], work: Callable[[Iterable[Any]], Iterable[Any]], result: Any
    ) -> list[Mapping[str, Any]]:
        """Raises: TasksFailed, ExecutorsAway."""
        from harness_pipelines.engines.spark.executors import tasks

        with self._sessions().working() as session:
            return tasks.run(session, ranges, work, result)

    def interrupt(self) -> None:
        self._sessions().interrupt()

    def give_up(self, table: TableRow, stage: Stage) -> None:
        self._sessions().give_up((table.table_id, stage))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arranging:
    """`harness_pipelines.ports.engine.Arranging`; rows are frames of one session."""

    spark: SparkSession
    target: BranchTarget
    table: TableRow
    settings: Settings
    scans: SegmentScans
    lake: LakeScans

    @property
    def _pins(self) -> Pins:
        from harness_pipelines.engines.spark.view import Pins

        return Pins.of(self.settings, self.lake)

    def stream_rows(self, metadata: str, ranges: Ranges) -> Rows:
        from harness_pipelines.engines.spark import cluster

        return Rows(
            cluster.stream_rows(self.spark, metadata, ranges, layer=self.table.spec.layout.sample, pins=self._pins)
        )

    def file_rows(self, metadata: str, files: Sequence[FileStats]) -> Rows:
        from harness_pipelines.engines.spark import cluster

        return Rows(cluster.file_rows(self.spark, metadata, files, indexed_columns(self.table.spec), pins=self._pins))

    def recalled_rows(self, version: Version) -> Rows:
        from harness_pipelines.engines.spark import cluster, write
        from harness_pipelines.engines.spark.session import segments_address

        bounds = version.bounds.items()
        ranges = [OffsetRange(partition=p, low=b.start, high=b.batch_hi) for p, b in bounds if b.start < b.batch_hi]
        segments, source = self.table.overlaid(version.overlays), (self.scans, segments_address(self.settings))
        rows = write.read_segments(
            self.spark, self.table, segments=segments, tasks=[(r,) for r in ranges], source=source
        )
        return Rows(cluster.with_layer(rows, self.table.spec.layout.sample))

    @contextmanager
    def newest(self, rows: Rows, *, recalled: Rows | None = None) -> Iterator[KeyChanges]:
        from harness_pipelines.engines.spark import merge

        apart = None if recalled is None else _frame(recalled)
        with merge.newest_of(self.table.spec, _frame(rows), recalled=apart, pins=self._pins) as changes:
            yield changes

    def sample(self, rows: Rows, columns: Sequence[IndexedColumn], *, share: float) -> tuple[ColumnValues, ...]:
        from harness_pipelines.engines.spark import cluster

        return tuple(cluster.sampled(_frame(rows), columns, share=share))

    def write_pieces(
        self, rows: Rows, tree: RegionTree, values: Sequence[ColumnValues], *, pieces: Sequence[int]
    ) -> None:
        from harness_pipelines.engines.spark import cluster, write

        write.append_to_branch(cluster.in_pieces(_frame(rows), tree, values, pieces=pieces), self.target)

    def write_one_piece(self, rows: Rows) -> None:
        from harness_pipelines.engines.spark import cluster, write

        write.append_to_branch(cluster.in_one_piece(_frame(rows)), self.target)


def _frame(rows: Rows) -> DataFrame:
    return cast("DataFrame", rows)


def _tiered_layer(table: TableRow) -> float:
    """The share of the sample layer, where tier writes the view that has one."""
    return table.spec.layout.sample if table.view_set.mixed else 0.0
