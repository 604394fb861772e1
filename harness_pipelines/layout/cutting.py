"""Possible cuts of a node and their cost for readers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.columns import Mask
from harness_pipelines.layout.histogram import CellHistogram, Cells, Counts
from harness_pipelines.layout.queries import Queries, Weights

UNEVEN_MAX = 0.12  #: how far the mean region of a cut's side may be from the target, where some cut allows it
_TRIED = 3  # cuts per column that are rated by tight boxes
Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Asked:
    """Queries on the grid of a histogram, those that meet the node at hand."""

    low: Cells  #: (d, q) first bucket
    high: Cells  #: (d, q) last bucket
    weights: Weights  #: (q,)

    def meeting(self, cells: Cells) -> Asked:
        """Of these the ones that meet the tight box of *cells* (d, n)."""
        met = np.ones(len(self.weights), dtype=bool)
        for low, high, ids in zip(self.low, self.high, cells, strict=True):
            met &= (low <= ids.max()) & (high >= ids.min())
        kept = np.flatnonzero(met)
        return Asked(self.low[:, kept], self.high[:, kept], self.weights[kept])


@dataclass(frozen=True, slots=True)
class Part:
    """The cells of one node, at least one, and the queries that meet their tight box."""

    cells: Cells  #: (d, n): a column's buckets lie together, since all is done column by column
    counts: Counts  #: (n,)
    rows: int
    asked: Asked

    @classmethod
    def of(cls, histogram: CellHistogram, queries: Queries) -> Part:
        low, high = queries.buckets(histogram.edges)
        asked = Asked(np.ascontiguousarray(low.T), np.ascontiguousarray(high.T), queries.weights)
        return cls(np.ascontiguousarray(histogram.cells.T), histogram.counts, histogram.rows, asked)

    @property
    def cost(self) -> float:
        """Rows that the queries touch if the node is one file."""
        return float(self.rows * self.asked.weights.sum())

    def divided(self, axis: int, bucket: int) -> tuple[Part, Part]:
        """Buckets of column *axis* below *bucket*, and all others; neither side is empty."""
        low = self.cells[axis] < bucket
        return self._where(low), self._where(~low)

    def _where(self, chosen: Mask) -> Part:
        kept = np.flatnonzero(chosen)
        cells, counts = self.cells.take(kept, axis=1), self.counts[kept]
        return Part(cells, counts, int(counts.sum()), self.asked.meeting(cells))


@dataclass(frozen=True, slots=True)
class Places:
    """All places on one column where some rows go low and some high, m of them."""

    axis: int
    buckets: Ids  #: (m,) the first bucket that goes high
    uneven: Floats  #: (m,) the worse side's mean region against the target; 0.0 is even
    cost: Floats  #: (m,) rows touched afterwards, by the extents along this column alone

    def cheapest(self, uneven_max: float) -> list[tuple[int, int]]:
        """Up to `_TRIED` of the even enough ones as (axis, bucket)."""
        even = np.flatnonzero(self.uneven <= uneven_max)
        best = even[np.argsort(self.cost[even], kind="stable")[:_TRIED]]
        return [(self.axis, int(bucket)) for bucket in self.buckets[best]]


def best_cut(part: Part, target: float, values: tuple[int, ...]) -> tuple[int, int, Part, Part] | None:
    """The column, the first bucket that goes high, and both sides; None if all rows are in one cell.

    *values*: per column how many buckets hold values; behind them are NaN and NULL.
    """
    places = [found for axis in range(len(values)) if (found := places_on(part, axis, target, values[axis]))]
    if not places:
        return None
    uneven_max = max(UNEVEN_MAX, min(float(on.uneven.min()) for on in places))
    tried = [(*cut, *part.divided(*cut)) for on in places for cut in on.cheapest(uneven_max)]
    return min(tried, key=lambda cut: (cut[2].cost + cut[3].cost, cut[0], cut[1]))


def places_on(part: Part, axis: int, target: float, values: int) -> Places | None:
    """None if all rows share one bucket of the column."""
    ids = part.cells[axis]
    first = int(ids.min())
    rows = np.bincount(ids - first, weights=part.counts)
    filled = np.flatnonzero(rows)
    if filled[-1] == values + 1 - first:  # NULL is there, so NaN alone cannot be cut off from the values
        filled = filled[(filled < values - first) | (filled == filled[-1])]
    if len(filled) < 2:
        return None
    cut, last_low = filled[1:], filled[:-1]
    low = np.cumsum(rows, dtype=np.float64)[cut - 1]
    high = part.rows - low
    touching_low, touching_high = _touching(part.asked, axis, last_low + first, cut + first)
    uneven = np.maximum(_uneven(low, target), _uneven(high, target))
    return Places(axis, cut + first, uneven, low * touching_low + high * touching_high)


def _touching(asked: Asked, axis: int, last_low: Ids, first_high: Ids) -> tuple[Floats, Floats]:
    """Weight of the queries that begin at or below *last_low*, and of those that end at or above *first_high*."""
    begins, ends = np.argsort(asked.low[axis], kind="stable"), np.argsort(asked.high[axis], kind="stable")
    begun = np.r_[0.0, np.cumsum(asked.weights[begins])]
    ended = np.r_[0.0, np.cumsum(asked.weights[ends])]
    below = np.searchsorted(asked.low[axis, begins], last_low, side="right")
    short = np.searchsorted(asked.high[axis, ends], first_high, side="left")
    return begun[below], ended[-1] - ended[short]


def _uneven(rows: Floats, target: float) -> Floats:
    regions = np.maximum(1.0, np.rint(rows / target))
    return np.abs(rows / regions - target) / target
