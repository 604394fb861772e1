"""Attempts that come late, readers of what is being removed, and disks that are full."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql as compose

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import LeaseEnded
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveClosed
from harness_pipelines.read.union import read_arrow
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, TIER, TableRig, await_trouble, running

from .conftest import MakeRig

DISK_BYTES = 2_000_000


@pytest.mark.usefixtures("by_spark")
def test_a_spark_job_that_outlives_its_driver_is_closed_out_by_the_second_attempt(rig: TableRig):
    rig.produce(30)
    rig.ingest()
    stores, table = rig.stores, rig.table.row
    first_claim = rig.claim(Stage.TIER)
    first = tier.plan(stores, table, first_claim, trigger="test", run_id=None)
    assert first is not None
    staged = tier.stage(stores, table, first)
    stores.ledger.release(first_claim)  # the driver is gone; its Spark job is not
    second_claim = rig.claim(Stage.TIER)
    second = stores.ledger.take_attempt(second_claim, first, run_id=None)
    published = tier.publish(stores, table, second_claim, second, tier.stage(stores, table, second))
    rig.assert_exact()
    with pytest.raises(MoveClosed, match=rf"move {first.move_id}"):
        tier.publish(stores, table, first_claim, first, staged)
    # The job itself writes once more, to a branch that nobody reads.
    segments = [s.ref for s in stores.segments.all(table)]
    stores.lake.make_branch(table, first, rig.table.versions()[0].stream)
    stores.engine.write_segments(table, first, segments, rows=staged.staged.rows)
    with pytest.raises(MoveClosed, match=rf"move {first.move_id}"):
        tier.publish(stores, table, first_claim, first, tier.stage(stores, table, first))
    rig.assert_exact()
    assert rig.table.versions()[-1] == published
    stores.ledger.release(second_claim)
    rig.produce(10)
    rig.ingest()
    rig.tier()
    rig.assert_exact()


def test_a_holder_that_slept_while_another_one_planned_plans_nothing(rig: TableRig):
    rig.produce(5)
    rig.ingest()
    stores, table = rig.stores, rig.table.row
    claim = rig.claim(Stage.TIER)
    first = tier.plan(stores, table, claim, trigger="test", run_id=None)
    with pytest.raises(MoveClosed, match=r"tier of table \d+ has an open move.*nothing was planned"):
        tier.plan(stores, table, claim, trigger="test", run_id=None)
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) == first
    stores.ledger.release(claim)
    rig.tier()
    rig.assert_exact()


def test_a_segment_waits_for_the_readers_that_began_before_it_was_retired(make_rig: MakeRig, harness: hp.Harness):
    rig = make_rig(partitions=1, retention={"versions": "1s", "grace": "1s"})
    rig.produce(30)
    rig.ingest()
    stores, table = rig.stores, rig.table.row
    plan = rig.table.plan(lease=timedelta(minutes=10))
    frame = rig.table.to_spark(stores.spark(), columns=["id", *COORDINATES], lease_s=600)
    truth = rig.truth.total()

    def check() -> None:
        stores.leases.renew(plan.lease_id, lease=timedelta(minutes=10))

    rig.tier()
    stores.segments.rotate(table)
    claim = rig.claim(Stage.EXPIRE)

    def retired() -> list[str]:
        stores.upkeep.trim(table, claim)
        return [s.name for s in stores.segments.all(table) if s.state == "retired"]

    since = stores.database.rows("reads/now")[0]["now"]
    wait_until(
        lambda: stores.database.rows("reads/now")[0]["now"] > since + timedelta(seconds=1.5), "the grace is over"
    )
    assert retired() == []
    assert read_arrow(plan, stores, columns=["id"], check_lease=check).rows.num_rows == truth
    assert frame.count() == truth
    rig.table.release(plan)
    assert retired() == []  # the frame's lease still holds it
    with psycopg.connect(stores.dsn) as owner:  # a lease belongs to the login that took it
        owner.execute("DELETE FROM harness.leases WHERE table_id = %s", [table.table_id])
    wait_until(lambda: retired() != [], "the segment is retired")
    with pytest.raises(LeaseEnded, match=rf"lease {plan.lease_id} .*has ended.*nothing is returned"):
        read_arrow(plan, stores, columns=["id"], check_lease=check)
    with pytest.raises(Exception, match=r"lease [0-9a-f-]{36} of this read"):
        frame.count()
    assert stores.upkeep.drop_retired(table, retired_for=timedelta(0))
    with pytest.raises((LeaseEnded, SegmentMissing), match=r"lease.*has ended"):
        read_arrow(plan, stores, columns=["id"], check_lease=check)
    with pytest.raises(Exception, match=r"lease [0-9a-f-]{36} of this read"):
        frame.count()
    rig.assert_exact()


def test_a_segment_that_somebody_still_reads_by_hand_is_left_for_the_next_run(make_rig: MakeRig):
    rig = make_rig(partitions=1, retention={"versions": "1s", "grace": "1s"})
    rig.produce(5)
    rig.ingest()
    rig.tier()
    stores, table = rig.stores, rig.table.row
    stores.segments.rotate(table)
    claim = rig.claim(Stage.EXPIRE)
    wait_until(lambda: bool(stores.upkeep.trim(table, claim).retire), "the segment is retired")
    [name] = [s.name for s in stores.segments.all(table) if s.state == "retired"]
    with stores.database.session() as reader:
        reader.execute(compose.SQL("SELECT count(*) FROM harness_buffer.{}").format(compose.Identifier(name)))
        assert stores.upkeep.drop_retired(table, retired_for=timedelta(0)) == []
        reader.rollback()
    assert stores.upkeep.drop_retired(table, retired_for=timedelta(0)) == [name]
    rig.assert_exact()


def test_a_spark_session_that_was_stopped_is_opened_again(settings: Settings, kafka: KafkaRig) -> None:
    with hp.connect(settings) as harness:
        rig = TableRig(harness, kafka)
        rig.produce(10)
        rig.ingest()
        harness.stores.spark().stop()  # a program that shares the session with us may do so
        rig.tier()
        assert set(rig.status().values()) == {(10, 10)}
        rig.assert_exact()


@pytest.mark.usefixtures("by_spark")
def test_a_spark_session_that_ended_is_trouble_once_and_the_next_attempt_has_its_own(settings: Settings, kafka):
    with hp.connect(settings) as harness:
        rig = TableRig(harness, kafka)
        rig.produce(10)
        rig.ingest()
        with harness.stores.spark_sessions.working() as found:
            session: Any = found
            session.client.release_session()  # as after a restart of the server: only the server knows
        rig.tier()
        assert set(rig.status().values()) == {(10, 10)}
        [move] = [m for m in harness.stores.ledger.moves(rig.table.row) if m["stage"] == "tier"]
        assert (move["state"], move["attempt"], move["failures"]) == ("COMMITTED", 2, 0)
        rig.assert_exact()


REMEMBERED = 100  #: sessions by an executor, unless `spark.executor.isolatedSessionCache.size` says otherwise


@pytest.mark.long
def test_a_spark_session_that_executors_forgot_still_runs_python(settings: Settings, kafka: KafkaRig) -> None:
    """They remove its folder, in which its Python daemon still stands; so they do after half an hour without a task."""
    with hp.connect(settings) as harness:
        rig = TableRig(harness, kafka, buffer="none")
        kafka.produce(rig.topic, 0, rig.values(10))
        rig.tier()  # by one Python worker
        for _ in range(REMEMBERED + 1):
            other = open_spark(replace(settings, warehouse=None))
            other.range(0, 1, 1, 1).collect()
            other.stop()
        rig.produce(10)
        rig.tier()  # by two at once: one of them is new and imports what it needs
        assert rig.status() == {0: (20, 20), 1: (10, 10)}
        rig.assert_exact()


# -- spellings of the warehouse -----------------------------------------------------------------------------


@pytest.mark.folder("a location on a store has one spelling: others are refused")
@pytest.mark.parametrize("spelling", ["file:{}//x/./lake//", "{}/x/../x/Müller's lake", "file://localhost{}/link/lake"])
def test_expire_leaves_what_spark_wrote_alone_however_the_warehouse_is_spelled(
    make_rig: MakeRig, settings: Settings, tmp_path: Path, spelling: str
):
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "x")
    spec = {"views": "both", "layout": {"columns": ["n"]}, "retention": {"versions": "1s", "grace": "1s"}}
    with hp.connect(replace(settings, warehouse=spelling.format(tmp_path))) as spelled:
        rig = make_rig(over=spelled, **spec)
        for _ in range(2):
            rig.produce(10)
            rig.ingest()
            rig.tier()
            rig.worker(frozenset({Stage.OTREE}), until_idle=True).run()
        claim = rig.claim(Stage.EXPIRE)
        for path in tmp_path.rglob("*"):
            os.utime(path, (0, 0))
        expire_once(spelled.stores, rig.table.row, claim)
        with spelled.stores.database.session() as connection:
            key = [rig.table.row.table_id]
            connection.execute(
                "UPDATE harness.condemned_files SET since = since - interval '1 d' WHERE table_id = %s", key
            )
        deleted = expire_once(spelled.stores, rig.table.row, claim, remove_large=True).deleted

        assert deleted, "staging and old versions leave files"
        rig.assert_exact()
        assert not fsck(spelled.stores, [rig.name]).broken


# -- a full disk --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk of two megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "harness-test", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Take all of a disk but *leave* bytes; remove what is returned to have it back."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 4096)
            except OSError:
                break
        file.truncate(max(file.tell() - leave, 0))
    return ballast


@pytest.mark.folder("a store has no disk of ours that could be full")
@pytest.mark.parametrize("leave", [0, 16_384], ids=["for the harness's own files", "for Spark's files"])
def test_a_full_disk_is_named_and_everything_arrives_once_there_is_room(
    make_rig: MakeRig, settings: Settings, small_disk: Path, leave: int
):
    with hp.connect(replace(settings, warehouse=f"file://{small_disk}")) as cramped:
        rig = make_rig(over=cramped, partitions=1)
        rig.produce(3_000)
        rig.ingest()
        ballast = fill(small_disk, leave=leave)
        worker = Worker(cramped.stores, [rig.table.row], WorkerOptions(stages=TIER, until_idle=True))
        with running(worker):
            said = await_trouble(worker, Stage.TIER)
            assert re.search(rf"{rig.name}.*No space left on device.*nothing was published", said, re.S), said
            rig.assert_exact()
            ballast.unlink()
            wait_until(lambda: rig.status() == {0: (3_000, 3_000)}, "the rows are in the lake")
        rig.assert_exact()


def test_a_full_disk_of_a_service_is_trouble_and_never_a_defect(rig: TableRig, monkeypatch: pytest.MonkeyPatch):
    """What the harness writes itself, refused by the file system: needs no mount."""
    from pyiceberg.io.pyarrow import PyArrowFile

    rig.produce(10)
    rig.ingest()
    create = PyArrowFile.create

    def refuse(self, overwrite=False):
        raise OSError(28, "No space left on device", self.location)

    monkeypatch.setattr(PyArrowFile, "create", refuse)
    worker = rig.worker(TIER, until_idle=True)
    with running(worker):
        said = await_trouble(worker, Stage.TIER)
        monkeypatch.setattr(PyArrowFile, "create", create)
        wait_until(lambda: rig.status() == {0: (10, 10), 1: (10, 10)}, "the rows are in the lake")
    assert re.search(rf"{rig.name}.*No space left on device.*the next attempt follows", said), said
    assert issubclass(LeaseEnded, HarnessError)
    rig.assert_exact()
