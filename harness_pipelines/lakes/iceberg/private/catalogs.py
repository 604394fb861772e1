"""What a catalog of PyIceberg does before it asks its database."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StagedTable, Table
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Properties


class Staging(MetastoreCatalog, NoopCatalog):
    """A catalog that stages: it writes metadata files, and knows no pointer."""

    @abstractmethod
    def opened_io(self, properties: Mapping[str, str]) -> FileIO:
        """The access to files that it writes and reads by."""

    def _load_file_io(self, properties: Properties = EMPTY_DICT, location: str | None = None) -> FileIO:
        return self.opened_io({**self.properties, **properties})

    def stage_commit(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> StagedTable:
        """Write the metadata that *updates* make of *table*."""
        return self._written(self._update_and_stage_table(table, table.name(), requirements, updates))

    def stage_table(
        self,
        identifier: tuple[str, str],
        schema: Schema,
        location: str,
        *,
        spec: PartitionSpec,
        order: SortOrder,
        properties: dict[str, str],
        last_column_id: int | None = None,
    ) -> StagedTable:
        """Write the first metadata of a table; with *last_column_id* the columns of *schema* keep their ids."""
        staged = self._create_staged_table(identifier, schema, location, spec, order, properties)
        if last_column_id is not None:  # PyIceberg has given others
            schema = schema.model_copy(update={"schema_id": staged.metadata.current_schema_id})
            given = {"schemas": [schema], "last_column_id": max(last_column_id, schema.highest_field_id)}
            staged.metadata = staged.metadata.model_copy(update=given)
        return self._written(staged)

    def _written(self, staged: StagedTable) -> StagedTable:
        self._write_metadata(metadata=staged.metadata, io=staged.io, metadata_path=staged.metadata_location)
        return staged
