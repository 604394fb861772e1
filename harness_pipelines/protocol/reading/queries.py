"""Queries of one tier and their costs: values that flows, tiers and engines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.predicate import TRUE, Predicate
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import Type


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeColumn:
    """A column of the result: its name there, and the field of the view by which it is found."""

    name: str
    field_id: int | None  #: None: a coordinate, found by its name
    type: Type | None = None  #: that is asked for, where the view may have a wider one by now


@dataclass(slots=True, kw_only=True)
class LakeStats:
    """The work of a scan. Bytes are those of delete files and column chunks read, compressed, from manifests."""

    files: int = 0
    files_opened: int = 0
    files_straddling: int = 0
    rows_in_opened: int = 0
    rows_read: int = 0
    bytes_read: int = 0
    skipped: dict[str, int] = field(default_factory=dict)  #: files not opened, by reason: ranges, statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeQuery:
    """What is wanted of a view: ranges per partition, columns in order, and the rows for which *where* holds."""

    table: str  #: for messages
    version: int
    ranges: Ranges
    columns: Sequence[LakeColumn]
    where: Predicate = TRUE
    limit: int | None = None  #: the caller may stop early: no file is read ahead
    layer: bool = False  #: only files with rows of the view's sample layer, if it has one
    files: frozenset[str] | None = None  #: only these, by their paths


@dataclass(slots=True, kw_only=True)
class BufferStats:
    """The rows from Postgres before the last filter. Bytes are those of the Arrow tables."""

    segments: int = 0
    rows_read: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferQuery:
    """What is wanted of the segments: ranges per partition, columns, and the rows for which *where* holds."""

    table: str  #: for messages
    segments: Sequence[SegmentRef]
    ranges: Ranges
    schema: pa.Schema  #: columns of the result in order, coordinates among them
    where: Predicate = TRUE
    limit: int | None = None
    stores_op: bool = False  #: of a keyed table


@dataclass(slots=True, kw_only=True)
class ReadStats:
    """What a read took from each tier."""

    lake: LakeStats = field(default_factory=LakeStats)
    overlay: BufferStats = field(default_factory=BufferStats)  #: recalled rows
    buffer: BufferStats = field(default_factory=BufferStats)
    tail_rows: int = 0
    rows: int = 0  #: returned
    offsets: dict[str, tuple[int, int]] = field(default_factory=dict)  #: tier -> in the plan, left after `where`


@dataclass(frozen=True, slots=True, kw_only=True)
class HotQuery:
    """What is wanted of *segments*: the newest row per *key* and partition of those for which *where* holds."""

    segments: tuple[SegmentRef, ...]
    schema: pa.Schema  #: columns of the result in order, key, partition and offset among them
    key: tuple[str, ...]
    where: Predicate  #: of the key alone


def schema_of(spec: TableSpec) -> pa.Schema:
    """User columns, then all coordinates; nullable, as in the files of the lake."""
    return pa.schema([f.with_nullable(True) for f in arrow_schema(spec.stored, coordinates=True)])
