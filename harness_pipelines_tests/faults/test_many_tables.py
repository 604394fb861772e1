"""Many tables in one worker: one that is sick costs the others nothing. And several workers that share the tables."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage, rank
from harness_pipelines.spec.locations import local_path
from harness_pipelines.stages.run import schedule, sharing, table_units
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table import expire
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import INGEST, TableRig, running

STAGES = frozenset({Stage.INGEST, Stage.EXPIRE})
LEASE = timedelta(seconds=3)


def no_topic(rig: TableRig, kafka: KafkaRig) -> None:
    for future in kafka.admin.delete_topics([rig.topic]).values():
        future.result()


def no_lake(rig: TableRig, _kafka: KafkaRig) -> None:
    pointer = rig.harness.stores.ledger.pointer(rig.table.row, "stream")
    folder = local_path(pointer.rsplit("/", 2)[0])
    assert folder is not None
    shutil.rmtree(folder)


def no_spec(rig: TableRig, _kafka: KafkaRig) -> None:
    by_hand(rig, "UPDATE harness.tables SET spec = '{}' WHERE table_id = %s")


def stuck(rig: TableRig, _kafka: KafkaRig) -> None:
    by_hand(
        rig,
        "INSERT INTO harness.moves (table_id, stage, shard, state, lo, hi, base_version, schema_version, trigger,"
        " epoch) VALUES (%s, 'tier', 0, 'QUARANTINED', '{}', '{}', 1, 1, 'rows', 1)",
    )


def by_hand(rig: TableRig, statement: LiteralString) -> None:
    """Run *statement* for the table of *rig* as the owner of the database."""
    assert rig.stores.settings.dsn is not None
    with psycopg.connect(rig.stores.settings.dsn, autocommit=True) as connection:
        connection.execute(statement, [rig.table.row.table_id])


@pytest.mark.folder("a folder of the lake is removed")
def test_tables_that_are_sick_cost_the_others_nothing(
    make_rig: MakeRig, kafka: KafkaRig, monkeypatch: pytest.MonkeyPatch
):
    """Each in its way; units that hang are more than their room has places."""
    monkeypatch.setattr(schedule, "LONG_S", 0.5)
    monkeypatch.setattr(table_units, "EXPIRE_EVERY_S", 0.2)
    sick = {how: make_rig(partitions=1) for how in (no_topic, no_lake, no_spec, stuck)}
    hanging = [make_rig(partitions=1) for _ in range(schedule.PLACES[schedule.Room.UPKEEP] + 1)]
    well = [make_rig(partitions=2) for _ in range(3)]
    over, expired = threading.Event(), set[str]()
    real = expire.expire_once

    def once(stores: Any, table: TableRow, *given: Any, **how: Any) -> Any:
        if table.name in [rig.name for rig in hanging]:
            over.wait(60)
        found = real(stores, table, *given, **how)
        expired.add(table.name)
        return found

    monkeypatch.setattr(expire, "expire_once", once)
    rows = [rig.table.row for rig in (*sick.values(), *hanging, *well)]
    for how, rig in sick.items():
        how(rig, kafka)
    worker = Worker(well[0].stores, rows, WorkerOptions(stages=STAGES, lease=LEASE))
    try:
        with running(worker):
            for rig in (*well, *hanging):
                rig.produce(3)
                rig.await_exact()
            wait_until(lambda: expired >= {rig.name for rig in well}, "the others' expire runs")
            shown = {one.name: one.trouble for one in worker.progress}
            wait_until(lambda: "ingest" in shown[sick[no_topic].name], "the missing topic is named")
            wait_until(lambda: "ingest" in shown[sick[no_spec].name], "the spec is named")
            slow = worker.slowness()
            assert all(slow[rig.name][Stage.EXPIRE][1] > 0.0 for rig in hanging), "those that hang are named"
            for rig in well:
                rig.produce(2)
                rig.await_exact()
                assert shown[rig.name] == {}
            over.set()
    finally:
        over.set()
        by_hand(sick[no_spec], "DELETE FROM harness.tables WHERE table_id = %s")


def holders(rigs: list[TableRig]) -> dict[str, str | None]:
    """By table who holds the claim of ingest."""
    _, found = rigs[0].stores.watch.pulses([rig.table.row.table_id for rig in rigs])
    return {
        rig.name: pulse.claims.get(Stage.INGEST)
        for rig in rigs
        if not isinstance(pulse := found.get(rig.table.row.table_id), hp.HarnessError) and pulse is not None
    }


@pytest.fixture
def shared(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Worker]:
    """Makes workers that share tables."""
    monkeypatch.setattr(sharing, "LOOK_EVERY_S", 0.3)
    stores = make_rig(partitions=1).stores
    return lambda: Worker(stores, [], WorkerOptions(stages=INGEST, shares=True, lease=LEASE))


def test_workers_share_tables_and_take_over_those_of_one_that_ends(make_rig: MakeRig, shared: Callable[[], Worker]):
    rigs = [make_rig(partitions=1, mode="external_worker") for _ in range(5)]
    first, second = shared(), shared()
    both = {first.holder, second.holder}

    def expected() -> dict[str, str]:
        return {rig.name: next(one for one in both if rank(one, both, rig.table.row.table_id) == 0) for rig in rigs}

    with running(first):
        wait_until(lambda: set(holders(rigs).values()) == {first.holder}, "the one takes all")
        with running(second):
            wait_until(lambda: holders(rigs) == expected(), "each has its share")
            for rig in rigs:
                rig.produce(3)
                rig.await_exact()
        wait_until(lambda: set(holders(rigs).values()) == {first.holder}, "the one takes all again")
        for rig in rigs:
            rig.produce(1)
            rig.await_exact()


def test_tables_come_and_go(make_rig: MakeRig, shared: Callable[[], Worker]):
    early = make_rig(partitions=1, mode="external_worker")
    with running(shared()) as worker:
        wait_until(lambda: holders([early]) == {early.name: worker.holder}, "it begins")
        late, other = make_rig(partitions=1, mode="external_worker"), make_rig(partitions=1, mode="external_worker")
        manual = make_rig(partitions=1, mode="manual")
        late.produce(2)
        late.await_exact()
        assert manual.name not in [row.name for row in worker.tables]

        spec = early.table.spec.model_dump(mode="json", by_alias=True)
        early.harness.apply(hp.TableSpec.model_validate({**spec, "mode": "manual"}))
        wait_until(lambda: early.name not in [row.name for row in worker.tables], "a table that is for others leaves")
        wait_until(lambda: holders([early]) == {early.name: None}, "its claims are given back")

        wait_until(lambda: holders([other]) == {other.name: worker.holder}, "the other one was taken")
        by_hand(other, "UPDATE harness.tables SET spec = jsonb_set(spec, '{mode}', '\"manual\"') WHERE table_id = %s")
        wait_until(lambda: other.name not in [row.name for row in worker.tables], "it left")
        other.stores.ledger.drop_table(other.harness.table(other.name).row)
        late.produce(2)
        late.await_exact()


def test_tables_of_a_worker_that_dies_are_taken_over_when_its_claims_end(
    make_rig: MakeRig, shared: Callable[[], Worker]
):
    rigs = [make_rig(partitions=1, mode="external_worker") for _ in range(3)]
    ledger, dead = rigs[0].stores.ledger, str(uuid.uuid4())
    ledger.beat(dead, INGEST, lease=LEASE)
    for rig in rigs:
        assert ledger.claim(rig.table.row, Stage.INGEST, shard=0, holder=dead, lease=LEASE) is not None
        rig.produce(2)
    with running(shared()) as worker:
        wait_until(lambda: set(holders(rigs).values()) == {worker.holder}, "it takes over")
        for rig in rigs:
            rig.await_exact()


def test_a_worker_that_takes_none_of_its_tables_is_not_waited_for_long(make_rig: MakeRig, shared: Callable[[], Worker]):
    rigs = [make_rig(partitions=1, mode="external_worker") for _ in range(4)]
    ledger, idle = rigs[0].stores.ledger, str(uuid.uuid4())
    ledger.beat(idle, INGEST, lease=timedelta(minutes=5))
    try:
        with running(shared()) as worker:
            wait_until(lambda: set(holders(rigs).values()) == {worker.holder}, "it takes what nobody takes")
    finally:
        ledger.leave(idle)
