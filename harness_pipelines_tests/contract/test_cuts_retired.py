"""A cut with a file that is lost is retired: no server shows it or goes on from it, and no number comes again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import CutDamaged, CutOvertaken
from harness_pipelines_tests.contract.cut_drafts import KEEP, Server, moved_table, rows_of, server_of
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_locks import waits


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@pytest.fixture
def other(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


def test_a_retired_cut_is_not_served_and_gives_the_next_one_its_numbers_alone(
    server: Server, other: Server, real: RealRig
):
    cut = server.cut()
    server.cuts.retire(cut)

    for one in (server, other):
        newest, *_ = one.cuts.newest(one.table)
        assert newest is not None and newest.is_over
        assert (newest.chunks, newest.parts, newest.files, newest.metadata) == ((), {}, (), "")
        assert newest.sequence > cut.sequence
        assert (newest.timestamp_ms, newest.version, newest.bounds) == (cut.timestamp_ms, cut.version, cut.bounds)
        with pytest.raises(CutOvertaken, match="has ended"):
            one.cuts.serve(cut, keep=HOUR)
    made = other.look().publish(other.draft(snapshot_id=cut.snapshot_id))
    assert newest is not None and made.sequence > newest.sequence and made.timestamp_ms > cut.timestamp_ms
    assert server.cuts.newest(server.table)[0] == made, "the same state has the same id again"


def test_the_files_of_a_retired_cut_live_as_long_as_was_promised(server: Server, real: RealRig):
    cut = server.cut(keep=HOUR)
    server.cuts.retire(cut)
    server.cut()
    [old, _] = rows_of(real, server.table)
    assert (old["files"], old["until"]) == ([*cut.files], cut.until)
    assert old["retired_at"] is not None and (old["chunks"], old["parts"]) == ([], {})


def test_what_was_made_after_a_cut_that_is_retired_meanwhile_is_not_published(server: Server, other: Server):
    """It may name chunks of it again."""
    cut = server.cut()
    other.look()
    server.cuts.retire(cut)
    with pytest.raises(CutOvertaken, match="this one was made after"):
        other.publish()
    assert other.cut().sequence > cut.sequence


def test_a_cut_that_was_overtaken_is_not_retired(server: Server, other: Server, real: RealRig):
    """A server that slept since it found a file missing takes nothing from the newest one."""
    old = server.cut()
    newest = other.cut()
    server.cuts.retire(old)
    assert server.cuts.newest(server.table)[0] == newest
    assert [row["retired_at"] for row in rows_of(real, server.table)] == [None, None]


def test_two_servers_that_find_the_same_cut_damaged_retire_it_once(server: Server, other: Server, real: RealRig):
    cut = server.cut()
    server.cuts.retire(cut)
    [first] = rows_of(real, server.table)
    other.cuts.retire(cut)
    assert rows_of(real, server.table) == [first]
    made = server.cut()
    other.cuts.retire(cut)
    assert server.cuts.newest(server.table)[0] == made


def test_a_table_loses_no_more_than_one_cut_a_minute(server: Server, other: Server, real: RealRig):
    """A server that does not see the storage of the others would take each of their cuts for damaged."""
    server.cuts.retire(server.cut())
    made = server.cut()
    with pytest.raises(CutDamaged, match="retired less than a minute ago"):
        other.cuts.retire(made)
    assert server.cuts.newest(server.table)[0] == made
    real.ask("UPDATE harness.cuts SET retired_at = retired_at - %s WHERE table_id = %s", [MINUTE, made.table_id])
    other.cuts.retire(made)
    assert server.cuts.newest(server.table)[0].is_over  # type: ignore[union-attr]


def test_a_cut_that_was_retired_in_the_future_holds_none_up(server: Server, real: RealRig):
    """By a clock that was set back."""
    server.cuts.retire(server.cut())
    real.ask("UPDATE harness.cuts SET retired_at = retired_at + %s WHERE table_id = %s", [HOUR, server.table.table_id])
    cut = server.cut()
    server.cuts.retire(cut)
    newest, *_ = server.cuts.newest(server.table)
    assert newest is not None and newest.is_over and newest.sequence > cut.sequence


def test_a_revert_below_a_retired_cut_is_not_shown(server: Server, real: RealRig):
    """Who read it may not be given less (S4)."""
    server.cuts.retire(server.cut())
    with pytest.raises(CutOvertaken, match="partition 0 ends at offset 8, that of the last cut at 9"):
        server.look().publish(server.draft(bounds={0: (0, 0, 5, 8)}))


def test_retiring_waits_for_what_is_being_published(server: Server, real: RealRig):
    cut = server.cut()

    def publishing(connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(1752330871, %s)", [server.table.table_id])
        connection.execute(
            "UPDATE harness.cuts SET sequence = sequence + 1 WHERE table_id = %s", [server.table.table_id]
        )

    assert waits(real, lambda: server.cuts.retire(cut), hold=publishing) == []
    assert [row["retired_at"] for row in rows_of(real, server.table)] == [None]


def test_the_numbers_of_a_retired_cut_stay_when_its_time_has_ended(server: Server, real: RealRig):
    cut = server.cut()
    server.cuts.retire(cut)
    real.ask(
        "UPDATE harness.cuts SET until = until - %s, served_at = served_at - %s WHERE table_id = %s",
        [KEEP, KEEP, server.table.table_id],
    )
    made = server.cut()
    assert made.sequence > cut.sequence and made.timestamp_ms > cut.timestamp_ms
    assert made.published_at - cut.published_at < timedelta(hours=1)
