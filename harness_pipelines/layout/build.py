"""From a histogram to a tree: regions of even size, cut so that readers touch few rows.

A node of k targets is cut where both sides come near to whole multiples of the target: sizes stay even whatever the
data. Of these cuts the one is taken after which the queries touch the fewest rows, each side counted by the tight box
of its cells, as files are pruned: the criterion of Qd-tree (Yang et al. 2020) over k-d cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines.layout.boxes import At, Box, Cut, Slab, Span
from harness_pipelines.layout.columns import IndexedColumn, ShapesDiffer
from harness_pipelines.layout.cutting import Part, best_cut
from harness_pipelines.layout.histogram import CellHistogram
from harness_pipelines.layout.queries import Queries, synthetic
from harness_pipelines.layout.tree import Node, RegionTree

OVERSIZE = 1.5  #: a region above this many targets is cut
Step = tuple[int, Cut, bool]  # column, cut, and whether the rows go high


def build(histogram: CellHistogram, *, target_rows: float, queries: Queries | None = None) -> RegionTree:
    """A tree whose regions hold about *target_rows* each, cut on the histogram's edges for *queries*.

    Without *queries* the boxes and slabs of `synthetic` stand for them. The same histogram gives the same tree. More
    equal rows than fit end in their own region that is `unsplittable`.
    """
    return _grown(Box((Span(),) * len(histogram.columns)), histogram, target_rows, queries)


def split_region(
    tree: RegionTree, path: str, histogram: CellHistogram, *, target_rows: float, queries: Queries | None = None
) -> RegionTree:
    """*tree* with the region *path* cut as `build` cuts; *histogram* counts the rows of that region only.

    Its grid is best made of that region's own quantiles. *queries* should be those of the whole table (recorded, or
    `synthetic` of its histogram): only they tell in which column the region is wide.

    Raises: RegionUnknown, ShapesDiffer; CutRefused, where the histogram counts rows of other regions.
    """
    if histogram.columns != tree.columns:
        raise ShapesDiffer(f"expected a histogram over {tree.columns}, found one over {histogram.columns}")
    return tree.grafted(path, _grown(tree.region(path).box, histogram, target_rows, queries))


def _grown(box: Box, histogram: CellHistogram, target_rows: float, queries: Queries | None) -> RegionTree:
    columns, edges = histogram.columns, histogram.edges
    if not histogram.rows:
        return RegionTree.single(columns)
    asked = synthetic(histogram) if queries is None else queries.meeting(box)
    target = histogram.rows / max(1, round(histogram.rows / target_rows))
    values = tuple(len(lines) + 1 for lines in edges)
    nodes: list[Node] = []
    waiting = [(box, Part.of(histogram, asked))]
    while waiting:
        box, part = waiting.pop()
        oversize = part.rows > OVERSIZE * target
        found = best_cut(part, target, values) if oversize else None
        if found is None:
            nodes += _isolated(box, histogram, part) if oversize else [None]
            continue
        axis, bucket, low, high = found
        cut = _cut(columns[axis], histogram, axis, bucket)
        low_box, high_box = box.divided(columns, axis, cut)
        nodes.append((axis, cut))
        waiting += [(high_box, high), (low_box, low)]
    return RegionTree.of(columns, nodes)


def _cut(column: IndexedColumn, histogram: CellHistogram, axis: int, bucket: int) -> Cut:
    lines = histogram.edges[axis]
    if bucket > len(lines):
        return Slab.NAN if bucket == len(lines) + 1 else Slab.NULL
    return At(column.checked(lines[bucket - 1]))


def _isolated(box: Box, histogram: CellHistogram, part: Part) -> list[Node]:
    """The nodes that close a region round the one cell of *part*, if the cell holds equal keys only; else a leaf."""
    steps: list[Step] = []
    for axis, column in enumerate(histogram.columns):
        found = _closing(box.spans[axis], column, axis, histogram, int(part.cells[axis, 0]))
        if found is None:
            return [None]
        steps += found
    return _chain(steps)


def _closing(span: Span, column: IndexedColumn, axis: int, histogram: CellHistogram, bucket: int) -> list[Step] | None:
    """The cuts that leave of *span* one bucket only; None if the bucket holds several values."""
    lines = histogram.edges[axis]
    wanted: list[Step] = []
    if bucket > len(lines):
        slab = Slab.NAN if bucket == len(lines) + 1 else Slab.NULL
        wanted.append((axis, slab, True))
    else:
        low = column.checked(lines[bucket - 1]) if bucket else column.least
        high = column.checked(lines[bucket]) if bucket < len(lines) else None
        if column.successor(low) != high:
            return None
        wanted += [(axis, At(high), False)] if high is not None else _slabs_off(axis)
        wanted += [(axis, At(low), True)]
    steps = []
    for _, cut, goes_high in wanted:
        if span.may_divide(column, cut):
            steps.append((axis, cut, goes_high))
            span = span.divided(column, cut)[goes_high]
    return steps


def _slabs_off(axis: int) -> list[Step]:
    return [(axis, Slab.NULL, False), (axis, Slab.NAN, False)]


def _chain(steps: Sequence[Step]) -> list[Node]:
    """Nodes in preorder of cuts that follow one side each; the other side is a region."""
    nodes: list[Node] = []
    for axis, cut, goes_high in steps:
        nodes += [(axis, cut), None] if goes_high else [(axis, cut)]
    return [*nodes, None, *[None for _, _, goes_high in steps if not goes_high]]
