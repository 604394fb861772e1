"""A sample of a real table: the rows that Spark's hash chooses, from every tier, in Arrow and in Spark."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from pyspark.sql import functions as f

from harness_pipelines.errors import UsageError
from harness_pipelines.layout.row_hash import SAMPLE_BITS, row_hash
from harness_pipelines_tests.rig import COORDINATES, OTREE

ROWS = 400
MANY = 10_000


def in_spark(rig, fraction, **options):
    frame = rig.table.sample_to_spark(rig.stores.spark(), fraction, columns=["id", *COORDINATES], **options)
    return sorted((*(row[name] for name in COORDINATES), row["id"]) for row in frame.collect())


def rows_of(table, fraction, **options):
    found = table.sample(fraction, columns=["id", *COORDINATES], **options)
    return sorted(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))


def test_a_sample_is_the_same_each_time_and_from_whichever_tier_the_rows_come(rig):
    rig.produce(ROWS)
    rig.ingest()
    from_buffer = rows_of(rig.table, 0.2)
    rig.tier()

    assert rows_of(rig.table, 0.2) == from_buffer
    assert 0.1 * 2 * ROWS < len(from_buffer) < 0.3 * 2 * ROWS
    assert set(rows_of(rig.table, 0.05)) < set(from_buffer) < set(rows_of(rig.table, 1)) == set(rig.truth)


def test_spark_takes_the_same_rows_from_both_views_and_the_buffer(make_rig):
    rig = make_rig(views="both")
    for stages in (("tier", "otree"), ("tier",), ()):
        rig.produce(ROWS)
        rig.ingest()
        if "tier" in stages:
            rig.tier()
        if "otree" in stages:
            rig.worker(OTREE, until_idle=True).run()
    plan = rig.table.plan()
    assert [part.view for part in plan.lake] == ["batch", "stream"]
    assert plan.buffer is not None

    found = in_spark(rig, 0.2)

    assert found == rows_of(rig.table, 0.2)
    assert {offset // ROWS for _, offset, _ in found} == {0, 1, 2}, "each tier has some"
    assert in_spark(rig, 1) == sorted(rig.truth)


def test_spark_takes_the_same_rows_from_the_tail_of_a_table_without_a_buffer(make_rig):
    rig = make_rig(buffer="none")
    rig.produce(ROWS)
    rig.tier()
    rig.produce(ROWS)

    found = in_spark(rig, 0.2)

    assert found == rows_of(rig.table, 0.2)
    assert {offset // ROWS for _, offset, _ in found} == {0, 1}


def test_a_sample_is_nested_and_neither_too_large_nor_of_certain_rows(rig):
    rig.produce(MANY)
    rig.ingest()
    every = 2 * MANY

    small, large = in_spark(rig, 0.001), in_spark(rig, 0.01)

    assert set(small) < set(large) < set(rig.truth)
    for found, share in ((small, 0.001), (large, 0.01)):
        assert abs(len(found) - share * every) < 4 * sqrt(share * every)
    for partition in range(2):
        assert abs(sum(p == partition for p, _, _ in large) - len(large) / 2) < 4 * sqrt(len(large) / 4)
    offsets = [offset / MANY for _, offset, _ in large]  # evenly spread: mean 1/2, variance 1/12
    assert abs(np.mean(offsets) - 1 / 2) < 4 * sqrt(1 / 12 / len(large))


def test_a_sample_in_spark_keeps_filters_and_columns_and_may_be_a_view(rig):
    rig.produce(ROWS)
    rig.ingest()
    spark = rig.stores.spark()

    found = rig.table.sample_to_spark(spark, 0.5, columns=["n"], where="n < 10", view="some_rows")

    assert found.columns == ["n"]
    expected = rig.table.sample(0.5, columns=["n"], where="n < 10").column("n").to_pylist()
    assert sorted(row.n for row in spark.sql("SELECT n FROM some_rows").collect()) == sorted(expected)
    assert rig.table.sample_to_spark(spark, 0.5).columns == ["id", "n", "s"]
    with pytest.raises(UsageError, match="share"):
        rig.table.sample_to_spark(spark, 0)


def test_a_limit_takes_the_first_rows_of_the_sample(rig):
    rig.produce(ROWS)
    rig.ingest()
    every = rows_of(rig.table, 0.5)

    assert set(rows_of(rig.table, 0.5, limit=7)) < set(every)
    assert [len(rows_of(rig.table, 0.5, limit=n)) for n in (0, 7, ROWS * 2)] == [0, 7, len(every)]


def test_a_sample_keeps_filters_and_columns(rig):
    rig.produce(ROWS)
    rig.ingest()

    found = rig.table.sample(0.5, columns=["n"], where="n < 10")

    assert found.column_names == ["n"]
    assert 0 < found.num_rows < ROWS
    assert max(found.column("n").to_pylist()) < 10
    assert rig.table.sample(0.5).column_names == ["id", "n", "s"]
    with pytest.raises(UsageError, match="share"):
        rig.table.sample(5)


def test_the_hash_is_spark_s(rig):
    partitions = [0, 1, 7, 2**31 - 1, 3]
    offsets = [0, 1, 2**40, 2**63 - 1, 12_345]
    spark = rig.stores.spark()
    frame = spark.createDataFrame(list(zip(partitions, offsets, strict=True)), "p int, o long")

    found = [r.h for r in frame.select(f.pmod(f.xxhash64("p", "o"), f.lit(2**SAMPLE_BITS)).alias("h")).collect()]

    assert found == row_hash(np.array(partitions), np.array(offsets)).tolist()
