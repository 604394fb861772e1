"""What a worker keeps in mind of a table holds only for what it was worked out from."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.ports.ledger import TableDamaged
from harness_pipelines.ports.upkeep import Spent
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.run.looks import Looks
from harness_pipelines.stages.run.progress import TableProgress, WorkerOptions
from harness_pipelines.stages.run.reading import IngestUnit
from harness_pipelines.stages.run.sharing import Tables
from harness_pipelines.stages.run.steps import Steps
from harness_pipelines.stages.run.table_units import TableUnits
from harness_pipelines.stages.run.worker import Worker
from harness_pipelines_tests.unit.stages.test_due import SEEN

VIEW = SimpleNamespace(metadata="m1")


def table(name: str = "a.b", **spec: Any) -> Any:
    """A table whose spec has the words *spec*; each call makes another object."""
    freshness = SimpleNamespace(visible=5.0, lake=900.0)
    words = {"topic": "t", "catalogs": (), "freshness": freshness, "retention": SimpleNamespace(grace=600, versions=60)}
    intake = SimpleNamespace(buffered=True, reader=Stage.INGEST)
    effects = {Stage.COMPACT: None}
    return SimpleNamespace(
        table_id=1, name=name, effects=effects, intake=intake, spec=SimpleNamespace(**words, **spec), spec_hash=1
    )


def steps_of(of: Any) -> Steps:
    head = SimpleNamespace(stream=VIEW, batch=VIEW)
    of.stores = SimpleNamespace(
        ledger=SimpleNamespace(head=lambda _: head),
        log=SimpleNamespace(watermarks=lambda *_: {}),
        segments=SimpleNamespace(),
    )
    of.options, of.full, of.unmoved_s = WorkerOptions(), None, lambda _: 0.0
    return Steps(of)


@pytest.mark.parametrize(("stage", "module"), [(Stage.COMPACT, compact), (Stage.OTREE, otree)])
def test_what_was_judged_by_a_spec_that_changed_meanwhile_is_judged_again(
    stage: Stage, module: Any, monkeypatch: pytest.MonkeyPatch
):
    """Manifests of an object store take seconds to read: the watcher takes over another spec while they are."""
    of: Any = SimpleNamespace(table=table(target=1))
    steps = steps_of(of)
    monkeypatch.setattr(steps, "_tier_is_idle", lambda: False)
    seen: list[str | None] = []

    def trigger(_stores: Any, judging: Any, *, judged: str | None = None, **_: Any) -> None:
        seen.append(judged)
        if judging.spec.target == 1:
            of.table = table(target=2)
            steps.forget()

    monkeypatch.setattr(module, "trigger", trigger)
    assert not steps.of(stage)()
    assert (steps.nothing_small, steps.nothing_due) == (None, None), "by the new spec something may be due"
    assert not steps.of(stage)()
    assert seen == [None, None]
    assert {steps.nothing_small, steps.nothing_due} == {"m1", None}


def looks_at(costs: list[Spent], seen: Callable[[], Any]) -> Looks:
    stores: Any = SimpleNamespace(costs=SimpleNamespace(add=costs.extend))
    return Looks(stores, "me", SimpleNamespace(is_set=lambda: False), seen)  # type: ignore[arg-type]


def test_what_a_table_took_is_counted_once_though_another_worker_had_it_for_a_while():
    costs, row, other = list[Spent](), table(), table(name="a.c")
    progress, beside = TableProgress(name="a.b"), TableProgress(name="a.c")
    looks = looks_at(costs, lambda: [])
    progress.ingest_bytes, beside.ingest_bytes = 100, 1
    looks._note_spent([(row, progress), (other, beside)])
    beside.ingest_bytes = 2
    looks._note_spent([(other, beside)])  # the table rests
    progress.ingest_bytes, beside.ingest_bytes = 130, 3
    looks._note_spent([(row, progress), (other, beside)])
    assert sum(one.taken_bytes for one in costs if one.table == "a.b") == 130
    assert sum(one.taken_bytes for one in costs if one.table == "a.c") == 3


def test_what_a_table_took_is_counted_from_nothing_where_it_came_again():
    costs, row = list[Spent](), table()
    looks = looks_at(costs, lambda: [])
    looks._note_spent([(row, TableProgress(name="a.b", ingest_bytes=100))])
    looks._note_spent([(row, TableProgress(name="a.b", ingest_bytes=7))])
    assert [one.taken_bytes for one in costs] == [100, 7]


def test_small_files_are_looked_for_again_where_the_spec_has_another_target(monkeypatch: pytest.MonkeyPatch):
    noted: list[bool] = []
    head = SimpleNamespace(stream=VIEW)
    stores: Any = SimpleNamespace(
        tables=SimpleNamespace(head=lambda _: head),
        stalls=SimpleNamespace(note_small_files=lambda _, *, worth_it: noted.append(worth_it)),
    )
    looks = Looks(stores, "me", SimpleNamespace(is_set=lambda: False), lambda: [])  # type: ignore[arg-type]
    monkeypatch.setattr("harness_pipelines.stages.run.looks.LAKE_EVERY_S", 0.0)
    monkeypatch.setattr(compact, "due", lambda _stores, of, _head: ["a run"] if of.spec.target == 2 else [])
    progress, small, large = TableProgress(name="a.b", stream="m1"), table(target=1), table(target=2)
    large.spec_hash = 2
    for one in (small, small, large):
        looks._look_at_lakes([(one, progress)])
    assert noted == [False, True]


class Modes:
    """A ledger in which a table comes while it is asked which ones there are."""

    def __init__(self) -> None:
        self.asked, self.tables = 0, Tables.__new__(Tables)

    def beat(self, holder: str, _stages: Any, *, lease: Any) -> frozenset[str]:
        return frozenset({holder})

    def modes(self) -> dict[int, tuple[str, str]]:
        self.asked += 1
        if self.asked == 1:
            self.tables.have_changed()  # after it was answered
        return {}


def test_a_table_that_is_announced_while_the_tables_are_asked_for_is_asked_for_at_the_next_look():
    ledger = Modes()
    worker: Any = SimpleNamespace(
        holder="me", options=WorkerOptions(shares=True), stores=SimpleNamespace(ledger=ledger)
    )
    ledger.tables = tables = Tables(worker, [], lambda _: pytest.fail("there is none"))
    tables.look()
    tables.look()
    assert ledger.asked == 2
    tables.look()
    assert ledger.asked == 2


@pytest.fixture
def units() -> TableUnits:
    stores: Any = SimpleNamespace(ledger=SimpleNamespace(), settings=SimpleNamespace(warehouse=None))
    return TableUnits(Worker(stores, [], WorkerOptions(stages=frozenset({Stage.EXPIRE}))), table())


def test_expire_that_another_worker_had_the_claim_of_has_not_run(units: TableUnits, monkeypatch: pytest.MonkeyPatch):
    [unit] = units.units
    monkeypatch.setattr(units.steps, "admit", lambda *_, **__: None)
    monkeypatch.setattr(units.keeper(Stage.EXPIRE), "acquire", lambda: False)
    units.pulse = SimpleNamespace(  # type: ignore[assignment]
        version=1, positions=(), claims={}, open=frozenset(), removes=False, superseded_at=None
    )
    unit.run()
    units.pulse.claims = {Stage.EXPIRE: units.worker.holder}  # type: ignore[union-attr, misc]  # taken with those of others
    assert units.rest_s(Stage.EXPIRE) <= 0


def test_a_spec_that_is_damaged_again_is_named_again(units: TableUnits, monkeypatch: pytest.MonkeyPatch):
    good = units.table

    def read(_name: str) -> Any:
        raise TableDamaged("it cannot be read")

    monkeypatch.setattr(units.stores.ledger, "table", read, raising=False)
    with pytest.raises(TableDamaged):
        units._follow_spec(666)
    assert not units._follow_spec(666), "once for each change"
    assert units._follow_spec(good.spec_hash), "it is as it was"
    with pytest.raises(TableDamaged):
        units._follow_spec(666)


def test_what_ingest_counts_after_the_answer_that_has_its_commit_is_shown():
    stores: Any = SimpleNamespace(ledger=SimpleNamespace(), settings=SimpleNamespace(warehouse=None))
    units = TableUnits(Worker(stores, [], WorkerOptions(stages=frozenset({Stage.INGEST}))), table())
    assert units.reading is not None
    units._take(SEEN, 0.0, 0.0)
    unit = next(one for one in units.reading.units if isinstance(one, IngestUnit))
    unit.counts.rows, unit.counts.commits = 5, 1
    units._take(SEEN, 1.0, 1.0)  # nothing has changed
    assert units.progress.rows == 5
