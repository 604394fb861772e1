"""Read named segments as Arrow, with one statement over pooled ADBC connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache, partial
from typing import Any

import adbc_driver_manager
import pyarrow as pa
from psycopg import sql

from harness_pipelines.buffers.postgres.predicates import to_postgres
from harness_pipelines.buffers.postgres.types import from_copy, segment_rows
from harness_pipelines.drivers.adbc import AdbcSessions, AdbcTimeout
from harness_pipelines.drivers.postgres import READER, Asked, named
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
from harness_pipelines.protocol.topics import PARTITIONS_MAX, by_topic, table_partition
from harness_pipelines.spec.predicate import TRUE

POINT_OFFSETS_MAX = 20_000  #: a read of no more offsets goes by the index, a larger one reads the segments through
CONNECTIONS_KEPT = 4


class BufferReader:
    """Reader connections to the buffer, kept open because one costs as much as thirty small reads. Thread-safe."""

    def __init__(self, dsn: str, *, role: str | None = READER, keep: int = CONNECTIONS_KEPT) -> None:
        self._sessions = AdbcSessions(dsn, role=role)
        self._keep = keep
        self._idle: list[Any] = []
        self._lock = threading.Lock()

    def read(self, query: BufferQuery, stats: BufferStats) -> pa.Table:
        """All wanted rows in one table. Raises: SegmentMissing, LedgerBusy, PostgresUnreachable."""
        return pa.concat_tables([query.schema.empty_table(), *self.batches(query, stats)])

    def batches(self, query: BufferQuery, stats: BufferStats) -> Iterator[pa.Table]:
        """The wanted rows in tables of some 16 MB, in no order. `where` may let more rows through: filter again."""
        stats.segments += len(query.segments)
        with self._executed(query) as (session, cursor):
            for batch in self._fetched(session, cursor, query):
                table = from_copy(pa.Table.from_batches([batch]), query.schema)
                stats.rows_read += table.num_rows
                stats.bytes_read += table.nbytes
                yield table

    def _fetched(self, session: Any, cursor: Any, query: BufferQuery) -> Iterator[pa.RecordBatch]:
        """Read the stream. If the connection is lost in the middle, Arrow raises the error, not the driver."""
        try:
            found = cursor.fetch_record_batch()
            while (batch := self._sessions.asked(session, cursor, lambda: next(found, None))) is not None:
                yield batch
        except (OSError, pa.ArrowException) as error:
            self._explain(error, query)
            raise

    def close(self) -> None:
        """Close the connections that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            self._discard(connection)
        self._sessions.close()

    @contextmanager
    def _executed(self, query: BufferQuery) -> Iterator[tuple[Any, Any]]:
        """A session, and its cursor that has executed the statement of *query*."""
        text = statement(query)
        connection: Any = None
        try:
            connection, cursor = self._execute(text)
            with ExitStack() as closed:
                closed.enter_context(cursor)
                try:
                    yield connection, cursor
                except AdbcTimeout:
                    closed.pop_all()
                    raise
        except AdbcTimeout as late:
            connection = None
            self._explain(late, query)
            raise
        except adbc_driver_manager.Error as error:
            self._discard(connection)
            connection = None
            self._explain(error, query)
            raise
        except BaseException:
            # Rows of an unfinished COPY are still on the wire.
            self._discard(connection)
            connection = None
            raise
        finally:
            if connection is not None:
                self._give_back(connection)

    def _execute(self, text: str) -> tuple[Any, Any]:
        """A connection and its cursor that has executed *text*; a kept connection may have ended and is replaced."""
        while True:
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._sessions.open(autocommit=True)
            try:
                cursor = connection.cursor()
                self._sessions.asked(connection, cursor, partial(cursor.execute, text))
                return connection, cursor
            except AdbcTimeout:  # the session is in use
                raise
            except adbc_driver_manager.Error as error:
                self._discard(connection)
                if kept is None or getattr(error, "sqlstate", None):
                    raise

    def _give_back(self, connection: Any) -> None:
        with self._lock:
            if len(self._idle) < self._keep:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _discard(self, connection: Any) -> None:
        if connection is not None:
            self._sessions.end(connection)

    def _explain(self, error: Exception, query: BufferQuery) -> None:
        """Raises: what *error* is to the harness, if it is anything."""
        segments = tuple(segment.name for segment in query.segments)
        if found := named(error, Asked(dsn=self._sessions.dsn, table=query.table, reading=segments)):
            raise found from error


def statement(query: BufferQuery) -> str:
    """The one statement of a read."""
    condition = _bounds(query.ranges)
    pushed = to_postgres(query.where)
    if pushed is not None:
        condition = sql.SQL("{} AND {}").format(condition, pushed)
    wanted = condition.as_string()
    rows = (_rows(query.schema, segment, query.stores_op) for segment in query.segments)
    whole = " UNION ALL ".join(f"{one} WHERE {wanted}" for one in rows)
    return whole if query.limit is None or query.where != TRUE else f"{whole} LIMIT {int(query.limit)}"


@lru_cache(maxsize=256)
def _rows(schema: pa.Schema, segment: SegmentRef, stores_op: bool) -> str:
    """The SELECT of all rows of a segment, which is the same for each read of it."""
    return segment_rows(schema, segment, stores_op=stores_op).as_string()


def _bounds(ranges: Ranges) -> sql.Composable:
    """Bounds that the index serves for few offsets, and that cost the same for any number of partitions for many."""
    if sum(high - low for low, high in ranges.values()) <= POINT_OFFSETS_MAX:
        return sql.SQL("({})").format(
            sql.SQL(" OR ").join(
                sql.SQL("(_kafka_partition = {} AND _kafka_offset >= {} AND _kafka_offset < {})").format(
                    sql.Literal(partition), sql.Literal(low), sql.Literal(high)
                )
                for partition, (low, high) in sorted(ranges.items())
            )
        )
    # One look-up by topic and partition instead of one comparison per partition; NULL, so no row, where nothing is
    # wanted. Not by the table's numbers, which leave 65,536 places for each of several topics.
    wanted = by_topic(ranges)
    width = max(max(partitions) for partitions in wanted.values()) + 1
    ends = [[ranges.get(table_partition(t, p), (None, None)) for p in range(width)] for t in range(max(wanted) + 1)]
    at = sql.SQL("[_kafka_partition / {n} + 1][_kafka_partition % {n} + 1]").format(n=sql.Literal(PARTITIONS_MAX))
    return sql.SQL("_kafka_offset >= ({}::bigint[]){at} AND _kafka_offset < ({}::bigint[]){at}").format(
        sql.Literal([[low for low, _ in topic] for topic in ends]),
        sql.Literal([[high for _, high in topic] for topic in ends]),
        at=at,
    )
