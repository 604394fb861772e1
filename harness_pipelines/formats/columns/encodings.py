"""Encodings other than JSON numbers and ISO 8601 text: ``from`` in the spec.

Times as whole numbers, and decimals as Kafka Connect writes them: the unscaled number, big-endian in two's
complement, in base64 (`org.apache.kafka.connect.data.Decimal`), or an object of it and its scale (Debezium's
`VariableScaleDecimal`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.shapes import (
    DAY_US,
    DAYS,
    Cells,
    OutOfRange,
    Shape,
    Unfit,
    leaf,
    nothing_finer,
    whole_number,
)
from harness_pipelines.spec.sources import Source
from harness_pipelines.spec.types import INT64_DIGITS

_EPOCH_US = (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)
_NAN = Literal["NaN", "Infinity", "-Infinity"]
_DECIMAL_BYTES = 16
_INT64_BYTES = 8
_ZERO = b"\x00"
_DIGIT_BITS = 3.33  #: more than a decimal digit takes
_SCALE_MAX = 20_000  #: that Postgres has ends at 16,383


@dataclass(frozen=True, slots=True)
class Form:
    """How values are written."""

    #: ``named_nan``: floats that JSON has no number for are text; ``iso_utc``: ISO 8601, with UTC's zone or none;
    #: ``connect``: decimals of which a number is one, and text is base64
    name: Source | Literal["named_nan", "iso_utc", "connect"]
    scale: int | None = None  #: of base64: what the record says of it; none: that of the column
    key: Form | None = None  #: of the keys of a map, which may be written as pairs then: ``[[key, value], ...]``
    value: Form | None = None  #: of the values of a map
    fields: Mapping[str, Form] = field(default_factory=dict)  #: of a struct


def shape_in_form(kind: pa.DataType, form: Form, *, exact: bool = False) -> Shape | None:
    """The shape of values of *kind* in *form*; none where the form is that of plain JSON. *exact*: as of a `Column`."""
    if form.name == "base64" and pa.types.is_decimal(kind):
        return decimal_shape(kind, kind.scale if form.scale is None else form.scale)
    if form.name == "named_nan" and pa.types.is_floating(kind):
        return _float_shape(kind)
    make = _TIMES.get(form.name)
    if make is None:
        return None
    shape: Shape = make(kind)
    if exact and form.name in _NANOSECONDS:
        return Shape(shape.python, nothing_finer(shape.convert, lambda cell: cell % 1000))
    return shape


# Times


def _number_shape(kind: pa.DataType, *, bounds: tuple[int, int], factor: int = 1) -> Shape:
    """Whole numbers within *bounds* that are *factor* units of *kind* each."""

    def convert(cells: Cells) -> pa.Array:
        numbers = pa.array(cells, pa.int32() if kind == pa.date32() else pa.int64())
        return (pc.multiply_checked(numbers, factor) if factor > 1 else numbers).view(kind)

    return Shape(Annotated[int, msgspec.Meta(ge=bounds[0], le=bounds[1])], convert)


def _nanosecond_shape(kind: pa.DataType, *, bounds: tuple[int, int] | None = None) -> Shape:
    """What is finer than a microsecond is cut off, as it is of text."""
    python = Annotated[int, msgspec.Meta(ge=bounds[0], le=bounds[1])] if bounds else whole_number(63)
    return Shape(
        python, lambda cells: pa.array([None if n is None else n // 1000 for n in cells], pa.int64()).view(kind)
    )


_TIMES: Mapping[str, Any] = {
    "epoch_days": partial(_number_shape, bounds=DAYS),
    "epoch_ms": partial(_number_shape, bounds=(_EPOCH_US[0] // 1000, _EPOCH_US[1] // 1000), factor=1000),
    "epoch_us": partial(_number_shape, bounds=_EPOCH_US),
    "epoch_ns": _nanosecond_shape,
    "ms_of_day": partial(_number_shape, bounds=(0, DAY_US // 1000 - 1), factor=1000),
    "us_of_day": partial(_number_shape, bounds=(0, DAY_US - 1)),
    "ns_of_day": partial(_nanosecond_shape, bounds=(0, DAY_US * 1000 - 1)),
}
_NANOSECONDS = frozenset({"epoch_ns", "ns_of_day"})
WHOLE_NUMBERS = frozenset(_TIMES)  #: the forms whose values are whole numbers in JSON


# Floats


def _float_shape(kind: pa.DataType) -> Shape:
    def convert(cells: Cells) -> pa.Array:
        is_named = str in set(map(type, cells))
        numbers = [None if isinstance(cell, str) else cell for cell in cells] if is_named else cells
        array = pa.array(numbers, pa.float64()).cast(kind)
        if pc.any(pc.is_inf(array)).as_py():
            raise OutOfRange
        return pa.array([_float(cell) for cell in cells], kind) if is_named else array

    return Shape(
        float | _NAN, leaf(convert, describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{cell} does not fit {kind}"))
    )


def _float(cell: float | str | None) -> float | None:
    return cell if cell is None else float(cell)


# Decimals


class Scaled(msgspec.Struct, gc=False):
    """A decimal that tells its scale."""

    scale: int
    value: bytes


def decimal_shape(kind: pa.DataType, scale: int) -> Shape:
    def convert(cells: Cells) -> pa.Array:
        packed = b"".join(
            bytes(_DECIMAL_BYTES) if cell is None else _packed(_unscaled(cell, scale, kind)) for cell in cells
        )
        validity = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1]
        return pa.Array.from_buffers(kind, len(cells), [validity, pa.py_buffer(packed)])

    def describe(cell: bytes | Scaled) -> Unfit:
        expected = f"decimal({kind.precision}, {kind.scale})"
        try:
            _unscaled(cell, scale, kind)
        except OutOfRange:
            told = cell.scale if isinstance(cell, Scaled) else scale
            return Unfit(Reason.OUT_OF_RANGE, f"a decimal of scale {told} does not fit {expected} exactly")
        except pa.ArrowInvalid:
            pass
        return Unfit(Reason.WRONG_TYPE, f"expected the bytes of a number for {expected}, got none")

    careful = leaf(convert, describe=describe)

    def quick(cells: Cells) -> pa.Array:
        """Numbers of 64 bits in the column's own scale, which most are, all at once."""
        try:
            low = _signed(cells)
        except TypeError:  # it tells its scale
            return careful(cells)
        if low is None:
            return careful(cells)
        if len(low) and (int(low.max()) >= 10**kind.precision or int(low.min()) <= -(10**kind.precision)):
            return careful(cells)
        halves = np.stack([low, low >> 63], axis=1)
        validity = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1] if None in cells else None
        return pa.Array.from_buffers(kind, len(cells), [validity, pa.py_buffer(halves)])

    is_quick = scale == kind.scale and kind.precision <= INT64_DIGITS
    return Shape(bytes | Scaled, quick if is_quick else careful)


def _signed(cells: Cells) -> NDArray[np.int64] | None:
    """The numbers of *cells*, 0 for none; none if one has no bytes, or more than 64 bits take.

    Raises: TypeError when one is not bytes.
    """
    there = [_ZERO if cell is None else cell for cell in cells] if None in cells else cells
    text = np.frombuffer(b"".join(there), np.uint8)
    sizes = np.fromiter(map(len, there), np.int64, len(there))
    longest = int(sizes.max(initial=1))
    if longest > _INT64_BYTES or not sizes.all():
        return None
    ends = sizes.cumsum()
    numbers = text.view(np.int8)[ends - sizes].astype(np.int64)  # the first byte has the sign
    for at in range(1, longest):
        longer = np.flatnonzero(sizes > at) if at >= sizes.min() else slice(None)
        numbers[longer] = numbers[longer] << 8 | text[(ends - sizes)[longer] + at]
    return numbers


def _packed(number: int) -> bytes:
    return number.to_bytes(_DECIMAL_BYTES, "little", signed=True)


def _unscaled(cell: bytes | Scaled, scale: int, kind: pa.DataType) -> int:
    """The number without its point, as *kind* has it.

    Raises: OutOfRange when it does not fit exactly, pa.ArrowInvalid when there are no bytes.
    """
    value, scale = (cell.value, cell.scale) if isinstance(cell, Scaled) else (cell, scale)
    if not value:
        raise pa.ArrowInvalid
    number = int.from_bytes(value, "big", signed=True)
    more = kind.scale - scale
    if abs(more) > _SCALE_MAX or number.bit_length() > _DIGIT_BITS * (kind.precision + max(-more, 0) + 1):
        raise OutOfRange  # before anything is computed with a number of any length
    if more >= 0:
        number *= int(10**more)
    else:
        number, rest = divmod(number, int(10**-more))
        if rest:
            raise OutOfRange
    if abs(number) >= 10**kind.precision:
        raise OutOfRange
    return number
