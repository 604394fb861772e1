"""Values of the protocol as the parameters of statements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.ports.ledger import LayoutState
from harness_pipelines.protocol.bounds import Vector, vector_to_json
from harness_pipelines.protocol.versions import Version


def of_names(names: Collection[str] | None) -> dict[str, Any]:
    """Tables called ``namespace.name``; None: all."""
    parts = None if names is None else [name.partition(".") for name in names]
    return {
        "namespaces": parts and [namespace for namespace, _, _ in parts],
        "names": parts and [short for _, _, short in parts],
    }


def of_version(value: Version) -> dict[str, Any]:
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


def of_layout(version: Version, layout: LayoutState) -> dict[str, Any]:
    return {
        "table_id": version.table_id,
        "version": version.version,
        "tree": layout.tree,
        "digest": layout.digest,
        "clustered": Jsonb(dict(layout.clustered)),
        "scores": Jsonb(dict(layout.scores)),
    }


def json(value: Mapping[str, Any]) -> Jsonb:
    return Jsonb(dict(value))


def vector(value: Vector) -> Jsonb:
    return Jsonb(vector_to_json(value))
