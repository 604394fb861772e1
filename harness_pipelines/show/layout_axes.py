"""Positions of the batch view's regions and files in the plot of `harness layout --plot` and of the status page."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.layout.boxes import Span
from harness_pipelines.layout.columns import IndexedColumn, Value
from harness_pipelines.layout.files import Extent, FileStats, classify
from harness_pipelines.layout.histogram import CellHistogram
from harness_pipelines.layout.labels import label, scale_of
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.read.report.layout import LayoutSeen

TICKS = 6
LABEL_CHARS_MAX = 16
SLAB = (-0.09, -0.03)  #: where what is NULL or NaN is drawn, below the values
LINEAR_SHARE_MIN = 0.25  #: of the axis, that the middle nine tenths of the rows take: with less, ranks are drawn


@dataclass(frozen=True, slots=True)
class Axis:
    """Map values of one column to 0..1: by value if that is readable, else by rank.

    By rank, each step holds the same number of rows, so skewed values and text fill the axis evenly.
    """

    axis: int
    column: IndexedColumn
    known: Sequence[Value]  #: ascending
    places: npt.NDArray[np.float64]  #: of *known*
    by_rank: bool
    median: Value | None  #: of the rows

    @classmethod
    def of(cls, cells: CellHistogram, axis: int) -> Axis:
        column, lines = cells.columns[axis], cells.edges[axis]
        buckets = cells.cells[:, axis]
        rows = np.bincount(buckets, weights=cells.counts, minlength=len(lines) + 3)[: len(lines) + 1]
        known: list[Value] = lines.tolist()
        if not known:
            return cls(axis, column, [], np.zeros(0), False, None)
        below = np.cumsum(rows)[:-1]
        median = known[int(np.searchsorted(below, rows.sum() / 2).clip(0, len(known) - 1))]
        if column == LAYER:
            median = 0  # most rows are not in it
        ranks = _stretched(below)
        if column.type in ("string", "uuid"):
            return cls(axis, column, known, ranks, True, median)
        linear = _stretched(np.array([float(value) for value in known]))
        first, last = np.interp([0.05, 0.95], ranks, linear)
        by_rank = bool(last - first < LINEAR_SHARE_MIN)
        return cls(axis, column, known, ranks if by_rank else linear, by_rank, median)

    def place(self, value: Value | None, *, open_side: float) -> float:
        """Return a position between 0 and 1; *open_side* for None."""
        if value is None or not self.known:
            return open_side
        if isinstance(value, str | bytes):
            at = bisect.bisect_right(self.known, value) - 1
            return float(self.places[at]) if at >= 0 else 0.0
        return float(np.interp(float(value), [float(one) for one in self.known], self.places))

    def of_span(self, span: Span) -> tuple[float, float]:
        if not span.values:
            return SLAB
        low, high = self.place(span.low, open_side=0.0), self.place(span.high, open_side=1.0)
        return low, max(high, low)

    def of_extent(self, extent: Extent) -> tuple[float, float]:
        if extent.lower is None and extent.upper is None and extent.nulls:
            return SLAB
        low, high = self.place(extent.lower, open_side=0.0), self.place(extent.upper, open_side=1.0)
        return low, max(high, low)

    def holds(self, span: Span) -> bool:
        """Return whether *span* covers the median of the rows, if the picture is a slice."""
        return span.holds(self.median)

    def reaches(self, extent: Extent) -> bool:
        """Return the same for a file; a file without bounds may cover it."""
        below = extent.lower is None or self.median is None or extent.lower <= self.median
        return below and (extent.upper is None or self.median is None or self.median <= extent.upper)

    def ticks(self, *, slab: bool) -> tuple[list[float], list[str]]:
        values = self._round_values() if not self.by_rank else []
        if not values and self.known:
            at = np.searchsorted(self.places, np.linspace(0, 1, TICKS))
            values = [self.known[i] for i in np.unique(np.clip(at, 0, len(self.known) - 1))]
        places = [self.place(value, open_side=0.0) for value in values]
        texts = [_short(label(self.column, value)) for value in values]
        return ([sum(SLAB) / 2, *places], ["NULL", *texts]) if slab else (places, texts)

    def _round_values(self) -> list[Value]:
        """Return round numbers, days or hours within the known values."""
        from matplotlib.ticker import MaxNLocator

        if not self.known or (self.column.is_float and not np.isfinite(self.known).all()):
            return []
        unit = _UNITS_OF.get(self.column.type, (10 ** scale_of(self.column),))
        low, high = self.known[0], self.known[-1]
        step = next((u for u in unit if (high - low) / u >= TICKS / 2), unit[-1])
        found = MaxNLocator(TICKS, integer=not self.column.is_float, steps=[1, 2, 5, 7, 10])
        rounded = (tick * step for tick in found.tick_values(low / step, high / step))
        return [v if self.column.is_float else round(v) for v in rounded if low <= v <= high]


_DAY_US = 86_400_000_000
_MOMENT = (_DAY_US, _DAY_US // 24, 60_000_000, 1_000_000, 1)
_UNITS_OF = {"timestamp": _MOMENT, "timestamptz": _MOMENT, "time": _MOMENT[1:]}


def _short(text: str) -> str:
    return text if len(text) <= LABEL_CHARS_MAX else text[: LABEL_CHARS_MAX - 1] + "…"


def _stretched(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Scale ascending *numbers* to 0..1; infinite ones go to the ends."""
    finite = numbers[np.isfinite(numbers)]
    if not len(finite) or finite[-1] == finite[0]:
        return np.zeros(len(numbers))
    return np.asarray((np.clip(numbers, finite[0], finite[-1]) - finite[0]) / (finite[-1] - finite[0]))


def staged_files(seen: LayoutSeen) -> list[FileStats]:
    """Return the files written after their region's last rewrite, and those in no region."""
    settled = {region.path: region.clustered_sequence for region in seen.contents.regions}
    at = classify(seen.tree, seen.files)
    return [f for f, path in zip(seen.files, at, strict=True) if path is None or f.sequence > settled[path]]
