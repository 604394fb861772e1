"""The mark of a warehouse: whom it names, who may write it, and when it is read again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from harness_pipelines.lakes import owner
from harness_pipelines.lakes.owner import MARK, TRUSTED_S, Ownership
from harness_pipelines.ports.errors import LakeAway, WarehouseTaken


class Ledger:
    """A ledger's database, as far as its mark goes."""

    dsn = "host=db.example port=5432 dbname=lake"

    def __init__(self, instance: str = "7/16384") -> None:
        self.ledger = self.epoch = str(uuid4())
        self.instance = instance
        self.timeline = 1

    def rows(self, name: str) -> list[dict[str, Any]]:
        assert name == "reconcile/ledger_id"
        told = {"ledger_id": self.ledger, "epoch": self.epoch, "database": "lake", "instance": self.instance}
        return [{**told, "timeline": self.timeline}]

    def run(self, name: str) -> int:
        assert name == "reconcile/new_epoch"
        self.epoch = str(uuid4())
        return 1


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(owner, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


def of(ledger: Any, folder: Path) -> Ownership:
    return Ownership(ledger, warehouse=folder.as_uri())


def test_a_copy_of_the_disks_loses_the_warehouse_as_soon_as_one_side_took_over(tmp_path: Path):
    ledger = Ledger()
    original, copied = of(ledger, tmp_path), of(copy.copy(ledger), tmp_path)
    original.confirm()
    copied.confirm()  # nothing tells the two apart yet

    copied.take_over()

    with pytest.raises(WarehouseTaken, match=r"another copy of this ledger, in database lake at db\.example:5432"):
        original.confirm()
    copied.confirm()
    original.take_over()
    original.confirm()
    with pytest.raises(WarehouseTaken):
        copied.confirm()


def test_a_server_that_was_promoted_takes_the_warehouse_from_the_one_that_was_left_behind(tmp_path: Path):
    ledger = Ledger()
    left, promoted = of(ledger, tmp_path), copy.copy(ledger)
    left.confirm()
    promoted.timeline = 2
    follows = of(promoted, tmp_path)
    follows.confirm()  # it may look before it knows that it has all that the lake names
    left.confirm()

    follows.follow()

    with pytest.raises(WarehouseTaken, match=r"promoted since \(timeline 2, .*this one writes timeline 1"):
        left.confirm()
    follows.confirm()
    with pytest.raises(WarehouseTaken):
        left.confirm()
    left.follow()
    follows.confirm()


def test_of_two_ledgers_that_come_at_once_the_first_has_the_warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = of(Ledger(), tmp_path), of(Ledger(), tmp_path)
    looks, nothing = second._found, iter([None])
    monkeypatch.setattr(second, "_found", lambda: next(nothing, looks()))  # there was no mark when it looked
    first.confirm()

    with pytest.raises(WarehouseTaken, match=r"belongs to the ledger [0-9a-f-]+ in database lake"):
        second.confirm()
    first.confirm()


def test_a_mark_is_believed_for_a_while_and_then_read_again(tmp_path: Path, clock: Clock):
    ours = of(Ledger(), tmp_path)
    ours.check()
    of(Ledger(), tmp_path).take_over()

    clock.now += TRUSTED_S - 1
    ours.check()
    clock.now += 1
    for _ in range(2):
        with pytest.raises(WarehouseTaken):
            ours.check()


def test_who_removes_files_reads_the_mark_at_once(tmp_path: Path, clock: Clock):
    ours = of(Ledger(), tmp_path)
    ours.check()
    of(Ledger(), tmp_path).take_over()

    with pytest.raises(WarehouseTaken):
        ours.confirm()
    with pytest.raises(WarehouseTaken):
        ours.check()


def test_a_warehouse_that_is_away_holds_up_only_who_removes_files_and_is_not_made_anew(tmp_path: Path, clock: Clock):
    folder = tmp_path / "warehouse"
    ours = of(Ledger(), folder)
    ours.check()
    folder.rename(tmp_path / "elsewhere")

    clock.now += TRUSTED_S
    ours.check()
    with pytest.raises(LakeAway, match=rf"has no {MARK} any more"):
        ours.confirm()
    assert not folder.exists()


def test_a_mark_of_an_earlier_harness_names_its_ledger_until_somebody_takes_over(tmp_path: Path):
    ledger = Ledger()
    words = {"ledger": ledger.ledger, "instance": ledger.instance, "database": "lake"}
    (tmp_path / MARK).write_text(json.dumps(words))
    ours = of(ledger, tmp_path)
    ours.confirm()

    of(copy.copy(ledger), tmp_path).take_over()

    with pytest.raises(WarehouseTaken):
        ours.confirm()


@pytest.mark.parametrize("written", ["", "{", "[]", '{"ledger": 1}'])
def test_a_mark_that_cannot_be_read_is_named_and_a_take_over_writes_it_anew(tmp_path: Path, written: str):
    (tmp_path / MARK).write_text(written)
    ours = of(Ledger(), tmp_path)
    with pytest.raises(WarehouseTaken, match=r"cannot be read.*--take-over"):
        ours.confirm()
    assert ours.stranger() == f"an unknown ledger: {MARK} cannot be read"

    ours.take_over()

    assert ours.stranger() is None
    assert [path.name for path in tmp_path.iterdir()] == [MARK]


def test_whose_a_warehouse_is_can_be_asked_without_taking_it(tmp_path: Path):
    ours = of(Ledger(), tmp_path)
    assert ours.stranger() is None
    assert list(tmp_path.iterdir()) == []

    other = Ledger()
    of(other, tmp_path).confirm()

    assert ours.stranger() == f"the ledger {other.ledger} in database lake at db.example:5432"
