"""What has no name holds the stage of the table that met it; the rest of the worker goes on."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.drivers.postgres import PostgresUnreachable
from harness_pipelines.faults import FaultInjected
from harness_pipelines.ledgers.postgres.retention import SizeGuard
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.ledger import SickTable, TableRow
from harness_pipelines.ports.upkeep import TablePulse
from harness_pipelines.protocol.bounds import BoundsBroken
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.run import table_units, trouble, watcher
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.looks import Looks
from harness_pipelines.stages.run.reading import IngestUnit
from harness_pipelines.stages.run.table_units import TableUnits
from harness_pipelines.stages.run.worker import StageBroken, Worker, WorkerOptions
from harness_pipelines.stages.table import expire
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import running


class Books:
    """A ledger that gives every claim to whoever asks."""

    def __init__(self) -> None:
        self.reasons: dict[str, str | None] = {}
        self.released: list[int] = []
        self.renewals = 0
        self.holder = ""

    def claim(self, table: Any, stage: Stage, *, shard: int, holder: str, lease: timedelta) -> Claim:
        self.holder, until = holder, datetime.now(UTC) + lease
        return Claim(table_id=table.table_id, stage=stage, shard=shard, holder=holder, epoch=1, lease_until=until)

    def claim_all(self, wanted: Collection[tuple[int, Stage]], *, holder: str, lease: timedelta) -> list[Claim]:
        self.holder, until = holder, datetime.now(UTC) + lease
        return [
            Claim(table_id=number, stage=stage, shard=0, holder=holder, epoch=1, lease_until=until)
            for number, stage in wanted
        ]

    def survey(self, _names: Collection[str]) -> tuple[list[TableRow], list[SickTable]]:
        return [], []

    def renew_all(self, claims: Sequence[Claim], *, lease: timedelta) -> dict[Claim, Claim | FencedOut]:
        self.renewals += 1
        if self.renewals == 1:
            raise IndexError("list index out of range")
        return {claim: claim for claim in claims}

    def renew(self, claim: Claim, *, lease: timedelta) -> Claim:
        return claim

    def release_of(self, table: Any, _stage: Stage, *, shard: int, holder: str) -> None:
        self.released.append(table.table_id)

    def release_all(self, holder: str, stages: Collection[tuple[int, Stage]]) -> None:
        self.released += [table_id for table_id, _ in stages]

    def pulses(self, tables: Collection[int]) -> tuple[float, dict[int, Any]]:
        return 0.0, {number: pulse(number, {"expire": self.holder}) for number in tables}

    def stop_table(self, table: Any, reason: str | None, *, stage: str | None = None) -> None:
        self.reasons[table.name] = reason

    def start_table(self, table: Any, was: str) -> bool:
        assert self.reasons[table.name] == was
        self.reasons[table.name] = None
        return True

    def stopped(self, _table: Any) -> None:
        return None


def pulse(number: int, claims: dict[str, str]) -> TablePulse:
    return TablePulse(
        table_id=number, positions=(), version=1, stream="s", batch=None, stopped=None, open=frozenset(), asked=False,
        claims=claims, tier_at=0.0, otree_at=None, buffered_bytes=0, removes=True,
        superseded_at=None,
    )  # fmt: skip


def table(number: int, name: str) -> Any:
    intake = SimpleNamespace(buffered=True, reader=Stage.INGEST)
    freshness = SimpleNamespace(visible=5.0, lake=900.0)
    spec = SimpleNamespace(topic="t", catalogs=(), retention=SimpleNamespace(grace=600), freshness=freshness)
    return SimpleNamespace(table_id=number, name=name, stopped=None, effects={}, spec=spec, spec_hash=0, intake=intake)


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def start(books: Books, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], None]], Worker]:
    """Makes a worker of two tables whose expire is the function that is given."""
    monkeypatch.setattr(table_units, "EXPIRE_EVERY_S", 0.01)
    monkeypatch.setattr(watcher, "IDLE_S", 0.01)
    monkeypatch.setattr(Looks, "start", lambda _: None)  # they look at what the stores below do not have
    stores: Any = SimpleNamespace(
        settings=SimpleNamespace(warehouse=None),
        guard=SimpleNamespace(check=lambda *_, **__: None),
        engine=SimpleNamespace(check=lambda *_, **__: None),
        ledger=books,
        watch=books,
        news=SimpleNamespace(follow=lambda _: lambda: None),
        log=SimpleNamespace(watermarks_of=lambda _: {}, identities=lambda topics: dict.fromkeys(topics)),
    )

    def make(step: Callable[[str], None]) -> Worker:
        def once(_stores: object, of: TableRow, _claim: object, **_: object) -> expire.Expired:
            step(of.name)
            return expire.Expired(floor={})

        monkeypatch.setattr(expire, "expire_once", once)
        tables = [table(1, "a.sick"), table(2, "a.well")]
        return Worker(stores, tables, WorkerOptions(stages=frozenset({Stage.EXPIRE})))

    return make


def test_an_error_without_a_name_holds_its_stage_and_no_other_table(
    books: Books, start: Callable[[Callable[[str], None]], Worker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trouble, "BROKEN_S_MIN", 3600.0)
    ran: list[str] = []

    def step(name: str) -> None:
        ran.append(name)
        if name == "a.sick":
            raise IndexError("list index out of range")

    made = start(step)
    with (
        pytest.raises(StageBroken, match="a.sick: expire met an error that has no name, IndexError: list in") as raised,
        running(made),
    ):
        wait_until(lambda: bool(made.progress[0].trouble), "it is shown")
        seen = ran.count("a.well")
        wait_until(lambda: ran.count("a.well") >= seen + 3, "the other table goes on")
        assert made.progress[0].trouble.keys() == {"expire"}
        assert str(books.reasons["a.sick"]).startswith("a.sick: expire met")

    assert isinstance(raised.value.__cause__, IndexError)
    assert ran.count("a.sick") == 1, "it is held for a while"
    assert "a.well" not in books.reasons
    assert sorted(books.released) == [1, 2]


def test_a_stage_that_was_held_goes_on_by_itself(
    books: Books, start: Callable[[Callable[[str], None]], Worker], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(trouble, "BROKEN_S_MIN", 0.05)
    left = [IndexError("once"), IndexError("twice")]

    def step(name: str) -> None:
        if name == "a.sick" and left:
            raise left.pop()

    made = start(step)
    with running(made):
        wait_until(lambda: not left and not made.progress[0].trouble, "the trouble is forgotten")
    assert books.reasons["a.sick"] is None


def test_a_claim_under_which_nothing_could_begin_is_left_to_other_workers(
    books: Books, start: Callable[[Callable[[str], None]], Worker]
):
    ran: list[str] = []
    made = start(ran.append)
    away = threading.Event()
    away.set()

    def check(of: Any, *_: object, **__: object) -> None:
        if away.is_set() and of.name == "a.sick":
            raise LakeAway("the lake does not answer")

    guard: Any = made.stores.guard
    guard.check = check
    with running(made):
        wait_until(lambda: books.released == [1], "another worker may reach the lake")
        wait_until(lambda: ran.count("a.well") >= 2, "the other table goes on")
        assert "a.sick" not in ran
        away.clear()
        wait_until(lambda: ran.count("a.sick") >= 2, "it takes the claim again")
        away.set()
        wait_until(lambda: bool(made.progress[0].trouble), "it is shown")
        assert books.released == [1], "one that has worked keeps it"


def test_what_is_no_error_of_a_stage_ends_the_worker(start: Callable[[Callable[[str], None]], Worker]):
    def step(_name: str) -> None:
        raise FaultInjected("as if the process had died")

    made = start(step)
    with pytest.raises(FaultInjected), running(made):
        wait_until(made.stop.is_set, "the worker ends")


def test_a_table_that_cannot_be_looked_at_leaves_the_others_alone(
    books: Books, start: Callable[[Callable[[str], None]], Worker], monkeypatch: pytest.MonkeyPatch
):
    def pulses(tables: Collection[int]) -> tuple[float, dict[int, Any]]:
        found = {number: pulse(number, {"expire": books.holder}) for number in tables}
        return 0.0, {**found, 1: BoundsBroken("a row was changed by hand")}

    monkeypatch.setattr(books, "pulses", pulses)
    ran: list[str] = []
    made = start(ran.append)
    with running(made):
        wait_until(lambda: "watch" in made.progress[0].trouble, "it is shown")
        seen = ran.count("a.well")
        wait_until(lambda: ran.count("a.well") > seen, "the other table goes on")
    assert made.progress[0].trouble["watch"] == "a row was changed by hand"


def test_expire_that_needs_a_person_rests_as_long_as_one_that_has_done_its_work(
    start: Callable[[Callable[[str], None]], Worker], monkeypatch: pytest.MonkeyPatch
):
    def step(name: str) -> None:
        raise SizeGuard(f"{name}: too much at once")

    monkeypatch.setattr(table_units, "EXPIRE_EVERY_S", 60.0)
    made = start(step)
    [unit] = made._tables[0].units
    assert unit.run() == 60.0
    assert made.progress[0].trouble == {"expire": "a.sick: too much at once"}


def test_a_claim_is_renewed_whatever_a_renewal_met(books: Books):
    ledger: Any = books
    lease = timedelta(milliseconds=30)
    keeper = ClaimKeeper(ledger, table(1, "a.b"), Stage.TIER, holder="me", lease=lease)
    assert keeper.acquire()
    wait_until(lambda: books.renewals >= 3, "the first renewal failed, others followed")
    keeper.release()
    assert books.released == [1]


def test_what_is_done_under_a_claim_that_was_lost_is_given_up_until_the_claim_is_held_again(books: Books):
    ledger: Any = books
    given_up: list[bool] = []
    lost = threading.Event()

    def renew_all(claims: Sequence[Claim], *, lease: timedelta) -> dict[Claim, Claim | FencedOut]:
        return {claim: FencedOut("it was taken over") if lost.is_set() else claim for claim in claims}

    ledger.renew_all = renew_all
    keeper = ClaimKeeper(
        ledger, table(1, "a.b"), Stage.TIER, holder="me", lease=timedelta(milliseconds=30),
        give_up=lambda: given_up.append(keeper.is_held),
    )  # fmt: skip
    assert keeper.acquire()
    assert not given_up
    lost.set()
    wait_until(lambda: len(given_up) >= 3, "what begins late is met as well")
    lost.clear()
    assert keeper.acquire()
    before = len(given_up)
    keeper.release()
    assert len(given_up) == before
    assert not any(given_up)


class Loop:
    """An ingest loop whose steps are those of *steps*."""

    not_before, took = 0.0, 0
    steps: Callable[[], int]

    def __init__(self, of: Any, *_: Any, **__: Any) -> None:
        self.table, self.progress = of, ingest.IngestProgress()

    def start(self, _partitions: Any) -> None:
        pass

    def step(self) -> int:
        self.progress.rows += 5
        return type(self).steps()

    def close(self) -> None:
        pass


@pytest.fixture
def ingesting(books: Books, monkeypatch: pytest.MonkeyPatch) -> TableUnits:
    """A table whose units of ingest run `Loop`."""
    monkeypatch.setattr(ingest, "IngestLoop", Loop)
    monkeypatch.setattr(TableUnits, "reload", lambda _: None)
    monkeypatch.setattr(TableUnits, "_check_spec", lambda _: None)
    stores: Any = SimpleNamespace(
        ledger=books,
        log=None,
        schemas=None,
        segments=SimpleNamespace(positions=lambda _: {0: None, 1: None}),
        settings=SimpleNamespace(warehouse=None),
        buffer_writer=lambda *_, **__: None,
    )
    return TableUnits(Worker(stores, [], WorkerOptions()), table(1, "a.b"))


def units_of(of: TableUnits) -> list[IngestUnit]:
    assert of.reading is not None
    return [unit for unit in of.reading.units if isinstance(unit, IngestUnit)]


def test_a_loop_that_begins_again_goes_on_with_the_counts_of_its_unit(
    ingesting: TableUnits, monkeypatch: pytest.MonkeyPatch
):
    made: list[weakref.ref[Any]] = []

    def fails() -> int:
        raise SchemaMoved("another schema")

    class Seen(Loop):
        steps = staticmethod(fails)

        def __init__(self, *given: Any, **more: Any) -> None:
            super().__init__(*given, **more)
            made.append(weakref.ref(self))

    monkeypatch.setattr(ingest, "IngestLoop", Seen)
    first, second = units_of(ingesting)
    for unit in (first, first, second):
        unit.run()
        unit._backoff.reset()  # or the error would keep what it went through
    assert ingesting.reading is not None
    ingesting.reading.count(ingesting.progress)

    assert [one.counts.rows for one in (first, second)] == [10, 5]
    assert ingesting.progress.rows == 15
    gc.collect()
    assert [loop() for loop in made] == [None] * 3, "a loop that has ended is not kept"


def test_records_wake_ingest_that_failed_before_once_its_pause_is_over(
    ingesting: TableUnits, monkeypatch: pytest.MonkeyPatch
):
    """What it failed at was not fetched again yet: its trouble lasts, and the records that come must not wait."""
    answers = ["away", ""]
    asked: list[float] = []

    def step() -> int:
        if why := answers.pop(0):
            raise PostgresUnreachable(why)
        return 0

    monkeypatch.setattr(Loop, "steps", staticmethod(step), raising=False)
    monkeypatch.setattr(TableUnits, "ask", lambda _self, _unit, *, in_s=0.0: asked.append(in_s))
    unit, _ = units_of(ingesting)
    pause_s = unit.run()
    unit.wake()
    assert 0 < asked[-1] <= pause_s, "not before the pause is over"
    assert 0 < unit.run() <= pause_s, "and it does nothing where it was woken meanwhile"
    assert len(answers) == 1

    unit._waits_until = 0.0  # the pause is over
    assert unit.run() > pause_s
    assert unit._backoff.is_in_trouble
    unit.wake()
    assert asked[-1] == 0.0
