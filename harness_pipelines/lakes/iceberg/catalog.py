"""PyIceberg without a catalog's database: commits stage, and the ledger publishes.

What it takes of ``MetastoreCatalog`` that PyIceberg does not promise is in `private/catalogs.py`; each name has a test
in ``unit/lakes/test_catalog.py``.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.transforms import IdentityTransform

from harness_pipelines.drivers.file_notes import FileNotes
from harness_pipelines.lakes.iceberg.checked_io import CheckedIO, StoreIO
from harness_pipelines.lakes.iceberg.parquet import write_checksums
from harness_pipelines.lakes.iceberg.private.catalogs import Staging
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, listed_in, main_list, manifests_of, metadata_of
from harness_pipelines.ports.errors import MetadataMissing
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.lake.reach import Main

#: Iceberg's JSON form of the coordinate columns; PyIceberg gives every new table other ids.
COORDINATE_FIELDS: tuple[Mapping[str, Any], ...] = (
    {"id": 1_000_001, "name": "_kafka_partition", "type": "int", "required": True},
    {"id": 1_000_002, "name": "_kafka_offset", "type": "long", "required": True},
    {"id": 1_000_003, "name": "_kafka_timestamp", "type": "timestamptz", "required": False},
    {"id": 1_000_004, "name": "_op", "type": "string", "required": True},
    {"id": 1_000_005, "name": "_schema_version", "type": "int", "required": True},
)
_COORDINATE_NAMES = frozenset(field["name"] for field in COORDINATE_FIELDS)
PARTITION_ID, OFFSET_ID = 1_000_001, 1_000_002
BY_PARTITION = PartitionSpec(
    PartitionField(source_id=PARTITION_ID, field_id=1000, transform=IdentityTransform(), name="_kafka_partition")
)
BY_OFFSET = SortOrder(SortField(source_id=OFFSET_ID, transform=IdentityTransform()))
BY_COORDINATE = SortOrder(
    SortField(source_id=PARTITION_ID, transform=IdentityTransform()),
    SortField(source_id=OFFSET_ID, transform=IdentityTransform()),
)


class Arrangement(Enum):
    """How the rows of a view lie in its files."""

    NONE = (PartitionSpec(), SortOrder())
    NARROW = (BY_PARTITION, BY_OFFSET)  #: of one Kafka partition each, by offset
    WIDE = (PartitionSpec(), BY_COORDINATE)  #: by Kafka partition and offset


class StagingCatalog(Staging):
    """A catalog whose `commit_table` writes the new metadata file and knows no pointer.

    So that anything PyIceberg can do to a table (append, branch, snapshot removal, schema change) is staged on the
    metadata that it was built on, and the ledger moves the pointer in its own transaction. What would ask a catalog's
    database (`load_table`, `drop_table`, ...) is not implemented: where a view is says the ledger.
    """

    def __init__(self, name: str, *, warehouse: str, digests: FileNotes | None = None) -> None:
        super().__init__(name, warehouse=warehouse)
        self.digests = digests  #: where it is noted what was written; None: nowhere
        write_checksums()

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Write the metadata that *updates* make of *table*; the response names the new file."""
        staged = self.stage_commit(table, requirements, updates)
        self._flush()
        return CommitTableResponse(metadata=staged.metadata, metadata_location=staged.metadata_location)

    def opened_io(self, properties: Mapping[str, str]) -> FileIO:
        return CheckedIO(StoreIO(dict(properties)), self.digests)

    def _flush(self) -> None:
        if self.digests is not None:
            self.digests.flush()

    def at(self, identifier: tuple[str, str], metadata_location: str) -> Table:
        """The table as one metadata file fixes it. Raises: MetadataMissing."""
        io = self.opened_io(self.properties)
        return Table(
            identifier=identifier,
            metadata=read_metadata(io, metadata_location),
            metadata_location=metadata_location,
            io=io,
            catalog=self,
        )

    def reached(self, identifier: tuple[str, str], *, current: str, known: Container[str] = ()) -> set[str]:
        """Every file that a metadata file names by any of its snapshots, but for those whose manifest list is *known*.

        Each manifest list and manifest is read once. Raises: MetadataMissing, ManifestDamaged, OSError.
        """
        view, files = self.at(identifier, current), set[str]()
        for snapshot in view.metadata.snapshots:
            if snapshot.manifest_list in files or snapshot.manifest_list in known:
                continue
            files.add(snapshot.manifest_list)
            for manifest in manifests_of(snapshot, view.io):
                if manifest.manifest_path not in files:
                    files |= {manifest.manifest_path, *columns_of(manifest, view.io).paths()}
        return files

    def lists(self, identifier: tuple[str, str], metadata: str) -> list[str]:
        """The manifest lists of all snapshots that *metadata* names. Raises: MetadataMissing."""
        return [snapshot.manifest_list for snapshot in self.at(identifier, metadata).metadata.snapshots]

    def main(self, metadata: str, *, known: Container[str] = ()) -> Main:
        """What main of *metadata* reaches; no manifest that is *known* is opened.

        Raises: MetadataMissing, ManifestDamaged, OSError.
        """
        io = self.opened_io(self.properties)
        with _metadata_named(metadata):
            manifest_list = main_list(metadata, io)
        manifests = {
            manifest.manifest_path: None if manifest.manifest_path in known else columns_of(manifest, io).paths()
            for manifest in ([] if manifest_list is None else listed_in(manifest_list, io))
        }
        return Main(metadata=metadata, manifest_list=manifest_list, manifests=manifests)

    def earlier(self, identifier: tuple[str, str], metadata: str) -> set[str]:
        """The metadata files that *metadata* follows, as far as it says. Raises: MetadataMissing."""
        return {entry.metadata_file for entry in self.at(identifier, metadata).metadata.metadata_log}

    def folder(self, identifier: tuple[str, str], metadata: str) -> str:
        """Where the files of the view lie. Raises: MetadataMissing."""
        return self.at(identifier, metadata).location()

    def branches(self, identifier: tuple[str, str], metadata: str) -> list[str]:
        """All that *metadata* names, main too. Raises: MetadataMissing."""
        return list(self.at(identifier, metadata).metadata.refs)

    def stage_new(
        self,
        identifier: tuple[str, str],
        *,
        schema: Schema,
        location: str,
        properties: Mapping[str, str],
        arrangement: Arrangement = Arrangement.NARROW,
        last_column_id: int | None = None,
    ) -> Table:
        """Stage a new view and write its first metadata.

        Its columns get ids from 1 on, unless *last_column_id* says up to which one those of *schema*, which stay, and
        others before them were given.
        """
        spec, order = arrangement.value
        staged = self.stage_table(
            identifier,
            schema,
            location,
            spec=spec,
            order=order,
            properties=dict(properties),
            last_column_id=last_column_id,
        )
        self._flush()
        return self.at(identifier, staged.metadata_location)


def is_wide(metadata: TableMetadata) -> bool:
    """Whether files of a view mix Kafka partitions, by partition and offset, and say what they have of each."""
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    return not metadata.spec().fields and order is not None and len(order.fields) == len(BY_COORDINATE.fields)


def view_schema(fields: Sequence[Mapping[str, Any]]) -> Schema:
    """The schema of a view: the user's columns, then the coordinates."""
    return Schema.model_validate({"type": "struct", "fields": [*fields, *COORDINATE_FIELDS]})


def schema_beside(view: Schema, fields: Sequence[Mapping[str, Any]]) -> Schema:
    """The schema of a view with the user's columns *fields*, and the coordinates that the *view* beside it has."""
    coordinates = [f.model_dump(mode="json", by_alias=True) for f in view.fields if f.name in _COORDINATE_NAMES]
    return Schema.model_validate({"type": "struct", "fields": [*fields, *coordinates]})


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """The metadata that a file holds; immutable, so it is parsed once. Raises: MetadataMissing."""
    with _metadata_named(location):
        return metadata_of(location, io)


@contextmanager
def _metadata_named(location: str) -> Iterator[None]:
    """Raises: MetadataMissing, for what stands in the way of reading a metadata file."""
    try:
        yield
    except FileDamaged as error:
        raise MetadataMissing(f"metadata file {error}") from error
    # A file without its end: its writer died, or is writing it. Nothing names it yet.
    except (OSError, ValueError, ValidationError) as error:
        raise MetadataMissing(
            f"metadata file {location} cannot be read: {error}; `harness fsck` names what is gone"
        ) from error
