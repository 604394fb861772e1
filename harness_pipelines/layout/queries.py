"""Queries as boxes of values: recorded, or generated from the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.boxes import Box
from harness_pipelines.layout.columns import Array, ColumnValues, IndexedColumn, ShapesDiffer
from harness_pipelines.layout.histogram import CellHistogram, Cells, bucket
from harness_pipelines.layout.tree import LAYER

Weights = npt.NDArray[np.float64]

CENTRES = 1000  #: places in the data around which synthetic queries are laid
SHARES = (0.01, 0.05, 0.1)  #: of the rows that a synthetic box finds
SLAB_SHARE = 0.01  #: of the rows that a synthetic slab (a range on one column) finds
_SAMPLE = 4000  # rows that stand for all when a box is grown


@dataclass(frozen=True, slots=True)
class Queries:
    """Closed ranges per column; NULL as a bound is an open side, two open sides do not filter (NULL rows match too)."""

    low: tuple[ColumnValues, ...]
    high: tuple[ColumnValues, ...]
    weights: Weights  #: (q,) how often each is asked

    def __post_init__(self) -> None:
        lengths = {len(side) for side in (*self.low, *self.high)} | {len(self.weights)}
        if len(self.low) != len(self.high) or len(lengths) > 1:
            raise ShapesDiffer(f"expected two bounds per column and query, found {sorted(lengths)} of them")

    def __len__(self) -> int:
        return len(self.weights)

    def meeting(self, box: Box) -> Queries:
        """Those that meet *box*. On a grid made for the box alone, all others would seem to end in its outer cells."""
        met = np.ones(len(self), dtype=bool)
        for span, low, high in zip(box.spans, self.low, self.high, strict=True):
            beyond = np.zeros(len(self), dtype=bool)
            if span.high is not None:
                beyond |= ~low.is_null & np.asarray(low.values >= span.high, dtype=bool)
            if span.low is not None:
                beyond |= ~high.is_null & np.asarray(high.values < span.low, dtype=bool)
            met &= (span.values & ~beyond) | (low.is_null & high.is_null)
        lows, highs = (tuple(values.take(met) for values in side) for side in (self.low, self.high))
        return Queries(lows, highs, self.weights[met])

    def buckets(self, edges: Sequence[Array]) -> tuple[Cells, Cells]:
        """First and last bucket of a grid that each query meets, (q, d) both."""
        low, high = bucket(edges, self.low), bucket(edges, self.high)
        for axis, lines in enumerate(edges):
            open_low, open_high = self.low[axis].is_null, self.high[axis].is_null
            low[open_low, axis] = 0
            high[open_high, axis] = np.where(open_low[open_high], len(lines) + 2, len(lines))
        return low, high


def synthetic(histogram: CellHistogram, *, filters: Sequence[Sequence[str]] = ()) -> Queries:
    """Boxes of `SHARES` around rows, with equal sides in rank space.

    *filters* are the sets of columns that readers filter by together, one set as often as another. Where nothing is
    known three quarters of them are over all columns and the last one is slabs on each. No query reads the sample
    layer's column. The same histogram gives the same queries. Bounds are grid lines.
    """
    sample = histogram.sample(_SAMPLE)
    ranks = _mid_ranks(histogram)
    at = np.stack([rank[cells] for rank, cells in zip(ranks, sample.T, strict=True)], axis=1)
    centres = at[:CENTRES]
    names = [column.name for column in histogram.columns]
    every = [axis for axis, column in enumerate(histogram.columns) if column != LAYER]
    asked = [[names.index(name) for name in together] for together in filters] or [every]
    low, high = [], []
    for i, centre in enumerate(centres):
        axes = asked[i % len(asked)]
        away = np.abs(at - centre)[:, axes].max(axis=1)
        for reach in np.partition(away, [int(share * len(at)) for share in SHARES])[[int(s * len(at)) for s in SHARES]]:
            low.append(_along(axes, centre - reach, open_side=-1.0))
            high.append(_along(axes, centre + reach, open_side=2.0))
    for i, centre in enumerate(centres if not filters else ()):
        axes = [every[i % len(every)]]
        low.append(_along(axes, centre - SLAB_SHARE / 2, open_side=-1.0))
        high.append(_along(axes, centre + SLAB_SHARE / 2, open_side=2.0))
    return _on_lines(histogram, np.array(low).reshape(-1, len(ranks)), np.array(high).reshape(-1, len(ranks)))


def _along(axes: Sequence[int], bounds: Weights, *, open_side: float) -> Weights:
    """*bounds* in these columns; the others do not filter."""
    found = np.full(len(bounds), open_side)
    found[axes] = bounds[axes]
    return found


def _mid_ranks(histogram: CellHistogram) -> list[npt.NDArray[np.float64]]:
    """Per column and bucket the share of rows below its middle."""
    found = []
    for lines, ids in zip(histogram.edges, histogram.cells.T, strict=True):
        rows = np.bincount(ids, weights=histogram.counts, minlength=len(lines) + 3)
        found.append((np.cumsum(rows) - rows / 2) / max(1, histogram.rows))
    return found


def _on_lines(histogram: CellHistogram, low: Weights, high: Weights) -> Queries:
    """Queries from bounds in rank space, each snapped to the grid."""
    lows, highs = [], []
    for axis, (lines, rank) in enumerate(zip(histogram.edges, _mid_ranks(histogram), strict=True)):
        first = np.searchsorted(rank[: len(lines) + 1], low[:, axis], side="left") - 1
        last = np.searchsorted(rank[: len(lines) + 1], high[:, axis], side="right") - 1
        lows.append(_lines(histogram.columns[axis], lines, first))
        highs.append(_lines(histogram.columns[axis], lines, np.where(last >= len(lines), -1, last)))
    return Queries(tuple(lows), tuple(highs), np.ones(len(low)))


def _lines(column: IndexedColumn, lines: Array, at: npt.NDArray[np.int64]) -> ColumnValues:
    """The lines at these positions; open where the position is below 0."""
    found = np.empty(len(at), dtype=column.dtype)
    inside = (at >= 0) & (at < len(lines))
    found[:] = column.least
    found[inside] = lines[at[inside]]
    return ColumnValues(found, ~inside)
