"""A persistent tree of disjoint boxes ("regions") that cover all of value space; rows live in its leaves only.

An inner node cuts its box on one column (`boxes.At`, `boxes.Slab`). Outer sides are open, so no value is ever
outside. A region is named by its path, the text of '0' (low) and '1' (high) from the root, '' being the root: it stays
what it is when others are split or collapsed.

Ideas: the k-d tree (Bentley 1975) and the OTree's index that lives on from write to write (Qbeast), without rows in
inner nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.layout.boxes import At, Box, Cut, Slab, Span
from harness_pipelines.layout.columns import (
    ColumnNotIndexable,
    ColumnValues,
    CutRefused,
    IndexedColumn,
    ShapesDiffer,
    check_columns,
    codes,
)

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec
    from harness_pipelines.spec.types import Type

FORMAT = 1
LEAF = 255
Node = tuple[int, Cut] | None  #: (column, cut), or None for a leaf

# The sample layer: a hash of the coordinate chooses rows that lie in separate files, and a sample reads no others. A
# column of the batch view marks them, and the first cut of the tree is on it: the layer has regions of the usual file
# size, and Iceberg's bounds lead every engine to them. A query of values reads both sides.
LAYER = IndexedColumn("_sample", "boolean")  #: always the first column where there is a layer
SIDES = ("0", "1")  #: paths of the other rows and of the layer


class RegionUnknown(HarnessError):
    """The path leads to no region of this tree, because the tree changed meanwhile."""

    recovery = Recovery.REFRESH


class TreeBroken(HarnessError):
    """A stored tree that cannot be read. It can be rebuilt from the files of the batch view."""

    way_on = "`harness recluster TABLE`"


@dataclass(frozen=True, slots=True)
class Region:
    """A leaf. An *unsplittable* one holds equal keys only: however many, its rows go to files of bounded size there."""

    path: str
    box: Box
    unsplittable: bool


@dataclass(frozen=True, slots=True)
class RegionTree:
    """Nodes in preorder (a node, its low side, its high side): some 35 bytes per region. Equal trees are equal values.

    Raises: TreeBroken, where the nodes are no tree.
    """

    columns: tuple[IndexedColumn, ...]
    axes: bytes  #: per node the column that it cuts, LEAF for a leaf
    cuts: tuple[Cut | None, ...]  #: per node
    _sizes: npt.NDArray[np.int32] = field(init=False, repr=False, compare=False)  # nodes below and including each

    def __post_init__(self) -> None:
        object.__setattr__(self, "_sizes", _subtree_sizes(self.axes))
        if len(self.cuts) != len(self.axes) or any(a != LEAF and a >= len(self.columns) for a in set(self.axes)):
            raise TreeBroken(
                f"expected one cut per node on one of {len(self.columns)} columns; rebuild it from the files"
            )

    @classmethod
    def single(cls, columns: Sequence[IndexedColumn]) -> RegionTree:
        """One region that holds everything. Raises: ColumnNotIndexable."""
        return cls.of(columns, [None])

    @classmethod
    def of(cls, columns: Sequence[IndexedColumn], nodes: Sequence[Node]) -> RegionTree:
        """From nodes in preorder. Raises: ColumnNotIndexable, TreeBroken."""
        axes = bytes(LEAF if node is None else node[0] for node in nodes)
        return cls(check_columns(columns), axes, tuple(None if node is None else node[1] for node in nodes))

    def __len__(self) -> int:
        """How many regions."""
        return (len(self.axes) + 1) // 2

    def nodes(self) -> list[Node]:
        """In preorder."""
        return [None if cut is None else (axis, cut) for axis, cut in zip(self.axes, self.cuts, strict=True)]

    def regions(self) -> list[Region]:
        """In the order of `route`'s indices. Raises: CutRefused, where a cut leaves a side without values."""
        return [Region(path, box, box.is_single(self.columns)) for path, box, node in self._walk() if node is None]

    def paths(self) -> list[str]:
        """Of the regions, in the order of `route`'s indices."""
        found, open_paths = [], [""]
        for axis in self.axes:
            path = open_paths.pop()
            if axis == LEAF:
                found.append(path)
            else:
                open_paths += [path + "1", path + "0"]
        return found

    def region(self, path: str) -> Region:
        """Raises: RegionUnknown."""
        box = self._everything
        for axis, cut, step in self._steps(path):
            box = box.divided(self.columns, axis, cut)[int(step)]
        if self.axes[self._find(path)] != LEAF:
            raise RegionUnknown(
                f"expected {path!r} to be a region, found that it was split; take the paths of this tree"
            )
        return Region(path, box, box.is_single(self.columns))

    def split(self, path: str, axis: int, cut: Cut) -> RegionTree:
        """Cut the region *path* in two, ``path + '0'`` and ``path + '1'``; all others stay.

        Raises: RegionUnknown, CutRefused.
        """
        if not 0 <= axis < len(self.columns):
            raise CutRefused(f"expected a column index below {len(self.columns)}, found {axis}")
        if isinstance(cut, At):
            cut = At(self.columns[axis].checked(cut.value))
        self.region(path).box.divided(self.columns, axis, cut)
        return self.grafted(path, RegionTree.of(self.columns, [(axis, cut), None, None]))

    def grafted(self, path: str, below: RegionTree) -> RegionTree:
        """All below *path* replaced by the nodes of *below*. Raises: RegionUnknown, ShapesDiffer."""
        if below.columns != self.columns:
            raise ShapesDiffer(f"expected a tree over {self.columns}, found one over {below.columns}")
        start = self._find(path)
        end = start + int(self._sizes[start])
        axes = self.axes[:start] + below.axes + self.axes[end:]
        return RegionTree(self.columns, axes, self.cuts[:start] + below.cuts + self.cuts[end:])

    def collapse(self, path: str) -> RegionTree:
        """All regions below *path* become one; a region stays as it is. Raises: RegionUnknown."""
        return self.grafted(path, RegionTree.single(self.columns))

    def between(self, paths: Sequence[str]) -> RegionTree:
        """What rows that certainly lie at or below *paths* need to find their region, in the order of this tree.

        The regions of these parts, which are disjoint, and of all cuts above them only those that tell them apart.
        Raises: RegionUnknown.
        """
        above = {path[:end] for path in paths for end in range(len(path))}
        wanted = set(paths)
        for path in wanted:
            self._find(path)
        here, nodes, waiting = self.nodes(), list[Node](), [(0, "")]
        while waiting:
            node, path = waiting.pop()
            if path in wanted:
                nodes += here[node : node + int(self._sizes[node])]
                continue
            sides = [path + step for step in "01" if path + step in wanted or path + step in above]
            if len(sides) == 2:
                nodes.append(here[node])
            waiting += [(self._child(node, side[-1]), side) for side in reversed(sides)]
        return RegionTree.of(self.columns, nodes)

    @property
    def depth(self) -> int:
        """How many cuts lie above the deepest region."""
        deepest, waiting = 0, [0]
        for axis in self.axes:
            at = waiting.pop()
            deepest = max(deepest, at)
            waiting += [] if axis == LEAF else [at + 1, at + 1]
        return deepest

    def descend(self, side: Callable[[int, Cut], str | None]) -> str:
        """Follow the path from the root while *side* (of column and cut) answers '0' or '1'; None ends it."""
        node, path = 0, ""
        while (cut := self.cuts[node]) is not None and (step := side(self.axes[node], cut)) is not None:
            node, path = self._child(node, step), path + step
        return path

    def below(self, path: str) -> range:
        """The indices (as `route` gives them) of the regions at or below *path*. Raises: RegionUnknown."""
        start = self._find(path)
        leaf = np.frombuffer(self.axes, dtype=np.uint8) == LEAF
        first = int(leaf[:start].sum())
        return range(first, first + (int(self._sizes[start]) + 1) // 2)

    def route(self, values: Sequence[ColumnValues]) -> npt.NDArray[np.int32]:
        """Per row the index of its region in `regions()`; *values* has one entry per column, of n rows each.

        Raises: ShapesDiffer.
        """
        if len(values) != len(self.columns) or len({len(column) for column in values}) > 1:
            raise ShapesDiffer(
                f"expected {len(self.columns)} columns of equal length, found {[len(v) for v in values]}"
            )
        ranks = [_cut_ranks(axis, self) for axis in range(len(self.columns))]
        coded = [codes(v, cuts) for v, (cuts, _) in zip(values, ranks, strict=True)]
        found = np.empty(len(values[0]), dtype=np.int32)
        waiting, leaf = [np.arange(len(found))], 0
        for axis, cut in zip(self.axes, self.cuts, strict=True):
            rows = waiting.pop()
            if cut is None:
                found[rows] = leaf
                leaf += 1
                continue
            code, (cuts, rank) = coded[axis][rows], ranks[axis]
            high = code > rank[cut] if isinstance(cut, At) else code == len(cuts) + (2 if cut is Slab.NULL else 1)
            waiting += [rows[high], rows[~high]]
        return found

    def to_json(self) -> str:
        """Canonical: equal trees give equal text. Cut values are text without loss."""
        nodes = [None if node is None else [node[0], *self._cut_text(*node)] for node in self.nodes()]
        columns = [{"name": column.name, "type": column.type} for column in self.columns]
        return json.dumps({"format": FORMAT, "columns": columns, "nodes": nodes}, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RegionTree:
        """Raises: TreeBroken."""
        try:
            stored = json.loads(text)
            if stored["format"] != FORMAT:
                raise TreeBroken(f"expected a tree of format {FORMAT}, found {stored['format']!r}; use a newer harness")
            columns = tuple(IndexedColumn(column["name"], column["type"]) for column in stored["columns"])
            tree = cls.of(columns, [_node(columns, node) for node in stored["nodes"]])
            tree.regions()  # every cut lies inside of its region
        except (ValueError, KeyError, TypeError, IndexError, CutRefused, ColumnNotIndexable) as wrong:
            raise TreeBroken(
                f"expected a stored region tree, found {text[:60]!r} ({wrong}); rebuild it from the files"
            ) from wrong
        return tree

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hex."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def _everything(self) -> Box:
        return Box((Span(),) * len(self.columns))

    def _walk(self) -> Iterator[tuple[str, Box, Node]]:
        waiting = [("", self._everything)]
        for node in self.nodes():
            path, box = waiting.pop()
            yield path, box, node
            if node is not None:
                low, high = box.divided(self.columns, *node)
                waiting += [(path + "1", high), (path + "0", low)]

    def _steps(self, path: str) -> Iterator[tuple[int, Cut, str]]:
        node = 0
        for step in path:
            cut = self.cuts[node]
            if step not in "01" or cut is None:
                raise RegionUnknown(f"expected a path of this tree, found {path!r}; take the paths of this tree")
            yield self.axes[node], cut, step
            node = self._child(node, step)

    def _find(self, path: str) -> int:
        node = 0
        for _, _, step in self._steps(path):
            node = self._child(node, step)
        return node

    def _child(self, node: int, step: str) -> int:
        return node + 1 + (int(self._sizes[node + 1]) if step == "1" else 0)

    def _cut_text(self, axis: int, cut: Cut) -> tuple[str, str] | tuple[str]:
        return ("at", self.columns[axis].to_text(cut.value)) if isinstance(cut, At) else (cut.value,)


def _subtree_sizes(axes: bytes) -> npt.NDArray[np.int32]:
    sizes = [0] * len(axes)
    complete: list[int] = []  # sizes of the subtrees to the right that no node has taken yet
    for at in range(len(axes) - 1, -1, -1):
        if axes[at] == LEAF:
            complete.append(1)
        elif len(complete) >= 2:
            complete.append(1 + complete.pop() + complete.pop())
        else:
            break
        sizes[at] = complete[-1]
    if sizes[:1] != [len(axes)] or not axes:
        raise TreeBroken(f"expected nodes in preorder, found {len(axes)} that are no tree; rebuild it from the files")
    return np.array(sizes, dtype=np.int32)


def _cut_ranks(axis: int, tree: RegionTree) -> tuple[npt.NDArray[Any], dict[Cut, int]]:
    """The raw cuts on a column, ascending, and the position of each."""
    found = {c for a, c in zip(tree.axes, tree.cuts, strict=True) if a == axis and isinstance(c, At)}
    ordered = sorted(found, key=lambda cut: cut.value)
    values = np.empty(len(ordered), dtype=tree.columns[axis].dtype)
    values[:] = [cut.value for cut in ordered]
    return values, {cut: rank for rank, cut in enumerate(ordered)}


def _node(columns: Sequence[IndexedColumn], stored: Any) -> Node:
    if stored is None:
        return None
    axis, kind, *text = stored
    if kind == "at":
        return axis, At(columns[axis].from_text(text[0]))
    return axis, Slab(kind)


def is_layered(columns: Sequence[IndexedColumn]) -> bool:
    """Return whether a view that is clustered by *columns* has a sample layer."""
    return bool(columns) and columns[0] == LAYER


def layered(columns: Sequence[IndexedColumn]) -> RegionTree:
    """Two regions, the other rows and the layer."""
    return RegionTree.of(columns, [(0, At(1)), None, None])


_COORDINATE_TYPES = {"_kafka_timestamp": "timestamptz"}


def indexed_columns(spec: TableSpec) -> tuple[IndexedColumn, ...]:
    """The columns that the batch view of *spec* is clustered by, that of the sample layer first if it has one."""
    types: dict[str, Type] = {c.name: c.type for c in spec.columns}
    asked = [
        IndexedColumn(name, str(types[name]) if name in types else _COORDINATE_TYPES[name]) for name in spec.indexed
    ]
    return tuple([LAYER, *asked] if spec.layout.sample else asked)


def key_columns(spec: TableSpec) -> tuple[IndexedColumn, ...]:
    """The columns of the key of *spec* by whose bounds files can be left out: all but binary ones."""
    return tuple(IndexedColumn(c.name, str(c.type)) for c in spec.key_columns if str(c.type) != "binary")
