"""What the region tree finds wrong, by name. Each message says what was expected, what was found, and the way on."""

from __future__ import annotations

from harness_pipelines.errors import HarnessError, Recovery, UsageError


class ColumnNotIndexable(UsageError):
    """The layout names a column whose values have no order that files keep bounds of, or too many columns."""


class CutRefused(HarnessError):
    """A cut that leaves one side of its region without any value, or that the column's type cannot hold."""


class RegionUnknown(HarnessError):
    """A path that leads to no region of this tree: the tree was changed since the path was taken."""

    recovery = Recovery.REFRESH


class TreeBroken(HarnessError):
    """A stored tree that cannot be read. It can be rebuilt from the files of the batch view."""

    way_on = "`harness recluster TABLE`"


class ShapesDiffer(HarnessError):
    """Values, cells, edges or files that do not fit the columns of the tree."""
