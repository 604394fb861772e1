"""Named snapshots pin what there is at one instant, of their own tables alone; a moment is the version of then."""

from __future__ import annotations

import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.named_snapshots import (
    SnapshotExists,
    SnapshotInUse,
    Snapshots,
    SnapshotUnknown,
    version_named,
    versions_named,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_locks import waits
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

HELD_BY = "SELECT count(*) AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND granted"
WAITS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted"
OLDER = """
UPDATE harness.versions SET committed_at = committed_at - (4 - version) * interval '1 hour' WHERE table_id = %s
"""
CHANGED = "UPDATE harness.snapshot_tables SET version = 1, digest = 'of another' WHERE name = %s AND table_id = %s"


@pytest.fixture
def snapshots(real: RealRig) -> Snapshots:
    return Snapshots(real.database)


@pytest.fixture
def name() -> str:
    return f"s{uuid.uuid4().hex[:12]}"


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Versions 1 to 3, and records that no version knows yet."""
    return made(real, 10)


def made(real: RealRig, high: int) -> TableRow:
    table = real.table(partitions=1)
    real.ingest(table, {0: (0, high)})
    real.move(table, {0: 0}, {0: 1})
    real.move(table, {0: 1}, {0: 2})
    real.ingest(table, {0: (high, high + 1)})
    return table


def test_a_snapshot_pins_the_head_of_each_of_its_tables_with_what_is_buffered(
    real: RealRig, snapshots: Snapshots, table: TableRow, name: str
):
    other = made(real, 20)
    for one, tables in ((name, [table, other]), (f"{name}-2", [other])):
        taken = snapshots.create(one, tables)
        assert taken.name == one
        found = {(p.table, p.version, tuple(p.buffer_hi.items())) for p in taken.tables}
        highs = {table.name: 11, other.name: 21}
        assert found == {(t.name, 3, ((0, highs[t.name]),)) for t in tables}
    with real.database.session() as connection:
        assert [v.buffer_hi for v in versions_named(connection, table.table_id)] == [{0: 11}]
        assert [v.buffer_hi for v in versions_named(connection, other.table_id)] == [{0: 21}, {0: 21}]
        assert version_named(connection, other, name)[1][0].buffer_hi == 21
        assert version_named(connection, table, name)[1][0].buffer_hi == 11
        with pytest.raises(SnapshotUnknown):
            version_named(connection, table, f"{name}-2")
    snapshots.drop(f"{name}-2")
    assert {one.name for one in snapshots.all()} & {name, f"{name}-2"} == {name}
    snapshots.drop(name)


def test_a_name_is_given_once(snapshots: Snapshots, table: TableRow, name: str):
    was = snapshots.create(name, [table])
    with pytest.raises(SnapshotExists, match=f"there is a snapshot {name} already"):
        snapshots.create(name, [table])
    assert [one for one in snapshots.all() if one.name == name] == [was]
    snapshots.drop(name)


def test_snapshots_are_listed_oldest_first_with_their_tables_by_name_and_those_of_states_are_not(
    real: RealRig, snapshots: Snapshots, table: TableRow, name: str
):
    other = made(real, 20)
    names = [f"{name}-b", f"{name}-a", f"{name}-c"]
    for one in names:
        snapshots.create(one, [table, other])
    then = "UPDATE harness.snapshots SET created_at = %s WHERE name = ANY(%s)"
    real.ask(then, [real.ledger.head(table).committed_at, names[:2]])
    real.ask("INSERT INTO harness.snapshots (name) VALUES (%s)", [f"state:{name}:1"])
    found = [one for one in snapshots.all() if name in one.name]
    assert [one.name for one in found] == [f"{name}-a", f"{name}-b", f"{name}-c"]
    assert [[p.table for p in one.tables] for one in found] == [sorted([table.name, other.name])] * 3
    for one in names:
        snapshots.drop(one)


def test_what_somebody_changed_is_left_out_where_only_sound_ones_are_asked_for(
    real: RealRig, snapshots: Snapshots, table: TableRow, name: str
):
    sound = f"{name}-sound"
    for one in (name, sound):
        snapshots.create(one, [table])
    real.ask(CHANGED, [name, table.table_id])
    with real.database.session() as connection:
        assert [v.version for v in versions_named(connection, table.table_id)] == [1, 3]
        assert [v.version for v in versions_named(connection, table.table_id, sound=True)] == [3]
    for one in (name, sound):
        snapshots.drop(one)


def test_a_moment_is_the_version_that_was_committed_by_then(real: RealRig, table: TableRow):
    made(real, 20)  # of the same time
    real.ask(OLDER, [table.table_id])
    found = real.ask("SELECT committed_at FROM harness.versions WHERE table_id = %s ORDER BY version", [table.table_id])
    at: list[datetime] = [row["committed_at"] for row in found]

    def version(then: datetime) -> int:
        state = Leases(real.readers).look(table, holder="me", lease=MINUTE, at=then)
        real.leases.end(state.lease_id)
        return state.version.version

    assert [version(one) for one in at] == [1, 2, 3]
    assert version(at[1] - timedelta(microseconds=1)) == 1
    with pytest.raises(VersionGone, match="had no version yet"):
        version(at[0] - timedelta(microseconds=1))
    with pytest.raises(VersionGone, match="has not come yet"):  # it would have other rows by then
        version(datetime.now(UTC) + MINUTE)
    assert version(datetime.now(UTC)) == 3


def test_a_moment_has_the_version_whose_commit_stands_still_after_it_took_its_time(real: RealRig, table: TableRow):
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 2}, {0: 11})
    read: list[int] = []

    def look() -> None:
        then: datetime = real.ask("SELECT clock_timestamp() AS now")[0]["now"]

        def at() -> None:
            state = Leases(real.readers).look(table, holder="me", lease=MINUTE, at=then)
            real.leases.end(state.lease_id)
            read.append(state.version.version)

        readers.append(threading.Thread(target=at, daemon=True))
        readers[0].start()
        wait_until(lambda: bool(read) or bool(real.ask(WAITS, [table.table_id])), "it waits or has read")

    readers: list[threading.Thread] = []
    faults.arm("tier.in_transaction", look)
    try:
        published = real.publish(table, claim, move)
    finally:
        faults.disarm()
    readers[0].join(DEADLINE_S)
    assert read == [published.version]


def test_a_snapshot_is_dropped_though_another_one_is_read_and_who_reads_longest_is_named(
    real: RealRig, snapshots: Snapshots, table: TableRow, name: str
):
    free, other = f"{name}-free", made(real, 20)
    snapshots.create(name, [table])
    snapshots.create(free, [other])
    for holder, lease in (("short", MINUTE), ("long", HOUR), ("middle", 30 * MINUTE)):
        Leases(real.readers).look(table, holder=holder, lease=lease, at=name)
    snapshots.drop(free)
    with pytest.raises(SnapshotInUse, match=f"long reads {table.name} as of snapshot {name}"):
        snapshots.drop(name)
    real.ask("DELETE FROM harness.leases WHERE table_id = %s", [table.table_id])
    snapshots.drop(name)


def test_a_drop_takes_the_locks_of_its_tables_alone_and_the_lower_table_first(
    real: RealRig, snapshots: Snapshots, table: TableRow, name: str
):
    """Two acts on the same tables would wait for each other."""
    second, other = made(real, 20), made(real, 30)
    snapshots.create(name, [second, table])
    snapshots.create(f"{name}-other", [other])
    locked: list[int] = []

    def look() -> None:
        with real.database.session() as connection:
            locked.extend(connection.execute(HELD_BY, [t.table_id]).fetchall()[0]["n"] for t in (second, other))

    def hold(connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(1752330865, %s)", [table.table_id])

    assert waits(real, lambda: snapshots.drop(name), hold=hold, meanwhile=look) == []
    assert locked == [0, 0]
    snapshots.create(name, [second])
    with real.owner.transaction() as connection:
        hold(connection)
        snapshots.drop(name)
    snapshots.drop(f"{name}-other")
