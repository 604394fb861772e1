"""The tables of one installation as a catalog: each load gets the newest cut, made by one thread for each table."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import orjson

from harness_pipelines.ports.errors import LakeAway, LakeFileMissing
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutBook, CutDamaged, CutImpossible, CutOvertaken, Found
from harness_pipelines.ports.serving.scans import ScanOfUnknown, ScanPlans, ScanTooLarge, ScanWanted
from harness_pipelines.ports.serving.tokens import is_named
from harness_pipelines.protocol.cuts import cut_folder
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.serve.storage import OneForAll, Storage, Vending, handed_out
from harness_pipelines.serve.values import CutAnswer, TableBusy, TableNotServed, Warehouse
from harness_pipelines.spec.locations import folder_of

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores

METADATA_BYTES_MAX = 64 * 1024 * 1024  #: of metadata files that are kept in memory
OWN_KEYS = OneForAll(Storage())
FOUND_S = 0.5  #: for so long a load takes what the ledger answered for what is there now
WAIT_S = 30.0  #: for the thread that makes a cut of the same table


class Tables(Protocol):
    """What the ledger says of tables, to a reader."""

    def names(self) -> Sequence[str]: ...

    def table(self, name: str) -> TableRow:
        """Raises: TableUnknown."""
        ...

    def pointer(self, table: TableRow, view: ViewName) -> str:
        """Location of the metadata file of a view of the lake."""
        ...


class ServedCut(Protocol):
    """What a load found, or made."""

    @property
    def cut(self) -> Cut: ...

    @property
    def made(self) -> bool: ...

    @property
    def behind(self) -> int: ...


class Loads(Protocol):
    """Makes the cuts of one table; one thread at a time."""

    def load(self, table: TableRow, found: Found | None = None) -> ServedCut:
        """*found*: what the ledger was asked for just now."""
        ...

    def again(self, table: TableRow, cut: Cut) -> ServedCut:
        """*cut*, which is alive. Raises: CutDamaged, CutOvertaken."""
        ...


class NamedLoads(Protocol):
    """Makes the cuts of the named snapshots of one table; one thread at a time."""

    def load(self, table: TableRow, name: str) -> ServedCut:
        """Raises: TableUnknown where the snapshot does not have the table."""
        ...


class Makers(NamedTuple):
    """Of one table."""

    newest: Loads
    named: NamedLoads


class LakeFiles(NamedTuple):
    """How the server reads files of the lake."""

    read: Callable[[str], bytes]  #: a metadata file
    scans: ScanPlans


class _Table:
    """What the server knows of one table."""

    def __init__(self, makers: Makers) -> None:
        self.loads, self.lock = makers.newest, threading.Lock()
        self.named, self.named_lock = makers.named, threading.Lock()  #: a large one holds up no load of the newest
        self.behind = 0  #: offsets that the last cut leaves out


class FreshCatalog:
    """A `Catalog` over cuts.

    *globs* limit what the server shows, to any token. *vending* gives what is handed out with each load.
    """

    def __init__(
        self,
        tables: Tables,
        cuts: CutBook,
        makers: Callable[[], Makers],
        *,
        files: LakeFiles,
        keep: timedelta,
        globs: Sequence[str] = ("*",),
        vending: Vending = OWN_KEYS,
    ) -> None:
        self._ledger, self._cuts, self._makers = tables, cuts, makers
        self._keep, self._globs, self._vending = keep, globs, vending
        self._scans = files.scans
        self._metadata = Texts(files.read)
        self._lock = threading.Lock()
        self._tables: dict[int, _Table] = {}
        #: By name, of each table that was loaded: what was found last, with the newest cut that was given out then.
        self._given: dict[str, Found] = {}

    def names(self, warehouse: Warehouse) -> Sequence[str]:
        names = self._cuts.tables_of(warehouse.snapshot) if warehouse.snapshot else self._ledger.names()
        return [name for name in names if self._shows(name)]

    def cut(self, name: str, warehouse: Warehouse) -> CutAnswer:
        found = self._found(name) if warehouse.kind == "fresh" else None
        row = self._row(name) if found is None else found.table
        storage = self._vending.of(row)
        if warehouse.kind == "lake":
            return self._lake(row, storage)
        known = self._known(row)
        lock = known.named_lock if warehouse.snapshot else known.lock
        if not lock.acquire(timeout=WAIT_S):
            raise TableBusy(f"{name}: a cut has been made for more than {WAIT_S:g} s; load it again")
        began = time.monotonic()
        if found is not None and began - found.asked > FOUND_S:  # another load ran, or keys were asked for
            found = None
        try:
            cut, made = self._served(known, row, warehouse, found)
            behind = 0 if warehouse.snapshot else known.behind
        except CutImpossible as why:
            raise TableNotServed(str(why)) from why
        finally:
            lock.release()
        took_s = time.monotonic() - began
        return CutAnswer(
            snapshot_id=cut.snapshot_id,
            metadata_location=cut.metadata,
            metadata=self._metadata.of(cut.metadata),
            storage=storage,
            made_s=took_s if made else None,
            made_bytes=sum(chunk.bytes for chunk in cut.chunks if chunk.sequence == cut.sequence) if made else 0,
            behind=behind,
        )

    def storage(self, name: str) -> Storage:
        return self._vending.of(self._row(name))

    def _served(self, known: _Table, row: TableRow, warehouse: Warehouse, found: Found | None) -> tuple[Cut, bool]:
        if warehouse.snapshot:
            served = known.named.load(row, warehouse.snapshot)
            return served.cut, served.made
        if warehouse.every_s:
            return self._pinned(known, row, warehouse.every_s)
        cut, made = _load(known, row, found)
        if found is not None:
            self._given[row.name] = found._replace(newest=found.newest._replace(cut=cut))
        return cut, made

    def _lake(self, row: TableRow, storage: Storage) -> CutAnswer:
        """The newest version of the view that the lake alone answers from, as a mirror of the table shows it."""
        view: ViewName = "batch" if "batch" in row.views else "stream"
        if row.spec.key and view == "stream":
            raise TableNotServed(f"{row.name} is keyed and has the stream view alone, which is no state of it")
        location = self._ledger.pointer(row, view)
        metadata = self._metadata.of(location)
        return CutAnswer(
            snapshot_id=orjson.loads(metadata).get("current-snapshot-id") or 0,
            metadata_location=location,
            metadata=metadata,
            storage=storage,
        )

    def _pinned(self, known: _Table, row: TableRow, every_s: int) -> tuple[Cut, bool]:
        """The cut of this window, which the first load in it chooses, by whatever server it comes."""
        found, window = self._cuts.pinned(row, every_s=every_s)
        if found is not None:
            try:
                return known.loads.again(row, found).cut, False
            except CutDamaged:  # the newest one is no older
                return _load(known, row)
            except CutOvertaken:  # it is over just now
                pass
        mine, made = _load(known, row)
        first, _ = self._cuts.pinned(row, every_s=every_s, mine=mine, window=window)
        if first is None or first.sequence == mine.sequence:
            return mine, made
        return known.loads.again(row, first).cut, False

    def scan(self, name: str, warehouse: Warehouse, wanted: ScanWanted) -> Mapping[str, Any]:
        """The files of the cut that the engine has loaded, or of the one that it would get now."""
        if warehouse.kind == "lake" or wanted.snapshot_id is None:
            location = self.cut(name, warehouse).metadata_location
        else:
            location = self._kept(name, wanted.snapshot_id).metadata
        try:
            return self._scans.plan(location, wanted)
        except ScanTooLarge as why:
            raise TableNotServed(str(why)) from why

    def _kept(self, name: str, snapshot_id: int) -> Cut:
        """The cut of a snapshot, whose files stay from now on. Raises: ScanOfUnknown, TableUnknown."""
        cut = self._cuts.known(self._row(name), snapshot_id)
        if cut is not None:
            with suppress(CutOvertaken):
                self._cuts.serve(cut, keep=self._keep)
                return cut
        raise ScanOfUnknown(f"{name}: the time of snapshot {snapshot_id} has ended, or it was never there")

    def reported(self, name: str, snapshot_id: int) -> bool:
        """Let the files of the cut that was read stay: a query may be followed by another one over the same cut."""
        cut = self._cuts.known(self._row(name), snapshot_id)
        if cut is None:
            return False
        try:
            self._cuts.serve(cut, keep=self._keep)
        except CutOvertaken:
            return False
        return True

    def _shows(self, name: str) -> bool:
        return is_named(name, self._globs)

    def _found(self, name: str) -> Found | None:
        """The table with its newest cut and its state, by one question; None: there is none, or it is not shown."""
        return self._cuts.found(name, known=self._given.get(name)) if self._shows(name) else None

    def _row(self, name: str) -> TableRow:
        if not self._shows(name):
            raise TableUnknown(f"no table {name!r} is served")
        return self._ledger.table(name)

    def _known(self, row: TableRow) -> _Table:
        with self._lock:
            if row.table_id not in self._tables:
                self._tables[row.table_id] = _Table(self._makers())
            return self._tables[row.table_id]


def _load(known: _Table, row: TableRow, found: Found | None = None) -> tuple[Cut, bool]:
    served = known.loads.load(row, found)
    known.behind = served.behind
    return served.cut, served.made


class Texts:
    """Metadata files by location, which never change: the newest read ones stay in memory."""

    def __init__(self, read: Callable[[str], bytes], *, bytes_max: int = METADATA_BYTES_MAX) -> None:
        self._read, self._bytes_max = read, bytes_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, location: str) -> bytes:
        with self._lock:
            if (found := self._kept.get(location)) is not None:
                self._kept.move_to_end(location)
                return found
        found = self._read(location)
        with self._lock:
            if location not in self._kept:
                self._kept[location] = found
                self._bytes += len(found)
            while self._bytes > self._bytes_max and len(self._kept) > 1:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return found


def read_file(location: str) -> bytes:
    """The bytes of one file of the lake. Raises: LakeFileMissing, LakeAway, StoreRefused."""
    from harness_pipelines.drivers.files import opened  # and Arrow

    try:
        system, path = opened(location)
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError as missing:
        raise LakeFileMissing(f"the metadata of a cut is missing: {location}") from missing
    except OSError as error:
        raise LakeAway(f"the metadata of a cut cannot be read: {location}: {error}") from error


def folders_of(ledger: Tables, table: TableRow) -> Sequence[str]:
    """Where the files of a table and of its cuts lie: the folder of each view, and the fresh one."""
    pointers = {view: ledger.pointer(table, view) for view in table.views}
    tiered = pointers["stream"] if "stream" in pointers else pointers["batch"]
    return [*(folder_of(metadata) for metadata in pointers.values()), cut_folder(table.spec.name, tiered)]


def fresh_catalog(stores: Stores, *, keep: timedelta, every: timedelta, globs: Sequence[str]) -> FreshCatalog:
    """The tables of *stores*. A cut is given again for *every*, and its files stay for *keep* after it was given.

    Raises: UsageError for keys that are not to be handed out.
    """
    from harness_pipelines.read.cut import Cutter
    from harness_pipelines.read.named_cut import NamedCutter

    holder = f"serve {socket.gethostname()} {os.getpid()}"
    return FreshCatalog(
        stores.tables,
        stores.cuts,
        lambda: Makers(
            Cutter(stores, holder=holder, keep=keep, every=every), NamedCutter(stores, holder=holder, keep=keep)
        ),
        files=LakeFiles(read=read_file, scans=stores.scans),
        keep=keep,
        globs=globs,
        vending=handed_out(stores.settings, keep=keep, folders=partial(folders_of, stores.tables)),
    )
