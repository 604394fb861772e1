"""The reference of expire's decisions on segments: the trim floor, retiring, and dropping in a later run."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import TrimDecision
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.segments import may_drop, retirable
from harness_pipelines.protocol.versions import kept_versions, trim_floor, unanswered
from harness_pipelines_tests.memory.state import Books, MemoryState

ORPHANED_FOR = timedelta(hours=1)  #: an open move that nobody could have worked on for so long is closed


class MemoryUpkeep:
    """Trimming in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    def trim(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> TrimDecision:
        """Raise the trim floor, retire the segments below it, and move ``retained_from`` up, all or nothing."""
        now = self.state.now()
        table = self.state.books.tables[table.table_id]
        if dry_run:
            return _decide(self.state.books, table, now=now)
        with self.state.transaction() as books:
            books.leases = {k: v for k, v in books.leases.items() if v.table_id != table.table_id or v.until > now}
            decision = _decide(books, table, now=now)
            for partition, at in books.lake_of(table.table_id).items():
                floor = max(at.trim_floor, min(decision.floor.get(partition, at.trim_floor), at.stream_hi))
                books.lake_positions[table.table_id, partition] = replace(at, trim_floor=floor)
            for segment in decision.retire:
                books.segments[segment.name] = replace(segment, state="retired", retired_at=now)
            row = books.tables[table.table_id]
            retained_from = max(row.retained_from, decision.retained_from)
            books.tables[table.table_id] = replace(row, retained_from=retained_from)
            _abandon_orphaned(books, table, silent_since=now - ORPHANED_FOR)
            books.fence(claim, now=now)
            return decision

    def drop_retired(self, table: TableRow, *, retired_for: timedelta) -> list[str]:
        """Drop segments that were retired by an earlier run."""
        with self.state.transaction() as books:
            now, segments = self.state.now(), books.segments_of(table.table_id)
            gone = [s.name for s in segments if may_drop(s.retired_at, grace=retired_for, now=now)]
            for name in gone:
                del books.segments[name], books.segment_rows[name]
            return gone


def _decide(books: Books, table: TableRow, *, now: datetime) -> TrimDecision:
    retention = table.spec.retention
    versions = [v for v in books.versions[table.table_id] if v.version >= table.retained_from]
    held = {x.version for x in books.leases.values() if x.table_id == table.table_id and x.until > now}
    leased = [v for v in books.versions[table.table_id] if v.version in held]
    kept = kept_versions(versions, retention=timedelta(seconds=retention.versions), now=now)
    starts = {p: at.start for p, at in books.lake_of(table.table_id).items()}
    waiting, grace = unanswered(kept, versions), timedelta(seconds=retention.grace)
    floor = starts | trim_floor(versions, leased, waiting=waiting, grace=grace, now=now)
    return TrimDecision(
        floor=floor,
        retire=tuple(retirable(books.segments_of(table.table_id), floor)),
        retained_from=kept[0].version,
    )


def _abandon_orphaned(books: Books, table: TableRow, *, silent_since: datetime) -> None:
    """Close the moves that were planned before and whose claim nobody has held since."""
    for key, entry in books.moves.items():
        move = entry.move
        if move.table_id != table.table_id or move.state is not MoveState.PLANNED or entry.planned_at >= silent_since:
            continue
        claim = books.claims.get((move.table_id, move.stage, move.shard))
        if claim is None or claim.lease_until <= silent_since:
            closed = replace(move, state=MoveState.ABANDONED)
            books.moves[key] = replace(entry, move=closed, error=entry.error or "no live claim for an hour")
