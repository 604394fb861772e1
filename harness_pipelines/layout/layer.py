"""The sample layer: rows that a hash of their coordinate chooses lie in files of their own, all that a sample reads.

Which rows they are stands in one more column of the batch view, ``_sample``, and the first cut of the tree is on it: so
the layer has regions of its own, of the usual file size, and Iceberg's bounds lead every engine to them. A query of
values reads both sides; the layer's few files are wide boxes, and that is its price.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.tree import RegionTree

LAYER = IndexedColumn("_sample", "boolean")  #: always the first column where there is a layer
SIDES = ("0", "1")  #: paths of the other rows and of the layer


def is_layered(columns: Sequence[IndexedColumn]) -> bool:
    """Whether a view that is clustered by *columns* has a sample layer."""
    return bool(columns) and columns[0] == LAYER


def layered(columns: Sequence[IndexedColumn]) -> RegionTree:
    """Two regions, the other rows and the layer."""
    return RegionTree.of(columns, [(0, At(1)), None, None])
