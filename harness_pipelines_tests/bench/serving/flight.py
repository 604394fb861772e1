"""Rows by Flight SQL to a client of ADBC."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from harness_pipelines_tests.bench.base import Figure, Run, median_s
from harness_pipelines_tests.bench.serving.client import server
from harness_pipelines_tests.bench.serving.queries import append_tables
from harness_pipelines_tests.integration.serve.server import Served

TIMES = 3


def measure(run: Run) -> Sequence[Figure]:
    """All columns of all rows of an append table, one of a hundred above the batch view; and its first rows."""
    table = append_tables(run).cut
    with server(run, "--flight", "0", "--flight-timeout", "10m") as served, _cursor(served) as cursor:
        run.say(f"flight: {table.rows:,} rows")
        whole = median_s(lambda: _all(cursor, f"SELECT * FROM {table.name}", table.rows), times=TIMES)
        two = median_s(lambda: _all(cursor, f"SELECT id, amount FROM {table.name}", table.rows), times=TIMES)
        firsts = [_first_s(cursor, f"SELECT * FROM {table.name}") for _ in range(run.size(20, 5))]
    run.note("flight.rows_per_s_of_two_columns", table.rows / two, "rows/s")
    run.note("flight.first_row_max", 1000 * max(firsts), "ms")
    return [
        Figure(figure="flight.rows_per_s", value=table.rows / whole, unit="rows/s", goal=1_000_000, sense=">="),
        Figure(figure="flight.first_row_p50", value=1000 * statistics.median(firsts), unit="ms", goal=100, sense="<="),
    ]


@contextmanager
def _cursor(served: Served) -> Iterator[Any]:
    from adbc_driver_flightsql import DatabaseOptions, dbapi

    assert served.flight is not None
    options = {DatabaseOptions.AUTHORIZATION_HEADER.value: f"Bearer {served.token}"}
    with (
        closing(dbapi.connect(served.flight, db_kwargs=options, autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        yield cursor


def _all(cursor: Any, sql: str, wanted: int) -> None:
    cursor.execute(sql)
    found = sum(batch.num_rows for batch in cursor.fetch_record_batch())
    assert found == wanted, f"{found} rows came of {wanted}"


def _first_s(cursor: Any, sql: str) -> float:
    """Seconds until a batch with rows is there, of a query that goes on."""
    began = time.monotonic()
    cursor.execute(sql)
    with cursor.fetch_record_batch() as batches:
        while not next(batches).num_rows:
            pass
        return time.monotonic() - began
