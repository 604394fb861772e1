"""The metadata file of a cut: a table of one snapshot, without a past."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import orjson

from harness_pipelines.lakes.iceberg.cuts.avro import FORMAT
from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.cuts.manifests import Stamp
from harness_pipelines.lakes.iceberg.cuts.shape import CutShape

#: Of every cut. No engine that "drops" a table deletes files of it.
_PROPERTIES: Mapping[str, str] = {"gc.enabled": "false"}


def snapshot(
    shape: CutShape, *, manifest_list: str, stamp: Stamp, timestamp_ms: int, summary: Mapping[str, str]
) -> dict[str, Any]:
    """The only snapshot.

    It says that it overwrote: a reader that follows a table by appends would take new rows for all there is to read.
    """
    return {
        "snapshot-id": stamp.snapshot,
        "sequence-number": stamp.sequence,
        "timestamp-ms": timestamp_ms,
        "manifest-list": manifest_list,
        "summary": {"operation": "overwrite", **summary},
        "schema-id": shape.schema.schema_id,
    }


def write_metadata(
    place: Place, shape: CutShape, head: Mapping[str, Any], *, location: str, properties: Mapping[str, str]
) -> str:
    """Write the metadata whose main names *head*; return where it is. Raises: OSError, StoreRefused.

    The logs are empty: DuckDB looks a snapshot up by its time there. All cuts of a table have one partitioning,
    whichever view is below: Flink loads a table several times for one query, and fails where it was partitioned and is
    no longer. How files are partitioned their manifests say. Writers are refused; what they wrote before that goes to a
    folder of the fresh folder.
    """
    # ClickHouse wants a number of 32 bits in the name, which ours is not.
    path = place.metadata_file(f"00000-{uuid4()}.metadata.json")
    written = {"write.data.path": f"{place.refused}/data", "write.metadata.path": f"{place.refused}/metadata"}
    told = {
        "format-version": FORMAT,
        "table-uuid": str(place.uuid),
        "location": location,
        "last-sequence-number": head["sequence-number"],
        "last-updated-ms": head["timestamp-ms"],
        "last-column-id": shape.last_column_id,
        "current-schema-id": shape.schema.schema_id,
        "schemas": [shape.schema_form],
        "default-spec-id": shape.plain.spec_id,
        "partition-specs": shape.spec_forms,
        "last-partition-id": shape.last_partition_id,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {**_PROPERTIES, **written, **properties},
        "current-snapshot-id": head["snapshot-id"],
        "refs": {"main": {"snapshot-id": head["snapshot-id"], "type": "branch"}},
        "snapshots": [dict(head)],
        "snapshot-log": [],
        "metadata-log": [],
        "statistics": [],
        "partition-statistics": [],
    }
    place.put(path, orjson.dumps(told))
    return path
