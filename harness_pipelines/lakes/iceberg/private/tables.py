"""Private names of tables, scans and snapshots.

Names with an underscore that a subclass inherits are used in one place more, `write/replace.py`, whose producer of
snapshots is PyIceberg's with other manifests.
"""

from __future__ import annotations

from typing import Any

from pyiceberg.expressions.visitors import _InclusiveMetricsEvaluator as InclusiveMetricsEvaluator
from pyiceberg.io.fileformat import FileFormatFactory
from pyiceberg.io.pyarrow import _dataframe_to_data_files as dataframe_to_data_files
from pyiceberg.manifest import FileFormat
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import TableUpdate
from pyiceberg.table.update.snapshot import _ManifestMergeManager as ManifestMergeManager
from pyiceberg.table.update.snapshot import _OverwriteFiles as OverwriteFiles

__all__ = [
    "Changes",
    "InclusiveMetricsEvaluator",
    "ManifestMergeManager",
    "OverwriteFiles",
    "apply",
    "dataframe_to_data_files",
    "register",
    "table_of",
]


class Changes(Transaction):
    """A transaction that puts its metadata together once after each change.

    PyIceberg copies all of it at every look, and a commit looks 16 times: a quarter of what it took.
    """

    _known: tuple[TableMetadata, tuple[TableUpdate, ...], TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        base, updates = self._table.metadata, self._updates
        if self._known is None or self._known[0] is not base or self._known[1] is not updates:
            self._known = base, updates, super().table_metadata
        return self._known[2]


def apply(transaction: Transaction, updates: tuple[TableUpdate, ...]) -> None:
    """Take *updates*, of any kind, into a transaction."""
    transaction._apply(updates, ())


def table_of(transaction: Transaction) -> Table:
    return transaction._table


def register(format_: FileFormat, model: Any) -> None:
    """Let *model* write the data files of a format from now on."""
    FileFormatFactory._registry[format_] = model
