"""Layouts that ours is compared with, what a reader touches in each, and the table of the comparison.

A layout is an int array `file_of_row` (n,). A file is touched by a query when the tight minima and maxima of its rows
meet the query's box; what counts is the rows in touched files, as the geometric mean over the queries of a class.

    python -m harness_pipelines_tests.bench.layout_peers --rows 500000
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.build import build
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.histogram import CellHistogram, edges_of
from harness_pipelines_tests.bench.layout_data import (
    Array,
    Dataset,
    Floats,
    Queries,
    clusters_2d,
    events_3d,
    lineitem,
    queries,
)
from harness_pipelines_tests.bench.layout_otree import otree_of_files

Files = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
#: How a k-d node picks its column: ranks (d, m) of its rows, how many of them go low, depth of the node.
Rule = Callable[[npt.NDArray[np.int32], int, int], int]

DATA = {"clusters": clusters_2d, "events": events_3d, "lineitem": lineitem}

#: Rows that ours may read for each row that the peer reads, over all classes of queries.
GOALS = {
    "otree linear": 0.75,
    "otree linear rolled up": 0.75,
    "otree quantile": 0.75,
    "otree quantile rolled up": 0.75,
    "hilbert": 0.95,
    "kd": 1.10,
}
ZORDER_GOAL = 0.25  #: the same for mixed queries on events
CELLS = 1_000_000  #: of the grid that ours is built on: what a driver takes without effort

_QUERY_BLOCK = 256  #: queries matched at once: bounds memory for many files
_CANONICAL_NAN = np.int64(0x7FF8000000000000)
_SIGN = np.int64(-(1 << 63))
_RULES_ROWS = 500_000  #: on so many rows the rules of the k-d split are tried
_WHOLE = 1 << 30  #: ranks of a column lie in [0, _WHOLE)
_SELECTIVITIES = (0.01, 0.05, 0.10)  #: of the boxes that the probes rule expects


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """*file_of_row*, and what else than minima and maxima a reader of it has to prune files by."""

    file_of_row: Files
    meets: Callable[[Queries], Bools] | None = None  #: (q, files): the files that may hold rows of a query


@dataclass(frozen=True, slots=True)
class FileBoxes:
    """Tight bounds of each file's rows; a file without rows has none and meets nothing."""

    low: Floats  #: (f, d)
    high: Floats  #: (f, d)
    rows: npt.NDArray[np.int64]  #: (f,)


def arrival(data: Dataset, rows_per_file: int) -> Files:
    """Files as they were appended."""
    return np.arange(data.rows) // rows_per_file


def sort(data: Dataset, rows_per_file: int) -> Files:
    """Iceberg's rewrite_data_files with a sort order on the columns as listed."""
    return _cut(np.lexsort(data.columns[::-1]), rows_per_file)


def zorder(data: Dataset, rows_per_file: int) -> Files:
    """Iceberg's rewrite_data_files with ``zorder(columns)``, cut into files of equal rows."""
    return _cut(np.lexsort(zorder_words(data)[::-1]), rows_per_file)


def zorder_words(data: Dataset) -> list[npt.NDArray[np.uint64]]:
    """Z-values as big-endian words, the highest first, without the words that are equal in all rows.

    Behaviour of Iceberg 1.10's ZOrderByteUtils and SparkZOrderUDF: each column becomes 8 bytes that order as its
    values do, and the columns take turns bit by bit from the highest, the first column first. A timestamptz counts
    in seconds, a date in days. Decimals are refused there and taken as unscaled longs here.
    """
    images = [_ordered_image(column, of) for column, of in zip(data.columns, data.types, strict=True)]
    width = 8 * len(images)  # bits of the Z-value per byte of a column
    spread = _spread_table(len(images))
    per_word = 64 // width
    words = []
    for first in range(0, 8, per_word):
        word = np.zeros(data.rows, np.uint64)
        for byte in range(first, min(first + per_word, 8)):
            word <<= np.uint64(width)
            for place, image in enumerate(images):
                word |= spread[image >> np.uint64(56 - 8 * byte) & np.uint64(0xFF)] >> np.uint64(place)
        if len(word) and (word != word[0]).any():
            words.append(word)
    return words or [np.zeros(data.rows, np.uint64)]


def hilbert(data: Dataset, rows_per_file: int, *, quantiles: int = 1_000) -> Files:
    """Rows along a Hilbert curve over the cells of *quantiles* quantiles per column; rows of a cell as they came."""
    bits = max(1, (quantiles - 1).bit_length())
    probabilities = np.arange(1, quantiles) / quantiles
    cells = []
    for column in data.columns:
        edges = np.quantile(column, probabilities, method="inverted_cdf")
        cells.append(np.searchsorted(edges, column, side="right"))
    return _cut(np.argsort(hilbert_rank(cells, bits), kind="stable"), rows_per_file)


def hilbert_rank(cells: Sequence[Array], bits: int) -> npt.NDArray[np.int64]:
    """Place of each cell on the Hilbert curve of ``2**bits`` cells a side; bits x columns <= 62.

    Method: J. Skilling, "Programming the Hilbert curve", AIP Conference Proceedings 707 (2004).
    """
    x = np.array(cells, dtype=np.int64)
    for bit in range(bits - 1, 0, -1):
        below = (1 << bit) - 1
        for c in range(len(x)):
            flips = (x[c] >> bit & 1).astype(bool)
            swap = np.where(flips, 0, (x[0] ^ x[c]) & below)
            x[0] ^= np.where(flips, below, swap)
            x[c] ^= swap
    x = np.bitwise_xor.accumulate(x, axis=0)
    turn = np.zeros_like(x[0])
    for bit in range(bits - 1, 0, -1):
        turn ^= np.where(x[-1] >> bit & 1, (1 << bit) - 1, 0)
    rank: npt.NDArray[np.int64] = np.zeros_like(x[0])
    for bit in range(bits - 1, -1, -1):
        for axis in x:
            rank = rank << 1 | (axis ^ turn) >> bit & 1
    return rank


def kd(data: Dataset, files: int, *, judges: Sequence[Queries] = ()) -> Files:
    """An unconstrained k-d split into *files* files of equal rows (+- 1), cut at exact medians even between equal keys.

    A node for k files gives ``k // 2`` of them to the low side. The column is picked by one rule for the whole tree:
    the widest extent in ranks; the widest between the 5th and the 95th percentile; the fewest expected probes of the
    two halves; the columns in turn. With *judges* it is the rule that touches the fewest rows (of a sample, where the
    table is large), without them the probes rule.
    """
    return _split(_ranks(data), files, _best_rule(data, files, judges) if judges else _fewest_probes)


def _best_rule(data: Dataset, files: int, judges: Sequence[Queries]) -> Rule:
    sample = data.take(slice(None, None, -(-data.rows // _RULES_ROWS)))
    ranks = _ranks(sample)

    def cost(rule: Rule) -> float:
        layout = _split(ranks, files, rule)
        return float(np.sum([np.log(geomean(touched_rows(sample, layout, one))) for one in judges]))

    return min((_fewest_probes, _widest, _widest_middle, _in_turn), key=cost)


def file_boxes(data: Dataset, file_of_row: Files) -> FileBoxes:
    """Minima and maxima per file, as a manifest has them."""
    rows = np.bincount(file_of_row)
    order = np.argsort(file_of_row, kind="stable")
    filled = np.flatnonzero(rows)
    starts = (np.cumsum(rows) - rows)[filled]
    shape = (len(rows), len(data.columns))
    low, high = np.full(shape, np.nan), np.full(shape, np.nan)
    for c, column in enumerate(data.columns):
        in_order = column[order]
        low[filled, c] = np.minimum.reduceat(in_order, starts)
        high[filled, c] = np.maximum.reduceat(in_order, starts)
    return FileBoxes(low, high, rows)


def touched(boxes: FileBoxes, queries: Queries) -> Bools:
    """(q, f): whether the file's box meets the query's; both are closed."""
    found = np.ones((len(queries), len(boxes.rows)), bool)
    for c in range(boxes.low.shape[1]):
        found &= queries.low[:, None, c] <= boxes.high[None, :, c]
        found &= queries.high[:, None, c] >= boxes.low[None, :, c]
    return found


def touched_rows(data: Dataset, file_of_row: Files | Layout, queries: Queries) -> npt.NDArray[np.int64]:
    """(q,): rows in the files that each query touches."""
    layout = file_of_row if isinstance(file_of_row, Layout) else Layout(file_of_row=file_of_row)
    return _rows_read(file_boxes(data, layout.file_of_row), layout, queries)


def geomean(values: npt.ArrayLike) -> float:
    """Geometric mean; a query that touches nothing counts as one row."""
    return float(np.exp(np.log(np.maximum(values, 1)).mean()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows in touched files (geometric mean) per layout and class of queries, and how even the files are."""

    data: str
    rows: int
    cells: Mapping[str, Mapping[str, float]]  #: layout -> class -> rows
    files: Mapping[str, int]
    spread: Mapping[str, tuple[float, float]]  #: p95 / p50 and max / mean of the rows per file

    def ratio(self, one: str, other: str, of_class: str | None = None) -> float:
        """How many rows *one* reads for each that *other* reads; over all classes by their geometric mean."""
        classes = [of_class] if of_class else list(self.cells[one])
        return geomean_ratio([self.cells[one][c] / self.cells[other][c] for c in classes])

    def text(self) -> str:
        classes = list(next(iter(self.cells.values())))
        lines = [f"{self.data}, {self.rows:,} rows: rows in touched files, geometric mean"]
        lines.append(f"{'layout':24}{'files':>7}{'p95/p50':>9}{'max/mean':>9}" + "".join(f"{c:>12}" for c in classes))
        for name, cells in self.cells.items():
            even, most = self.spread[name]
            numbers = "".join(f"{cells[c]:>12,.0f}" for c in classes)
            lines.append(f"{name:24}{self.files[name]:>7}{even:>9.2f}{most:>9.2f}{numbers}")
        return "\n".join(lines)


def geomean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.log(ratios).mean()))


def compare(data: Dataset, classes: Mapping[str, Queries], layouts: Mapping[str, Files | Layout]) -> Comparison:
    """Every layout under every class of queries; further layouts are further entries of *layouts*."""
    cells: dict[str, dict[str, float]] = {}
    files, spread = {}, {}
    for name, given in layouts.items():
        layout = given if isinstance(given, Layout) else Layout(file_of_row=given)
        boxes = file_boxes(data, layout.file_of_row)
        cells[name] = {of: geomean(_rows_read(boxes, layout, one)) for of, one in classes.items()}
        filled = boxes.rows[boxes.rows > 0]
        p50, p95 = np.percentile(filled, [50, 95])
        files[name], spread[name] = len(filled), (float(p95 / p50), float(filled.max() / filled.mean()))
    return Comparison(data=data.name, rows=data.rows, cells=cells, files=files, spread=spread)


def peers(data: Dataset, classes: Mapping[str, Queries], *, files: int, seed: int) -> dict[str, Files | Layout]:
    """All layouts of the comparison but ours, each with about *files* files."""
    rows_per_file = -(-data.rows // files)
    found: dict[str, Files | Layout] = {
        "arrival": arrival(data, rows_per_file),
        "iceberg sort": sort(data, rows_per_file),
        "iceberg zorder": zorder(data, rows_per_file),
        "hilbert": hilbert(data, rows_per_file),
        "kd": kd(data, files, judges=list(classes.values())),
    }
    for flavour in ("linear", "quantile"):
        for rolled_up in (False, True):
            tree = otree_of_files(data, files, seed, flavour=flavour, rolled_up=rolled_up)
            name = f"otree {flavour}{' rolled up' if rolled_up else ''}"
            found[name] = Layout(file_of_row=tree.file_of_row, meets=tree.meets)
    return found


def against_goals(found: Comparison) -> list[str]:
    """A line per peer: rows that ours reads for each row of the peer, per class and over all of them."""
    lines = []
    for peer, goal in GOALS.items():
        ratios = "".join(f"{found.ratio('ours', peer, c):>12.2f}" for c in found.cells[peer])
        every = found.ratio("ours", peer)
        lines.append(f"{'ours / ' + peer:49}{ratios}   all {every:.2f}, goal {goal:.2f}: {_verdict(every, goal)}")
    if found.data == "events 3-D":
        mixed = found.ratio("ours", "iceberg zorder", "mixed")
        lines.append(
            f"ours / iceberg zorder, mixed: {mixed:.2f}, goal {ZORDER_GOAL:.2f}: {_verdict(mixed, ZORDER_GOAL)}"
        )
    return lines


def _verdict(ratio: float, goal: float) -> str:
    return "met" if ratio <= goal else "missed"


def ours(data: Dataset, files: int, *, cells: int = CELLS) -> Files:
    """The region tree over a grid of about *cells* cells, as the otree stage builds it from counts."""
    columns = [IndexedColumn(name, of) for name, of in zip(data.names, data.types, strict=True)]
    lines = round(cells ** (1 / len(columns)))
    edges = []
    for column, values in zip(columns, data.columns, strict=True):
        quantiles = np.quantile(values, np.arange(1, lines) / lines, method="inverted_cdf")
        edges.append(edges_of(column, quantiles.tolist()))
    rows = [ColumnValues(column) for column in data.columns]
    histogram = CellHistogram.count(columns, edges, rows)
    return build(histogram, target_rows=data.rows / files).route(rows).astype(np.int64)


def with_sample_layer(data: Dataset, files: int, *, share: float, seed: int) -> tuple[Files, int]:
    """`ours` with *share* of the rows in a tree of their own; also the number of the layer's first file."""
    inside = np.random.default_rng(seed).random(data.rows) < share
    found = np.empty(data.rows, np.int64)
    found[~inside] = ours(data.take(~inside), files)
    first = int(found[~inside].max()) + 1
    found[inside] = first + ours(data.take(inside), max(1, round(files * share)))
    return found, first


def _rows_read(boxes: FileBoxes, layout: Layout, queries: Queries) -> npt.NDArray[np.int64]:
    found = np.empty(len(queries), np.int64)
    for first in range(0, len(queries), _QUERY_BLOCK):
        block = slice(first, first + _QUERY_BLOCK)
        some = Queries(queries.low[block], queries.high[block])
        reads = touched(boxes, some)
        if layout.meets is not None:
            reads &= layout.meets(some)
        found[block] = reads @ boxes.rows
    return found


def _cut(order: Array, rows_per_file: int) -> Files:
    file_of_row = np.empty(len(order), np.int64)
    file_of_row[order] = np.arange(len(order)) // rows_per_file
    return file_of_row


def _ordered_image(column: Array, of_type: str) -> npt.NDArray[np.uint64]:
    """The 8 bytes of a column as a big-endian number.

    A double's low 32 bits are mixed with its high ones, as in Iceberg, which shifts the sign in by 31 places instead
    of 63: positive values keep their order, negative ones keep it down to 20 bits of their mantissa.
    """
    if column.dtype.kind == "f":
        doubles = column.astype(np.float64)
        bits = np.where(np.isnan(doubles), _CANONICAL_NAN, doubles.view(np.int64))
        ordered: npt.NDArray[np.int64] = bits ^ (bits >> 31 | _SIGN)
        return ordered.view(np.uint64)
    longs = column.astype(np.int64)
    counted = longs // 1_000_000 if of_type == "timestamptz" else longs
    return (counted ^ _SIGN).view(np.uint64)


@functools.cache
def _spread_table(columns: int) -> npt.NDArray[np.uint64]:
    """(256,): the bits of a byte, each followed by ``columns - 1`` zeros."""
    byte = np.arange(256, dtype=np.uint64)
    table = np.zeros(256, np.uint64)
    for bit in range(8):
        table |= (byte >> np.uint64(bit) & np.uint64(1)) << np.uint64(bit * columns + columns - 1)
    return table


def _ranks(data: Dataset) -> npt.NDArray[np.int32]:
    return np.stack([_unique_ranks(column) for column in data.columns])


def _unique_ranks(column: Array) -> npt.NDArray[np.int32]:
    """Evenly spaced ranks; equal values differ in order of arrival."""
    ranks = np.empty(len(column), np.int32)
    ranks[np.argsort(column, kind="stable")] = np.arange(len(column), dtype=np.int32) * (_WHOLE // len(column))
    return ranks


def _split(ranks: npt.NDArray[np.int32], files: int, rule: Rule) -> Files:
    file_of_row = np.empty(ranks.shape[1], np.int64)
    nodes = [(np.arange(ranks.shape[1], dtype=np.int32), 0, min(files, max(1, ranks.shape[1])), 0)]
    while nodes:
        rows, first, count, depth = nodes.pop()
        if count == 1:
            file_of_row[rows] = first
            continue
        low = len(rows) * (count // 2) // count
        here = ranks[:, rows]
        order = np.argpartition(here[rule(here, low, depth)], low)
        nodes.append((rows[order[:low]], first, count // 2, depth + 1))
        nodes.append((rows[order[low:]], first + count // 2, count - count // 2, depth + 1))
    return file_of_row


def _widest(here: npt.NDArray[np.int32], low: int, depth: int) -> int:
    return int(np.argmax(np.ptp(here, axis=1)))


def _widest_middle(here: npt.NDArray[np.int32], low: int, depth: int) -> int:
    fifth, last = here.shape[1] // 20, here.shape[1] - 1 - here.shape[1] // 20
    ends = np.partition(here, (fifth, last), axis=1)
    return int(np.argmax(ends[:, last] - ends[:, fifth]))


def _in_turn(here: npt.NDArray[np.int32], low: int, depth: int) -> int:
    return depth % len(here)


def _fewest_probes(here: npt.NDArray[np.int32], low: int, depth: int) -> int:
    costs = []
    for axis in here:
        order = np.argpartition(axis, low)
        halves = (here[:, order[:low]], here[:, order[low:]])
        costs.append(sum(half.shape[1] * _probes(np.ptp(half, axis=1)) for half in halves))
    return int(np.argmin(costs))


def _probes(extents: Array) -> float:
    """How likely a box of these extents is met by a query of each class, were values uniform in rank space."""
    sides = extents / _WHOLE
    boxes = [np.prod(np.minimum(1.0, sides + share ** (1 / len(sides)))) for share in _SELECTIVITIES]
    return float(np.mean([*boxes, np.mean(sides + _SELECTIVITIES[0])]))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table of each data set, and how ours stands to the peers and to the goals."""
    parser = argparse.ArgumentParser(description="Rows that queries read under each layout.")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", choices=DATA, action="append", help="repeat for several; default: all")
    given = parser.parse_args(argv)
    for name in given.data or DATA:
        data = DATA[name](given.rows, given.seed)
        classes = queries(data, given.seed + 1)
        layouts = {"ours": ours(data, given.files)} | peers(data, classes, files=given.files, seed=given.seed)
        found = compare(data, classes, layouts)
        print(found.text(), *against_goals(found), sep="\n", end="\n\n", flush=True)


if __name__ == "__main__":
    main()
