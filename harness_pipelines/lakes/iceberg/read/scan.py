"""Scan one pinned metadata file with PyIceberg and Arrow: no catalog, no JVM.

A metadata file is immutable, and so are the manifests that it names, so both are parsed once. The stream view has one
Kafka partition per file with exact bounds of its offsets: a file wholly inside the wanted ranges is read without a
filter on them, one that straddles with one, any other is not opened. A file of the batch view mixes partitions: it is
read without a filter if the ranges cover all offsets that the snapshot names.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import extract_field_ids
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import BooleanType, NestedField

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.lakes.iceberg.checked_io import KEPT, opened_io
from harness_pipelines.lakes.iceberg.parquet import (
    ParquetFragment,
    Scanner,
    check_pages,
    damage_named,
    fragment_of,
    scanner_of,
)
from harness_pipelines.lakes.iceberg.private.tables import InclusiveMetricsEvaluator
from harness_pipelines.lakes.iceberg.read.deletes import positions_of
from harness_pipelines.lakes.iceberg.read.field_ids import FIELD_ID, by_field_ids
from harness_pipelines.lakes.iceberg.read.file_stats import false_bounds, false_file
from harness_pipelines.lakes.iceberg.read.live_files import LiveFiles, Mask, Places
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of, metadata_of, understood
from harness_pipelines.lakes.iceberg.read.predicates import to_iceberg
from harness_pipelines.lakes.iceberg.read.rows import file_tables
from harness_pipelines.layout.files import Positions
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.errors import (
    DeletesBroken,
    ForeignDeletes,
    LakeFileBroken,
    LakeFileMissing,
    LakeUnreadable,
    ManifestDamaged,
)
from harness_pipelines.ports.lake import LakeFile, Located, StoredAmount, lake_schema
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.coordinates import COORDINATES
from harness_pipelines.protocol.digest import as_first_written
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.lake.properties import BATCH_HI, STARTS, vector_of
from harness_pipelines.protocol.lake.wide import EXTENTS_ID, Extents
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats
from harness_pipelines.spec.arrow import COORDINATES as coordinates
from harness_pipelines.spec.arrow import arrow_type, to_arrow
from harness_pipelines.spec.predicate import (
    OFFSET,
    PARTITION,
    TRUE,
    Compare,
    Leaf,
    OneOf,
    Op,
    Predicate,
    Ref,
    all_of,
    any_of,
    refs,
    relaxed,
)
from harness_pipelines.spec.types import Primitive

POSITION = "_pos"  #: of a row in its file; Iceberg reserves the name
READERS = 8  #: files whose ends are compared at once: a store far away answers slowly
FILES_AHEAD = 3  #: files that are read while the caller works on an earlier one
_OFFSET_REF = Ref((OFFSET,), Primitive("long"))
_NONE_OF_LAYER = to_bytes(BooleanType(), False)
_PARTITION_REF = Ref((PARTITION,), Primitive("int"))
_NONE_HIDDEN: Positions = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedView:
    """What one metadata file fixes."""

    location: str
    metadata: TableMetadata
    io: FileIO
    files: LiveFiles  #: by partition and first offset
    manifests: tuple[str, ...] = ()  #: the paths of its manifest list and manifests
    extent: Ranges  #: of a batch view: where its rows lie, as its snapshot tells; empty if it does not

    @property
    def schema(self) -> Schema:
        return self.metadata.schema()

    def hidden(self, file: LakeFile) -> Positions | None:
        """Which rows of *file* are hidden; None: none is. Raises: DeletesBroken."""
        return None if file.deletes is None else positions_of(self.io, file.deletes, rows=file.stored)

    @property
    def folder(self) -> str:
        return self.metadata.location

    @property
    def snapshot(self) -> int | None:
        return self.metadata.current_snapshot_id

    def field_ids(self, table: TableRow) -> dict[str, int]:
        """The ids by which the columns of `lake_schema` are found in its files."""
        first = table.first_names
        ids = {first.get(f["name"], f["name"]): int(f["id"]) for f in table.fields}
        return ids | {name: self.field_id(name) for name in coordinates.names}

    def field_id(self, name: str) -> int:
        return self.schema.find_field(name).field_id

    def rows(self, table: TableRow, file: LakeFile) -> Iterator[pa.Table]:
        """The rows of *file* as digests are made of them. Raises: DeletesBroken."""
        for part in self.tables(file, lake_schema(table), self.field_ids(table)):
            yield as_first_written(part, table)

    def tables(self, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]) -> Iterator[pa.Table]:
        """The rows of *file* in *schema*, as `rows` gives them; missing columns are NULL. Raises: DeletesBroken."""
        return file_tables(self, file, schema, ids)

    def false_bounds(self, table: TableRow, written: DataFile, rows: pa.Table) -> str | None:
        return false_bounds(table, self, written, rows)

    def false_file(self, written: DataFile) -> str | None:
        return false_file(self.io, self.schema, written)

    def check_bytes(self, path: str) -> None:
        """Read all of a data or delete file and keep nothing. Raises: FileDamaged, FileNotFoundError, OSError."""
        with damage_named(self.io, path), self.io.new_input(path).open() as stream:
            check_pages(stream)


def scan(metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[pa.Table]:
    """Tables in offset order per partition, with the columns of *query* in order under their names.

    `where` prunes files and row groups and may let more rows through: filter again. The types are those of the files.
    Raises: LakeFileMissing, LakeUnreadable, DeletesBroken.
    """
    with named_errors(query, metadata):
        view = pinned(metadata)
    places = chosen_places(view, query, stats)
    if not len(places):
        return
    chosen = view.files.many(places)

    def read(file: LakeFile) -> pa.Table:
        return read_file(view, file, query)

    sizes = view.files.sizes(_leaf_ids(view, query), places)
    tables = _ahead(chosen, read, ahead=FILES_AHEAD if query.limit is None else 0)
    for file, size, table in zip(chosen, sizes, tables, strict=True):
        _count_opened(stats, view, file, query, size=size)
        stats.rows_read += table.num_rows
        yield table


def located(metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[Located]:
    """What `scan` gives, file by file, with the place of each row. Raises: as `scan`."""
    with named_errors(query, metadata):
        view = pinned(metadata)
    places = chosen_places(view, query, stats)
    sizes = view.files.sizes(_leaf_ids(view, query), places)
    for file, size in zip(view.files.many(places), sizes, strict=True):
        table = read_file(view, file, query, with_positions=True)
        _count_opened(stats, view, file, query, size=size)
        stats.rows_read += table.num_rows
        positions = np.asarray(table.column(POSITION).to_numpy(), dtype=np.int64)
        yield Located(file, table.drop_columns([POSITION]), positions)


def files_of(metadata: str, query: LakeQuery) -> list[tuple[str, int]]:
    """Path and bytes of each file that `scan` would open at most. Raises: LakeFileMissing, LakeUnreadable."""
    with named_errors(query, metadata):
        view = pinned(metadata)
    return [(file.path, file.bytes) for file in choose_files(view, query, LakeStats())]


def paths_matching(metadata: str, where: Predicate) -> frozenset[str]:
    """Paths of the files whose column bounds do not rule out that a row in them is one of *where*."""
    view = pinned(metadata)
    found = _matching(view, to_iceberg(where), among=np.ones(len(view.files), np.bool_))
    return frozenset(file.path for file in view.files.many(np.flatnonzero(found)))


def _count_opened(stats: LakeStats, view: PinnedView, file: LakeFile, query: LakeQuery, *, size: int) -> None:
    stats.files_opened += 1
    stats.files_straddling += _straddles(view, file, query.ranges)
    stats.rows_in_opened += file.rows
    stats.bytes_read += size + (file.deletes.bytes if file.deletes else 0)


def stored_in(metadata: str, ranges: Ranges) -> StoredAmount:
    """Rows and bytes of *ranges* in the stream view that *metadata* fixes; only files that they cut are opened.

    Raises: LakeFileMissing, LakeUnreadable.
    """
    query = LakeQuery(
        table=metadata, version=0, ranges=ranges, columns=[LakeColumn(name=OFFSET, field_id=None)], where=TRUE
    )
    rows, size = 0, 0
    with named_errors(query, metadata):
        view = pinned(metadata)
        for file in choose_files(view, query, LakeStats()):
            inside = file.rows
            if _straddles(view, file, ranges):
                inside = read_file(view, file, query).num_rows
            rows += inside
            size += file.bytes * inside // max(file.rows, 1)
    return StoredAmount(rows, size)


def pinned(metadata: str) -> PinnedView:
    """What a metadata file and the manifests of its current snapshot say; kept, as none of them changes."""
    return KEPT.get(metadata, lambda: _pinned(metadata), kind="view", weigh=lambda view: view.files.nbytes)


def _pinned(location: str) -> PinnedView:
    io = opened_io()
    with understood("metadata file", location):
        metadata = metadata_of(location, io)
    offset_id = metadata.schema().find_field(OFFSET).field_id
    manifests = manifests_of(metadata.current_snapshot(), io)
    KNOWN.learn(manifest.manifest_path for manifest in manifests)
    columns = [columns_of(manifest, io) for manifest in manifests]
    files = LiveFiles(columns, offset_id)
    KNOWN.learn(path for one in columns for path in one.paths())
    head = metadata.current_snapshot()
    paths = (head.manifest_list, *(manifest.manifest_path for manifest in manifests)) if head else ()
    return PinnedView(
        location=location, metadata=metadata, io=io, files=files, manifests=paths, extent=extent_of(metadata)
    )


def staged_file(data: DataFile, *, low: int, high: int) -> LakeFile:
    """A file that an attempt wrote, with rows of offsets in ``[low, high)``."""
    extents = (data.lower_bounds or {}).get(EXTENTS_ID)
    return LakeFile(
        path=data.file_path,
        stored=data.record_count,
        bytes=data.file_size_in_bytes,
        partition=int(data.partition[0]) if len(data.partition) else None,
        low=low,
        high=high,
        extents=None if extents is None else Extents(extents),
    )


def extent_of(metadata: TableMetadata) -> dict[int, tuple[int, int]]:
    """``[start, batch_hi)`` per partition of a batch view, from its newest snapshot and its properties."""
    snapshot = metadata.current_snapshot()
    told = snapshot.summary[BATCH_HI] if snapshot and snapshot.summary else None
    starts = vector_of(metadata.properties.get(STARTS))
    return {p: (starts.get(p, 0), high) for p, high in vector_of(told).items()}


def choose_files(view: PinnedView, query: LakeQuery, stats: LakeStats) -> list[LakeFile]:
    """The files that can hold wanted rows; *stats* learns why the others cannot."""
    return view.files.many(chosen_places(view, query, stats))


def chosen_places(view: PinnedView, query: LakeQuery, stats: LakeStats) -> Places:
    """The places in `view.files` of the files that can hold wanted rows; *stats* as in `choose_files`."""
    files = view.files
    stats.files += len(files)
    found = files.overlapping(query.ranges)
    inside, pushed = int(np.count_nonzero(found)), _pushed(view, query)
    if pushed != AlwaysTrue():
        found = _matching(view, pushed, among=found)
    chosen = np.flatnonzero(found)
    if query.files is not None:
        chosen = np.intersect1d(chosen, files.at(query.files))
    if query.layer and (layer := layer_field(view)):
        bounds = (files.upper(layer.field_id, place) for place in chosen.tolist())
        chosen = chosen[np.array([bound != _NONE_OF_LAYER for bound in bounds], np.bool_)]
    _count(stats, "ranges", len(files) - inside)
    _count(stats, "statistics", inside - len(chosen))
    return chosen


def _matching(view: PinnedView, where: BooleanExpression, *, among: Mask) -> Mask:
    """Which of the files *among* them may hold a row of *where*, by the bounds of their columns."""
    evaluator = InclusiveMetricsEvaluator(view.schema, where)
    return view.files.matching(evaluator.eval, extract_field_ids(evaluator.expr), among=among)  # type: ignore[arg-type]


def _count(stats: LakeStats, reason: str, files: int) -> None:
    if files:
        stats.skipped[reason] = stats.skipped.get(reason, 0) + files


def _straddles(view: PinnedView, file: LakeFile, ranges: Ranges) -> bool:
    if file.extents is not None:
        return not file.extents.within(ranges)
    if file.partition is None:
        return reaches_beyond(view, ranges)
    low, high = ranges[file.partition]
    return file.low < low or file.high > high


def reaches_beyond(view: PinnedView, ranges: Ranges) -> bool:
    """Whether a batch view may hold rows outside of *ranges*."""
    return is_beyond(view.extent, ranges)


def is_beyond(extent: Ranges, ranges: Ranges) -> bool:
    """Whether rows may lie outside of *ranges*: *extent* says where they are, and nothing if it is empty."""
    return not extent or any(
        low < high and (p not in ranges or low < ranges[p][0] or high > ranges[p][1])
        for p, (low, high) in extent.items()
    )


def _field(view: PinnedView, column: LakeColumn) -> NestedField:
    found: NestedField = view.schema.find_field(column.name if column.field_id is None else column.field_id)
    return found


def layer_field(view: PinnedView) -> NestedField | None:
    """The column of a batch view's sample layer; None where it has none."""
    return next((found for found in view.schema.fields if found.name == LAYER.name), None)


def view_fields(view: PinnedView, columns: Sequence[LakeColumn]) -> dict[str, NestedField]:
    """What each column is in *view*, by its name in the result."""
    return {column.name: _field(view, column) for column in columns}


def _leaf_ids(view: PinnedView, query: LakeQuery) -> list[int]:
    """Ids of the primitive fields that are read."""
    schema = Schema(*(_field(view, column) for column in query.columns))
    return [i for i in schema.field_ids if schema.find_field(i).field_type.is_primitive]


def _pushed(view: PinnedView, query: LakeQuery) -> BooleanExpression:
    """The part of `where` that the view's files can be asked: columns that have the same name there."""
    same = {c.name for c in query.columns if _field(view, c).name == c.name} | set(COORDINATES)
    known = relaxed(query.where, lambda leaf: all(ref.column in same for ref in refs(leaf)))
    return to_iceberg(known)


def read_file(view: PinnedView, file: LakeFile, query: LakeQuery, *, with_positions: bool = False) -> pa.Table:
    """The wanted columns of one file, filtered by its bounds only if it straddles them; on request `POSITION` too.

    Not by PyIceberg's ArrowScan: it turns a NULL list or map of structs into an empty one.
    """
    with named_errors(query, (file.deletes or file).path):
        hidden = view.hidden(file)
    with opened_file(view, file, query) as opened:
        if hidden is None and not with_positions:
            return opened.shaped(opened.scanner().to_table())
        rows = _not_hidden(opened.fragment, opened.columns, opened.pushed, _NONE_HIDDEN if hidden is None else hidden)
    table = opened.shaped(rows)
    return table.append_column(POSITION, rows.column(POSITION)) if with_positions else table


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenedFile:
    """A data file, and what a query wants of it."""

    fragment: ParquetFragment
    fields: Mapping[str, NestedField]  #: of the view, by the names of the result, in order
    names: Mapping[str, str | None]  #: by the same names what the columns are called in the file; None: it has none
    pushed: Predicate  #: what its reader can filter by

    @property
    def columns(self) -> list[str]:
        """What is read, by the file's names."""
        return [name for name in self.names.values() if name is not None]

    def scanner(self, **options: Any) -> Scanner:
        """Reads the wanted rows; *options* are those of Arrow's scanner."""
        row_filter = None if self.pushed == TRUE else to_arrow(self.pushed)
        return scanner_of(self.fragment, columns=self.columns, filter=row_filter, **options)

    def shaped(self, rows: pa.Table) -> pa.Table:
        """*rows* of the file with the columns of the result."""
        columns = [
            pa.nulls(rows.num_rows, type=schema_to_pyarrow(found.field_type, include_field_ids=False))
            if (name := self.names[shown]) is None
            else _shaped(rows.column(name), found)
            for shown, found in self.fields.items()
        ]
        return pa.table(columns, names=list(self.fields))


@contextmanager
def opened_file(view: PinnedView, file: LakeFile, query: LakeQuery) -> Iterator[OpenedFile]:
    """Open *file*, filtered by its bounds only if it straddles them. Raises: LakeFileMissing, LakeUnreadable, ..."""
    path = file.path
    with named_errors(query, path), damage_named(view.io, path), view.io.new_input(path).open() as stream:
        fragment = fragment_of(stream)
        physical = fragment.physical_schema
        places = _places(physical)
        fields = view_fields(view, query.columns)
        names = {
            shown: places.get(f.field_id, f.name if not places and f.name in physical.names else None)
            for shown, f in fields.items()
        }
        pushed = _row_filter(view, file, query, names, physical)
        yield OpenedFile(fragment=fragment, fields=fields, names=names, pushed=pushed)


def _not_hidden(fragment: ParquetFragment, columns: Sequence[str], where: Predicate, hidden: Positions) -> pa.Table:
    """The rows at other positions than *hidden* for which *where* holds, and `POSITION`.

    A row's position depends on the rows before it, so rows are filtered after the read, row group by row group.
    """
    if where == TRUE:
        rows = fragment.to_table(columns=columns or fragment.physical_schema.names[:1])
        is_live = _is_live(rows.num_rows, hidden)
        return _placed(rows, 0).filter(pa.array(is_live)).select([*columns, POSITION])
    row_filter = to_arrow(where)
    needed = list(dict.fromkeys([*columns, *(ref.column for ref in refs(where))]))
    firsts = np.cumsum([0, *(group.num_rows for group in fragment.row_groups)])
    found = [_placed(pa.schema([fragment.physical_schema.field(name) for name in needed]).empty_table(), 0)]
    for group in fragment.subset(row_filter, schema=fragment.physical_schema).row_groups:
        rows = fragment.subset(row_group_ids=[group.id]).to_table(columns=needed)
        first, last = np.searchsorted(hidden, firsts[[group.id, group.id + 1]])
        is_live = _is_live(rows.num_rows, hidden[first:last] - firsts[group.id])
        found.append(_placed(rows, int(firsts[group.id])).filter(pa.array(is_live)).filter(row_filter))
    return pa.concat_tables(found).select([*columns, POSITION])


def _placed(rows: pa.Table, first: int) -> pa.Table:
    """*rows*, which follow each other in their file from *first* on, with their places."""
    return rows.append_column(POSITION, pa.array(np.arange(first, first + rows.num_rows)))


def _is_live(rows: int, hidden: Positions) -> NDArray[np.bool_]:
    found = np.ones(rows, np.bool_)
    found[hidden] = False
    return found


def _shaped(column: pa.ChunkedArray, field_: NestedField) -> pa.ChunkedArray:
    if field_.field_type.is_primitive:
        return column
    chunks = [by_field_ids(chunk, field_.field_type) for chunk in column.chunks]
    return pa.chunked_array(chunks) if chunks else column


def _places(physical: pa.Schema) -> dict[int, str]:
    """Names of a file's columns by the field ids that Iceberg's writers leave there."""
    ids = ((f.metadata or {}).get(FIELD_ID) for f in physical)
    return {int(i): f.name for i, f in zip(ids, physical, strict=True) if i is not None}


def _row_filter(
    view: PinnedView, file: LakeFile, query: LakeQuery, names: Mapping[str, str | None], physical: pa.Schema
) -> Predicate:
    """What a file's reader can filter by: columns that have the same name and type there."""

    def can(leaf: Leaf) -> bool:
        ref = leaf.ref  # type: ignore[union-attr]  # constants are kept before this is asked
        name = ref.column
        if ref.is_nested or names.get(name) != name or physical.field(name).type != arrow_type(ref.type):
            return False
        # Parquet's statistics leave NaN out, and NaN is unequal to everything: a row group must not be skipped for it.
        is_unequal = (isinstance(leaf, Compare) and leaf.op is Op.NE) or (isinstance(leaf, OneOf) and leaf.negated)
        return not (is_unequal and pa.types.is_floating(physical.field(name).type))

    pushed = relaxed(query.where, can)
    if _straddles(view, file, query.ranges):
        pushed = all_of(any_of(*_inside(file, query.ranges)), pushed)
    return pushed


def _inside(file: LakeFile, ranges: Ranges) -> Iterator[Predicate]:
    """What holds for the rows of *ranges* in *file*, by partition."""
    if file.extents is not None:
        yield from _inside_extents(file.extents, ranges)
        return
    for partition in ranges if file.partition is None else [file.partition]:
        low, high = ranges[partition]
        run = all_of(Compare(_OFFSET_REF, Op.GE, low), Compare(_OFFSET_REF, Op.LT, high))
        yield run if file.partition is not None else all_of(Compare(_PARTITION_REF, Op.EQ, partition), run)


def _inside_extents(extents: Extents, ranges: Ranges) -> Iterator[Predicate]:
    """As `_inside`: whole partitions in one list, since there may be a thousand."""
    whole: list[int] = []
    for one in extents:
        low, high = ranges.get(one.partition, (0, 0))
        if low <= one.low and one.high <= high:
            whole.append(one.partition)
        elif low < one.high and one.low < high:
            ends = Compare(_OFFSET_REF, Op.GE, low), Compare(_OFFSET_REF, Op.LT, high)
            yield all_of(Compare(_PARTITION_REF, Op.EQ, one.partition), *ends)
    if whole:
        yield OneOf(_PARTITION_REF, tuple(whole))


def _ahead(files: Sequence[LakeFile], read: Callable[[LakeFile], pa.Table], *, ahead: int) -> Iterator[pa.Table]:
    """Read *files* in order, a few ahead of the caller, so that memory stays bounded."""
    if len(files) == 1 or ahead == 0:
        yield from map(read, files)
        return
    waiting: deque[Future[pa.Table]] = deque()
    with ThreadPoolExecutor(max_workers=ahead, thread_name_prefix="lake-scan") as pool:
        try:
            for file in files:
                waiting.append(pool.submit(read, file))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


@contextmanager
def named_errors(query: LakeQuery, path: str) -> Iterator[None]:
    """Turn what the storage says about a file into the harness's errors."""
    place = f"{query.table}, version {query.version}"
    try:
        yield
    except FileNotFoundError as error:
        raise LakeFileMissing(
            f"{place}: {path} is gone ({error}); nothing is returned. `harness fsck` names all that is missing; "
            "a read of the newest version may still work"
        ) from error
    except (ForeignDeletes, DeletesBroken) as error:
        raise type(error)(f"{place}: {error}") from error
    except (ManifestDamaged, FileDamaged) as error:
        raise LakeFileBroken(f"{place}: {error}; nothing is returned") from error
    except pa.ArrowInvalid as error:
        raise LakeFileBroken(
            f"{place}: {path} is damaged: {error}; nothing is returned. `harness fsck` names all that is; bring the "
            "file back from a copy of the warehouse"
        ) from error
    except OSError as error:
        raise LakeUnreadable(f"{place}: {path} cannot be read: {error}; nothing is returned") from error
