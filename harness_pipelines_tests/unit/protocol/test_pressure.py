"""When ingest pauses for a full buffer, when it continues, and when sizes are read again."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.pressure import (
    LOOK_S_MAX,
    LOOK_S_MIN,
    LOOK_S_NEAR,
    RESUMES_AT,
    BufferFull,
    Fill,
    buffer_full,
    fills,
    full,
    look_is_due,
)

MB = 10**6


def fill(used: int, most: int, limit: str = "table") -> Fill:
    return Fill(limit=limit, bytes=used, bytes_max=most)  # type: ignore[arg-type]


def test_ingest_pauses_at_a_limit_and_continues_below_a_share_of_it():
    most = 100 * MB
    assert full([fill(most - 1, most)], paused_by=None) is None
    assert full([fill(most, most)], paused_by=None) is not None
    assert full([fill(most - 1, most)], paused_by="table") is not None, "one byte less is no reason to begin again"
    assert full([fill(int(RESUMES_AT * most), most)], paused_by="table") is not None
    assert full([fill(int(RESUMES_AT * most) - 1, most)], paused_by="table") is None


def test_the_limit_for_which_a_table_pauses_is_the_one_that_has_to_give_way():
    known = fills(of_table=90 * MB, of_server=90 * MB, table_max=100 * MB, server_max=100 * MB)
    assert [one.limit for one in known] == ["table", "server"]
    held = full(known, paused_by="server")
    assert held is not None
    assert held.limit == "server"


def test_a_table_without_a_limit_shares_that_of_the_server():
    known = fills(of_table=5 * MB, of_server=100 * MB, table_max=None, server_max=100 * MB)
    held = full(known, paused_by=None)
    assert held is not None
    assert held.limit == "server"


@given(
    used=st.integers(0, 200),
    most=st.integers(1, 200),
    server=st.integers(0, 200),
    paused=st.sampled_from([None, "table"]),
)
def test_what_would_pause_keeps_a_pause_up(used: int, most: int, server: int, paused: str | None):
    known = fills(of_table=used, of_server=server, table_max=most, server_max=100)
    if full(known, paused_by=None) is not None:
        assert full(known, paused_by=paused) is not None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("used", "age_s", "taken", "due"),
    [
        (10, LOOK_S_MAX - 1, 0, False),
        (10, LOOK_S_MAX, 0, True),
        (80, LOOK_S_NEAR - 0.1, 0, False),
        (80, LOOK_S_NEAR, 0, True),
        (10, 1.0, 11, False),
        (10, 1.0, 12, True),
        (100, LOOK_S_MIN / 2, 1_000, False),
        (100, LOOK_S_MIN, 1, True),
    ],
)
def test_sizes_are_read_again_by_age_and_by_what_was_taken(used: int, age_s: float, taken: int, due: bool):
    assert look_is_due([fill(used * MB, 100 * MB)], age_s=age_s, taken=taken * MB) is due


@pytest.mark.parametrize(
    ("limit", "named"),
    [
        ("table", r"its buffer has 10\.20 GB of the 10\.00 GB that its spec allows \(`buffer.max_bytes`\)"),
        ("server", r"the buffers of all tables have 10\.20 GB of the .* that the server allows \(HARNESS_BUFFER_GB\)"),
    ],
)
def test_the_error_names_the_limit_how_full_it_is_and_who_empties_it(limit: str, named: str):
    error = buffer_full("shop.orders", fill(10_200 * MB, 10_000 * MB, limit))
    assert isinstance(error, BufferFull)
    assert re.match(rf"shop\.orders: ingest is paused: {named}; Kafka keeps the other records", str(error))
    assert "below 8.00 GB: for that tier moves rows to the lake and expire drops" in str(error)
    assert error.exit_code == 75
