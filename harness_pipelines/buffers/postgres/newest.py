"""Lease-free queries of the buffer: its state and the newest rows of a few keys in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql as compose
from psycopg.rows import tuple_row

from harness_pipelines.buffers.postgres.predicates import to_postgres
from harness_pipelines.buffers.postgres.types import from_rows, segment_rows, stored_name
from harness_pipelines.drivers.postgres import BUFFER, Database, sql
from harness_pipelines.ports.ledger import ReadState, TableRow
from harness_pipelines.ports.rows import state_of
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import HotQuery
from harness_pipelines.protocol.versions import VersionGone


class Glances:
    """Looks at tables of one database. A segment's rows never change, so what one statement sees is one cut."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def look(self, table: TableRow, wanted: HotQuery | None = None) -> tuple[ReadState, pa.Table | None]:
        """The newest version and the bounds of this instant, and the rows below them that *wanted* asks for.

        The rows are all there are where the segments of the state are among those of *wanted*. None: nothing was
        asked, or nothing that Postgres can be asked. Raises: VersionGone, SegmentMissing (one of *wanted* was dropped).
        """
        parameters: list[Any] = [table.table_id]
        condition = wanted and _condition(wanted, parameters)
        if condition is None:
            wanted = None
        text = _statement(condition, wanted.segments, wanted.schema, wanted.key) if wanted else _statement()
        with self._database.at_once(table=table.name) as connection:
            cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
            cursor.execute(text, parameters, binary=True)
            found = cursor.fetchall()
            names = [column.name for column in cursor.description or ()]
        states = [row for row in found if row[0] is not None]
        if not states:
            raise VersionGone(f"{table.name}: it was dropped; `harness table list` shows what there is")
        state = state_of(dict(zip(reversed(names), reversed(states[0]), strict=True)))  # of two names the first counts
        if wanted is None:
            return state, None
        first = len(names) - len(wanted.schema)
        return state, from_rows([row[first:] for row in found if row[0] is None], wanted.schema)


def _condition(wanted: HotQuery, parameters: list[Any]) -> str | None:
    """What holds for the rows, its values added to *parameters*: one statement is prepared for all keys."""

    def literal(value: object) -> compose.Composable:
        parameters.append(value)
        return compose.SQL(f"${len(parameters)}")

    condition = to_postgres(wanted.where, literal)
    return None if condition is None else condition.as_string()


@lru_cache(maxsize=256)
def _statement(
    condition: str | None = None,
    segments: tuple[SegmentRef, ...] = (),
    schema: pa.Schema | None = None,
    key: tuple[str, ...] = (),
) -> str:
    """The look, with the newest rows of *segments* where there is a *condition*."""
    rows: compose.Composable = compose.SQL(sql("reads/no_rows"))
    if condition is not None:
        where = compose.SQL(condition)
        branches = [segment_rows(schema, one, condition=where, stores_op=True) for one in segments]
        names = compose.SQL(", ").join(compose.Identifier("r", stored_name(name)) for name in key)
        rows = compose.SQL(sql("reads/newest")).format(segments=compose.SQL(" UNION ALL ").join(branches), key=names)
    return compose.SQL(sql("reads/glance")).format(rows=rows).as_string()


def counted(
    database: Database, table: TableRow, segments: Sequence[SegmentRef], ranges: Sequence[OffsetRange]
) -> dict[int, int]:
    """Exact number of rows per partition in *ranges*, over all *segments*. Raises: SegmentMissing."""
    if not segments or not ranges:
        return {}
    parts = [
        compose.SQL(
            "SELECT {partition} AS partition, count(*) AS rows FROM {segment} WHERE _kafka_partition = "
            "{partition} AND _kafka_offset >= {low} AND _kafka_offset < {high}"
        ).format(
            partition=compose.Literal(r.partition),
            low=compose.Literal(r.low),
            high=compose.Literal(r.high),
            segment=compose.Identifier(BUFFER, segment.name),
        )
        for segment in segments
        for r in ranges
    ]
    counts: dict[int, int] = {}
    with database.reading(table=table.name) as connection:
        for row in connection.execute(compose.SQL(" UNION ALL ").join(parts)):
            counts[row["partition"]] = counts.get(row["partition"], 0) + row["rows"]
    return counts
