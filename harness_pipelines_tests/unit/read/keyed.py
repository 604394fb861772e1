"""A keyed table of small sources made by hand, and the dictionary that says what a read of it must give.

The sources do what the real ones may do at most: they leave out every row that they were not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import BufferPart, LakePart, ReadPlan, SegmentRef, TailPart
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, LakeQuery, LakeStats
from harness_pipelines.protocol.reading.selection import Selection
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.arrow import arrow_schema, to_arrow
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.predicate import Predicate
from harness_pipelines.spec.types import Type, iceberg_fields, parse_type
from harness_pipelines.spec.where import parse_where
from harness_pipelines_tests.unit.read.predicates import holds

COLUMNS = {"a": "long", "b": "string", "v": "int"}
KEY = ("a", "b")
KINDS: Mapping[str, Type] = {
    **{name: parse_type(kind) for name, kind in COLUMNS.items()},
    "_kafka_partition": parse_type("int"),
    "_kafka_offset": parse_type("long"),
    "_op": parse_type("string"),
}
SCHEMA = arrow_schema([Column(name=n, type=KINDS[n]) for n in COLUMNS], coordinates=True)
Vector = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the log; ``v`` None and ``op`` 'delete' is a delete."""

    a: int | None
    b: str | None
    v: int | None
    partition: int
    offset: int
    op: str = "put"

    @property
    def key(self) -> tuple[int | None, str | None]:
        return self.a, self.b

    @property
    def row(self) -> dict[str, Any]:
        return {
            "a": self.a,
            "b": self.b,
            "v": self.v if self.op == "put" else None,
            "_kafka_partition": self.partition,
            "_kafka_offset": self.offset,
            "_kafka_timestamp": None,
            "_op": self.op,
            "_schema_version": 1,
        }


def replay(log: Sequence[Record], below: Vector) -> list[Record]:
    """The newest put of each key below a vector, as a dictionary gives it."""
    state: dict[Any, Record] = {}
    for record in sorted(log, key=lambda r: r.offset):
        if record.offset < below[record.partition]:
            state[record.key] = record
    return [record for record in state.values() if record.op == "put"]


def expected(log: Sequence[Record], below: Vector, where: str | None = None) -> list[tuple[int, int]]:
    """Coordinates of the rows of a read, sorted."""
    condition = parse_where(where, KINDS) if where else None
    rows = (r.row for r in replay(log, below))
    return sorted((r["_kafka_partition"], r["_kafka_offset"]) for r in rows if condition is None or holds(condition, r))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """A log cut at four vectors: below ``batch_hi`` it is merged state, above it is a changelog."""

    log: Sequence[Record]
    batch_hi: Vector
    stream_hi: Vector
    buffer_hi: Vector
    end: Vector
    cold: Sequence[Record] | None = None  #: in place of what a replay gives

    @property
    def plan(self) -> ReadPlan:
        start = dict.fromkeys(self.end, 0)
        bounds = {
            p: Bounds(start=0, batch_hi=self.batch_hi[p], stream_hi=self.stream_hi[p], buffer_hi=self.buffer_hi[p])
            for p in self.end
        }
        return ReadPlan(
            table="t.keyed",
            table_id=1,
            version=1,
            schema_version=1,
            fields=tuple(iceberg_fields([Column(name=n, type=KINDS[n]) for n in COLUMNS])),
            key=KEY,
            bounds=bounds,
            lake=(
                LakePart(view="batch", metadata="batch", low=start, high=self.batch_hi),
                LakePart(view="stream", metadata="stream", low=self.batch_hi, high=self.stream_hi),
            ),
            buffer=BufferPart(
                segments=(SegmentRef(name="seg", schema_version=1),), low=self.stream_hi, high=self.buffer_hi
            ),
            tail=TailPart(topic="t", schema_version=1, low=self.buffer_hi, high=self.end),
            lease_id="lease",
            lease_until=datetime.now(UTC),
        )

    @contextmanager
    def reader(self) -> Iterator[ArrowReader]:
        """A reader of these tiers, each row of the lake a file of its own."""
        lake: Any = _Lake(self)
        buffer: Any = _Buffer(self)
        yield ArrowReader(buffer=buffer, lake=lake, tail_rows=self._tail)

    def read(self, selection: Selection | None = None) -> pa.Table:
        with self.reader() as reader:
            return reader.read(self.plan, selection or Selection(), check_lease=lambda: None)

    def coordinates(self, **selection: Any) -> list[tuple[int, int]]:
        """Coordinates of a read's rows, sorted: a doubled row stays doubled."""
        found = self.read(Selection(columns=["_kafka_partition", "_kafka_offset"], **selection))
        return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))

    def _tail(self, part: TailPart) -> pa.Table:
        return table_of(self.log, {p: (part.low[p], part.high[p]) for p in part.low})


class _Lake:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def scan(self, metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[pa.Table]:
        tiers = self._tiers
        records = tiers.log if metadata == "stream" else tiers.cold
        records = replay(tiers.log, tiers.batch_hi) if records is None else records
        names = [column.name for column in query.columns]
        for record in records:
            yield table_of([record], query.ranges, query.where).select(names)


class _Buffer:
    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def batches(self, query: BufferQuery, stats: BufferStats) -> Iterator[pa.Table]:
        assert query.stores_op, "segments of a keyed table store the operation"
        yield table_of(self._tiers.log, query.ranges, query.where).select(query.schema.names).slice(0, query.limit)


def table_of(records: Sequence[Record], ranges: Ranges, where: Predicate | None = None) -> pa.Table:
    """The rows of *records* in *ranges* for which *where* holds."""

    def inside(record: Record) -> bool:
        low, high = ranges.get(record.partition, (0, 0))
        return low <= record.offset < high

    table = pa.Table.from_pylist([r.row for r in records if inside(r)], schema=SCHEMA)
    return table if where is None else table.filter(to_arrow(where))
