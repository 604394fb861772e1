"""Rebuild a table after the database was lost: from its YAML file, the newest lake metadata, and Kafka.

Two commits: the table as it was when it was created, then the lake adopted as its next version. Between the two no
worker starts on it (`stores.guard`), and a rebuild that died there is finished by `harness reconcile TABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness_pipelines.audit.repair.batch_view import left_behind
from harness_pipelines.audit.repair.lake import apply_plan, plan_lake
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import (
    HasBufferRows,
    HasGuard,
    HasLake,
    HasLakeHistories,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasOwnership,
    HasProof,
    HasReconciler,
    HasSegments,
    HasTables,
    HasWarehouse,
)
from harness_pipelines.ports.errors import ClusterChanged, LakeHistoryMissing, LogTruncated, TopicRecreated
from harness_pipelines.ports.ledger import TableExists, TableRow, TableUnknown, view_names
from harness_pipelines.ports.repair import LakeState
from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.protocol.bounds import OffsetRange, Vector
from harness_pipelines.protocol.lake.history import Continued, continue_from
from harness_pipelines.protocol.lake.properties import STARTS, TABLE, TOPIC
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.protocol.versions import View, ViewName
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields, lake_fields, user_fields

QUARANTINE_LOST = "records that were quarantined are lost with the database; the audit names those that Kafka still has"
SNAPSHOTS_LOST = "named snapshots are lost with the database"


class Ports(
    HasBufferRows,
    HasLakeHistories,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasOwnership,
    HasProof,
    HasReconciler,
    HasSegments,
    HasGuard,
    HasTables,
    HasWarehouse,
    Protocol,
):
    """The ports that it uses."""


class SchemaDiffers(HarnessError):
    """The columns of the spec are not those of the lake."""

    way_on = "give the spec the columns of the lake"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rebuild:
    """All that a rebuild would write."""

    spec: TableSpec
    identity: TopicIdentity
    state: LakeState
    batch: View | None  #: the newest state of a batch view that was left; None: none, it is begun again
    fields: Sequence[Mapping[str, Any]]
    starts: Vector
    after: Continued
    again: tuple[OffsetRange, ...]
    lost: tuple[OffsetRange, ...]
    others: tuple[str, ...]  #: folders of the warehouse that older tables of this name left
    owner: str | None  #: whose the warehouse is, if not this ledger's
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        extents = self.state.extents
        return {
            "table": self.spec.table,
            "metadata": self.state.head.metadata,
            "partitions": [
                {
                    "partition": p,
                    "start": start,
                    "stream_hi": self.after.stream_hi[p],
                    "rows": extents[p].rows if p in extents else 0,
                }
                for p, start in sorted(self.starts.items())
            ],
            "again": [{"partition": r.partition, "low": r.low, "high": r.high} for r in self.again],
            "lost": [{"partition": r.partition, "low": r.low, "high": r.high} for r in self.lost],
            "others": list(self.others),
            "owner": self.owner,
            "notes": list(self.notes),
        }


def plan_rebuild(stores: Ports, spec: TableSpec, *, location: str | None = None) -> Rebuild:
    """What the lake and Kafka give for *spec*; changes nothing.

    Raises: TableExists, LakeHistoryMissing, SchemaDiffers, TopicRecreated, ClusterChanged, LogTruncated, HistoryBroken.
    """
    if view_set_of(spec).mixed:
        raise LakeHistoryMissing(
            f"table {spec.table} has `views: batch`, whose files mix partitions: the ledger of such a table is not "
            "rebuilt from the lake yet. Nothing was changed; `harness table apply` makes the table from Kafka alone"
        )
    _check_unknown(stores, spec)
    state, others = _newest(stores, spec, location)
    identity = stores.log.describe(spec.topic)
    notes = [*_check_topic(state, identity), QUARANTINE_LOST, SNAPSHOTS_LOST]
    marks = stores.log.watermarks(spec.topic, identity.partitions)
    starts = _starts(state, marks)
    after = continue_from(starts, state.moves, state.extents)
    for partition, high in sorted(after.stream_hi.items()):
        if partition not in marks or marks[partition].end < high:
            end = marks[partition].end if partition in marks else 0
            raise LogTruncated(spec.topic, partition=partition, expected=high, end=end)
    ranges = [(p, after.stream_hi[p], marks[p]) for p in sorted(starts)]
    return Rebuild(
        spec=spec,
        identity=identity,
        state=state,
        batch=left_behind(stores, spec, after.stream_hi) if "batch" in view_names(spec) else None,
        fields=_fields(spec, state),
        starts=starts,
        after=after,
        again=tuple(
            OffsetRange(partition=p, low=max(high, m.low), high=m.end)
            for p, high, m in ranges
            if m.end > max(high, m.low)
        ),
        lost=tuple(OffsetRange(partition=p, low=high, high=m.low) for p, high, m in ranges if m.low > high),
        others=others,
        owner=stores.ownership.stranger(),
        notes=tuple(notes),
    )


def rebuild(stores: Ports, plan: Rebuild, *, take_over: bool = False) -> TableRow:
    """Make the table of *plan*.

    Raises: WarehouseTaken unless *take_over*: the ledger that the warehouse belongs to may not be lost at all;
    TableExists, and what adopting raises; then `harness reconcile TABLE` continues.
    """
    if take_over:
        stores.ownership.take_over()
    else:
        stores.ownership.confirm()
    views: dict[ViewName, View] = {"stream": plan.state.head}
    if "batch" in view_names(plan.spec):
        told = plan.state.properties
        origin = {word: told[word] for word in (TOPIC, STARTS) if word in told}
        views["batch"] = plan.batch or stores.lake.make_batch_view(
            plan.spec, plan.fields, stream=plan.state.head.metadata, origin=origin
        )
    table = stores.ledger.create_table(plan.spec, plan.identity, starts=plan.starts, fields=plan.fields, views=views)
    apply_plan(stores, table, plan_lake(stores, table))
    return stores.ledger.table(plan.spec.table)


def _check_unknown(stores: Ports, spec: TableSpec) -> None:
    try:
        known = stores.tables.table(spec.table)
    except TableUnknown:
        return
    for view in known.views:
        stores.tables.pointer(known, view)  # one that another engine dropped is put back, not rebuilt
    raise TableExists(
        f"table {spec.table} is in the ledger: nothing is to be rebuilt. `harness reconcile {spec.table}` settles it"
    )


def _newest(stores: Ports, spec: TableSpec, location: str | None) -> tuple[LakeState, tuple[str, ...]]:
    """The newest state of the newest folder that belongs to the table, and the other folders."""
    view = f"{spec.name}__stream"
    places = [location] if location else stores.lake_histories.folders(namespace=spec.namespace, view=view)
    found = []
    why = []
    for place in places:
        try:
            state = stores.lake_histories.below(place.rstrip("/"), namespace=spec.namespace, view=view).newest()
        except LakeHistoryMissing as missing:
            why.append(str(missing))
            continue
        if state.properties.get(TABLE) == spec.table:
            found.append((state.changed_ms, place, state))
    if not found:
        detail = f": {'; '.join(why)}" if why else ""
        raise LakeHistoryMissing(
            f"{stores.warehouse} has no stream view of {spec.table}{detail}. Nothing was changed; `harness table "
            "apply` makes the table from Kafka alone"
        )
    found.sort(key=lambda one: one[:2])
    _, chosen, state = found[-1]
    return state, tuple(place for place in places if place != chosen)


def _check_topic(state: LakeState, identity: TopicIdentity) -> list[str]:
    """Offsets of another topic mean other records. Raises: TopicRecreated, ClusterChanged."""
    known = state.properties.get(TOPIC)
    if known is None:
        return ["the lake does not say which topic its rows are from (older harness): be sure that it is the same one"]
    cluster, _, topic = known.partition("/")
    if cluster != identity.cluster_id:
        raise ClusterChanged(identity.topic, expected_id=cluster, found_id=identity.cluster_id)
    if topic != identity.topic_id:
        raise TopicRecreated(identity.topic, expected_id=topic, found_id=identity.topic_id)
    return []


def _starts(state: LakeState, marks: Mapping[int, Watermark]) -> dict[int, int]:
    """The start of each partition: the view's record of it, else its first move or row, else Kafka's start."""
    told = state.properties.get(STARTS, "")
    starts = {int(p): int(o) for p, _, o in (part.partition(":") for part in told.split(",") if part)}
    for partition in sorted({*marks, *state.extents, *(p for m in state.moves for p in m.lo)}):
        first = [m.lo[partition] for m in state.moves if partition in m.lo]
        first += [state.extents[partition].low] if partition in state.extents else []
        starts.setdefault(partition, min(first, default=marks[partition].low if partition in marks else 0))
    return starts


def _fields(spec: TableSpec, state: LakeState) -> list[Mapping[str, Any]]:
    """The spec's columns with the field ids that the view has. Raises: SchemaDiffers."""
    if changes := state.schema_changes:
        raise SchemaDiffers(
            f"{spec.table}: its columns were changed (schema {changes + 1} in the lake), and only the ledger knew from "
            "which offsets on. Nothing was changed; restore a backup of Postgres or apply the spec under another name: "
            "Kafka fills it"
        )
    wanted = iceberg_fields(spec.stored)
    lake, ours = [_bare(f) for f in state.fields], [_bare(f) for f in lake_fields(wanted)]
    if lake != ours:
        odd = [f["name"] for f in lake + ours if f not in lake or f not in ours]
        raise SchemaDiffers(
            f"{spec.table}: the columns of the spec are not those of the lake: {', '.join(dict.fromkeys(odd))}; "
            "nothing was changed. Use the YAML file that the table was last applied with"
        )
    return user_fields(state.fields, wanted)


def _bare(value: Any) -> Any:
    """A field without what PyIceberg chooses or adds: ids and docs."""
    if isinstance(value, dict):
        dropped = {"id", "element-id", "key-id", "value-id", "doc", "initial-default", "write-default"}
        return {k: _bare(v) for k, v in value.items() if k not in dropped}
    return [_bare(v) for v in value] if isinstance(value, list) else value
