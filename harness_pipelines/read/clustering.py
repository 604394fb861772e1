"""The clustering of a batch view: the tree of a version, and the target size of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness_pipelines.drivers.by_path import ByPath
from harness_pipelines.layout.balance import from_files
from harness_pipelines.layout.tree import RegionTree, indexed_columns
from harness_pipelines.ports.access import HasLake, HasTables
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import folder_of


class Ports(HasLake, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clustering:
    """The tree, and up to which sequence number the files of each region are clustered."""

    tree: RegionTree
    clustered: dict[str, int]


_layout_of_files = ByPath(16)
_LAYOUTS = ByPath(500_000)  #: published ones; the weight of one is its number of regions


def layout_of(stores: Ports, table: TableRow, version: Version) -> Clustering | None:
    """How the batch view of *version* is clustered; ``None`` before its first rows.

    Where it has rows and the ledger no tree, since it was lost and made again from the lake, the files tell.
    """
    if (published := _published(stores, table, version)) is not None:
        return published
    if table.view_set.mixed:  # tier has put its rows there, and all of them wait
        return Clustering(tree=RegionTree.single(indexed_columns(table.spec)), clustered={})
    if version.batch is None:
        return None
    metadata = version.batch.metadata
    return _layout_of_files.get(metadata, lambda: _from_files(stores, table, metadata))


def _published(stores: Ports, table: TableRow, version: Version) -> Clustering | None:
    """What the ledger has. A layout never changes under its number, and a folder of the lake has one ledger."""

    def read() -> Clustering | None:
        state = stores.tables.layout(table, version)
        if state is None:
            return None
        return Clustering(tree=RegionTree.from_json(state.tree), clustered=dict(state.clustered))

    if version.layout is None or version.batch is None:
        return read()
    kind = f"{table.table_id}:{version.layout}"
    return _LAYOUTS.get(folder_of(version.batch.metadata), read, kind=kind, weigh=_regions)


def _regions(found: Clustering | None) -> int:
    return 1 if found is None else len(found.tree)


def _from_files(stores: Ports, table: TableRow, metadata: str) -> Clustering | None:
    files = stores.lake.region_files(table, metadata)
    if not files:
        return None
    tree, clustered = from_files(files, indexed_columns(table.spec))
    return Clustering(tree=tree, clustered=clustered)


def target_rows_of(table: TableRow, *, rows: int, size: int, of_rows: int | None = None) -> float:
    """Rows of a file of the target size, at the bytes that these rows take; *of_rows* are all of the view."""
    rules = table.spec.layout
    if rules.regions is not None:
        return max((of_rows or rows) / rules.regions, 1.0)
    return max(rules.target_file_mb * 2**20 * rows / max(size, 1), 1.0)


def target_bytes(table: TableRow, *, of_bytes: int) -> int:
    """Of a file of the batch view, which has *of_bytes*."""
    rules = table.spec.layout
    if rules.regions is not None:
        return max(of_bytes // rules.regions, 1)
    return rules.target_file_mb * 2**20


BUDGET_BYTES = 2 * 2**30  #: of files that one relayout reads
