"""A table as DuckDB scans it: a dataset of Arrow whose scan is a read of ours, of the columns and rows asked for.

PyArrow's own datasets are made of files. DuckDB takes any subclass and calls its `scanner`, as the datasets of Lance
do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset

from harness_pipelines.engines.duckdb.filters import pushed
from harness_pipelines.protocol.reading.selection import ReadColumn, Selection
from harness_pipelines.spec.predicate import refs
from harness_pipelines.spec.types import Primitive

UUID = Primitive("uuid")
#: The rows of a selection of one cut, in batches. Each call reads the same cut.
Reads = Callable[[Selection], Iterator[pa.RecordBatch]]


class TableDataset(pyarrow.dataset.Dataset):  # type: ignore[misc]  # PyArrow has no types
    """One cut of a table. Only `schema` and `scanner` may be used: there is no dataset of Arrow's behind it.

    What a read raises inside of DuckDB comes back as text; `failed` has the error itself.
    """

    def __init__(self, columns: Sequence[ReadColumn], reads: Reads) -> None:
        self._columns = {column.name: column for column in columns}
        self._reads = reads
        self._schema = pa.schema([pa.field(c.name, _scanned_type(c), c.arrow.nullable) for c in columns])
        self.failed: BaseException | None = None

    def __repr__(self) -> str:
        return f"TableDataset({', '.join(self._columns)})"

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def select_list(self) -> str:
        """The columns as queries see them, for a view over the dataset: UUIDs are made of their bytes there.

        DuckDB pushes what it learns in a join into the scan, and fails where the column of the scan is a UUID.
        """
        return ", ".join(
            f"{quoted(name)}::UUID AS {quoted(name)}" if column.type == UUID else quoted(name)
            for name, column in self._columns.items()
        )

    def scanner(self, columns: Sequence[str] | None = None, filter: pc.Expression | None = None, **_: Any) -> TableScan:
        """A scan of *columns*, of the rows for which *filter* is true."""
        asked = pushed(filter, {name: column.type for name, column in self._columns.items()})
        names = list(self._columns if columns is None else columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        needed = dict.fromkeys([*names, *(ref.column for ref in refs(asked.known))])
        if asked.rest is not None:
            needed = dict.fromkeys([*needed, *self._columns])  # Arrow does not say which columns it has
        return TableScan(self, Selection(columns=list(needed), matching=asked.known), asked.rest, schema)

    def rows(self, selection: Selection) -> Iterator[pa.RecordBatch]:
        return self._reads(selection)


@dataclass(frozen=True, slots=True)
class TableScan:
    """What DuckDB needs of a scanner."""

    table: TableDataset
    selection: Selection
    rest: pc.Expression | None  #: of the filter what the selection does not say
    schema: pa.Schema

    def to_reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            with closing(cast(Any, self.table.rows(self.selection))) as batches:
                for batch in batches:
                    left = batch if self.rest is None else batch.filter(self.rest)
                    yield left.select(self.schema.names).cast(self.schema)
        except GeneratorExit:  # the query needs no more
            raise
        except BaseException as error:
            self.table.failed = error
            raise


def _scanned_type(column: ReadColumn) -> pa.DataType:
    return pa.binary() if column.type == UUID else shown_type(column.arrow.type)


def quoted(name: str) -> str:
    """*name* as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def shown_type(kind: pa.DataType) -> pa.DataType:
    """*kind* with UUIDs as such, where Iceberg and we have their 16 bytes."""
    if pa.types.is_fixed_size_binary(kind) and kind.byte_width == 16:
        return pa.uuid()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, shown_type(field.type), field.nullable) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(shown_type(kind.key_type), shown_type(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, shown_type(kind.value_type), kind.value_field.nullable))
    return kind
