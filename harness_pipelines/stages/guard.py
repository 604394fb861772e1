"""Guard: refuse to write to a warehouse owned by another ledger.

A ledger that lost the end of its history (a stand-by was promoted that lacked the last commits, a backup was restored)
would give versions and events numbers that it gave before. So the moves that the lake names are compared with those of
the ledger: at first, whenever the database was connected to again, and before something is written if that is some time
ago. A look costs requests, so a stage that has nothing to write looks rarely.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import LedgerOlderThanLake
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import Ledger, TableRow, TableUnknown
from harness_pipelines.ports.repair import ByFile, Histories, NamedByFiles, WarehouseMark
from harness_pipelines.protocol.lake.history import PROMOTED, NamedMove, lost_of

log = structlog.get_logger(__name__)
ASKED_S = 0.1  #: so long an answer of the server is one for all tables
COMPARED_S = 20.0  #: so long a comparison is believed while the connections last; less than the lease of a claim
#: Times as long it is believed by a caller that writes nothing before another look: 12 minutes, so that expire, which
#: looks every 10, looks for the others too.
RESTING = 36


@dataclass(slots=True)
class _Compared:
    """What is known of one table."""

    at: float = -inf  #: monotonic seconds, when the last comparison that found nothing began
    begun: float = -inf  #: when the last one began
    connections: int = -1  #: that the database had made when the comparison began
    read: ByFile = field(default_factory=dict)  #: of the newest metadata files


class WarehouseGuard:
    """Two checks: the owner of the warehouse, and whether the ledger knows all versions published there."""

    def __init__(self, ownership: WarehouseMark, histories: Histories, named: NamedByFiles) -> None:
        """*named* reads the newest metadata files of a view."""
        self._ownership, self._histories, self._named_by_files = ownership, histories, named
        self._compared: dict[int, _Compared] = {}
        self._asked_at = -inf  # monotonic seconds

    def is_fresh(self, table: TableRow) -> bool:
        """`check` asks nothing but the ledger, if that is the server of before."""
        known = self._compared.get(table.table_id)
        if known is None or known.connections != self._histories.connections:
            return False
        return time.monotonic() < known.at + COMPARED_S and self._ownership.is_fresh()

    def check(self, table: TableRow, ledger: Ledger, *, resting: bool = False) -> None:
        """The warehouse is this ledger's, and the ledger knows all that was published to it.

        *resting*: the caller neither writes to the lake nor deletes from it before it checks again without that word.
        What was seen before is believed for `RESTING` times as long then, but never of another connection.
        On a server that was promoted since, the table's numbers continue from larger ones, and the server that was left
        behind loses the warehouse. Raises: WarehouseTaken, LedgerOlderThanLake (NEVER); LakeAway.
        """
        known = self._compared.setdefault(table.table_id, _Compared())
        # Whether the server is still the one of before shows only when it is asked something.
        if time.monotonic() >= self._asked_at + ASKED_S:
            self._histories.ask(table)
            self._asked_at = time.monotonic()
        connections, now = self._histories.connections, time.monotonic()
        is_same = known.connections == connections
        times = RESTING if resting and is_same else 1
        self._ownership.check(times=times)
        # Another thread that looks just now answers a caller that writes nothing, and no other one.
        looked_at = max(known.at, known.begun) if resting else known.at
        if is_same and now < looked_at + times * COMPARED_S:
            return
        known.begun = now
        try:
            # What a file names is kept, not that the ledger had it: another server than that one may answer now.
            known.read = self._named(table, ledger, read=known.read)
            if lost := self._unknown(table, known.read):
                raise LedgerOlderThanLake(_explained(table, lost))
            self._admit(table)
            self._ownership.follow()
        except HarnessError:
            known.at = known.begun = -inf
            raise
        known.at, known.connections = now, connections

    def lost(self, table: TableRow, ledger: Ledger) -> list[NamedMove]:
        """The moves that the newest metadata files of the table's views name and the ledger never had."""
        return self._unknown(table, self._named(table, ledger, read={}))

    def _named(self, table: TableRow, ledger: Ledger, *, read: ByFile) -> ByFile:
        """What the newest metadata files of the table's views name; files that were *read* are not read again."""
        named: dict[str, Collection[NamedMove]] = {}
        for view in table.views:
            try:
                pointer = ledger.pointer(table, view)
            except TableUnknown:  # dropped by another engine: its folder is still there
                pointer = ledger.head(table).views[view].metadata
            with reachable(table.name, "comparing the ledger with the lake"):
                named |= self._named_by_files(table, pointer, view, read=read)
        return named

    def _unknown(self, table: TableRow, by_file: ByFile) -> list[NamedMove]:
        named = {one for of_file in by_file.values() for one in of_file}
        if not named:
            return []
        known = self._histories.known(table, sorted({one.move_id for one in named}))
        return lost_of(named, known, highest=self._histories.highest_move(table))

    def _admit(self, table: TableRow) -> None:
        """After a promotion that lost nothing which the lake names: other lost commits gave out numbers as well."""
        if made := self._histories.begin(table, event=PROMOTED):
            log.warning("ledger.promoted", table=table.name, version=made.version)


def _explained(table: TableRow, lost: list[NamedMove]) -> str:
    shown = ", ".join(str(one.move_id) for one in lost[-3:])
    return (
        f"{table.name}: history lost: the lake names move {shown}, which this ledger does not have: its database was "
        "restored from an older backup, or a stand-by was promoted that lacked the last commits. Nothing was written; "
        f"`harness reconcile {table.name} --dry-run` says how the table can continue"
    )
