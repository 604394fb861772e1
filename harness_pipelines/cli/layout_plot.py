"""The picture of `harness layout --plot`: regions over one or two columns, and the score over versions."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.layout.boxes import Span
from harness_pipelines.layout.columns import IndexedColumn, Value
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.histogram import CellHistogram
from harness_pipelines.layout.labels import label, scale_of
from harness_pipelines.layout.layer import LAYER
from harness_pipelines.layout.outline import outline
from harness_pipelines.read.layout import LayoutSeen

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 6
LABEL_CHARS_MAX = 16
SLAB = (-0.09, -0.03)  #: where what is NULL or NaN is drawn, below the values
STAGED = "#d95f02"
TITLE_ABOVE_LEGEND = 24  #: points
LINEAR_SHARE_MIN = 0.25  #: of the axis, that the middle nine tenths of the rows take: with less, ranks are drawn


class PlotFailed(HarnessError):
    """The picture could not be drawn or written."""


def draw(seen: LayoutSeen, path: str, *, columns: Sequence[str] | None = None) -> None:
    """Write the picture of *seen* to *path*, over the first two indexed columns or over *columns*.

    Raises: UsageError, PlotFailed.
    """
    try:
        import matplotlib as mpl
    except ImportError as missing:
        raise PlotFailed("--plot needs matplotlib, which is not installed: pip install matplotlib") from missing
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    over = _axes_of(seen, columns)
    cells = outline(seen.files, seen.tree.columns)
    figure, (regions, scores) = plt.subplots(
        1, 2, figsize=(14, 7), width_ratios=(3, 2), layout="constrained", squeeze=True
    )
    try:
        axes = [_Axis.of(cells, axis) for axis in range(len(seen.tree.columns))]
        _draw_regions(regions, seen, [axes[i] for i in over], [a for i, a in enumerate(axes) if i not in over])
        _draw_scores(scores, seen)
        figure.suptitle(
            f"{seen.table} at version {seen.version}: {len(seen.standing.regions):,} regions, {len(seen.files):,} "
            f"files, {seen.standing.staged_share:.0%} of the bytes staged"
        )
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise PlotFailed(f"{path}: {error.strerror or error}; nothing was drawn") from error
    except ValueError as error:  # matplotlib's word for a file ending that it cannot write
        raise PlotFailed(f"{path}: {error}") from error
    finally:
        plt.close(figure)


def _axes_of(seen: LayoutSeen, columns: Sequence[str] | None) -> list[int]:
    names = [column.name for column in seen.tree.columns]
    wanted = list(columns or [name for name in names if name != LAYER.name][:2])
    if unknown := [name for name in wanted if name not in names]:
        raise UsageError(f"--columns: {unknown[0]!r} is not indexed; indexed columns: {', '.join(names)}")
    if not 1 <= len(wanted) <= 2 or len(set(wanted)) < len(wanted):
        raise UsageError(f"--columns takes one or two different columns, found {', '.join(wanted)}")
    return [names.index(name) for name in wanted]


@dataclass(frozen=True, slots=True)
class _Axis:
    """Places of one column's values between 0 and 1: by value where that can be read, else by rank.

    By rank, equal steps hold equally many rows, so skewed values and text fill the axis evenly.
    """

    axis: int
    column: IndexedColumn
    known: Sequence[Value]  #: ascending
    places: npt.NDArray[np.float64]  #: of *known*
    by_rank: bool
    median: Value | None  #: of the rows

    @classmethod
    def of(cls, cells: CellHistogram, axis: int) -> _Axis:
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
        """Between 0 and 1; *open_side* for None."""
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
        """Whether *span* reaches over the median of the rows, where the picture is a slice."""
        return span.holds(self.median)

    def reaches(self, extent: Extent) -> bool:
        """The same of a file; one that does not say may."""
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
        """Round numbers, days or hours within the known values."""
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
    """Ascending *numbers* from 0 to 1; infinite ones at the ends."""
    finite = numbers[np.isfinite(numbers)]
    if not len(finite) or finite[-1] == finite[0]:
        return np.zeros(len(numbers))
    return np.asarray((np.clip(numbers, finite[0], finite[-1]) - finite[0]) / (finite[-1] - finite[0]))


_UNIT = (0.0, 1.0)


def _draw_regions(ax: Axes, seen: LayoutSeen, axes: Sequence[_Axis], across: Sequence[_Axis]) -> None:
    """Regions in the colour of their bytes; over them the outlines of the files that are not clustered yet.

    Where there are more indexed columns, *across*, it is a slice through the median of each.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import Normalize
    from matplotlib.patches import Patch, Rectangle

    def rectangle(sides: Sequence[tuple[float, float]]) -> Any:
        (x0, x1), (y0, y1) = [*sides, _UNIT][:2]
        return Rectangle((x0, y0), x1 - x0, y1 - y0)

    boxes = {region.path: region.box.spans for region in seen.tree.regions()}
    shown = [r for r in seen.standing.regions if all(axis.holds(boxes[r.path][axis.axis]) for axis in across)]
    patches = [rectangle([axis.of_span(boxes[r.path][axis.axis]) for axis in axes]) for r in shown]
    colours = ScalarMappable(Normalize(0, 1.5), colormaps["Blues"])
    sizes = np.array([r.bytes / max(seen.target_bytes, 1) for r in shown])
    ax.add_collection(PatchCollection(patches, facecolor=colours.to_rgba(sizes), edgecolor="#666666", linewidth=0.6))
    staged = [file for file in _staged(seen) if all(axis.reaches(file.extents[axis.axis]) for axis in across)]
    outlines = [rectangle([axis.of_extent(file.extents[axis.axis]) for axis in axes]) for file in staged]
    ax.add_collection(PatchCollection(outlines, facecolor="none", edgecolor=STAGED, linewidth=1.2, linestyle="--"))
    for axis, side in zip(axes, ("x", "y"), strict=False):
        slab = any(not boxes[r.path][axis.axis].values for r in shown)
        places, texts = axis.ticks(slab=slab)
        getattr(ax, f"set_{side}ticks")(places, texts)
        note = " (equal steps hold equally many rows)" if axis.by_rank else ""
        getattr(ax, f"set_{side}label")(axis.column.name + note)
        getattr(ax, f"set_{side}lim")(SLAB[0] - 0.02 if slab else -0.01, 1.01)
    if len(axes) == 1:
        ax.set_yticks([])
    ax.tick_params(axis="x", rotation=20)
    ax.figure.colorbar(colours, ax=ax, label="bytes of the region, in target files", pad=0.01, fraction=0.05)
    marks = [
        Patch(facecolor="none", edgecolor=STAGED, linestyle="--", label=f"{len(staged):,} files not clustered yet")
    ]
    ax.legend(handles=marks, loc="lower right", bbox_to_anchor=(1.0, 1.0), frameon=False)
    cut = [axis for axis in across if axis.median is not None and axis.column != LAYER]
    at = [f"{axis.column.name} = {label(axis.column, axis.median)}" for axis in cut]
    ax.set_title("regions" + (f" at {', '.join(at)} (median)" if at else ""), loc="left", pad=TITLE_ABOVE_LEGEND)


def _staged(seen: LayoutSeen) -> list[FileStats]:
    """The files that their region's last rewrite did not leave, and those in no region."""
    from harness_pipelines.layout.files import classify

    settled = {region.path: region.clustered_sequence for region in seen.standing.regions}
    at = classify(seen.tree, seen.files)
    return [f for f, path in zip(seen.files, at, strict=True) if path is None or f.sequence > settled[path]]


def _draw_scores(ax: Axes, seen: LayoutSeen) -> None:
    """What a reader feels, version by version, and how much waited to be clustered."""
    from matplotlib.ticker import MaxNLocator

    versions = [one.version for one in seen.history]
    for name, colour in (("probe_ratio", "#1f77b4"), ("point_depth", "#2a7f3f")):
        figures = [getattr(one.score, name) for one in seen.history]
        ax.plot(versions, figures, marker="o", ms=3, color=colour, label=name.replace("_", " "))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("version")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_ylabel("smaller is better: bytes opened per byte wanted, files per place")
    share = ax.twinx()
    share.bar(versions, [one.score.staged_share * 100 for one in seen.history], color=STAGED, alpha=0.25, width=0.6)
    share.set_ylim(0, 100)
    share.set_ylabel("staged bytes, %", color=STAGED)
    relaid = [one.version for one in seen.history if one.relaid]
    for i, version in enumerate(relaid):
        ax.axvline(version, color="#999999", lw=0.8, ls=":", label="regions written anew" if i == 0 else None)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=3, frameon=False, borderaxespad=0.2)
