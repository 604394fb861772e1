"""One cut for all loads of a window: which one it is the ledger decides, by its clock, for all servers."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import READER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines_tests.contract.cuts_rig import Server, server_of
from harness_pipelines_tests.contract.stores_rig import RealRig

FIVE_MINUTES = 300


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=1)
    real.ingest(made, {0: (0, 9)})
    real.move(made, {0: 0}, {0: 5})
    return made


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


def next_window(real: RealRig, table: TableRow) -> None:
    """Let the pins be of the window before this one."""
    real.ask("UPDATE harness.cut_pins SET slot = slot - 1 WHERE table_id = %s", [table.table_id])


def pinned(server: Server, mine: Any = None, every_s: int = FIVE_MINUTES) -> int | None:
    found = server.cuts.pinned(server.table, every_s=every_s, mine=mine)
    return None if found is None else found.sequence


def test_the_first_load_of_a_window_chooses_for_all_servers(server: Server, real: RealRig, table: TableRow):
    assert pinned(server) is None
    first, second = server.cut(), server.cut()
    for _ in range(2):  # a window may end between the first and the last statement, once
        next_window(real, table)
        found = [pinned(server, first), pinned(server, second), pinned(server_of(real, table))]
        if found == [first.sequence] * 3:
            break
    assert found == [first.sequence] * 3
    assert pinned(server, second, every_s=299) == second.sequence, "each length has its own windows"
    next_window(real, table)
    assert pinned(server) is None
    assert pinned(server, second) == second.sequence


def test_a_cut_that_is_over_is_no_ones_window(server: Server, real: RealRig, table: TableRow):
    first, second = server.cut(), server.cut()
    pinned(server, first)
    ends = "UPDATE harness.cuts SET until = served_at WHERE table_id = %s AND sequence = %s"
    real.ask(ends, [table.table_id, first.sequence])
    assert pinned(server) is None
    assert pinned(server, second) == second.sequence


def test_windows_cost_a_row_for_each_length_and_a_reader_cannot_write_them_otherwise(
    server: Server, real: RealRig, table: TableRow
):
    cut = server.cut()
    for every_s in (1, 1, 300, 300):
        pinned(server, cut, every_s=every_s)
    assert len(real.ask("SELECT seconds FROM harness.cut_pins WHERE table_id = %s", [table.table_id])) == 2
    for every_s in (0, 301, -1):
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.DivisionByZero)):
            pinned(server, cut, every_s=every_s)
    with (
        psycopg.connect(session_dsn(real.dsn, role=READER)) as login,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        login.execute("DELETE FROM harness.cut_pins")


def test_a_cut_is_known_by_its_snapshot_while_it_is_alive(server: Server, real: RealRig, table: TableRow):
    first, second = server.cut(), server.cut()
    for cut in (first, second):
        found = server.cuts.known(table, cut.snapshot_id)
        assert found is not None and (found.sequence, found.metadata) == (cut.sequence, cut.metadata)
    assert server.cuts.known(table, 5) is None
    real.ask("UPDATE harness.cuts SET until = served_at WHERE table_id = %s", [table.table_id])
    assert server.cuts.known(table, first.snapshot_id) is None
