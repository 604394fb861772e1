"""The tables of one installation as a catalog: each load gets the newest cut, made by one thread for each table."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

import orjson

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import LakeAway, LakeFileMissing
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import Cut, CutBook, CutDamaged, CutOvertaken
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.serve.storage import Storage, handed_out
from harness_pipelines.serve.values import CutAnswer, TableBusy, TableNotServed, Warehouse

if TYPE_CHECKING:
    from harness_pipelines.app.installation import Stores

METADATA_BYTES_MAX = 64 * 1024 * 1024  #: of metadata files that are kept in memory
OWN_KEYS = Storage()
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

    def load(self, table: TableRow) -> ServedCut: ...

    def again(self, table: TableRow, cut: Cut) -> ServedCut:
        """*cut*, which is alive. Raises: CutDamaged, CutOvertaken."""
        ...


class _Table:
    """What the server knows of one table."""

    def __init__(self, loads: Loads) -> None:
        self.loads, self.lock = loads, threading.Lock()
        self.behind = 0  #: offsets that the last cut leaves out


class FreshCatalog:
    """A `Catalog` over cuts.

    *refused* is what `Loads` raises for a table that has none. *globs* limit what the server shows, to any token.
    *storage* is handed out with each load.
    """

    def __init__(
        self,
        tables: Tables,
        cuts: CutBook,
        loads: Callable[[], Loads],
        *,
        refused: tuple[type[HarnessError], ...],
        read: Callable[[str], bytes],
        keep: timedelta,
        globs: Sequence[str] = ("*",),
        storage: Storage = OWN_KEYS,
    ) -> None:
        self._ledger, self._cuts, self._loads, self._refused = tables, cuts, loads, refused
        self._keep, self._globs, self.storage = keep, globs, storage
        self._metadata = Texts(read)
        self._lock = threading.Lock()
        self._tables: dict[int, _Table] = {}

    def names(self) -> Sequence[str]:
        return [name for name in self._ledger.names() if self._shows(name)]

    def cut(self, name: str, warehouse: Warehouse) -> CutAnswer:
        row = self._row(name)
        if warehouse.kind == "lake":
            return self._lake(row)
        known = self._known(row)
        if not known.lock.acquire(timeout=WAIT_S):
            raise TableBusy(f"{name}: a cut has been made for more than {WAIT_S:g} s; load it again")
        began = time.monotonic()
        try:
            cut, made = self._pinned(known, row, warehouse.every_s) if warehouse.every_s else _load(known, row)
            behind = known.behind
        except self._refused as why:
            raise TableNotServed(str(why)) from why
        finally:
            known.lock.release()
        took_s = time.monotonic() - began
        return CutAnswer(
            snapshot_id=cut.snapshot_id,
            metadata_location=cut.metadata,
            metadata=self._metadata.of(cut.metadata),
            made_s=took_s if made else None,
            made_bytes=sum(chunk.bytes for chunk in cut.chunks if chunk.sequence == cut.sequence) if made else 0,
            behind=behind,
        )

    def _lake(self, row: TableRow) -> CutAnswer:
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
        return any(fnmatchcase(name, glob) for glob in self._globs)

    def _row(self, name: str) -> TableRow:
        if not self._shows(name):
            raise TableUnknown(f"no table {name!r} is served")
        return self._ledger.table(name)

    def _known(self, row: TableRow) -> _Table:
        with self._lock:
            if row.table_id not in self._tables:
                self._tables[row.table_id] = _Table(self._loads())
            return self._tables[row.table_id]


def _load(known: _Table, row: TableRow) -> tuple[Cut, bool]:
    served = known.loads.load(row)
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


def fresh_catalog(stores: Stores, *, keep: timedelta, every: timedelta, globs: Sequence[str]) -> FreshCatalog:
    """The tables of *stores*. A cut is given again for *every*, and its files stay for *keep* after it was given.

    Raises: UsageError for keys that are not to be handed out.
    """
    from harness_pipelines.ports.serving.cuts import CutImpossible
    from harness_pipelines.read.cut import Cutter

    holder = f"serve {socket.gethostname()} {os.getpid()}"
    return FreshCatalog(
        stores.tables,
        stores.cuts,
        lambda: Cutter(stores, holder=holder, keep=keep, every=every),
        refused=(CutImpossible,),
        read=read_file,
        keep=keep,
        globs=globs,
        storage=handed_out(stores.settings),
    )
