"""Writes of the buffer: the ingest commit, and opening and closing segments.

The ingest commit is one transaction on one ADBC connection: the segment's row is shared, rows go in by binary COPY,
positions advance where they are what the batch was read from, refused records are quarantined, and the claim is checked
last. Small units of several tables share a transaction. Ideas: Kafka Connect's transactional sinks, with the offsets
beside the data; the group commit of databases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import partial
from typing import Any, TypeVar

import adbc_driver_manager
import orjson
import pyarrow as pa
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from harness_pipelines import faults
from harness_pipelines.buffers.postgres.room import Room
from harness_pipelines.buffers.postgres.types import (
    rest_of,
    segment_ddl,
    segment_index,
    segment_key_index,
    segment_statistics,
    to_copy,
)
from harness_pipelines.drivers.adbc import AdbcSessions, AdbcTimeout, cursor_of
from harness_pipelines.drivers.postgres import (
    Asked,
    Connection,
    Database,
    PostgresReadOnly,
    PostgresUnreachable,
    named,
    sql,
)
from harness_pipelines.errors import HarnessError, OutcomeUnknown
from harness_pipelines.formats.culprits import told
from harness_pipelines.ports import rows
from harness_pipelines.ports.buffer import WriterUnit
from harness_pipelines.ports.decoded import DecodedRange, RowsUnfit, Violations
from harness_pipelines.ports.ledger import Beginning, IngestPosition, RefusedRecord, Segment, TableRow
from harness_pipelines.ports.refused import REFUSED_TOGETHER, Kept, kept
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import Claim, FencedOut, check_claim
from harness_pipelines.protocol.pressure import buffer_full
from harness_pipelines.protocol.schema.schemas import SchemaMoved, check_schema
from harness_pipelines.protocol.segments import check_unit, check_writable
from harness_pipelines.spec.table import TableSpec

SCHEMA = "harness_buffer"
_PROGRAM_LIMIT = "54000"  #: a row is larger than a page takes
NO_MOVE = -1  #: the number of no move
REFUSED_BYTES_MAX = 16 * 2**10  #: of a record that is quarantined together with others
#: The parameters of `buffer/refuse` behind the table's number.
_REFUSAL = (
    "partition", "offset", "reason", "detail", "key", "value", "headers", "kafka_ms", "whole", "key_bytes",
    "value_bytes", "key_sha256", "value_sha256",
)  # fmt: skip
MOVE_ROWS_MAX = 1_000_000  #: rows per accounting row; then the next one is begun


T = TypeVar("T")
Accounting = tuple[int, int, int]  #: number of the row, epoch of the claim, rows so far


@dataclass(slots=True, kw_only=True, eq=False)
class _Written:
    """A unit of one writer, and what its transaction came to."""

    writer: SegmentWriter
    segment: Segment
    ranges: Sequence[DecodedRange]
    claim: Claim
    rows: int = 0
    so_far: Accounting | None = None  #: the accounting row that it continues
    accounting: Accounting | None = None

    @classmethod
    def of(cls, unit: WriterUnit) -> _Written:
        """Raises: what asking for the claim does."""
        writer = unit.writer
        assert isinstance(writer, SegmentWriter), writer
        return cls(writer=writer, segment=unit.segment, ranges=unit.ranges, claim=writer._claim())


class SegmentWriter:
    """Writes of one unit of ingest. It has a session while it commits. Not safe for use by two threads at once."""

    def __init__(
        self, sessions: AdbcSessions, table: TableRow, claim: Callable[[], Claim], *, run_id: str | None
    ) -> None:
        self._sessions = sessions
        self._table = table
        self._claim = claim
        self._run_id = run_id
        self._connection: Any = None
        self._move: Accounting | None = None
        self._day: date | None = None  # of the accounting row, in UTC: costs are by day

    def commit(self, segment: Segment, ranges: Sequence[DecodedRange], *, confirm: Callable[[], None]) -> int:
        """Commit *ranges* in one transaction, all or none; returns the number of rows.

        *confirm* is called after the rows are written and before the commit; it raises if the log is not the one
        that the rows were read from.

        Raises: SegmentClosed, SchemaMoved, BoundaryGap (REFRESH), FencedOut (NEVER), OutcomeUnknown (RESOLVE),
        PostgresUnreachable; RowsUnfit, of which `trouble` tells for fewer rows.
        """
        [count] = self.commit_all([WriterUnit(writer=self, segment=segment, ranges=ranges)], confirm=confirm)
        return count

    def commit_all(self, units: Sequence[WriterUnit], *, confirm: Callable[[], None]) -> list[int]:
        """Commit *units*, of this writer and of others, in one transaction, all or none; returns the rows of each.

        With several, a lock that is not granted soon ends the transaction (LedgerBusy). Raises: as `commit`, and what
        it says is of the table of any unit.
        """
        written = [_Written.of(unit) for unit in units]
        with self._explained(), self._session() as connection:
            try:
                self._write(connection, written, confirm)
            except BaseException:
                self._roll_back(connection)
                raise
            faults.point("ingest.in_transaction")
            self._commit(connection)
            faults.point("ingest.after_commit")
            for one in written:
                one.writer._move = one.accounting
            self._tell(connection, [one.writer._table for one in written])
        return [one.rows for one in written]

    def trouble(self, segment: Segment, rows_: pa.Table) -> RowsUnfit | None:
        """Why *rows_* cannot be stored: they are written and taken back. Raises: PostgresUnreachable."""
        try:
            with self._explained(), self._session() as connection:
                try:
                    with cursor_of(connection) as cursor:
                        self._asked(connection, partial(self._copy, cursor, segment, rows_), cursor)
                finally:
                    self._roll_back(connection)
        except RowsUnfit as unfit:
            return unfit
        return None

    def _copy(self, cursor: Any, segment: Segment, rows_: pa.Table) -> None:
        """Raises: RowsUnfit for what no column of the segment has; the driver's errors."""
        try:
            copied = to_copy(rows_, segment.packed)
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError) as error:
            raise RowsUnfit(self._table.name, said=told(error), is_too_large=False) from error
        cursor.adbc_ingest(segment.name, copied, mode="append", db_schema_name=SCHEMA)

    def close(self) -> None:
        if self._connection is not None:
            self._sessions.end(self._connection)
            self._connection = None

    def _write(self, connection: Any, units: Sequence[_Written], confirm: Callable[[], None]) -> None:
        """All of *units*, each step in the order of the tables' ids; the bounds are moved last."""
        in_order = sorted(units, key=lambda one: one.writer._table.table_id)
        with cursor_of(connection) as cursor:
            self._asked(connection, partial(self._fill_all, cursor, in_order), cursor)
            confirm()
            self._asked(connection, partial(self._advance, cursor, in_order), cursor)

    def _fill_all(self, cursor: Any, units: Sequence[_Written]) -> None:
        """Everything but the bounds."""
        if len(units) > 1:
            cursor.execute(sql("buffer/wait_briefly"))
        names = sorted({one.segment.name for one in units})
        cursor.execute(sql("buffer/share_segments"), (orjson.dumps(names).decode(),))
        states = dict(cursor.fetchall())
        for one in units:
            check_writable(one.segment.name, states.get(one.segment.name))
            one.rows = one.writer._fill(cursor, one.segment, one.ranges)

    def _fill(self, cursor: Any, segment: Segment, ranges: Sequence[DecodedRange]) -> int:
        """Rows, refused records and counts; returns the number of rows."""
        batch = pa.concat_tables([r.rows for r in ranges])
        if batch.num_rows:
            self._copy(cursor, segment, batch)
        refused = [record for taken in ranges for record in taken.refused]
        self._refuse(cursor, refused)
        if counted := [_violations(taken, one) for taken in ranges for one in taken.violations]:
            cursor.execute(sql("buffer/count_violations"), (self._table.table_id, orjson.dumps(counted).decode()))
        if passed := [{"partition": r.partition, "records": r.filtered} for r in ranges if r.filtered]:
            cursor.execute(sql("buffer/count_filtered"), (self._table.table_id, orjson.dumps(passed).decode()))
        return int(batch.num_rows)

    def _asked(self, connection: Any, ask: Callable[[], T], cursor: Any = None) -> T:
        """Return the result of *ask*. Raises: AdbcTimeout, after which this writer has given the session up."""
        try:
            return self._sessions.asked(connection, cursor, ask)
        except AdbcTimeout:
            self._connection = None
            raise

    def _roll_back(self, connection: Any) -> None:
        if connection is not self._connection:  # it waits for an answer, and is closed then
            return
        try:
            self._asked(connection, connection.rollback)
        except adbc_driver_manager.Error:
            self.close()  # nobody else may find it in a transaction

    def _refuse(self, cursor: Any, refused: Sequence[RefusedRecord]) -> None:
        """Quarantine records: small ones in batches, because one by one they cost ten times as much."""
        table_id, records = self._table.table_id, [kept(record) for record in refused]
        small = [r for r in records if r.bytes <= REFUSED_BYTES_MAX]
        for first in range(0, len(small), REFUSED_TOGETHER):
            told = orjson.dumps([r.to_json() for r in small[first : first + REFUSED_TOGETHER]]).decode()
            cursor.execute(sql("buffer/refuse_many"), (table_id, told))
        for large in (r for r in records if r.bytes > REFUSED_BYTES_MAX):  # together they may be too large for Arrow
            cursor.execute(sql("buffer/refuse"), _refusal(table_id, large))

    def _advance(self, cursor: Any, units: Sequence[_Written]) -> None:
        """Move the bounds of all ranges, each where it is what the range was read from; claims are checked last."""
        asked = [one.writer._bounds(number, one) for number, one in enumerate(units)]
        cursor.execute(sql("buffer/advance"), (orjson.dumps(asked).decode(),))
        names = [d[0] for d in cursor.description]
        found = {row[0]: dict(zip(names, row, strict=True)) for row in cursor.fetchall()}
        for number, one in enumerate(units):
            one.writer._check_moved(cursor, one, found[number])

    def _bounds(self, number: int, unit: _Written) -> dict[str, Any]:
        """What `advance` is asked for *unit*. Neighbouring commits of one holder share an accounting row."""
        today, claim = datetime.now(UTC).date(), unit.claim
        fits = self._move and self._move[1] == claim.epoch and self._move[2] < MOVE_ROWS_MAX and self._day == today
        unit.so_far, self._day = self._move if fits else None, today
        ranges = [
            {
                "partition": r.partition,
                "low": r.low,
                "high": r.high,
                "leader_epoch": r.leader_epoch,
                "digest": r.digest,
            }
            for r in unit.ranges
        ]
        return {
            "unit": number,
            "table_id": claim.table_id,
            "shard": claim.shard,
            "ranges": ranges,
            "schema_version": unit.segment.schema_version,
            "move_id": unit.so_far[0] if unit.so_far else NO_MOVE,
            "epoch": claim.epoch,
            "run_id": self._run_id,
            "rows": unit.rows,
        }

    def _check_moved(self, cursor: Any, unit: _Written, row: Mapping[str, Any]) -> None:
        """Raises: SchemaMoved, BoundaryGap, FencedOut."""
        claim = unit.claim
        moved = set(str(row["moved"]).split(","))
        for taken in unit.ranges:
            if str(taken.partition) not in moved:
                raise self._not_moved(cursor, unit.segment, taken)
        if row["holder"] is None:
            raise FencedOut(f"{self._table.name}: the ingest claim is gone; nothing was written")
        found = replace(claim, holder=row["holder"], epoch=row["epoch"], lease_until=row["lease_until"])
        check_claim(claim, found, now=row["now"])
        unit.accounting = row["move_id"], claim.epoch, unit.rows + (unit.so_far[2] if unit.so_far else 0)

    def _not_moved(self, cursor: Any, segment: Segment, taken: DecodedRange) -> HarnessError:
        """Why the bound of a partition stayed where it was."""
        found = _one(cursor, "position", self._table.table_id, taken.partition)
        try:
            check_unit(
                self._table.name,
                partition=taken.partition,
                low=taken.low,
                decoded_with=segment.schema_version,
                buffer_hi=found["buffer_hi"] if found else None,
                schema_version=found["schema_version"] if found else None,
            )
        except (SchemaMoved, BoundaryGap) as reason:
            return reason
        # It has gone where the unit starts since: another holder's commit ended between the two statements.
        return BoundaryGap(what="the buffer", partition=taken.partition, expected_low=-1, got_low=taken.low)

    def _commit(self, connection: Any) -> None:
        try:
            self._asked(connection, connection.commit)
        except adbc_driver_manager.Error as error:
            self.close()
            raise OutcomeUnknown(f"{self._table.name}: COMMIT was sent, its answer was lost: {error}") from error

    def _tell(self, connection: Any, tables: Iterable[TableRow]) -> None:
        """Notify those that wait for *tables*, in a separate transaction (see `News`); if it fails, they poll."""
        ids = orjson.dumps(sorted({str(table.table_id) for table in tables})).decode()

        def tell() -> None:
            with cursor_of(connection) as cursor:
                cursor.execute(sql("buffer/tell"), (ids,))
            connection.commit()

        try:
            self._asked(connection, tell)
        except adbc_driver_manager.Error:
            self.close()

    @contextmanager
    def _session(self) -> Iterator[Any]:
        """A session, which other writers may use afterwards unless it was closed or given up meanwhile."""
        self._connection = self._sessions.take()
        try:
            yield self._connection
        finally:
            if self._connection is not None:
                self._sessions.give_back(self._connection)
                self._connection = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (adbc_driver_manager.Error, pa.ArrowInvalid) as error:
            if getattr(error, "sqlstate", None) == UniqueViolation.sqlstate:  # a refused record is there already
                raise BoundaryGap(what="quarantine", partition=-1, expected_low=-1, got_low=-1) from error
            if (unfit := _unfit(error, self._table.name)) is not None:
                raise unfit from error
            found = named(error, Asked(dsn=self._sessions.dsn, table=self._table.name))
            if isinstance(found, PostgresUnreachable | PostgresReadOnly):
                self._sessions.end_idle()  # the next one may lead to another server
            if found is None:
                raise
            raise found from error


class Segments:
    """Segments of the tables of one database: opened, closed, retired and dropped.

    *bytes_max*: what the segments of all tables may take before ingest pauses; *clock* counts monotonic seconds.
    """

    def __init__(self, database: Database, *, bytes_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.database = database
        self._room = Room(database, bytes_max=bytes_max, clock=clock)

    def all(self, table: TableRow) -> list[Segment]:
        """Every segment that is not dropped yet, oldest first."""
        return [rows.segment(row) for row in self.database.rows("buffer/segments", {"table_id": table.table_id})]

    def positions(self, table: TableRow) -> dict[int, IngestPosition]:
        found = self.database.rows("ledger/ingest_positions", {"table_id": table.table_id})
        return {row["partition"]: rows.ingest_position(row) for row in found}

    def open_segment(self, table: TableRow) -> Segment:
        """The newest open segment in the table's schema and shape; makes one if there is none."""
        found = self._newest_open(self.all(table), table)
        return found or self._make(table, even_if_open=False)

    def index(self, table: TableRow, segment: Segment) -> None:
        """Make the index on the coordinates, and on a key, if it is not there; writers of the segment wait meanwhile.

        A backlog is written without it, because keeping it up row by row halves the rate.
        """
        key = table.at_schema(segment.schema_version).spec.key_columns
        # IF NOT EXISTS does not see an index that another thread is making; when that shows, it is made.
        with suppress(UniqueViolation), self.database.transaction(table=table.name) as connection:
            connection.execute(segment_index(segment.name))
            if key:
                connection.execute(segment_key_index(segment.name, key))
        if key:
            with self.database.transaction() as connection:  # a separate one: writers need not wait for it
                connection.execute(segment_statistics(segment.name, key))

    def rotate(self, table: TableRow) -> None:
        """Open the next segment, then close the ones before it: writers move on, so closing does not starve."""
        fresh = self._make(table, even_if_open=True)
        for segment in self.all(table):
            if segment.state == "open" and segment.seq < fresh.seq:
                self.index(table, segment)
                with self.database.transaction() as connection:
                    connection.execute(sql("buffer/lock_segment"), {"segment": segment.name})
                    key = {"segment": segment.name, "table_id": table.table_id}
                    connection.execute(sql("buffer/close_segment"), key)

    def check_room(self, table: TableRow, *, taken: int) -> None:
        """Raises: BufferFull, while a limit keeps *table* from taking more; *taken*: bytes of records since it asked.

        The segment that is open is closed when a pause begins: what tier has moved of it can then be given back,
        however small it is, and nothing else would close it before more is written.
        """
        verdict = self._room.full(table, taken=taken)
        if verdict is None:
            return
        if verdict.begins:
            self.rotate(table)
        raise buffer_full(table.name, verdict.fill)

    def refused(self, table: TableRow, partition: int, low: int, high: int) -> list[int]:
        """Offsets of the records in ``[low, high)`` of a partition that were quarantined, ascending."""
        wanted = {"table_id": table.table_id, "partition": partition, "low": low, "high": high}
        return [row["offset"] for row in self.database.rows("buffer/refused", wanted)]

    def beginning(self, table: TableRow, *, limit: int) -> Beginning:
        """How *table* began; no more than *limit* refused records are counted."""
        [found] = self.database.rows("buffer/beginning", {"table_id": table.table_id, "limit": limit})
        return Beginning(**found)

    def sizes(self, table: TableRow) -> list[Mapping[str, Any]]:
        """Name, state, bytes and age in seconds of each segment."""
        return list(self.database.rows("buffer/segment_sizes", {"table_id": table.table_id}))

    def _make(self, table: TableRow, *, even_if_open: bool) -> Segment:
        with self.database.transaction() as connection:
            connection.execute(sql("buffer/lock_segments"), {"table_id": table.table_id})
            [at] = connection.execute(sql("buffer/schema_in_force"), {"table_id": table.table_id}).fetchall()
            found = at["schema_version"] or table.schema_version
            check_schema(table.name, planned=table.schema_version, found=found, what="a segment was to be made")
            known = [rows.segment(r) for r in connection.execute(sql("buffer/segments"), {"table_id": table.table_id})]
            newest = self._newest_open(known, table)
            if newest and not even_if_open:
                return newest
            return make_segment(connection, table.table_id, known, spec=table.spec, schema_version=table.schema_version)

    @staticmethod
    def _newest_open(segments: Sequence[Segment], table: TableRow) -> Segment | None:
        wanted = ("open", table.schema_version, rest_of(table.spec))
        fitting = [s for s in segments if (s.state, s.schema_version, s.packed) == wanted]
        return fitting[-1] if fitting else None


def make_segment(
    connection: Connection, table_id: int, known: Sequence[Segment], *, spec: TableSpec, schema_version: int
) -> Segment:
    """The next segment, open, for rows of one schema; *known* are all that there are, under their lock."""
    seq = max((s.seq for s in known), default=0) + 1
    name = f"seg_{table_id}_{seq}"
    rest = rest_of(spec)
    connection.execute(segment_ddl(name, spec.columns, rest=rest, stores_op=bool(spec.key)))
    values = {"segment": name, "table_id": table_id, "seq": seq, "schema_version": schema_version}
    values["packed"] = Jsonb(list(rest))
    row = connection.execute(sql("buffer/insert_segment"), values).fetchone()
    assert row is not None
    return rows.segment(row)


def _unfit(error: Exception, table: str) -> RowsUnfit | None:
    """Return whether *error* is about the values of a row (SQLSTATE class 22), or about their size."""
    state = (getattr(error, "sqlstate", None) or "").strip("\0")
    if not (state.startswith("22") or state == _PROGRAM_LIMIT):
        return None
    lines = [line.partition("ERROR:")[2] or line for line in str(error).splitlines() if line.strip()]
    said = " ".join(" ".join(lines[:1]).split())
    return RowsUnfit(table, said=said, is_too_large=state == _PROGRAM_LIMIT)


def _one(cursor: Any, name: str, *parameters: Any) -> dict[str, Any] | None:
    cursor.execute(sql(f"buffer/{name}"), parameters)
    row = cursor.fetchone()
    return None if row is None else dict(zip([d[0] for d in cursor.description], row, strict=True))


def _violations(taken: DecodedRange, one: Violations) -> dict[str, Any]:
    return {"partition": taken.partition, "check_name": one.check, "severity": one.severity, "records": one.records}


def _refusal(table_id: int, record: Kept) -> tuple[Any, ...]:
    told = record.parameters()
    told["headers"] = orjson.dumps(record.headers()).decode()
    return (table_id, *(told[name] for name in _REFUSAL))
