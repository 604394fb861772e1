"""The catalog over cuts: which table is asked for, how often files are read, and what its readers' reports do."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import LakeAway, LakeFileMissing
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutOvertaken
from harness_pipelines.serve import catalog as module
from harness_pipelines.serve.catalog import FreshCatalog, Texts, read_file
from harness_pipelines.serve.values import TableBusy, TableNotServed, Warehouse, WarehouseRefused
from harness_pipelines_tests.served import AT

FRESH = Warehouse()
KEEP = timedelta(minutes=15)


class NoCut(HarnessError):
    """What the flow raises for a table that has none."""


def cut(number: int = 1) -> Cut:
    return Cut(
        snapshot_id=number, sequence=number, timestamp_ms=0, version=1, schema_version=1, bounds={},
        metadata=f"file:///lake/{number}.metadata.json", chunks=(), table_id=1, published_at=AT, served_at=AT,
        until=AT,
    )  # fmt: skip


@dataclass
class Made:
    """What a load gives."""

    cut: Cut


class Ledger:
    """Tables by name, and the cuts that were prolonged."""

    def __init__(self) -> None:
        self.rows = {
            name: SimpleNamespace(table_id=number) for number, name in enumerate(("shop.orders", "bank.ledger"))
        }
        self.prolonged: list[tuple[int, timedelta]] = []
        self.overtaken = False

    def names(self) -> Sequence[str]:
        return list(self.rows)

    def table(self, name: str) -> Any:
        if name not in self.rows:
            raise TableUnknown(f"no table {name!r}")
        return self.rows[name]

    def serve(self, cut: Cut, *, keep: timedelta) -> None:
        if self.overtaken:
            raise CutOvertaken("gone")
        self.prolonged.append((cut.snapshot_id, keep))

    newest: Any = None
    publish: Any = None


class Loads:
    """Gives `newest`; waits for `go_on`, and counts how many loads of a table run at once."""

    def __init__(self) -> None:
        self.newest: Cut | HarnessError = cut()
        self.go_on, self.arrived = threading.Event(), threading.Semaphore(0)
        self.go_on.set()
        self.at_once = self.most = 0

    def load(self, table: TableRow) -> Made:
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.arrived.release()
        assert self.go_on.wait(60)
        self.at_once -= 1
        if isinstance(self.newest, HarnessError):
            raise self.newest
        return Made(self.newest)


@dataclass
class Rig:
    """A catalog over what a test decides."""

    ledger: Ledger
    loads: Loads
    read: list[str]
    catalog: FreshCatalog


def rig(globs: Sequence[str] = ("*",)) -> Rig:
    ledger, loads, read = Ledger(), Loads(), list[str]()

    def bytes_of(location: str) -> bytes:
        read.append(location)
        return location.encode()

    made = FreshCatalog(ledger, ledger, lambda: loads, refused=(NoCut,), read=bytes_of, keep=KEEP, globs=globs)
    return Rig(ledger, loads, read, made)


def test_a_load_gives_the_cut_and_its_metadata_which_is_read_once():
    of = rig()
    for _ in range(3):
        found = of.catalog.cut("shop.orders", FRESH)
    assert (found.snapshot_id, found.metadata_location) == (1, "file:///lake/1.metadata.json")
    assert found.metadata == b"file:///lake/1.metadata.json"
    of.loads.newest = cut(2)
    assert of.catalog.cut("shop.orders", FRESH).snapshot_id == 2
    assert of.read == ["file:///lake/1.metadata.json", "file:///lake/2.metadata.json"]


def test_only_tables_that_the_server_shows_are_listed_and_loaded():
    of = rig(globs=("shop.*", "none.*"))
    assert of.catalog.names(FRESH) == ["shop.orders"]
    with pytest.raises(TableUnknown):
        of.catalog.cut("bank.ledger", FRESH)
    with pytest.raises(TableUnknown):
        of.catalog.reported("bank.ledger", FRESH, {})
    assert not of.loads.arrived.acquire(blocking=False)


def test_a_table_without_cuts_is_not_served_and_says_why():
    of = rig()
    of.loads.newest = NoCut("only a changelog")
    with pytest.raises(TableNotServed, match="only a changelog"):
        of.catalog.cut("shop.orders", FRESH)
    of.loads.newest = cut()
    assert of.catalog.cut("shop.orders", FRESH).snapshot_id == 1, "the next load is not held up"


@pytest.mark.parametrize("word", ["lake", "at:month-end", "pin:5s"])
def test_only_the_newest_state_is_offered(word: str):
    of, warehouse = rig(), Warehouse.parse(word)
    for call in (
        lambda: of.catalog.check(warehouse),
        lambda: of.catalog.names(warehouse),
        lambda: of.catalog.cut("shop.orders", warehouse),
        lambda: of.catalog.reported("shop.orders", warehouse, {}),
    ):
        with pytest.raises(WarehouseRefused, match=word):
            call()


def test_one_thread_makes_the_cuts_of_a_table(monkeypatch: pytest.MonkeyPatch):
    of = rig()
    of.loads.go_on.clear()
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(of.catalog.cut, "shop.orders", FRESH) for _ in range(8)]
        assert of.loads.arrived.acquire(timeout=60)
        of.loads.go_on.set()
        assert {one.result(60).snapshot_id for one in asked} == {1}
    assert of.loads.most == 1


def test_a_client_waits_for_a_cut_no_longer_than_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "WAIT_S", 0.05)
    of = rig()
    of.loads.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(of.catalog.cut, "shop.orders", FRESH)
        assert of.loads.arrived.acquire(timeout=60)
        with pytest.raises(TableBusy, match=r"shop\.orders"):
            of.catalog.cut("shop.orders", FRESH)
        other = pool.submit(of.catalog.cut, "bank.ledger", FRESH)
        assert of.loads.arrived.acquire(timeout=60), "another table does not wait"
        of.loads.go_on.set()
        assert (first.result(60).snapshot_id, other.result(60).snapshot_id) == (1, 1)


def test_a_report_keeps_the_files_of_the_cut_that_was_read():
    of = rig()
    of.catalog.cut("shop.orders", FRESH)
    of.loads.newest = cut(2)
    of.catalog.cut("shop.orders", FRESH)
    of.catalog.reported("shop.orders", FRESH, {"snapshot-id": 1, "report-type": "scan-report"})
    assert of.ledger.prolonged == [(1, KEEP)]


@pytest.mark.parametrize("snapshot", [None, 99, "1", 1.0e300, [1], True])
def test_a_report_of_a_cut_that_is_not_known_does_nothing(snapshot: object):
    of = rig()
    of.loads.newest = cut(5)
    of.catalog.cut("shop.orders", FRESH)
    of.catalog.reported("shop.orders", FRESH, {"snapshot-id": snapshot})
    assert of.ledger.prolonged == []


def test_a_report_that_comes_too_late_is_no_error():
    of = rig()
    of.catalog.cut("shop.orders", FRESH)
    of.ledger.overtaken = True
    of.catalog.reported("shop.orders", FRESH, {"snapshot-id": 1})
    with pytest.raises(TableUnknown):
        of.catalog.reported("shop.none", FRESH, {"snapshot-id": 1})


def test_cuts_that_may_be_reported_are_a_limited_number():
    of = rig()
    for number in range(1, 200):
        of.loads.newest = replace(cut(), snapshot_id=number)
        of.catalog.cut("shop.orders", FRESH)
    of.catalog.reported("shop.orders", FRESH, {"snapshot-id": 1})
    of.catalog.reported("shop.orders", FRESH, {"snapshot-id": 199})
    assert [number for number, _ in of.ledger.prolonged] == [199]


def test_texts_stay_in_memory_within_their_limit_and_the_last_read_one_always():
    read: list[str] = []

    def bytes_of(location: str) -> bytes:
        read.append(location)
        return b"x" * 40

    texts = Texts(bytes_of, bytes_max=100)
    for location in ("a", "b", "a", "c", "a", "b"):
        assert len(texts.of(location)) == 40
    assert read == ["a", "b", "c", "b"]
    huge = Texts(lambda _: b"x" * 1000, bytes_max=100)
    assert huge.of("a") is huge.of("a")


def test_a_metadata_file_that_is_missing_or_not_readable_is_named(tmp_path: Path):
    place = tmp_path / "a b.json"
    place.write_bytes(b"{}")
    assert read_file(place.as_uri().replace("%20", " ")) == b"{}"
    with pytest.raises(LakeFileMissing, match="none"):
        read_file(str(tmp_path / "none.json"))
    with pytest.raises(LakeAway, match=str(tmp_path)):
        read_file(str(tmp_path))
