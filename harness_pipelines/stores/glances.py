"""Looks at the buffer without a lease: what its state is, and in the same snapshot the newest rows of a few keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql as compose
from psycopg.rows import tuple_row

from harness_pipelines.protocol.plan import SegmentRef
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.spec.predicate import Predicate
from harness_pipelines.stores.leases import state_of
from harness_pipelines.stores.ports import ReadState, TableRow
from harness_pipelines.stores.postgres import Database, sql
from harness_pipelines.stores.predicates import to_postgres
from harness_pipelines.stores.segment_types import from_rows, segment_rows, stored_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HotQuery:
    """What is wanted of *segments*: the newest row per *key* and partition of those for which *where* holds."""

    segments: tuple[SegmentRef, ...]
    schema: pa.Schema  #: columns of the result in order, key, partition and offset among them
    key: tuple[str, ...]
    where: Predicate  #: of the key alone


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
        rows = wanted and _rows(wanted, parameters)
        text = compose.SQL(sql("reads/glance")).format(rows=rows or compose.SQL(sql("reads/no_rows")))
        with self._database.at_once(table=table.name) as connection:
            cursor = psycopg.RawCursor(connection, row_factory=tuple_row)
            cursor.execute(text, parameters, binary=True)
            found = cursor.fetchall()
            names = [column.name for column in cursor.description or ()]
        states = [row for row in found if row[0] is not None]
        if not states:
            raise VersionGone(f"{table.name}: it was dropped; `harness table list` shows what there is")
        state = state_of(dict(zip(reversed(names), reversed(states[0]), strict=True)))  # of two names the first counts
        if wanted is None or rows is None:
            return state, None
        first = len(names) - len(wanted.schema)
        return state, from_rows([row[first:] for row in found if row[0] is None], wanted.schema)


def _rows(wanted: HotQuery, parameters: list[Any]) -> compose.Composable | None:
    """The statement of the rows, its values added to *parameters*: so it is prepared once for all keys."""

    def literal(value: object) -> compose.Composable:
        parameters.append(value)
        return compose.SQL(f"${len(parameters)}")

    condition = to_postgres(wanted.where, literal)
    if condition is None:
        return None
    branches = [segment_rows(wanted.schema, one, condition=condition, stores_op=True) for one in wanted.segments]
    key = compose.SQL(", ").join(compose.Identifier("r", stored_name(name)) for name in wanted.key)
    return compose.SQL(sql("reads/newest")).format(segments=compose.SQL(" UNION ALL ").join(branches), key=key)
