"""When a load looks for a newer state, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.serving.cuts import (
    Cut,
    CutDamaged,
    CutImpossible,
    CutOvertaken,
    CutsFull,
    Found,
    Marks,
    Newest,
)
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.cuts import UNNAMED_MAX, Chunk, CutBounds
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read import cut as module
from harness_pipelines.read.cut import TRIES, Cutter, CutTooSlow, MergedBehind

AT = datetime(2026, 1, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)
TABLE: Any = SimpleNamespace(
    name="shop.orders", table_id=1, intake=SimpleNamespace(buffered=True), spec=SimpleNamespace(key=())
)


def known(sequence: int, *, over: bool = False) -> Cut:
    return Cut(
        snapshot_id=0 if over else sequence, sequence=sequence, timestamp_ms=0, version=1, schema_version=1, bounds={},
        metadata="", chunks=(), table_id=1, looked_at=AT - HOUR, published_at=AT - HOUR, served_at=AT, until=AT + HOUR,
    )  # fmt: skip


def some_state() -> Any:
    """What is compared is given by `shows`."""
    return object()


class World:
    """A table whose state is always that of the newest cut; it counts how often it is looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.newest, self.later = 1000.0, known(7), timedelta(0)
        self.glances = self.looks = 0  #: at the state that the ledger had with the newest cut, and with a lease
        self.checked, self.served, self.retired = list[int](), list[int](), list[int]()
        self.damaged: set[int] = set()
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(module, "look_plan", self._look)
        monkeypatch.setattr(module, "glanced", self._glance)
        monkeypatch.setattr(module, "as_served", lambda looked: looked)
        monkeypatch.setattr(module, "cut_bounds", lambda plan: {0: (0, 0, 0, 9)})
        monkeypatch.setattr(module, "shows", lambda cut, *_: not cut.is_over)
        monkeypatch.setattr(module, "maker_of", lambda looked: "schema 1")
        self.stores: Any = SimpleNamespace(
            cuts=SimpleNamespace(
                newest=lambda table: Newest(self.newest, self.clock, some_state()),
                serve=lambda cut, keep: self.served.append(cut.sequence),
                retire=self._retire,
                is_there=lambda table: True,
            ),
            cut_files=SimpleNamespace(check=self._check),
            leases=SimpleNamespace(end=lambda lease_id: None),
            tables=SimpleNamespace(table=lambda name: TABLE),
        )

    @property
    def clock(self) -> datetime:
        """The ledger's."""
        return AT + timedelta(seconds=self.now_s - 1000.0) + self.later

    def _check(self, cut: Cut) -> None:
        self.checked.append(cut.sequence)
        if cut.sequence in self.damaged:
            raise CutDamaged("a file is gone")

    def _retire(self, cut: Cut) -> None:
        self.retired.append(cut.sequence)
        self.newest = known(cut.sequence + 1, over=True)

    def _look(self, *_: object, **__: object) -> Any:
        self.looks += 1
        return self._looked()

    def _glance(self, *_: object) -> Any:
        self.glances += 1
        return self._looked()

    def _looked(self) -> Any:
        plan = ReadPlan(
            table=TABLE.name, table_id=1, version=1, schema_version=1, fields=(), bounds={}, lake=(), buffer=None,
            tail=None, lease_id="x", lease_until=AT,
        )  # fmt: skip
        return SimpleNamespace(table=TABLE, plan=plan, state=SimpleNamespace(version=1))

    def cutter(self, *, keep_s: float, every_s: float) -> Cutter:
        return Cutter(self.stores, holder="h", keep=timedelta(seconds=keep_s), every=timedelta(seconds=every_s))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_loads_within_the_time_get_the_cut_that_was_just_seen_to_be_the_newest(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.5)
    assert [cutter.load(TABLE).cut.sequence for _ in range(3)] == [7, 7, 7]
    assert (world.glances, world.looks) == (1, 0)
    world.now_s += 0.6
    cutter.load(TABLE)
    assert (world.glances, world.looks) == (2, 0)


def test_what_only_the_log_has_is_not_compared_with_what_the_ledger_knows(world: World):
    log: Any = SimpleNamespace(**{**vars(TABLE), "intake": SimpleNamespace(buffered=False)})
    world.cutter(keep_s=100.0, every_s=0.5).load(log)
    assert (world.glances, world.looks) == (0, 1)


def test_what_was_seen_is_as_old_as_the_question_to_the_ledger(world: World):
    """The answer may take long, and says what there was when it was asked for."""

    def late(_: Any) -> Newest:
        seen = Newest(world.newest, world.clock, some_state())
        world.now_s += 0.4
        return seen

    world.stores.cuts.newest = late
    cutter = world.cutter(keep_s=100.0, every_s=0.5)
    for _ in range(2):
        cutter.load(TABLE)
    assert world.glances == 2


def test_a_cut_of_another_server_is_newer_than_what_this_one_has_seen(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.5)
    cutter.load(TABLE)
    world.newest = known(8)
    assert cutter.load(TABLE).cut.sequence == 8
    assert (world.glances, world.looks) == (2, 0)


def test_a_state_that_is_the_same_is_compared_with_each_cut_once(world: World):
    state, cutter = some_state(), world.cutter(keep_s=100.0, every_s=0.5)
    world.stores.cuts.newest = lambda _: Newest(world.newest, world.clock, state)
    for sequence, glances in ((7, 1), (7, 1), (8, 2), (8, 2)):
        world.newest = known(sequence)
        world.now_s += 0.6
        assert cutter.load(TABLE).cut.sequence == sequence
        assert (world.glances, world.looks) == (glances, 0)


def test_a_state_that_has_changed_is_looked_at(world: World):
    world.stores.cuts.newest = lambda _: Newest(world.newest, world.clock, None)
    world.cutter(keep_s=100.0, every_s=0.5).load(TABLE)
    assert (world.glances, world.looks) == (0, 1)


def test_what_was_found_before_another_server_was_faster_is_not_taken_again(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    seen = Newest(world.newest, world.clock, some_state())
    found = Found(TABLE, seen, world.now_s, Marks(table=b"", state=b""))

    def overtaken(*_: object, **__: object) -> Cut:
        world.newest = known(8)
        raise CutOvertaken("another server was faster")

    monkeypatch.setattr(module, "shows", lambda cut, *_: cut.sequence == 8)
    monkeypatch.setattr(module, "answers", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", overtaken)
    assert world.cutter(keep_s=100.0, every_s=0.1).load(TABLE, found).cut.sequence == 8
    assert world.looks == 1


@pytest.mark.parametrize(
    ("version", "bounds", "looks"),
    [
        (1, {0: (0, 0, 0, 9)}, 1),
        (2, {0: (0, 0, 0, 11)}, 1),
        (1, {0: (0, 0, 0, 8)}, TRIES),
        (0, {0: (0, 0, 0, 9)}, TRIES),
        (1, {1: (0, 0, 0, 9)}, TRIES),  # without the partition that was looked at
    ],
)
def test_a_server_that_lost_gives_out_the_newer_cut_if_that_has_all_of_its_look(
    world: World, monkeypatch: pytest.MonkeyPatch, version: int, bounds: CutBounds, looks: int
):
    other = replace(known(8), version=version, bounds=bounds)

    def overtaken(*_: object, **__: object) -> Cut:
        world.newest = other
        raise CutOvertaken("another server was faster")

    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", overtaken)
    cutter = world.cutter(keep_s=900.0, every_s=0.1)
    if looks == 1:
        assert cutter.load(TABLE).cut is other
    else:
        with pytest.raises(CutOvertaken, match="5 times"):
            cutter.load(TABLE)
    assert world.looks == looks


@pytest.mark.parametrize(
    ("merged", "last", "given"),
    [
        (9, 9, "made"),
        (9, None, "made"),
        (12, 9, "made"),
        (4, 9, "last"),
        (0, 9, "last"),
        (4, -9, "refused"),  # of a cut that is over the numbers alone are known
        (0, None, "refused"),
        (0, 0, "last"),
    ],
)
def test_a_merged_state_that_shows_less_or_nothing_is_not_served(
    world: World, monkeypatch: pytest.MonkeyPatch, merged: int, last: int | None, given: str
):
    """A revert, or a batch view that is begun again, lowers `batch_hi`. A negative *last* is over."""
    spec = SimpleNamespace(key=("id",), serve=SimpleNamespace(over="lake"))
    table: Any = SimpleNamespace(name="shop.customers", intake=TABLE.intake, spec=spec)
    bounds = {0: SimpleNamespace(start=0, buffer_hi=20)}
    plan = SimpleNamespace(overlay=None, tail=None, lease_id="x", version=2, bounds=bounds)
    looked = SimpleNamespace(table=table, plan=plan, state=SimpleNamespace(version=2))

    def made(_: Cutter, making: Any) -> Cut:
        if making.bounds[0][3] == 20:
            raise CutOverLimits("shop.customers: too many hot keys")
        return known(8)

    monkeypatch.setattr(module, "look_plan", lambda *_, **__: looked)
    monkeypatch.setattr(module, "glanced", lambda *_: looked)
    monkeypatch.setattr(module, "cut_bounds", lambda plan: {0: (0, merged, merged, 20)})
    monkeypatch.setattr(module, "merged_bounds", lambda plan: {0: (0, merged, merged, merged)})
    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", made)
    before = (
        [] if last is None else [replace(known(7, over=last < 0), bounds={0: (0, abs(last), abs(last), abs(last))})]
    )
    world.stores.cuts.newest = lambda table: Newest(before[0] if before else None, AT, some_state())
    cutter = world.cutter(keep_s=900.0, every_s=0.5)
    if given == "refused":
        with pytest.raises(MergedBehind, match=r"shop\.customers"):
            cutter.load(table)
        return
    found = cutter.load(table)
    assert found.cut.sequence == (8 if given == "made" else 7)
    before[:] = [found.cut]
    behind = 0 if given == "made" else 20 - abs(last or 0)
    assert (found.behind, cutter.load(table).behind) == (behind, behind), "the second one without a look"


def test_a_long_keep_makes_fewer_cuts_so_that_the_ledger_takes_them(world: World):
    """However many servers there are: what counts is when the newest one was published, by whatever server."""
    world.newest = replace(known(7), looked_at=AT, until=AT + timedelta(hours=2))
    for age_s, looks in ((1.3, 0), (1.5, 2)):
        world.now_s = 1000.0 + age_s
        for cutter in (world.cutter(keep_s=7200.0, every_s=0.1), world.cutter(keep_s=60.0, every_s=0.1)):
            cutter.load(TABLE)
        assert world.glances == looks, "files of the other server's are kept for two hours"


@pytest.mark.parametrize(("made_s", "looks"), [(0.0, 0), (0.2, 1)])
def test_a_cut_that_took_long_to_make_is_as_old_as_its_look(world: World, made_s: float, looks: int):
    looked_at, until = AT - timedelta(seconds=made_s), AT + timedelta(seconds=60)
    world.newest = replace(known(7), looked_at=looked_at, published_at=AT, until=until)
    world.cutter(keep_s=60.0, every_s=0.1).load(TABLE)
    assert world.glances == looks


def test_a_cut_of_another_server_that_promised_less_is_kept_for_as_long_as_this_one_promises(world: World):
    world.newest = replace(known(7), looked_at=AT, until=AT + timedelta(seconds=60))
    world.cutter(keep_s=60.5, every_s=0.1).load(TABLE)
    assert world.served == [], "less than a second is missing"
    world.cutter(keep_s=600.0, every_s=0.1).load(TABLE)
    assert world.served == [7]


def test_the_files_of_a_cut_are_looked_for_before_it_is_given_out_and_again_after_a_while(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.1)
    for pause_s in (0.0, 0.05, 5.0, 4.0, 1.0, 9.0):
        world.now_s += pause_s
        cutter.load(TABLE)
    assert world.checked == [7, 7]
    world.newest = known(8)
    cutter.load(TABLE)
    assert world.checked == [7, 7, 8]


def test_what_a_cut_names_again_was_seen_when_the_one_before_was_looked_for(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """Else a lost chunk of a table that moves would be named by each of its cuts."""

    def made(_: Cutter, making: Any) -> Cut:
        world.newest = known(making.newest.sequence + 1)
        return world.newest

    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", made)
    cutter = world.cutter(keep_s=100.0, every_s=0.1)
    for _ in range(8):
        cutter.load(TABLE)
        world.now_s += 4.0
    assert world.checked == [7, 10, 13], "every ten seconds, of those after 0, 12 and 24 s"


def test_the_files_of_a_cut_that_another_load_chose_are_looked_for_as_well(world: World):
    cutter = world.cutter(keep_s=100.0, every_s=0.1)
    for _ in range(2):  # loads of two kinds take turns
        cutter.again(TABLE, known(3))
        world.now_s += 0.2
        cutter.load(TABLE)
    assert (world.checked, world.served) == ([3, 7], [3, 3])
    world.now_s += 10.0
    world.damaged = {3}
    with pytest.raises(CutDamaged):
        cutter.again(TABLE, known(3))
    assert (world.served, world.retired) == ([3, 3], [])


def test_a_damaged_cut_is_retired_and_another_one_is_made_in_its_place(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Cutter, "_made", lambda *_, **__: known(9))
    world.damaged = {7}
    cutter = world.cutter(keep_s=9000.0, every_s=0.1)
    served = cutter.load(TABLE)
    assert (served.made, served.cut.sequence) == (True, 9)
    assert (world.retired, world.served) == ([7], []), "it is not prolonged"
    world.newest = served.cut
    cutter.load(TABLE)
    assert world.checked == [7], "what this server has just made is there"


def test_a_damaged_cut_that_may_not_be_retired_yet_is_not_served(world: World):
    def refused(cut: Cut) -> None:
        raise CutDamaged("retired less than a minute ago")

    world.damaged, world.stores.cuts.retire = {7}, refused
    with pytest.raises(CutDamaged, match="less than a minute"):
        world.cutter(keep_s=9000.0, every_s=0.1).load(TABLE)
    assert world.served == []


def test_what_the_last_cut_left_behind_and_cannot_be_read_retires_it(world: World, monkeypatch: pytest.MonkeyPatch):
    def made(_: Cutter, *given: Any, **__: Any) -> Cut:
        if not given[0].newest.is_over:
            raise CutDamaged("a chunk is gone")
        return known(9)

    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", made)
    assert world.cutter(keep_s=900.0, every_s=0.1).load(TABLE).cut.sequence == 9
    assert world.retired == [7]


@pytest.mark.parametrize(("age_s", "serves"), [(59.0, True), (61.0, False), (-1.0, False)])
def test_a_table_with_as_many_cuts_as_there_may_be_is_served_by_a_young_one(
    world: World, monkeypatch: pytest.MonkeyPatch, age_s: float, serves: bool
):
    def full(*_: object, **__: object) -> Cut:
        raise CutsFull("10000 cuts are alive")

    monkeypatch.setattr(module, "shows", lambda *_: False)
    monkeypatch.setattr(Cutter, "_made", full)
    world.newest = replace(known(7), looked_at=AT - timedelta(seconds=age_s))
    cutter = world.cutter(keep_s=900.0, every_s=0.1)
    if serves:
        assert cutter.load(TABLE).cut.sequence == 7
    else:
        with pytest.raises(CutsFull):
            cutter.load(TABLE)


class Slow:
    """Makes a cut of *count* chunks, each of which takes some time; *begun* are the chunks that each cut began with."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, *, count: int) -> None:
        self.world, self.count, self.begun = world, count, list[list[str]]()
        self.written = self.rows = 0
        monkeypatch.setattr(module, "Chunks", self._of)
        world.newest = known(7, over=True)

    def _of(self, *given: Any, check: Any, wrote: Any, **_: Any) -> Slow:
        self.begun.append([chunk.path for chunk in given[3].chunks])
        self.check, self.wrote = check, wrote
        return self

    def chunks(self) -> Iterator[Chunk]:
        for number in range(len(self.begun[-1]), self.count):
            self.world.now_s += 50.0
            chunk = Chunk(path=str(number), ranges={0: (0, 1)}, rows=1, bytes=1, sequence=1, maker="schema 1", entry="")
            self.wrote(chunk)
            self.check()
            yield chunk


def test_a_cut_that_takes_too_long_is_given_up_and_the_next_one_goes_on_from_what_was_written(world, monkeypatch):
    slow, cutter = Slow(world, monkeypatch, count=7), world.cutter(keep_s=900.0, every_s=0.1)
    for _ in range(2):
        with pytest.raises(CutTooSlow, match="shop.orders: making a cut took longer than 120 s"):
            cutter.load(TABLE)
    assert (slow.begun, world.looks) == ([[], ["0", "1", "2"]], 2)


def test_what_is_too_old_by_the_clock_of_the_ledger_is_not_gone_on_from(world, monkeypatch):
    slow, cutter = Slow(world, monkeypatch, count=7), world.cutter(keep_s=900.0, every_s=0.1)
    for later_s in (0.0, UNNAMED_MAX.total_seconds() - 150.0, UNNAMED_MAX.total_seconds() + 1.0):
        world.later += timedelta(seconds=later_s)  # more than this process's clock, as of one that slept
        with pytest.raises(CutTooSlow):
            cutter.load(TABLE)
    assert slow.begun == [[], ["0", "1", "2"], []]


@pytest.mark.parametrize(
    ("error", "kept"), [(CutOvertaken("faster"), True), (LakeAway("gone"), True), (CutImpossible("no"), False)]
)
def test_chunks_that_may_be_to_blame_are_not_gone_on_from(world, monkeypatch, error: Exception, kept: bool):
    slow, cutter = Slow(world, monkeypatch, count=2), world.cutter(keep_s=900.0, every_s=0.1)

    def fail(*_: object, **__: object) -> None:
        raise error

    world.stores.cut_files = SimpleNamespace(write_cut=fail, check=world._check)
    monkeypatch.setattr(module, "makers_of", lambda *_: ())
    monkeypatch.setattr(module, "TRIES", 1)
    for _ in range(2):
        with pytest.raises(type(error)):
            cutter.load(TABLE)
    assert slow.begun == [[], ["0", "1"] if kept else []]


def test_a_damaged_chunk_that_no_cut_names_retires_no_cut(world, monkeypatch):
    slow, cutter = Slow(world, monkeypatch, count=4), world.cutter(keep_s=900.0, every_s=0.1)
    with pytest.raises(CutTooSlow):
        cutter.load(TABLE)

    def damaged(*_: object, **__: object) -> None:
        raise CutDamaged("a chunk is gone")

    world.stores.cut_files = SimpleNamespace(write_cut=damaged, check=world._check)
    monkeypatch.setattr(module, "makers_of", lambda *_: ())
    monkeypatch.setattr(module, "MAKING_S_MAX", 10_000.0)
    with pytest.raises(CutDamaged):
        cutter.load(TABLE)
    assert (slow.begun, world.retired) == ([[], ["0", "1", "2"], []], [])
