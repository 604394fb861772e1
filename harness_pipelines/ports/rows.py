"""Rows of the ledger and of the buffer, whatever read them, as the values of the ports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from json import dumps, loads
from typing import Any

from harness_pipelines.ports.ledger import (
    IngestPosition,
    PartitionStatus,
    ReadState,
    Segment,
    TableDamaged,
    TableRow,
)
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import Bounds, vector_from_json
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.overlays import overlays_from_json
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.reading.reads import cut_now, cut_of_version
from harness_pipelines.protocol.schema.schemas import SchemaRow
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.spec.load import read_back
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError

Row = Mapping[str, Any]
_OF_NOW = ("positions", "segments", "now")
SPECS_KEPT = 1024  #: that were read back; to read one takes longer than to ask for its row


def table_row(row: Row) -> TableRow:
    """Raises: TableDamaged."""
    name = f"{row['namespace']}.{row['name']}"
    if row["history"] is None:
        raise damaged(name, "its schemas are gone from harness.schemas")
    try:
        spec = _spec_of(dumps(row["spec"]), name)
        history = tuple(schema_row(one) for one in row["history"])
    except (SpecError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise damaged(name, " ".join(str(error).split())[:300]) from error
    if spec.table != name:
        raise damaged(name, f"it is the spec of {spec.table}")
    return TableRow(
        table_id=row["table_id"],
        spec=spec,
        identity=TopicIdentity(
            cluster_id=row["cluster_id"], topic=row["topic"], topic_id=row["topic_id"], partitions=()
        ),
        retained_from=row["retained_from"],
        stopped=row["stopped"],
        history=history,
        spec_hash=row["spec_hash"],
    )


@lru_cache(SPECS_KEPT)
def _spec_of(text: str, name: str) -> TableSpec:
    """The same words are the same spec, which never changes. Raises: SpecError."""
    return read_back(loads(text), source=name)


def damaged(name: str, why: str) -> TableDamaged:
    """The report of a table whose spec or schemas cannot be read."""
    return TableDamaged(
        f"the spec of {name} in harness.tables cannot be read: {why}. No worker runs it; all other tables continue. "
        "Bring the row back from a backup, or as the owner of the database: the newest row of harness.schemas has the "
        f"spec that its schema was made with; or `harness table drop {name} --dry-run`, and apply its spec again"
    )


def schema_row(row: Row) -> SchemaRow:
    return SchemaRow(
        schema_version=row["schema_version"],
        fields=tuple(row["fields"]),
        spec=row["spec"],
        starts=vector_from_json(row["starts"]),
    )


def claim(row: Row) -> Claim:
    return Claim(
        table_id=row["table_id"],
        stage=Stage(row["stage"]),
        shard=row["shard"],
        holder=str(row["holder"]),
        epoch=row["epoch"],
        lease_until=row["lease_until"],
    )


def move(row: Row) -> Move:
    return Move(
        move_id=row["move_id"],
        table_id=row["table_id"],
        stage=Stage(row["stage"]),
        shard=row["shard"],
        lo=vector_from_json(row["lo"]),
        hi=vector_from_json(row["hi"]),
        base_version=row["base_version"],
        schema_version=row["schema_version"],
        state=MoveState(row["state"]),
        attempt=row["attempt"],
        epoch=row["epoch"],
        rows=row["rows"],
        parts=tuple(row["parts"]),
        recall=row["recall"],
        nonce="" if row["nonce"] is None else str(row["nonce"]),
    )


def version(row: Row) -> Version:
    return Version(
        table_id=row["table_id"],
        version=row["version"],
        stream=View(metadata=row["stream_metadata"], snapshot=row["stream_snapshot"]),
        schema_version=row["schema_version"],
        bounds={int(p): Bounds(**b) for p, b in row["bounds"].items()},
        move_id=row["move_id"],
        committed_at=row["committed_at"],
        batch=None
        if row["batch_metadata"] is None
        else View(metadata=row["batch_metadata"], snapshot=row["batch_snapshot"]),
        layout=row["layout"],
        revert_of=row["revert_of"],
        overlays=overlays_from_json(row["overlays"]),
        narrowed=row["narrowed"],
    )


def ingest_position(row: Row) -> IngestPosition:
    return IngestPosition(
        partition=row["partition"],
        start=row["start"],
        buffer_hi=row["buffer_hi"],
        leader_epoch=row["leader_epoch"],
        schema_version=row["schema_version"],
    )


def partition_status(row: Row) -> PartitionStatus:
    """Raises: BoundsBroken."""
    bounds = Bounds(**{name: row[name] for name in ("start", "batch_hi", "stream_hi", "buffer_hi")})
    return PartitionStatus(partition=row["partition"], bounds=bounds, trim_floor=row["trim_floor"])


def segment(row: Row) -> Segment:
    return Segment(
        name=row["segment"],
        seq=row["seq"],
        state=row["state"],
        schema_version=row["schema_version"],
        max_hi=None if row["max_hi"] is None else vector_from_json(row["max_hi"]),
        created_at=row["created_at"],
        retired_at=row["retired_at"],
        packed=tuple(row["packed"]),
    )


def state_of(
    row: Mapping[str, Any], *, later: Iterable[Version] | None = None, named: Mapping[int, Bounds] | None = None
) -> ReadState:
    """What a *row* of a look tells: of this instant, or of the version that was asked for with those that came *later*.

    *named* are the bounds of a snapshot of the version.
    """
    seen = version(row) if named is None else replace(version(row), bounds=named)
    positions = {
        int(p): Bounds(start=start, batch_hi=start, stream_hi=start, buffer_hi=buffer_hi)
        for p, (start, buffer_hi) in (row["positions"] or {}).items()
    }
    segments = [segment(_times(s)) for s in row["segments"]]
    cut = cut_now(seen, positions, segments) if later is None else cut_of_version(seen, later, segments)
    return ReadState(
        version=seen,
        bounds=cut.bounds,
        segments=tuple(s.ref for s in cut.segments),
        lease_id=str(row["lease_id"] or ""),
        lease_until=row["until"] or row["now"],
        answered_by=cut.answered_by,
    )


def state_seen(row: Row) -> ReadState:
    """The state at the instant of a *row*, without a lease. Its `head` is the newest version, as JSON."""
    head = {**row["head"], "committed_at": datetime.fromisoformat(row["head"]["committed_at"])}
    return state_of({**head, **{word: row[word] for word in _OF_NOW}, "lease_id": None, "until": None})


def _times(segment: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no timestamps: turn those of a segment row back."""
    return {
        **segment,
        "created_at": datetime.fromisoformat(segment["created_at"]),
        "retired_at": segment["retired_at"] and datetime.fromisoformat(segment["retired_at"]),
    }
