"""Shapes of columns: decode a value, build the Arrow column, detect values that do not fit.

A conversion is a sequence of checks over a whole column; one that fails raises `Misfits`, which names every row that
fails it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Reason

Cells = list[Any]
Convert = Callable[[Cells], pa.Array]

ABSENT = object()  #: the cell of a record that lacks the field of a column with a default
NULL = msgspec.Raw(b"null")  #: what a decimal column has for no value
DAYS = (-719_162, 2_932_896)  #: years 1 to 9999, which every reader of the table can show
DAY_US = 86_400_000_000
SHOWN_CHARS = 60


@dataclass(frozen=True, slots=True)
class Unfit:
    """Why a value does not fit its column."""

    reason: Reason
    detail: str
    path: str = ""  #: where below the column, such as ``[...].lat``


class Misfits(Exception):
    """Cells that do not fit, by position: all those that fail the first check that any cell fails."""

    def __init__(self, found: dict[int, Unfit]) -> None:
        super().__init__(found)
        self.found = found


@dataclass(frozen=True, slots=True)
class Shape:
    """How values of one type are decoded and made into Arrow."""

    python: Any  #: the type that msgspec decodes a value to
    convert: Convert  #: raises `Misfits`
    missing: Any = None  #: the value that stands for null

    @property
    def optional(self) -> Any:
        """The type of a value or null. `msgspec.Raw` holds both."""
        return self.python if self.missing is NULL else self.python | None


def leaf(
    convert: Convert, *, describe: Callable[[Any], Unfit], plausible: Callable[[Any], Any] | None = None
) -> Convert:
    """*convert* that names the cells it fails on.

    *plausible* says no only to cells that *convert* surely fails on; the others that it fails on are found by halving.
    """

    def run(cells: Cells) -> pa.Array:
        try:
            return convert(cells)
        except (pa.ArrowInvalid, OutOfRange):
            wrong: list[int] = []
            if plausible:
                wrong = [i for i, cell in enumerate(cells) if cell is not None and not plausible(cell)]
        raise Misfits({i: describe(cells[i]) for i in wrong or _failing(convert, cells, 0)})

    return run


def _failing(convert: Convert, cells: Cells, first: int) -> Iterator[int]:
    """The positions, counted from *first*, of all cells that cannot be converted."""
    try:
        convert(cells)
    except (pa.ArrowInvalid, OutOfRange):
        if len(cells) == 1:
            yield first
            return
        middle = len(cells) // 2
        yield from _failing(convert, cells[:middle], first)
        yield from _failing(convert, cells[middle:], first + middle)


def complete(convert: Convert) -> Convert:
    """Wrap *convert*: its `Misfits` names every row that fails a check, with the first check that it fails."""

    def run(cells: Cells) -> pa.Array:
        found: dict[int, Unfit] = {}
        left = list(range(len(cells)))
        while True:
            try:
                array = convert([cells[i] for i in left] if found else cells)
                break
            except Misfits as misfits:
                found |= {left[position]: why for position, why in misfits.found.items()}
                left = [i for i in left if i not in found]
        if found:
            raise Misfits(found)
        return array

    return run


class OutOfRange(Exception):
    """Some value of a column is readable, but beyond what the column holds."""


def shown(text: str) -> str:
    """*text* in quotes on one line, safe to store, cut off when it is long."""
    return repr(text) if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]!r}... ({len(text):,} characters)"


def within(array: pa.Array, low: int, high: int) -> pa.Array:
    """*array* of dates or moments, as it is. Raises: OutOfRange, where one is not within *low* and *high*."""
    values = array if array.null_count == 0 else array.drop_null()
    if not len(values):
        return array
    # Not by Arrow's functions: each costs as much as some hundred values.
    numbers = np.frombuffer(values.buffers()[1], f"<i{array.type.bit_width // 8}")[values.offset :][: len(values)]
    if not low <= numbers.min() <= numbers.max() <= high:
        raise OutOfRange
    return array


def whole_number(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2**bits), le=2**bits - 1)]


def nothing_finer(convert: Convert, is_finer: Callable[[Any], Any]) -> Convert:
    """*convert* of a key: what it would cut off would make two keys one."""

    def run(cells: Cells) -> pa.Array:
        wrong = [i for i, cell in enumerate(cells) if cell is not None and is_finer(cell)]
        if wrong:
            why = Unfit(Reason.OUT_OF_RANGE, "digits below a microsecond, which a key of this type would lose")
            raise Misfits(dict.fromkeys(wrong, why))
        return convert(cells)

    return run


def required(convert: Convert) -> Convert:
    """*convert* that refuses null."""

    def run(cells: Cells) -> pa.Array:
        array = convert(cells)
        if array.null_count:
            nulls = np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist()
            raise Misfits(dict.fromkeys(nulls, Unfit(Reason.MISSING_FIELD, "required, but null")))
        return array

    return run
