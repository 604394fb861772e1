"""May this ledger work on a table's lake? Asked before anything is written or removed there."""

from __future__ import annotations

from harness_pipelines.errors import HarnessError
from harness_pipelines.stores.catalog import StagingCatalog
from harness_pipelines.stores.history import LakeHistory, number_of
from harness_pipelines.stores.lake import reachable
from harness_pipelines.stores.ledger import PostgresLedger
from harness_pipelines.stores.owner import Ownership
from harness_pipelines.stores.ports import TableRow, TableUnknown
from harness_pipelines.stores.reconcile import Reconciler


class LedgerOlderThanLake(HarnessError):
    """The lake holds moves that the ledger does not know: the database was restored from an older backup."""


class Standing:
    """The two questions; the second is asked once per process, whose the warehouse is again and again."""

    def __init__(self, ownership: Ownership, reconciler: Reconciler, catalog: StagingCatalog) -> None:
        self._ownership, self._reconciler, self._catalog = ownership, reconciler, catalog
        self._good: set[int] = set()

    def check(self, table: TableRow, ledger: PostgresLedger) -> None:
        """The warehouse is this ledger's, and the ledger knows all that was published to it.

        Raises: WarehouseTaken, LedgerOlderThanLake (NEVER); LakeAway.
        """
        self._ownership.check()
        if table.table_id in self._good:
            return
        highest, known = self.highest_in_lake(table, ledger), self._reconciler.highest_move(table)
        if highest > known:
            raise LedgerOlderThanLake(
                f"{table.name}: the lake names move {highest}, this ledger has given numbers only up to {known}: its "
                "database was restored from an older backup. Nothing was written; `harness reconcile "
                f"{table.name} --dry-run` says how the table can go on"
            )
        self._good.add(table.table_id)

    def highest_in_lake(self, table: TableRow, ledger: PostgresLedger) -> int:
        """The largest move number that the newest metadata files of the table's views name."""
        highest = 0
        for view in table.views:
            try:
                pointer = ledger.pointer(table, view)
            except TableUnknown:  # dropped by another engine: its folder is still there
                pointer = ledger.head(table).views[view].metadata
            history = LakeHistory.of(self._catalog, table, pointer, view=view)
            with reachable(table.name, "comparing the ledger with the lake"):
                highest = max(highest, history.highest_move(at_least=number_of(pointer)))
        return highest
