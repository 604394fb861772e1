"""The layout picture of the page, computed in the background when the batch view changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.layout.labels import label, span_label
from harness_pipelines.layout.outline import outline
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.read.report.layout import ROOT, LayoutSeen, NoLayout, look
from harness_pipelines.secret import redact
from harness_pipelines.show.bars import size
from harness_pipelines.show.layout_axes import SLAB, Axis, staged_files
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.versions import Version

DRAWN_MAX = 1500  #: regions, and outlines of files; the largest ones
KEPT_MAX = 20
AGAIN_S = 5.0
END_S = 2.0
REST = 5  #: times what a look at the manifests took, until the next one


class Pictures:
    """Layouts of the tables that browsers show."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._found: dict[int, dict[str, Any]] = {}  #: by table, newest last
        self._not_before = 0.0
        self._busy = threading.Lock()
        self._closed = False

    def of(self, table: TableRow, head: Version) -> dict[str, Any]:
        """Return the newest finished picture; start a new one if the batch view of *head* differs."""
        if head.batch is None:
            return {"key": "none", "none": f"no batch view: its spec says `views: {table.view_set.word}`"}
        key = f"{table.table_id} {head.batch.metadata} {head.layout} {table.spec_hash}"
        found = self._found.get(table.table_id)
        if (found is None or found["key"] != key) and time.monotonic() >= self._not_before:
            self._begin(table, head.version, key)
        return found or {"key": "begun", "none": "the manifests are being read"}

    def close(self) -> None:
        """Stop; a running computation finishes first."""
        self._closed = True
        if self._busy.acquire(timeout=END_S):
            self._busy.release()

    def _begin(self, table: TableRow, version: int, key: str) -> None:
        if not self._closed and self._busy.acquire(blocking=False):
            args = (table, version, key)
            threading.Thread(target=self._draw, args=args, name="status-page-layout", daemon=True).start()

    def _draw(self, table: TableRow, version: int, key: str) -> None:
        began = time.monotonic()
        try:
            found = {"key": key, **picture(look(self._stores, table, at=version, history_max=1))}
        except NoLayout as none:
            found = {"key": key, "none": str(none)}
        except HarnessError as error:
            found = {"key": f"{key} failed", "none": redact(str(error))}
        except Exception as error:  # the rest of the page is right all the same
            structlog.get_logger().exception("page.layout_broken", table=table.name)
            found = {"key": f"{key} failed", "none": redact(f"an unexpected error: {error!r}")}
        finally:
            now = time.monotonic()
            self._not_before = now + max(AGAIN_S, REST * (now - began))
            self._busy.release()
        self._found = dict([*self._found.items(), (table.table_id, found)][-KEPT_MAX:])


def picture(seen: LayoutSeen) -> dict[str, Any]:
    """Return regions and unclustered files over the first two indexed columns, as places from 0 to 1.

    With more columns the picture is a slice through the median of each.
    """
    cells = outline(seen.files, seen.tree.columns)
    every = [Axis.of(cells, axis) for axis in range(len(seen.tree.columns))]
    named = [axis for axis in every if axis.column != LAYER]
    axes, across = named[:2], [axis for axis in every if axis not in named[:2]]
    boxes = {region.path: region.box.spans for region in seen.tree.regions()}
    cut = [r for r in seen.contents.regions if all(axis.holds(boxes[r.path][axis.axis]) for axis in across)]
    shown = sorted(cut, key=lambda region: -region.bytes)[:DRAWN_MAX]
    staged = [f for f in staged_files(seen) if all(axis.reaches(f.extents[axis.axis]) for axis in across)]
    slabs = [any(not boxes[r.path][axis.axis].values for r in shown) for axis in axes]
    return {
        "version": seen.version,
        "columns": [axis.column.name for axis in named],
        "axes": [_axis(axis, slab=slab) for axis, slab in zip(axes, slabs, strict=True)],
        "at": [f"{a.column.name} = {label(a.column, a.median)}" for a in across if a.median is not None and a in named],
        "regions": [
            {
                "box": _rectangle([axis.of_span(boxes[r.path][axis.axis]) for axis in axes]),
                "filled": round(r.bytes / max(seen.target_bytes, 1), 3),
                "title": f"region {r.path or ROOT}: {_sides(axes, boxes[r.path])}\n"
                f"{quantity(r.rows, 'row')} in {quantity(r.files, 'file')}, "
                f"{size(r.bytes)}, {size(r.staged_bytes)} of it staged",
            }
            for r in shown
        ],
        "staged": [_rectangle([a.of_extent(f.extents[a.axis]) for a in axes]) for f in staged[:DRAWN_MAX]],
        "regions_all": len(seen.contents.regions),
        "files": len(seen.files),
        "staged_files": len(staged),
        "bytes": size(seen.bytes),
        "target": size(seen.target_bytes),
        "staged_share": seen.contents.staged_share,
        "due": len(seen.due),
        "score": asdict(seen.score),
    }


def _axis(axis: Axis, *, slab: bool) -> dict[str, Any]:
    places, texts = axis.ticks(slab=slab)
    ticks = [[round(place, 4), text] for place, text in zip(places, texts, strict=True)]
    return {"name": axis.column.name, "by_rank": axis.by_rank, "from": SLAB[0] if slab else 0.0, "ticks": ticks}


def _rectangle(sides: Sequence[tuple[float, float]]) -> list[float]:
    """Return ``[x0, y0, x1, y1]``; with one column the box has the full height."""
    (x0, x1), (y0, y1) = [*sides, (0.0, 1.0)][:2]
    return [round(place, 4) for place in (x0, y0, x1, y1)]


def _sides(axes: Sequence[Axis], spans: Sequence[Any]) -> str:
    return ", ".join(f"{axis.column.name} {span_label(axis.column, spans[axis.axis])}" for axis in axes)
