"""One cut for all loads of a window: which one it is the ledger decides, by its clock, for all servers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import READER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines_tests.contract.cut_drafts import Server, moved_table, server_of
from harness_pipelines_tests.contract.stores_rig import RealRig

LEFT_S = 60  #: of the window of a test: it does not end while the test runs


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Those of one length, of which the one of now does not end soon."""

    real: RealRig
    server: Server
    every_s: int

    def pinned(self, mine: Any = None, *, window: int | None = None, by: Server | None = None) -> int | None:
        server = by or self.server
        found, _ = server.cuts.pinned(server.table, every_s=self.every_s, mine=mine, window=window)
        return None if found is None else found.sequence

    @property
    def now(self) -> int:
        return self.server.cuts.pinned(self.server.table, every_s=self.every_s)[1]

    def move(self, by: int) -> None:
        """Let the pins be of another window."""
        moved = "UPDATE harness.cut_pins SET slot = slot + %s WHERE table_id = %s"
        self.real.ask(moved, [by, self.server.table.table_id])


@pytest.fixture
def windows(real: RealRig, server: Server) -> Windows:
    now_s = int(real.ask("SELECT extract(epoch FROM clock_timestamp())::bigint AS now")[0]["now"])
    every_s = next(length for length in range(300, 0, -1) if length - now_s % length > LEFT_S)
    return Windows(real=real, server=server, every_s=every_s)


def test_the_first_load_of_a_window_chooses_for_all_servers(
    server: Server, windows: Windows, real: RealRig, table: TableRow
):
    assert windows.pinned() is None
    first, second = server.cut(), server.cut()
    found = [windows.pinned(first), windows.pinned(second), windows.pinned(by=server_of(real, table))]
    assert found == [first.sequence] * 3
    other = Windows(real=real, server=server, every_s=windows.every_s - 1)
    assert other.pinned(second) == second.sequence, "each length has its own windows"
    windows.move(-1)
    assert windows.pinned() is None
    assert windows.pinned(second) == second.sequence


def test_a_cut_that_is_over_is_no_ones_window(server: Server, windows: Windows, real: RealRig, table: TableRow):
    first, second = server.cut(), server.cut()
    windows.pinned(second)
    ends = "UPDATE harness.cuts SET until = served_at WHERE table_id = %s AND sequence = %s"
    real.ask(ends, [table.table_id, second.sequence])
    assert windows.pinned() is None
    assert windows.pinned(first) == first.sequence


def test_no_window_gets_an_older_cut_than_the_one_before(server: Server, windows: Windows):
    """A load that found an older cut was held up until the next window, and is the first to choose."""
    slow, second = server.cut(), server.cut()
    assert windows.pinned(second) == second.sequence
    windows.move(-1)
    assert windows.pinned(slow) == second.sequence
    assert windows.pinned() == second.sequence


def test_what_a_load_found_in_a_window_that_is_over_is_none_of_the_next_one(server: Server, windows: Windows):
    """Else all loads of that window would get rows of the time when the slow load began."""
    slow, second = server.cut(), server.cut()
    began = windows.now - 1
    assert windows.pinned(slow, window=began) == slow.sequence, "its own window has it"
    assert windows.pinned() is None
    assert windows.pinned(second) == second.sequence
    assert windows.pinned(slow, window=began) == second.sequence, "that of a later window is newer"
    assert windows.pinned() == second.sequence


def test_a_window_that_has_not_come_is_of_a_clock_that_was_set_back(server: Server, windows: Windows):
    first, second = server.cut(), server.cut()
    windows.pinned(first)
    windows.move(100)
    assert windows.pinned() is None
    assert windows.pinned(second) == second.sequence
    assert windows.pinned() == second.sequence
    windows.move(-1)
    assert windows.pinned(second, window=windows.now + 5) == second.sequence, "no load begins in one to come"
    assert windows.pinned() == second.sequence


def test_windows_cost_a_row_for_each_length_and_a_reader_cannot_write_them_otherwise(
    server: Server, real: RealRig, table: TableRow
):
    cut = server.cut()
    for every_s in (1, 1, 300, 300):
        server.cuts.pinned(table, every_s=every_s, mine=cut)
    assert len(real.ask("SELECT seconds FROM harness.cut_pins WHERE table_id = %s", [table.table_id])) == 2
    for every_s in (0, 301, -1):
        with pytest.raises((psycopg.errors.CheckViolation, psycopg.errors.DivisionByZero)):
            server.cuts.pinned(table, every_s=every_s, mine=cut)
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
