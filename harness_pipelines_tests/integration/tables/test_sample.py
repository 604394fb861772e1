"""A sample of a real table: the rows that Spark's hash chooses, from every tier, in Arrow and in Spark."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from pyspark.sql import functions as f

from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg.read import scan
from harness_pipelines.layout.row_hash import SAMPLE_BITS, row_hash
from harness_pipelines.ports.ledger import TableExists
from harness_pipelines.spec.table import Layout
from harness_pipelines.stages.otree.recluster import ask, plan_recluster
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


# -- the sample layer ---------------------------------------------------------------------------------------


@pytest.fixture
def layered(make_rig):
    """A table whose batch view keeps a tenth of the rows apart; some rows came after it was clustered."""
    rig = make_rig(views="both", layout={"columns": ["n", "id"], "regions": 8, "sample": 0.1})
    rig.produce(2000)
    rig.ingest()
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()
    rig.produce(ROWS)
    rig.ingest()
    return rig


def files_of(rig) -> dict[str, bool | None]:
    """Of the batch view: whether all rows of a file are in the sample layer; None: some."""
    head = rig.stores.ledger.head(rig.table.row)
    files = rig.stores.lake.region_files(rig.table.row, head.batch.metadata)
    return {f.path: bool(f.extents[0].lower) if f.extents[0].lower == f.extents[0].upper else None for f in files}


def test_a_sample_reads_the_files_of_its_layer_and_no_other_of_the_batch_view(layered, monkeypatch):
    opened: list[str] = []
    read_file = scan.read_file

    def read_one(view, file, query):
        opened.append(file.path)
        return read_file(view, file, query)

    monkeypatch.setattr(scan, "read_file", read_one)
    files = files_of(layered)
    assert None not in files.values()
    inside = {path for path, is_inside in files.items() if is_inside}
    assert 0 < len(inside) < len(files) / 2

    found = rows_of(layered.table, 0.1)

    assert set(opened) == inside
    expected = [at for at in layered.truth if row_hash(np.array([at[0]]), np.array([at[1]]))[0] < 0.1 * 2**SAMPLE_BITS]
    assert found == sorted(expected)
    assert in_spark(layered, 0.1) == found
    assert set(rows_of(layered.table, 0.03)) < set(found)
    read = layered.table.sample_to_spark(layered.stores.spark(), 0.1).inputFiles()
    assert {path for path in read if path in files} <= inside

    opened.clear()
    assert set(found) < set(rows_of(layered.table, 0.3))
    assert set(opened) == set(files), "more than the layer holds is looked for everywhere"


def test_any_engine_finds_the_layer_by_its_column(layered):
    view = layered.stores.lake.current(layered.table.row, "batch")
    rows = view.scan(row_filter="_sample = true", selected_fields=("id",)).to_arrow()
    merged = [at for at in rows_of(layered.table, 0.1) if at[1] < 2000]
    assert sorted(rows.column("id").to_pylist()) == sorted(at[2] for at in merged)
    assert {task.file.file_path for task in view.scan(row_filter="_sample = true").plan_files()} == {
        path for path, is_inside in files_of(layered).items() if is_inside
    }


@pytest.mark.long
def test_the_layer_stays_apart_through_merges_and_a_rebuild(layered):
    for _ in range(3):
        layered.produce(1000)
        layered.ingest()
        layered.tier()
        layered.worker(OTREE, until_idle=True).run()
    wanted = plan_recluster(layered.stores, layered.table.row, rebuild=True)
    ask(layered.stores, layered.table.row, wanted)
    layered.worker(OTREE, until_idle=True).run()

    files = files_of(layered)
    assert None not in files.values()
    assert sum(map(bool, files.values())) in (1, 2)
    layered.assert_exact()
    assert rows_of(layered.table, 0.1) == in_spark(layered, 0.1)


def test_a_view_without_a_layer_is_sampled_as_well(make_rig):
    rig = make_rig(views="both", layout={"columns": ["n"], "sample": 0})
    rig.produce(ROWS)
    rig.ingest()
    rig.tier()
    rig.worker(OTREE, until_idle=True).run()

    assert "_sample" not in rig.stores.lake.current(rig.table.row, "batch").schema().column_names
    assert rows_of(rig.table, 0.1) == in_spark(rig, 0.1)
    with pytest.raises(TableExists, match="keeps a sample of 0 of its rows"):
        rig.harness.apply(rig.table.spec.model_copy(update={"layout": Layout(columns=("n",))}))
