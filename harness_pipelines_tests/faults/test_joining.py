"""Partitions that are added to a topic: they join with the schema in force, and before a worker believes to be idle."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ALL, INGEST, TIER, TableRig, running

MORE = ColumnChanges(add=(Column(name="more", type=parse_type("string")),))
WITH_MORE = b'{"id":%d,"n":1,"s":"x","more":"yes"}'


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often somebody looked for partitions, by table."""
    counted: Counter[str] = Counter()
    real = ingest.join_partitions

    def counting(table: Any, log: Any, **known: Any) -> dict[int, int]:
        found = real(table, log, **known)
        counted[table.name] += bool(found)
        return found

    monkeypatch.setattr(ingest, "join_partitions", counting)
    return counted


def grown(rig: TableRig, total: int) -> None:
    """The topic has *total* partitions, with a record in each new one."""
    before = len(rig.kafka.acked(rig.topic))
    rig.kafka.add_partitions(rig.topic, total)
    for partition in range(before, total):
        rig.kafka.produce(rig.topic, partition, rig.values(1))


def test_a_stand_by_that_knows_an_older_schema_lets_nothing_join(make_rig: MakeRig, looks: Counter[str]):
    rig = make_rig(partitions=1)
    rig.produce(2)
    rig.ingest()
    held = rig.claim(Stage.INGEST)
    with running(rig.worker(INGEST)) as worker:  # it stands by, with the table as it is now
        rig.harness.table(rig.name).evolve(MORE)
        rig.kafka.add_partitions(rig.topic, 2)
        rig.kafka.produce(rig.topic, 1, [WITH_MORE % 100])
        wait_until(lambda: looks[rig.name] >= 1, "it found the partition")
        rig.stores.ledger.release(held)

        rig.await_exact()
        assert worker.progress[0].trouble == {}

    assert {p.schema_version for p in rig.stores.segments.positions(rig.table.row).values()} == {2}
    found = rig.harness.table(rig.name).read(columns=["id", "more"]).to_pylist()
    assert {row["id"]: row["more"] for row in found} == {0: None, 1: None, 100: "yes"}
    assert fsck(rig.stores, [rig.name]).ok


@pytest.mark.parametrize(
    ("on", "stages", "spec"),
    [
        ("threads", INGEST, {}),
        ("threads", ALL, {}),
        ("spark", INGEST, {}),
        ("threads", ALL, {"buffer": "none"}),
        ("threads", TIER, {"buffer": "none"}),
    ],
)
def test_no_worker_is_idle_before_it_has_looked_for_partitions(
    make_rig: MakeRig, on: Any, stages: frozenset[Stage], spec: dict[str, Any]
):
    rig = make_rig(partitions=1, **spec)
    rig.produce(2)
    grown(rig, 3)

    Worker(rig.stores, [rig.table.row], WorkerOptions(stages=stages, until_idle=True, ingest_on=on)).run()

    rig.assert_exact()
    assert fsck(rig.stores, [rig.name]).ok


def test_partitions_that_are_added_while_a_worker_ends_are_taken_too(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    """The last look comes after everything else is moved."""
    rig = make_rig(partitions=1)
    rig.produce(2)
    added: list[int] = []
    is_caught_up = rig.worker(INGEST)._tables[0].__class__._is_caught_up

    def adding(one: Any) -> bool:
        found = is_caught_up(one)
        if found and not added:
            added.append(1)
            grown(rig, 2)
        return found

    monkeypatch.setattr(rig.worker(INGEST)._tables[0].__class__, "_is_caught_up", adding)
    rig.ingest()

    assert added
    rig.assert_exact()


def test_a_schema_that_moves_for_ever_is_shown_and_waited_out(make_rig: MakeRig):
    """As where a partition had joined with a schema that nobody ingests in any more."""
    rig = make_rig(partitions=1)
    rig.harness.table(rig.name).evolve(MORE)
    rig.stores.database.run("evolve/set_schema", {"schema_version": 1, "table_id": rig.table.row.table_id})
    rig.table = rig.harness.table(rig.name)
    rig.produce(2)
    with rig.working() as worker:
        shown = worker.progress[0].trouble
        wait_until(lambda: "ingest" in shown, "it is shown")
        assert "ingest began with schema 2, the table is at 1" in shown["ingest"]
        errors = worker.progress[0].errors
        wait_until(lambda: errors["ingest"] >= 6, "it is tried again")
        rig.stores.database.run("evolve/set_schema", {"schema_version": 2, "table_id": rig.table.row.table_id})
        rig.await_exact()
        wait_until(lambda: not shown, "it is over")
