"""The batch view after a lost or restored ledger: it is derived, so it is adopted only if that is safe.

Its newest state is kept if it reaches no further than the stream view, all its files exist, and no row of it
was recalled: such rows are in a former database, and in the stream view. Else an empty one is
begun in its own folder and otree merges again; expire removes what was.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from harness_pipelines.ports.access import HasLake, HasLakeHistories, HasProof, HasTables
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.ports.ledger import TableRow, view_names
from harness_pipelines.ports.repair import LakeHistory, LakeState, NewBatch
from harness_pipelines.protocol.bounds import Vector, covers
from harness_pipelines.protocol.lake.overlays import told
from harness_pipelines.protocol.lake.properties import STARTS, TABLE, TOPIC, vector_text
from harness_pipelines.protocol.versions import View
from harness_pipelines.spec.table import TableSpec


class Ports(HasLake, HasLakeHistories, HasProof, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """The batch view of the next version, in place of the one that the catalog names."""

    pointer: str  #: what the catalog names now
    view: View | None  #: a state of the lake; None: an empty view is begun
    batch_hi: Vector = field(default_factory=dict)

    @property
    def act(self) -> str:
        if self.view is None:
            return "begin the batch view again: otree merges again what the stream view has"
        return f"take over the batch view of {self.view.metadata}"

    def to_json(self) -> dict[str, Any]:
        return {"adopted": self.view and self.view.metadata, "batch_hi": {str(p): o for p, o in self.batch_hi.items()}}


def plan_batch(stores: Ports, table: TableRow, stream_hi: Vector, *, kept: Vector | None = None) -> BatchPlan | None:
    """Decide what becomes of the batch view of *table*, whose stream view reaches to *stream_hi*.

    ``None`` if nothing does: there is none beside it, or the one that the catalog names is whole and reaches to *kept*.
    """
    if not table.view_set.merged:
        return None
    pointer = stores.tables.pointer(table, "batch")
    history = stores.lake_histories.of(table, pointer, view="batch")
    if kept is not None and _is_whole(history, pointer, kept, overlays=_overlays(stores, table)):
        return None
    state = _newest(history, stream_hi)
    if state is None:
        return BatchPlan(pointer=pointer, view=None)
    return BatchPlan(pointer=pointer, view=state.head, batch_hi=state.reached)


def made(stores: Ports, table: TableRow, plan: BatchPlan) -> NewBatch:
    """Return the view that *plan* names; an empty one is written now and visible once published. Raises: LakeAway."""
    if plan.view is not None:
        return NewBatch(pointer=plan.pointer, view=plan.view, batch_hi=plan.batch_hi, keeps_layout=True)
    starts = {p.partition: p.bounds.start for p in stores.tables.positions(table)}
    origin = {TOPIC: f"{table.identity.cluster_id}/{table.identity.topic_id}", STARTS: vector_text(starts)}
    stream = stores.lake.pointer(table, "stream")
    empty = stores.lake.make_batch_view(table.spec, table.fields, stream=stream, origin=origin)
    return NewBatch(pointer=plan.pointer, view=empty, batch_hi={}, keeps_layout=False)


def left_behind(stores: Ports, spec: TableSpec, stream_hi: Vector) -> View | None:
    """The newest state of a batch view that a lost ledger left in the warehouse, if it can be taken over."""
    view = view_names(spec)["batch"]
    found = []
    for place in stores.lake_histories.folders(namespace=spec.namespace, view=view):
        history = stores.lake_histories.below(place, namespace=spec.namespace, view=view)
        state = _newest(history, stream_hi)
        if state is not None and state.properties.get(TABLE) == spec.table:
            found.append((state.changed_ms, place, state.head))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _overlays(stores: Ports, table: TableRow) -> str | None:
    """What the ledger says of recalled rows; None where a table of them is gone."""
    overlays = stores.tables.head(table).overlays
    return told(overlays) if {one.segment for one in overlays} <= stores.proof.overlay_tables(table) else None


def _is_whole(history: LakeHistory, pointer: str, reaches: Vector, *, overlays: str | None) -> bool:
    try:
        state = history.at(pointer)
    except MetadataMissing:
        return False
    is_same = state.recalled == overlays and all(state.reached.get(p, o) == o for p, o in reaches.items())
    return state.is_sound and is_same


def _newest(history: LakeHistory, stream_hi: Vector) -> LakeState | None:
    """The newest state that can be read, if it is whole and reaches no further than *stream_hi*.

    None that is older is looked for: what a batch view lacks is merged again at the cost of a merge.
    """
    state = history.newest_readable()
    if state is None or not state.is_sound or state.recalled or not covers(stream_hi, state.reached):
        return None
    return state
