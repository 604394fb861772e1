"""The box of a region: the values per column, and how a cut divides it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from harness_pipelines.layout.columns import CutRefused, IndexedColumn, Value


class Slab(StrEnum):
    """A cut that takes what is no value out of a region: it alone goes high, all else low."""

    NULL = "null"
    NAN = "nan"


@dataclass(frozen=True, slots=True)
class At:
    """A cut at a raw value: ``value < cut`` goes low; all else high, NULL and NaN too."""

    value: Value


Cut = At | Slab


@dataclass(frozen=True, slots=True)
class Span:
    """What one column of a region may hold: values in ``[low, high)``, NULL, NaN."""

    low: Value | None = None  #: None: open, no value is too small
    high: Value | None = None  #: None: open, no value is too large
    values: bool = True  #: False: no value at all, only NULL or NaN
    null: bool = True
    nan: bool = True  #: means nothing for a column that is no float

    def holds(self, value: Value | None) -> bool:
        """True if *value* (None for NULL, a NaN for NaN) may lie here."""
        if value is None:
            return self.null
        if isinstance(value, float) and math.isnan(value):
            return self.nan
        return self.values and (self.low is None or self.low <= value) and (self.high is None or value < self.high)

    def is_single(self, column: IndexedColumn) -> bool:
        """True if all rows here are equal in this column, later ones included: it cannot be cut further."""
        nan = self.nan and column.is_float
        if not self.values:
            return self.null != nan
        low = column.least if self.low is None else self.low
        return not self.null and not nan and column.successor(low) == self.high

    def may_divide(self, column: IndexedColumn, cut: Cut) -> bool:
        """True if both sides of *cut* could hold a row."""
        nan = self.nan and column.is_float
        if cut is Slab.NULL:
            return self.null and (self.values or nan)
        if cut is Slab.NAN:
            return nan and (self.values or self.null)
        low = column.least if self.low is None else self.low
        return self.values and low < cut.value and (self.high is None or cut.value < self.high)

    def divided(self, column: IndexedColumn, cut: Cut) -> tuple[Span, Span]:
        """The low and the high side of *cut*.

        Raises: CutRefused, where one side would be empty whatever rows come.
        """
        if not self.may_divide(column, cut):
            raise CutRefused(
                f"column {column.name!r} of type {column.type}: expected a cut strictly inside of {self}, found {cut}; "
                "one of its sides could never hold a row"
            )
        if cut is Slab.NULL:
            return replace(self, null=False), replace(self, low=None, high=None, values=False, nan=False)
        if cut is Slab.NAN:
            return replace(self, nan=False), replace(self, low=None, high=None, values=False, null=False)
        return replace(self, high=cut.value, null=False, nan=False), replace(self, low=cut.value)


@dataclass(frozen=True, slots=True)
class Box:
    """One span per indexed column; a row lies in the box where every span holds its value."""

    spans: tuple[Span, ...]

    def holds(self, row: Sequence[Value | None]) -> bool:
        return all(span.holds(value) for span, value in zip(self.spans, row, strict=True))

    def is_single(self, columns: Sequence[IndexedColumn]) -> bool:
        """True if no cut divides this box: all its rows are equal in every indexed column."""
        return all(span.is_single(column) for span, column in zip(self.spans, columns, strict=True))

    def divided(self, columns: Sequence[IndexedColumn], axis: int, cut: Cut) -> tuple[Box, Box]:
        """The low and the high side of *cut* on column *axis*. Raises: CutRefused."""
        low, high = self.spans[axis].divided(columns[axis], cut)
        before, after = self.spans[:axis], self.spans[axis + 1 :]
        return Box((*before, low, *after)), Box((*before, high, *after))
