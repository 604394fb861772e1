"""Database rows of the ledger to the values of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.ports.ledger import IngestPosition, LayoutState, Segment, TableDamaged, TableRow
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import Bounds, Vector, vector_from_json, vector_to_json
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.overlays import overlays_from_json
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.schema.schemas import SchemaRow
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.spec.table import TableSpec

Row = Mapping[str, Any]


def table_row(row: Row) -> TableRow:
    """Raises: TableDamaged."""
    name = f"{row['namespace']}.{row['name']}"
    if row["history"] is None:
        raise damaged(name, "its schemas are gone from harness.schemas")
    try:
        spec = TableSpec.model_validate(row["spec"])
        history = tuple(schema_row(one) for one in row["history"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
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
    )


def damaged(name: str, why: str) -> TableDamaged:
    """What a table is told as whose spec or schemas cannot be understood."""
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


def version_parameters(value: Version) -> dict[str, Any]:
    return {
        "table_id": value.table_id,
        "version": value.version,
        "stream_metadata": value.stream.metadata,
        "stream_snapshot": value.stream.snapshot,
        "batch_metadata": value.batch and value.batch.metadata,
        "batch_snapshot": value.batch and value.batch.snapshot,
        "layout": value.layout,
        "schema_version": value.schema_version,
        "bounds": Jsonb({str(p): value.bounds[p].to_json() for p in sorted(value.bounds)}),
        "overlays": Jsonb([one.to_json() for one in value.overlays]),
        "narrowed": value.narrowed,
        "move_id": value.move_id,
        "revert_of": value.revert_of,
        "committed_at": value.committed_at,
    }


def layout_parameters(version: Version, layout: LayoutState) -> dict[str, Any]:
    return {
        "table_id": version.table_id,
        "version": version.version,
        "tree": layout.tree,
        "digest": layout.digest,
        "clustered": Jsonb(dict(layout.clustered)),
        "scores": Jsonb(dict(layout.scores)),
    }


def ingest_position(row: Row) -> IngestPosition:
    return IngestPosition(
        partition=row["partition"],
        start=row["start"],
        buffer_hi=row["buffer_hi"],
        leader_epoch=row["leader_epoch"],
        schema_version=row["schema_version"],
    )


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


def json(value: Mapping[str, Any]) -> Jsonb:
    return Jsonb(dict(value))


def vector(value: Vector) -> Jsonb:
    return Jsonb(vector_to_json(value))
