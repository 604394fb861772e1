"""Spark and Arrow make the same files of the same records: rows and their order, bounds, counts, columns, regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.drivers.files import opened
from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.engines.spark import cluster
from harness_pipelines.layout import curve
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.row_hash import drawn as drawn_rows
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake import wide
from harness_pipelines.protocol.lake.stream_files import FILES_MIN
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.read.clustering import layout_of
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.locations import normal
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.compact import compact_once
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.engines import static
from harness_pipelines_tests.every_type import WAYS
from harness_pipelines_tests.integration.tables.test_types import drawn
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import INGEST, MoveOnce, TableRig, good

MakeRig = Callable[..., TableRig]
DRAWN = 25  #: records for each partition and move
BY_TYPE = ("double", "decimal(18, 6)", "timestamptz", "long")
#: Of a column whose least value is zero Arrow says -0.0, and 0.0 where zero is the greatest, as Parquet asks. Spark
#: says the zero that it saw. Both are true.
ZEROS = {bytes(3) + b"\x80": bytes(4), bytes(7) + b"\x80": bytes(8)}


@dataclass(frozen=True, slots=True)
class Twins:
    """Two tables over one topic, the second of which Arrow moves."""

    spark: hp.Table
    arrow: hp.Table

    @classmethod
    def of(cls, rig: TableRig) -> Twins:
        spec = rig.table.row.spec.model_copy(update={"table": f"{rig.name}_arrow", "engine": "arrow"})
        assert rig.table.row.spec.engine == "spark"
        return cls(rig.table, rig.harness.apply(spec))

    def ingest(self) -> None:
        tables = [self.spark.row, self.arrow.row]
        Worker(self.spark.harness.stores, tables, WorkerOptions(stages=INGEST, until_idle=True)).run()

    def step(self, stage: Stage, once: MoveOnce) -> None:
        """One move of *stage* by each."""
        for table in (self.spark, self.arrow):
            rig = TableRig.__new__(TableRig)
            rig.table, rig.harness = table, table.harness
            rig.move_once(stage, once, crash=None)

    def relayout(self) -> None:
        for table in (self.spark, self.arrow):
            rig = TableRig.__new__(TableRig)
            rig.table, rig.harness = table, table.harness
            rig.relayout()

    def assert_same(self) -> None:
        """Both have the same files in the same views, and whole tables."""
        stores = self.spark.harness.stores
        heads = [stores.ledger.head(table.row) for table in (self.spark, self.arrow)]
        assert heads[0].bounds == heads[1].bounds
        for name in heads[0].views:
            spark, arrow = (files(table, name) for table in (self.spark, self.arrow))
            assert [told for told, _ in spark] == [told for told, _ in arrow], name
            for (told, one), (_, other) in zip(spark, arrow, strict=True):
                assert_same_file(one, other, told)
            summaries = [summary(table, name) for table in (self.spark, self.arrow)]
            assert summaries[0] == summaries[1]
        trees = [layout_of(stores, t.row, h) for t, h in zip((self.spark, self.arrow), heads, strict=True)]
        assert (trees[0] and trees[0].tree) == (trees[1] and trees[1].tree)
        for table in (self.spark, self.arrow):
            assert table.audit(full=True).ok
        assert fsck(stores, [self.spark.name, self.arrow.name]).ok


def files(table: hp.Table, view: ViewName) -> list[tuple[Mapping[str, Any], str]]:
    """What the manifests say of each live file, and where it is."""
    head = table.harness.stores.ledger.head(table.row)
    found = []
    for task in static(head.views[view].metadata).scan().plan_files():
        file = task.file
        told: dict[str, Any] = {
            "rows": file.record_count,
            "partition": list(file.partition.__dict__.values()) if len(file.partition) == 0 else [file.partition[0]],
            "order": file.sort_order_id,
            "spec": file.spec_id,
            "groups": len(file.split_offsets or ()),
            "hidden": [delete.record_count for delete in task.delete_files],
        }
        for name in ("value_counts", "null_value_counts", "nan_value_counts", "lower_bounds", "upper_bounds"):
            told[name] = dict(sorted((getattr(file, name) or {}).items()))
        for name in ("lower_bounds", "upper_bounds"):
            told[name] = {i: ZEROS.get(bound, bound) for i, bound in told[name].items()}
        found.append((told, file.file_path))
    return sorted(found, key=lambda one: (str(one[0]["partition"]), str(one[0]["lower_bounds"]), one[0]["rows"]))


def assert_same_file(one: str, other: str, told: Mapping[str, Any]) -> None:
    """Rows in their order, columns with ids, and how both are written."""
    spark, arrow = (parquet(path) for path in (one, other))
    assert without_names(spark.schema_arrow) == without_names(arrow.schema_arrow)
    assert spark.read().to_pylist() == arrow.read().to_pylist(), told
    for number in range(spark.metadata.num_row_groups):
        groups = [file.metadata.row_group(number) for file in (spark, arrow)]
        assert groups[0].num_rows == groups[1].num_rows
        columns = [[group.column(i) for i in range(group.num_columns)] for group in groups]
        assert [(c.path_in_schema, c.compression, c.physical_type) for c in columns[0]] == [
            (c.path_in_schema, c.compression, c.physical_type) for c in columns[1]
        ]
        assert all(column.is_stats_set for column in columns[1])


def parquet(path: str) -> pq.ParquetFile:
    system, place = opened(normal(path))
    return pq.ParquetFile(system.open_input_file(place), page_checksum_verification=True)


def without_names(schema: Any) -> Any:
    return schema.remove_metadata()


def summary(table: hp.Table, view: ViewName) -> dict[str, str]:
    """What the newest snapshot says of its move and of what it changed."""
    head = table.harness.stores.ledger.head(table.row)
    snapshot = static(head.views[view].metadata).metadata.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    told = {"operation": snapshot.summary.operation.value, **snapshot.summary.additional_properties}
    wanted = ("harness.ranges", "harness.attempt", "harness.schema-version", "harness.batch-hi", "operation")
    counted = ("added-data-files", "added-records", "deleted-data-files", "deleted-records", "total-records")
    return {name: told[name] for name in (*wanted, *counted) if name in told}


def test_files_of_every_type_are_the_same_in_every_stage(make_rig: MakeRig):
    way = WAYS["json"]()
    by = [next(name for name, kind in way.columns.items() if kind == wanted) for wanted in BY_TYPE]
    layout = {"columns": by, "regions": 4, "sample": 0.2}
    rig = make_rig(columns=way.columns, views="both", layout=layout, engine="spark")
    twins = Twins.of(rig)
    for _ in range(5):
        for partition, records in enumerate((drawn(way, DRAWN), drawn(way, DRAWN))):
            rig.kafka.produce(rig.topic, partition, [value for value, _ in records])
        twins.ingest()
        twins.step(Stage.TIER, tier_once)
    twins.assert_same()
    twins.step(Stage.OTREE, otree_once)
    twins.step(Stage.COMPACT, compact_once)
    twins.assert_same()
    for partition, records in enumerate((drawn(way, DRAWN), drawn(way, DRAWN))):
        rig.kafka.produce(rig.topic, partition, [value for value, _ in records])
    twins.ingest()
    twins.step(Stage.TIER, tier_once)
    twins.step(Stage.OTREE, otree_once)
    twins.relayout()
    twins.assert_same()


def test_the_only_view_of_a_table_has_the_same_files(make_rig: MakeRig):
    rig = make_rig(views="batch", engine="spark", layout={"columns": ["n", "id"], "regions": 3})
    twins = Twins.of(rig)
    for _ in range(2):
        rig.produce(200)
        twins.ingest()
        twins.step(Stage.TIER, tier_once)
    twins.assert_same()
    twins.step(Stage.OTREE, otree_once)
    twins.assert_same()


def test_without_a_buffer_both_take_the_same_from_the_log(make_rig: MakeRig):
    rig = make_rig(buffer="none", engine="spark")
    twins = Twins.of(rig)
    rig.produce(100)
    rig.produce_misfit(b'{"id":"not a number"}')
    twins.step(Stage.TIER, tier_once)
    twins.assert_same()
    held = [quarantined(table) for table in (twins.spark, twins.arrow)]
    assert held[0] == held[1] != []


def quarantined(table: hp.Table) -> Sequence[Mapping[str, Any]]:
    with table.harness.stores.database.session() as connection:
        return connection.execute(
            'SELECT partition, "offset", reason, detail, value FROM harness.quarantine WHERE table_id = %s',
            [table.row.table_id],
        ).fetchall()


def test_keyed_merges_hide_and_rewrite_the_same_rows(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka, engine="spark")
    twins = Twins.of(rig)
    for count in (120, 3, 60, 200):
        rig.produce(count)
        twins.ingest()
        twins.step(Stage.TIER, tier_once)
        twins.step(Stage.OTREE, otree_once)
        twins.assert_same()
    twins.relayout()
    twins.assert_same()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("long", [2**63 - 1, None, 2**63 - 1]),
        ("long", [-(2**63), None, 0, 2**63 - 1, 2**53 + 1]),
        ("int", [2**31 - 1, None]),
        ("timestamptz", [None, datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)]),
        ("date", [date(9999, 12, 31), None]),
        ("boolean", [True, None]),
        ("double", [math.inf, None, math.nan]),
        ("double", [5e-324, None, math.nan, -math.inf, 1.7e308, -0.0]),
        ("decimal(18, 6)", [Decimal("-999999999999.999999"), None, Decimal("12345678901.123457"), Decimal("0.1")]),
        ("decimal(38, 10)", [Decimal("9" * 28 + "." + "9" * 10), None, Decimal("0.0352415952")]),
    ],
)
def test_a_row_has_one_place_on_the_curve_of_its_region(harness: hp.Harness, kind: str, values: list[Any]):
    column = IndexedColumn("v", kind)
    rows = pa.table({"v": pa.array(values, arrow_type(parse_type(kind))), "at": range(len(values))})
    tree = RegionTree.single([column])
    for taken in (rows, rows.slice(0, 2), rows.slice(1)):
        sample, every = ([to_values(one.column("v"), column)] for one in (taken, rows))
        frame = harness.stores.spark().createDataFrame(rows)
        numbered = cluster.with_regions(frame, tree).withColumns(cluster._cells(tree, sample))
        found = numbered.toArrow().sort_by("at").column("_harness_cell_0").to_pylist()
        places = curve.places(tree, every, tree.route(every), curve.extents_of(tree, sample))
        assert found == places.tolist()


def test_a_draw_takes_the_rows_that_spark_would(harness: hp.Harness):
    partitions = np.repeat(np.array([0, 1, 7, 65_537, -3]), 400)
    offsets = np.concatenate([np.arange(200), np.arange(2**40, 2**40 + 1_600), 2**63 - 1 - np.arange(200)])
    spark = harness.stores.spark()
    frame = spark.createDataFrame([(int(p), int(o)) for p, o in zip(partitions, offsets, strict=True)], "p int, o long")
    found = [row[0] for row in frame.selectExpr("pmod(hash(p, o), 2147483648L) < 644245094L").collect()]
    assert drawn_rows(partitions, offsets, share=0.3).tolist() == found


@pytest.mark.parametrize("engine", ["spark", "arrow"])
def test_a_reader_sees_the_rows_of_files_of_either_engine(make_rig: MakeRig, engine: str):
    """A table may change its engine at any time."""
    rig = make_rig(views="both", engine=engine)
    rig.produce(50)
    rig.ingest()
    rig.tier()
    other = {"spark": "arrow", "arrow": "spark"}[engine]
    rig.table = rig.harness.apply(rig.table.row.spec.model_copy(update={"engine": other}))
    rig.produce(50)
    rig.worker(until_idle=True).run()
    rig.assert_exact()
    assert rig.table.audit(full=True).ok


@pytest.fixture(params=[5, pytest.param(wide.NARROW_MAX, marks=pytest.mark.long)])
def narrow_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The most partitions of a topic that is not wide."""
    monkeypatch.setattr(wide, "NARROW_MAX", request.param)
    return int(request.param)


@pytest.mark.parametrize("buffer", ["postgres", pytest.param("none", marks=pytest.mark.long)])
def test_files_of_a_wide_topic_are_the_same(make_rig: MakeRig, buffer: str, narrow_max: int):
    rig = make_rig(partitions=narrow_max + 1, buffer=buffer, views="both", engine="spark")
    twins = Twins.of(rig)
    for _ in range(FILES_MIN):
        rig.produce(2)
        if buffer != "none":
            twins.ingest()
        twins.step(Stage.TIER, tier_once)
    assert len(files(twins.arrow, "stream")) == FILES_MIN
    twins.assert_same()
    twins.step(Stage.OTREE, otree_once)
    twins.step(Stage.COMPACT, compact_once)
    assert len(files(twins.arrow, "stream")) == 1
    twins.assert_same()


def test_a_topic_that_grew_wide_keeps_a_file_for_each_partition(make_rig: MakeRig, narrow_max: int):
    rig = make_rig(partitions=1, engine="spark")
    twins = Twins.of(rig)
    rig.kafka.add_partitions(rig.topic, narrow_max + 1)
    for partition in range(narrow_max + 1):
        rig.kafka.produce(rig.topic, partition, [good(partition)])
    twins.ingest()
    twins.step(Stage.TIER, tier_once)
    assert len(files(twins.arrow, "stream")) == narrow_max + 1
    twins.assert_same()
