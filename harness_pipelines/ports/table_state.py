"""A consistent, unvalidated dump of one table's ledger rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from harness_pipelines.protocol.bounds import Bounds, Vector
from harness_pipelines.protocol.cut_rows import CutsSeen, NamedCutRow
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.protocol.versions import Version, View, ViewName, by_name
from harness_pipelines.spec.table import TableSpec

SHOWN_MAX = 20  #: rows of one kind that are named
LEASE = timedelta(minutes=15)


_OFFSETS_END = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBounds:
    """Unvalidated bounds of one partition."""

    start: int
    batch_hi: int
    stream_hi: int
    buffer_hi: int

    @property
    def in_order(self) -> bool:
        return 0 <= self.start <= self.batch_hi <= self.stream_hi <= self.buffer_hi


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRow:
    """One partition in `lake_positions` and `ingest_positions`; ``None`` if one of them lacks it."""

    partition: int
    lake_start: int | None
    stream_hi: int | None
    batch_hi: int | None
    trim_floor: int | None
    ingest_start: int | None
    buffer_hi: int | None
    schema_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    version: int
    stream: View
    schema_version: int
    bounds: Mapping[int, StoredBounds]
    revert_of: int | None
    move_id: int | None
    committed_at: datetime
    batch: View | None = None  #: None in a table without a batch view
    layout: int | None = None  #: the version that last changed how the batch view is clustered
    overlays: tuple[Overlay, ...] = ()  #: tables of recalled rows
    narrowed: int = 0  #: how many of the table's schemas so far dropped a column

    @property
    def views(self) -> dict[ViewName, View]:
        return by_name(self.stream, self.batch)

    @property
    def stream_hi(self) -> dict[int, int]:
        return {p: cut.stream_hi for p, cut in self.bounds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    move_id: int
    stage: str
    shard: int
    lo: Vector
    hi: Vector
    base_version: int | None
    schema_version: int
    state: str
    attempt: int
    epoch: int
    trigger: str
    rows: int | None
    error: str | None
    undone_by: int | None  #: the revert that took it back
    planned_at: datetime

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """Return the non-empty ranges ``[low, high)`` by partition of the log."""
        return {p: (low, high) for p, low in sorted(self.lo.items()) if p >= 0 and (high := self.hi.get(p, -1)) != low}

    @property
    def title(self) -> str:
        """Its words in a finding, behind its stage."""
        return f"move {self.move_id}"

    @property
    def accepted(self) -> bool:
        """Whether it accepted another writer's rows, which belong to no partition of the log."""
        return any(p < 0 for p in self.lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """Moves that were folded into one row."""

    checkpoint: int
    stage: str
    kind: str  #: in effect, undone, abandoned
    schema_version: int
    lo: Vector
    hi: Vector
    rows: int
    moves: int
    first_move: int
    last_move: int
    folded_at: datetime

    @property
    def move_id(self) -> int:
        """The last of its moves."""
        return self.last_move

    @property
    def accepted(self) -> bool:
        """Moves that accepted another writer's rows are not folded."""
        return False

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """Non-empty ranges ``[low, high)`` by partition, in which the moves left no gap."""
        found = {p: (low, self.hi.get(p, -1)) for p, low in sorted(self.lo.items())}
        return {p: (low, high) for p, (low, high) in found.items() if low != high}

    @property
    def title(self) -> str:
        """Its words in a finding, behind its stage."""
        return f"checkpoint of moves {self.first_move}-{self.last_move} (folded on {self.folded_at:%Y-%m-%d})"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRow:
    """How far history is folded."""

    version: int = 0
    versions: int = 0  #: that were folded
    event: int = 0
    events: int = 0  #: that were folded
    stream_hi: Vector = field(default_factory=dict)  #: by partition the highest of the folded versions
    folded_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    name: str
    state: str
    schema_version: int
    max_hi: Vector | None
    retired_at: datetime | None
    stored: bool  #: its table exists


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRow:
    """A table of recalled rows."""

    name: str
    move_id: int
    retired: bool
    stored: bool  #: its table exists


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """The unvalidated region tree of the batch view from a version on."""

    version: int
    tree: str
    digest: str
    clustered: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """Rows of the stored segments relative to the bounds of the same instant."""

    waiting: Mapping[int, int]  #: partition -> rows in ``[stream_hi, buffer_hi)``
    kept: Mapping[int, int]  #: partition -> rows in ``[low, buffer_hi)`` of `kept_from`
    doubled: Sequence[Mapping[str, Any]]  #: partition, offset, rows; at or above stream_hi
    uncommitted: Sequence[Mapping[str, Any]]  #: segment, partition, first, last, rows
    refused_twice: Sequence[Mapping[str, Any]]  #: partition, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionRow:
    """The result of a replay for one record."""

    partition: int
    offset: int
    rows: int  #: that there are more: 1 put back or added, 0 replaced, -1 removed
    hides: bool  #: of a row that moves had brought


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineInLake:
    """Quarantined records whose bytes are in the lake."""

    title: str = ""  #: of their table in the catalog, with the namespace
    metadata: str | None = None  #: that was published last; None: none was
    pointer: str | None = None  #: that the catalog names
    offsets: Mapping[int, bytes] = field(default_factory=dict)  #: by partition, in order, big-endian longs


Spans = Sequence[tuple[int, int | None]]  #: first and last versions that reach a file; None: it goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All ledger rows of one table."""

    table_id: int
    name: str
    namespace: str
    views: Mapping[ViewName, str]  #: names of its Iceberg tables
    spec: TableSpec
    cluster_id: str
    topic: str
    topic_id: str
    outbox_seq: int
    retained_from: int
    stopped: str | None
    now: datetime
    since_tier_s: float  #: since tier last moved something, or since the table was made
    pointers: Mapping[ViewName, str]  #: metadata files that the catalog names; a view that it does not have is missing
    positions: Mapping[int, PositionRow]
    versions: Sequence[VersionRow]
    layouts: Sequence[LayoutRow]  #: those that a retained version names
    moves: Sequence[MoveRow]
    schemas: Sequence[int]
    segments: Sequence[SegmentRow]
    claims: Mapping[tuple[str, int], Mapping[str, Any]]  #: (stage, shard) -> holder, epoch, lease_until, alive
    leases: Sequence[Mapping[str, Any]]  #: version, holder, born, until, alive
    outbox: Mapping[str, int]  #: events, first, last
    outbox_gaps: Sequence[tuple[int, int]]  #: ``[low, high)``
    quarantined: Mapping[int, tuple[int, int]]  #: partition -> held records below and above stream_hi
    quarantined_outside: Sequence[tuple[int, int]]  #: partition, offset
    corrected: Sequence[CorrectionRow]  #: records whose correction is in effect
    unsettled: Sequence[tuple[int, int, str]]  #: partition, offset, state of records that no correction agrees with
    buffered: Buffered
    filtered: Mapping[int, int] = field(default_factory=dict)  #: partition -> records that the filter left out
    fields: Sequence[Mapping[str, Any]] = ()  #: of the newest schema, in Iceberg's JSON form
    snapshots: Sequence[Version] = ()  #: what named snapshots pin, with the bounds that it is read with
    overlays: Sequence[OverlayRow] = ()
    moved: QuarantineInLake = field(default_factory=QuarantineInLake)
    pins_changed: Sequence[tuple[str, int]] = ()  #: snapshots that are not as they were made, with the version
    begun: Mapping[int, int] = field(default_factory=dict)  #: versions that begin a history -> first number left out
    mirrored: frozenset[int] = frozenset()  #: versions that foreign catalogs may show
    cuts: CutsSeen = field(default_factory=CutsSeen)
    named_cuts: Sequence[NamedCutRow] = ()  #: of the states that named snapshots pin, those that servers show
    cut_folders: Sequence[str] = ()  #: where servers put files for cuts; none of a table that no server served
    buffered_bytes: int = 0  #: of its segments, where a server served it
    checkpoints: Sequence[CheckpointRow] = ()
    folded: FoldRow = field(default_factory=FoldRow)
    reach: Mapping[ViewName, Mapping[str, Spans]] = field(default_factory=dict)  #: by view and path

    @property
    def retained(self) -> list[VersionRow]:
        """Return the versions that can be read now: retained, or held by a live lease."""
        leased = {lease["version"] for lease in self.leases if lease["alive"]}
        return [v for v in self.versions if v.version >= self.retained_from or v.version in leased]


def checkpoints_of(checkpoints: Sequence[CheckpointRow], stage: str) -> list[CheckpointRow]:
    """Those of *stage* whose moves are in effect."""
    return [one for one in checkpoints if (one.stage, one.kind) == (stage, "in effect")]


def kept_from(positions: Mapping[int, PositionRow], moves: Sequence[MoveRow]) -> tuple[list[MoveRow], dict[int, int]]:
    """Return the ingest moves whose rows must all be in the buffer, and their first offset per partition.

    These moves lie entirely above the trim floor. A move that reaches below it records one row count for all its
    partitions, so its rows above the floor cannot be counted.
    """
    low = {p: row.trim_floor for p, row in positions.items() if row.trim_floor is not None}
    left = [m for m in moves if m.stage == "ingest" and m.state == "COMMITTED" and m.rows is not None]
    while True:
        below = [m for m in left if any(at < low.get(p, _OFFSETS_END) for p, (at, _) in m.ranges.items())]
        if not below:
            return left, low
        for move in below:
            low |= {p: max(low[p], high) for p, (_, high) in move.ranges.items() if p in low}
        over = {move.move_id for move in below}
        left = [m for m in left if m.move_id not in over]


def protocol_versions(found: Sequence[VersionRow]) -> list[Version]:
    """Return the versions with ordered bounds, in the form of the protocol."""
    return [
        Version(
            table_id=0,
            version=row.version,
            stream=row.stream,
            schema_version=row.schema_version,
            bounds={
                p: Bounds(start=c.start, batch_hi=c.batch_hi, stream_hi=c.stream_hi, buffer_hi=c.buffer_hi)
                for p, c in row.bounds.items()
            },
            move_id=row.move_id,
            committed_at=row.committed_at,
            revert_of=row.revert_of,
            narrowed=row.narrowed,
        )
        for row in found
        if all(cut.in_order for cut in row.bounds.values())
    ]
