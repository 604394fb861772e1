"""Workers that are killed at random, stopped and woken, interrupted, or two at a time; see `test_matrix` too."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults.matrix import TIMEOUTS
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import ENDLESS_S, INGEST, TIER, Command, TableRig, WorkerProcess, with_session

from .conftest import MakeRig


@pytest.fixture
def quick(settings: Settings) -> Settings:
    """The shared services with timeouts that a test can wait for."""
    assert settings.dsn is not None
    return replace(settings, dsn=with_session(settings.dsn, **TIMEOUTS))


def test_a_killed_attempt_is_followed_by_the_next_attempt_of_the_same_move(rig: TableRig, settings: Settings):
    rig.produce(40)
    rig.ingest()
    fault = "tier.after_files=kill"
    with WorkerProcess(settings, [rig.name], stages=TIER, fault=fault, until_idle=True) as worker:
        worker.await_killed()
    rig.tier()
    rig.assert_exact()
    moved = rig.stores.ledger.moves(rig.table.row, stage=Stage.TIER)
    assert [(move["state"], move["attempt"]) for move in moved] == [("COMMITTED", 2)]


def test_a_worker_killed_at_random_moments_and_started_again_loses_and_doubles_nothing(rig, settings):
    for _ in range(4):
        moment = random.randrange(1, 600)  # pytest-randomly prints the seed
        until = rig.read().total() + moment
        with WorkerProcess(settings, [rig.name], stages=INGEST, lease_s=1.0):
            for _ in range(6):
                rig.produce(50)
            rig.await_rows(until)
    rig.ingest()
    rig.assert_exact()


def test_two_workers_on_one_table_take_every_record_once(rig: TableRig, settings: Settings):
    with (
        WorkerProcess(settings, [rig.name], stages=INGEST, lease_s=1.0) as one,
        WorkerProcess(settings, [rig.name], stages=INGEST, lease_s=1.0),
    ):
        rig.produce(300)
        rig.await_exact()
        one.send(signal.SIGKILL)
        rig.produce(300)
        rig.await_exact()


def test_a_worker_that_was_replaced_in_its_sleep_goes_on_as_a_stand_by(rig, quick: Settings):
    fault = "ingest.in_transaction=stop@2"
    with WorkerProcess(quick, [rig.name], stages=INGEST, fault=fault, lease_s=1.0) as asleep:
        rig.kafka.produce(rig.topic, 0, rig.values(1))  # which takes one transaction; several may take two
        rig.await_exact()
        rig.kafka.produce(rig.topic, 0, rig.values(10))
        asleep.await_stopped()
        with WorkerProcess(quick, [rig.name], stages=INGEST, lease_s=1.0):
            rig.produce(20)
            rig.await_exact()
            asleep.send(signal.SIGCONT)
            for _ in range(5):
                rig.produce(20)
                rig.await_exact()
    assert asleep.was_alive, "a worker that was overtaken goes on as a stand-by"


def test_a_tier_worker_that_slept_past_its_lease_publishes_nothing_when_it_wakes(rig, quick: Settings, harness):
    rig.produce(40)
    rig.ingest()
    fault = "tier.after_files=stop"
    with WorkerProcess(quick, [rig.name], stages=TIER, fault=fault, until_idle=True) as asleep:
        asleep.await_stopped()
        rig.assert_exact()  # readers are not held up
        rig.tier()
        rig.assert_exact()
        assert set(rig.status().values()) == {(40, 40)}
        version = rig.table.versions()[-1].version
        asleep.send(signal.SIGCONT)
        assert asleep.await_end() == 0
    rig.assert_exact()
    assert rig.table.versions()[-1].version == version
    assert harness.table(rig.name).row.stopped is None


def test_ctrl_c_while_the_command_starts_loses_nothing(rig: TableRig, settings: Settings):
    rig.produce(20)
    with Command(settings, "run", rig.name) as command:
        command.send(signal.SIGINT)
        code, said = command.await_end()
    assert code in {130, -signal.SIGINT}, said  # the interpreter itself may not be up yet
    rig.ingest()
    rig.assert_exact()


def _a_move_is_open(rig: TableRig) -> bool:
    """One that was not seen is followed by another one."""
    if rig.stores.ledger.open_move(rig.table.row, Stage.TIER, shard=0) is not None:
        return True
    if all(stream_hi == buffer_hi > 0 for stream_hi, buffer_hi in rig.status().values()):
        rig.produce(1)
    return False


MOMENTS: dict[str, Callable[[TableRig], bool]] = {
    "rows were committed": lambda rig: rig.read().total() > 0,
    "a move is open": _a_move_is_open,
}


@pytest.mark.parametrize("moment", list(MOMENTS))
def test_ctrl_c_ends_a_worker_with_130_within_seconds_and_loses_nothing(make_rig: MakeRig, settings, moment: str):
    rig = make_rig(tier={"max_age": "1s"})
    rig.produce(300)
    with Command(settings, "run", rig.name) as command:
        wait_until(lambda: MOMENTS[moment](rig), moment)
        with within(10, "the end of the worker"):
            command.send(signal.SIGINT)
            code, said = command.await_end(deadline_s=ENDLESS_S)
    assert code == 130, said
    assert "stopping after the current transaction" in said
    assert "Traceback" not in said
    assert not _claims(rig), "an ended worker gives its claims back"
    rig.ingest()
    rig.assert_exact()


def _claims(rig: TableRig) -> list[str]:
    """Stages of the table that somebody holds now."""
    with rig.stores.database.session() as connection:
        found = connection.execute(
            "SELECT stage FROM harness.claims WHERE table_id = %s AND lease_until > clock_timestamp()",
            [rig.table.row.table_id],
        ).fetchall()
    return [row["stage"] for row in found]
