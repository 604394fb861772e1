"""Rows that readers touch under our layout beside those under its peers, how even its files are, and the tree's size.

All in numpy: a layout says which file each row lies in, and what files have as bounds follows from that.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.tree import Node, RegionTree
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.layout_data import clusters_2d, queries
from harness_pipelines_tests.bench.layout_peers import (
    DATA,
    GOALS,
    ZORDER_GOAL,
    Comparison,
    compare,
    ours,
    peers,
    with_sample_layer,
)

ROWS, QUICK_ROWS = 5_000_000, 200_000
FILES = 500
SEED = 1
SPREAD_GOAL, LARGEST_GOAL = 1.3, 1.5  #: file sizes, p95 against p50; the largest against the target
SAMPLE, LAYERED = 0.01, "ours, sample layer"
SAMPLE_GOAL, LAYER_GOAL = (
    0.011,
    1.3,
)  #: share of the rows that a sample reads; rows touched against no layer
TREE_REGIONS, QUICK_TREE_REGIONS = 100_000, 10_000
TREE_BYTES_GOAL = 10_000_000  #: for `TREE_REGIONS`


def measure(run: Run) -> Sequence[Figure]:
    """Every data set under every layout of about `FILES` files, then the size of a large tree."""
    figures: list[Figure] = []
    for name in DATA:
        rows = run.size(ROWS, QUICK_ROWS)
        run.say(f"clustering: {rows:,} rows of {name} in {FILES} files, ours and its peers")
        found, sampled = _compared(name, rows=rows)
        _note_others(run, name, found)
        figures += [*_against_peers(name, found), *_sizes(name, found, files=FILES)]
        figures += _sample_layer(name, found, rows=sampled)
    regions = run.size(TREE_REGIONS, QUICK_TREE_REGIONS)
    run.say(f"clustering: a tree of {regions:,} regions")
    return [*figures, _tree_size(run, regions)]


def _compared(name: str, *, rows: int) -> tuple[Comparison, int]:
    """All layouts, and how many rows lie in the sample layer of the one that has it."""
    data = DATA[name](rows, SEED)
    classes = queries(data, SEED + 1)
    layered, first = with_sample_layer(data, FILES, share=SAMPLE, seed=SEED)
    layouts = {"ours": ours(data, FILES), LAYERED: layered} | peers(data, classes, files=FILES, seed=SEED)
    return compare(data, classes, layouts), int((layered >= first).sum())


def _sample_layer(name: str, found: Comparison, *, rows: int) -> list[Figure]:
    """What a sample reads, and what its layer costs the queries that want no sample."""
    read = Figure(
        figure=f"clustering.{name}.sample_reads", value=rows / found.rows, unit="of rows", goal=SAMPLE_GOAL, sense="<="
    )
    cost = found.ratio(LAYERED, "ours")
    return [
        read,
        Figure(figure=f"clustering.{name}.with_sample_layer", value=cost, unit="x", goal=LAYER_GOAL, sense="<="),
    ]


def _note_others(run: Run, name: str, found: Comparison) -> None:
    """Ours against the peers without a goal: over all classes, and for the two ends of what queries may be."""
    for peer in sorted(found.cells.keys() - GOALS.keys() - {"ours", LAYERED}):
        run.note(f"clustering.{name}.to_{_key(peer)}", found.ratio("ours", peer), "x")
        for of_class in ("box 1 %", "slab 1 %"):
            run.note(f"clustering.{name}.{_key(of_class)}_to_{_key(peer)}", found.ratio("ours", peer, of_class), "x")


def _against_peers(name: str, found: Comparison) -> Iterator[Figure]:
    """Rows in files that ours touches for each that the peer touches, over all classes of queries."""
    for peer, goal in GOALS.items():
        ratio = found.ratio("ours", peer)
        yield Figure(figure=f"clustering.{name}.to_{_key(peer)}", value=ratio, unit="x", goal=goal, sense="<=")
    if name == "events":
        mixed = found.ratio("ours", "iceberg zorder", "mixed")
        figure = "clustering.events.mixed_to_iceberg_zorder"
        yield Figure(figure=figure, value=mixed, unit="x", goal=ZORDER_GOAL, sense="<=")


def _sizes(name: str, found: Comparison, *, files: int) -> list[Figure]:
    """How even the files are, in rows. The target is what *files* equal files would hold."""
    spread, over_mean = found.spread["ours"]
    largest = over_mean * files / found.files["ours"]
    return [
        Figure(figure=f"clustering.{name}.file_p95_to_p50", value=spread, unit="x", goal=SPREAD_GOAL, sense="<="),
        Figure(figure=f"clustering.{name}.file_max_to_target", value=largest, unit="x", goal=LARGEST_GOAL, sense="<="),
    ]


def _key(text: str) -> str:
    """*text* as a part of a figure's name: ``box 1 %`` is ``box_1``."""
    return text.removesuffix(" %").replace(" ", "_")


# -- the tree -----------------------------------------------------------------------------------------------


def _tree_size(run: Run, regions: int) -> Figure:
    """Memory of a tree of *regions* as a process holds it that read it from the ledger."""
    text = _large_tree(regions).to_json()
    gc.collect()
    tracemalloc.start()
    tree = RegionTree.from_json(text)
    gc.collect()
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(tree) == regions
    run.note("clustering.tree_json", len(text) / 1e6, "MB")
    run.note("clustering.tree_peak_while_read", peak / 1e6, "MB")
    goal = TREE_BYTES_GOAL * regions / TREE_REGIONS
    return Figure(figure="clustering.tree_in_memory", value=held / 1e6, unit="MB", goal=goal / 1e6, sense="<=")


def _large_tree(regions: int) -> RegionTree:
    """A tree of *regions* cut in turn at medians of `clusters_2d`: `build` would take minutes for as many."""
    data = clusters_2d(4 * regions, SEED)
    columns = [IndexedColumn(name, of) for name, of in zip(data.names, data.types, strict=True)]
    nodes: list[Node] = []
    waiting = [(np.stack(data.columns), regions, 0)]
    while waiting:
        points, count, axis = waiting.pop()
        if count == 1:
            nodes.append(None)
            continue
        low, high, cut = _halved(points, axis, share=(count // 2) / count)
        nodes.append((axis, At(cut)))
        turn = (axis + 1) % len(columns)
        waiting += [(high, count - count // 2, turn), (low, count // 2, turn)]
    return RegionTree.of(columns, nodes)


def _halved(
    points: npt.NDArray[np.float64], axis: int, *, share: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], float]:
    """*points* (d, n) of distinct values on both sides of the cut below which *share* of them lie."""
    cut = float(np.partition(points[axis], place := int(share * points.shape[1]))[place])
    low = points[axis] < cut
    return points[:, low], points[:, ~low], cut
