"""A table of two rows on trial: whether two engines read in a warehouse what the other has written."""

from __future__ import annotations

from uuid import uuid4

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from harness_pipelines.drivers.object_stores.probe import FOLDER
from harness_pipelines.lakes.iceberg.catalog import Arrangement, StagingCatalog

NAMESPACE = "harness_doctor"
COLUMN = "n"
PROPERTIES = {"format-version": "2", "gc.enabled": "false"}


class TrialTable:
    """Its files lie in the folder of the warehouse that no table of the harness has."""

    def __init__(self, name: str, *, warehouse: str) -> None:
        self.table = f"t_{uuid4().hex}"
        self.folder = f"{warehouse.rstrip('/')}/{FOLDER}/{self.table}"
        self._catalog = StagingCatalog(name, warehouse=warehouse)

    @property
    def identifier(self) -> tuple[str, str]:
        return NAMESPACE, self.table

    def write(self, value: int) -> str:
        """Make the table with one row; returns its metadata file. Raises: OSError."""
        schema = Schema(NestedField(field_id=1, name=COLUMN, field_type=LongType(), required=False))
        made = self._catalog.stage_new(
            self.identifier, schema=schema, location=self.folder, properties=PROPERTIES, arrangement=Arrangement.NONE
        )
        made.append(pa.table({COLUMN: pa.array([value], pa.int64())}))
        return made.metadata_location

    def read(self, metadata: str) -> list[int]:
        """The values that *metadata* fixes, in order. Raises: OSError, MetadataMissing."""
        found = self._catalog.at(self.identifier, metadata).scan().to_arrow()
        return sorted(found.column(COLUMN).to_pylist())
