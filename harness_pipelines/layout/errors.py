"""Errors of the region tree. Each message states the expected and the found value and the remedy."""

from __future__ import annotations

from harness_pipelines.errors import HarnessError, Recovery, UsageError


class ColumnNotIndexable(UsageError):
    """The layout names a column whose values have no order that files keep bounds of, or too many columns."""


class CutRefused(HarnessError):
    """The cut leaves one side of its region without values, or the column's type cannot hold it."""


class RegionUnknown(HarnessError):
    """The path leads to no region of this tree, because the tree changed meanwhile."""

    recovery = Recovery.REFRESH


class TreeBroken(HarnessError):
    """A stored tree that cannot be read. It can be rebuilt from the files of the batch view."""

    way_on = "`harness recluster TABLE`"


class ShapesDiffer(HarnessError):
    """Values, cells, edges or files do not fit the columns of the tree."""
