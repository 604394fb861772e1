"""The catalog over cuts: which table is asked for, how often files are read, and what its readers' reports do."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.drivers.object_stores.roles import RoleRefused
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import LakeAway, LakeFileMissing
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged, CutImpossible, CutOvertaken, Found, Marks, Newest
from harness_pipelines.ports.serving.scans import ScanOfUnknown, ScanTooLarge, ScanWanted
from harness_pipelines.protocol.cuts import Chunk, cut_folder
from harness_pipelines.serve import catalog as module
from harness_pipelines.serve.catalog import FreshCatalog, LakeFiles, Makers, Texts, folders_of, read_file
from harness_pipelines.serve.storage import Storage
from harness_pipelines.serve.values import TableBusy, TableNotServed, Warehouse
from harness_pipelines_tests.served import AT

FRESH = Warehouse()
KEEP = timedelta(minutes=15)


def cut(number: int = 1) -> Cut:
    return Cut(
        snapshot_id=number, sequence=number, timestamp_ms=0, version=1, schema_version=1, bounds={},
        metadata=f"file:///lake/{number}.metadata.json", chunks=(), table_id=1, looked_at=AT,
        published_at=AT, served_at=AT, until=AT,
    )  # fmt: skip


@dataclass
class Made:
    """What a load gives."""

    cut: Cut
    made: bool = False
    behind: int = 0


class Ledger:
    """Tables by name, and the cuts that were prolonged."""

    def __init__(self) -> None:
        self.rows = {
            name: SimpleNamespace(
                table_id=number, name=name, spec=SimpleNamespace(key=()), views={"stream": name, "batch": name}
            )
            for number, name in enumerate(("shop.orders", "bank.ledger"))
        }
        self.prolonged: list[tuple[int, timedelta]] = []
        self.overtaken = False
        self.lake_snapshot = "7"
        self.alive: dict[int, Cut] = {}  #: by snapshot
        self.pins: dict[tuple[int, int, int], Cut] = {}  #: by table, length of the window, and window
        self.window = 0
        self.snapshots: dict[str, Sequence[str]] = {}
        self.asked_at = time.monotonic
        self.asked_with = list[Found | None]()  #: what each load knew

    def names(self) -> Sequence[str]:
        return list(self.rows)

    def table(self, name: str) -> Any:
        if name not in self.rows:
            raise TableUnknown(f"no table {name!r}")
        return self.rows[name]

    def found(self, name: str, *, known: Found | None = None) -> Found | None:
        self.asked_with.append(known)
        row: Any = self.rows.get(name)
        newest = Newest(cut=None, clock=AT, state=None)
        marks = Marks(table=b"", state=b"%d" % len(self.asked_with))
        return Found(row, newest, self.asked_at(), marks) if row is not None else None

    def pointer(self, table: Any, view: str) -> str:
        return f'{{"current-snapshot-id": {self.lake_snapshot}, "location": "{table.views[view]} {view}"}}'

    def serve(self, cut: Cut, *, keep: timedelta) -> None:
        if self.overtaken:
            raise CutOvertaken("gone")
        self.prolonged.append((cut.snapshot_id, keep))

    def known(self, table: TableRow, snapshot_id: int) -> Cut | None:
        return self.alive.get(snapshot_id)

    def pinned(
        self, table: TableRow, *, every_s: int, mine: Cut | None = None, window: int | None = None
    ) -> tuple[Cut | None, int]:
        assert (mine is None) == (window is None), "a load chooses for the window that it began in"
        window = self.window if window is None else window
        key = (table.table_id, every_s, window)
        return (self.pins.get(key) if mine is None else self.pins.setdefault(key, mine)), window

    def tables_of(self, name: str) -> Sequence[str]:
        return self.snapshots.get(name, ())

    is_there: Any = None
    merged: Any = None
    newest: Any = None
    named: Any = None
    publish: Any = None
    publish_named: Any = None
    retire: Any = None


class Loads:
    """Gives `newest`; waits for `go_on`, and counts how many loads of a table run at once."""

    def __init__(self) -> None:
        self.newest: Cut | HarnessError = cut()
        self.go_on, self.arrived = threading.Event(), threading.Semaphore(0)
        self.go_on.set()
        self.at_once = self.most = 0
        self.made, self.behind = False, 0
        self.given_again = list[int]()
        self.found = list[Found | None]()  #: what each load was given
        self.lost = dict[int, HarnessError]()  #: by snapshot, why it is not given again

    def load(self, table: TableRow, found: Found | None = None) -> Made:
        self.found.append(found)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.arrived.release()
        assert self.go_on.wait(60)
        self.at_once -= 1
        if isinstance(self.newest, HarnessError):
            raise self.newest
        return Made(self.newest, self.made, self.behind)

    def again(self, table: TableRow, cut: Cut) -> Made:
        if (why := self.lost.get(cut.snapshot_id)) is not None:
            raise why
        self.given_again.append(cut.snapshot_id)
        return Made(cut)


class Named:
    """Gives the cut of a snapshot; waits for `go_on`."""

    def __init__(self) -> None:
        self.cuts: dict[str, Cut] = {}
        self.go_on, self.arrived = threading.Event(), threading.Semaphore(0)
        self.go_on.set()

    def load(self, table: TableRow, name: str) -> Made:
        self.arrived.release()
        assert self.go_on.wait(60)
        if name not in self.cuts:
            raise TableUnknown(f"{table.name} is in no snapshot {name}")
        return Made(self.cuts[name])


class Scans:
    """Plans a scan of any metadata file, which it names."""

    trouble: Exception | None = None

    def plan(self, metadata: str, wanted: ScanWanted) -> Mapping[str, Any]:
        if self.trouble:
            raise self.trouble
        return {"of": metadata, "snapshot": wanted.snapshot_id}


@dataclass
class Rig:
    """A catalog over what a test decides."""

    ledger: Ledger
    loads: Loads
    named: Named
    scans: Scans
    read: list[str]
    catalog: FreshCatalog


def rig(globs: Sequence[str] = ("*",)) -> Rig:
    ledger, loads, named, scans, read = Ledger(), Loads(), Named(), Scans(), list[str]()

    def bytes_of(location: str) -> bytes:
        read.append(location)
        return location.encode()

    makers = Makers(loads, named)
    made = FreshCatalog(ledger, ledger, lambda: makers, files=LakeFiles(bytes_of, scans), keep=KEEP, globs=globs)
    return Rig(ledger, loads, named, scans, read, made)


def another(of: Rig, **options: Any) -> FreshCatalog:
    """Another server of the same tables."""
    makers, files = Makers(of.loads, of.named), LakeFiles(str.encode, of.scans)
    return FreshCatalog(of.ledger, of.ledger, lambda: makers, files=files, keep=KEEP, **options)


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
        of.catalog.reported("bank.ledger", 1)
    assert not of.loads.arrived.acquire(blocking=False)


def test_a_table_without_cuts_is_not_served_and_says_why():
    of = rig()
    of.loads.newest = CutImpossible("only a changelog")
    with pytest.raises(TableNotServed, match="only a changelog"):
        of.catalog.cut("shop.orders", FRESH)
    of.loads.newest = cut()
    assert of.catalog.cut("shop.orders", FRESH).snapshot_id == 1, "the next load is not held up"


def test_all_loads_of_a_window_give_the_cut_of_its_first_load_by_any_server():
    of, pin = rig(), Warehouse.parse("pin:5s")
    other = another(of)
    found = []
    for number in range(1, 5):
        of.loads.newest = cut(number)
        of.ledger.window = number // 3
        found += [catalog.cut("shop.orders", pin).snapshot_id for catalog in (of.catalog, other)]
        assert of.catalog.cut("shop.orders", FRESH).snapshot_id == number
    assert found == [1, 1, 1, 1, 3, 3, 3, 3]
    assert of.catalog.cut("bank.ledger", pin).snapshot_id == 4, "each table has its own"
    assert of.catalog.cut("shop.orders", Warehouse.parse("pin:9s")).snapshot_id == 4, "and each length of a window"


def test_a_load_chooses_for_the_window_that_it_began_in():
    of, pin = rig(), Warehouse.parse("pin:5s")
    load = of.loads.load

    def slow(table: TableRow, found: Found | None = None) -> Made:
        of.ledger.window += 3
        return load(table, found)

    of.loads.load = slow  # type: ignore[method-assign]
    assert of.catalog.cut("shop.orders", pin).snapshot_id == 1
    assert [window for *_, window in of.ledger.pins] == [0]


def test_a_window_whose_cut_is_over_has_another_one():
    of, pin = rig(), Warehouse.parse("pin:5s")
    of.catalog.cut("shop.orders", pin)
    of.loads.newest, of.loads.lost[1] = cut(2), CutOvertaken("its time has ended")
    of.ledger.pins = {key: cut(2) for key in of.ledger.pins}
    assert of.catalog.cut("shop.orders", pin).snapshot_id == 2
    of.catalog.cut("shop.orders", pin)
    assert of.loads.given_again == [2, 2], "its files are looked for, and stay"


def test_a_window_whose_cut_is_damaged_gets_the_newest_one():
    of, pin = rig(), Warehouse.parse("pin:5s")
    of.catalog.cut("shop.orders", pin)
    of.loads.newest, of.loads.lost[1] = cut(2), CutDamaged("a chunk is gone")
    assert of.catalog.cut("shop.orders", pin).snapshot_id == 2


def test_a_load_of_the_lake_gives_the_view_of_its_version_and_makes_no_cut():
    of, lake = rig(), Warehouse.parse("lake")
    found = of.catalog.cut("shop.orders", lake)
    assert (found.snapshot_id, found.made_s) == (7, None)
    assert b"shop.orders batch" in found.metadata
    of.ledger.lake_snapshot = "8"
    assert of.catalog.cut("shop.orders", lake).etag != found.etag
    of.ledger.lake_snapshot = "null"  # of a view without rows
    assert of.catalog.cut("shop.orders", lake).snapshot_id == 0
    of.ledger.rows["shop.orders"].views = {"stream": "shop.orders"}
    assert b"shop.orders stream" in of.catalog.cut("shop.orders", lake).metadata
    of.ledger.rows["shop.orders"].spec.key = ("id",)
    with pytest.raises(TableNotServed, match=r"shop\.orders is keyed"):  # a changelog is no state
        of.catalog.cut("shop.orders", lake)
    assert not of.ledger.prolonged
    assert not of.loads.arrived.acquire(blocking=False)


def test_a_load_of_a_named_snapshot_gives_its_cut_and_lists_its_tables():
    of, at = rig(globs=("shop.*",)), Warehouse.parse("at:month-end")
    of.ledger.snapshots["month-end"] = ["bank.ledger", "shop.orders"]
    of.named.cuts["month-end"] = cut(5)
    of.loads.behind = 3
    assert of.catalog.names(at) == ["shop.orders"]
    found = of.catalog.cut("shop.orders", at)
    assert (found.snapshot_id, found.behind) == (5, 0)
    assert of.catalog.names(Warehouse.parse("at:none")) == []
    with pytest.raises(TableUnknown, match="in no snapshot none"):
        of.catalog.cut("shop.orders", Warehouse.parse("at:none"))
    with pytest.raises(TableUnknown):
        of.catalog.cut("bank.ledger", at)


def test_a_named_cut_that_takes_long_holds_up_no_load_of_the_newest_state():
    of, at = rig(), Warehouse.parse("at:month-end")
    of.named.cuts["month-end"] = cut(5)
    of.named.go_on.clear()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(of.catalog.cut, "shop.orders", at)
        assert of.named.arrived.acquire(timeout=60)
        assert of.catalog.cut("shop.orders", FRESH).snapshot_id == 1
        of.named.go_on.set()
        assert slow.result(60).snapshot_id == 5


def test_an_answer_says_what_was_written_for_it():
    of = rig()
    chunks = [
        Chunk(path=f"{size}", ranges={0: (0, 1)}, rows=1, bytes=size, sequence=sequence, maker="m", entry="{}")
        for size, sequence in ((100, 1), (10, 2), (1, 2))
    ]
    of.loads.newest = replace(cut(2), chunks=tuple(chunks))
    again = of.catalog.cut("shop.orders", FRESH)
    assert (again.made_s, again.made_bytes) == (None, 0)
    of.loads.made = True
    made = of.catalog.cut("shop.orders", FRESH)
    assert made.made_s is not None
    assert made.made_bytes == 11
    of.loads.behind = 5
    assert of.catalog.cut("shop.orders", FRESH).behind == 5


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


def test_a_report_keeps_the_files_of_a_cut_that_any_server_gave_out():
    of = rig()
    of.ledger.alive = {1: cut(1)}
    assert of.catalog.reported("shop.orders", 1)
    assert not of.catalog.reported("shop.orders", 99)
    assert of.ledger.prolonged == [(1, KEEP)]


def test_a_report_that_comes_too_late_is_no_error():
    of = rig()
    of.ledger.alive, of.ledger.overtaken = {1: cut(1)}, True
    assert not of.catalog.reported("shop.orders", 1)
    with pytest.raises(TableUnknown):
        of.catalog.reported("shop.none", 1)


def test_a_scan_is_of_the_cut_that_the_engine_loaded_whose_files_stay_then_or_of_the_one_of_now():
    of = rig()
    of.ledger.alive = {1: cut(1)}
    of.loads.newest = cut(2)
    found = of.catalog.scan("shop.orders", FRESH, ScanWanted(snapshot_id=1))
    assert found == {"of": "file:///lake/1.metadata.json", "snapshot": 1}
    assert of.ledger.prolonged == [(1, KEEP)]
    assert of.catalog.scan("shop.orders", FRESH, ScanWanted())["of"] == "file:///lake/2.metadata.json"
    lake = of.catalog.scan("shop.orders", Warehouse.parse("lake"), ScanWanted(snapshot_id=7))
    assert "shop.orders batch" in lake["of"]
    for number, is_over in ((99, False), (1, True)):
        of.ledger.overtaken = is_over
        with pytest.raises(ScanOfUnknown, match="has ended"):
            of.catalog.scan("shop.orders", FRESH, ScanWanted(snapshot_id=number))
    with pytest.raises(TableUnknown):
        of.catalog.scan("shop.none", FRESH, ScanWanted())
    of.scans.trouble = ScanTooLarge("10,001 files")
    with pytest.raises(TableNotServed, match="10,001 files"):
        of.catalog.scan("shop.orders", FRESH, ScanWanted())


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


# -- keys ---------------------------------------------------------------------------------------------------------


class Vended:
    """Hands out what names the table; `trouble` is raised."""

    def __init__(self) -> None:
        self.trouble: HarnessError | None = None

    def of(self, table: TableRow) -> Storage:
        if self.trouble:
            raise self.trouble
        return Storage(prefix="s3://lake/", config={"of": table.name})


def test_each_load_hands_out_what_reaches_its_table():
    of, vended = rig(), Vended()
    catalog = another(of, globs=("shop.*",), vending=vended)
    for warehouse in (FRESH, Warehouse.parse("pin:5s"), Warehouse.parse("lake")):
        assert catalog.cut("shop.orders", warehouse).storage.config == {"of": "shop.orders"}
    assert catalog.storage("shop.orders").config == {"of": "shop.orders"}
    for name in ("bank.ledger", "no.such"):
        with pytest.raises(TableUnknown):
            catalog.storage(name)


def test_no_cut_is_made_for_a_table_whose_keys_are_refused():
    of, vended = rig(), Vended()
    catalog = another(of, globs=("shop.*",), vending=vended)
    vended.trouble = RoleRefused("the role is gone")
    with pytest.raises(RoleRefused):
        catalog.cut("shop.orders", FRESH)
    assert not of.loads.arrived.acquire(blocking=False)


@pytest.mark.parametrize(
    ("views", "beside"),
    [
        ({"stream": "orders__stream", "batch": "orders"}, "s3://lake/w/shop/orders__stream-1a"),
        ({"batch": "orders"}, "s3://lake/w/shop/orders-1a"),
    ],
)
def test_a_table_lies_in_the_folders_of_its_views_and_of_its_cuts(views: dict[str, str], beside: str):
    """The last is the folder that cuts are written to: beside the view that tier writes."""
    row: Any = SimpleNamespace(views=views, spec=SimpleNamespace(name="orders"))
    places = {view: f"s3://lake/w/shop/{name}-1a" for view, name in views.items()}
    ledger: Any = SimpleNamespace(pointer=lambda _, view: f"{places[view]}/metadata/00007-x.metadata.json")
    *of_views, fresh = folders_of(ledger, row)
    assert of_views == list(places.values())
    assert fresh == cut_folder("orders", f"{beside}/metadata/1.metadata.json")
    assert fresh.startswith("s3://lake/w/shop/orders__fresh-")


def test_a_load_of_the_newest_state_asks_once_and_names_the_cut_that_it_knows():
    of = rig()
    for _ in range(2):
        of.catalog.cut("shop.orders", FRESH)
    of.loads.newest = cut(2)
    of.catalog.cut("shop.orders", FRESH)
    of.catalog.cut("shop.orders", FRESH)
    first, *known = of.ledger.asked_with
    assert first is None
    assert [(one.newest.cut, one.marks.state) for one in known if one] == [
        (cut(1), b"1"), (cut(1), b"2"), (cut(2), b"3"),
    ], "each is what was found last, with the cut that was given out then"  # fmt: skip
    assert [one is not None and one.table for one in of.loads.found] == [of.ledger.rows["shop.orders"]] * 4


def test_what_was_found_before_a_wait_is_not_taken_for_what_is_there_now():
    of = rig()
    of.ledger.asked_at = lambda: time.monotonic() - module.FOUND_S
    of.catalog.cut("shop.orders", FRESH)
    assert of.loads.found == [None]
