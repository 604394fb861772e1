"""Named snapshots: a cut of one or several tables at one instant that stays readable until it is dropped.

A snapshot pins one version per table, with ``buffer_hi`` as it was then: what was buffered is answered for by a later
version once it has moved, so a snapshot holds no segment for longer than any old version does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ledgers.postgres.history.numbers import also_told
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.reads import SNAPSHOT_NAME
from harness_pipelines.protocol.versions import Version, VersionGone


class SnapshotUnknown(HarnessError):
    """No snapshot of that name, or none of this table."""

    way_on = "`harness snapshot list` shows those that there are"


class SnapshotExists(HarnessError):
    """There is a snapshot of that name already."""

    way_on = "another name, or `harness snapshot drop NAME`"


class SnapshotChanged(HarnessError):
    """The version or bounds that a snapshot pins were changed by hand."""

    way_on = "run `harness snapshot drop NAME` and create another one"


class SnapshotInUse(TryAgain):
    """A reader uses the snapshot now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """One table of a snapshot."""

    table: str
    version: int
    buffer_hi: Mapping[int, int]  #: empty after a change by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSnapshot:
    name: str
    created_at: datetime
    tables: tuple[Pinned, ...]  #: by name; without those that were dropped since

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "created_at": self.created_at.isoformat(),
            "tables": [
                {"table": p.table, "version": p.version, "high": {str(q): o for q, o in sorted(p.buffer_hi.items())}}
                for p in self.tables
            ],
        }


class Snapshots:
    """The named snapshots of one ledger."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def create(self, name: str, tables: Sequence[TableRow]) -> NamedSnapshot:
        """Give the state that *tables* have at this instant a *name*.

        Raises: SnapshotExists, ValueError; TableUnknown when one of them was dropped meanwhile.
        """
        if not SNAPSHOT_NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} names no snapshot; write a-z, 0-9, `_`, `-` and `.`, beginning with a letter, 63 at most"
            )
        names = {table.table_id: table.name for table in tables}
        ids = sorted(names)
        with self.database.transaction() as connection:
            for table_id in ids:  # what expire decides later sees the snapshot
                connection.execute(sql("reads/share_trim_lock"), {"table_id": table_id})
            if connection.execute(sql("snapshots/begin"), {"name": name}).fetchone() is None:
                raise SnapshotExists(f"there is a snapshot {name} already; drop it first, or choose another name")
            taken = connection.execute(sql("snapshots/take"), {"name": name, "table_ids": ids}).fetchall()
            if gone := sorted(names[table_id] for table_id in set(ids) - {row["table_id"] for row in taken}):
                raise TableUnknown(f"{gone[0]} was dropped just now; no snapshot {name} was made")
            made = _named(connection.execute(sql("snapshots/all"), {"name": name}).fetchall())[0]
            faults.point("snapshot.in_transaction")
        faults.point("snapshot.after_commit")
        return made

    def all(self) -> list[NamedSnapshot]:
        """Every snapshot, oldest first."""
        return _named(self.database.rows("snapshots/all", {"name": None}))

    def drop(self, name: str) -> None:
        """Forget a snapshot; expire removes what only it needed. Raises: SnapshotUnknown, SnapshotInUse."""
        if not SNAPSHOT_NAME.fullmatch(name):  # a state's are its own
            raise SnapshotUnknown(f"there is no snapshot {name}; `harness snapshot list` shows those that there are")
        with self.database.transaction() as connection:
            ids = [row["table_id"] for row in connection.execute(sql("snapshots/tables_of"), {"name": name}).fetchall()]
            for table_id in ids:
                connection.execute(sql("reads/take_trim_lock"), {"table_id": table_id})
                # Waits for renewals under way; whatever lease is there after this counts as alive.
                connection.execute(sql("upkeep/delete_ended"), {"table_id": table_id})
            if reader := connection.execute(sql("snapshots/readers"), {"name": name}).fetchone():
                raise SnapshotInUse(
                    f"{reader['holder']} reads {reader['table_name']} as of snapshot {name} or its version until "
                    f"{reader['until']:%Y-%m-%d %H:%M:%S} UTC; nothing was dropped, run the same command again"
                )
            if connection.execute(sql("snapshots/drop"), {"name": name, "table_ids": ids}).rowcount == 0:
                raise SnapshotUnknown(
                    f"there is no snapshot {name}, or it was made again over other tables just now; nothing was "
                    "dropped. `harness snapshot list` shows those that there are"
                )
            faults.point("snapshot.drop_in_transaction")
        faults.point("snapshot.drop_after_commit")


def versions_named(connection: Connection, table_id: int, *, sound: bool = False) -> list[Version]:
    """The versions of a table that snapshots pin, each with the bounds that it is read with.

    *sound*: without those that were changed by hand since, which may have no bounds.
    """
    found = connection.execute(sql("snapshots/of_table"), {"table_id": table_id, "sound": sound}).fetchall()
    return [replace(rows.version(row), bounds=_bounds(row["named_bounds"])) for row in found]


def version_leased(row: Mapping[str, Any]) -> Version:
    """The version of a row of `upkeep/leased_versions`, with the bounds that it is read with."""
    return replace(rows.version(row), bounds=_bounds(row["read_bounds"]))


def version_named(connection: Connection, table: TableRow, name: str) -> tuple[int, Mapping[int, Bounds]]:
    """The version that the snapshot *name* pins of *table*, with bounds. Raises: SnapshotUnknown, SnapshotChanged."""
    row = connection.execute(sql("snapshots/find"), {"table_id": table.table_id, "name": name}).fetchone()
    if row is None:
        raise SnapshotUnknown(
            f"{table.name} is in no snapshot {name}, nor in the last commit of a state of that name; `harness snapshot "
            "list` and `harness state list` show those that there are"
        )
    if not row["sound"]:
        raise SnapshotChanged(
            f"snapshot {name} of {table.name} is not as it was made: its version or bounds were changed by hand; "
            f"nothing is returned. Drop it, and make another one; `harness fsck {table.name}` names all such"
        )
    return row["version"], _bounds(row["bounds"])


def await_moment(connection: Connection, table: TableRow, then: datetime) -> None:
    """Wait until the moment *then* is over and every version of that time is visible to the next statement.

    A commit that stands still before its end has taken its time already. Each statement of *connection* is its own
    transaction: a reader that stands still holds no commit up, and has no lock that one waits for.

    Raises: VersionGone for a moment that has not come, LedgerBusy.
    """
    key = {"table_id": table.table_id, "then": then}
    if (ahead := connection.execute(sql("snapshots/is_ahead"), key).fetchone()) is not None:
        raise VersionGone(
            f"{table.name}: {then.isoformat()} has not come yet, by the database's clock it is "
            f"{ahead['now'].isoformat()}: the newest version of then is not known, and the same read would get "
            "other rows later; read without a time for the newest rows"
        )
    connection.execute(sql("snapshots/await_publishers"), key)


def version_then(connection: Connection, table: TableRow, then: datetime) -> int:
    """The version that was the head at the moment *then*, which was waited for. Raises: VersionGone."""
    key = {"table_id": table.table_id, "then": then}
    row = connection.execute(sql("snapshots/version_then"), key).fetchone()
    if row is None:
        raise VersionGone(f"{table.name} had no version yet at {then.isoformat()}{also_told(connection, table)}")
    return int(row["version"])


def _bounds(told: Mapping[str, Mapping[str, int]]) -> dict[int, Bounds]:
    return {int(p): Bounds(**b) for p, b in told.items()}


def _named(found: Sequence[Mapping[str, Any]]) -> list[NamedSnapshot]:
    made: dict[str, NamedSnapshot] = {}
    for row in found:
        one = made.setdefault(row["name"], NamedSnapshot(name=row["name"], created_at=row["created_at"], tables=()))
        if row["table_name"] is not None:
            high = {p: b.buffer_hi for p, b in _bounds(row["bounds"]).items()} if row["sound"] else {}
            pinned = Pinned(table=row["table_name"], version=row["version"], buffer_hi=high)
            made[row["name"]] = replace(one, tables=(*one.tables, pinned))
    return list(made.values())
