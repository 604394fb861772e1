"""What the server asks of the tables behind it, and the words that clients choose a state by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.ports.serving.scans import ScanWanted
from harness_pipelines.protocol.cuts import etag
from harness_pipelines.protocol.reading.reads import SNAPSHOT_NAME
from harness_pipelines.serve.storage import Storage

Kind = Literal["fresh", "pin", "lake", "at"]
PIN_S_MAX = 300
_PIN = re.compile(r"([0-9]{1,3})(s|m)")
_UNIT_S = {"s": 1, "m": 60}
_TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
NAME_MAX = 255  #: of a table with its namespace; a longer one is none, and is not asked for
FORMS = (
    "leave `warehouse` empty for the newest state, write `pin:5s` (1s to 5m) to get one state of a table in all loads "
    "of 5 s, `at:NAME` for the state that the snapshot NAME of `harness snapshot` has, or `lake` for what has been "
    "merged into the lake. An old version is read by `harness read TABLE --at` or `Table.read(at=...)`"
)


class WarehouseRefused(UsageError):
    """A client asked for a state of the tables by a word that is none of those that are offered."""

    way_on = "leave `warehouse` empty in the engine's catalog, or write one of the forms that the message names"


class TableNotServed(HarnessError):
    """The table exists, but it cannot be shown as one snapshot of Iceberg."""

    way_on = "read it by `harness sql`, Python or Spark"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Which state of the tables a client reads: it says so once, as `warehouse`, and then by the prefix of paths."""

    kind: Kind = "fresh"
    every_s: int = 0  #: of `pin`: how long its windows are; all loads in one give the same cut of a table
    snapshot: str = ""  #: of `at`: the name of the snapshot; there may be none
    prefix: str = ""  #: of the paths of its routes; empty: none

    @classmethod
    def parse(cls, text: str) -> Warehouse:
        """Raises: WarehouseRefused."""
        word, _, value = text.partition(":")
        if text in ("", "fresh"):
            return cls()
        if text == "lake":
            return cls("lake", prefix=text)
        if word == "pin" and (found := _PIN.fullmatch(value)):
            every_s = int(found[1]) * _UNIT_S[found[2]]
            if 1 <= every_s <= PIN_S_MAX:
                return cls("pin", every_s=every_s, prefix=text)
        if word == "at" and SNAPSHOT_NAME.fullmatch(value):
            return cls("at", snapshot=value, prefix=text)
        raise WarehouseRefused(f"warehouse {text[:NAME_MAX]!r} is not offered: {FORMS}")


class TableBusy(TryAgain):
    """A cut of the table is being made, and takes longer than a client may be expected to wait."""

    way_on = "nothing: the next load waits for it again, or gets it"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnswer:
    """The cut that a load answers with."""

    snapshot_id: int
    metadata_location: str
    metadata: bytes  #: JSON, sent as it is
    made_s: float | None = None  #: how long this load made it; None: it was there
    made_bytes: int = 0  #: of the rows that were written for it
    storage: Storage = field(default_factory=Storage)  #: by which engines reach its files
    behind: int = 0  #: offsets that it leaves out: the newest versions of a keyed table over its limits

    @property
    def etag(self) -> str:
        """Two loads with the same tag have the same rows in the same files, and the same keys for these.

        So a client that has a cut gets new keys before the old ones end, and those that a server was given since.
        """
        config = sorted(self.storage.config.items())
        return etag(f"{self.metadata_location} {config}" if config else self.metadata_location)


class Catalog(Protocol):
    """The tables that a server shows. Every method may block, and is called by several threads at once.

    All may raise TryAgain while the ledger is away.
    """

    def names(self, warehouse: Warehouse) -> Sequence[str]:
        """The tables that have the wanted state as ``namespace.name``, in any order."""
        ...

    def cut(self, name: str, warehouse: Warehouse) -> CutAnswer:
        """The rows of a table. Its files stay from now on.

        Raises: TableUnknown, TableNotServed, TableBusy, RoleRefused, RoleAway.
        """
        ...

    def storage(self, name: str) -> Storage:
        """By which engines reach the files of a table. Raises: TableUnknown, RoleRefused, RoleAway."""
        ...

    def scan(self, name: str, warehouse: Warehouse, wanted: ScanWanted) -> Mapping[str, Any]:
        """The files of a scan of a table, in the JSON form of the protocol; they stay from now on.

        Raises: as `cut`, and ScanOfUnknown.
        """
        ...

    def reported(self, name: str, snapshot_id: int) -> bool:
        """An engine has read a snapshot: its files stay for a while from now on, if it is not over, which is returned.

        Raises: TableUnknown.
        """
        ...


def table_name(namespace: str, table: str) -> str | None:
    """The name that a table of the ledger may have; None where it can have none, whatever a client wrote."""
    name = f"{namespace}.{table}"
    return name if len(name) <= NAME_MAX and _TABLE.fullmatch(name) else None
