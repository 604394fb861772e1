"""Encodings other than JSON numbers and ISO 8601 text: ``from`` in the spec.

Times as whole numbers, and decimals as Kafka Connect writes them: the unscaled number, big-endian in two's
complement, in base64 (`org.apache.kafka.connect.data.Decimal`), or an object of it and its scale (Debezium's
`VariableScaleDecimal`).
"""

from __future__ import annotations

import binascii
from collections.abc import Mapping, Sequence
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
    Misfits,
    OutOfRange,
    Shape,
    Unfit,
    leaf,
    nothing_finer,
    shown,
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
        scale = kind.scale if form.scale is None else form.scale
        return decimal_shape(kind, scale, in_base64=True)
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
    "epoch_s": partial(_number_shape, bounds=(_EPOCH_US[0] // 10**6, _EPOCH_US[1] // 10**6), factor=10**6),
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


# Bytes


_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SIX_BITS = np.zeros(256, np.uint8)
_SIX_BITS[np.frombuffer(_ALPHABET, np.uint8)] = np.arange(64)
_BEYOND = np.array([0b0000, 0b0011, 0b1111], np.uint8)  #: by the signs of padding: bits of the last letter without use

_AT_ONCE_MAX = 16 * 2**20  #: letters; of a single large value no more copies are made than it needs


def base64_shape(kind: pa.DataType) -> Shape:
    """The shape of bytes, of which each value has one text that is taken."""

    def convert(cells: Cells) -> pa.Array:
        texts = ["" if cell is None else cell for cell in cells] if None in cells else cells
        if (found := _unpacked_at_once(texts)) is None:
            return pa.array(_each_unpacked(cells), kind)
        data, sizes = found
        validity = pa.array([cell is not None for cell in cells], pa.bool_()).buffers()[1] if None in cells else None
        offsets = np.concatenate([[0], sizes.cumsum()]).astype(np.int32)
        return pa.Array.from_buffers(kind, len(cells), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])

    return Shape(str, convert)


def _unpacked_at_once(texts: Sequence[str]) -> tuple[bytes, NDArray[np.int64]] | None:
    """The bytes of all *texts*, and how many each has; none if one of them is refused, or they are too many."""
    joined = "".join(texts)
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    if len(joined) > _AT_ONCE_MAX or not joined.isascii() or (sizes % 4).any():
        return None
    text = joined.encode()
    letters, there = np.frombuffer(text, np.uint8), np.flatnonzero(sizes)
    last = sizes.cumsum()[there] - 1
    has_one = letters[last] == ord("=")
    padding = has_one.astype(np.int64) + (has_one & (letters[last - 1] == ord("=")))
    padded = int(padding.sum())
    if text.count(b"=") != padded or (_SIX_BITS[letters[last - padding]] & _BEYOND[padding]).any():
        return None
    try:
        data = binascii.a2b_base64(text.replace(b"=", b"A"), strict_mode=True)
    except ValueError:
        return None
    lengths = sizes // 4 * 3
    if padded:
        ends = lengths.cumsum()[there]
        is_value = np.ones(len(data), np.bool_)
        for signs in (1, 2):
            is_value[ends[padding >= signs] - signs] = False
        data = np.frombuffer(data, np.uint8)[is_value].tobytes()
        lengths[there] -= padding
    return data, lengths


def _each_unpacked(cells: Cells) -> Cells:
    """*cells* with the bytes that text stands for. Raises: Misfits."""
    wrong: dict[int, Unfit] = {}
    found: Cells = []
    for i, cell in enumerate(cells):
        text = cell.value if isinstance(cell, ScaledText) else cell
        value: Any = text
        if isinstance(text, str):
            try:
                value = _unpacked(text)
            except ValueError as error:
                wrong[i] = Unfit(Reason.WRONG_TYPE, str(error))
        found.append(Scaled(scale=cell.scale, value=value) if isinstance(cell, ScaledText) else value)
    if wrong:
        raise Misfits(wrong)
    return found


def _unpacked(text: str) -> bytes:
    """Raises: ValueError when it is not base64, or another text for the same bytes is."""
    try:
        value = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        raise ValueError("invalid base64 encoded string") from None
    if len(text) != -(-len(value) // 3) * 4:  # what is left over, Python takes for padding
        raise ValueError("invalid base64 encoded string")
    if value and text[-4:] != binascii.b2a_base64(value[-(len(value) % 3 or 3) :], newline=False).decode():
        raise ValueError(f"base64 whose last letter has bits that no byte takes, got {shown(text)}")
    return value


# Decimals


class ScaledText(msgspec.Struct, gc=False):
    """A decimal that tells its scale, as JSON has it."""

    scale: int
    value: str


class Scaled(msgspec.Struct, gc=False):
    """A decimal that tells its scale."""

    scale: int
    value: bytes


def decimal_shape(kind: pa.DataType, scale: int, *, in_base64: bool = False) -> Shape:
    """*in_base64*: the bytes are text, as in JSON."""

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

    of_bytes = leaf(convert, describe=describe)

    def careful(cells: Cells) -> pa.Array:
        return of_bytes(_each_unpacked(cells) if in_base64 else cells)

    def quick(cells: Cells) -> pa.Array:
        """Numbers of 64 bits in the column's own scale, which most are, all at once."""
        try:
            low = _signed(cells, in_base64=in_base64)
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
    return Shape(str | ScaledText if in_base64 else bytes | Scaled, quick if is_quick else careful)


def _signed(cells: Cells, *, in_base64: bool) -> NDArray[np.int64] | None:
    """The numbers of *cells*, 0 for none; none if one has no bytes, or more than 64 bits take, or is refused.

    Raises: TypeError when one tells its scale.
    """
    zero = "AA==" if in_base64 else _ZERO
    there: Cells = [zero if cell is None else cell for cell in cells] if None in cells else cells
    if in_base64:
        if (found := _unpacked_at_once(there)) is None:
            return None
        data, sizes = found
    else:
        data = b"".join(there)
        sizes = np.fromiter(map(len, there), np.int64, len(there))
    text = np.frombuffer(data, np.uint8)
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
