"""`harness revert`: an old version's lake comes back as a new version, and no reader sees a record less or more."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql as compose

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.write.checks import ForeignFiles
from harness_pipelines.ledgers.postgres.boundary import CommitLost
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveClosed
from harness_pipelines.protocol.versions import ForeignCommit
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.table import expire
from harness_pipelines.stages.table.revert import plan_revert, revert_table
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.engines import with_spark
from harness_pipelines_tests.other_catalog import sql_catalog
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
from harness_pipelines_tests.rig import COORDINATES, TIER, Command, PostgresProxy, Row, TableRig

MakeRig = Callable[..., TableRig]
FORKS = multiprocessing.get_context("forkserver")


def moved(rig: TableRig, times: int, *, count: int = 20) -> list[Counter[Row]]:
    """Move *count* records per partition to the lake, *times* over; returns the truth after each."""
    truths = []
    for _ in range(times):
        rig.produce(count)
        rig.ingest()
        rig.tier()
        truths.append(rig.truth)
    return truths


def stream_hi(rig: TableRig) -> dict[int, int]:
    return {p: hi for p, (hi, _) in rig.status().items()}


def revert(rig: TableRig, to: int | None) -> int:
    return revert_table(rig.stores, rig.table.row, to=to).version


def ledger_rows(rig: TableRig, *, begun_reverts: bool = True) -> dict[str, Any]:
    """All that the database has of the table, and the catalog's pointer; on demand without reverts that died."""
    names = (
        "tables",
        "lake_positions",
        "versions",
        "claims",
        "moves",
        "leases",
        "outbox",
        "ingest_positions",
        "segments",
    )
    held: dict[str, Any] = {"pointer": rig.stores.ledger.pointer(rig.table.row, "stream")}
    with rig.stores.database.session() as connection:
        for name in names:
            statement = compose.SQL("SELECT r::text AS r FROM {} r WHERE table_id = %s ORDER BY 1").format(
                compose.Identifier("harness", name)
            )
            held[name] = [row["r"] for row in connection.execute(statement, [rig.table.row.table_id])]
    if not begun_reverts:
        held["moves"] = [row for row in held["moves"] if "the revert did not take effect" not in row]
    return held


@contextmanager
def always_exact(rig: TableRig) -> Iterator[None]:
    """While the block lasts a reader reads again and again; each read must be exactly the producer's log."""
    over, wrong, reads, truth = threading.Event(), list[str](), [0], rig.truth

    def read() -> None:
        while not over.is_set():
            if (found := rig.read()) != truth:
                wrong.append(f"read {reads[0]}: lost {(truth - found).total()}, too many {(found - truth).total()}")
            reads[0] += 1

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: reads[0] > 0, "the first read is done")
        yield
        before = reads[0]
        wait_until(lambda: reads[0] > before + 1 or not reader.is_alive(), "a read began after the act")
    finally:
        over.set()
        reader.join(DEADLINE_S)
    assert not wrong, wrong[:3]


@pytest.mark.parametrize("back", [pytest.param(1, marks=pytest.mark.long), 3])
def test_the_records_of_reverted_moves_are_read_from_the_buffer_and_moved_again(rig: TableRig, back: int) -> None:
    truths = moved(rig, 4)
    rig.produce(5)
    rig.ingest()

    made = revert(rig, to=5 - back)

    assert made == 6
    assert stream_hi(rig) == {0: 20 * (4 - back), 1: 20 * (4 - back)}
    assert {p: hi for p, (_, hi) in rig.status().items()} == {0: 85, 1: 85}
    rig.assert_exact()
    for version, truth in enumerate(truths[:-1], start=2):
        assert rig.read(at=version) - truth == Counter(), f"version {version} shows later records"
        assert truth - rig.read(at=version) == Counter(), f"version {version} lost records"
    rig.tier()
    assert stream_hi(rig) == {0: 85, 1: 85}
    rig.assert_exact()
    for version, truth in enumerate(truths[:-1], start=2):
        assert rig.read(at=version) == truth


def test_readers_see_the_same_records_before_during_and_after(rig: TableRig, harness: hp.Harness) -> None:
    moved(rig, 2)
    frame = rig.table.to_spark(harness.stores.spark(), columns=["id", *COORDINATES])
    with always_exact(rig):
        revert(rig, to=1)
        revert(rig, to=3)
        revert(rig, to=2)
        rig.tier()
    assert frame.count() == rig.truth.total()  # it was planned before all of it
    assert rig.table.to_spark(harness.stores.spark(), columns=["id"]).count() == rig.truth.total()


def test_a_revert_of_a_revert_brings_the_moves_back(rig: TableRig) -> None:
    moved(rig, 2)
    revert(rig, to=1)
    assert revert(rig, to=3) == 5
    assert stream_hi(rig) == {0: 40, 1: 40}
    rig.assert_exact()
    moved(rig, 1)
    rig.assert_exact()
    report = rig.table.audit()
    assert report.ok, report.to_json()


def test_the_head_may_be_reverted_to_itself(rig: TableRig) -> None:
    moved(rig, 1)
    assert revert(rig, to=None) == 3
    assert stream_hi(rig) == {0: 20, 1: 20}
    rig.assert_exact()
    moved(rig, 1)
    rig.assert_exact()


def test_a_late_attempt_publishes_nothing_and_the_next_worker_goes_on(rig: TableRig) -> None:
    moved(rig, 1)
    rig.produce(10)
    rig.ingest()
    stores, table, claim = rig.stores, rig.table.row, rig.claim(Stage.TIER)
    move = tier.plan(stores, table, claim, trigger="test", run_id=None)
    assert move is not None
    attempt = tier.stage(stores, table, move)

    made = revert(rig, to=1)

    with pytest.raises(MoveClosed, match=f"move {move.move_id} is ABANDONED already; nothing was written"):
        tier.publish(stores, table, claim, move, attempt)
    assert stores.ledger.head(table).version == made
    rig.tier()
    assert stream_hi(rig) == {0: 30, 1: 30}
    rig.assert_exact()
    metadata = stores.lake.load(table, stores.ledger.pointer(table, "stream")).metadata
    assert set(metadata.refs) == {"main"}


def test_a_running_worker_goes_on_by_itself(make_rig: MakeRig) -> None:
    rig = make_rig(tier={"max_rows": 10, "max_age": "1s"})
    with rig.working(TIER | {Stage.INGEST}) as worker:
        for _ in range(3):
            rig.produce(20)
            wait_until(lambda: set(stream_hi(rig).values()) == {rig.truth.total() // 2}, "all is in the lake")
            with always_exact(rig):
                revert(rig, to=1)
        rig.produce(20)
        wait_until(lambda: stream_hi(rig) == {0: 80, 1: 80}, "all is in the lake again")
        rig.assert_exact()
        wait_until(lambda: not worker.progress[0].trouble, "no stage is in trouble")
    assert rig.harness.table(rig.name).row.stopped is None


def test_two_reverts_at_once_are_two_versions_one_after_the_other(rig: TableRig) -> None:
    moved(rig, 2)
    begin, made = threading.Barrier(2), dict[int, int]()

    def go(to: int) -> None:
        begin.wait(DEADLINE_S)
        made[to] = revert(rig, to=to)

    threads = [threading.Thread(target=go, args=(to,), daemon=True) for to in (1, 2)]
    with always_exact(rig):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert sorted(made.values()) == [4, 5]
    last = max(made, key=lambda to: made[to])
    assert set(stream_hi(rig).values()) == {0 if last == 1 else 20}
    rig.tier()
    rig.assert_exact()


def test_a_dry_run_changes_nothing(rig: TableRig, settings: Settings) -> None:
    moved(rig, 2)
    before = ledger_rows(rig)

    with Command(settings, "revert", rig.name, "--to", "2", "--dry-run", "--json") as command:
        code, said = command.await_end()

    assert code == 0, said
    shown = json.loads(said)
    assert {"head": 3, "to": 2, "floor": 1, "possible": True, "version": None}.items() <= shown.items()
    assert shown["back"] == {"0": [20, 40], "1": [20, 40]}
    assert ledger_rows(rig) == before


@pytest.mark.long
def test_the_command_reverts_only_when_told_to(rig: TableRig, settings: Settings) -> None:
    moved(rig, 2)
    with Command(settings, "revert", rig.name, "--to", "2") as command:
        code, said = command.await_end()
    assert code == 2, said
    assert "nothing was changed: add --yes to revert the table" in said
    assert stream_hi(rig) == {0: 40, 1: 40}
    with Command(settings, "revert", rig.name, "--to", "2", "--yes") as command:
        code, said = command.await_end()
    assert code == 0, said
    assert f"{rig.name} is at version 4: the lake of version 2" in said
    assert stream_hi(rig) == {0: 20, 1: 20}
    rig.assert_exact()


# -- what limits it -----------------------------------------------------------------------------------------


def expired(rig: TableRig) -> None:
    """Let expire do its work as long as it finds any."""
    claim = rig.claim(Stage.EXPIRE)
    expire.expire_once(rig.stores, rig.table.row, claim)
    rig.stores.ledger.release(claim)


def older(rig: TableRig, by: timedelta) -> None:
    """Make all versions, and what expire has condemned, older."""
    with psycopg.connect(rig.stores.dsn) as connection:
        for statement in (
            "UPDATE harness.versions SET committed_at = committed_at - %s WHERE table_id = %s",
            "UPDATE harness.condemned_files SET since = since - %s WHERE table_id = %s",
        ):
            connection.execute(statement, [by, rig.table.row.table_id])


def test_after_expire_a_revert_is_refused_and_the_floor_is_named(make_rig: MakeRig) -> None:
    rig = make_rig(retention={"versions": "10h", "grace": "1h"})
    moved(rig, 2)
    older(rig, timedelta(hours=2))
    moved(rig, 1)
    rig.stores.segments.rotate(rig.table.row)
    expired(rig)
    before = ledger_rows(rig)

    with pytest.raises(RevertRefused, match=r"the buffer limits it: .*only from offset 40 on.*can reach now is 3"):
        revert(rig, to=2)
    assert ledger_rows(rig) == before
    assert plan_revert(rig.stores, rig.table.row, to=3).limit is None
    revert(rig, to=3)
    expired(rig)
    rig.assert_exact()
    rig.tier()
    rig.assert_exact()


def test_files_of_reverted_moves_go_when_no_version_reaches_them_and_no_sooner(make_rig: MakeRig) -> None:
    rig = make_rig(partitions=1, retention={"versions": "1h", "grace": "10m", "snapshots": 1})
    [_, truth] = moved(rig, 2)
    revert(rig, to=1)
    expired(rig)
    assert rig.read(at=3) == truth
    rig.tier()
    older(rig, timedelta(hours=2))
    moved(rig, 1)
    for _ in range(2):
        expired(rig)
        older(rig, timedelta(hours=2))
        rig.assert_exact()
    with pytest.raises(hp.HarnessError, match="not retained"):
        rig.read(at=3)
    rig.assert_exact()


# -- deaths -------------------------------------------------------------------------------------------------


def revert_and_die(settings: Settings, name: str, point: str) -> None:
    """Revert to version 2, killed at *point*."""
    faults.arm_from({"HARNESS_FAULT": f"{point}=kill"})
    with hp.connect(settings) as harness:
        revert_table(harness.stores, harness.table(name).row, to=2)


@pytest.mark.parametrize("point", ["revert.before_lock", "revert.in_transaction", "revert.after_commit"])
def test_a_revert_that_died_has_happened_or_has_not(rig: TableRig, settings: Settings, point: str) -> None:
    moved(rig, 2)
    before = ledger_rows(rig)
    victim = FORKS.Process(target=revert_and_die, args=(settings, rig.name, point), daemon=True)
    victim.start()
    victim.join(DEADLINE_S)
    assert victim.exitcode == -signal.SIGKILL
    rig.assert_exact()
    if point == "revert.after_commit":
        assert stream_hi(rig) == {0: 20, 1: 20}
    else:
        wait_until(lambda: ledger_rows(rig, begun_reverts=False) == before, "Postgres has rolled it back")
        with hp.connect(settings) as another:  # the files that it left name a move that the ledger knows
            another.stores.guard.check(rig.table.row, another.stores.ledger)
        revert(rig, to=2)
    rig.tier()
    assert stream_hi(rig) == {0: 40, 1: 40}
    rig.assert_exact()


@pytest.mark.parametrize("forwards", [True, False])
def test_a_lost_answer_of_commit_is_found_out(
    make_rig: MakeRig, settings: Settings, proxy: PostgresProxy, forwards: bool
) -> None:
    rig = make_rig()
    moved(rig, 2)
    with hp.connect(replace(settings, dsn=proxy.dsn)) as through:
        proxy.cut_commit_after(b"least(lease_until", forwards_commit=forwards)
        if forwards:
            assert revert_table(through.stores, rig.table.row, to=2).version == 4
        else:
            with pytest.raises(CommitLost, match="did not take effect: try again"):
                revert_table(through.stores, rig.table.row, to=2)
    assert proxy.cuts == 1
    assert stream_hi(rig) == ({0: 20, 1: 20} if forwards else {0: 40, 1: 40})
    rig.tier()
    rig.assert_exact()


# -- another writer -----------------------------------------------------------------------------------------


def append_with_pyiceberg(rig: TableRig) -> None:
    """What somebody does who has the catalog's address: append rows above all that the table has."""
    foreign = sql_catalog(rig.stores.catalog.name, dsn=rig.stores.dsn, warehouse=rig.stores.warehouse)
    view = foreign.load_table((rig.table.spec.namespace, rig.table.row.tiered_view))
    rows = view.scan(row_filter="_kafka_offset < 3").to_arrow()
    offsets = pa.array([o + 1000 for o in rows["_kafka_offset"].to_pylist()], pa.int64())
    at = rows.schema.get_field_index("_kafka_offset")
    view.append(rows.set_column(at, rows.schema.field(at), offsets))
    foreign.close()


def append_with_spark(rig: TableRig) -> None:
    """The same from Spark, with rows that the table has already."""
    spark = rig.stores.spark()
    name = f"{rig.stores.settings.catalog_name}.{rig.table.spec.namespace}.{rig.table.row.tiered_view}"
    spark.catalog.refreshTable(name)
    spark.sql(f"INSERT INTO {name} SELECT * FROM {name} WHERE _kafka_offset < 3").collect()


def delete_with_spark(rig: TableRig) -> None:
    spark = rig.stores.spark()
    name = f"{rig.stores.settings.catalog_name}.{rig.table.spec.namespace}.{rig.table.row.tiered_view}"
    spark.catalog.refreshTable(name)
    spark.sql(f"DELETE FROM {name} WHERE _kafka_offset < 3").collect()


def alter_with_spark(rig: TableRig) -> None:
    """Not only rows: a column more, and a property that lets others remove files."""
    append_with_spark(rig)
    spark = rig.stores.spark()
    name = f"{rig.stores.settings.catalog_name}.{rig.table.spec.namespace}.{rig.table.row.tiered_view}"
    spark.sql(f"ALTER TABLE {name} ADD COLUMN strange STRING").collect()
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('gc.enabled' = 'true', 'of' = 'somebody')").collect()


def recreate_with_pyiceberg(rig: TableRig) -> None:
    """Another table under the view's name."""
    foreign = sql_catalog(rig.stores.catalog.name, dsn=rig.stores.dsn, warehouse=rig.stores.warehouse)
    name = (rig.table.spec.namespace, rig.table.row.tiered_view)
    schema = foreign.load_table(name).schema()
    foreign.drop_table(name)
    foreign.create_table(name, schema)
    foreign.close()


def drop_with_pyiceberg(rig: TableRig) -> None:
    """The view leaves the catalog, its files stay."""
    foreign = sql_catalog(rig.stores.catalog.name, dsn=rig.stores.dsn, warehouse=rig.stores.warehouse)
    foreign.drop_table((rig.table.spec.namespace, rig.table.row.tiered_view))
    foreign.close()


def drop_with_spark(rig: TableRig) -> None:
    name = f"{rig.stores.settings.catalog_name}.{rig.table.spec.namespace}.{rig.table.row.tiered_view}"
    rig.stores.spark().sql(f"DROP TABLE {name}").collect()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(append_with_pyiceberg, marks=pytest.mark.long),
        append_with_spark,
        delete_with_spark,
        alter_with_spark,
        recreate_with_pyiceberg,
        pytest.param(drop_with_pyiceberg, marks=pytest.mark.long),
        drop_with_spark,
    ],
    ids=lambda write: write.__name__,
)
def test_after_a_foreign_commit_the_table_stops_by_name_and_the_head_lets_it_go_on(
    rig: TableRig, write: Callable[[TableRig], None]
) -> None:
    moved(rig, 2)
    before = rig.stores.lake.load(rig.table.row, rig.stores.ledger.head(rig.table.row).stream.metadata).metadata
    write(rig)
    rig.assert_exact()  # readers read what the ledger published
    rig.produce(10)
    rig.ingest()

    with pytest.raises(
        (ForeignCommit, ForeignFiles, TableUnknown), match=r"Nothing was written.*`harness revert .* --to HEAD --yes`"
    ):
        rig.tier()
    assert "--to HEAD" in (rig.harness.table(rig.name).row.stopped or "")
    assert stream_hi(rig) == {0: 40, 1: 40}
    rig.assert_exact()

    revert(rig, to=None)
    assert rig.harness.table(rig.name).row.stopped is None
    rig.tier()
    assert stream_hi(rig) == {0: 50, 1: 50}
    rig.assert_exact()
    pointer = rig.stores.ledger.pointer(rig.table.row, "stream")
    after = rig.stores.lake.load(rig.table.row, pointer).metadata
    assert (after.table_uuid, after.current_schema_id, after.properties) == (
        before.table_uuid,
        before.current_schema_id,
        before.properties,
    )
    seen = with_spark(rig.stores.spark(), rig.stores.settings)(pointer, "true").to_pylist()
    assert Counter((r[COORDINATES[0]], r[COORDINATES[1]], r["id"]) for r in seen) == rig.truth
    report = rig.table.audit()
    assert report.ok, report.to_json()


# -- without a buffer ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_without_a_buffer_the_reverted_records_are_read_from_kafka_again(make_rig: MakeRig) -> None:
    rig = make_rig(buffer="none")
    for _ in range(2):
        rig.produce(20)
        rig.produce_misfit(b"{")
        rig.tier()
    truth = rig.truth
    assert rig.status() == {0: (42, 42), 1: (40, 40)}

    with always_exact(rig):
        revert(rig, to=2)

    assert rig.status() == {0: (21, 42), 1: (20, 40)}
    rig.assert_exact()
    assert rig.table.to_spark(rig.stores.spark(), columns=["id"]).count() == truth.total()
    rig.produce(5)
    rig.assert_exact()
    rig.tier()
    assert rig.status() == {0: (47, 47), 1: (45, 45)}
    rig.assert_exact()
    assert rig.read(at=3) == truth
    assert rig.read(at=4) == truth


def test_without_a_buffer_kafka_limits_a_revert(make_rig: MakeRig) -> None:
    rig = make_rig(buffer="none", partitions=1)
    for _ in range(2):
        rig.produce(20)
        rig.tier()
    rig.kafka.delete_records(rig.topic, 0, 21)

    with pytest.raises(RevertRefused, match=r"the tail limits it: \[20, 40\) of partition 0 .*only from offset 21 on"):
        revert(rig, to=2)
    assert rig.read().total() == 40
