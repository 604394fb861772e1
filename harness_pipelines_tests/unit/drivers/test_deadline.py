"""How long an answer of Postgres is waited for."""

from __future__ import annotations

from math import inf

import pytest

from harness_pipelines.drivers.postgres_session import LATE_S, deadline_s, session_dsn


@pytest.mark.parametrize(
    ("options", "own_s"),
    [
        ("", 120.0),
        ("-c statement_timeout=2s", 2.0),
        ("-c statement_timeout=1500", 1.5),
        ("-c statement_timeout=2min", 120.0),
        ("-c statement_timeout=5s -c lock_timeout=1s", 5.0),
        ("-c statement_timeout=0", inf),
    ],
)
def test_a_statement_has_a_little_longer_than_postgres_lets_it_run(options: str, own_s: float):
    dsn = session_dsn(f"host=db port=5432 options='{options}'", role="harness_worker")
    assert deadline_s(dsn) == own_s + LATE_S
