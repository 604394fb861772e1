"""A table whose views are files in a folder, without a ledger: tests put rows where they want, and make cuts of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import StaticTable

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
from harness_pipelines.lakes.iceberg.cuts.cuts import IcebergCuts
from harness_pipelines.lakes.iceberg.private.tables import Changes
from harness_pipelines.lakes.iceberg.read.scan import located, scan
from harness_pipelines.lakes.iceberg.reads import IcebergReads
from harness_pipelines.lakes.iceberg.write.corrections import written
from harness_pipelines.lakes.iceberg.write.publish import Lake
from harness_pipelines.lakes.iceberg.write.replace import replace_files
from harness_pipelines.lakes.iceberg.write.schema import IcebergSchemas
from harness_pipelines.layout.tree import LAYER
from harness_pipelines.ports.lake_writes import Replacement
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import CutDraft
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.cuts import Chunk
from harness_pipelines.protocol.lake.properties import BATCH_HI, STARTS, vector_text
from harness_pipelines.protocol.reading.plan import BufferPart, LakePart, ReadPlan, SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, LakeColumn, LakeQuery, LakeStats
from harness_pipelines.protocol.reading.selection import Selection, table_columns
from harness_pipelines.protocol.schema.evolution import ColumnChanges, evolved
from harness_pipelines.protocol.schema.schemas import SchemaRow
from harness_pipelines.protocol.versions import Version, View, ViewName
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import iceberg_fields

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1_000)
ALL = (0, 2**62)
Ranges = Mapping[int, tuple[int, int]]
Places = Sequence[tuple[int, int]]
COLUMNS = {"id": {"type": "long", "required": True}, "s": "string"}


class Pointers:
    """The metadata files that a catalog would name."""

    def __init__(self) -> None:
        self.at: dict[ViewName, str] = {}

    def current(self, table: TableRow, view: ViewName) -> str:
        return self.at[view]

    def move(self, *_: Any, **__: Any) -> bool:
        raise AssertionError

    def nonce_of(self, move_id: int) -> str:
        return "nonce"


@dataclass
class Buffer:
    """Rows as Postgres would have them."""

    rows: pa.Table

    def read(self, query: BufferQuery, stats: BufferStats) -> pa.Table:
        return pa.concat_tables(self.batches(query, stats))

    def batches(self, query: BufferQuery, stats: BufferStats) -> Iterator[pa.Table]:
        yield within(self.rows, query.ranges).select(query.schema.names)


class CutRig:
    """One table; *words* are those of its spec."""

    def __init__(self, folder: Path | str, columns: Mapping[str, Any], *, partitions: int = 2, **words: Any) -> None:
        self.warehouse = folder if isinstance(folder, str) else folder.as_uri()
        self.catalog = StagingCatalog("harness", warehouse=self.warehouse)
        self.pointers = Pointers()
        self.lake = Lake(self.catalog, None, pointers=self.pointers, warehouse=self.warehouse)  # type: ignore[arg-type]
        spec = TableSpec.model_validate({"table": "shop.orders", "topic": "t", "columns": columns, **words})
        views, fields = self.lake.make_views(
            spec, iceberg_fields(spec.columns), origin={STARTS: vector_text(dict.fromkeys(range(partitions), 0))}
        )
        self.pointers.at = {name: view.metadata for name, view in views.items()}
        identity = TopicIdentity(cluster_id="c", topic="t", topic_id="i", partitions=tuple(range(partitions)))
        first = SchemaRow(schema_version=1, fields=tuple(fields), spec=spec.model_dump(mode="json"), starts={})
        self.table = TableRow(table_id=7, spec=spec, identity=identity, retained_from=1, stopped=None, history=(first,))
        self.partitions = partitions
        self.bounds = dict.fromkeys(range(partitions), Bounds.at(0))
        self.number = 1
        self.buffer: pa.Table | None = None
        self.cuts = IcebergCuts(warehouse=self.warehouse)
        self.snapshots: dict[ViewName, int] = {name: view.snapshot for name, view in views.items()}

    # -- rows -----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> pa.Schema:
        """Columns and coordinates as a plan has them."""
        return pa.schema([column.arrow for column in table_columns(self.plan()).values()])

    def append(self, view: ViewName, rows: pa.Table, *, reaches: Mapping[int, int] | None = None) -> None:
        """Add files with *rows*: to the stream view one for each partition, to the batch view one."""
        current = self.lake.load(self.table, self.pointers.at[view], view=view)
        schema = current.schema().as_arrow()
        if LAYER.name in schema.names:
            rows = rows.append_column(LAYER.name, pc.equal(pc.bit_wise_and(rows[OFFSET], 1), 0))
        told = {} if view == "stream" else {BATCH_HI: vector_text(self.reached(reaches))}
        files = written(current, conformed(rows.select(schema.names), schema))
        with Changes(current) as changes, changes.update_snapshot(snapshot_properties=told).merge_append() as append:
            for file in files:
                append.append_data_file(file)
        self._moved(view, current)

    def reached(self, reaches: Mapping[int, int] | None) -> dict[int, int]:
        return {p: b.batch_hi for p, b in self.bounds.items()} | dict(reaches or {})

    def hide(self, view: ViewName, ranges: Ranges, *, reaches: Mapping[int, int] | None = None) -> None:
        """Hide the rows of *ranges* by position deletes, as a merge does."""
        metadata = self.pointers.at[view]
        query = LakeQuery(
            table="t", version=1, ranges=dict.fromkeys(range(self.partitions), ALL),
            columns=[LakeColumn(name=PARTITION, field_id=None), LakeColumn(name=OFFSET, field_id=None)],
        )  # fmt: skip
        positions = {}
        for part in located(metadata, query, LakeStats()):
            found = part.positions[is_within(part.rows, ranges)]
            if len(found):
                positions[part.file.path] = found
        if not positions:
            return
        current = self.lake.load(self.table, metadata, view=view)
        hidden = self.lake.hide(self.table, metadata, positions, view=view)
        told = {} if view == "stream" else {BATCH_HI: vector_text(self.reached(reaches))}
        with Changes(current) as changes:
            replace_files(changes, Replacement(removed={}, hidden=hidden, added=(), same_rows=False), properties=told)
        self._moved(view, current)

    def _moved(self, view: ViewName, current: Any) -> None:
        self.pointers.at[view] = current.metadata_location
        self.snapshots[view] = current.metadata.current_snapshot_id
        self.number += 1

    def evolve(self, changes: ColumnChanges) -> None:
        schemas = IcebergSchemas(self.lake)
        found = evolved(self.table.spec, self.table.fields, changes, next_id=schemas.next_field_id(self.table))
        for name in list(self.pointers.at):
            swap = schemas.build(self.table, found, move_id=1, view=name, base=self.pointers.at[name])
            self.pointers.at[name] = swap.new.metadata
        number = self.table.schema_version + 1
        row = SchemaRow(
            schema_version=number, fields=tuple(found.fields), spec=found.spec.model_dump(mode="json"), starts={}
        )
        self.table = replace(self.table, spec=found.spec, history=(*self.table.history, row))
        self.number += 1

    # -- states ---------------------------------------------------------------------------------------------

    def at(self, partition: int, *bounds: int) -> None:
        """Let a partition have these bounds: start, batch_hi, stream_hi, high."""
        start, batch_hi, stream_hi, high = bounds
        self.bounds[partition] = Bounds(start=start, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=high)

    def version(self) -> Version:
        views = {name: View(metadata=at, snapshot=self.snapshots[name]) for name, at in self.pointers.at.items()}
        return Version(
            table_id=7,
            version=self.number,
            stream=views.get("stream") or views["batch"],
            batch=views.get("batch"),
            schema_version=self.table.schema_version,
            bounds=self.bounds,
            move_id=None,
            committed_at=NOW,
        )

    def plan(self) -> ReadPlan:
        """As `read/plan.py` makes it of the version."""
        version = self.version()
        ends = {word: {p: getattr(b, word) for p, b in self.bounds.items()} for word in Bounds.__annotations__}
        lake = []
        if version.batch and (low := _moved(ends["start"], ends["batch_hi"])):
            high = {p: ends["batch_hi"][p] for p in low}
            lake.append(LakePart(view="batch", metadata=version.batch.metadata, low=low, high=high))
        if low := _moved(ends["batch_hi"], ends["stream_hi"]):
            high = {p: ends["stream_hi"][p] for p in low}
            lake.append(LakePart(metadata=version.stream.metadata, low=low, high=high))
        buffer = None
        if low := _moved(ends["stream_hi"], ends["buffer_hi"]):
            segments = (SegmentRef(name="s", schema_version=None),)
            buffer = BufferPart(segments=segments, low=low, high={p: ends["buffer_hi"][p] for p in low})
        return ReadPlan(
            table=self.table.name,
            table_id=7,
            version=version.version,
            schema_version=version.schema_version,
            fields=self.table.fields,
            bounds=self.bounds,
            lake=tuple(lake),
            buffer=buffer,
            tail=None,
            lease_id="l",
            lease_until=NOW,
            key=self.table.spec.key,
        )

    def read(self) -> pa.Table:
        """What the plan reads, by partition and offset."""
        buffer = Buffer(self.schema.empty_table() if self.buffer is None else self.buffer)
        reader = ArrowReader(buffer=buffer, lake=IcebergReads())
        found = reader.read(self.plan(), Selection(coordinates=True), check_lease=lambda: None)
        return in_order(found)

    # -- cuts -----------------------------------------------------------------------------------------------

    def chunk(self, ranges: Ranges, *, sequence: int = 0) -> Chunk:
        """A chunk of the buffer's rows of *ranges*."""
        assert self.buffer is not None
        rows = in_order(within(self.buffer, ranges))
        return self.cuts.write_chunk(self.table, self.version(), rows, ranges=ranges, maker="m", sequence=sequence)

    def cut(self, *, chunks: Sequence[Chunk] | None = None, previous: CutDraft | None = None) -> CutDraft:
        """A cut of the state; without *chunks* the buffer is one."""
        plan = self.plan()
        if chunks is None:
            part = plan.buffer
            chunks = [] if part is None else [self.chunk({p: (low, part.high[p]) for p, low in part.low.items()})]
        told = {p: (b.start, b.batch_hi, b.stream_hi, b.buffer_hi) for p, b in self.bounds.items()}
        return self.cuts.write_cut(
            self.table,
            self.version(),
            plan,
            chunks=chunks,
            previous=previous,
            bounds=told,
            makers=(),
            now_ms=NOW_MS,
        )


def _moved(low: Mapping[int, int], high: Mapping[int, int]) -> dict[int, int]:
    return {p: o for p, o in low.items() if high[p] > o}


def is_within(rows: pa.Table, ranges: Ranges) -> np.ndarray[Any, Any]:
    partition, offset = rows.column(PARTITION).to_numpy(), rows.column(OFFSET).to_numpy()
    found = np.zeros(rows.num_rows, np.bool_)
    for p, (low, high) in ranges.items():
        found |= (partition == p) & (low <= offset) & (offset < high)
    return found


def within(rows: pa.Table, ranges: Ranges) -> pa.Table:
    return rows.filter(pa.array(is_within(rows, ranges)))


def in_order(rows: pa.Table) -> pa.Table:
    return rows.take(pc.sort_indices(rows, sort_keys=[(PARTITION, "ascending"), (OFFSET, "ascending")]))


def with_coordinates(columns: Mapping[str, pa.Array], places: Sequence[tuple[int, int]]) -> pa.Table:
    """Rows at *places*, partition and offset, with the user's *columns*."""
    count = len(places)
    return pa.table({
        **columns,
        PARTITION: pa.array([p for p, _ in places], pa.int32()),
        OFFSET: pa.array([o for _, o in places], pa.int64()),
        "_kafka_timestamp": pa.array([1_700_000_000_000_000 + o for _, o in places], pa.timestamp("us", "UTC")),
        "_op": pa.array(["put"] * count, pa.string()),
        "_schema_version": pa.array([1] * count, pa.int32()),
    })  # fmt: skip


def run(partition: int, low: int, high: int) -> list[tuple[int, int]]:
    return [(partition, offset) for offset in range(low, high)]


def rows(places: Places) -> pa.Table:
    user = {
        "id": pa.array([1_000 * p + o for p, o in places], pa.int64()),
        "s": pa.array([f"row {o}" if o % 3 else None for _, o in places], pa.string()),
    }
    return with_coordinates(user, places)


def full(folder: Path | str, **words: Any) -> CutRig:
    """Two views, several files in each, deletes in both, a file that straddles, and a buffer."""
    rig = CutRig(folder, COLUMNS, **words)
    rig.at(0, 0, 15, 30, 40)
    rig.at(1, 0, 10, 20, 25)
    rig.append("batch", rows(run(0, 0, 8) + run(1, 0, 5)))
    rig.append("batch", rows(run(0, 8, 15) + run(1, 5, 10)))
    rig.append("stream", rows(run(0, 0, 10) + run(1, 0, 10)))
    rig.append("stream", rows(run(0, 10, 22) + run(1, 10, 20)))
    rig.append("stream", rows(run(0, 22, 30)))
    rig.hide("batch", {0: (3, 5)})
    rig.hide("stream", {0: (17, 19), 1: (11, 12)})
    rig.buffer = rows(run(0, 20, 40) + run(1, 15, 25))
    return rig


def whole(rig: CutRig, draft: CutDraft) -> pa.Table:
    """The rows of a cut as the lake's own reader finds them, in the types of the plan."""
    columns = table_columns(rig.plan()).values()
    query = LakeQuery(
        table="t", version=1, ranges=dict.fromkeys(range(rig.partitions), ALL),
        columns=[LakeColumn(name=c.name, field_id=c.field_id, type=c.type) for c in columns],
    )  # fmt: skip
    parts = [conformed(part, rig.schema) for part in scan(draft.metadata, query, LakeStats())]
    return in_order(pa.concat_tables([rig.schema.empty_table(), *parts]))


def by_pyiceberg(rig: CutRig, draft: CutDraft) -> pa.Table:
    found = StaticTable.from_metadata(draft.metadata).scan().to_arrow()
    return in_order(conformed(found.select(rig.schema.names), rig.schema))


def assert_same(rig: CutRig, draft: CutDraft) -> None:
    """Two readers find in the cut what the plan reads."""
    wanted = rig.read()
    assert whole(rig, draft).equals(wanted)
    assert by_pyiceberg(rig, draft).equals(wanted)
