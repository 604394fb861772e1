"""Guard: refuse to write to a warehouse owned by another ledger.

A ledger that lost the end of its history (a stand-by was promoted that lacked the last commits, a backup was restored)
would give versions and events numbers that it gave before. So the moves that the lake names are compared with those of
the ledger: at first, whenever the database was connected to again, and now and then.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog
from harness_pipelines.lakes.iceberg.inspect.history import LakeHistory, number_of
from harness_pipelines.lakes.owner import Ownership
from harness_pipelines.ledgers.postgres.history.numbers import begin_history, in_history
from harness_pipelines.ports.errors import LedgerOlderThanLake
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import Ledger, TableRow, TableUnknown
from harness_pipelines.protocol.lake.history import PROMOTED, NamedMove, lost_of

if TYPE_CHECKING:
    from harness_pipelines.ledgers.postgres.reconcile import Reconciler

log = structlog.get_logger(__name__)
COMPARED_S = 20.0  #: so long a comparison is believed while the connections last; less than the lease of a claim
ByFile = Mapping[str, Collection[NamedMove]]  #: the moves that each metadata file names
FILES_BACK = 8  #: metadata files below the catalog's that are looked at too: what went on since may lie above them


@dataclass(slots=True)
class _Compared:
    """What is known of one table."""

    at: float = -inf  #: monotonic seconds
    connections: int = -1  #: that the database had made when the comparison began
    read: ByFile = field(default_factory=dict)  #: of the newest metadata files


class Standing:
    """The two questions: whose the warehouse is, and whether the ledger knows all that was published there."""

    def __init__(
        self, ownership: Ownership, reconciler: Reconciler, catalog: StagingCatalog, database: Database
    ) -> None:
        self._ownership, self._reconciler, self._catalog = ownership, reconciler, catalog
        self._database = database
        self._compared: dict[int, _Compared] = {}

    def check(self, table: TableRow, ledger: Ledger) -> None:
        """The warehouse is this ledger's, and the ledger knows all that was published to it.

        On a server that was promoted since, the table's numbers continue from larger ones, and the server that was left
        behind loses the warehouse. Raises: WarehouseTaken, LedgerOlderThanLake (NEVER); LakeAway.
        """
        self._ownership.check()
        known = self._compared.setdefault(table.table_id, _Compared())
        # Whether the server is still the one of before shows only when it is asked something.
        self._database.rows("history/of_table", {"table_id": table.table_id})
        connections, now = self._database.connections, time.monotonic()
        if known.connections == connections and now < known.at + COMPARED_S:
            return
        # What a file names is kept, not that the ledger had it: another server than that one may answer now.
        known.read = self._named(table, ledger, read=known.read)
        if lost := self._unknown(table, known.read):
            raise LedgerOlderThanLake(_explained(table, lost))
        self._admit(table)
        self._ownership.follow()
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
            history = LakeHistory.of(self._catalog, table, pointer, view=view)
            at_least = max(number_of(pointer) - FILES_BACK, 0)
            with reachable(table.name, "comparing the ledger with the lake"):
                named |= history.named_moves(at_least=at_least, read=read)
        return named

    def _unknown(self, table: TableRow, by_file: ByFile) -> list[NamedMove]:
        named = {one for of_file in by_file.values() for one in of_file}
        if not named:
            return []
        key = {"table_id": table.table_id, "move_ids": sorted({one.move_id for one in named})}
        known: dict[int, set[str]] = {}
        for row in self._database.rows("history/known", key):
            known.setdefault(row["move_id"], set()).add(row["nonce"] or "")
        return lost_of(named, known, highest=self._reconciler.highest_move(table))

    def _admit(self, table: TableRow) -> None:
        """After a promotion that lost nothing which the lake names: other lost commits gave out numbers as well."""
        key = {"table_id": table.table_id}
        found = self._database.rows("history/of_table", key)
        if not found or found[0]["history"] == found[0]["ours"]:
            return
        with self._database.transaction() as connection:
            connection.execute(sql("ledger/lock_row"), key)
            if not in_history(connection, table):  # another worker was first
                made = begin_history(connection, table, event=PROMOTED, lost=())
                connection.execute(sql("reconcile/fence_all"), key)
                log.warning("ledger.promoted", table=table.name, version=made.version)


def _explained(table: TableRow, lost: list[NamedMove]) -> str:
    shown = ", ".join(str(one.move_id) for one in lost[-3:])
    return (
        f"{table.name}: history lost: the lake names move {shown}, which this ledger does not have: its database was "
        "restored from an older backup, or a stand-by was promoted that lacked the last commits. Nothing was written; "
        f"`harness reconcile {table.name} --dry-run` says how the table can go on"
    )
