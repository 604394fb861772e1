"""What two orders are worth: the same reads on the stream view and on the batch view, with Spark and with DuckDB.

There are no goals: every value is a note, the ratio of both views beside the seconds on either.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import duckdb_extension_avro  # type: ignore[import-untyped]  # only a shared library
import duckdb_extension_iceberg  # type: ignore[import-untyped]  # only a shared library
import numpy as np
from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.lakes.iceberg.read.regions import region_files
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_data import Dataset, queries
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.rig import ALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, QUICK_ROWS = 1_000_000, 50_000
ROWS_PER_FILE, QUICK_ROWS_PER_FILE = 10_000, 2_000  #: of the batch view
ASKED, QUICK_ASKED = 20, 3  #: queries of each kind
BOOTSTRAPS, QUICK_BOOTSTRAPS = 3, 1
SEED = 1
COLUMNS = {"at": "timestamptz", "customer": "int", "amount": "decimal(12,2)"}  #: that the batch view is clustered by
KINDS = {"box": "box 1 %", "slab": "slab 1 %"}
BATCH_ROWS = 10_000  #: of a bootstrap
OFFSETS_SHARE = 0.01  #: of one partition, for a range of offsets
BOTH_VIEWS = "both_views"
_COORDINATES = (IndexedColumn("_kafka_partition", "int"), IndexedColumn("_kafka_offset", "long"))
_ROWS_OF_VIEW = "id, customer, amount, status, note, t.at, _kafka_partition, _kafka_offset"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Found = tuple[int, int]  #: rows, and the sum of their ids
Ask = Callable[[str, str], Found]  #: the rows of the view that a metadata file fixes, where a condition holds


def measure(run: Run) -> Sequence[Figure]:
    """Boxes, slabs and ranges of offsets, each query on either view, then a bootstrap in offset order from either."""
    head = run.harness.stores.tables.head(both_views(run).row)
    assert head.batch is not None
    views = {"stream": head.stream.metadata, "batch": head.batch.metadata}
    engine = duckdb_with_iceberg()
    asked = _conditions(engine, views["stream"], count=run.size(ASKED, QUICK_ASKED))
    engines = {"spark": _asks_spark(run.harness.stores.spark()), "duckdb": _asks_duckdb(engine)}
    for name, ask in engines.items():
        for kind, conditions in asked.items():
            run.say(f"scans: {len(conditions)} x {kind} in {name} on either view")
            _note(run, f"scans.{kind}.{name}", _scans(ask, views, conditions))
    run.say("scans: bootstraps in offset order")
    _bootstraps(run, engine, views)
    return []


def both_views(run: Run) -> hp.Table:
    """A table with all its rows in both views; made once per run."""
    if BOTH_VIEWS not in run.shared:
        rows = run.size(ROWS, QUICK_ROWS)
        run.say(f"{rows:,} records to both views")
        topic = run.topic()
        produce_backlog(run.harness.settings, topic, count=rows)
        regions = rows // run.size(ROWS_PER_FILE, QUICK_ROWS_PER_FILE)
        table = run.table(topic, buffer="none", layout={"columns": list(COLUMNS), "regions": regions})
        run.work(table, ALL)
        assert sum(p.bounds.batch_hi for p in table.positions()) == rows
        run.shared[BOTH_VIEWS] = table
    found: hp.Table = run.shared[BOTH_VIEWS]
    return found


def _note(run: Run, name: str, seconds: Mapping[str, float]) -> None:
    """Seconds on either view, and how many of the stream view's one of the batch view's is worth."""
    for view, took in seconds.items():
        run.note(f"{name}.{view}", took, "s")
    run.note(f"{name}.stream_to_batch", seconds["stream"] / seconds["batch"], "x")


# -- scans --------------------------------------------------------------------------------------------------


def _scans(ask: Ask, views: Mapping[str, str], conditions: Sequence[str]) -> dict[str, float]:
    """Median seconds by view, after one query more to warm up."""
    took: dict[str, list[float]] = defaultdict(list)
    for number, condition in enumerate([conditions[0], *conditions]):
        found = {}
        for view, metadata in views.items():
            began = time.monotonic()
            found[view] = ask(metadata, condition)
            if number:
                took[view].append(time.monotonic() - began)
        assert found["stream"] == found["batch"], f"where {condition}: {found}"
    return {view: statistics.median(seconds) for view, seconds in took.items()}


def _asks_spark(spark: SparkSession) -> Ask:
    def ask(metadata: str, condition: str) -> Found:
        chosen = spark.read.format("iceberg").load(metadata).alias("t").where(condition)
        [(rows, ids)] = chosen.selectExpr("count(*)", "coalesce(sum(id), 0)").collect()
        return int(rows), int(ids)

    return ask


def _asks_duckdb(engine: duckdb.DuckDBPyConnection) -> Ask:
    def ask(metadata: str, condition: str) -> Found:
        selected = f"SELECT count(*), coalesce(sum(id), 0) FROM iceberg_scan(?) AS t WHERE {condition}"
        [(rows, ids)] = engine.execute(selected, [_local(metadata)]).fetchall()
        return int(rows), int(ids)

    return ask


def _conditions(engine: duckdb.DuckDBPyConnection, stream: str, *, count: int) -> dict[str, list[str]]:
    """Per kind *count* conditions that Spark and DuckDB both understand."""
    read = "SELECT epoch_us(t.at), customer, CAST(amount * 100 AS BIGINT) FROM iceberg_scan(?) AS t"
    columns = tuple(
        np.asarray(column, np.int64) for column in engine.execute(read, [_local(stream)]).fetchnumpy().values()
    )
    data = Dataset(name="records", names=tuple(COLUMNS), types=tuple(COLUMNS.values()), columns=columns)
    classes = queries(data, SEED, per_class=count)
    found = {
        kind: [_condition(low, high) for low, high in zip(classes[of].low, classes[of].high, strict=True)]
        for kind, of in KINDS.items()
    }
    return found | {"offsets": _offset_ranges(data.rows // PARTITIONS, count=count)}


def _condition(low: Sequence[float], high: Sequence[float]) -> str:
    """A box as SQL over the alias ``t``, since ``at`` alone is a word of DuckDB; open sides are infinite."""
    closed = [(name, a, b) for name, a, b in zip(COLUMNS, low, high, strict=True) if np.isfinite(a) or np.isfinite(b)]
    return " AND ".join(f"t.{name} BETWEEN {_literal(name, a)} AND {_literal(name, b)}" for name, a, b in closed)


def _literal(name: str, value: float) -> str:
    """A value of `Dataset` (microseconds, int, cents) in SQL."""
    match name:
        case "at":
            return f"'{(_EPOCH + timedelta(microseconds=int(value))).isoformat(sep=' ')}'"
        case "amount":
            return f"{value / 100:.2f}"
        case _:
            return str(int(value))


def _offset_ranges(end: int, *, count: int) -> list[str]:
    """Ranges spread over ``[0, end)`` of the partitions in turn."""
    span = max(1, round(end * OFFSETS_SHARE))
    lows = np.linspace(0, end - span, count).astype(int).tolist()
    return [
        f"_kafka_partition = {number % PARTITIONS} AND _kafka_offset >= {low} AND _kafka_offset < {low + span}"
        for number, low in enumerate(lows)
    ]


# -- bootstraps ---------------------------------------------------------------------------------------------


def _bootstraps(run: Run, engine: duckdb.DuckDBPyConnection, views: Mapping[str, str]) -> None:
    """All rows in offset order: the stream view's files one after the other, the batch view's rows sorted."""
    sources = {
        "stream": f"read_parquet({_in_order(views['stream'])}) AS t",
        "batch": f"iceberg_scan('{_local(views['batch'])}') AS t ORDER BY _kafka_partition, _kafka_offset",
    }
    whole: dict[str, list[float]] = defaultdict(list)
    first: dict[str, list[float]] = defaultdict(list)
    for _ in range(run.size(BOOTSTRAPS, QUICK_BOOTSTRAPS)):
        for view, source in sources.items():
            first_s, all_s = _read_in_order(engine, source)
            first[view].append(first_s)
            whole[view].append(all_s)
    _note(run, "scans.bootstrap", {view: statistics.median(took) for view, took in whole.items()})
    _note(run, "scans.bootstrap_first_rows", {view: statistics.median(took) for view, took in first.items()})


def _in_order(stream: str) -> list[str]:
    """The stream view's files by partition and first offset."""
    files = region_files(StaticTable.from_metadata(stream), _COORDINATES)
    ordered = sorted(files, key=lambda file: tuple(extent.lower for extent in file.extents))
    return [_local(file.path) for file in ordered]


def _read_in_order(engine: duckdb.DuckDBPyConnection, source: str) -> tuple[float, float]:
    """Seconds until the first rows and until all of them came. Raises: AssertionError where they are not in order."""
    began = time.monotonic()
    first_s, last = 0.0, (-1, -1)
    for batch in engine.execute(f"SELECT {_ROWS_OF_VIEW} FROM {source}").to_arrow_reader(BATCH_ROWS):
        first_s = first_s or time.monotonic() - began
        partitions, offsets = (np.asarray(batch.column(column.name)).astype(np.int64) for column in _COORDINATES)
        steps = np.diff(partitions) * 2**40 + np.diff(offsets)
        assert (steps > 0).all() and last < (partitions[0], offsets[0]), "the rows are not in offset order"
        last = int(partitions[-1]), int(offsets[-1])
    return first_s, time.monotonic() - began


# -- DuckDB -------------------------------------------------------------------------------------------------


def duckdb_with_iceberg() -> duckdb.DuckDBPyConnection:
    """A connection that reads Iceberg, on UTC."""
    engine = duckdb.connect()
    engine.execute("SET TimeZone = 'UTC'")
    for package in (duckdb_extension_avro, duckdb_extension_iceberg):
        [library] = Path(str(package.__file__)).parent.rglob("*.duckdb_extension")
        engine.execute(f"LOAD '{library}'")
    return engine


def _local(place: str) -> str:
    return place.removeprefix("file://")
