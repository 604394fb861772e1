"""What is kept of the shape of data files is that of the very columns that they get."""

from __future__ import annotations

from pathlib import Path

from pyiceberg.table.update import AddSchemaUpdate, SetCurrentSchemaUpdate

from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog, view_schema
from harness_pipelines.lakes.iceberg.write.attempt_files import _shape_of

ID = {"id": 1, "name": "id", "type": "int", "required": False}
FIRST = view_schema([ID])
WIDER = view_schema([{**ID, "type": "long"}]).model_copy(update={"schema_id": 1})
OTHER = view_schema([ID, {"id": 2, "name": "n", "type": "int", "required": False}]).model_copy(update={"schema_id": 1})


def test_two_changes_of_one_view_that_gave_one_number_to_their_schemas_have_two_shapes(tmp_path: Path):
    """As of another writer's change that was undone with its metadata file, and the change that was made then."""
    catalog = StagingCatalog("c", warehouse=tmp_path.as_uri())
    place = f"{tmp_path.as_uri()}/a/b"
    view = catalog.stage_new(("a", "b"), schema=FIRST, location=place, properties={}, arrangement=Arrangement.NONE)
    found = []
    for schema in (WIDER, OTHER):
        updates = (AddSchemaUpdate(schema_=schema), SetCurrentSchemaUpdate(schema_id=-1))
        metadata = catalog.commit_table(view, (), updates).metadata
        found.append((metadata.current_schema_id, _shape_of(metadata, metadata.schema())))
    (first, wider), (second, other) = found
    assert first == second == 1
    assert wider.named.field("id").type == "int64"
    assert other.named.field("id").type == "int32"
    assert other.named.names[:2] == ["id", "n"]
