"""What an attempt of Arrow leaves behind when its worker dies or sleeps: no reader sees it, and expire removes it.

Also moves that begin with one engine and end with the other.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from unittest import mock

import pytest
from pyiceberg.table import StaticTable

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.drivers.files import listed
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.lakes.iceberg.write import attempt_files
from harness_pipelines.ledgers.postgres import boundary
from harness_pipelines.ports import rows as rows_of
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.locations import normal
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests import lake_files
from harness_pipelines_tests.faults.matrix import TIMEOUTS
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TIER, TableRig, WorkerProcess, with_session

from .conftest import MakeRig

SHORT = {"retention": {"versions": "1s", "grace": "1s", "snapshots": 1}}
WRITING = ("during_writing", "before_naming")
pytestmark = pytest.mark.turns("point")


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """The shared services with timeouts that a test can wait for."""
    assert settings.dsn is not None
    return replace(settings, dsn=with_session(settings.dsn, **TIMEOUTS))


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    made = make_rig(engine="arrow", **SHORT)
    made.produce(40)
    made.ingest()
    return made


def head(rig: TableRig) -> str:
    return rig.stores.ledger.head(rig.table.row).stream.metadata


def data_files(rig: TableRig) -> set[str]:
    """Locations of the data files in the folder of the stream view, whatever names them."""
    folder = f"{StaticTable.from_metadata(head(rig)).location()}/data"
    return {file.path for file in listed(folder) if file.path.endswith(".parquet")}


def named(rig: TableRig) -> set[str]:
    """Locations of the data files of the newest version."""
    return {normal(file.path) for file in pinned(head(rig)).files}


def expire_until_clean(rig: TableRig) -> None:
    """Expire until the folder has no other data file than those of the newest version."""
    claim = rig.claim(Stage.EXPIRE)

    def clean() -> bool:
        expire_once(rig.stores, rig.table.row, claim)
        return data_files(rig) == named(rig)

    wait_until(clean, "no file is left that the newest version does not name")
    rig.stores.ledger.release(claim)


def assert_sound(rig: TableRig) -> None:
    rig.assert_exact()
    assert rig.table.audit(full=True).ok
    checked = fsck(rig.stores, [rig.name])
    assert checked.ok, checked.to_json()


@pytest.mark.parametrize("point", WRITING)
def test_files_of_a_killed_attempt_are_removed_once_its_move_is_done(rig: TableRig, settings: Settings, point: str):
    with WorkerProcess(settings, [rig.name], stages=TIER, fault=f"tier.{point}=kill", until_idle=True) as worker:
        worker.await_killed()
    left = data_files(rig)
    assert left
    assert named(rig) == set()

    rig.tier()
    assert data_files(rig) > named(rig)
    expire_until_clean(rig)

    assert not left & data_files(rig)
    assert_sound(rig)


@pytest.mark.parametrize("point", WRITING)
def test_an_attempt_that_sleeps_until_its_files_are_removed_harms_nothing_when_it_wakes(
    rig: TableRig, quick: Settings, point: str
):
    with WorkerProcess(quick, [rig.name], stages=TIER, fault=f"tier.{point}=stop", until_idle=True) as asleep:
        asleep.await_stopped()
        left = data_files(rig)
        rig.tier()
        expire_until_clean(rig)
        assert not left & data_files(rig)
        asleep.send(signal.SIGCONT)
        assert asleep.await_end() == 0
    assert_sound(rig)
    rig.produce(20)
    rig.ingest()
    rig.tier()
    expire_until_clean(rig)
    assert set(rig.stores.lake.current(rig.table.row, "stream").refs()) == {"main"}
    assert_sound(rig)


def test_expire_goes_on_where_an_attempt_that_no_ledger_can_stop_named_what_was_removed(rig: TableRig):
    """As Spark may, whose catalog commits for an attempt that is over, if it slept for long enough."""
    rig.tier()
    row, [moved] = rig.table.row, rig.stores.ledger.moves(rig.table.row, stage=Stage.TIER)
    stray = f"{StaticTable.from_metadata(head(rig)).location()}/data/stray.parquet"
    lake_files.put(stray, b"nobody named it")
    claim = rig.claim(Stage.EXPIRE)

    def condemned() -> bool:
        return normal(stray) in map(normal, expire_once(rig.stores, row, claim).condemned)

    wait_until(condemned, "the stray file is condemned")
    before, rows = data_files(rig), StaticTable.from_metadata(head(rig)).scan().to_arrow()
    with mock.patch.object(boundary, "check_open"):
        attempt_files.append(rig.stores.lake, row, replace(rows_of.move(moved), attempt=9), rows)
    for late in data_files(rig) - before:
        lake_files.remove(late)

    wait_until(lambda: normal(stray) in map(normal, expire_once(rig.stores, row, claim).deleted), "it is deleted")

    assert set(rig.stores.lake.current(row, "stream").refs()) == {"main"}
    assert_sound(rig)


def test_a_move_that_one_engine_began_is_finished_by_the_other(rig: TableRig, settings: Settings):
    with WorkerProcess(settings, [rig.name], stages=TIER, fault="tier.after_files=kill", until_idle=True) as worker:
        worker.await_killed()
    rig.harness.apply(rig.table.spec.model_copy(update={"engine": "spark"}))
    rig.table = rig.harness.table(rig.name)
    rig.tier()
    moved = rig.stores.ledger.moves(rig.table.row, stage=Stage.TIER)
    assert [(move["state"], move["attempt"]) for move in moved] == [("COMMITTED", 2)]
    assert not [path for path in named(rig) if path.endswith("-arrow.parquet")]
    assert_sound(rig)
