"""The shared state of the memory stores under one lock, with its own clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from harness_pipelines.ports.ledger import IngestPosition, LayoutState, RefusedRecord, Segment, TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, check_claim
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version

if TYPE_CHECKING:
    from harness_pipelines_tests.memory.lake import MemoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePosition:
    """One row of ``lake_positions``."""

    start: int
    batch_hi: int
    stream_hi: int
    trim_floor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveEntry:
    """A move with what only its row in the ledger says."""

    move: Move
    trigger: str
    run_id: str | None
    planned_at: datetime
    failures: int = 0
    bytes: int | None = None
    error: str | None = None
    committed_at: datetime | None = None
    undone_by: int | None = None  #: the revert that took it back


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A reader's hold on a version."""

    table_id: int
    version: int
    born: datetime
    until: datetime


@dataclass(slots=True)
class Books:
    """All rows. The values are immutable, so a shallow copy of each mapping is a snapshot."""

    tables: dict[int, TableRow] = field(default_factory=dict)
    stopped_stages: dict[int, str | None] = field(default_factory=dict)
    pointers: dict[tuple[str, str], str] = field(default_factory=dict)  #: (namespace, view) -> metadata location
    lake_positions: dict[tuple[int, int], LakePosition] = field(default_factory=dict)
    ingest_positions: dict[tuple[int, int], IngestPosition] = field(default_factory=dict)
    versions: dict[int, tuple[Version, ...]] = field(default_factory=dict)
    layouts: dict[tuple[int, int], LayoutState] = field(default_factory=dict)
    claims: dict[tuple[int, Stage, int], Claim] = field(default_factory=dict)
    moves: dict[int, MoveEntry] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    outbox: dict[int, tuple[tuple[int, str, Mapping[str, Any]], ...]] = field(default_factory=dict)
    segments: dict[str, Segment] = field(default_factory=dict)
    segment_rows: dict[str, tuple[pa.Table, ...]] = field(default_factory=dict)
    quarantine: dict[tuple[int, int, int], RefusedRecord] = field(default_factory=dict)

    def copied(self) -> Books:
        return Books(**{f.name: copy(getattr(self, f.name)) for f in fields(self)})

    def emit(self, table_id: int, event: str, payload: Mapping[str, Any]) -> None:
        """Append to the table's outbox."""
        before = self.outbox.get(table_id, ())
        self.outbox[table_id] = (*before, (len(before) + 1, event, payload))

    def fence(self, claim: Claim, *, now: datetime) -> None:
        """The last check of every commit. Raises: FencedOut."""
        current = self.claims.get((claim.table_id, claim.stage, claim.shard))
        if current is None:
            raise FencedOut(f"{claim.stage} of table {claim.table_id}: the claim is gone; nothing was written")
        check_claim(claim, current, now=now)

    def ingest_of(self, table_id: int) -> dict[int, IngestPosition]:
        """The table's ingest positions by partition, ascending."""
        found = {p: at for (owner, p), at in self.ingest_positions.items() if owner == table_id}
        return dict(sorted(found.items()))

    def lake_of(self, table_id: int) -> dict[int, LakePosition]:
        """The table's lake positions by partition, ascending."""
        found = {p: at for (owner, p), at in self.lake_positions.items() if owner == table_id}
        return dict(sorted(found.items()))

    def segments_of(self, table_id: int) -> list[Segment]:
        """The table's segments, oldest first."""
        prefix = f"seg_{table_id}_"
        return sorted((s for s in self.segments.values() if s.name.startswith(prefix)), key=lambda s: s.seq)

    def add_partitions(self, table: TableRow, starts: Mapping[int, int]) -> None:
        """Let partitions join; those that are known stay as they are."""
        for partition, start in starts.items():
            key = (table.table_id, partition)
            fresh_lake = LakePosition(start=start, batch_hi=start, stream_hi=start, trim_floor=start)
            self.lake_positions.setdefault(key, fresh_lake)
            fresh = IngestPosition(
                partition=partition,
                start=start,
                buffer_hi=start,
                leader_epoch=None,
                schema_version=table.schema_version,
            )
            self.ingest_positions.setdefault(key, fresh)


class MemoryState:
    """The database and the warehouse of the memory stores. Safe for use by several threads."""

    def __init__(self, *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = now
        self._ahead = timedelta(0)
        self._lock = threading.RLock()
        self._ids = 0
        self.books = Books()
        self.views: dict[str, MemoryView] = {}  #: metadata files by location; no transaction takes one back

    def now(self) -> datetime:
        """The one clock of the stores; leases and claims end by it."""
        return self._clock() + self._ahead

    def pass_time(self, by: timedelta) -> None:
        """Let the clock go ahead."""
        self._ahead += by

    def next_id(self) -> int:
        """An id that was never given before; like a sequence, it is not taken back."""
        with self._lock:
            self._ids += 1
            return self._ids

    @contextmanager
    def transaction(self) -> Iterator[Books]:
        """One transaction: all of what is done to the books, or on any error nothing. One at a time."""
        with self._lock:
            working = self.books.copied()
            yield working
            self.books = working


def ended(entry: MoveEntry, *, now: datetime, **changes: Any) -> MoveEntry:
    """*entry* with its move changed; `committed_at` is set when that makes it COMMITTED."""
    move = replace(entry.move, **changes)
    return replace(entry, move=move, committed_at=now if move.state == "COMMITTED" else entry.committed_at)
