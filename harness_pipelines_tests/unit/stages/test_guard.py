"""How often the guard looks at the lake: rarely for a stage at rest, and never too late for one that writes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.ports.errors import LakeAway, LedgerOlderThanLake
from harness_pipelines.protocol.lake.history import NamedMove
from harness_pipelines.stages import guard as module
from harness_pipelines.stages.guard import ASKED_S, COMPARED_S, RESTING, WarehouseGuard

TABLE: Any = SimpleNamespace(table_id=1, name="shop.orders", views={"stream": "orders__stream"})


class Place:
    """A ledger, its server and its lake, and what was asked of them."""

    def __init__(self) -> None:
        self.now, self.connections = 1000.0, 1
        self.moves = [NamedMove(move_id=1, nonce="a")]
        self.known_moves: dict[int, set[str]] = {1: {"a"}}
        self.looks = 0
        self.marks: list[float] = []  #: how many times longer than a writer the mark was believed
        self.is_away = False
        self.mark_is_fresh, self.asked = True, 0

    def monotonic(self) -> float:
        return self.now

    # -- the mark, the histories and the lake --

    def check(self, *, times: float = 1) -> None:
        self.marks.append(times)

    def is_fresh(self) -> bool:
        return self.mark_is_fresh

    def follow(self) -> None:
        """Nothing was promoted."""

    def ask(self, _table: Any) -> None:
        """The server answers."""
        self.asked += 1

    def known(self, _table: Any, _moves: Sequence[int]) -> dict[int, set[str]]:
        return self.known_moves

    def highest_move(self, _table: Any) -> int:
        return max(self.known_moves)

    def begin(self, _table: Any, *, event: str) -> None:
        """The history is the one that began before."""

    def pointer(self, _table: Any, _view: str) -> str:
        return "s3://lake/orders/metadata/00001-a.metadata.json"

    def __call__(self, _table: Any, pointer: str, _view: str, *, read: Any) -> dict[str, list[NamedMove]]:
        self.looks += 1
        if self.is_away:
            raise LakeAway("the store does not answer")
        return {pointer: list(self.moves)}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


@pytest.fixture
def guard(place: Place) -> WarehouseGuard:
    ports: Any = place
    return WarehouseGuard(ports, ports, ports)


def check(guard: WarehouseGuard, place: Any, *, resting: bool = False) -> None:
    guard.check(TABLE, place, resting=resting)


def test_who_writes_nothing_looks_at_the_lake_rarely(guard: WarehouseGuard, place: Place):
    for _ in range(int(COMPARED_S) * RESTING):
        check(guard, place, resting=True)
        place.now += 1
    assert place.looks == 1
    check(guard, place, resting=True)
    assert place.looks == 2
    assert set(place.marks) == {1, RESTING}, "the mark is read as rarely, but for the first look"


def test_before_a_write_the_lake_was_looked_at_lately(guard: WarehouseGuard, place: Place):
    check(guard, place)
    place.now += COMPARED_S * 2
    check(guard, place, resting=True)
    place.moves.append(NamedMove(move_id=2, nonce="of the history that was lost"))
    check(guard, place, resting=True)
    assert place.looks == 1

    with pytest.raises(LedgerOlderThanLake, match="history lost"):
        check(guard, place)
    with pytest.raises(LedgerOlderThanLake):
        check(guard, place, resting=True)
    assert place.marks[-2] == 1, "the mark was read for the write"


def test_over_a_new_connection_who_rests_looks_at_once(guard: WarehouseGuard, place: Place):
    check(guard, place)
    place.moves.append(NamedMove(move_id=2, nonce="of the history that was lost"))
    place.connections += 1

    with pytest.raises(LedgerOlderThanLake):
        check(guard, place, resting=True)
    assert place.marks[-1] == 1


def test_a_look_that_failed_is_made_again(guard: WarehouseGuard, place: Place):
    check(guard, place)
    place.now += COMPARED_S
    place.is_away = True
    for _ in range(2):
        with pytest.raises(LakeAway):
            check(guard, place)
    place.is_away = False
    check(guard, place, resting=True)
    assert place.looks == 4


def test_what_a_writer_need_not_look_at_is_known_before(guard: WarehouseGuard, place: Place):
    assert not guard.is_fresh(TABLE)
    check(guard, place)
    assert guard.is_fresh(TABLE)
    place.mark_is_fresh = False
    assert not guard.is_fresh(TABLE)
    place.mark_is_fresh, place.connections = True, 2
    assert not guard.is_fresh(TABLE), "another server may answer"
    check(guard, place)
    assert guard.is_fresh(TABLE)
    place.now += COMPARED_S
    assert not guard.is_fresh(TABLE)


def test_tables_that_come_at_once_share_the_question_for_the_server(guard: WarehouseGuard, place: Place):
    for _ in range(5):
        check(guard, place)
    assert place.asked == 1
    place.now += ASKED_S
    check(guard, place)
    assert place.asked == 2
