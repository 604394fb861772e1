"""One question gives a table, its newest cut and its state; of a cut that the server knows the times alone are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import Found
from harness_pipelines_tests.contract.cut_drafts import KEEP, Server, moved_table, server_of
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@pytest.fixture
def other(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


def found(server: Server, known: object = None) -> Found:
    seen = server.cuts.found(server.table.name, known=known)  # type: ignore[arg-type]
    assert seen is not None
    return seen


def test_a_table_is_found_with_its_newest_cut_and_its_state(server: Server, real: RealRig):
    cut = server.cut()
    seen = found(server)
    assert seen.table == real.again(server.table)
    newest, clock, state = server.cuts.newest(server.table)
    assert seen.newest.cut == newest == cut
    assert seen.newest.clock <= clock
    assert (seen.newest.state.version, seen.newest.state.bounds) == (state.version, state.bounds)


def test_a_name_that_no_table_has_is_not_found(server: Server):
    assert server.cuts.found("contract.none") is None


def test_of_the_newest_cut_that_is_known_nothing_but_its_times_is_read(server: Server):
    cut = server.cut()
    known = replace(cut, chunks=(), files=("only this server has it so",))
    server.cuts.serve(cut, keep=2 * HOUR)
    seen = found(server, known).newest.cut
    assert seen is not None
    assert seen == replace(known, served_at=seen.served_at, until=seen.until)
    assert seen.until - seen.served_at == 2 * HOUR > KEEP
    assert seen.served_at > cut.served_at


def test_a_cut_that_is_known_and_no_longer_the_newest_is_not_given(server: Server, other: Server):
    old = server.cut()
    newest = other.cut()
    assert found(server, old).newest.cut == newest


def test_a_cut_that_is_known_and_was_retired_gives_its_numbers_alone(server: Server, other: Server):
    cut = server.cut()
    other.cuts.retire(cut)
    seen = found(server, cut).newest.cut
    assert seen is not None and seen.is_over and seen.sequence > cut.sequence and not seen.chunks


def test_a_cut_that_is_known_and_whose_time_has_ended_gives_its_numbers_alone(server: Server, real: RealRig):
    cut = server.cut()
    real.ask("UPDATE harness.cuts SET until = clock_timestamp() WHERE table_id = %s", [cut.table_id])
    seen = found(server, cut).newest.cut
    assert seen is not None and seen.is_over and seen.bounds == cut.bounds and not seen.files


def test_of_a_cut_that_is_over_all_is_read(server: Server):
    over, *_ = server.cuts.newest(server.table)
    assert over is not None and over.is_over
    cut = server.cut()
    assert found(server, over).newest.cut == cut
