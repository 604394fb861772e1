"""Leases: the short transaction that starts every read, lease first, then the read state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.history.numbers import also_told
from harness_pipelines.ledgers.postgres.named_snapshots import await_moment, version_named, version_then
from harness_pipelines.ledgers.postgres.views.versions_needed import pages_above
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import LEASE_AGE_MAX, LeaseEnded, ReadState, TableRow, new_lease
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.protocol.versions import VersionGone


class Leases:
    """Leases of one database, as a reader takes them.

    No change of a lease waits for the disk: a crash of Postgres may take it back, but it also ends every session, and
    the next renewal or the end of the read then finds no lease that is alive.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def look(
        self, table: TableRow, *, holder: str, lease: timedelta, at: At | None = None, lease_id: str | None = None
    ) -> ReadState:
        """Lease a version and read the bounds of this instant.

        *at* is a version, the name of a snapshot, or a moment: the version that was the head then. Each of them has
        its own bounds, the head too, so that it shows the same rows for ever. The trim lock is taken shared in a
        separate statement: what retire and expire decided before is visible to the next statement, and what they
        decide later sees the lease. A caller that names the lease beforehand can return it whatever ends the call.

        Raises: VersionGone when *at* is not retained or has not come, SnapshotUnknown; LedgerBusy while a commit of
        before a moment is under way.
        """
        if isinstance(at, datetime):
            with self.database.at_once(table=table.name) as connection:
                await_moment(connection, table, at)
        with self.database.transaction() as connection:
            with connection.pipeline():
                connection.execute(sql("reads/async_commit"))
                connection.execute(sql("reads/share_trim_lock"), {"table_id": table.table_id})
                wanted, named = _resolved(connection, table, at)
                cursor = connection.execute(
                    sql("reads/look"),
                    {
                        "table_id": table.table_id,
                        "version": wanted,
                        # A pin may go while the read lasts, so that its bounds are the lease's too.
                        "named": named and Jsonb({str(p): b.to_json() for p, b in named.items()}),
                        "lease_id": lease_id or new_lease(),
                        "lease": min(lease, LEASE_AGE_MAX),
                        "holder": holder,
                    },
                )
            row = cursor.fetchone()
            if row is None or (named is None and row["version"] < row["retained_from"]):
                what = f"the version of {at.isoformat()}" if isinstance(at, datetime) else f"version {wanted}"
                raise VersionGone(
                    f"{table.name}: {what} is not retained"
                    + (f" (the oldest is {row['retained_from']})" if row else "; `harness status` shows the newest")
                    + also_told(connection, table)
                )
            if at is None:
                return rows.state_of(row)
            later = chain.from_iterable(pages_above(connection, table.table_id, above=row["version"]))
            return rows.state_of(row, later=later, named=named)

    def renew(self, lease_id: str, *, lease: timedelta) -> datetime:
        """Extend a lease that is alive. Raises: LeaseEnded."""
        found = self._write("reads/renew_lease", {"lease_id": lease_id, "lease": lease})
        if found is None:
            raise _ended(lease_id)
        until: datetime = found["until"]
        return until

    def end(self, lease_id: str) -> None:
        """Give a lease back, alive or not."""
        self._write("reads/end_lease", {"lease_id": lease_id})

    def finish(self, lease_id: str) -> None:
        """Give a lease back that must have lived until now. Raises: LeaseEnded."""
        found = self._write("reads/end_lease", {"lease_id": lease_id})
        if found is None or not found["alive"]:
            raise _ended(lease_id)

    def _write(self, name: str, parameters: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Change a lease row without waiting for the disk; returns the row."""
        with self.database.transaction() as connection:
            with connection.pipeline():
                connection.execute(sql("reads/async_commit"))
                cursor = connection.execute(sql(name), parameters)
            return cursor.fetchone()


def _resolved(connection: Connection, table: TableRow, at: At | None) -> tuple[int | None, Mapping[int, Bounds] | None]:
    """The number of the version that *at* means, and its bounds where a snapshot knows others."""
    if isinstance(at, str):
        return version_named(connection, table, at)
    return version_then(connection, table, at) if isinstance(at, datetime) else at, None


def _ended(lease_id: str) -> LeaseEnded:
    return LeaseEnded(
        f"lease {lease_id} of this read has ended: its rows may be gone, nothing is returned; "
        "read again (`retention.lease` of the spec, or `to_spark(lease_s=...)`, says how long one lasts unrenewed)"
    )
