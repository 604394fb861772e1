"""`Table.sample` on a real table: the rows that Spark's hash chooses, from every tier."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as f

from harness_pipelines.errors import UsageError
from harness_pipelines.layout.row_hash import SAMPLE_BITS, row_hash
from harness_pipelines_tests.rig import COORDINATES

ROWS = 400


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
