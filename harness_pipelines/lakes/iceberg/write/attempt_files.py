"""Data files of one attempt, written without Spark, and the snapshot of its branch that names them.

They are what Iceberg's writer in Spark makes of the same rows: its options of Parquet, its row groups, its bounds and
counts, its sort order. So files of both lie beside each other in one view.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.catalog import is_wide
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.parquet import RowGroups, told_of_file
from harness_pipelines.lakes.iceberg.private.tables import Changes
from harness_pipelines.lakes.iceberg.write import extents
from harness_pipelines.lakes.iceberg.write.file_shape import FileShape
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.errors import LakeAway, StagedWrong
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.coordinates import PARTITION
from harness_pipelines.protocol.lake.properties import summary_of
from harness_pipelines.protocol.reading.queries import schema_of

if TYPE_CHECKING:
    from harness_pipelines.lakes.iceberg.write.publish import Lake
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.moves import Move

BRANCH_TRIES = 10
FILE_BYTES = 512 * 2**20  #: Iceberg's default of `write.target-file-size-bytes`
GROUP_BYTES = 128 * 2**20  #: of `write.parquet.row-group-size-bytes`
SLICE_ROWS = 65_536  #: a file may be found to be large enough after each
_SHAPE_BYTES = 64 * 2**10  #: about what one takes
_ENGINE = {"engine-name": "arrow", "engine-version": version("pyarrow")}  #: as Spark's snapshots name theirs


class IcebergAttemptFiles:
    """`harness_pipelines.ports.lake_writes.AttemptFiles` of one attempt in *view*."""

    def __init__(self, table: TableRow, move: Move, view: Table) -> None:
        self.view, self._table, self._move, self._io = view, table, move, view.io
        self._metadata: TableMetadata = view.metadata
        self._schema = _schema_of(table, move, view.metadata)
        self._shape = _shape_of(view.metadata, self._schema)
        self._places = load_location_provider(view.metadata.location, view.metadata.properties)
        self._write_id, self.written = uuid4(), list[DataFile]()

    @property
    def schema(self) -> pa.Schema:
        """The columns of the view, in order."""
        return self._shape.named

    @property
    def is_partitioned(self) -> bool:
        """Whether a file may have rows of one partition alone."""
        return not self._metadata.spec().is_unpartitioned()

    def write(self, tables: Iterable[pa.Table], *, partition: int | None = None, file_bytes: int | None = None) -> None:
        file_max = file_bytes or self._limit(TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, FILE_BYTES)
        file: _OpenFile | None = None
        try:
            for rows in self._sliced(tables):
                if file is None:
                    file = self._begin(partition)
                with self._explained():
                    file.write(rows, file_max)
                if file.is_full:
                    self._end(file)
                    file = None
            if file is not None:
                self._end(file)
        except BaseException:  # whatever it is: half of a file is of no use
            if file is not None:
                file.abandon()
            raise

    def abandon(self) -> None:
        """Remove the files, which nothing names. One that stays is an orphan, which expire removes."""
        for file in self.written:
            with suppress(OSError, HarnessError):
                self._io.delete(file.file_path)

    def _sliced(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for rows in tables:
            try:
                fitting = self._shape.stored_rows(rows.select(self.schema.names))
            except (KeyError, ValueError, pa.ArrowException) as error:
                raise _unfit(self._table, self._move, error) from error
            for first in range(0, fitting.num_rows, SLICE_ROWS):
                yield fitting.slice(first, SLICE_ROWS)

    def _limit(self, name: str, default: int) -> int:
        return property_as_int(self._metadata.properties, name, default) or default

    def _begin(self, partition: int | None) -> _OpenFile:
        spec, schema = self._metadata.spec(), self._schema
        key = None
        if self.is_partitioned:
            key = PartitionKey([PartitionFieldValue(spec.fields[0], partition)], spec, schema)
        name = f"00000-{len(self.written)}-{self._write_id}-arrow.parquet"
        path = self._places.new_data_location(name, key)
        group_bytes = self._limit(TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, GROUP_BYTES)
        with self._explained():
            return _OpenFile(self._io, path, self._shape, key.partition if key else Record(), group_bytes)

    def _end(self, file: _OpenFile) -> None:
        with self._explained():
            self.written.append(file.close(self._metadata))
        faults.point(f"{self._move.stage}.during_writing")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        with reachable(self._table.name, f"writing rows of move {self._move.move_id}"):
            try:
                yield
            except pa.ArrowInvalid as error:  # a NULL where none may be
                raise _unfit(self._table, self._move, error) from error


class _OpenFile:
    """A data file that is being written."""

    def __init__(self, io: FileIO, path: str, shape: FileShape, partition: Record, group_bytes: int) -> None:
        self._io, self._path, self._shape, self._partition = io, path, shape, partition
        self._nans: dict[int, int] = {}
        self._output = io.new_output(path)
        self._stream: Any = self._output.create(overwrite=True)  # the name is new; asking would be one more request
        self._groups = RowGroups(self._stream, shape.arrow, group_bytes=group_bytes)
        self.is_full = False

    def write(self, rows: pa.Table, file_max: int) -> None:
        self._shape.count_nans(rows, self._nans)
        self._groups.write(rows)
        self.is_full = self._groups.reaches(file_max)

    def abandon(self) -> None:
        """End what is written of it, and remove it."""
        with suppress(OSError, HarnessError, pa.ArrowException):
            self._stream.close()
            self._io.delete(self._path)

    def close(self, metadata: TableMetadata) -> DataFile:
        footer = self._groups.close()
        self._stream.close()
        shape = self._shape
        told = told_of_file(footer, statistics=shape.statistics_as_spark, ids=shape.ids_by_path).to_serialized_dict()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self._path,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=len(self._output),
            sort_order_id=metadata.default_sort_order_id,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **{**told, "nan_value_counts": self._nans},
        )


def _schema_of(table: TableRow, move: Move, metadata: TableMetadata) -> Schema:
    """The schema of the view that has the columns of *table*, as it was read for the move.

    By now the view may have others, of a change that was published meanwhile or of another writer: the check before the
    publish names these. Raises: StagedWrong where no schema of the view has these columns.
    """
    wanted = set(schema_of(table.spec).names)
    schemas = sorted(metadata.schemas, key=lambda one: (one.schema_id == metadata.current_schema_id, one.schema_id))
    for schema in reversed(schemas):
        if {field.name for field in schema.fields} - {LAYER.name} == wanted:
            return schema
    raise StagedWrong(f"{table.name}: move {move.move_id}: no schema of the view has the columns of the table")


def _shape_of(metadata: TableMetadata, schema: Schema) -> FileShape:
    """The shape of new files of a view; it changes with its schema and its properties alone."""
    key = f"{metadata.table_uuid}\n{schema.model_dump_json()}\n{sorted(metadata.properties.items())}"
    return KEPT.get(
        key,
        lambda: FileShape(schema=schema, properties=metadata.properties),
        kind="shape",
        weigh=lambda _: _SHAPE_BYTES,
    )


@contextmanager
def writing(lake: Lake, table: TableRow, move: Move) -> Iterator[IcebergAttemptFiles]:
    """Files that the one snapshot of the attempt's branch names once the context ends without an error.

    Raises: StagedWrong for rows that are not of the view's schema; MoveClosed where the attempt is over; LakeAway.
    """
    view = table.effects[move.stage].view
    files = IcebergAttemptFiles(table, move, lake.current(table, view))
    try:
        yield files
    except BaseException:  # the attempt has ended, whatever it is
        files.abandon()
        raise
    if files.written:
        _commit(lake, table, move, files.written)


def append(lake: Lake, table: TableRow, move: Move, rows: pa.Table) -> None:
    """Write *rows*: a file per Kafka partition, in the order given. Raises: as `writing`.

    Of a wide topic a file mixes partitions, with its rows by partition and offset.
    """
    if PARTITION not in rows.column_names:
        raise _unfit(table, move, KeyError(PARTITION))
    partitions = rows.column(PARTITION).to_numpy()
    with writing(lake, table, move) as files:
        if is_wide(files.view.metadata):
            files.write([extents.in_order(files.view, rows)])
            return
        for partition in np.unique(partitions).tolist():
            files.write([rows.filter(pa.array(partitions == partition))], partition=partition)


def _commit(lake: Lake, table: TableRow, move: Move, files: list[DataFile]) -> None:
    view, properties = table.effects[move.stage].view, {**summary_of(move), **_ENGINE}
    for _ in range(BRANCH_TRIES):
        current = lake.current(table, view)
        old = current.metadata_location
        with reachable(table.name, f"naming the files of move {move.move_id}"), Changes(current) as transaction:
            update = transaction.update_snapshot(snapshot_properties=properties, branch=move.branch)
            with update.merge_append() as appended:
                for file in files:
                    appended.append_data_file(file)
        faults.point(f"{move.stage}.before_naming")
        if lake.pointers.move(table, view, old=old, new=current.metadata_location, attempt=move):
            return
    raise LakeAway(f"{table.name}: the {view} view's pointer moved {BRANCH_TRIES} times in a row")


def _unfit(table: TableRow, move: Move, error: Exception) -> StagedWrong:
    return StagedWrong(f"{table.name}: move {move.move_id}: rows do not fit the view: {error}")
