"""Segments as relations that an engine reads by SQL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from psycopg import sql

from harness_pipelines.buffers.postgres.predicates import to_postgres
from harness_pipelines.buffers.postgres.types import postgres_type, segment_rows, stored_name
from harness_pipelines.ports.buffer import SqlScan
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION, SCHEMA_VERSION, TIMESTAMP
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.spec.arrow import COORDINATES, Named, arrow_type
from harness_pipelines.spec.predicate import TRUE, Predicate


class PostgresScans:
    """`harness_pipelines.ports.buffer.SegmentScans`."""

    def rows(
        self,
        columns: Sequence[Named],
        segments: Sequence[SegmentRef],
        *,
        where: Predicate = TRUE,
        stores_op: bool = False,
    ) -> SqlScan:
        """The raw rows of *segments* with all five coordinates.

        *where* and a task's predicate on the coordinates reach the index of each segment.
        """
        wanted = pa.schema([*(pa.field(c.name, arrow_type(c.type)) for c in columns), *COORDINATES])
        condition = to_postgres(where)
        branches = [segment_rows(wanted, one, condition=condition, stores_op=stores_op) for one in segments]
        relation = sql.SQL("({}) AS segment_rows").format(sql.SQL(" UNION ALL ").join(branches)).as_string()
        return SqlScan(relation=relation, stored=_stored(columns))

    def no_rows(self, columns: Sequence[Named], *, lease_id: str) -> SqlScan:
        """No rows; every use of the relation fails when the lease has ended."""
        shapes = [(stored_name(c.name), postgres_type(arrow_type(c.type))) for c in columns]
        shapes += [(PARTITION, "integer"), (OFFSET, "bigint"), (TIMESTAMP, "timestamptz")]
        shapes += [(OPERATION, "text"), (SCHEMA_VERSION, "integer")]
        nulls = [sql.SQL("NULL::{} AS {}").format(sql.SQL(kind), sql.Identifier(name)) for name, kind in shapes]
        selected = sql.SQL("(SELECT {} WHERE NOT {}) AS no_rows")
        relation = selected.format(sql.SQL(", ").join(nulls), _condition(lease_id)).as_string()
        return SqlScan(relation=relation, stored=_stored(columns))

    def guard(self, lease_id: str) -> str:
        """A statement that fails when the lease has ended."""
        return sql.SQL("SELECT {}").format(_condition(lease_id)).as_string()


def _stored(columns: Sequence[Named]) -> dict[str, str]:
    return {column.name: stored_name(column.name) for column in columns}


def _condition(lease_id: str) -> sql.Composed:
    return sql.SQL("harness.require_lease({}::uuid)").format(sql.Literal(lease_id))
