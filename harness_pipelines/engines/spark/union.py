"""The union read as one lazy Spark DataFrame: the same plan, the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Protocol

from harness_pipelines.engines.spark.fold import BROADCAST_OFFSETS_MAX, newest_puts, uncovered
from harness_pipelines.engines.spark.read import (
    GuardedJdbc,
    RowsWanted,
    filtered,
    guard_frame,
    lake_frame,
    segments_frame,
)
from harness_pipelines.engines.spark.session import segments_address
from harness_pipelines.engines.spark.stage_session import check_readable
from harness_pipelines.engines.spark.troubles import explained, shown_line
from harness_pipelines.engines.spark.view import Pins
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.ports.buffer import SegmentScans
from harness_pipelines.ports.engine import LakeScans
from harness_pipelines.protocol.reading.plan import ReadPlan, TailPart
from harness_pipelines.protocol.reading.selection import Selection, Work, work_of
from harness_pipelines.spec.predicate import TRUE
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: A frame with the user's columns and all coordinates of a tail part, as Spark's Kafka source and a codec give it.
TailFrame = Callable[["SparkSession", TailPart], "DataFrame"]


class SparkSources(Protocol):
    """What `to_spark` needs of the opened stores."""

    settings: Settings

    @property
    def segment_scans(self) -> SegmentScans: ...

    @property
    def lake_scans(self) -> LakeScans: ...


def to_spark(
    spark: SparkSession,
    plan: ReadPlan,
    sources: SparkSources,
    *,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    coordinates: bool | Sequence[str] = False,
    layer: bool = False,
    tail_frame: TailFrame | None = None,
) -> DataFrame:
    """The rows of *plan* as a DataFrame.

    Its use after the plan's lease ended fails with "lease … of this read ended at …". A *where* given here reaches the
    lake and the buffer; filters that are added later reach the lake, and Spark alone evaluates them on the buffer's
    rows. Unused columns are read from neither. UUIDs are text and times are microseconds of the day (long).
    Of a keyed table the frame has the newest put per key; a key in two partitions fails its use by the words of
    `KeyInTwoPartitions`.

    Raises: UnknownColumn, WhereError, LakeFileMissing, SessionUnfit; where Spark asks the servers at once, what
    `troubles.named` finds.
    """
    check_readable(spark)
    work = work_of(plan, Selection(columns=columns, where=where, coordinates=coordinates, layer=layer))
    with _explained(work.table):
        return _frame(spark, plan, work, sources, tail_frame=tail_frame)


def named_view(frame: DataFrame, view: str | None, *, table: str) -> DataFrame:
    """*frame*, which is a temp view of that name now, if there is one. Raises: as `to_spark`."""
    if view is not None:
        with _explained(table):
            frame.createOrReplaceTempView(view)
    return frame


class SparkReadFailed(HarnessError):
    """Spark could not read a table, for a reason without an error class."""

    way_on = "correct what the message names, then read again"


def _explained(table: str) -> AbstractContextManager[None]:
    where, outcome = f"{table}: Spark could not read it", "nothing is returned"
    return explained(
        where, outcome=outcome, failed=lambda text: SparkReadFailed(f"{where}: {shown_line(text)}; {outcome}")
    )


def _frame(
    spark: SparkSession, plan: ReadPlan, work: Work, sources: SparkSources, *, tail_frame: TailFrame | None
) -> DataFrame:
    jdbc = GuardedJdbc(options=segments_address(sources.settings), scans=sources.segment_scans, lease_id=plan.lease_id)
    pins = Pins.of(sources.settings, sources.lake_scans)
    cold = [lake_frame(spark, part.metadata, work.query(part), pins) for part in work.cold]
    if work.overlays:
        rows = RowsWanted(ranges=work.overlay, where=work.where, stores_op=work.stores_op, are_few=True)
        cold.append(segments_frame(spark, jdbc, segments=work.overlays, columns=work.cold_columns, rows=rows))
    rest = _union(list(_rest(spark, plan, work, sources=(jdbc, pins), tail_frame=tail_frame)))
    if not work.key:
        return _finished(_union([rest, *cold]), work)
    if not (work.hot or work.segments or work.tail):  # no more than the guard
        return _union([_finished(frame, work) for frame in (rest, *cold)])
    is_small = _hot_offsets(work) <= BROADCAST_OFFSETS_MAX
    key = {c.name: c.required for c in work.needed if c.name in work.key}
    shown = [uncovered(frame, rest, work.table, key, is_small=is_small) for frame in cold]
    names = [column.name for column in work.needed]
    newest = filtered(newest_puts(rest, work.table, work.key, columns=names), work.where, names)
    return _union([_finished(frame, work) for frame in (newest, *shown)])


def _rest(
    spark: SparkSession,
    plan: ReadPlan,
    work: Work,
    *,
    sources: tuple[GuardedJdbc, Pins],
    tail_frame: TailFrame | None,
) -> Iterator[DataFrame]:
    """All but the cold side. The guard comes first, so that `limit` and `show` run it too; the buffer is its own."""
    jdbc, pins = sources
    if work.segments:
        rows = RowsWanted(ranges=work.buffer, where=work.asked, stores_op=work.stores_op)
        yield segments_frame(spark, jdbc, segments=work.segments, columns=work.needed, rows=rows)
    else:
        yield guard_frame(spark, jdbc, columns=work.needed)
    for part in work.hot:
        yield lake_frame(spark, part.metadata, work.query(part), pins)
    if work.tail and plan.tail is not None:
        if tail_frame is None:
            raise UsageError(f"the plan of {work.table} has a Kafka part: give `tail_frame`, which reads it")
        low = {p: run[0] for p, run in work.tail.items()}
        high = {p: run[1] for p, run in work.tail.items()}
        tail = tail_frame(spark, replace(plan.tail, low=low, high=high))
        yield filtered(tail, work.asked, [c.name for c in work.needed])


def _hot_offsets(work: Work) -> int:
    """Offsets, and so rows at most, of the hot side."""
    parts = [work.buffer, work.tail, *(part.ranges for part in work.hot)]
    return sum(high - low for ranges in parts for low, high in ranges.values())


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(lambda one, other: one.unionAll(other), frames)


def _finished(frame: DataFrame, work: Work) -> DataFrame:
    return filtered(frame, TRUE, [column.name for column in work.columns])
