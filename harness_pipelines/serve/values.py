"""What the server asks of the tables behind it, and the words that clients choose a state by."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.protocol.cuts import etag

Kind = Literal["fresh", "lake", "at", "pin"]
_PIN = re.compile(r"(\d{1,6})(ms|s|m|h)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_SNAPSHOT = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
_TABLE = re.compile(r"[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*")
NAME_MAX = 255  #: of a table with its namespace; a longer one is none, and is not asked for
FORMS = "leave `warehouse` empty for the newest state; `lake`, `at:SNAPSHOT` and `pin:5s` are the other forms"


class WarehouseRefused(UsageError):
    """A client asked for a state of the tables by a word that is none, or that this server does not offer."""

    way_on = "leave `warehouse` empty in the engine's catalog, or choose a form that the message names"


class TableNotServed(HarnessError):
    """The table exists, but it cannot be shown as one snapshot of Iceberg."""

    way_on = "read it by `harness sql`, Python or Spark"


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Which state of the tables a client reads: it says so once, as `warehouse`, and then by the prefix of paths."""

    kind: Kind = "fresh"
    snapshot: str = ""  #: of `at`
    every_s: float = 0.0  #: of `pin`: all loads of the same window give one state
    prefix: str = ""  #: of the paths of its routes; empty: none

    @classmethod
    def parse(cls, text: str) -> Warehouse:
        """Raises: WarehouseRefused."""
        word, _, value = text.partition(":")
        if text in ("", "fresh"):
            return cls()
        if text == "lake":
            return cls("lake", prefix=text)
        if word == "at" and _SNAPSHOT.fullmatch(value):
            return cls("at", snapshot=value, prefix=text)
        if word == "pin" and (found := _PIN.fullmatch(value)) and int(found[1]):
            return cls("pin", every_s=int(found[1]) * _UNIT_S[found[2]], prefix=text)
        raise WarehouseRefused(f"warehouse {text[:NAME_MAX]!r} is not a state of the tables: {FORMS}")


class TableBusy(TryAgain):
    """A cut of the table is being made, and takes longer than a client may be expected to wait."""

    way_on = "nothing: the next load waits for it again, or gets it"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutAnswer:
    """The cut that a load answers with."""

    snapshot_id: int
    metadata_location: str
    metadata: bytes  #: JSON, sent as it is
    config: Mapping[str, str] = field(default_factory=dict)  #: DuckDB wants an S3 region as soon as there is any

    @property
    def etag(self) -> str:
        """Two loads with the same tag have the same rows in the same files."""
        return etag(self.metadata_location)


class Catalog(Protocol):
    """The tables that a server shows. Every method but `check` may block, and is called by several threads at once.

    All may raise TryAgain while the ledger is away, and WarehouseRefused for a state that is not offered.
    """

    def check(self, warehouse: Warehouse) -> None:
        """See that the state is offered, before a client gets the prefix of its paths. Raises: WarehouseRefused."""
        ...

    def names(self, warehouse: Warehouse) -> Sequence[str]:
        """The tables as ``namespace.name``, in any order."""
        ...

    def cut(self, name: str, warehouse: Warehouse) -> CutAnswer:
        """The rows of a table. Its files stay for a while from now on. Raises: TableUnknown, TableNotServed."""
        ...

    def reported(self, name: str, warehouse: Warehouse, report: Mapping[str, Any]) -> None:
        """An engine has read: *report* is what it measured, as the protocol has it. Raises: TableUnknown."""
        ...


def table_name(namespace: str, table: str) -> str | None:
    """The name that a table of the ledger may have; None where it can have none, whatever a client wrote."""
    name = f"{namespace}.{table}"
    return name if len(name) <= NAME_MAX and _TABLE.fullmatch(name) else None
