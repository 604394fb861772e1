"""Rows that an attempt takes: read some at a time, as often as they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.layout.row_hash import row_hash, threshold
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.lake import judged
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.reading.queries import (
    BufferQuery,
    BufferStats,
    LakeColumn,
    LakeQuery,
    LakeStats,
    schema_of,
)

if TYPE_CHECKING:
    from harness_pipelines.layout.files import FileStats, Positions
    from harness_pipelines.ports.buffer import BufferReads
    from harness_pipelines.ports.lake import LakeReads
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.reading.narrowing import Ranges
    from harness_pipelines.protocol.reading.plan import SegmentRef

Mask = npt.NDArray[np.bool_]
GATHERED_ROWS = 65_536


class Source(Protocol):
    """Rows with the user's columns, the coordinates, and that of the sample layer if the view has one."""

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """All of them, with *columns* in order."""
        ...


def ints(rows: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """A column of whole numbers without NULL."""
    return np.asarray(rows.column(name).to_numpy(), np.int64)


def with_layer(rows: pa.Table, share: float) -> pa.Table:
    """*rows* and which of them a sample layer of *share* takes."""
    taken = row_hash(ints(rows, PARTITION), ints(rows, OFFSET)) < threshold(share)
    return rows.append_column(pa.field(LAYER.name, pa.bool_()), pa.array(taken))


def gathered(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in fewer tables: of a wide topic each run of a partition comes alone, some rows at a time."""
    held, rows = list[pa.Table](), 0
    for table in tables:
        if held and (rows >= GATHERED_ROWS or table.schema != held[0].schema):
            yield pa.concat_tables(held)
            held, rows = [], 0
        held.append(table)
        rows += table.num_rows
    if held:
        yield pa.concat_tables(held)


def _chosen(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """*columns* but that of the layer, and the coordinate, which that is made of."""
    names = dict.fromkeys([*(name for name in columns if name != LAYER.name), PARTITION, OFFSET])
    return pa.schema([schema.field(name) for name in names])


def _shown(rows: pa.Table, columns: Sequence[str], layer: float) -> pa.Table:
    return (with_layer(rows, layer) if LAYER.name in columns else rows).select(list(columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRows:
    """Rows of segments."""

    buffer: BufferReads
    table: TableRow
    segments: Sequence[SegmentRef]
    ranges: Ranges
    layer: float  #: share of the sample layer, 0 for a view without one

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        schema = _chosen(schema_of(self.table.spec), columns)
        query = BufferQuery(
            table=self.table.name,
            segments=self.segments,
            ranges=self.ranges,
            schema=schema,
            stores_op=bool(self.table.spec.key),
        )
        for rows in self.buffer.batches(query, BufferStats()) if self.ranges else ():
            yield _shown(conformed(rows, schema), columns, self.layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRows:
    """Rows of ranges of the stream view that a metadata file fixes; per partition in offset order."""

    lake: LakeReads
    table: TableRow
    metadata: str
    ranges: Ranges
    layer: float = 0.0  #: as in `BufferRows`
    files: frozenset[str] | None = None  #: only these

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        schema = _chosen(schema_of(self.table.spec), columns)
        ids = {f["name"]: int(f["id"]) for f in self.table.fields}
        query = LakeQuery(
            table=self.table.name,
            version=0,
            ranges=self.ranges,
            columns=[LakeColumn(name=name, field_id=ids.get(name)) for name in schema.names],
            files=self.files,
        )
        found = (part.rows for part in self.lake.in_order(self.metadata, query, LakeStats()))
        for rows in gathered(found):
            yield _shown(conformed(rows, schema), columns, self.layer)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRows:
    """The live rows of files of the batch view that a metadata file fixes."""

    lake: LakeReads
    table: TableRow
    metadata: str
    files: Sequence[FileStats]

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for _, rows, _ in self.placed(columns):
            yield rows

    def placed(self, columns: Sequence[str]) -> Iterator[tuple[str, pa.Table, Positions]]:
        """What `tables` gives, the file of the rows, and where in it they are."""
        view, wanted = self.lake.view(self.metadata), {file.path for file in self.files}
        of_table = schema_of(self.table.spec)
        schema = pa.schema(
            [pa.field(name, pa.bool_()) if name == LAYER.name else of_table.field(name) for name in columns]
        )
        ids = {f["name"]: int(f["id"]) for f in self.table.fields}
        ids |= {name: view.field_id(name) for name in columns if name not in ids}
        for file in view.files:
            if file.path in wanted:
                with judged(self.table, file):
                    for rows, positions in view.placed(file, schema, ids):
                        yield file.path, rows, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The rows of another source that are kept."""

    source: Source
    keep: Callable[[pa.Table], Mask]
    by: Sequence[str]  #: the columns that decide it

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for rows in self.source.tables(list(dict.fromkeys([*columns, *self.by]))):
            yield rows.filter(pa.array(self.keep(rows))).select(list(columns))


@dataclass(frozen=True, slots=True)
class Together:
    """The rows of several sources."""

    sources: Sequence[Source]

    def tables(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        for source in self.sources:
            yield from source.tables(columns)
