"""The union read beside a scan of the same rows when all of them are in Iceberg."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines_tests.bench.base import Figure, Run, median_s
from harness_pipelines_tests.bench.records import COLUMNS, produce_backlog
from harness_pipelines_tests.bench.throughput import QUICK_ROWS, ROWS, backlog, lake_table
from harness_pipelines_tests.rig import ALL, INGEST

TIMES = 5
BUFFERED = 0.01  #: share of the rows that the union read finds in the buffer


def measure(run: Run) -> Sequence[Figure]:
    """Union read with 1 % of the rows in the buffer, then the same rows when tier has moved them.

    The pinned scan is what a user without the harness writes: PyIceberg or Spark on the metadata file. In Arrow the
    harness is compared with whatever is quicker, PyIceberg or its own reader.
    """
    table = lake_table(run)
    rows = run.size(ROWS, QUICK_ROWS)
    more = round(rows * BUFFERED / (1 - BUFFERED))
    produce_backlog(run.harness.settings, backlog(run), count=more, first=rows)
    run.work(table, INGEST)
    lag = sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in table.positions())
    assert lag == more, f"{lag} rows are in the buffer, not {more}"

    run.say(f"union read: {rows + more:,} rows, {more:,} of them in the buffer")
    arrow, spark = _arrow(table, rows + more), _spark(run, table)
    run.say("union read: the same rows, all of them in Iceberg")
    run.work(table, ALL)
    metadata = run.harness.stores.tables.head(table.row).stream.metadata
    pinned = median_s(lambda: _check(_scan(metadata), rows + more), times=TIMES)
    own = _arrow(table, rows + more)
    pinned_spark = _pinned_spark(run, metadata)

    run.note("union.arrow", arrow, "s")
    run.note("union.arrow_of_lake_only", own, "s")
    run.note("union.pinned_pyiceberg", pinned, "s")
    run.note("union.spark", spark, "s")
    run.note("union.pinned_spark", pinned_spark, "s")
    return [
        Figure(figure="union.arrow_overhead", value=arrow / min(pinned, own), unit="x", goal=1.3, sense="<="),
        Figure(figure="union.spark_overhead", value=spark / pinned_spark, unit="x", goal=1.3, sense="<="),
        Figure(figure="union.arrow_rows", value=(rows + more) / arrow, unit="rows/s", goal=1_000_000, sense=">="),
    ]


def _arrow(table: hp.Table, rows: int) -> float:
    return median_s(lambda: _check(table.read(), rows), times=TIMES)


def _scan(metadata: str) -> pa.Table:
    return StaticTable.from_metadata(metadata).scan(selected_fields=tuple(COLUMNS)).to_arrow()


def _check(found: pa.Table, rows: int) -> None:
    assert found.num_rows == rows, f"{found.num_rows} rows were read, not {rows}"


def _spark(run: Run, table: hp.Table) -> float:
    """All columns of all rows through Spark, with the plan and its lease; nothing is written."""

    def read() -> None:
        plan = table.plan()
        try:
            frame = table.to_spark(run.harness.stores.spark(), plan=plan)
            frame.write.format("noop").mode("overwrite").save()
        finally:
            table.release(plan)

    return median_s(read, times=TIMES)


def _pinned_spark(run: Run, metadata: str) -> float:
    def read() -> None:
        frame = run.harness.stores.spark().read.format("iceberg").load(metadata).select(*COLUMNS)
        frame.write.format("noop").mode("overwrite").save()

    return median_s(read, times=TIMES)
