"""The reference leases: lease first, then look."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from harness_pipelines.ports.ledger import LeaseEnded, ReadState, TableRow, new_lease
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.reads import At, cut_now, cut_of_version
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines_tests.memory.state import Books, Lease, MemoryState

LEASE_AGE_MAX = timedelta(hours=24)


class MemoryLeases:
    """Leases in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    def look(
        self, table: TableRow, *, holder: str, lease: timedelta, at: At | None = None, lease_id: str | None = None
    ) -> ReadState:
        """Lease the version *at* with its own bounds, or the head with those of this instant. Raises: VersionGone."""
        with self.state.transaction() as books:
            versions, retained_from = books.versions[table.table_id], books.tables[table.table_id].retained_from
            version = versions[-1] if at is None else next((v for v in versions if v.version == at), None)
            if version is None or version.version < retained_from:
                raise VersionGone(
                    f"{table.name}: version {at} is not retained"
                    + (f" (the oldest is {retained_from})" if version else "; `harness status` shows the newest")
                )
            lease_id, now = lease_id or new_lease(), self.state.now()
            until = now + min(lease, LEASE_AGE_MAX)
            books.leases[lease_id] = Lease(table_id=table.table_id, version=version.version, born=now, until=until)
            later = [v for v in versions if v.version > version.version]
            segments = books.segments_of(table.table_id)
            if at is None:
                cut = cut_now(version, _positions(books, table), segments)
            else:
                cut = cut_of_version(version, later, segments)
            return ReadState(
                version=version,
                bounds=cut.bounds,
                segments=tuple(s.ref for s in cut.segments),
                lease_id=lease_id,
                lease_until=until,
                answered_by=cut.answered_by,
            )

    def renew(self, lease_id: str, *, lease: timedelta) -> datetime:
        """Extend a lease that is alive, up to the greatest age. Raises: LeaseEnded."""
        with self.state.transaction() as books:
            found, now = books.leases.get(lease_id), self.state.now()
            if found is None or found.until <= now or found.born + LEASE_AGE_MAX <= now:
                raise _ended(lease_id)
            until = min(now + lease, found.born + LEASE_AGE_MAX)
            books.leases[lease_id] = replace(found, until=until)
            return until

    def end(self, lease_id: str) -> None:
        """Give a lease back."""
        with self.state.transaction() as books:
            books.leases.pop(lease_id, None)

    def finish(self, lease_id: str) -> None:
        """Give a lease back that must have lived until now. Raises: LeaseEnded."""
        with self.state.transaction() as books:
            found, now = books.leases.pop(lease_id, None), self.state.now()
        if found is None or found.until <= now:
            raise _ended(lease_id)


def _ended(lease_id: str) -> LeaseEnded:
    return LeaseEnded(
        f"lease {lease_id} of this read has ended: its rows may be gone, nothing is returned; "
        "read again (or ask for a longer lease)"
    )


def _positions(books: Books, table: TableRow) -> dict[int, Bounds]:
    """Start and ``buffer_hi`` of this instant."""
    return {
        p: replace(Bounds.at(at.start), buffer_hi=at.buffer_hi) for p, at in books.ingest_of(table.table_id).items()
    }
