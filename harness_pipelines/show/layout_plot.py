"""The picture of `harness layout --plot`: regions over one or two columns, and the score over versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.extras import needs
from harness_pipelines.layout.labels import label
from harness_pipelines.layout.outline import outline
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.read.report.layout import LayoutSeen
from harness_pipelines.show.layout_axes import SLAB, Axis, staged_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STAGED = "#d95f02"
TITLE_ABOVE_LEGEND = 24  #: points


class PlotFailed(HarnessError):
    """The plot could not be drawn or written."""


def draw(seen: LayoutSeen, path: str, *, columns: Sequence[str] | None = None) -> None:
    """Write the picture of *seen* to *path*, over the first two indexed columns or over *columns*.

    Raises: UsageError, PlotFailed, ExtraMissing.
    """
    with needs("plot", "A picture"):
        import matplotlib as mpl
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    over = _axes_of(seen, columns)
    cells = outline(seen.files, seen.tree.columns)
    figure, (regions, scores) = plt.subplots(
        1, 2, figsize=(14, 7), width_ratios=(3, 2), layout="constrained", squeeze=True
    )
    try:
        axes = [Axis.of(cells, axis) for axis in range(len(seen.tree.columns))]
        _draw_regions(regions, seen, [axes[i] for i in over], [a for i, a in enumerate(axes) if i not in over])
        _draw_scores(scores, seen)
        figure.suptitle(
            f"{seen.table} at version {seen.version}: {len(seen.contents.regions):,} regions, {len(seen.files):,} "
            f"files, {seen.contents.staged_share:.0%} of the bytes staged"
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


_UNIT = (0.0, 1.0)


def _draw_regions(ax: Axes, seen: LayoutSeen, axes: Sequence[Axis], across: Sequence[Axis]) -> None:
    """Draw regions coloured by their bytes, and over them the outlines of files that are not clustered yet.

    With more indexed columns, *across*, the picture is a slice through the median of each.
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
    shown = [r for r in seen.contents.regions if all(axis.holds(boxes[r.path][axis.axis]) for axis in across)]
    patches = [rectangle([axis.of_span(boxes[r.path][axis.axis]) for axis in axes]) for r in shown]
    colours = ScalarMappable(Normalize(0, 1.5), colormaps["Blues"])
    sizes = np.array([r.bytes / max(seen.target_bytes, 1) for r in shown])
    ax.add_collection(PatchCollection(patches, facecolor=colours.to_rgba(sizes), edgecolor="#666666", linewidth=0.6))
    staged = [file for file in staged_files(seen) if all(axis.reaches(file.extents[axis.axis]) for axis in across)]
    outlines = [rectangle([axis.of_extent(file.extents[axis.axis]) for axis in axes]) for file in staged]
    ax.add_collection(PatchCollection(outlines, facecolor="none", edgecolor=STAGED, linewidth=1.2, linestyle="--"))
    for axis, side in zip(axes, ("x", "y"), strict=False):
        slab = any(not boxes[r.path][axis.axis].values for r in shown)
        places, texts = axis.ticks(slab=slab)
        getattr(ax, f"set_{side}ticks")(places, texts)
        note = " (each step holds the same number of rows)" if axis.by_rank else ""
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


def _draw_scores(ax: Axes, seen: LayoutSeen) -> None:
    """Draw the read cost and the unclustered bytes, version by version."""
    from matplotlib.ticker import MaxNLocator

    versions = [one.version for one in seen.history]
    for name, colour in (("probe_ratio", "#1f77b4"), ("point_depth", "#2a7f3f")):
        figures = [getattr(one.score, name) for one in seen.history]
        ax.plot(versions, figures, marker="o", ms=3, color=colour, label=name.replace("_", " "))
    ax.set_ylim(bottom=0)
    ax.set_xlabel("version")
    ax.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    ax.set_ylabel("smaller is better: bytes opened per byte needed, files per point")
    share = ax.twinx()
    share.bar(versions, [one.score.staged_share * 100 for one in seen.history], color=STAGED, alpha=0.25, width=0.6)
    share.set_ylim(0, 100)
    share.set_ylabel("staged bytes, %", color=STAGED)
    relaid = [one.version for one in seen.history if one.relaid]
    for i, version in enumerate(relaid):
        ax.axvline(version, color="#999999", lw=0.8, ls=":", label="regions rewritten" if i == 0 else None)
    ax.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncol=3, frameon=False, borderaxespad=0.2)
