"""A clustered rewrite beside a plain one and beside Iceberg's own, and what readers touch in the files of each.

One table of events in arrival order; every rewrite goes into a table of its own, in the same Spark.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame, SparkSession

from harness_pipelines.engines.spark import cluster
from harness_pipelines.engines.spark.view import Pins
from harness_pipelines.lakes.iceberg.read.for_engines import IcebergScans
from harness_pipelines.layout.files import FileStats
from harness_pipelines.layout.sampling import Sample, share_to_draw
from harness_pipelines_tests.bench import layout_peers
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_data import Dataset, Queries, events_3d, queries
from harness_pipelines_tests.bench.layout_files import boxes_of, rows_touched
from harness_pipelines_tests.bench.layout_lake import CATALOG, Lake, Source
from harness_pipelines_tests.bench.layout_peers import FileBoxes, file_boxes, geomean_ratio

ROWS, QUICK_ROWS = 2_000_000, 100_000
ROWS_PER_FILE, QUICK_ROWS_PER_FILE = 10_000, 2_000
WARM_ROWS = 20_000
TIMES, QUICK_TIMES = 3, 1
SEED = 1
RATE_GOAL, SPREAD_GOAL, LARGEST_GOAL = 0.5, 1.3, 1.5
ROLL_OVER_BYTES = 2**40  #: never
PEERS = ("zorder", "sort", "plain")


class _ByPath(Pins):
    """For tables that no ledger knows."""

    def load(self, spark: SparkSession, metadata: str) -> DataFrame:
        return spark.read.format("iceberg").load(metadata)


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
                assert made[name].better, "the stage would drop what it wrote"  # (the few rows of the warm-up may be)
                seconds[name].append(made[name].seconds)
    rates = {name: rows / statistics.median(took) for name, took in seconds.items()}
    for name, rate in rates.items():
        run.note(f"rewrites.{name}", rate, "rows/s")
        run.note(f"rewrites.{name}.files", len(made[name].files), "files")
        run.note(f"rewrites.{name}.bytes_to_arrival", made[name].bytes / source.bytes, "x")
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


# -- the rewrites -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """What a rewrite left, and how long it took."""

    seconds: float
    files: Sequence[FileStats]
    steps: Mapping[str, float]  #: parts of *seconds*, where it has some
    better: bool = True  #: False: the stage would have dropped it

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def plain(lake: Lake, source: Source) -> Rewritten:
    """Read and append, without a shuffle."""
    name = lake.like(source, {})
    began = time.monotonic()
    lake.spark.table(source.name).writeTo(name).append()
    return Rewritten(seconds=time.monotonic() - began, files=lake.files(name, source.columns), steps={})


def ours(lake: Lake, source: Source) -> Rewritten:
    """All that the otree stage does in a relayout of the whole view, from its first look to its last judgement.

    Only its commit to the ledger is left out; here Spark commits.
    """
    name = lake.like(source, {"write.parquet.row-group-size-bytes": str(max(source.target_bytes // 16, 2**20))})
    target_rows = source.rows * source.target_bytes / source.bytes
    steps: dict[str, float] = {}
    began = time.monotonic()
    pins = _ByPath(catalog="", options={}, scans=IcebergScans())
    frame = cluster.file_rows(lake.spark, source.metadata, source.files, source.columns, pins=pins)
    with _timed(steps, "sample"):
        share = share_to_draw(source.rows, target_rows=target_rows)
        sample = Sample(tuple(source.columns), tuple(cluster.sampled(frame, source.columns, share=share)), share)
    with _timed(steps, "tree"):
        tree = sample.tree(target_rows=target_rows)
    with _timed(steps, "write"):
        pieces = sample.files(tree, target_rows=target_rows)
        cluster.in_pieces(frame, tree, sample.values, pieces=pieces).writeTo(name).append()
    with _timed(steps, "judge"):
        files = lake.files(name, source.columns)
        judge = sample.judge(target_bytes=source.target_bytes, of_bytes=source.bytes)
        before = judge.score(source.files, staged_bytes=source.bytes)
        better = judge.score_of_regions(files, tree).better_than(before)
    return Rewritten(seconds=time.monotonic() - began, files=files, steps=steps, better=better)


@contextmanager
def _timed(steps: dict[str, float], name: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    steps[name] = time.monotonic() - began


def rewrite_data_files(lake: Lake, source: Source, *, order: str) -> Rewritten:
    """Iceberg's own rewrite of all files, with strategy sort by *order*, to files of the same size."""
    name = _copied(lake, source)
    # A writer rolls over by the size before compression, far too early for such small files: it shall not at all.
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
