"""Repair: recreate a damaged or missing data file from the other places of its rows.

plan: the rows of the file are those that its view must have and that no other file of it has. They are read from the
other view, the buffer or Kafka. publish: one boundary commit in which a new file stands for the old one and its
deletes; bounds and rows stay, so every reader sees the same.

Of another source nothing is believed that can be checked: as many rows as the manifest counts, at offsets between its
bounds, and where ingest kept digests of the moves that brought them, those digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from numpy.typing import NDArray

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasCorrections,
    HasGuard,
    HasLake,
    HasLakeReads,
    HasLakeRepairs,
    HasLedger,
    HasLog,
    HasProof,
    HasReaders,
    HasSchemas,
    HasSegments,
    HasTables,
)
from harness_pipelines.ports.corrections import BuildCorrection, Correction
from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.ports.lake import LakeFile, LakeReads
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION, SCHEMA_VERSION
from harness_pipelines.protocol.digest import as_first, row_digests, total_digest
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, LakeQuery, LakeStats
from harness_pipelines.protocol.segments import needed
from harness_pipelines.read.taken import taken_moves
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.stages.replay.quarantine import who
from harness_pipelines.stages.replay.ranges import decoded_rows
from harness_pipelines.stages.replay.views import columns_of, stored_rows, stored_schema

if TYPE_CHECKING:
    from harness_pipelines.protocol.versions import Version, ViewName

log = structlog.get_logger(__name__)
Offsets = NDArray[np.int64]


class Ports(
    HasBufferReader,
    HasCorrections,
    HasLake,
    HasLakeReads,
    HasLakeRepairs,
    HasLedger,
    HasLog,
    HasProof,
    HasReaders,
    HasSchemas,
    HasSegments,
    HasGuard,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


class RepairRefused(HarnessError):
    """A file cannot be made again; nothing was changed."""

    way_on = "copy the file back from a backup"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """The result of a repair, or with a dry run its plan."""

    table: str
    file: str
    view: str
    rows: int
    source: str  #: where they are from
    checked: str  #: what they agree with, beside their number and offsets
    version: int | None = None  #: published; None: it was a dry run
    move: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "file": self.file,
            "view": self.view,
            "rows": self.rows,
            "source": self.source,
            "checked": self.checked,
            "version": self.version,
            "move": self.move,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The data file that is replaced. Where its delete file is damaged it is the data file that goes, too."""

    view: ViewName
    file: LakeFile
    metadata: str
    others: frozenset[str]  #: paths of the other data files of the view


def repair_file(stores: Ports, table: TableRow, path: str, *, dry_run: bool = False) -> Repaired:
    """Make the data or delete file at *path* of the newest version again.

    Raises: RepairRefused; TableStopped; CorrectionsMoved, FilesGone, ForeignCommit; TryAgain when a store is away.
    """
    if not dry_run:
        stores.guard.check(table, stores.ledger)
    head = stores.tables.head(table)
    if (view := _metadata_of(stores, table, head, path)) is not None:
        return _metadata_again(stores, table, head, view, dry_run=dry_run)
    target = _target(stores.lake_reads, table, head, path)
    rows, source, checked = _made_again(stores, table, head, target)
    done = Repaired(
        table=table.name,
        file=target.file.path,
        view=target.view,
        rows=rows.num_rows,
        source=source,
        checked=checked,
    )
    if dry_run:
        return done

    def build(_: Version, pointers: Mapping[ViewName, str], move_id: int) -> Mapping[ViewName, Swap]:
        base = pointers[target.view]
        return {
            target.view: stores.lake_repairs.build_file(table, move_id, rows, target.file, view=target.view, base=base)
        }

    repaired = _published(stores, table, done, build, size=rows.nbytes)
    log.info("repair.published", table=table.name, file=done.file, rows=done.rows, version=repaired.version)
    return repaired


def _published(stores: Ports, table: TableRow, done: Repaired, build: BuildCorrection, *, size: int) -> Repaired:
    nothing = Correction(changes={}, states={}, bytes=size, decoder=None, act="repair")
    version = stores.corrections(table).publish(nothing, build, by=who(), run_id=None)
    return replace(done, version=version.version, move=version.move_id)


# -- a metadata file ----------------------------------------------------------------------------------------


def _metadata_of(stores: Ports, table: TableRow, head: Version, path: str) -> ViewName | None:
    """The view whose newest metadata file *path* is, as the ledger or the catalog names it."""
    name = path.rsplit("/", 1)[-1]
    for view, pins in head.views.items():
        if name in {at.rsplit("/", 1)[-1] for at in (pins.metadata, stores.tables.pointer(table, view))}:
            return view
    return None


def _metadata_again(stores: Ports, table: TableRow, head: Version, view: ViewName, *, dry_run: bool) -> Repaired:
    """Publish a version whose metadata file of *view* is made from one that can be read, and from the manifest list."""
    same = [v for v in stores.tables.versions(table) if v.schema_version == head.schema_version and view in v.views]
    older = [v.views[view].metadata for v in sorted(same, key=lambda v: -v.version)]

    def build(locked: Version, pointers: Mapping[ViewName, str], move_id: int) -> Mapping[ViewName, Swap]:
        pointer = pointers[view]
        known = list(dict.fromkeys([locked.views[view].metadata, pointer, *older]))
        again = stores.lake_repairs.build_metadata(table, move_id, view=view, head=locked, known=known, pointer=pointer)
        return {view: again}

    done = Repaired(
        table=table.name,
        file=head.views[view].metadata,
        view=view,
        rows=0,
        source="metadata files that can be read",
        checked="the digests of the manifests",
    )
    return done if dry_run else _published(stores, table, done, build, size=0)


# -- a data file --------------------------------------------------------------------------------------------


def _target(lake: LakeReads, table: TableRow, head: Version, path: str) -> _Target:
    name = path.rsplit("/", 1)[-1]
    for view, pins in head.views.items():
        try:
            seen = lake.view(pins.metadata)
        except (ManifestDamaged, FileDamaged, FileNotFoundError) as error:
            raise RepairRefused(
                f"{table.name}: what version {head.version} is made of cannot be read: {error}. There is no second "
                f"copy of it: copy the file back, or `harness revert {table.name} --to VERSION --yes` to a version "
                f"that does not need it; `harness fsck {table.name}` names those that do"
            ) from error
        for file in seen.files:
            names = [one.path.rsplit("/", 1)[-1] for one in (file, file.deletes) if one is not None]
            if name in names:
                others = frozenset(f.path for f in seen.files if f.path != file.path)
                return _Target(view=view, file=file, metadata=pins.metadata, others=others)
    raise RepairRefused(
        f"{table.name}: version {head.version} has no data file or delete file {name}; nothing was changed. `harness "
        f"fsck {table.name}` names files that are damaged and the versions that need them; older ones cannot be "
        "repaired, and go with the versions that expire"
    )


def _made_again(stores: Ports, table: TableRow, head: Version, target: _Target) -> tuple[pa.Table, str, str]:
    """Rows, where they are from, and what they agree with. Raises: RepairRefused."""
    if target.view == "batch" and "stream" in head.views:
        return _from_stream(stores, table, head, target), "the stream view", "the rows that the stream view has"
    why: list[str] = []
    for source, read in _sources(stores, table, head, target):
        try:
            rows = _without_others(stores, table, read(), target)
            if rows.num_rows != target.file.rows:
                why.append(f"{source} has {rows.num_rows:,} of its {target.file.rows:,} rows")
                continue
            checked = _check_digests(stores, table, rows, target)
        except HarnessError as error:
            why.append(f"{source}: {error}")
            continue
        if checked is None and source == "Kafka":
            why.append("Kafka: its records may be decoded otherwise today, and no digest says that they are not")
            continue
        return rows, source, checked or "nothing else: ingest kept no digest of them"
    raise RepairRefused(
        f"{table.name}: the rows of {target.file.path} cannot be had: "
        f"{'; '.join(why) or 'no tier has them'}; nothing was changed. Copy the file back from a copy of the "
        f"warehouse, or `harness revert {table.name} --to VERSION --yes` to a version before it"
    )


# -- the batch view, from the stream view -------------------------------------------------------------------


def _from_stream(stores: Ports, table: TableRow, head: Version, target: _Target) -> pa.Table:
    """The rows that the batch view must have, and that none of its other files has. Raises: RepairRefused."""
    if head.overlays:
        raise RepairRefused(
            f"{table.name} has rows recalled to Postgres; nothing was changed. `harness recall {table.name} "
            "--release`, then repeat this"
        )
    stream = head.views["stream"].metadata
    below = {p: (b.start, b.batch_hi) for p, b in head.bounds.items() if b.start < b.batch_hi}
    names = [*table.spec.key, PARTITION, OFFSET, OPERATION]
    known = conformed_parts(stores.lake_reads, table, stream, below, names)
    if table.spec.key:
        known = known.group_by([*table.spec.key]).aggregate([(OFFSET, "max"), (PARTITION, "max")])
        known = known.rename_columns([n.removesuffix("_max") for n in known.column_names])
    wanted = _by_partition(known)
    there = _by_partition(
        conformed_parts(stores.lake_reads, table, target.metadata, below, [PARTITION, OFFSET], files=target.others)
    )
    missing = {p: np.setdiff1d(offsets, there.get(p, ())) for p, offsets in wanted.items()}
    parts = [stored_schema(table).empty_table()]
    for partition, offsets in missing.items():
        if len(offsets):
            low, high = int(offsets.min()), int(offsets.max()) + 1
            found = stored_rows(stores.lake_reads, table, stream, OffsetRange(partition=partition, low=low, high=high))
            parts.append(found.filter(pa.array(np.isin(found[OFFSET].to_numpy(), offsets))))
    rows = pa.concat_tables(parts)
    rows = rows.filter(pc.equal(rows[OPERATION], PUT))
    if rows.num_rows != target.file.rows:
        raise RepairRefused(
            f"{table.name}: {target.file.path} has {target.file.rows:,} rows, the other files of the batch "
            f"view lack {rows.num_rows:,} of the stream view; nothing was changed. `harness audit {table.name} --full` "
            f"says which; `harness recluster {table.name}` cannot read it either, so revert to a version before it"
        )
    return rows


def conformed_parts(
    lake: LakeReads,
    table: TableRow,
    metadata: str,
    ranges: Mapping[int, tuple[int, int]],
    names: Sequence[str],
    *,
    files: frozenset[str] | None = None,
) -> pa.Table:
    """Some columns of *ranges* in a view, or in some *files* of it, in exact types."""
    known = stored_schema(table)
    schema = pa.schema([known.field(name) for name in names])
    query = LakeQuery(table=table.name, version=0, ranges=dict(ranges), columns=columns_of(table, names), files=files)
    return pa.concat_tables(
        [schema.empty_table(), *(conformed(part, schema) for part in lake.scan(metadata, query, LakeStats()))]
    )


def _by_partition(rows: pa.Table) -> dict[int, Offsets]:
    partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    return {int(p): np.sort(offsets[partitions == p]) for p in np.unique(partitions)}


# -- the view that tier writes, from other tiers ------------------------------------------------------------


def _ranges(head: Version, target: _Target) -> Iterator[OffsetRange]:
    """Where the file's rows can be."""
    for partition, bounds in sorted(head.bounds.items()):
        if (run := target.file.run_of(partition)) is not None:
            low, high = max(run[0], bounds.start), min(run[1], bounds.stream_hi)
            if low < high:
                yield OffsetRange(partition=partition, low=low, high=high)


def _sources(
    stores: Ports, table: TableRow, head: Version, target: _Target
) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
    """Where the rows of a file can be, the nearest first: it has them as they were published."""
    if not (wanted := list(_ranges(head, target))):
        return  # rows of another writer, which no record of the log explains

    def together(read: Callable[[OffsetRange], pa.Table]) -> Callable[[], pa.Table]:
        return lambda: pa.concat_tables([read(one) for one in wanted], promote_options="permissive")

    batch = head.views.get("batch") if target.view == "stream" else None
    if batch is not None and not table.spec.key and all(w.high <= head.bounds[w.partition].batch_hi for w in wanted):
        yield "the batch view", together(lambda one: stored_rows(stores.lake_reads, table, batch.metadata, one))
    if table.intake.buffered:
        yield "the buffer", together(lambda one: _buffered(stores, table, one))
    yield "Kafka", together(lambda one: _from_kafka(stores, table, one))


def _buffered(stores: Ports, table: TableRow, wanted: OffsetRange) -> pa.Table:
    """The rows of *wanted* in segments that are still there."""
    found = needed(stores.segments.all(table), {wanted.partition: wanted.low})
    query = BufferQuery(
        table=table.name,
        segments=tuple(table.seen([segment.ref for segment in found])),
        ranges={wanted.partition: (wanted.low, wanted.high)},
        schema=arrow_schema(table.spec.stored, coordinates=True),
        stores_op=bool(table.spec.key),
    )
    if not query.segments:
        return stored_schema(table).empty_table()
    return conformed(stores.buffer_reader.read(query, BufferStats()), stored_schema(table))


def _from_kafka(stores: Ports, table: TableRow, wanted: OffsetRange) -> pa.Table:
    rows, schema = decoded_rows(stores, table, wanted), stored_schema(table)
    constants = {OPERATION: pa.scalar(PUT), SCHEMA_VERSION: pa.scalar(table.schema_version, pa.int32())}
    for name, value in constants.items():
        if name not in rows.column_names:  # what a record of a keyed table does it says itself
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return conformed(rows.select(schema.names), schema)


def _without_others(stores: Ports, table: TableRow, rows: pa.Table, target: _Target) -> pa.Table:
    """Those of *rows* that no other file of the view has, by partition and offset."""
    if not rows.num_rows:
        return rows
    offsets = _by_partition(rows)
    ranges = {p: (int(found[0]), int(found[-1]) + 1) for p, found in offsets.items()}
    there = _by_partition(
        conformed_parts(stores.lake_reads, table, target.metadata, ranges, [PARTITION, OFFSET], files=target.others)
    )
    taken = np.zeros(rows.num_rows, np.bool_)
    partitions, at = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    for partition, found in there.items():
        taken |= (partitions == partition) & np.isin(at, found)
    return rows.filter(pa.array(~taken)).sort_by([(PARTITION, "ascending"), (OFFSET, "ascending")])


def _check_digests(stores: Ports, table: TableRow, rows: pa.Table, target: _Target) -> str | None:
    """What *rows* agree with; None where the ledger kept nothing of them. Raises: RepairRefused."""
    reached = {p: (int(found[0]), int(found[-1]) + 1) for p, found in _by_partition(rows).items()}
    judged = 0
    for move in taken_moves(stores, table):
        for partition, (low, high) in reached.items():
            inside = (move.lo.get(partition, 0), move.hi.get(partition, 0))
            if partition not in move.digests or inside[0] >= high or inside[1] <= low:
                continue
            whole = _of_move(
                stores, table, rows, target, OffsetRange(partition=partition, low=inside[0], high=inside[1])
            )
            if whole is None:
                continue
            if total_digest(row_digests(as_first(whole, table))) != move.digests[partition]:
                raise RepairRefused(f"they are not what move {move.move_id} brought, by the digest that it kept")
            judged += 1
    return f"the digests of {judged:,} {'move' if judged == 1 else 'moves'} that brought them" if judged else None


def _of_move(stores: Ports, table: TableRow, rows: pa.Table, target: _Target, move: OffsetRange) -> pa.Table | None:
    """All rows of a move: those that are made again, those of other files, and those that only the buffer has."""
    head = stores.tables.head(table)
    bounds = head.bounds[move.partition]
    names = arrow_schema(table.spec.stored, coordinates=True).names
    ours = rows.filter(_within(rows, move))
    ranges = {move.partition: (move.low, min(move.high, bounds.stream_hi))}
    others = conformed_parts(stores.lake_reads, table, target.metadata, ranges, names, files=target.others)
    parts = [ours, others.filter(_within(others, move))]
    if move.high > bounds.stream_hi:
        above = OffsetRange(partition=move.partition, low=max(move.low, bounds.stream_hi), high=move.high)
        parts.append(_buffered(stores, table, above))
    schema = stored_schema(table)
    return pa.concat_tables([conformed(part.select(names), schema) for part in parts])


def _within(rows: pa.Table, wanted: OffsetRange) -> pa.Array:
    partitions, offsets = rows[PARTITION].to_numpy(), rows[OFFSET].to_numpy()
    return pa.array((partitions == wanted.partition) & (offsets >= wanted.low) & (offsets < wanted.high))
