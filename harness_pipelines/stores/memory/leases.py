"""The reference leases: lease first, then look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import uuid4

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.versions import VersionGone, answering_version
from harness_pipelines.stores.memory.state import Books, Lease, MemoryState
from harness_pipelines.stores.ports import LeaseEnded, ReadState, TableRow

LEASE_AGE_MAX = timedelta(hours=24)


class MemoryLeases:
    """Leases in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    def look(self, table: TableRow, *, holder: str, lease: timedelta, at: int | None = None) -> ReadState:
        """Lease a version and read the bounds of this instant. Raises: VersionGone."""
        with self.state.transaction() as books:
            versions, retained_from = books.versions[table.table_id], books.tables[table.table_id].retained_from
            version = versions[-1] if at is None else next((v for v in versions if v.version == at), None)
            if version is None or version.version < retained_from:
                raise VersionGone(
                    f"{table.name}: version {at} is not retained"
                    + (f" (the oldest is {retained_from})" if version else "; `harness status` shows the newest")
                )
            lease_id, now = str(uuid4()), self.state.now()
            until = now + min(lease, LEASE_AGE_MAX)
            books.leases[lease_id] = Lease(table_id=table.table_id, version=version.version, born=now, until=until)
            later = [v for v in versions if v.version > version.version]
            bounds = dict(version.bounds) if later else _bounds_now(books, table, version.bounds)
            answered_by = answering_version(version, later) if later else None
            low = {p: b.stream_hi for p, b in bounds.items() if b.buffer_hi > b.stream_hi}
            named = [s for s in books.segments_of(table.table_id) if s.state != "retired" and may_hold(s.max_hi, low)]
            return ReadState(
                version=version,
                bounds=bounds,
                segments=tuple(s.ref for s in named) if low and answered_by is None else (),
                lease_id=lease_id,
                lease_until=until,
                answered_by=answered_by,
            )

    def renew(self, lease_id: str, *, lease: timedelta) -> datetime:
        """Extend a lease that is alive, up to the greatest age. Raises: LeaseEnded."""
        with self.state.transaction() as books:
            found, now = books.leases.get(lease_id), self.state.now()
            if found is None or found.until <= now or found.born + LEASE_AGE_MAX <= now:
                raise LeaseEnded(
                    f"lease {lease_id} of this read has ended: its rows may be gone, nothing is returned; "
                    "read again (or ask for a longer lease)"
                )
            until = min(now + lease, found.born + LEASE_AGE_MAX)
            books.leases[lease_id] = replace(found, until=until)
            return until

    def end(self, lease_id: str) -> None:
        """Give a lease back."""
        with self.state.transaction() as books:
            books.leases.pop(lease_id, None)


def _bounds_now(books: Books, table: TableRow, known: Mapping[int, Bounds]) -> dict[int, Bounds]:
    """The head's lake bounds with the buffer's positions of this instant."""
    return {
        p: replace(known.get(p, Bounds.at(at.start)), buffer_hi=at.buffer_hi)
        for p, at in books.ingest_of(table.table_id).items()
    }
