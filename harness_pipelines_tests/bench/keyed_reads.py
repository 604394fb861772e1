"""Reads of a keyed table: the union with changes in the buffer, and rows by key."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from harness_pipelines.engines.spark.union import to_spark
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import Selection
from harness_pipelines.read.union import ArrowReader
from harness_pipelines_tests.bench.base import Figure, Run, median_s, timed
from harness_pipelines_tests.bench.keyed_table import Keyed, keyed_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHARES = {"0.1": (0.001, 1.1), "1": (0.01, 1.3), "10": (0.1, 2.0)}  #: percent of keys -> share, goal of the ratio
WINDOW_GOAL = 0.5
TIMES = 5
GETS, COLD_GETS = 300, 50


def union(run: Run) -> Sequence[Figure]:
    """All columns of all keys with some of them in the buffer too, beside the scan of the batch view alone.

    In Spark beside what a user would write as well: all tiers together, and a window that keeps the newest of a key.
    """
    ours, rng = keyed_table(run), random.Random(3)
    ids = rng.sample(range(ours.rows), ours.rows)
    figures, sent = [], 0
    for name, (share, goal) in SHARES.items():
        upto = round(share * ours.rows)
        ours.send(sorted(ids[sent:upto]))
        sent = upto
        run.say(f"keyed: reads with {upto:,} of {ours.rows:,} keys in the buffer")
        with _plan(ours) as plan:
            cold = replace(plan, buffer=None, tail=None, lake=tuple(p for p in plan.lake if p.view == "batch"))
            arrow, arrow_cold = (median_s(_arrow(ours, one), times=TIMES) for one in (plan, cold))
            spark, spark_cold = (median_s(_spark(ours, one), times=TIMES) for one in (plan, cold))
            window = median_s(_window(ours, plan), times=TIMES)
        for engine, whole, alone in (("arrow", arrow, arrow_cold), ("spark", spark, spark_cold)):
            run.note(f"reads.{name}.{engine}", whole, "s")
            run.note(f"reads.{name}.{engine}_cold", alone, "s")
            figures.append(
                Figure(figure=f"reads.{name}.{engine}_of_cold", value=whole / alone, unit="x", goal=goal, sense="<=")
            )
        run.note(f"reads.{name}.window", window, "s")
        figures.append(
            Figure(figure=f"reads.{name}.of_window", value=spark / window, unit="x", goal=WINDOW_GOAL, sense="<=")
        )
    return figures


@contextmanager
def _plan(ours: Keyed) -> Iterator[ReadPlan]:
    plan = ours.table.plan()
    try:
        yield plan
    finally:
        ours.table.release(plan)


def _arrow(ours: Keyed, plan: ReadPlan) -> Callable[[], None]:
    reader = ArrowReader(buffer=ours.run.harness.stores.buffer_reader, lake=ours.run.harness.stores.lake_reads)

    def read() -> None:
        assert reader.read(plan, Selection(), check_lease=lambda: None).num_rows >= ours.rows

    return read


def _spark(ours: Keyed, plan: ReadPlan) -> Callable[[], None]:
    stores = ours.run.harness.stores
    return lambda: _run(to_spark(stores.spark(), plan, stores))


def _window(ours: Keyed, plan: ReadPlan) -> Callable[[], None]:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    stores = ours.run.harness.stores
    newest = Window.partitionBy("id").orderBy(f.col("_kafka_offset").desc())

    def read() -> None:
        rows = to_spark(stores.spark(), replace(plan, key=()), stores, coordinates=True)
        _run(rows.withColumn("r", f.row_number().over(newest)).where("r = 1 AND _op = 'put'").drop("r"))

    return read


def _run(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def get(run: Run) -> Sequence[Figure]:
    """One row by its key: in the buffer, and only in the lake with and without what a process remembers of it."""
    ours, rng = keyed_table(run), random.Random(4)
    hot = rng.sample(range(ours.rows), 1_000)
    ours.send(sorted(hot))
    cold = [i for i in rng.sample(range(ours.rows), 2 * GETS) if i not in set(hot)][:GETS]
    ours.table.get(hot[0]), ours.table.get(cold[0])  # connections are made, modules are read
    run.say("keyed: rows by key")
    buffered = [timed(lambda i=i: _got(ours, i)) for i in hot[:GETS]]  # type: ignore[misc]
    warm = [timed(lambda i=i: _got(ours, i)) for i in cold]  # type: ignore[misc]
    first = []
    for i in cold[:COLD_GETS]:
        KEPT.clear()
        first.append(timed(lambda i=i: _got(ours, i)))  # type: ignore[misc]
    figures = []
    for name, seconds, share, goal in (
        ("buffer_p50", buffered, 50, 2.0),
        ("lake_warm_p99", warm, 99, 250.0),
        ("lake_cold_p99", first, 99, 250.0),
    ):
        run.note(f"get.{name}_of", len(seconds), "gets")
        found = statistics.quantiles(seconds, n=100)[share - 1] * 1000
        figures.append(Figure(figure=f"get.{name}", value=found, unit="ms", goal=goal, sense="<="))
    return figures


def _got(ours: Keyed, number: int) -> None:
    found = ours.table.get(number)
    assert found is not None
    assert found["id"] == number
