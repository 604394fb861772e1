"""Change the schema of a view in its metadata; files stay unchanged and are read by field id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemovePropertiesUpdate,
    RemoveSchemasUpdate,
    SetCurrentSchemaUpdate,
    SetPropertiesUpdate,
)

from harness_pipelines.lakes.iceberg.private.tables import Changes, apply
from harness_pipelines.lakes.iceberg.write.commits import brought
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import Swap
from harness_pipelines.protocol.lake.properties import COMMENT, EVOLVED, OWNERS, TAGS, properties_of
from harness_pipelines.protocol.versions import View, ViewName
from harness_pipelines.spec.types import lake_fields

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.schema.evolution import Evolved


class IcebergSchemas:
    """`SchemaBuilds` over PyIceberg."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake

    def next_field_id(self, table: TableRow) -> int:
        """An id that no view of *table* has used: a column has the same in all of them."""
        return max(self._lake.current(table, view).metadata.last_column_id for view in table.views) + 1

    def build(self, table: TableRow, evolved: Evolved, *, move_id: int, view: ViewName, base: str) -> Swap:
        """Write the metadata of *view* with the fields of *evolved*, on top of the metadata file *base*.

        The coordinates and what else is not the user's stay behind them. Raises: LakeAway, MetadataMissing.
        """
        current = self._lake.load(table, base, view=view)
        snapshot = current.metadata.current_snapshot_id or -1
        with reachable(table.name, "writing the new schema"), Changes(current) as transaction:
            schema = evolved_schema(current.schema(), table, evolved)
            attempt = f"{move_id}/{self._lake.pointers.nonce_of(move_id)}"
            told = SetPropertiesUpdate(updates={EVOLVED: attempt, **properties_of(evolved.spec)})
            apply(transaction, (AddSchemaUpdate(schema_=schema), SetCurrentSchemaUpdate(schema_id=-1), told))
            gone = [name for name in (COMMENT, OWNERS, TAGS) if name in current.properties and name not in told.updates]
            if gone:
                apply(transaction, (RemovePropertiesUpdate(removals=gone),))
            if unused := unused_schemas(transaction.table_metadata):
                apply(transaction, (RemoveSchemasUpdate(schema_ids=unused),))
        return Swap(
            view=view,
            old=base,
            base_snapshot=snapshot,
            new=View(metadata=current.metadata_location, snapshot=snapshot),
            built=brought(current),
        )


def unused_schemas(metadata: TableMetadata) -> list[int]:
    """Ids of the schemas that no snapshot in *metadata* was written with: each commit would parse them again.

    An older version has its own metadata file, with the schema that was current then.
    """
    used = {metadata.current_schema_id, *(snapshot.schema_id for snapshot in metadata.snapshots)}
    return [schema.schema_id for schema in metadata.schemas if schema.schema_id not in used]


def evolved_schema(present: Schema, table: TableRow, evolved: Evolved) -> Schema:
    """*present* with the user's fields of *evolved* instead of those of *table*."""
    users = {field["id"] for field in table.fields}
    others = [f.model_dump(mode="json", by_alias=True) for f in present.fields if f.field_id not in users]
    fields = [*lake_fields(evolved.fields), *others]
    return Schema.model_validate({"type": "struct", "fields": fields, "schema-id": present.schema_id + 1})
