"""The columns that a tree cuts: one comparable domain per Iceberg type, alike in Python and numpy.

| type | one value | an array of them |
|---|---|---|
| boolean | 0 or 1 | int64 |
| int, long | int | int64 |
| date | days since 1970-01-01 | int64 |
| time | microseconds of the day | int64 |
| timestamp, timestamptz | microseconds since 1970-01-01 (UTC) | int64 |
| decimal(p, s) | the unscaled int | int64, object (int) where p > 18 |
| float, double | float; -0.0 is 0.0 | float64 |
| string | str: code points order as the bytes of UTF-8 do | object |
| uuid | 16 bytes, big-endian: ordered as its text is | object |

NULL and NaN are not values: they have separate slabs (`tree.Slab`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.spec.types import INT64_DIGITS

Value = Any  #: int, float, str or bytes: one of them per column, as the table above says
Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

COLUMNS_MAX = 9  #: eight of the user's and that of the sample layer
TEXT_CUT_CHARS = (
    15  #: one less than Iceberg keeps of a text bound, so that a rounded bound still tells the side of a cut
)
ALLOWED = (
    "boolean", "int", "long", "float", "double", "decimal(p,s)", "date", "time", "timestamp", "timestamptz", "string",
    "uuid",
)  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_BITS = {"int": 31, "date": 31, "long": 63, "timestamp": 63, "timestamptz": 63}
_CHARACTER_MAX = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)  # not characters
_DAY_US = 86_400_000_000


class ColumnNotIndexable(UsageError):
    """The layout names a column whose values have no order that files keep bounds of, or too many columns."""


class CutRefused(HarnessError):
    """The cut leaves one side of its region without values, or the column's type cannot hold it."""


class ShapesDiffer(HarnessError):
    """Values, cells, edges or files do not fit the columns of the tree."""


@cache
def _decimal_digits(type_: str) -> int:
    """0 for a type that is no decimal."""
    found = _DECIMAL.fullmatch(type_)
    return int(found.group(1)) if found else 0


@dataclass(frozen=True, slots=True)
class IndexedColumn:
    """A column of the batch view that regions are cut on; *type* is Iceberg's type string.

    Raises: ColumnNotIndexable.
    """

    name: str
    type: str

    def __post_init__(self) -> None:
        if self.type not in ALLOWED and not _DECIMAL.fullmatch(self.type):
            raise ColumnNotIndexable(
                f"layout column {self.name!r}: expected one of the types {', '.join(ALLOWED)}, found {self.type!r}; "
                "leave the column out of layout.columns"
            )

    @property
    def is_float(self) -> bool:
        return self.type in ("float", "double")

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of an array of the column's values."""
        if self.is_float:
            return np.dtype(np.float64)
        wide = self.type.startswith("decimal") and self._digits > INT64_DIGITS
        return np.dtype(object) if wide or self.type in ("string", "uuid") else np.dtype(np.int64)

    @property
    def _digits(self) -> int:
        return _decimal_digits(self.type)

    @property
    def least(self) -> Value:
        """The type's smallest value: a cut there has nothing below."""
        match self.type:
            case "float" | "double":
                return -math.inf
            case "string":
                return ""
            case "uuid":
                return bytes(16)
            case "boolean" | "time":
                return 0
            case _:
                return 1 - 10**self._digits if self._digits else -(2 ** _BITS[self.type])

    @property
    def greatest(self) -> Value:
        """The type's largest value; None for text, which has none."""
        match self.type:
            case "float" | "double":
                return math.inf
            case "string":
                return None
            case "uuid":
                return b"\xff" * 16
            case "boolean":
                return 1
            case "time":
                return _DAY_US - 1
            case _:
                return 10**self._digits - 1 if self._digits else 2 ** _BITS[self.type] - 1

    def checked(self, value: Value) -> Value:
        """*value* in its one form (a numpy number as Python's, -0.0 as 0.0).

        Raises: CutRefused, where it is none of the column's values.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if self.is_float and isinstance(value, int | float) and not math.isnan(value):
            return float(value) + 0.0
        if self.type == "string" and isinstance(value, str):
            return self._checked_text(value)
        if self.type == "uuid" and isinstance(value, bytes) and len(value) == 16:
            return value
        whole = self.dtype.kind == "i" or self._digits > 0
        if whole and isinstance(value, int) and self.least <= value <= self.greatest:
            return int(value)
        raise CutRefused(f"column {self.name!r}: expected a value of type {self.type}, found {value!r}")

    def _checked_text(self, value: str) -> str:
        if len(value) > TEXT_CUT_CHARS:
            raise CutRefused(
                f"column {self.name!r}: expected a cut of at most {TEXT_CUT_CHARS} characters, found {value!r}"
            )
        return value

    def as_cut(self, value: Value) -> Value:
        """The largest possible cut at or below *value*: text loses what is behind its first characters."""
        return self.checked(value[:TEXT_CUT_CHARS] if isinstance(value, str) else value)

    def successor(self, value: Value) -> Value | None:
        """The next larger possible cut: no cut divides ``[value, successor)``. None after the last.

        That holds one value only, but for text, where it may hold all texts that begin alike. A float column steps like
        a double: its values are widened without loss.
        """
        if value == self.greatest:
            return None
        if isinstance(value, float):
            return math.nextafter(value, math.inf) + 0.0
        if isinstance(value, str):
            return value + "\0" if len(value) < TEXT_CUT_CHARS else _next_text(value)
        if isinstance(value, bytes):
            return (int.from_bytes(value, "big") + 1).to_bytes(16, "big")
        return value + 1

    def to_text(self, value: Value) -> str:
        """*value* as text without loss: the shortest decimal form of a float, hex of a UUID."""
        return value if isinstance(value, str) else value.hex() if isinstance(value, bytes) else repr(value)

    def from_text(self, text: str) -> Value:
        """Raises: CutRefused, ValueError."""
        if self.type == "string":
            return self.checked(text)
        if self.type == "uuid":
            return self.checked(bytes.fromhex(text))
        return self.checked(float(text) if self.is_float else int(text))


@dataclass(frozen=True, slots=True)
class ColumnValues:
    """The values of one column for n rows. What *values* holds where *nulls* is true does not matter."""

    values: Array  #: (n,), of the column's dtype
    nulls: Mask | None = None  #: (n,); None: no row is NULL

    def __post_init__(self) -> None:
        if self.nulls is not None and self.nulls.shape != self.values.shape:
            raise ShapesDiffer(f"expected one null flag per value, found {self.nulls.shape} for {self.values.shape}")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_null(self) -> Mask:
        return np.zeros(len(self.values), dtype=bool) if self.nulls is None else self.nulls

    @property
    def is_nan(self) -> Mask:
        """Never true where the row is NULL."""
        if self.values.dtype.kind != "f":
            return np.zeros(len(self.values), dtype=bool)
        nan = np.isnan(self.values)
        return nan if self.nulls is None else nan & ~self.nulls

    def take(self, rows: Array) -> ColumnValues:
        """The rows at these positions, or where this mask is true."""
        return ColumnValues(self.values[rows], None if self.nulls is None else self.nulls[rows])


def column_values(column: IndexedColumn, values: Sequence[Value | None]) -> ColumnValues:
    """Python values, None for NULL, as an array."""
    filled = [column.least if value is None else value for value in values]
    array = np.empty(len(filled), dtype=column.dtype)
    array[:] = filled
    return ColumnValues(array, np.array([value is None for value in values], dtype=bool))


def unscaled(value: Decimal, scale: int) -> int:
    """The whole number that a decimal of *scale* is; exact, whatever the precision of Python's decimal context."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    number: int = int("".join(map(str, digits))) * 10 ** max(exponent + scale, 0) // 10 ** max(-exponent - scale, 0)
    return -number if sign else number


def rescaled(value: int, scale: int) -> Decimal:
    """The decimal of *scale* that a whole number is; exact."""
    return Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -scale))


def check_columns(columns: Sequence[IndexedColumn]) -> tuple[IndexedColumn, ...]:
    """Raises: ColumnNotIndexable, for none, too many, or one named twice."""
    names = [column.name for column in columns]
    if not 1 <= len(names) <= COLUMNS_MAX:
        raise ColumnNotIndexable(f"expected 1 to {COLUMNS_MAX} layout columns, found {len(names)}: {names}")
    if len(set(names)) < len(names):
        raise ColumnNotIndexable(f"expected each layout column once, found {names}")
    return tuple(columns)


def codes(values: ColumnValues, cuts: Array) -> npt.NDArray[np.int32]:
    """Per row the number of *cuts* (ascending) at or below it; NaN is ``len(cuts) + 1``, NULL ``len(cuts) + 2``.

    This is what tells rows apart for a tree that cuts there, and it is the bucket of a histogram.
    """
    found = np.full(len(values), len(cuts) + 2, dtype=np.int32)
    nulls = values.nulls
    if nulls is None or not nulls.any():
        found[:] = np.searchsorted(cuts, values.values, side="right")
    else:
        found[~nulls] = np.searchsorted(cuts, values.values[~nulls], side="right")
    found[values.is_nan] = len(cuts) + 1
    return found


def _next_text(text: str) -> str | None:
    """The smallest text above all that begin with *text*; None if there is none."""
    bare = text.rstrip(chr(_CHARACTER_MAX))
    if not bare:
        return None
    after = ord(bare[-1]) + 1
    return bare[:-1] + chr(_SURROGATES.stop if after in _SURROGATES else after)
