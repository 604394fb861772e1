"""Postgres away at the start, midway, and exactly at a COMMIT."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import harness_pipelines as hp
from harness_pipelines.drivers.postgres import READER, Database, PostgresUnreachable
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults.drills import DRILLS
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import (
    ENDLESS_S,
    INGEST,
    Command,
    PostgresProxy,
    TableRig,
    await_trouble,
    running,
    with_session,
)

from .conftest import MakeRig

INGEST_COMMIT = b"harness.advance_ingest("
PUBLISH = b"INSERT INTO harness.versions"
TRIM = b"UPDATE harness.tables SET retained_from"


@pytest.fixture
def through(
    proxy: PostgresProxy, settings: Settings, harness: hp.Harness, monkeypatch: pytest.MonkeyPatch
) -> Iterator[hp.Harness]:
    """A harness whose every session goes through the proxy."""
    monkeypatch.setattr("harness_pipelines.drivers.postgres.WAIT_S", 2.0)  # 15 s are long for a test
    with hp.connect(replace(settings, dsn=proxy.dsn)) as opened:
        yield opened


def over(rig: TableRig, harness: hp.Harness) -> TableRig:
    """The same table, its worker's stores those of *harness*; reads stay on the direct way."""
    other = object.__new__(TableRig)
    other.__dict__.update(rig.__dict__)
    other.harness = harness
    return other


def test_a_command_without_postgres_ends_with_75_and_names_the_address_and_the_way_on(settings: Settings):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert settings.dsn is not None
        dsn = make_conninfo(settings.dsn, host="127.0.0.1", port=port, password="rosebud-4711")
        with Command(replace(settings, dsn=dsn), "run", "faults.any", "--for", "1s") as command:
            code, said = command.await_end()
    assert code == 75, said
    assert re.search(rf"Postgres at 127.0.0.1:{port} is not answering.*HARNESS_DSN.*services status", said, re.S), said
    assert "Traceback" not in said
    assert "rosebud" not in said


def test_a_worker_that_loses_postgres_says_so_and_goes_on_by_itself(rig, through, proxy: PostgresProxy):
    rig.produce(200)
    with over(rig, through).working() as worker:
        rig.await_exact()
        proxy.down()
        rig.produce(200)
        said = await_trouble(worker, Stage.INGEST)
        assert re.search(r"Postgres.*not answer.*nothing was written", said, re.S)
        proxy.up()
        rig.await_exact()
        wait_until(lambda: not worker.progress[0].trouble, "the trouble is forgotten")


@pytest.mark.long
def test_connections_cut_again_and_again_lose_and_double_nothing(rig, through, proxy: PostgresProxy):
    with over(rig, through).working():
        for _ in range(8):
            rig.produce(150)
            seen = rig.read().total()
            proxy.cut()
            rig.await_rows(seen + 1)
        rig.await_exact()


@pytest.mark.parametrize("forwards_commit", [True, False], ids=["took effect", "was lost"])
def test_an_ingest_commit_whose_answer_is_lost_is_looked_up_and_never_repeated_blindly(
    rig, through, proxy: PostgresProxy, forwards_commit: bool
):
    with over(rig, through).working():
        rig.produce(5)
        rig.await_exact()
        proxy.cut_commit_after(INGEST_COMMIT, forwards_commit=forwards_commit)
        rig.produce(100)
        rig.await_exact()
        rig.produce(5)
        rig.await_exact()
    assert proxy.cuts == 1


@pytest.mark.parametrize("forwards_commit", [True, False], ids=["took effect", "was lost"])
def test_a_publish_whose_answer_is_lost_is_looked_up_under_its_locks(
    rig, through, proxy: PostgresProxy, forwards_commit: bool
):
    rig.produce(50)
    rig.ingest()
    before = rig.table.versions()[-1].version
    proxy.cut_commit_after(PUBLISH, forwards_commit=forwards_commit)
    over(rig, through).tier()
    assert proxy.cuts == 1
    rig.assert_exact()
    assert {stream_hi for stream_hi, _ in rig.status().values()} == {50}
    assert rig.table.versions()[-1].version == before + 1


@pytest.mark.parametrize("forwards_commit", [True, False], ids=["took effect", "was lost"])
def test_a_trim_whose_answer_is_lost_is_decided_anew_and_removes_nothing_that_is_needed(
    make_rig, through, proxy: PostgresProxy, forwards_commit: bool
):
    drill = DRILLS["expire"]
    rig = make_rig(**drill.spec)
    drill.prepare([rig])
    proxy.cut_commit_after(TRIM, forwards_commit=forwards_commit)
    with over(rig, through).working(drill.stages):
        wait_until(lambda: proxy.cuts == 1 and drill.caught_up(rig), "expire is done")
    rig.produce(5)
    rig.ingest()
    rig.assert_exact()


def test_a_read_without_postgres_fails_by_name_and_returns_nothing(rig, through, proxy: PostgresProxy):
    rig.produce(5)
    rig.ingest()
    table = through.table(rig.name)
    assert table.read().num_rows == 10
    proxy.down()
    with pytest.raises(PostgresUnreachable, match=rf"Postgres at 127.0.0.1:{proxy.port} is not answering"):
        table.read()
    proxy.up()
    assert table.read().num_rows == 10


def test_a_session_that_was_in_use_while_another_one_was_lost_is_tried_out_before_its_next_use(proxy: PostgresProxy):
    database = Database(proxy.dsn)
    try:
        with database.session() as unaware:
            unaware.execute("SELECT 1")
            unaware.commit()
            with pytest.raises(PostgresUnreachable), database.session() as lost:
                proxy.cut()
                lost.execute("SELECT 1")
        with database.session() as another:
            assert another.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    finally:
        database.close()


@pytest.mark.parametrize("noticed", ["by its user", "before its use"])
def test_after_one_session_was_found_lost_those_of_other_pools_are_tried_out(proxy: PostgresProxy, noticed: str):
    one, other = Database(proxy.dsn), Database(proxy.dsn, role=READER)
    try:
        for database in (one, other):
            with database.session() as made:
                made.execute("SELECT 1")
                made.commit()
        proxy.cut()
        if noticed == "by its user":
            with pytest.raises(PostgresUnreachable), one.session() as lost:
                lost.execute("SELECT 1")
        else:
            with patch("harness_pipelines.drivers.postgres.TRUSTED_S", 0.0), one.session() as replaced:
                replaced.execute("SELECT 1")
        with other.session() as another:
            assert another.execute("SELECT 1 AS one").fetchone() == {"one": 1}
    finally:
        one.close()
        other.close()


def test_a_read_that_is_cut_in_the_middle_of_its_rows_fails_by_name_and_returns_none_of_them(
    rig, through, proxy: PostgresProxy
):
    rig.produce(2_000)
    rig.ingest()
    table = through.table(rig.name)
    proxy.cut_after(40_000)  # of some 100,000
    with pytest.raises(PostgresUnreachable, match=rf"{rig.name}: Postgres at 127.0.0.1:{proxy.port} is not answering"):
        table.read()
    assert proxy.cuts == 1
    assert table.read().num_rows == 4_000


def test_timeouts_that_a_user_sets_in_the_dsn_win_but_role_and_time_zone_do_not(settings: Settings):
    assert settings.dsn is not None
    own = with_session(settings.dsn, lock_timeout="3s", TimeZone="Asia/Tokyo", role="harness_reader")
    database = Database(own)
    with database.session() as connection:
        shown = {name: _show(connection, name) for name in ("lock_timeout", "statement_timeout", "TimeZone", "role")}
    database.close()
    assert shown == {"lock_timeout": "3s", "statement_timeout": "2min", "TimeZone": "UTC", "role": "harness_worker"}


def _show(connection, name: str) -> str:
    return str(connection.execute("SELECT current_setting(%s) AS value", [name]).fetchone()["value"])


def test_a_segment_that_was_dropped_by_hand_stops_its_table_by_name_and_no_other(make_rig: MakeRig):
    sick, well = make_rig(), make_rig(partitions=1)
    sick.produce(5)
    sick.ingest()
    [segment] = sick.stores.segments.all(sick.table.row)
    assert sick.harness.settings.dsn is not None
    with psycopg.connect(sick.harness.settings.dsn, autocommit=True) as owner:
        owner.execute(f"DROP TABLE harness_buffer.{segment.name}")
    sick.produce(5)
    worker = Worker(sick.stores, [sick.table.row, well.table.row], WorkerOptions(stages=INGEST))
    with running(worker):
        said = await_trouble(worker, Stage.INGEST)
        well.produce(10)
        well.await_exact()
    assert re.search(
        rf"{sick.name}: a segment of the buffer is gone .*{segment.name}.*reconcile SPEC --rebuild", said, re.S
    )


def test_a_postgres_that_is_there_and_does_not_answer_is_given_up_by_its_address(proxy: PostgresProxy):
    """A stopped server's kernel goes on to acknowledge, so only the client's own clock ends the wait."""
    database = Database(with_session(proxy.dsn, statement_timeout="1s"))
    try:
        with database.reading() as connection:
            connection.execute("SELECT 1")
        proxy.freeze()
        with (
            within(15, "an answer that does not come"),
            pytest.raises(
                PostgresUnreachable, match=r"Postgres at 127.0.0.1:\d+ is not answering: no answer within 6 s"
            ),
            database.reading() as connection,
        ):
            connection.execute("SELECT 2")
    finally:
        database.close()


@pytest.mark.parametrize("tables", [1, pytest.param(7, marks=pytest.mark.long)])
def test_a_worker_whose_postgres_hangs_ends_15_s_after_sigterm(make_rig, settings, proxy: PostgresProxy, tables: int):
    rigs = [make_rig() for _ in range(tables)]
    for rig in rigs:
        rig.produce(5)
    names = [rig.name for rig in rigs]
    with Command(replace(settings, dsn=proxy.dsn), "run", *names, "--stage", "ingest") as command:
        for rig in rigs:
            rig.await_rows(5)
        proxy.freeze()
        with within(15, "the end of the worker"):
            command.send(signal.SIGTERM)
            command.await_end(deadline_s=ENDLESS_S)
