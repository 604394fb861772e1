"""The OTree as Qbeast published it, exact and in memory: the peer that our region tree has to beat.

Sources: qbeast-spark's docs (OTreeAlgorithm.md, QbeastFormat.md, AdvancedConfiguration.md) and the behaviour that its
tests state (CubeIdTest, PointWeightIndexerTest, CDFNumericQuantilesTransformationTest, RollupTest); no code of it is
copied. Columns are mapped to [0, 1]; a cube halves all columns at once into 2^d children; every row has a random
32-bit weight; a cube keeps the rows with the smallest weights up to its desired size, the rest flows to the children.
A query reads each cube on the path whose box it meets: the payload of inner cubes is read again and again.

What is kinder here than in the published code: cube weights are exact (there they are estimated per Spark partition),
weights are independent (there they are a hash of the indexed columns, equal for equal keys), and a file has to pass
two tests to be read: a box of its cubes meets the query, and so do its own minima and maxima.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from harness_pipelines_tests.bench.layout_data import Array, Dataset, Floats, Queries

Path = tuple[int, ...]  #: of a cube: the octants from the root; the first column is the highest bit of an octant
Flavour = Literal["linear", "quantile"]

QUANTILES = 50  #: Qbeast's default
WEIGHT_MIN, WEIGHT_MAX = -(2**31), 2**31 - 1
_CALIBRATION_ROWS = 100_000
_OFF_MAX = 0.02  #: how far the number of files may be off before the cube size is corrected
_TREES_MAX = 3
_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class Transform(Protocol):
    """Maps a column's values to [0, 1], never falling; values outside of the revision may lie outside of it."""

    def __call__(self, values: Array) -> Floats: ...


@dataclass(frozen=True, slots=True)
class Linear:
    """The default for numbers: the revision's minimum is 0, its maximum 1; a column of one value is 0."""

    least: float
    greatest: float

    def __call__(self, values: Array) -> Floats:
        width = self.greatest - self.least
        scaled: Floats = (values - self.least) * (1 / width if width else 0.0)
        return scaled


@dataclass(frozen=True, slots=True)
class Quantile:
    """``column:quantiles``: the place among the points, straight between two of them, cut off at both ends."""

    points: Floats  #: at least two, rising

    def __call__(self, values: Array) -> Floats:
        places = np.linspace(0, 1, len(self.points))
        found: Floats = np.interp(values, self.points, places)
        return found


@dataclass(frozen=True, slots=True)
class Cubes:
    """The cubes of one tree, parents before children, and the cube that keeps each row."""

    of_row: npt.NDArray[np.int32]  #: (n,)
    parent: npt.NDArray[np.int64]  #: (c,); -1 at the root
    octant: npt.NDArray[np.int64]  #: (c,)
    depth: npt.NDArray[np.int64]  #: (c,); 0 at the root
    count: npt.NDArray[np.int64]  #: (c,) rows kept
    max_weight: Floats  #: (c,) normalized: the share of the rows down to here; size / count where the cube is not full
    low: Floats  #: (c, d)

    @property
    def high(self) -> Floats:
        """(c, d): excluded, but for 1."""
        return self.low + 0.5 ** self.depth[:, None]

    def paths(self) -> list[Path]:
        """(c,) as text see `cube_id`."""
        found: list[Path] = []
        for parent, octant in zip(self.parent.tolist(), self.octant.tolist(), strict=True):
            found.append(() if parent < 0 else (*found[parent], octant))
        return found


@dataclass(frozen=True, slots=True)
class OTree:
    """A table laid out: one file per cube, or per group of cubes that were rolled up together."""

    cubes: Cubes
    file_of_cube: npt.NDArray[np.int64]  #: (c,)
    transforms: tuple[Transform, ...]

    @property
    def file_of_row(self) -> npt.NDArray[np.int64]:
        return self.file_of_cube[self.cubes.of_row]

    @property
    def files(self) -> int:
        return int(self.file_of_cube.max()) + 1

    def meets(self, queries: Queries) -> npt.NDArray[np.bool_]:
        """(q, files): whether the box of any cube in the file meets the query."""
        meets = np.ones((len(queries), len(self.cubes.count)), bool)
        high = self.cubes.high
        for c, transform in enumerate(self.transforms):
            low_q, high_q = (_finite(transform, bounds[:, c]) for bounds in (queries.low, queries.high))
            below = (low_q[:, None] < high[None, :, c]) | (high[None, :, c] >= 1.0)
            meets &= below & (high_q[:, None] >= self.cubes.low[None, :, c])
        found = np.zeros((len(queries), self.files), bool)
        for cube, file in enumerate(self.file_of_cube.tolist()):
            found[:, file] |= meets[:, cube]
        return found


def otree(data: Dataset, cube_rows: int, seed: int, *, flavour: Flavour = "linear", rolled_up: bool = True) -> OTree:
    """*data* as one revision with desired cube size *cube_rows*.

    *rolled_up* writes small cubes into the file of a sibling or of the parent, as optimize() and writes have done
    since format 1.0; without it each cube is a file.
    """
    transforms = tuple(_transform(column, flavour) for column in data.columns)
    points = np.stack([transform(column) for transform, column in zip(transforms, data.columns, strict=True)])
    rng = np.random.default_rng(seed)
    weights = rng.integers(WEIGHT_MIN, WEIGHT_MAX, data.rows, dtype=np.int32, endpoint=True)
    cubes = grow(points, weights, size=cube_rows)
    paths = cubes.paths()
    counts = dict(zip(paths, cubes.count.tolist(), strict=True))
    group = roll_up(counts, limit=cube_rows) if rolled_up else {path: path for path in paths}
    number = {path: at for at, path in enumerate(sorted(set(group.values())))}
    return OTree(cubes, np.array([number[group[path]] for path in paths]), transforms)


def otree_of_files(
    data: Dataset, files: int, seed: int, *, flavour: Flavour = "linear", rolled_up: bool = True
) -> OTree:
    """The tree whose cube size gives about *files* files.

    The size is found on a sample of the rows and put right on all of them. Where cubes of one level fill up together
    the number of files jumps from size to size, and the nearest tree found is returned.
    """
    rng = np.random.default_rng(seed)
    rows = min(data.rows, _CALIBRATION_ROWS)
    sample = data.take(np.sort(rng.choice(data.rows, rows, replace=False)))
    plant = functools.partial(otree, seed=seed, flavour=flavour, rolled_up=rolled_up)
    low, high, nearest = 1, rows, (np.inf, rows)
    while low <= high:
        size = (low + high) // 2
        found = plant(sample, size).files
        nearest = min(nearest, (abs(found - files), size))
        low, high = (size + 1, high) if found > files else (low, size - 1)
    size = max(1, round(nearest[1] * data.rows / rows))
    trees = [plant(data, size)]
    while abs(trees[-1].files / files - 1) > _OFF_MAX and len(trees) < _TREES_MAX:
        size = max(1, round(size * trees[-1].files / files))
        trees.append(plant(data, size))
    return min(trees, key=lambda tree: abs(tree.files - files))


def grow(points: Floats, weights: npt.NDArray[np.int32], *, size: int) -> Cubes:
    """Cubes over *points* (d, n) in [0, 1], level by level; each keeps its *size* rows of the smallest weights."""
    order = np.argsort(weights, kind="stable")
    row, at = order, points[:, order]
    cube, levels = np.zeros(len(order), np.int64), [_Level.root(len(points))]
    of_row = np.zeros(len(order), np.int32)
    first = 0  # number of the level's first cube
    while len(row):
        level = levels[-1]
        by_cube = np.argsort(cube, kind="stable")  # weights stay in order within a cube
        row, cube, at = row[by_cube], cube[by_cube], at[:, by_cube]
        total = np.bincount(cube, minlength=len(level.parent))
        start = np.cumsum(total) - total
        level.fill(np.minimum(total, size), weights[row[start + np.minimum(total, size) - 1]], size)
        kept = np.arange(len(row)) - start[cube] < size
        of_row[row[kept]] = first + cube[kept]
        row, cube, at = row[~kept], cube[~kept], at[:, ~kept] * 2
        high = at >= 1
        at -= high
        octant = (high << np.arange(len(points))[::-1, None]).sum(axis=0)
        keys, child = np.unique((cube << len(points)) + octant, return_inverse=True)
        if len(keys):
            levels.append(level.children(keys, first))
        first, cube = first + len(level.parent), child
    return _joined(levels, of_row)


def roll_up(counts: Mapping[Path, int], *, limit: int) -> dict[Path, Path]:
    """For each cube the cube into whose file it goes: from the deepest up and from the first sibling to the last, a
    group below *limit* rows joins the next sibling, and after the last sibling the parent.
    """
    groups = {path: ([path], count) for path, count in counts.items()}
    queue = [(-len(path), path) for path in groups]
    heapq.heapify(queue)
    while queue:
        _, path = heapq.heappop(queue)
        members, count = groups[path]
        if count >= limit or not path:
            continue
        del groups[path]
        sibling = bool(queue) and len(queue[0][1]) == len(path) and queue[0][1][:-1] == path[:-1]
        goal = queue[0][1] if sibling else path[:-1]
        if goal not in groups:
            groups[goal] = ([], 0)
            heapq.heappush(queue, (-len(goal), goal))
        there, size = groups[goal]
        groups[goal] = (there + members, size + count)
    return {member: path for path, (members, _) in groups.items() for member in members}


def cube_id(path: Path, dimensions: int) -> str:
    """The cube's name in Qbeast's metadata: per level the octant's bits, six to a symbol, filled up with zeros."""
    text = []
    for octant in path:
        bits = format(octant, f"0{dimensions}b")
        text += [_SYMBOLS[int(bits[at : at + 6].ljust(6, "0"), 2)] for at in range(0, dimensions, 6)]
    return "".join(text)


def fraction(weight: int) -> float:
    """Of all weights the share up to *weight*."""
    return (weight - WEIGHT_MIN) / (WEIGHT_MAX - WEIGHT_MIN)


@dataclass(slots=True)
class _Level:
    """The cubes of one depth while the tree grows."""

    depth: int
    parent: npt.NDArray[np.int64]
    octant: npt.NDArray[np.int64]
    low: Floats
    count: npt.NDArray[np.int64]
    max_weight: Floats

    @classmethod
    def root(cls, dimensions: int) -> _Level:
        none = np.array([-1])
        return cls(0, none, none + 1, np.zeros((1, dimensions)), none + 1, np.ones(1))

    def children(self, keys: npt.NDArray[np.int64], first: int) -> _Level:
        dimensions = self.low.shape[1]
        local, octant = keys >> dimensions, keys & (1 << dimensions) - 1
        bits = octant[:, None] >> np.arange(dimensions)[::-1] & 1
        low = self.low[local] + bits * 0.5 ** (self.depth + 1)
        return _Level(self.depth + 1, first + local, octant, low, np.zeros(len(keys), np.int64), np.ones(len(keys)))

    def fill(self, count: npt.NDArray[np.int64], last: npt.NDArray[np.int32], size: int) -> None:
        self.count = count
        full = (last - float(WEIGHT_MIN)) / (WEIGHT_MAX - WEIGHT_MIN)
        self.max_weight = np.where(count == size, full, size / count)


def _joined(levels: Sequence[_Level], of_row: npt.NDArray[np.int32]) -> Cubes:
    return Cubes(
        of_row=of_row,
        parent=np.concatenate([level.parent for level in levels]),
        octant=np.concatenate([level.octant for level in levels]),
        depth=np.concatenate([np.full(len(level.parent), level.depth) for level in levels]),
        count=np.concatenate([level.count for level in levels]),
        max_weight=np.concatenate([level.max_weight for level in levels]),
        low=np.concatenate([level.low for level in levels]),
    )


def _transform(column: Array, flavour: Flavour) -> Transform:
    if flavour == "linear":
        return Linear(float(column.min()), float(column.max()))
    probabilities = np.linspace(0, 1, QUANTILES + 1)
    points = np.unique(np.quantile(column, probabilities, method="inverted_cdf").astype(np.float64))
    return Quantile(points) if len(points) > 1 else Linear(float(points[0]), float(points[0]))


def _finite(transform: Transform, bounds: Floats) -> Floats:
    """Open sides stay open; everything else goes through *transform*."""
    finite = np.isfinite(bounds)
    return np.where(finite, transform(np.where(finite, bounds, 0.0)), bounds)
