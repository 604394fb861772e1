"""The rules that only the database itself can keep: rights, migrations, the order of locks."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.rows import dict_row

from harness_pipelines.drivers import files, postgres
from harness_pipelines.drivers.postgres import (
    READER,
    WORKER,
    Database,
    NotInitialised,
)
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.lakes.owner import MARK, Ownership
from harness_pipelines.ledgers.postgres import migrations
from harness_pipelines.ledgers.postgres.acts.drop import Dropped
from harness_pipelines.ledgers.postgres.boundary import check_held
from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ledgers.postgres.migrations import ledger_database, migrate
from harness_pipelines.ledgers.postgres.named_snapshots import SnapshotInUse, Snapshots, SnapshotUnknown
from harness_pipelines.ledgers.postgres.retention import Upkeep
from harness_pipelines.ledgers.postgres.views.stalls import Stalls
from harness_pipelines.ports.errors import WarehouseTaken
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig, decoded
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
from harness_pipelines_tests.rig import with_session

# -- rights -------------------------------------------------------------------------------------------------

APPEND_ONLY = ("versions", "outbox", "schemas")
LEDGER = ("tables", "schemas", "lake_positions", "versions", "claims", "moves", "outbox")
BUFFER = ("ingest_positions", "segments", "quarantine", "condemned_files")


def refused(dsn: str, role: str, statement: str) -> bool:
    with psycopg.connect(session_dsn(dsn, role=role)) as connection:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return True
        finally:
            connection.rollback()
    return False


@pytest.mark.parametrize("name", APPEND_ONLY)
def test_a_worker_cannot_change_what_is_append_only(ledger_dsn: str, name: str):
    assert refused(ledger_dsn, WORKER, f"UPDATE harness.{name} SET table_id = table_id")
    assert refused(ledger_dsn, WORKER, f"DELETE FROM harness.{name}")
    assert refused(ledger_dsn, WORKER, f"TRUNCATE harness.{name}")


@pytest.mark.parametrize("name", [*LEDGER, *BUFFER])
def test_a_reader_may_look_and_not_write(real: RealRig, name: str):
    (may,) = real.ask(
        "SELECT has_table_privilege(%(role)s, %(name)s, 'SELECT') AS look, "
        "has_table_privilege(%(role)s, %(name)s, 'INSERT, UPDATE, DELETE, TRUNCATE') AS write",
        {"role": READER, "name": f"harness.{name}"},
    )
    assert (may["look"], may["write"]) == (True, False)


def test_a_reader_cannot_move_a_pointer_or_make_and_drop_segments(real: RealRig):
    segment = real.segments.open_segment(real.table())

    assert refused(real.dsn, READER, "UPDATE public.iceberg_tables SET metadata_location = ''")
    assert refused(real.dsn, READER, "CREATE TABLE harness_buffer.mine (a int)")
    assert refused(real.dsn, READER, f"DELETE FROM harness_buffer.{segment.name}")
    assert refused(real.dsn, READER, f"DROP TABLE harness_buffer.{segment.name}")


# -- migrations ---------------------------------------------------------------------------------------------


def test_two_inits_at_once_do_it_once_and_a_later_one_changes_nothing(make_database: Callable[[], str]):
    fresh, done = make_database(), []
    threads = [threading.Thread(target=lambda: done.append(migrate(fresh))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert sorted(map(len, done)) == [0, len(migrations.migrations())]
    assert migrate(fresh) == []


@pytest.mark.parametrize(
    "there",
    [
        "CREATE TABLE public.iceberg_tables (catalog_name varchar(255))",  # as another Iceberg catalog makes it
        "CREATE SCHEMA harness",
        "CREATE SCHEMA harness_buffer",
    ],
)
def test_a_database_in_which_a_name_is_taken_is_refused_whole(make_database: Callable[[], str], there: str):
    fresh = make_database()
    with psycopg.connect(fresh, autocommit=True) as owner:
        owner.execute(there)

    with pytest.raises(
        NotInitialised, match=r"already has an object .* already exists.*nothing was changed.*HARNESS_DSN"
    ):
        migrate(fresh)

    with psycopg.connect(fresh) as owner:
        assert owner.execute("SELECT to_regclass('public.harness_migrations')").fetchone() == (None,)


@pytest.mark.parametrize(
    ("change", "undo", "said"),
    [
        (
            "UPDATE public.harness_migrations SET digest = 'x' || digest WHERE number = 1",
            "UPDATE public.harness_migrations SET digest = substr(digest, 2) WHERE number = 1",
            "0001_ledger differs from the one",
        ),
        (
            "INSERT INTO public.harness_migrations VALUES (999, 'later', 'x')",
            "DELETE FROM public.harness_migrations WHERE number = 999",
            r"\[999\] that this harness does not know",
        ),
    ],
)
def test_a_ledger_of_another_harness_is_left_alone(real: RealRig, change: str, undo: str, said: str):
    real.ask(change)
    try:
        with pytest.raises(NotInitialised, match=f"{said}.*nothing was changed"):
            migrate(real.dsn)
    finally:
        real.ask(undo)


@pytest.mark.parametrize("role", [READER, WORKER])
def test_an_older_harness_is_refused_on_a_newer_ledger_at_its_first_session(real: RealRig, role: str):
    real.ask("INSERT INTO public.harness_migrations VALUES (999, 'later', 'x')")
    database = ledger_database(real.dsn, role=role)
    try:
        with pytest.raises(NotInitialised, match=r"\[999\] that this harness does not know.*install that version"):
            database.rows("reads/now")
    finally:
        database.close()
        real.ask("DELETE FROM public.harness_migrations WHERE number = 999")


@pytest.mark.parametrize("role", [READER, WORKER, None])
def test_a_newer_harness_is_sent_to_init_by_an_older_ledger_and_goes_on_after_it(
    make_database: Callable[[], str], role: str | None
):
    dsn = make_database()
    with patch.object(migrations, "migrations", return_value=migrations.migrations()[:-1]):
        migrate(dsn)
    database = ledger_database(dsn, role=role)
    try:
        with pytest.raises(NotInitialised, match="made by an older harness.*nothing was changed.*`harness init`"):
            database.rows("reads/now")
        assert migrate(dsn)
        assert len(database.rows("reads/now")) == 1
    finally:
        database.close()


def test_a_migration_whose_number_was_left_free_is_applied_when_it_comes(make_database: Callable[[], str]):
    dsn = make_database()
    every = migrations.migrations()
    with patch.object(migrations, "migrations", return_value=[m for m in every if m[0] != 25]):
        migrate(dsn)
    database = ledger_database(dsn, role=None)
    try:
        with pytest.raises(NotInitialised, match=r"it lacks migrations \[25\]"):
            database.rows("reads/now")
    finally:
        database.close()
    assert migrate(dsn) == [name for number, name, _ in every if number == 25]
    assert migrate(dsn) == []


OLD_TABLE = """
INSERT INTO harness.tables (namespace, name, spec, cluster_id, topic, topic_id) VALUES ('old', %s, %s, 'c', 't', 't')
"""


def migrate_before(number: int, dsn: str) -> None:
    """Make the ledger of a harness that lacked migration *number* and all later ones."""
    earlier = [one for one in migrations.migrations() if one[0] < number]
    with patch.object(migrations, "migrations", return_value=earlier):
        migrate(dsn)


def test_a_table_of_an_earlier_harness_keeps_a_batch_view_without_a_sample_layer(make_database: Callable[[], str]):
    dsn = make_database()
    migrate_before(8, dsn)
    specs = {"plain": "{}", "clustered": '{"layout": {"columns": ["a"]}}', "chosen": '{"layout": {"sample": 0.1}}'}
    with psycopg.connect(dsn) as owner:
        for name, spec in specs.items():
            owner.execute(OLD_TABLE, [name, spec])
    assert migrate(dsn) == [name for number, name, _ in migrations.migrations() if number >= 8]
    with psycopg.connect(dsn) as owner:
        found = {name: layout for name, layout in owner.execute("SELECT name, spec -> 'layout' FROM harness.tables")}
    assert found == {"plain": {"sample": 0}, "clustered": {"columns": ["a"], "sample": 0}, "chosen": {"sample": 0.1}}


REFUSED = """
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value)
SELECT table_id, 0, n, 'malformed', 'no JSON', decode(repeat(md5(n::text), 8), 'hex')
FROM harness.tables, generate_series(1, %s) n
"""


@pytest.mark.parametrize(
    ("rows", "limit"),
    [(30_000, "250ms"), pytest.param(1_000_000, "5s", marks=pytest.mark.long)],
)
def test_a_migration_that_rewrites_a_large_quarantine_is_not_ended_by_the_limit_of_a_statement(
    make_database: Callable[[], str], rows: int, limit: str
):
    dsn, every = make_database(), migrations.migrations()
    migrate_before(36, dsn)
    with psycopg.connect(dsn) as owner:
        owner.execute(OLD_TABLE, ["orders", "{}"])
        owner.execute(REFUSED, [rows])
    assert migrate(with_session(dsn, statement_timeout=limit)) == [name for number, name, _ in every if number >= 36]
    with psycopg.connect(dsn) as owner:
        sealed = owner.execute("SELECT count(*) FROM harness.quarantine q WHERE digest = harness.refused_digest(q)")
        assert sealed.fetchone() == (rows,)


def test_a_stall_of_an_earlier_harness_is_counted_from_when_its_move_failed(make_database: Callable[[], str]):
    dsn = make_database()
    migrate_before(44, dsn)
    with psycopg.connect(dsn) as owner:
        owner.execute(OLD_TABLE, ["orders", "{}"])
        for stage in ("tier", "otree"):
            owner.execute(
                "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, "
                "error) SELECT table_id, %s, 0, '{}', '{}', 1, 'PLANNED', 1, '', 'away' FROM harness.tables",
                [stage],
            )
        owner.execute(  # an attempt at otree's move has failed since the last look
            "INSERT INTO harness.stalls SELECT table_id, s.stage, 'an open move', s.marker, "
            "clock_timestamp() - interval '5 min' FROM harness.tables, (VALUES ('tier', ' failed'), ('otree', '')) "
            "AS s (stage, marker)"
        )
    assert migrate(dsn)[0] == "0044_failed_attempts"

    worker, reader = ledger_database(dsn), ledger_database(dsn, role=READER)
    try:
        stalls = Stalls(worker, reader, buffer_gb=1.0)
        assert [(one.stage, one.is_alarm) for one in stalls.now()] == [("tier", True)]
        stalls.note(["old.orders"])
        assert [(one.stage, one.is_alarm) for one in stalls.now()] == [("otree", False), ("tier", True)]
    finally:
        worker.close()
        reader.close()
    with psycopg.connect(dsn) as owner:
        found = owner.execute("SELECT stage, marker, failed FROM harness.stalls ORDER BY stage").fetchall()
    assert found == [("otree", "", True), ("tier", "", True)]


# -- locks --------------------------------------------------------------------------------------------------


class Recorded:
    """A connection that notes what it is asked to run."""

    def __init__(self, connection: Any, notes: list[str]) -> None:
        self._connection, self._notes = connection, notes

    def execute(self, statement: Any, *parameters: Any, **how: Any) -> Any:
        self._notes.append(statement if isinstance(statement, str) else statement.as_string(None))
        return self._connection.execute(statement, *parameters, **how)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class RecordingDatabase(Database):
    """Notes the statements of each transaction."""

    def __init__(self, dsn: str) -> None:
        super().__init__(dsn)
        self.transactions: list[list[str]] = []

    @contextmanager
    def transaction(self, *, table: str | None = None) -> Iterator[Any]:
        with super().transaction(table=table) as connection:
            self.transactions.append([])
            yield Recorded(connection, self.transactions[-1])


ADVISORY = {"1752330865": "trim lock", "1752330869": "publishers' lock"}


def locked(statements: list[str]) -> list[str]:
    """What each statement locks, each thing once, in the order of its first lock."""
    found: list[str] = []
    for statement in statements:
        if advisory := re.findall(r"pg_advisory_xact_lock(?:_shared)?\((\d+)", statement):
            names = [*re.findall(r"FROM (\w+\.\w+)", statement), *(ADVISORY[number] for number in advisory)]
        elif re.search(r"\bFOR (NO KEY )?(UPDATE|KEY SHARE)\b", statement):
            names = re.findall(r"FROM ([\w.]+)", statement)
        else:
            names = re.findall(r"(?:UPDATE|INTO|DELETE FROM) (\w+\.\w+)", statement)
        found += [name for name in dict.fromkeys(names) if name not in found]
    return found


@pytest.fixture
def recording(real: RealRig) -> Iterator[RecordingDatabase]:
    made = RecordingDatabase(real.dsn)
    yield made
    made.close()


def test_a_publish_locks_in_the_order_of_the_design(real: RealRig, recording: RecordingDatabase):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    real.ledger = PostgresLedger(recording, catalog=CATALOG)
    try:
        real.publish(table, claim, move)
    finally:
        real.ledger = PostgresLedger(real.database, catalog=CATALOG)

    (publishing,) = [t for t in recording.transactions if any("INSERT INTO harness.versions" in s for s in t)]
    assert locked(publishing) == [
        "harness.tables",
        "publishers' lock",
        "public.iceberg_tables",
        "harness.moves",
        "harness.lake_positions",
        "harness.versions",
        "harness.outbox",
        "harness.claims",
    ]
    assert "harness.claims" in publishing[-1]  # the fence is the last word


def test_a_retire_locks_in_the_order_of_the_design(real: RealRig, recording: RecordingDatabase):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    real.segments.rotate(table)
    real.move(table, {0: 0}, {0: 10})
    real.pass_time(timedelta(days=2))
    claim = real.claim(table, Stage.EXPIRE)

    assert len(Upkeep(recording, real.catalog, real.ownership, files).trim(table, claim).retire) == 1

    (retiring,) = [t for t in recording.transactions if any("trim_floor = " in s for s in t)]
    found = [name for name in locked(retiring) if name != "harness.moves"]  # orphaned moves: no publish waits there
    assert found == [
        "harness.tables",
        "publishers' lock",
        "harness.lake_positions",
        "trim lock",
        "harness.cuts",  # whose time has ended; as leases, each waits for a server that prolongs it
        "harness.named_cuts",
        "harness.leases",
        "harness.segments",
        "harness.overlays",  # of versions that no publish knows any more, as the next
        "harness.layouts",
        "harness.claims",
    ]
    assert "harness.claims" in retiring[-1]


def waits_for_a_lock(real: RealRig) -> bool:
    """Does any session of the database?"""
    found = real.ask(
        "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(found[0]["n"])


@pytest.mark.parametrize("refused_offsets", [range(0), range(5)], ids=["rows", "no rows"])
def test_a_segment_is_closed_after_the_writer_that_is_in_it(real: RealRig, refused_offsets: range):
    """Else a row could lie above the `max_hi` by which the segment is retired."""
    table = real.table()
    claim = real.claim(table, Stage.INGEST)
    segment = real.segments.open_segment(table)
    writer = real.writer(table, claim)
    closing = threading.Thread(target=lambda: real.segments.rotate(table))

    def meanwhile() -> None:
        closing.start()
        wait_until(lambda: waits_for_a_lock(real), "closing waits for the writer")

    writer.commit(segment, [decoded(table, 0, 0, 5, refused=refused_offsets)], confirm=meanwhile)
    closing.join(DEADLINE_S)
    writer.close()

    assert next((s.state, s.max_hi) for s in real.segments.all(table)) == ("closed", {0: 5, 1: 0})


def test_a_decision_to_retire_waits_for_the_reader_that_is_looking(real: RealRig):
    table = real.table()
    claim = real.claim(table, Stage.EXPIRE)
    trimming = threading.Thread(target=lambda: real.upkeep.trim(table, claim))
    with psycopg.connect(session_dsn(real.dsn, role=READER), row_factory=dict_row) as looking:
        looking.execute(postgres.sql("reads/share_trim_lock"), {"table_id": table.table_id})
        trimming.start()

        def waits() -> bool:
            found = real.ask("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return bool(found[0]["n"])

        wait_until(waits, "the decision waits for the reader")
    trimming.join(DEADLINE_S)
    assert not trimming.is_alive()


def test_a_drop_of_a_snapshot_waits_for_a_renewal_that_began_before_the_lease_ended(real: RealRig):
    """Others see the lease as ended until the renewal is committed; its reader would go on without the snapshot."""
    table, name, snapshots = real.table(), f"s{uuid.uuid4().hex[:12]}", Snapshots(real.database)
    snapshots.create(name, [table])
    state = Leases(real.readers).look(table, holder="a reader", lease=timedelta(seconds=4), at=name)
    with ThreadPoolExecutor(1) as pool:
        with real.database.transaction() as renewing:
            key = {"lease_id": state.lease_id, "lease": timedelta(hours=1)}
            assert renewing.execute(postgres.sql("reads/renew_lease"), key).fetchone() is not None
            ended = "SELECT clock_timestamp() > %s AS ended"
            wait_until(lambda: bool(real.ask(ended, [state.lease_until])[0]["ended"]), "the lease has ended")
            dropping = pool.submit(snapshots.drop, name)
            wait_until(lambda: dropping.done() or waits_for_a_lock(real), "the drop waits")
        with pytest.raises(SnapshotInUse, match=f"a reader reads {table.name} as of snapshot {name}"):
            dropping.result(DEADLINE_S)
    real.leases.end(state.lease_id)
    snapshots.drop(name)


def test_a_drop_leaves_a_snapshot_that_was_made_anew_over_another_table(real: RealRig):
    """It has not waited for the readers who look at that one."""
    first, second, snapshots = real.table(), real.table(), Snapshots(real.database)
    name = f"s{uuid.uuid4().hex[:12]}"
    snapshots.create(name, [first])
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(session_dsn(real.dsn, role=READER)) as looking:
            looking.execute(postgres.sql("reads/share_trim_lock"), {"table_id": first.table_id})
            dropping = pool.submit(snapshots.drop, name)
            wait_until(lambda: dropping.done() or waits_for_a_lock(real), "the drop waits")
            real.ask("DELETE FROM harness.snapshots WHERE name = %s", [name])
            snapshots.create(name, [second])
        with pytest.raises(SnapshotUnknown, match=f"{name}, or it was made again over other tables"):
            dropping.result(DEADLINE_S)
    assert [p.table for one in snapshots.all() if one.name == name for p in one.tables] == [second.name]
    snapshots.drop(name)


def test_a_snapshot_is_of_all_its_tables_or_not_made(real: RealRig):
    kept, snapshots, name = real.table(), Snapshots(real.database), f"s{uuid.uuid4().hex[:12]}"
    gone = replace(kept, table_id=2**30)  # as one that was dropped after its row was read

    with pytest.raises(TableUnknown, match=f"{gone.name} was dropped just now; no snapshot {name} was made"):
        snapshots.create(name, [kept, gone])
    assert name not in {one.name for one in snapshots.all()}


def test_a_drop_waits_for_the_reader_that_is_looking_and_lets_it_leave_its_lease(real: RealRig):
    table, done = real.table(), list[Dropped]()
    dropping = threading.Thread(target=lambda: done.append(real.ledger.drop_table(table)))  # type: ignore[attr-defined]
    with psycopg.connect(session_dsn(real.dsn, role=READER), row_factory=dict_row) as looking:
        looking.execute(postgres.sql("reads/share_trim_lock"), {"table_id": table.table_id})
        dropping.start()

        def waits() -> bool:
            found = real.ask("SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
            return bool(found[0]["n"])

        wait_until(waits, "the drop waits for the reader")
        asked = {"version": None, "named": None, "lease": timedelta(minutes=1)}
        wanted = {"table_id": table.table_id, "lease_id": uuid.uuid4(), "holder": "a reader", **asked}
        assert looking.execute(postgres.sql("reads/look"), wanted).fetchone()
    dropping.join(DEADLINE_S)

    assert [dropped.readers for dropped in done] == [1]


def test_a_thief_waits_for_the_commit_that_was_fenced_in_time(real: RealRig):
    """Between the fence and COMMIT nobody may take the claim over, or two holders would have effect."""
    table = real.table()
    claim = real.claim(table)
    with real.database.transaction() as connection:
        check_held(connection, claim)
        with psycopg.connect(session_dsn(real.dsn, role=WORKER)) as thief:
            thief.execute("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                thief.execute(
                    postgres.sql("ledger/lock_claim"), {"table_id": table.table_id, "stage": "tier", "shard": 0}
                )


# -- a ledger that was restored -----------------------------------------------------------------------------


def test_numbers_that_ingest_was_given_tell_nothing_of_what_the_lake_may_hold(real: RealRig):
    table, histories = real.table(), TableHistories(real.database)
    real.ingest(table, {0: (0, 10)})
    assert histories.highest_move(table) == 0

    moved = real.move(table, {0: 0}, {0: 10}).move_id
    real.ingest(table, {0: (10, 20)})

    assert histories.highest_move(table) == moved
    assert max(m["move_id"] for m in real.ledger.moves(table)) > moved


# -- whose the warehouse is ---------------------------------------------------------------------------------


def test_a_take_over_gives_the_ledger_an_epoch_of_its_own(make_database: Callable[[], str], tmp_path: Path):
    dsn = make_database()
    migrate(dsn)
    database = ledger_database(dsn)
    try:
        own = Ownership(database, warehouse=tmp_path.as_uri())
        own.check()
        first = own.ours()
        own.take_over()
        assert first.epoch == first.ledger != own.ours().epoch
        assert own.stranger() is None
    finally:
        database.close()
    assert refused(dsn, READER, "UPDATE harness.ledger SET epoch = gen_random_uuid()")
    assert refused(dsn, WORKER, "UPDATE harness.ledger SET ledger_id = gen_random_uuid()")


def test_no_file_is_deleted_from_a_warehouse_that_somebody_took_over(real: RealRig, tmp_path: Path):
    table = real.table(files=True)
    claim = real.claim(table, Stage.EXPIRE)
    own = Ownership(real.database, warehouse=tmp_path.as_uri())
    own.check()
    upkeep = Upkeep(real.database, real.catalog, own, files)
    folder = Path(urlsplit(real._lake.load(table, real.ledger.pointer(table, "stream")).location()).path)
    orphan, mark = folder / "data" / "orphan.parquet", tmp_path / MARK
    orphan.parent.mkdir(exist_ok=True)
    orphan.touch()
    real.ask(
        "INSERT INTO harness.condemned_files (table_id, path, bytes, since) "
        "VALUES (%s, %s, 0, clock_timestamp() - interval '2 days')",
        [table.table_id, orphan.as_uri()],
    )
    ours = mark.read_text()
    mark.write_text(json.dumps({**json.loads(ours), "epoch": "of a copy that took over"}))

    with pytest.raises(WarehouseTaken, match="another copy of this ledger"):
        upkeep.delete_ripe(table, claim)
    assert orphan.exists()

    mark.write_text(ours)
    assert upkeep.delete_ripe(table, claim) == [orphan.as_uri()]
    assert not orphan.exists()


# -- a ledger that was changed by hand ----------------------------------------------------------------------


def test_a_lake_position_that_disagrees_with_the_head_stops_the_publish(real: RealRig):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    real.ask("UPDATE harness.lake_positions SET stream_hi = 3 WHERE table_id = %s", [table.table_id])
    before = real.contents(table)

    with pytest.raises(BoundaryGap, match="partition 0: it starts at offset 0, its row in lake_positions ends"):
        real.publish(table, claim, move)
    assert real.contents(table) == before


def test_a_cluster_without_the_roles_is_told_to_init_and_not_to_look_for_its_address(ledger_dsn: str):
    with (
        patch.object(postgres, "WORKER", "harness_nobody"),
        pytest.raises(NotInitialised, match="no role of the harness yet: run `harness init`"),
        ledger_database(ledger_dsn, role="harness_nobody").session(),
    ):
        pass
