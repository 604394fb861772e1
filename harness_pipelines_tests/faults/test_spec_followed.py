"""A spec that is applied while a worker runs holds from the next step of each stage; nothing is started again."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import TablePulse
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec import table as words_of_spec
from harness_pipelines.stages.run import table_units
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table import expire
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_many_tables import by_hand
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TableRig, await_trouble, running

LATER = {"max_rows": 10**6, "max_bytes": "1TB", "max_age": "1h"}  #: tier has nothing to do for a test's time


def change(rig: TableRig, **words: Any) -> None:
    """Apply the spec of *rig* with other *words*."""
    spec = rig.harness.table(rig.name).spec.model_dump(mode="json", by_alias=True)
    rig.harness.apply(hp.TableSpec.model_validate({**spec, **words}))


def await_follows(worker: Worker, rig: TableRig) -> None:
    wanted = rig.harness.table(rig.name).spec
    wait_until(lambda: worker.tables[0].spec == wanted, "the worker goes by the new spec")


def working(rig: TableRig, *stages: Stage) -> Worker:
    return Worker(rig.stores, [rig.table.row], WorkerOptions(stages=frozenset(stages)))


# -- ingest -------------------------------------------------------------------------------------------------


def test_a_table_that_a_record_stopped_goes_on_by_the_spec_that_takes_it(make_rig: MakeRig):
    rig = make_rig(partitions=1, on_error="stop")
    rig.produce_misfit(b"no json")
    with running(working(rig, Stage.INGEST)) as worker:
        await_trouble(worker, Stage.INGEST)
        change(rig, on_error="quarantine")
        rig.produce(3)
        rig.await_exact()
        wait_until(lambda: rig.harness.table(rig.name).row.stopped is None, "the table is started")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"unknown_fields": "quarantine"}, b'{"id":7,"n":1,"s":"x","more":1}'),
        ({"contract": {"columns": {"n": {"le": 90}}}}, b'{"id":7,"n":99,"s":"x"}'),
    ],
)
def test_records_are_judged_by_the_spec_of_now(make_rig: MakeRig, words: dict[str, Any], value: bytes):
    rig = make_rig(partitions=1)
    with running(working(rig, Stage.INGEST)) as worker:
        rig.produce(3)
        rig.await_exact()
        change(rig, **words)
        await_follows(worker, rig)
        rig.produce_misfit(value)
        wait_until(lambda: len(rig.quarantine()) == 1, "the record is refused")


def test_a_limit_of_refused_records_holds_from_now_on(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    with running(working(rig, Stage.INGEST)) as worker:
        rig.produce_misfit(b"no json")
        wait_until(lambda: len(rig.quarantine()) == 1, "without a limit it is refused")
        change(rig, stop_above={"refused": "1%", "of_last": 100})
        await_follows(worker, rig)
        rig.kafka.produce(rig.topic, 0, [b"no json"])
        assert "refused" in await_trouble(worker, Stage.INGEST)


def test_the_objective_of_freshness_decides_how_long_records_gather(make_rig: MakeRig):
    rig = make_rig(partitions=1, freshness={"visible": "5s", "lake": "1h"})
    with running(working(rig, Stage.INGEST, Stage.TIER)) as worker:
        change(rig, freshness={"visible": "50ms", "lake": "7s"})
        [table] = worker._tables
        reading = table.reading
        assert reading is not None

        def objectives() -> dict[str, float]:
            return {unit.turn.work: unit.turn.objective_s for unit in (*table.units, *reading.units)}

        wait_until(lambda: objectives().items() >= {"ingest-0": 0.25, "tier": 7.0}.items(), "the units go by it")


def test_ingest_that_waits_for_room_goes_on_when_the_limit_is_raised(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(words_of_spec, "BUFFER_BYTES_MIN", 1)
    rig = make_rig(partitions=1)
    rig.produce(50)
    rig.ingest()
    change(rig, buffer={"max_bytes": 1024})
    with running(working(rig, Stage.INGEST)) as worker:
        rig.produce(50)
        assert "max_bytes" in await_trouble(worker, Stage.INGEST)
        change(rig, buffer={"max_bytes": "1GB"})
        rig.await_exact()


# -- the lake -----------------------------------------------------------------------------------------------


def test_tier_moves_when_the_rules_of_now_ask_for_it(make_rig: MakeRig):
    rig = make_rig(partitions=1, tier=LATER)
    with running(working(rig, Stage.INGEST, Stage.TIER)) as worker:
        rig.produce(20)
        rig.await_exact()
        await_claims(rig, worker, Stage.TIER)
        assert rig.status() == {0: (0, 20)}
        change(rig, tier={**LATER, "max_rows": 10})
        wait_until(lambda: rig.status() == {0: (20, 20)}, "it is moved")
        rig.produce(5)
        rig.await_exact()
        change(rig, tier={**LATER, "max_age": "1s"})
        wait_until(lambda: rig.status() == {0: (25, 25)}, "it is moved by its age")


def test_a_move_is_by_the_engine_of_now(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    rig = make_rig(partitions=1, tier=LATER, engine="auto")
    moved: list[str | None] = []
    real = tier.tier_once

    def once(stores: Any, table: TableRow, *given: Any, **how: Any) -> Any:
        moved.append(table.spec.engine)
        return real(stores, table, *given, **how)

    monkeypatch.setattr(tier, "tier_once", once)
    with running(working(rig, Stage.INGEST, Stage.TIER)):
        rig.produce(3)
        rig.await_exact()
        change(rig, engine="arrow", tier={**LATER, "max_rows": 1})
        wait_until(lambda: rig.status() == {0: (3, 3)}, "it is moved")
    assert set(moved) == {"arrow"}


def test_what_was_judged_by_an_older_spec_is_judged_again(make_rig: MakeRig):
    """Otree and compact look at a version of a view once; another layout may ask for what the old one did not."""
    rig = make_rig(partitions=1, engine="arrow", tier={**LATER, "max_rows": 1}, views="both")
    with running(working(rig, *Stage)) as worker:
        rig.produce(20)
        rig.await_exact()
        [units] = worker._tables
        wait_until(lambda: units.steps.nothing_small is not None, "nothing is small")
        looked, over = threading.Event(), units.steps.forget

        def forget() -> None:
            looked.set()
            over()

        units.steps.forget = forget  # type: ignore[method-assign]
        change(rig, layout={**rig.table.spec.layout.model_dump(mode="json"), "target_file_mb": 64})
        wait_until(looked.is_set, "it is judged again")
        wait_until(lambda: units.steps.nothing_small is not None, "by the new layout")
        assert worker.tables[0].spec.layout.target_file_mb == 64


def test_expire_removes_by_the_retention_of_now(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_units, "EXPIRE_EVERY_S", 0.2)
    rig = make_rig(partitions=1)
    kept: list[float] = []
    real = expire.expire_once

    def once(stores: Any, table: TableRow, *given: Any, **how: Any) -> Any:
        kept.append(table.spec.retention.versions)
        return real(stores, table, *given, **how)

    monkeypatch.setattr(expire, "expire_once", once)
    with running(working(rig, Stage.EXPIRE)):
        wait_until(lambda: bool(kept), "expire runs")
        change(rig, retention={"versions": "1m"})
        wait_until(lambda: kept[-1] == 60.0, "a table that nothing else changes has its next run soon")


def test_the_stage_of_catalogs_comes_and_goes_with_them(make_rig: MakeRig):
    rig = make_rig(partitions=1)
    with running(working(rig, Stage.INGEST, Stage.MIRROR)) as worker:
        [units] = worker._tables
        change(rig, catalogs=[{"name": "away", "type": "rest", "uri": "http://127.0.0.1:9"}])
        await_trouble(worker, Stage.MIRROR)
        await_claims(rig, worker, Stage.MIRROR)
        change(rig, catalogs=[])
        wait_until(lambda: Stage.MIRROR not in claims(rig), "its claim is given back")
        assert Stage.MIRROR not in {unit.stage for unit in units.units}
        assert Stage.MIRROR not in worker.progress[0].trouble
        change(rig, catalogs=[{"name": "away", "type": "rest", "uri": "http://127.0.0.1:9"}])
        await_claims(rig, worker, Stage.MIRROR)
        rig.produce(2)
        rig.await_exact()


def claims(rig: TableRig) -> dict[str, str]:
    return dict(pulse_of(rig).claims)


def pulse_of(rig: TableRig) -> TablePulse:
    _, found = rig.stores.watch.pulses([rig.table.row.table_id])
    pulse = found[rig.table.row.table_id]
    assert not isinstance(pulse, hp.HarnessError)
    return pulse


def await_claims(rig: TableRig, worker: Worker, stage: Stage) -> None:
    wait_until(lambda: claims(rig).get(stage) == worker.holder, f"the worker has {stage}")


# -- damage -------------------------------------------------------------------------------------------------


def test_a_spec_that_cannot_be_read_is_named_and_the_table_goes_on_by_the_old_one(make_rig: MakeRig):
    rig, other = make_rig(partitions=1), make_rig(partitions=1)
    worker = Worker(rig.stores, [rig.table.row, other.table.row], WorkerOptions(stages=INGEST))
    with running(worker):
        for one in (rig, other):
            one.produce(2)
            one.await_exact()
        shown = worker.progress[0].trouble
        by_hand(rig, """UPDATE harness.tables SET spec = spec || '{"gone_word": 1}' WHERE table_id = %s""")
        wait_until(lambda: "gone_word" in shown.get("watch", ""), "the spec is named")
        for one in (rig, other):
            taken = sum(high for _, high in one.status().values())
            one.kafka.produce(one.topic, 0, one.values(2))
            wait_until(partial(has_taken, one, taken + 2), "records are taken")
        by_hand(rig, """UPDATE harness.tables SET spec = spec - 'gone_word' WHERE table_id = %s""")
        wait_until(lambda: "watch" not in shown, "it is over")
        wait_until(lambda: rig.harness.table(rig.name).row.stopped is None, "the table is started")


def has_taken(rig: TableRig, offsets: int) -> bool:
    """A read needs the spec; the positions do not."""
    return sum(one.bounds.buffer_hi for one in pulse_of(rig).positions) == offsets
