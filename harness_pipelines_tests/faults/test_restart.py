"""A table that was stopped by name starts again once its stage works, whoever runs it then."""

from __future__ import annotations

import pytest

from harness_pipelines.ports.decoded import RecordRefused
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.run.worker import Worker
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, running


def stopped(rig: TableRig) -> str | None:
    return rig.harness.table(rig.name).row.stopped


def test_who_takes_a_stopped_table_over_and_works_starts_it(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    """The second worker was there before the first one stopped the table, and knew it as well."""
    rig = make_rig(partitions=1)
    first, second = rig.worker(INGEST), rig.worker(INGEST)
    real = ingest.IngestLoop.step
    sick = {id(first): True}

    def step(loop: ingest.IngestLoop) -> int:
        if sick[id(first)]:
            raise RecordRefused("a record does not fit")
        return real(loop)

    monkeypatch.setattr(ingest.IngestLoop, "step", step)
    rig.produce(3)
    with running(first):
        wait_until(lambda: stopped(rig) is not None, "the first one stops the table")
        with running(second):
            first.stop.set()
            sick[id(first)] = False
            rig.await_exact()
            wait_until(lambda: stopped(rig) is None, "the second one starts it")


def test_another_stage_does_not_start_what_it_knows_nothing_of(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    rig.stores.ledger.stop_table(rig.table.row, "tier: a move failed in every attempt", stage="tier")
    rig.produce(3)

    rig.ingest()

    assert stopped(rig) == "tier: a move failed in every attempt"
    rig.tier()
    assert stopped(rig) is None


def test_a_stand_by_does_not_start_what_it_has_not_got_past(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    held = rig.claim(Stage.TIER)
    rig.stores.ledger.stop_table(rig.table.row, "a move is stuck", stage="tier")
    with running(rig.worker(TIER)) as worker:
        looked = worker._tables[0]._restart
        wait_until(lambda: looked.found is not None, "it knows")
        began = looked.since
        wait_until(lambda: worker._tables[0].pulsed_at > began + 2, "it looked again")
        assert stopped(rig) == "a move is stuck"
        rig.stores.ledger.release(held)
        wait_until(lambda: stopped(rig) is None, "it works, so the table is started")


def test_what_stops_it_meanwhile_stays(make_rig: MakeRig):
    """What the ledger says is compared: another cause is not cleared by who got past the first one."""
    rig = make_rig(partitions=1)
    rig.stores.ledger.stop_table(rig.table.row, "the first", stage="ingest")
    worker: Worker = rig.worker(INGEST)
    rig.stores.ledger.stop_table(rig.table.row, "another one", stage="tier")
    with running(worker):
        rig.produce(2)
        rig.await_exact()
    assert stopped(rig) == "another one"
