"""The batch view: the same rows clustered by value, read together with what it lacks. Judged by the producer's log."""

from __future__ import annotations

import math
import random
import re
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from datetime import timedelta
from io import StringIO
from typing import Any

import orjson
import pytest
from pyspark.sql import functions as f

import harness_pipelines as hp
from harness_pipelines.app.checks import nothing_is_stuck
from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.engines.spark import cluster, write
from harness_pipelines.engines.spark.write import SparkFailed
from harness_pipelines.layout import balance, rewrites, sampling
from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats, classify
from harness_pipelines.layout.scores import Score
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveClosed
from harness_pipelines.protocol.reading.queries import LakeStats
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.clustering import Clustering, layout_of
from harness_pipelines.read.union import read_arrow
from harness_pipelines.stages.otree import otree, recluster
from harness_pipelines.stages.run.moving import FAILURES_MAX
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import COORDINATES, OTREE, TIER, TableRig
from harness_pipelines_tests.unit.layout.given import arrays, tree_of

BY_VALUE = {"columns": ["n", "id"], "regions": 8}


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    """A table of two partitions and two views; ``n`` is spread over 0..99 in every batch."""
    return make_rig(views="both", layout=BY_VALUE)


def taken(rig: TableRig, count: int) -> None:
    """*count* more records per partition, in the stream view."""
    rig.produce(count)
    rig.ingest()
    rig.tier()


def merged(rig: TableRig) -> Version | None:
    """One move of otree, whatever it takes."""
    claim = rig.claim(Stage.OTREE)
    try:
        return otree.otree_once(rig.stores, rig.table.row, claim, trigger="test")
    finally:
        rig.stores.ledger.release(claim)


def head(rig: TableRig) -> Version:
    return rig.stores.ledger.head(rig.table.row)


def files(rig: TableRig) -> list[FileStats]:
    batch = head(rig).batch
    assert batch is not None
    return rig.stores.lake.region_files(rig.table.row, batch.metadata)


def layout(rig: TableRig) -> Clustering:
    found = layout_of(rig.stores, rig.table.row, head(rig))
    assert found is not None
    return found


def moves(rig: TableRig) -> list[tuple[str, bool]]:
    """(state, whether it was a merge) of otree's moves, oldest first."""
    found = reversed(rig.stores.ledger.moves(rig.table.row, stage=Stage.OTREE))
    return [(str(m["state"]), bool(m["lo"])) for m in found]


def batch_hi(rig: TableRig) -> dict[int, int]:
    return {p.partition: p.bounds.batch_hi for p in rig.table.positions()}


# -- merges -------------------------------------------------------------------------------------------------


def test_the_first_merge_makes_the_tree_and_every_file_lies_in_a_region_of_its_own(rig: TableRig):
    taken(rig, 2000)
    merged(rig)
    assert batch_hi(rig) == {0: 2000, 1: 2000}
    tree, found = layout(rig).tree, files(rig)
    assert len(tree) == 8 + 1, "the sample layer"
    assert sorted(filter(None, classify(tree, found))) == sorted(tree.paths())
    assert max(f.rows for f in found) <= 1.5 * 4000 / 8
    rig.assert_exact()


@pytest.mark.long
def test_a_read_takes_each_row_from_one_view_only(rig: TableRig):
    taken(rig, 300)
    merged(rig)
    taken(rig, 200)
    rig.produce(100)
    rig.ingest()
    plan = rig.table.plan()
    assert [(p.view, p.low, p.high) for p in plan.lake] == [
        ("batch", {0: 0, 1: 0}, {0: 300, 1: 300}),
        ("stream", {0: 300, 1: 300}, {0: 500, 1: 500}),
    ]
    assert plan.buffer is not None
    assert (plan.buffer.low, plan.buffer.high) == ({0: 500, 1: 500}, {0: 600, 1: 600})
    rig.assert_exact()
    found = rig.table.to_spark(rig.stores.spark(), columns=["id", *COORDINATES])
    rows = Counter((r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in found.collect())
    assert rows == rig.truth


def test_filters_reach_the_batch_view_and_leave_files_out(rig: TableRig):
    taken(rig, 2000)
    merged(rig)
    wanted = {at for at in rig.truth.elements() if at[2] % 100 < 3}
    found = rig.table.read(columns=["id"], where="n < 3")
    assert set(found.column("id").to_pylist()) == {at[2] for at in wanted}
    work, stats = work_of(rig.table.plan(), Selection(where="n < 3")), LakeStats()
    [batch] = [part for part in work.lake if part.view == "batch"]
    assert list(rig.stores.lake_reads.scan(batch.metadata, work.query(batch), stats))
    assert stats.files == 8 + 1, "regions, and the sample layer"
    assert stats.files_opened <= stats.files / 2


def test_offsets_narrow_a_read_of_the_batch_view_too(rig: TableRig):
    taken(rig, 300)
    merged(rig)
    found = rig.table.read(columns=[*COORDINATES], where="_kafka_partition = 1 AND _kafka_offset >= 290")
    assert sorted(found.column("_kafka_offset").to_pylist()) == list(range(290, 300))


@pytest.mark.long
def test_few_new_rows_share_a_file_instead_of_one_for_each_region(rig: TableRig):
    taken(rig, 2000)
    merged(rig)
    before = {f.path for f in files(rig)}
    taken(rig, 20)
    merged(rig)
    fresh = [f for f in files(rig) if f.path not in before]
    assert len(fresh) == 1
    assert fresh[0].rows == 40
    rig.assert_exact()


@pytest.mark.long
def test_small_files_that_wait_are_put_together_and_what_is_clustered_stays_where_it_is(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(rewrites, "WAITING_MAX", 3)
    # Without a sample layer: a small merge without a row of it would not wait at the root.
    rig = make_rig(views="both", layout={"columns": ["n", "id"], "regions": 2, "sample": 0})
    taken(rig, 3000)
    merged(rig)
    clustered = {f.path for f in files(rig)}
    for _ in range(3):
        taken(rig, 40)
        merged(rig)
    assert len(files(rig)) == len(clustered) + 3
    tree = layout(rig).tree

    merged(rig)

    assert moves(rig)[-1] == ("COMMITTED", False)
    [fresh] = [f for f in files(rig) if f.path not in clustered]
    assert fresh.rows == 3 * 80
    assert clustered < {f.path for f in files(rig)}
    assert layout(rig).tree.digest == tree.digest
    assert otree.trigger(rig.stores, rig.table.row) is None
    rig.assert_exact()


def test_a_merge_that_was_committed_is_not_done_again(rig: TableRig):
    taken(rig, 100)
    merged(rig)
    assert merged(rig) is None
    assert moves(rig) == [("COMMITTED", True)]


def test_a_late_attempt_of_a_merge_changes_nothing(rig: TableRig):
    taken(rig, 100)
    stores, table = rig.stores, rig.table.row
    claim = rig.claim(Stage.OTREE)
    move = otree.plan(stores, table, claim, trigger="test", run_id=None)
    assert move is not None
    late = otree.stage(stores, table, move)
    again = stores.ledger.take_attempt(claim, move, run_id=None)
    otree.publish(stores, table, claim, again, otree.stage(stores, table, again))
    with pytest.raises(MoveClosed, match=f"move {move.move_id}"):
        otree.publish(stores, table, claim, move, late)
    stores.ledger.release(claim)
    rig.assert_exact()


# -- relayouts ----------------------------------------------------------------------------------------------


def grown(rig: TableRig) -> None:
    """A batch view whose regions are due."""
    taken(rig, 1000)
    merged(rig)
    taken(rig, 900)
    merged(rig)


@pytest.mark.long
def test_a_view_to_which_much_was_added_is_written_anew_and_keeps_its_rows_and_bounds(rig: TableRig):
    grown(rig)
    before = batch_hi(rig), sum(f.rows for f in files(rig))
    assert otree.trigger(rig.stores, rig.table.row) == "due"
    merged(rig)
    assert moves(rig)[-1] == ("COMMITTED", False)
    assert (batch_hi(rig), sum(f.rows for f in files(rig))) == before
    assert None not in classify(layout(rig).tree, files(rig))
    rig.assert_exact()
    assert otree.trigger(rig.stores, rig.table.row) is None


@pytest.mark.long
def test_a_part_that_is_written_anew_leaves_the_files_of_all_others_where_they_are(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
):
    taken(rig, 1000)
    merged(rig)
    before = files(rig)
    low = [b'{"id":%d,"n":0,"s":"x %d"}' % (10_000 + i, i * i) for i in range(600)]
    rig.kafka.produce(rig.topic, 0, low)  # all in the regions of the smallest n
    rig.ingest()
    rig.tier()
    merged(rig)
    routed: list[int] = []
    in_pieces = cluster.in_pieces

    def counting(frame: Any, tree: RegionTree, *rest: Any, **options: Any) -> Any:
        routed.append(len(tree))
        return in_pieces(frame, tree, *rest, **options)

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "in_pieces", counting)
        assert merged(rig) is not None
    assert moves(rig)[-1] == ("COMMITTED", False)
    after = {f.path for f in files(rig)}
    tree = layout(rig).tree
    fresh = {f.path for f in files(rig)} - {f.path for f in before}
    assert routed == [len(fresh)] < [len(tree)], "one task for each region that is written, none for all others"
    touched = [f for f in before if f.path not in after]
    assert 0 < len(touched) <= len(before) / 2 + 1, "the one file of the sample layer too"
    assert None not in classify(tree, files(rig))
    rig.assert_exact()


@pytest.mark.long
def test_a_view_filled_in_order_keeps_a_shallow_tree_and_what_was_clustered_is_not_written_again(
    harness: hp.Harness, kafka: KafkaRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(balance, "depth_max", lambda regions: 3)
    rig = TableRig(
        harness, kafka, partitions=1, views="both",
        columns={"id": {"type": "long", "required": True}}, layout={"columns": ["id"], "regions": 8, "sample": 0},
    )  # fmt: skip
    for first in range(0, 3200, 800):
        rig.kafka.produce(rig.topic, 0, [b'{"id":%d}' % i for i in range(first, first + 800)])
        rig.worker(until_idle=True).run()
        rig.assert_exact()

    tree, held = layout(rig).tree, files(rig)
    assert len(tree) >= 8
    assert tree.depth <= 4
    assert None not in classify(tree, held)
    assert set(layout(rig).clustered) == set(tree.paths())
    assert otree.trigger(rig.stores, rig.table.row) is None


@pytest.mark.long
def test_rows_that_arrive_during_a_relayout_are_neither_lost_nor_blocked(rig: TableRig):
    grown(rig)
    stores, table = rig.stores, rig.table.row
    claim = rig.claim(Stage.OTREE)
    move = otree.plan(stores, table, claim, trigger="test", run_id=None)
    assert move is not None
    assert not move.ranges
    staged = otree.stage(stores, table, move)
    taken(rig, 50)  # tier publishes meanwhile
    rig.assert_exact()
    otree.publish(stores, table, claim, move, staged)
    stores.ledger.release(claim)
    rig.assert_exact()
    assert merged(rig) is not None
    assert batch_hi(rig) == {0: 1950, 1: 1950}
    rig.assert_exact()


@pytest.mark.long
def test_a_relayout_that_would_not_be_better_is_dropped_and_not_tried_again_until_something_is_new(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
):
    grown(rig)
    monkeypatch.setattr(Score, "better_than", lambda *_: False)
    before = files(rig)
    assert merged(rig) is None
    assert moves(rig)[-1] == ("ABANDONED", False)
    assert files(rig) == before
    assert otree.trigger(rig.stores, rig.table.row) is None
    monkeypatch.undo()
    taken(rig, 100)
    merged(rig)
    assert otree.trigger(rig.stores, rig.table.row) == "due"
    rig.assert_exact()


@pytest.mark.long
def test_a_relayout_that_is_predicted_to_be_worse_is_not_written(rig: TableRig, monkeypatch: pytest.MonkeyPatch):
    grown(rig)
    before = files(rig)
    monkeypatch.setattr(sampling, "TELLING_BYTES", 1)
    whole = Extent(lower=None, upper=None, nulls=0, nans=0)
    wide = FileStats(path="", rows=1, bytes=2**30, sequence=0, extents=(whole,) * len(before[0].extents))
    monkeypatch.setattr(sampling.Sample, "predicted", lambda *_: [wide])
    with monkeypatch.context() as patched:
        patched.setattr(write, "append_to_branch", lambda *_, **__: pytest.fail("it was written"))
        assert merged(rig) is None
    assert moves(rig)[-1] == ("ABANDONED", False)
    assert files(rig) == before
    rig.assert_exact()


@pytest.mark.long
def test_a_relayout_that_fails_in_every_attempt_is_left_out_and_merges_go_on(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
):
    grown(rig)
    assert otree.trigger(rig.stores, rig.table.row) == "due"

    def broken(*_: Any, **__: Any) -> Any:
        raise SparkFailed("a file cannot be read")

    with monkeypatch.context() as patched:
        patched.setattr(cluster, "file_rows", broken)
        for _ in range(FAILURES_MAX):
            with pytest.raises(SparkFailed):
                merged(rig)
        taken(rig, 50)
        merged(rig)
    assert batch_hi(rig) == {0: 1950, 1: 1950}
    assert moves(rig)[-2:] == [("ABANDONED", False), ("COMMITTED", True)]
    abandoned = rig.stores.ledger.moves(rig.table.row, stage=Stage.OTREE)[1]
    assert "a file cannot be read" in abandoned["error"]
    assert "a file cannot be read" in nothing_is_stuck(rig.stores, rig.table.row).description
    rig.assert_exact()

    asked = recluster.plan_recluster(rig.stores, rig.table.row)  # the cause was repaired
    recluster.ask(rig.stores, rig.table.row, asked)
    merged(rig)
    assert moves(rig)[-1] == ("COMMITTED", False)
    assert nothing_is_stuck(rig.stores, rig.table.row).passed
    rig.assert_exact()


@pytest.mark.long
def test_a_lease_of_an_old_reader_is_honoured_through_three_relayouts(rig: TableRig):
    grown(rig)
    old, truth = rig.table.plan(lease=timedelta(minutes=5)), rig.truth
    for _ in range(3):
        merged(rig)
        taken(rig, 1500)
        merged(rig)
    found = read_arrow(old, rig.stores, columns=["id"], coordinates=COORDINATES, check_lease=lambda: None).rows
    assert Counter(zip(*(found.column(c).to_pylist() for c in (*COORDINATES, "id")), strict=True)) == truth
    rig.assert_exact()


@pytest.mark.long
def test_a_revert_takes_both_views_back_and_otree_merges_again(rig: TableRig):
    taken(rig, 300)
    merged(rig)
    back = head(rig).version
    taken(rig, 300)
    merged(rig)
    revert_table(rig.stores, rig.table.row, to=back)
    assert batch_hi(rig) == {0: 300, 1: 300}
    rig.assert_exact()
    rig.worker(OTREE | TIER, until_idle=True).run()
    assert batch_hi(rig) == {0: 600, 1: 600}
    rig.assert_exact()


@pytest.mark.long
def test_an_old_version_is_read_from_the_views_as_they_were(rig: TableRig):
    taken(rig, 200)
    merged(rig)
    version, truth = head(rig).version, rig.truth
    taken(rig, 300)
    merged(rig)
    assert rig.read(at=version) == truth


# -- values -------------------------------------------------------------------------------------------------

TYPES: dict[str, Callable[[random.Random], Any]] = {
    "boolean": lambda r: r.random() < 0.5,
    "int": lambda r: r.randint(-(2**31), 2**31 - 1),
    "long": lambda r: r.choice([-(2**63), 2**63 - 1, r.randint(-(2**40), 2**40)]),
    "float": lambda r: r.choice([0.5, -0.0, r.uniform(-1e30, 1e30)]),
    "double": lambda r: r.choice([1e308, -1e308, r.gauss(0, 1)]),
    "decimal(12,2)": lambda r: f"{r.randint(-(10**11), 10**11) / 100:.2f}",
    "decimal(38,5)": lambda r: f"{r.randint(-(10**30), 10**30)}.12345",
    "date": lambda r: f"{r.randint(1900, 2100)}-0{r.randint(1, 9)}-{r.randint(10, 28)}",
    "timestamp": lambda r: f"{r.randint(1950, 2100)}-01-{r.randint(10, 28)}T00:00:00.{r.randint(0, 999999):06}",
    "timestamptz": lambda r: f"{r.randint(1950, 2100)}-01-{r.randint(10, 28)}T0{r.randint(0, 9)}:00:00+02:00",
    "time": lambda r: f"1{r.randint(0, 9)}:{r.randint(10, 59)}:00",
    "string": lambda r: r.choice(
        ["", "ä", f"https://example.org/{r.random()}", "\U0001f600" * r.randint(1, 9), "z" * 40]
    ),
    "uuid": lambda r: str(uuid.UUID(int=r.getrandbits(128))),
}


@pytest.mark.long
@pytest.mark.parametrize("type_", TYPES)
def test_any_type_is_clustered_with_nulls_and_equal_keys_and_no_row_is_lost(
    harness: hp.Harness, kafka: KafkaRig, type_: str
):
    rig = TableRig(
        harness, kafka, partitions=1, views="both",
        columns={"id": {"type": "long", "required": True}, "v": type_}, layout={"columns": ["v"], "regions": 6},
    )  # fmt: skip
    rng = random.Random(type_)
    common = TYPES[type_](rng)
    values = [rng.choice([None, common, *(TYPES[type_](rng) for _ in range(4))]) for _ in range(1200)]
    records = [orjson.dumps({"id": i, "v": v}) for i, v in enumerate(values)]
    for part in (records[:700], records[700:]):
        rig.kafka.produce(rig.topic, 0, part)
        rig.worker(until_idle=True).run()
        rig.assert_exact()
    tree, found = layout(rig).tree, files(rig)
    placed = classify(tree, found)
    assert sum(f.rows for f in found) == 1200
    assert len(tree) > 1
    clustered = min(layout(rig).clustered.values())
    assert all(path is not None or f.sequence > clustered for path, f in zip(placed, found, strict=True))
    again = rig.table.read(columns=["id"], where="v IS NULL")
    assert again.num_rows == values.count(None)


SPARK_TYPES: dict[str, list[Any]] = {
    "boolean": [0, 1],
    "int": [-(2**31), -1, 0, 7, 2**31 - 1],
    "long": [-(2**63), -1, 0, 7, 2**63 - 1],
    "float": [-math.inf, -1.5, 0.0, 0.5, math.inf, math.nan],
    "double": [-math.inf, -1e308, -0.0, 0.1, 1e308, math.inf, math.nan],
    "decimal(12,2)": [-(10**11), -1, 0, 1, 10**11],
    "decimal(38,5)": [-(10**37), 0, 10**37],
    "date": [-30_000, 0, 20_000],
    "timestamp": [-(10**15), 0, 1, 10**15],
    "timestamptz": [-(10**15), 0, 1, 10**15],
    "string": ["", "a", "ab", "\xe4", "\U0001f600", "z" * 15],
    "uuid": [b"\x00" * 16, b"\x7f" + b"\xff" * 15, b"\x80" + b"\x00" * 15, b"\xff" * 16],
}

SPARK_NAMES = {"long": "bigint", "timestamptz": "timestamp", "timestamp": "timestamp_ntz", "uuid": "string"}


def row_frame(rig: TableRig, columns: Sequence[IndexedColumn], rows: Sequence[Sequence[Any]]) -> Any:
    """A frame with *rows*, whose values are in the domain of the tree."""
    frame = rig.stores.spark().range(len(rows))
    for axis, column in enumerate(columns):
        name = {"timestamptz": "timestamp", "timestamp": "timestamp_ntz", "uuid": "string"}.get(
            column.type, column.type
        )
        cells = [None if (v := row[axis]) is None else cluster._literal(column, v) for row in rows]
        typed = [(f.lit(None) if cell is None else cell).cast(name) for cell in cells]
        frame = frame.withColumn(column.name, f.element_at(f.array(*typed), f.col("id").cast("int") + 1))
    return frame


def assert_routed_alike(rig: TableRig, tree: RegionTree, rows: Sequence[tuple[Any, ...]]) -> None:
    placed = cluster.with_regions(row_frame(rig, tree.columns, rows), tree).toArrow()
    values = [to_values(placed.column(c.name), c) for c in tree.columns]
    assert placed.column(cluster._REGION).to_pylist() == tree.route(values).tolist()
    assert tree.route(values).tolist() == tree.route(arrays(tree.columns, rows)).tolist()


@pytest.mark.parametrize("nested_max", [1, 3, 20])
@pytest.mark.parametrize("type_", SPARK_TYPES)
def test_spark_routes_every_value_as_the_tree_does(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch, type_: str, nested_max: int
):
    monkeypatch.setattr(cluster, "_NESTED_MAX", nested_max)
    columns = (IndexedColumn("v", type_), IndexedColumn("w", "double"))
    rows = [(v, w) for v in (*SPARK_TYPES[type_], None) for w in (-math.inf, 0.0, 2.5, math.nan, None)]
    assert_routed_alike(rig, tree_of(columns, rows, target_rows=1), rows)


def test_rows_find_their_regions_in_a_tree_that_is_deeper_than_a_request_to_spark_may_nest(rig: TableRig):
    columns = (IndexedColumn("n", "long"),)
    chain = [node for cut in range(150) for node in ((0, At(cut)), None)]
    assert_routed_alike(rig, RegionTree.of(columns, [*chain, None]), [(n,) for n in range(-1, 151)] + [(None,)])


@pytest.mark.parametrize("regions", [2, 300])
def test_spark_compiles_the_way_to_the_files_as_a_whole_however_many_regions_there_are(rig: TableRig, regions: int):
    """Else each operator hands whole rows to the next one."""
    columns = tuple(IndexedColumn(name, "double") for name in "abc")
    given = random.Random(1)
    rows = [tuple(given.random() for _ in columns) for _ in range(1000)]
    tree, spark = tree_of(columns, rows, target_rows=1000 / regions), rig.stores.spark()
    assert len(tree) >= regions
    frame = row_frame(rig, columns, rows[:10]).selectExpr("*", "0 AS _kafka_partition", "id AS _kafka_offset")
    pieces = cluster.in_pieces(frame, tree, arrays(columns, rows), pieces=[1] * len(tree))
    spark.conf.set("spark.sql.adaptive.enabled", "false")  # else the code is made when it runs
    try:
        with redirect_stdout(StringIO()) as shown:
            pieces.explain("codegen")
    finally:
        spark.conf.unset("spark.sql.adaptive.enabled")
    sizes = [int(size) for size in re.findall(r"maxMethodCodeSize:(\d+)", shown.getvalue())]
    assert len(sizes) == 2  # up to the shuffle and behind it
    assert max(sizes) < 8000  # what the JVM compiles, so Spark's own limit


def test_one_value_with_most_of_the_rows_ends_in_files_of_bounded_size(harness: hp.Harness, kafka: KafkaRig):
    rig = TableRig(
        harness, kafka, partitions=1, views="both",
        columns={"id": {"type": "long", "required": True}, "v": "int"}, layout={"columns": ["v"], "regions": 10},
    )  # fmt: skip
    rng = random.Random(1)
    records = [orjson.dumps({"id": i, "v": 7 if i % 2 else rng.randint(0, 1000)}) for i in range(4000)]
    rig.kafka.produce(rig.topic, 0, records)
    rig.worker(until_idle=True).run()
    rig.assert_exact()
    assert max(f.rows for f in files(rig)) <= 1.5 * 400


def test_a_partition_without_rows_and_one_row_alone_are_merged(rig: TableRig):
    rig.kafka.produce(rig.topic, 1, rig.values(1))
    rig.worker(until_idle=True).run()
    assert batch_hi(rig) == {0: 0, 1: 1}
    rig.assert_exact()
