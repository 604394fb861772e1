"""One warehouse, one ledger: a mark in the warehouse names the database that keeps house there.

Two ledgers that publish to one lake would each remove what only the other one reaches. A copy of a ledger (restored
beside the old one, or cloned) has its id too, so the mark also names the database that the ledger is in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from psycopg.conninfo import conninfo_to_dict
from pyarrow.fs import FileSystem, FileType

from harness_pipelines.errors import HarnessError
from harness_pipelines.stores.lake import reachable
from harness_pipelines.stores.postgres import Database

MARK = ".harness-owner.json"


class WarehouseTaken(HarnessError):
    """The warehouse belongs to another ledger, or to another copy of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """A ledger in its database."""

    ledger: str  #: uuid that the ledger was given when it was made
    instance: str  #: the cluster's system identifier and the database's oid
    database: str  #: for people: name, host and port

    def is_same(self, other: Owner) -> bool:
        return (self.ledger, self.instance) == (other.ledger, other.instance)

    def to_json(self) -> dict[str, Any]:
        return {"ledger": self.ledger, "instance": self.instance, "database": self.database}


class Ownership:
    """The mark of one warehouse, seen from one ledger. Cheap: the two are compared once per process."""

    def __init__(self, database: Database, *, warehouse: str) -> None:
        self._database, self._warehouse = database, warehouse.rstrip("/")
        self._confirmed = False

    def check(self) -> None:
        """The warehouse is this ledger's; one without a mark becomes it.

        Raises: WarehouseTaken, naming both; LakeAway.
        """
        if self._confirmed:
            return
        ours, found = self.ours(), self.found()
        if found is None:
            self.take_over()
            found = self.found()  # of two that came at once, the mark names one
        if found is None or not found.is_same(ours):
            raise WarehouseTaken(_explained(self._warehouse, ours, found))
        self._confirmed = True

    def ours(self) -> Owner:
        row = self._database.rows("reconcile/ledger_id")[0]
        place = conninfo_to_dict(self._database.dsn)
        where = f"{row['database']} at {place.get('host', 'the local socket')}:{place.get('port', 5432)}"
        return Owner(ledger=row["ledger_id"], instance=row["instance"], database=where)

    def found(self) -> Owner | None:
        """Whom the mark names; ``None`` when there is no mark. Raises: LakeAway, WarehouseTaken for a damaged mark."""
        with reachable(self._warehouse, "reading its owner's mark"):
            system, path = self._place()
            if system.get_file_info(path).type is FileType.NotFound:
                return None
            with system.open_input_stream(path) as stream:
                text = stream.read()
        try:
            words = json.loads(text)
            return Owner(ledger=words["ledger"], instance=words["instance"], database=words["database"])
        except (ValueError, KeyError, TypeError) as error:
            raise WarehouseTaken(
                f"{self._warehouse}/{MARK} cannot be read ({error!r}), so nobody knows whose the warehouse is; nothing "
                "was written. `harness reconcile TABLE --take-over --yes` makes it this ledger's"
            ) from error

    def take_over(self) -> Owner:
        """Make the warehouse this ledger's, whosever it was."""
        ours = self.ours()
        with reachable(self._warehouse, "writing its owner's mark"):
            system, path = self._place()
            system.create_dir(path.rsplit("/", 1)[0], recursive=True)
            with system.open_output_stream(path) as stream:
                stream.write(json.dumps(ours.to_json(), indent=1).encode())
        return ours

    def _place(self) -> tuple[FileSystem, str]:
        system, root = FileSystem.from_uri(self._warehouse)
        return system, f"{root.rstrip('/')}/{MARK}"


def _explained(warehouse: str, ours: Owner, found: Owner | None) -> str:
    other = "nobody" if found is None else f"the ledger {found.ledger} in database {found.database}"
    if found is not None and found.ledger == ours.ledger:
        other = f"another copy of this ledger, in database {found.database}"
    return (
        f"the warehouse {warehouse} belongs to {other}; this is the ledger {ours.ledger} in database {ours.database}. "
        "Nothing was written. Give this database a warehouse of its own (HARNESS_WAREHOUSE); or, when the other one is "
        "gone for good, `harness reconcile TABLE --take-over --yes` makes the warehouse this ledger's"
    )
