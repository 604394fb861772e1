"""A clustered rewrite beside a plain one and beside Iceberg's own, and what readers touch in the files of each.

One table of events in arrival order; every rewrite goes into a table of its own, in the same Spark, side by side.
"""

from __future__ import annotations

import shutil
import statistics
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.layout.build import build
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.files import FileStats
from harness_pipelines.layout.queries import synthetic
from harness_pipelines.layout.scores import Workload
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.stages import otree
from harness_pipelines.stores import spark_otree
from harness_pipelines.stores.lake_regions import region_files
from harness_pipelines.stores.spark import catalog_options
from harness_pipelines_tests.bench import layout_peers
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_data import Dataset, Queries, events_3d, queries
from harness_pipelines_tests.bench.layout_files import boxes_of, rows_touched
from harness_pipelines_tests.bench.layout_peers import FileBoxes, file_boxes, geomean_ratio
from harness_pipelines_tests.bench.records import PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, QUICK_ROWS = 2_000_000, 100_000
ROWS_PER_FILE, QUICK_ROWS_PER_FILE = 10_000, 2_000
WARM_ROWS = 20_000
TIMES, QUICK_TIMES = 3, 1
SEED = 1
RATE_GOAL, SPREAD_GOAL, LARGEST_GOAL = 0.5, 1.3, 1.5
ROLL_OVER_BYTES = 2**40  #: never
CATALOG, NAMESPACE = "bench_layout", "bench"
PEERS = ("zorder", "sort", "plain")
_PAGES = 200


def measure(run: Run) -> Sequence[Figure]:
    """Every rewrite in turn, as often as the run asks for; rates are medians, files those of the last round."""
    rows, rows_per_file = run.size(ROWS, QUICK_ROWS), run.size(ROWS_PER_FILE, QUICK_ROWS_PER_FILE)
    data = events_3d(rows, SEED)
    with Lake(run.harness) as lake:
        run.say("rewrites: warming up all of them")
        warm = lake.source(events_3d(WARM_ROWS, SEED + 1), rows_per_file=rows_per_file)
        for rewrite in REWRITES.values():
            rewrite(lake, warm)
        source = lake.source(data, rows_per_file=rows_per_file)
        seconds: dict[str, list[float]] = defaultdict(list)
        made: dict[str, Rewritten] = {}
        for _ in range(run.size(TIMES, QUICK_TIMES)):
            for name, rewrite in REWRITES.items():
                run.say(f"rewrites: {rows:,} rows, {name}")
                made[name] = rewrite(lake, source)
                seconds[name].append(made[name].seconds)
    rates = {name: rows / statistics.median(took) for name, took in seconds.items()}
    for name, rate in rates.items():
        run.note(f"rewrites.{name}", rate, "rows/s")
        run.note(f"rewrites.{name}.files", len(made[name].files), "files")
    for step, took in made["ours"].steps.items():
        run.note(f"rewrites.ours.{step}", took, "s")
    to_plain = rates["ours"] / rates["plain"]
    return [
        Figure(figure="rewrites.rate_to_plain", value=to_plain, unit="x", goal=RATE_GOAL, sense=">="),
        _touched(run, data, made),
        *_sizes(made["ours"].files, target_bytes=source.target_bytes),
    ]


def _touched(run: Run, data: Dataset, made: Mapping[str, Rewritten]) -> Figure:
    """Rows in the files that queries touch by their manifests, ours for each of the peer's."""
    classes = queries(data, SEED + 2)
    found = {name: _by_class(boxes_of(rewritten.files), classes) for name, rewritten in made.items()}
    for peer in PEERS:
        ratios = {of_class: found["ours"][of_class] / rows for of_class, rows in found[peer].items()}
        for of_class in ("box 1 %", "slab 1 %"):
            run.note(f"rewrites.{of_class.removesuffix(' %').replace(' ', '_')}_to_{peer}", ratios[of_class], "x")
        run.note(f"rewrites.all_to_{peer}", geomean_ratio(list(ratios.values())), "x")
    # The model of Iceberg's zorder, which `layout_clustering` compares with, in as many files.
    model = layout_peers.zorder(data, -(-data.rows // len(made["zorder"].files)))
    modelled = _by_class(file_boxes(data, model), classes)
    run.note("rewrites.mixed_of_zorder_to_its_model", found["zorder"]["mixed"] / modelled["mixed"], "x")
    mixed = found["ours"]["mixed"] / found["zorder"]["mixed"]
    return Figure(figure="rewrites.mixed_to_zorder", value=mixed, unit="x", goal=layout_peers.ZORDER_GOAL, sense="<=")


def _by_class(boxes: FileBoxes, classes: Mapping[str, Queries]) -> dict[str, float]:
    return {name: rows_touched(boxes, asked) for name, asked in classes.items()}


def _sizes(files: Sequence[FileStats], *, target_bytes: int) -> list[Figure]:
    sizes = np.array([file.bytes for file in files])
    half, most = np.percentile(sizes, [50, 95])
    largest = float(sizes.max() / target_bytes)
    return [
        Figure(figure="rewrites.file_p95_to_p50", value=float(most / half), unit="x", goal=SPREAD_GOAL, sense="<="),
        Figure(figure="rewrites.file_max_to_target", value=largest, unit="x", goal=LARGEST_GOAL, sense="<="),
    ]


# -- the tables ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A table in arrival order that is written anew."""

    name: str
    metadata: str
    columns: Sequence[IndexedColumn]
    files: Sequence[FileStats]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    @property
    def target_bytes(self) -> int:
        """Of a file: rewrites shall end with as many files as there are."""
        return self.bytes // len(self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a rewrite left, and how long it took."""

    seconds: float
    files: Sequence[FileStats]
    steps: Mapping[str, float]  #: parts of *seconds*, where it has some


class Lake:
    """Tables in a catalog of their own, beside the harness's; all dropped with the block."""

    def __init__(self, harness: hp.Harness) -> None:
        self._stores = harness.stores
        self._scratch = harness.settings.home / "bench" / f"rewrites_{uuid.uuid4().hex[:10]}"
        self._made: list[str] = []

    @property
    def spark(self) -> SparkSession:
        return self._stores.spark()

    def __enter__(self) -> Self:
        self._scratch.mkdir(parents=True)
        prefix = f"spark.sql.catalog.{CATALOG}"
        for name, given in catalog_options(self._stores.dsn, warehouse=f"{self._stores.warehouse}/{CATALOG}").items():
            self.spark.conf.set(f"{prefix}.{name}" if name else prefix, given)
        self.spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._made:
            self.spark.sql(f"DROP TABLE IF EXISTS {name} PURGE")
        shutil.rmtree(self._scratch, ignore_errors=True)

    def source(self, data: Dataset, *, rows_per_file: int) -> Source:
        """*data* with payload and coordinates, in files of *rows_per_file* rows in arrival order."""
        path = self._scratch / f"{uuid.uuid4().hex[:10]}.parquet"
        pq.write_table(_events(data), path)
        arrived = self.spark.read.parquet(path.as_uri())
        name = self.create(arrived.schema.toDDL(), {})
        files = -(-data.rows // rows_per_file)
        in_order = arrived.repartitionByRange(files, "_kafka_offset")
        in_order.sortWithinPartitions("_kafka_offset", "_kafka_partition").writeTo(name).append()
        columns = [IndexedColumn(column, of) for column, of in zip(data.names, data.types, strict=True)]
        metadata = self.metadata(name)
        return Source(name=name, metadata=metadata, columns=columns, files=self.files(name, columns))

    def create(self, columns: str, properties: Mapping[str, str]) -> str:
        """An empty table with *columns* (DDL); returns its name."""
        name = f"{CATALOG}.{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
        self._made.append(name)
        given = {"write.distribution-mode": "none", "write.parquet.compression-codec": "zstd", **properties}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in given.items())
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg TBLPROPERTIES ({listed})")
        return name

    def like(self, source: Source, properties: Mapping[str, str]) -> str:
        """An empty table with the columns of *source*."""
        return self.create(self.spark.table(source.name).schema.toDDL(), properties)

    def metadata(self, name: str) -> str:
        """The table's metadata file now."""
        newest = f"SELECT file FROM {name}.metadata_log_entries ORDER BY timestamp DESC LIMIT 1"
        return str(self.spark.sql(newest).collect()[0][0])

    def files(self, name: str, columns: Sequence[IndexedColumn]) -> list[FileStats]:
        """The table's files with the bounds of *columns*, from its manifests."""
        return region_files(StaticTable.from_metadata(self.metadata(name)), columns)


def _events(data: Dataset) -> pa.Table:
    """*data* as rows of an event log: its columns, some payload, coordinates that go round the partitions."""
    rng = np.random.default_rng(SEED)
    number = np.arange(data.rows)
    time_us, user, amount = data.columns
    return pa.table(
        {
            "time": pa.array(time_us, pa.timestamp("us", "UTC")),
            "user": pa.array(user, pa.int64()),
            "amount": pa.array(amount, pa.float64()),
            "page": pa.array([f"/page/{n}" for n in rng.integers(0, _PAGES, data.rows).tolist()]),
            "duration_ms": pa.array(rng.integers(1, 60_000, data.rows), pa.int32()),
            "note": pa.array([f"event {n}" for n in number.tolist()]),
            "_kafka_partition": pa.array(number % PARTITIONS, pa.int32()),
            "_kafka_offset": pa.array(number // PARTITIONS, pa.int64()),
        }
    )


# -- the rewrites -------------------------------------------------------------------------------------------


def plain(lake: Lake, source: Source) -> Rewritten:
    """Read and append, without a shuffle."""
    began = time.monotonic()
    name = _copied(lake, source)
    return Rewritten(seconds=time.monotonic() - began, files=lake.files(name, source.columns), steps={})


def ours(lake: Lake, source: Source) -> Rewritten:
    """All that the otree stage does in a relayout of the whole view, from its first look to its last judgement.

    Only its commit to the ledger is left out; here Spark commits.
    """
    name = lake.like(source, {"write.parquet.row-group-size-bytes": str(max(source.target_bytes // 16, 2**20))})
    target_rows = source.rows * source.target_bytes / source.bytes
    steps: dict[str, float] = {}
    began = time.monotonic()
    frame = spark_otree.file_rows(lake.spark, source.metadata, source.files, source.columns)
    with _timed(steps, "sample"):
        share = _share(source)
        values = spark_otree.sampled(frame, source.columns, share=share)
    with _timed(steps, "tree"):
        tree = build(otree._histogram(source.columns, values), target_rows=target_rows * share)
    with _timed(steps, "write"):
        counts = spark_otree.routed_counts(tree, values, share=share)
        pieces = [max(1, round(counts[path] / target_rows)) for path in tree.paths()]
        spark_otree.in_pieces(frame, tree, values, pieces=pieces).writeTo(name).append()
    with _timed(steps, "judge"):
        files = lake.files(name, source.columns)
        _judge(source, files, tree, values)
    return Rewritten(seconds=time.monotonic() - began, files=files, steps=steps)


def _share(source: Source) -> float:
    """How much of the rows the stage draws for a tree of as many files."""
    wanted = len(source.files) * otree.SAMPLE_ROWS_PER_FILE
    return min(1.0, min(max(wanted, otree.SAMPLE_ROWS.start), otree.SAMPLE_ROWS.stop) / source.rows)


def _judge(source: Source, files: Sequence[FileStats], tree: RegionTree, values: Sequence[ColumnValues]) -> bool:
    """What the stage asks before it publishes: is it better than what was there?"""
    histogram = otree._histogram(source.columns, values)
    judge = otree._Judge(
        columns=source.columns,
        workload=Workload.of(histogram, synthetic(histogram)),
        target_bytes=source.target_bytes,
        of_bytes=source.bytes,
    )
    before = judge.score(source.files, staged_bytes=source.bytes)
    return judge.score_of_regions(files, tree).better_than(before)


@contextmanager
def _timed(steps: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    steps[name] = time.monotonic() - began


def rewrite_data_files(lake: Lake, source: Source, *, order: str) -> Rewritten:
    """Iceberg's own rewrite of all files, with strategy sort by *order*, to files of the same size."""
    name = _copied(lake, source)
    # A writer rolls over by the size before compression, far too early for files as small as these: it shall not at all.
    sizes = {"target-file-size-bytes": source.target_bytes, "max-file-size-bytes": ROLL_OVER_BYTES}
    options = {"rewrite-all": "true"} | {option: str(size) for option, size in sizes.items()}
    listed = ", ".join(f"'{key}', '{value}'" for key, value in options.items())
    called = (
        f"CALL {CATALOG}.system.rewrite_data_files(table => '{name.removeprefix(CATALOG + '.')}', "
        f"strategy => 'sort', sort_order => '{order}', options => map({listed}))"
    )
    began = time.monotonic()
    lake.spark.sql(called).collect()
    return Rewritten(seconds=time.monotonic() - began, files=lake.files(name, source.columns), steps={})


def zorder(lake: Lake, source: Source) -> Rewritten:
    """Iceberg's rewrite along a Z-order curve."""
    return rewrite_data_files(lake, source, order=f"zorder({', '.join(c.name for c in source.columns)})")


def sort(lake: Lake, source: Source) -> Rewritten:
    """Iceberg's rewrite in the order of the columns as they are listed."""
    return rewrite_data_files(lake, source, order=", ".join(f"{c.name} ASC NULLS LAST" for c in source.columns))


def _copied(lake: Lake, source: Source) -> str:
    """A table with the rows of *source*; returns its name."""
    name = lake.like(source, {})
    lake.spark.table(source.name).writeTo(name).append()
    return name


REWRITES: Mapping[str, Callable[[Lake, Source], Rewritten]] = {
    "plain": plain,
    "ours": ours,
    "sort": sort,
    "zorder": zorder,
}
