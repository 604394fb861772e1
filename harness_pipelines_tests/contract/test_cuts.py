"""The ledger numbers cuts: who publishes comes after the newest one, and what is served stays."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import READER, WORKER, Database
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres import migrations
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ledgers.postgres.cuts import Cuts
from harness_pipelines.ledgers.postgres.migrations import ledger_database, migrate
from harness_pipelines.ports.ledger import LeaseEnded, TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutDraft, CutImpossible, CutOvertaken, CutRejected, CutsFull
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.cuts import cut_folder, is_cut_folder
from harness_pipelines_tests.contract.cut_drafts import KEEP, Server, moved_table, rows_of, server_of
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_locks import waits
from harness_pipelines_tests.contract.test_postgres import OLD_TABLE, migrate_before

DAY = timedelta(hours=24)
MILLISECONDS = 10_000  #: for which one statement may stand still


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return moved_table(real)


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@pytest.fixture
def other(real: RealRig, table: TableRow) -> Server:
    """Another server of the same table."""
    return server_of(real, table)


def later(real: RealRig, table: TableRow, by: timedelta) -> None:
    """Let time pass for the cuts and leases of *table*."""
    real.ask(
        "UPDATE harness.cuts SET served_at = served_at - %s, until = until - %s, replaced_at = replaced_at - %s "
        "WHERE table_id = %s",
        [by, by, by, table.table_id],
    )
    real.ask(
        "UPDATE harness.leases SET born = born - %s, until = until - %s WHERE table_id = %s", [by, by, table.table_id]
    )


def trim(real: RealRig, table: TableRow) -> None:
    claim = real.claim(table, Stage.EXPIRE)
    real.upkeep.trim(real.again(table), claim)
    real.ledger.release(claim)


# -- publishing ---------------------------------------------------------------------------------------------


def test_a_cut_comes_back_as_it_was_published(server: Server):
    none, now, _ = server.cuts.newest(server.table)
    assert none is not None and none.is_over and (none.version, none.bounds, none.chunks) == (0, {}, ())
    assert abs(none.sequence - int(now.timestamp() * 1000)) < MILLISECONDS, (
        "a ledger that was lost may have given lower ones"
    )
    draft = server.look().draft()

    cut = server.publish(draft)
    newest, now, _ = server.cuts.newest(server.table)

    assert newest == cut
    assert {word: getattr(cut, word) for word in CutDraft.__dataclass_fields__} == {
        word: getattr(draft, word) for word in CutDraft.__dataclass_fields__
    }
    assert cut.until - cut.served_at == KEEP and cut.served_at <= now < cut.until
    assert not cut.is_over


def test_of_two_servers_that_saw_the_same_cut_one_publishes(server: Server, other: Server, real: RealRig):
    server.cut()
    server.look(), other.look()

    cut = server.publish()
    with pytest.raises(CutOvertaken, match=f"the newest cut is {cut.sequence}, this one was made after"):
        other.publish()

    assert [row["sequence"] for row in rows_of(real, server.table)] == [cut.sequence - 1, cut.sequence]
    assert other.cut().sequence == cut.sequence + 1


def test_of_many_servers_that_publish_at_once_one_does(real: RealRig, table: TableRow):
    servers = [server_of(real, table).look() for _ in range(6)]
    gate = threading.Barrier(len(servers))

    def publish(server: Server) -> Cut | None:
        draft = server.draft()
        gate.wait(60)
        try:
            return server.publish(draft)
        except CutOvertaken:
            return None

    with ThreadPoolExecutor(len(servers)) as pool:
        made = [cut for cut in pool.map(publish, servers) if cut is not None]
    assert len(made) == 1 == len(rows_of(real, table))


def test_a_maker_whose_lease_is_over_or_old_does_not_publish(server: Server, real: RealRig):
    server.look(lease=MINUTE)
    later(real, server.table, MINUTE)
    with pytest.raises(LeaseEnded, match="is over, or older than two minutes"):
        server.publish()

    server.look(lease=HOUR)
    later(real, server.table, timedelta(seconds=90))
    server.publish()
    server.look(lease=HOUR)
    later(real, server.table, timedelta(minutes=2, seconds=1))
    with pytest.raises(LeaseEnded):
        server.publish()
    with pytest.raises(LeaseEnded):
        server.look().publish(lease_id=str(uuid.uuid4()))


def test_a_look_shows_all_that_was_there_when_its_lease_was_born(table: TableRow, real: RealRig):
    """The rows of a statement are those of when it was bound, and it may be executed later."""
    took = "harness.lease_take(gen_random_uuid(), {of}, 1, '{{}}', 'look', '1 minute')"
    seen = "(SELECT buffer_hi FROM harness.ingest_positions WHERE table_id = {of})"
    with psycopg.connect(real.dsn) as reader:
        reader.execute(f"DECLARE look CURSOR FOR SELECT {seen}, {took}".format(of=table.table_id))
        real.ingest(table, {0: (9, 12)})
        [there] = real.ask("SELECT clock_timestamp() AS at")
        found = reader.execute("FETCH look").fetchone()
        assert found is not None and found[0] == 9
        its_lease = "SELECT born, until FROM harness.leases WHERE table_id = %s AND holder = 'look'"
        row = reader.execute(its_lease, [table.table_id]).fetchone()
        assert row is not None and row[0] < there["at"] < row[1] - MINUTE, "it lasts as long as was asked for"


def test_a_lease_on_another_version_or_table_is_none(server: Server, real: RealRig):
    server.look()
    real.move(server.table, {0: 5}, {0: 9})
    state = real.leases.look(server.table, holder="other", lease=HOUR)
    with pytest.raises(LeaseEnded):
        server.publish(lease_id=state.lease_id)
    beside = real.table(partitions=1)
    with pytest.raises(LeaseEnded):
        server.publish(lease_id=real.leases.look(beside, holder="other", lease=HOUR).lease_id)


def test_no_partition_ends_earlier_than_in_the_last_cut(server: Server, other: Server, real: RealRig):
    other.look()
    real.ingest(server.table, {0: (9, 12)})
    server.cut()
    other.newest = server.look().newest

    with pytest.raises(CutOvertaken, match="partition 0 ends at offset 9, that of the last cut at 12"):
        other.publish()
    for bounds in ({}, {0: (0, 0, 5, 11)}):
        with pytest.raises(CutOvertaken, match="partition 0 ends at offset"):
            server.publish(server.draft(bounds=bounds))


def test_no_version_is_older_than_that_of_the_last_cut(server: Server, other: Server, real: RealRig):
    other.look()
    real.move(server.table, {0: 5}, {0: 9})
    server.cut()
    other.newest = server.look().newest
    with pytest.raises(CutOvertaken, match="the newest cut is of version 3, this one of version 2"):
        other.publish()


def test_what_is_merged_may_fall_with_a_new_version(server: Server, real: RealRig):
    """A keyed table is served as merged, which a revert lowers."""
    server.look()
    server.publish(server.draft(bounds={0: (0, 9, 9, 9)}))
    fallen = {0: (0, 5, 5, 5)}
    with pytest.raises(CutOvertaken, match="ends at offset 5"):
        server.look().publish(server.draft(bounds=fallen))
    real.move(server.table, {0: 5}, {0: 9})
    with pytest.raises(CutOvertaken, match="ends at offset 8"):
        server.look().publish(server.draft(bounds={0: (0, 5, 5, 8)}))
    assert server.look().publish(server.draft(bounds=fallen)).bounds == fallen


def test_a_version_that_is_not_retained_is_not_published(server: Server, real: RealRig):
    server.look()
    real.ask("UPDATE harness.tables SET retained_from = 3 WHERE table_id = %s", [server.table.table_id])
    with pytest.raises(CutOvertaken, match="version 2 is not retained"):
        server.publish()


def test_a_cut_waits_for_expire_and_sees_what_it_decided(server: Server, real: RealRig):
    server.look()

    def expire(connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(1752330865, %s)", [server.table.table_id])
        connection.execute("DELETE FROM harness.leases WHERE table_id = %s", [server.table.table_id])

    [refused] = waits(real, server.publish, hold=expire)
    assert isinstance(refused, LeaseEnded)


# -- serving ------------------------------------------------------------------------------------------------


def test_serving_moves_the_end_at_most_once_a_second(server: Server, real: RealRig):
    cut = server.cut()
    server.cuts.serve(cut, keep=KEEP + timedelta(seconds=0.5))
    assert server.cuts.newest(server.table)[0] == cut, "within a second of what is promised"
    later(real, server.table, timedelta(seconds=2))
    server.cuts.serve(cut, keep=HOUR)
    served, now, _ = server.cuts.newest(server.table)
    assert served is not None and HOUR - MINUTE < served.until - now <= HOUR
    later(real, server.table, timedelta(seconds=2))
    server.cuts.serve(cut, keep=MINUTE)
    again, *_ = server.cuts.newest(server.table)
    assert again is not None and again.until == served.until - timedelta(seconds=2), "another one promised more"


def test_a_longer_promise_counts_though_another_server_has_just_served_the_cut(server: Server, other: Server):
    cut = server.cut(keep=MINUTE)
    server.cuts.serve(cut, keep=5 * MINUTE)
    other.cuts.serve(cut, keep=HOUR)
    server.cuts.serve(cut, keep=MINUTE)
    served, now, _ = server.cuts.newest(server.table)
    assert served is not None and HOUR - MINUTE < served.until - now <= HOUR
    assert cut.looked_at < served.published_at == cut.published_at < served.served_at
    assert served.looked_at == cut.looked_at


def test_a_clock_that_is_set_back_leaves_the_next_cut_its_numbers(server: Server, real: RealRig):
    """Its time follows on that of the last cut, however far in the future that is, and by no more than a step."""
    server.cut()
    ahead = "UPDATE harness.cuts SET timestamp_ms = %s, looked_at = looked_at + %s WHERE table_id = %s"
    [now] = real.ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms")
    last = now["ms"] + 3_600_000
    real.ask(ahead, [last, HOUR, server.table.table_id])
    server.look()
    with pytest.raises(CutRejected, match="do not follow"):
        server.publish(server.draft(timestamp_ms=last + 2))
    assert server.publish(server.draft(timestamp_ms=last + 1)).timestamp_ms == last + 1


def test_a_cut_whose_time_has_ended_is_not_served_again(server: Server, real: RealRig):
    cut = server.cut(keep=MINUTE)
    later(real, server.table, MINUTE)
    with pytest.raises(CutOvertaken, match="has ended"):
        server.cuts.serve(cut, keep=HOUR)
    with pytest.raises(CutOvertaken):
        server.cuts.serve(replace(cut, sequence=cut.sequence + 1), keep=HOUR)


def test_no_cut_is_kept_for_longer_than_a_day_after_the_next_one(server: Server, real: RealRig):
    first = server.cut(keep=3 * DAY)
    assert first.until - first.served_at == DAY
    server.cut()
    later(real, server.table, timedelta(hours=5))
    server.cuts.serve(first, keep=DAY)
    [row] = real.ask(
        "SELECT until - replaced_at AS stays FROM harness.cuts WHERE snapshot_id = %s", [first.snapshot_id]
    )
    assert DAY - timedelta(seconds=1) <= row["stays"] <= DAY


# -- cuts whose time has ended ------------------------------------------------------------------------------


def test_the_cut_after_one_that_is_over_goes_on_from_its_numbers_and_nothing_else(server: Server, real: RealRig):
    first = server.cut()
    late = server.look().draft()
    later(real, server.table, KEEP)

    over, now, _ = server.cuts.newest(server.table)
    assert over is not None and over.is_over
    assert (over.chunks, over.parts, over.files, over.metadata) == ((), {}, (), "")
    assert over.sequence > first.sequence and over.sequence >= int(now.timestamp() * 1000) - MILLISECONDS
    assert (over.timestamp_ms, over.version, over.bounds) == (first.timestamp_ms, first.version, first.bounds)

    server.look()
    with pytest.raises(CutOvertaken, match="this one was made after"):
        server.publish(late, previous=first.sequence)  # it may name chunks that are gone
    assert server.publish().sequence == server.newest.sequence + 1  # type: ignore[union-attr]


def test_the_same_state_is_the_same_cut_again_when_the_first_is_over(server: Server, real: RealRig):
    first = server.cut()
    same = server.look().draft(snapshot_id=first.snapshot_id)
    with pytest.raises(CutOvertaken, match="is there already"):
        server.publish(same)
    later(real, server.table, KEEP)
    again = server.look().publish(server.draft(snapshot_id=first.snapshot_id))
    assert [row["sequence"] for row in rows_of(real, server.table)] == [again.sequence]


def test_expire_forgets_cuts_whose_time_has_ended_but_for_the_numbers_of_the_last(server: Server, real: RealRig):
    first, second = server.cut(keep=MINUTE), server.cut(keep=HOUR)
    later(real, server.table, MINUTE)
    trim(real, server.table)
    assert [row["sequence"] for row in rows_of(real, server.table)] == [second.sequence]
    assert first.sequence < second.sequence
    later(real, server.table, HOUR)
    trim(real, server.table)
    [row] = rows_of(real, server.table)
    assert (row["sequence"], row["files"], row["chunks"], row["parts"]) == (second.sequence, [], [], {})
    assert server.cut().sequence > second.sequence


def test_a_ledger_of_another_history_counts_on_from_the_clock(server: Server, real: RealRig):
    """A ledger that was restored gives no number again that it may have given after the backup."""
    cut = server.cut()
    real.ask("UPDATE harness.cuts SET history = 'another/1' WHERE table_id = %s", [server.table.table_id])
    with pytest.raises(CutOvertaken):
        server.cuts.serve(cut, keep=HOUR)
    newest, now, _ = server.cuts.newest(server.table)
    assert newest is not None and newest.is_over and newest.sequence >= int(now.timestamp() * 1000) - MILLISECONDS
    made = server.look().publish(server.draft(snapshot_id=cut.snapshot_id, bounds={0: (0, 0, 5, 8)}))
    assert made.sequence > newest.sequence, "of what the table had then nothing is asked"


def test_only_the_last_cut_keeps_what_the_next_one_names_again(server: Server, real: RealRig):
    server.cut(), server.cut()
    assert [(bool(row["chunks"]), bool(row["parts"])) for row in rows_of(real, server.table)] == [
        (False, False),
        (True, True),
    ]


def test_no_more_than_ten_thousand_cuts_are_alive(server: Server, real: RealRig):
    server.cut()
    fill = (
        "INSERT INTO harness.cuts (table_id, sequence, snapshot_id, timestamp_ms, version, schema_version, bounds,"
        " metadata, chunks, parts, files, number, served_at, until)"
        " SELECT table_id, sequence + n, snapshot_id + n, timestamp_ms + n, version, 1, bounds,"
        " metadata, '[]', '{}', files, number + n, served_at, until - n * %(apart)s::interval"
        " FROM harness.cuts, generate_series(1, 9999) n WHERE table_id = %(table_id)s"
    )
    key = {"table_id": server.table.table_id}
    real.ask(fill, {**key, "apart": timedelta()})
    with pytest.raises(CutsFull, match="10000 cuts are alive"):
        server.cut()
    real.ask("UPDATE harness.cuts SET until = served_at WHERE table_id = %(table_id)s AND number BETWEEN 2 AND 9", key)
    server.cut()
    assert len(rows_of(real, server.table)) == 9993, "those that are over went, though expire has not run"


# -- a reader's login ---------------------------------------------------------------------------------------


@pytest.fixture
def login(real: RealRig) -> Iterator[Callable[[str], psycopg.Connection[Any]]]:
    opened: list[psycopg.Connection[Any]] = []

    def make(role: str) -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(session_dsn(real.dsn, role=role), autocommit=True))
        return opened[-1]

    yield make
    for connection in opened:
        connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO harness.cut_folders VALUES (1, 'file:///')",
        "UPDATE harness.cuts SET until = 'infinity'",
        "DELETE FROM harness.cuts",
        "INSERT INTO harness.cuts SELECT * FROM harness.cuts",
        "SELECT harness.token_create('a', 'b', '{}', NULL)",
        "SELECT harness.token_revoke('a')",
        "SELECT hash FROM harness.tokens",
        "SELECT name FROM harness.tokens",
    ],
)
def test_a_reader_changes_cuts_by_the_functions_alone(login: Callable[[str], Any], statement: str):
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        login(READER).execute(statement)


OUTSIDE = (
    "{beside}/data/x.parquet",
    "{folder}/../other/data/x.parquet",
    "{folder}/data/../../x.parquet",
    "{folder}/data/./x.parquet",
    "{folder}//x.parquet",
    "{folder}/data/",
    "{folder}/refused/x.parquet",
    "{folder}/data/below/x.parquet",
    "{folder}",
    "{folder}x/data/x.parquet",
    "{folder}/data/x y.parquet",
    "{folder}/data/x%2e%2e.parquet",
    "{folder}/data/..",
    "{folder}/data/x\n.parquet",
    "file:///etc/passwd",
    "",
)


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_cut_names_only_files_of_its_own_folder(server: Server, real: RealRig, path: str):
    draft = server.look().draft()
    beside = draft.files[0].partition("__fresh-")[0]
    wrong = path.format(folder=server.folder, beside=beside)
    with pytest.raises(CutRejected, match="in no folder for cuts of this table"):
        server.publish(replace(draft, files=(*draft.files, wrong)))
    assert rows_of(real, server.table) == []


def test_a_cut_names_no_file_of_the_cuts_of_another_table(server: Server, real: RealRig):
    beside = server_of(real, real.table(partitions=1)).look()
    draft = server.look().draft()
    with pytest.raises(CutRejected, match="in no folder for cuts"):
        server.publish(replace(draft, files=(*draft.files, f"{beside.folder}/data/x.parquet")))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sequence": 0}, "is no chunk"),  # it cannot be older than its chunk
        ({"sequence": 2**62}, "do not follow"),
        ({"timestamp_ms": 2**53}, "do not follow"),
        ({"timestamp_ms": -1}, "of another kind"),
        ({"snapshot_id": -1}, "of another kind"),
        ({"metadata": "file:///elsewhere"}, "not among the files"),
        ({"bounds": {0: (0, 0, 5, 10)}}, "end above what is ingested"),
        ({"bounds": {0: (0, 6, 5, 9)}}, "are no bounds"),
        ({"bounds": {7: (0, 0, 0, 0)}}, "are no bounds"),
        ({"bounds": {0: (0, 0, 5)}}, "are no bounds"),
        ({"bounds": {0: (-5, 0, 5, 9)}}, "are no bounds"),
        ({"parts": {str(n): "x" * 1000 for n in range(2000)}}, "bytes of parts, and the ledger takes 1,048,576"),
    ],
)
def test_values_that_no_server_writes_are_refused(server: Server, real: RealRig, changes: dict[str, Any], match: str):
    draft = server.look().draft()
    if "parts" in changes:
        part = next(iter(draft.parts.values()))
        changes = {"parts": {name: replace(part, manifests=text) for name, text in changes["parts"].items()}}
    with pytest.raises((CutRejected, CutOvertaken, CutImpossible), match=match):
        server.publish(replace(draft, **changes))
    assert rows_of(real, server.table) == []


def test_a_cut_is_not_published_in_a_snapshot_that_is_older_than_the_locks(
    server: Server, real: RealRig, monkeypatch: pytest.MonkeyPatch
):
    server.look()
    reading = Database(real.dsn, role=READER, size=1)
    try:
        with reading.session() as connection:
            connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.commit()
        server.cuts = Cuts(reading)
        with pytest.raises(CutRejected, match="READ COMMITTED"):
            server.publish()
    finally:
        reading.close()


def test_a_lease_of_another_login_publishes_nothing(server: Server, real: RealRig):
    server.look()
    real.ask("UPDATE harness.leases SET taken_by = 'somebody' WHERE table_id = %s", [server.table.table_id])
    with pytest.raises(LeaseEnded):
        server.publish()


# -- the folder ---------------------------------------------------------------------------------------------


def test_the_folder_is_known_before_a_file_is_in_it(server: Server, real: RealRig):
    server.look()
    found = real.ask("SELECT folder FROM harness.cut_folders WHERE table_id = %s", [server.table.table_id])
    assert [row["folder"] for row in found] == [server.folder]
    assert is_cut_folder(server.folder)
    server.look()
    assert len(real.ask("SELECT * FROM harness.cut_folders WHERE table_id = %s", [server.table.table_id])) == 1


@pytest.mark.parametrize(
    "metadata",
    [
        "file:///lake/ns/t__stream-0123abcd/metadata/00001-x.metadata.json",
        "s3://bucket/a/metadata/t-0123abcd/metadata/v1.metadata.json",
        "file:/lake/ns/té st/metadata/x.json",
        "file:///nowhere/x",
    ],
)
def test_the_ledger_and_the_lake_name_the_same_folder(real: RealRig, metadata: str):
    [row] = real.ask("SELECT harness.cut_folder('orders', %s) AS folder", [metadata])
    assert row["folder"] == cut_folder("orders", metadata)


def test_chunks_in_a_folder_from_before_the_view_moved_are_named_again(server: Server, real: RealRig):
    first = server.cut()
    real.ask(
        "UPDATE harness.versions SET stream_metadata = replace(stream_metadata, '/nowhere/', '/elsewhere/') "
        "WHERE table_id = %s",
        [server.table.table_id],
    )
    draft = server.look().draft()
    assert draft.metadata.startswith("file:///elsewhere/")
    server.publish(replace(draft, files=(*draft.files, first.chunks[0].path)))


def test_a_table_of_an_earlier_harness_is_served_as_any(make_database: Callable[[], str]):
    dsn = make_database()
    migrate_before(46, dsn)
    old = (
        "INSERT INTO harness.versions (table_id, version, stream_metadata, stream_snapshot, schema_version, bounds, "
        "committed_at) SELECT table_id, 1, 'file:///lake/old/orders__stream-0123abcd/metadata/1.metadata.json', 1, 1, "
        "'{}', now() FROM harness.tables"
    )
    with psycopg.connect(dsn) as owner:
        owner.execute(OLD_TABLE, ["orders", "{}"])
        owner.execute(old)
    assert migrate(dsn) == [name for number, name, _ in migrations.migrations() if number >= 46]
    readers = ledger_database(dsn, role=READER, size=1)
    try:
        known: Any = SimpleNamespace(table_id=1, name="old.orders")
        newest, *_ = Cuts(readers).newest(known)
        assert newest is not None and newest.is_over
        [row] = readers.rows("quarantine/place", {"table_id": 1})
    finally:
        readers.close()
    assert row["fresh"] == [cut_folder("orders", "file:///lake/old/orders__stream-0123abcd/metadata/1.metadata.json")]


# -- dropping -----------------------------------------------------------------------------------------------


def test_a_table_is_dropped_under_its_cuts(server: Server, real: RealRig):
    cut = server.cut()
    dropped = drop_table(real.database, server.table, catalog=CATALOG, dry_run=True)
    assert (dropped.cuts, dropped.fresh, dropped.to_json()["cuts"]) == (1, (server.folder,), 1)
    server.look()
    drop_table(real.database, server.table, catalog=CATALOG)
    real.made.remove(server.table)
    assert rows_of(real, server.table) == []
    with pytest.raises(CutOvertaken):
        server.cuts.serve(cut, keep=HOUR)
    with pytest.raises(TableUnknown, match="is not there any more"):
        server.publish()
    with pytest.raises(TableUnknown):
        server.cuts.newest(server.table)


def test_a_drop_and_a_publisher_do_not_block_each_other(server: Server, real: RealRig):
    """The drop has the table's row; the publisher has the trim lock, which the drop waits for."""
    draft = server.look().draft()

    def publishing(connection: Any) -> None:
        connection.execute("SELECT pg_advisory_xact_lock_shared(1752330865, %s)", [server.table.table_id])

    def dropped() -> None:
        drop_table(real.database, server.table, catalog=CATALOG)

    def published(connection: Any) -> None:
        publishing(connection)
        connection.execute("SELECT pg_advisory_xact_lock(1752330871, %s)", [server.table.table_id])

    assert waits(real, dropped, hold=published) == []
    real.made.remove(server.table)
    with pytest.raises(HarnessError):
        server.publish(draft)


def test_a_worker_may_do_what_a_reader_may(server: Server, real: RealRig):
    server.cuts = Cuts(real.database)
    server.cut()
    with psycopg.connect(session_dsn(real.dsn, role=WORKER)) as connection:
        assert connection.execute("SELECT count(*) FROM harness.cuts").fetchone() is not None
