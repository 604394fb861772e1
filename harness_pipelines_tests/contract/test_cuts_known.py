"""One question gives a table, its newest cut and its state; of what the server knows the times alone are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import Cut, Found
from harness_pipelines.protocol.cuts import cut_folder
from harness_pipelines_tests.contract.cut_drafts import KEEP, Server, moved_table, server_of
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, RealRig


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@pytest.fixture
def other(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


def found(server: Server, known: Found | None = None) -> Found:
    seen = server.cuts.found(server.table.name, known=known)
    assert seen is not None
    return seen


def knowing(cut: Cut, seen: Found) -> Found:
    """What was *seen*, with the cut that the server gave out then."""
    return seen._replace(newest=seen.newest._replace(cut=cut))


def test_a_table_is_found_with_its_newest_cut_and_its_state(server: Server, real: RealRig):
    cut = server.cut()
    seen = found(server)
    assert seen.table == real.again(server.table)
    newest, clock, state = server.cuts.newest(server.table)
    assert seen.newest.cut == newest == cut
    assert seen.newest.clock <= clock
    assert seen.newest.state is not None and state is not None
    assert (seen.newest.state.version, seen.newest.state.bounds) == (state.version, state.bounds)


def test_a_name_that_no_table_has_is_not_found(server: Server):
    assert server.cuts.found("contract.none") is None


def test_of_the_newest_cut_that_is_known_nothing_but_its_times_is_read(server: Server):
    cut = server.cut()
    known = knowing(replace(cut, chunks=(), files=("only this server has it so",)), found(server))
    server.cuts.serve(cut, keep=2 * HOUR)
    seen = found(server, known)
    newest = seen.newest.cut
    assert newest is not None
    assert newest == replace(known.newest.cut, served_at=newest.served_at, until=newest.until)  # type: ignore[type-var]
    assert newest.until - newest.served_at == 2 * HOUR > KEEP
    assert newest.served_at > cut.served_at
    assert seen.newest.clock > known.newest.clock and seen.asked > known.asked
    assert seen.table is known.table and seen.newest.state is known.newest.state, "they are not read again"
    assert seen.marks == known.marks


def test_of_a_state_that_has_changed_it_is_said_that_it_has_and_it_is_read_once_it_rests(server: Server, real: RealRig):
    cut = server.cut()
    known = knowing(cut, found(server))
    real.ingest(server.table, {0: (9, 12)})
    moved = found(server, known)
    assert moved.newest.state is None and moved.newest.cut == cut and moved.table is known.table
    assert moved.marks.table == known.marks.table and moved.marks.state != known.marks.state
    rests = found(server, moved)
    assert rests.newest.state is not None and rests.newest.state.bounds[0].buffer_hi == 12
    assert rests.marks == moved.marks
    assert found(server, rests).newest.state is rests.newest.state


#: What a load goes by, as SQL that changes it alone.
CHANGES = {
    "state": {
        "a partition that ingest moves on": "UPDATE harness.ingest_positions SET buffer_hi = buffer_hi + 1 WHERE {}",
        "a partition that is new": (
            "INSERT INTO harness.ingest_positions SELECT (jsonb_populate_record(i, '{{\"partition\": 7}}')).* "
            "FROM harness.ingest_positions i WHERE {}"
        ),
        "a segment that is closed": "UPDATE harness.segments SET state = 'closed', max_hi = '{{\"0\": 9}}' WHERE {}",
        "a version": (
            "INSERT INTO harness.versions SELECT (jsonb_populate_record(v, jsonb_build_object('version', 99))).* "
            "FROM harness.versions v WHERE {} ORDER BY version DESC LIMIT 1"
        ),
    },
    "table": {
        "the spec": "UPDATE harness.tables SET spec = jsonb_set(spec, '{{tier,max_rows}}', '7') WHERE {}",
        "that it stopped": "UPDATE harness.tables SET stopped = 'of a test' WHERE {}",
        "what expire has removed": "UPDATE harness.tables SET retained_from = 1 WHERE {}",
        "a schema": "UPDATE harness.schemas SET starts = '{{\"0\": 3}}' WHERE {}",
    },
}


@pytest.mark.parametrize(
    ("kind", "change"), [(kind, change) for kind, changes in CHANGES.items() for change in changes]
)
def test_each_change_has_another_mark(server: Server, real: RealRig, kind: str, change: str):
    known = knowing(server.cut(), found(server))
    real.ask(CHANGES[kind][change].format(f"table_id = {server.table.table_id}"))
    seen = found(server, known)
    assert (seen.marks.table != known.marks.table) == (kind == "table"), change
    assert (seen.marks.state != known.marks.state) == (kind == "state"), change
    if kind == "table":
        assert seen.table is not known.table and seen.newest.state is not None, "all is read"


def test_both_questions_work_the_marks_out_in_one_place_without_a_call(server: Server, real: RealRig):
    namespace, _, name = server.table.name.partition(".")
    for question in ("newest", "known_newest"):
        given = {"namespace": namespace, "name": name, "known": "none"}
        with real.database.at_once() as connection:
            plan = connection.execute(f"EXPLAIN (VERBOSE) {sql(f'cuts/{question}')}", given).fetchall()
        lines = [line["QUERY PLAN"] for line in plan]
        assert "cut_marks" in sql(f"cuts/{question}") and not any("cut_marks" in line for line in lines), (
            "it is inlined"
        )
        assert any("sha256" in line for line in lines)


def test_before_a_cut_in_another_folder_all_is_read(server: Server, real: RealRig):
    """The folder is noted by then."""
    known = knowing(server.cut(), found(server))
    moved = "UPDATE harness.versions SET stream_metadata = replace(stream_metadata, '/metadata/', '_2/metadata/')"
    real.ask(f"{moved} WHERE table_id = %s", [server.table.table_id])
    seen = found(server, known)
    assert seen.newest.state is not None
    folder = cut_folder(server.table.spec.name, seen.newest.state.version.stream.metadata)
    noted = real.ask("SELECT folder FROM harness.cut_folders WHERE table_id = %s", [server.table.table_id])
    assert folder in [row["folder"] for row in noted]


def test_a_cut_that_is_known_and_no_longer_the_newest_is_not_given(server: Server, other: Server):
    known = knowing(server.cut(), found(server))
    newest = other.cut()
    assert found(server, known).newest.cut == newest


def test_a_cut_that_is_known_and_was_retired_gives_its_numbers_alone(server: Server, other: Server):
    cut = server.cut()
    known = knowing(cut, found(server))
    other.cuts.retire(cut)
    seen = found(server, known).newest.cut
    assert seen is not None and seen.is_over and seen.sequence > cut.sequence and not seen.chunks


@pytest.mark.parametrize("change", ["until = clock_timestamp()", "history = 'of another server'"])
def test_a_cut_that_is_known_and_over_gives_its_numbers_alone(server: Server, real: RealRig, change: str):
    cut = server.cut()
    known = knowing(cut, found(server))
    real.ask(f"UPDATE harness.cuts SET {change} WHERE table_id = %s", [cut.table_id])
    seen = found(server, known).newest.cut
    assert seen is not None and seen.is_over and seen.bounds == cut.bounds and not seen.files


def test_of_a_cut_that_is_over_all_is_read(server: Server):
    known = found(server)
    assert known.newest.cut is not None and known.newest.cut.is_over
    cut = server.cut()
    assert found(server, known).newest.cut == cut


def test_a_known_table_that_was_dropped_is_not_found(server: Server, real: RealRig):
    known = knowing(server.cut(), found(server))
    assert server.cuts.is_there(server.table)
    drop_table(real.database, server.table, catalog=CATALOG)
    assert not server.cuts.is_there(server.table)
    assert server.cuts.found(server.table.name, known=known) is None
