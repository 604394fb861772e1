"""The reference buffer: segments, and the ingest commit with its guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pyarrow as pa

from harness_pipelines.ports.buffer import WriterUnit
from harness_pipelines.ports.decoded import DecodedRange, RowsUnfit
from harness_pipelines.ports.ledger import Beginning, IngestPosition, Segment, TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.pressure import Fill, LimitName, buffer_full, full
from harness_pipelines.protocol.segments import check_unit, check_writable
from harness_pipelines_tests.memory.state import Books, MemoryState, MoveEntry


class MemorySegments:
    """Segments in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._paused: set[int] = set()

    def all(self, table: TableRow) -> list[Segment]:
        """Every segment that is not dropped yet, oldest first."""
        return self.state.books.segments_of(table.table_id)

    def positions(self, table: TableRow) -> dict[int, IngestPosition]:
        return self.state.books.ingest_of(table.table_id)

    def open_segment(self, table: TableRow) -> Segment:
        """The newest open segment in the table's schema; makes one if there is none."""
        with self.state.transaction() as books:
            fitting = [
                s
                for s in books.segments_of(table.table_id)
                if s.state == "open" and s.schema_version == table.schema_version
            ]
            return fitting[-1] if fitting else self._make(books, table)

    def index(self, table: TableRow, segment: Segment) -> None:
        """Nothing to make: memory is scanned."""

    def check_room(self, table: TableRow, *, taken: int) -> None:
        """Only the table's limit holds: memory has no server. Raises: BufferFull."""
        if table.spec.buffer_bytes_max is None:
            return
        books = self.state.books
        rows = [part for s in books.segments_of(table.table_id) for part in books.segment_rows[s.name]]
        found = Fill(limit="table", bytes=sum(r.nbytes for r in rows), bytes_max=table.spec.buffer_bytes_max)
        paused_by: LimitName | None = "table" if table.table_id in self._paused else None
        if full([found], paused_by=paused_by) is None:
            self._paused.discard(table.table_id)
            return
        if paused_by is None:
            self._paused.add(table.table_id)
            self.rotate(table)
        raise buffer_full(table.name, found)

    def refused(self, table: TableRow, partition: int, low: int, high: int) -> list[int]:
        """Offsets of the records in ``[low, high)`` of a partition that were quarantined, ascending."""
        held = self.state.books.quarantine
        return sorted(o for t, p, o in held if (t, p) == (table.table_id, partition) and low <= o < high)

    def beginning(self, table: TableRow, *, limit: int) -> Beginning:
        """How *table* began; no more than *limit* refused records are counted."""
        books = self.state.books
        refused = sum(1 for owner, _, _ in books.quarantine if owner == table.table_id)
        mine = [one.move for one in books.moves.values() if one.move.table_id == table.table_id]
        taken = any(move.rows and move.state is MoveState.COMMITTED for move in mine)
        return Beginning(refused=min(refused, limit), taken=taken)

    def rotate(self, table: TableRow) -> None:
        """Open the next segment and close the ones before it; a closed one knows the highest offset it can hold."""
        with self.state.transaction() as books:
            fresh = self._make(books, table)
            max_hi = {p: at.buffer_hi for p, at in books.ingest_of(table.table_id).items()}
            for segment in books.segments_of(table.table_id):
                if segment.state == "open" and segment.seq < fresh.seq:
                    books.segments[segment.name] = replace(segment, state="closed", max_hi=max_hi)

    def _make(self, books: Books, table: TableRow) -> Segment:
        seq = max((s.seq for s in books.segments_of(table.table_id)), default=0) + 1
        made = Segment(
            name=f"seg_{table.table_id}_{seq}",
            seq=seq,
            state="open",
            schema_version=table.schema_version,
            max_hi=None,
            created_at=self.state.now(),
        )
        books.segments[made.name], books.segment_rows[made.name] = made, ()
        return made


class MemorySegmentWriter:
    """One ingest connection."""

    def __init__(self, state: MemoryState, table: TableRow, claim: Callable[[], Claim]) -> None:
        self.state = state
        self._table = table
        self._claim = claim

    def commit(self, segment: Segment, ranges: Sequence[DecodedRange], *, confirm: Callable[[], None]) -> int:
        """Commit *ranges* in one transaction, all or none; returns the number of rows.

        Raises: SegmentClosed, SchemaMoved, BoundaryGap, FencedOut, or what *confirm* raises.
        """
        [count] = self.commit_all([WriterUnit(writer=self, segment=segment, ranges=ranges)], confirm=confirm)
        return count

    def commit_all(self, units: Sequence[WriterUnit], *, confirm: Callable[[], None]) -> list[int]:
        """Commit *units* in one transaction, all or none; returns the number of rows of each. Raises: as `commit`."""
        writers = [one.writer for one in units if isinstance(one.writer, MemorySegmentWriter)]
        claims = [writer._claim() for writer in writers]
        with self.state.transaction() as books:
            for writer, claim, one in zip(writers, claims, units, strict=True):
                writer._write(books, claim, one)
            confirm()
            for claim in claims:
                books.fence(claim, now=self.state.now())
        return [sum(r.rows.num_rows for r in one.ranges) for one in units]

    def _write(self, books: Books, claim: Claim, unit: WriterUnit) -> None:
        segment = unit.segment
        found = books.segments.get(segment.name)
        check_writable(segment.name, found.state if found else None)
        books.segment_rows[segment.name] += tuple(r.rows for r in unit.ranges)
        for taken in unit.ranges:
            self._advance(books, segment, taken)
        self._account(books, claim, segment, unit.ranges)

    def trouble(self, segment: Segment, rows_: pa.Table) -> RowsUnfit | None:
        """None: memory takes every row."""
        return None

    def close(self) -> None:
        """Nothing is held."""

    def _advance(self, books: Books, segment: Segment, taken: DecodedRange) -> None:
        key = (self._table.table_id, taken.partition)
        at = books.ingest_positions.get(key)
        check_unit(
            self._table.name,
            partition=taken.partition,
            low=taken.low,
            decoded_with=segment.schema_version,
            buffer_hi=at.buffer_hi if at else None,
            schema_version=at.schema_version if at else None,
        )
        assert at is not None
        epoch = at.leader_epoch if taken.leader_epoch is None else taken.leader_epoch
        books.ingest_positions[key] = replace(at, buffer_hi=taken.high, leader_epoch=epoch)
        for record in taken.refused:
            books.quarantine[self._table.table_id, record.partition, record.offset] = record

    def _account(self, books: Books, claim: Claim, segment: Segment, ranges: Sequence[DecodedRange]) -> None:
        move = Move(
            move_id=self.state.next_id(),
            table_id=self._table.table_id,
            stage=Stage.INGEST,
            shard=claim.shard,
            lo={r.partition: r.low for r in ranges},
            hi={r.partition: r.high for r in ranges},
            base_version=0,
            schema_version=segment.schema_version,
            state=MoveState.COMMITTED,
            attempt=1,
            epoch=claim.epoch,
            rows=sum(r.rows.num_rows for r in ranges),
        )
        now = self.state.now()
        books.moves[move.move_id] = MoveEntry(move=move, trigger="log", run_id=None, planned_at=now, committed_at=now)
