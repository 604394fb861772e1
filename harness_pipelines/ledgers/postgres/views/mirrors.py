"""What the ledger remembers of mirrors: how far each was seen, and what expire must keep for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ledgers.postgres.boundary import check_held, gone
from harness_pipelines.ports import rows
from harness_pipelines.ports.lake import MirrorState
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.lake.mirrors import KnownSnapshot, Seen
from harness_pipelines.protocol.versions import Version, ViewName


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorLag:
    """How far a foreign catalog is behind a table."""

    table: str
    catalog: str
    kind: str | None  #: rest; None: the spec no longer names it
    uri: str | None
    version: int | None  #: the last that it was seen to show
    head: int
    lag_s: float  #: since the oldest version that it does not show yet was published; 0: there is none
    trouble: str | None
    trouble_since: datetime | None
    mirrored_at: datetime | None

    @property
    def behind(self) -> int:
        """Versions that it does not show yet; what was before it was registered is never missed."""
        return self.head - (self.version or self.head - 1)

    def __str__(self) -> str:
        shown = "shows nothing yet" if self.version is None else f"shows version {self.version:,}"
        late = f", {self.lag_s:,.0f} s behind version {self.head:,}" if self.behind else ""
        gone = "" if self.kind else "; the spec does not name it any more, `harness mirror drop` ends it"
        return f"{self.catalog} {shown}{late}{gone}{f'; {self.trouble}' if self.trouble else ''}"

    def to_json(self) -> dict[str, Any]:
        return {
            "catalog": self.catalog,
            "type": self.kind,
            "uri": self.uri,
            "version": self.version,
            "head": self.head,
            "behind": self.behind,
            "lag_s": round(self.lag_s, 3),
            "trouble": self.trouble,
            "trouble_since": self.trouble_since,
            "mirrored_at": self.mirrored_at,
        }


class Mirrors:
    """The mirrors of one ledger. Looks go by *readers*, so that fsck needs no more than a reader's login."""

    def __init__(self, database: Database, readers: Database) -> None:
        self._database, self._readers = database, readers

    def state(self, table: TableRow, catalog: str) -> MirrorState:
        """One statement: a worker asks several times a second. Raises: RowGone."""
        for row in self._readers.rows("mirrors/state", _key(table, catalog)):
            return MirrorState(
                version=row["version"],
                holds=tuple(row["holds"] or ()),
                head=row["head"],
                uuids=row["uuids"] or {},
                looked_s=row["looked_s"],
                trouble=row["trouble"],
            )
        raise gone("mirrors/state")

    def intend(self, table: TableRow, catalog: str, claim: Claim) -> Version:
        """Note that the head is on its way, so that expire keeps it; return it. Raises: FencedOut, RowGone."""
        with self._database.transaction() as connection:
            # Expire decides what it keeps under this lock, so it sees the note, or the head is still the head.
            connection.execute(sql("reads/share_trim_lock"), {"table_id": table.table_id})
            found = connection.execute(sql("mirrors/head"), {"table_id": table.table_id}).fetchone()
            if found is None:
                raise gone("mirrors/head")
            head = rows.version(found)
            connection.execute(sql("mirrors/intend"), {**_key(table, catalog), "version": head.version})
            check_held(connection, claim)
            return head

    def register(self, table: TableRow, catalog: str, claim: Claim, *, metadata: str) -> bool:
        """Note that the server is about to name *metadata*, a file of ours, for good. Raises: FencedOut.

        False: a drop began since it was intended; the server may not be sent anything.
        """
        with self._database.transaction() as connection:
            noted = connection.execute(sql("mirrors/register"), {**_key(table, catalog), "metadata": metadata})
            check_held(connection, claim)
            return noted.rowcount == 1

    def known(self, table: TableRow, view: ViewName, seen: Seen | None) -> KnownSnapshot:
        """What the ledger has of the snapshot that was *seen*."""
        if seen is None or seen.snapshot is None:
            return KnownSnapshot(newest=None, is_of_version=False)
        key = {"table_id": table.table_id, "view": view, "snapshot": seen.snapshot, "version": seen.version}
        [row] = self._readers.rows("mirrors/known", key)
        return KnownSnapshot(newest=row["newest"], is_of_version=row["is_of_version"])

    def settle(
        self, table: TableRow, catalog: str, claim: Claim, *, version: int, seen: Mapping[ViewName, Seen]
    ) -> None:
        """Note what the server was *seen* to show, all of *version*. Raises: FencedOut."""
        noted = {
            "version": version,
            "names": sorted({name for one in seen.values() for name in one.names}),
            "uuids": Jsonb({view: one.uuid for view, one in seen.items()}),
        }
        with self._database.transaction() as connection:
            connection.execute(sql("mirrors/settle"), {**_key(table, catalog), **noted})
            check_held(connection, claim)
            faults.point("mirror.in_transaction")

    def trouble(self, table: TableRow, catalog: str, error: str) -> None:
        """Note what keeps the mirror from its work; the next `settle` ends it."""
        self._database.run("mirrors/trouble", {**_key(table, catalog), "error": error})

    def begin_drop(self, table: TableRow, catalog: str) -> None:
        """Note that the server is about to lose the tables: until the next `intend` nothing is registered there."""
        self._database.run("mirrors/begin_drop", _key(table, catalog))

    def forget(self, table: TableRow, catalog: str) -> bool:
        """Forget the mirror whose drop was begun, and in an hour what expire keeps for it.

        Until then a follower that sleeps may send what it had intended. False, with nothing forgotten: none was known,
        or a worker has begun to follow it again.
        """
        return self._database.run("mirrors/forget", _key(table, catalog)) > 0

    def lags(self, tables: Collection[str]) -> list[MirrorLag]:
        """The mirrors of *tables*, including those that a spec no longer names."""
        return [
            MirrorLag(
                table=row["name"],
                catalog=row["catalog"],
                kind=row["kind"],
                uri=row["uri"],
                version=row["version"],
                head=row["head"],
                lag_s=row["lag_s"],
                trouble=row["trouble"],
                trouble_since=row["trouble_since"],
                mirrored_at=row["mirrored_at"],
            )
            for row in self._readers.rows("mirrors/lags", {"tables": list(tables)})
        ]


def _key(table: TableRow, catalog: str) -> dict[str, Any]:
    return {"table_id": table.table_id, "catalog": catalog}
