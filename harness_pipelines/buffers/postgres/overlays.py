"""Tables of recalled rows: one attempt writes each, and it is dropped when no version names it.

They have the shape of a segment, so that the same code reads them, and the schema of each row; they are never changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import adbc_driver_manager
import pyarrow as pa

from harness_pipelines.buffers.postgres.reader import BufferReader
from harness_pipelines.buffers.postgres.types import (
    BUFFER_SCHEMA,
    rest_of,
    segment_ddl,
    segment_index,
    segment_key_index,
    segment_statistics,
    to_copy,
)
from harness_pipelines.drivers.adbc import AdbcSessions, AdbcTimeout, cursor_of
from harness_pipelines.drivers.postgres import Database, PostgresUnreachable, sql
from harness_pipelines.ports.buffer import Written
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.overlays import Overlay, overlay_name
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats, schema_of
from harness_pipelines.secret import redact
from harness_pipelines.spec.table import TableSpec

OFFSETS_END = 2**62  #: above every offset
COPY_ROWS = 200_000  #: of one statement, which has its time limit


class Overlays:
    """Recalled rows of the tables of one database."""

    def __init__(self, database: Database, sessions: AdbcSessions, reader: BufferReader) -> None:
        self._database, self._sessions, self._reader = database, sessions, reader

    def write(self, table: TableRow, move: Move, rows: pa.Table) -> Written:
        """Write *rows*, in the types of `schema_of`, to this attempt's own table; no reader sees them yet.

        Raises: PostgresUnreachable.
        """
        name = overlay_name(table.table_id, move.move_id, move.attempt)
        key = {"table_id": table.table_id, "move_id": move.move_id, "attempt": move.attempt, "segment": name}
        rest = rest_of(table.spec)
        with self._database.transaction() as connection:
            connection.execute(sql("overlays/note"), {**key, "schema_version": table.schema_version})
            shape = segment_ddl(name, table.spec.columns, rest=rest, stores_op=True, stores_schema=True)
            connection.execute(shape)
        self._copy(table, name, rows, rest)
        columns = table.spec.key_columns
        with self._database.transaction() as connection:
            connection.execute(segment_index(name))
            connection.execute(segment_key_index(name, columns))
        with self._database.transaction() as connection:
            connection.execute(segment_statistics(name, columns))
        size = self._database.rows("overlays/size", {"segment": name})[0]["bytes"]
        return Written(segment=name, bytes=int(size), packed=rest)

    def read(self, table: TableRow, overlays: Iterable[Overlay]) -> pa.Table:
        """All rows of *overlays* in the types of `schema_of`. Raises: SegmentMissing, BufferBusy, ..."""
        partitions = self._database.rows("ledger/ingest_positions", {"table_id": table.table_id})
        return rows_of(self._reader, table.spec, table.overlaid(overlays), [row["partition"] for row in partitions])

    def _copy(self, table: TableRow, name: str, rows: pa.Table, rest: Sequence[str]) -> None:
        with self._explained(table):
            connection = self._sessions.open(autocommit=True)
            try:
                with cursor_of(connection) as cursor:
                    for first in range(0, rows.num_rows, COPY_ROWS):
                        part = to_copy(rows.slice(first, COPY_ROWS), rest)
                        copy = partial(cursor.adbc_ingest, name, part, mode="append", db_schema_name=BUFFER_SCHEMA)
                        self._sessions.asked(connection, cursor, copy)
            except AdbcTimeout:  # it is closed when an answer comes after all
                raise
            except BaseException:
                self._sessions.end(connection)
                raise
            self._sessions.end(connection)

    @staticmethod
    @contextmanager
    def _explained(table: TableRow) -> Iterator[None]:
        try:
            yield
        except adbc_driver_manager.Error as error:
            raise PostgresUnreachable(
                f"{table.name}: recalled rows could not be written to Postgres: {redact(str(error)).strip()}; nothing "
                "was published, it is tried again"
            ) from error


def rows_of(
    reader: BufferReader, spec: TableSpec, overlays: Iterable[SegmentRef], partitions: Iterable[int]
) -> pa.Table:
    """What `Overlays.read` returns, for the login of a reader."""
    schema, segments = schema_of(spec), tuple(overlays)
    if not segments:
        return schema.empty_table()
    ranges = dict.fromkeys(partitions, (0, OFFSETS_END))
    query = BufferQuery(table=spec.table, segments=segments, ranges=ranges, schema=schema, stores_op=True)
    return reader.read(query, BufferStats())
