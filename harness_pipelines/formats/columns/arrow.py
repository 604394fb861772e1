"""Convert decoded JSON values to Arrow arrays, a whole column at a time.

msgspec has checked JSON types and integer ranges by then; what is text still (dates, times, decimals, uuids) is cast
by Arrow. Lists, maps and structs are taken apart into columns of their parts, so that one set of rules holds at every
depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.encodings import (
    Form,
    Scaled,
    ScaledText,
    base64_shape,
    decimal_shape,
    shape_in_form,
)
from harness_pipelines.formats.columns.nesting import (
    below,
    below_rows,
    flat,
    list_of,
    nulls,
    refuse_same,
    refuse_twins,
    row_ends,
)
from harness_pipelines.formats.columns.shapes import (
    DAY_US,
    DAYS,
    NULL,
    Cells,
    Convert,
    Misfits,
    OutOfRange,
    Shape,
    Unfit,
    leaf,
    nothing_finer,
    shown,
    whole_number,
    within,
)
from harness_pipelines.spec.arrow import UUID_BYTES, arrow_type
from harness_pipelines.spec.types import DecimalType, ListType, MapType, Primitive, StructType, Type

_BITS = {"int": 31, "long": 63}
_NUMBER = re.compile(r"([-+]?)(?=\.?[0-9])([0-9]*)\.?([0-9]*)(?:[eE]([-+]?)(?=[0-9])0*([0-9]*))?")
_EXPONENT_DIGITS = 12  #: no record has as many digits as an exponent of more could make up for
_DECIMAL_DIGITS = 38
_WHOLE = re.compile("0|-?[1-9][0-9]*")
_DASHES = np.array([8, 13, 18, 23])
_DIGITS = np.setdiff1d(np.arange(36), _DASHES)
_HEX = np.full(256, 255, np.uint8)
for _digit in "0123456789abcdefABCDEF":
    _HEX[ord(_digit)] = int(_digit, 16)


def shape_of(type_: Type, *, form: Form | None = None, strict_fields: bool = False, exact: bool = False) -> Shape:
    """The shape of *type_*, of which values, or the elements of lists of them, are written in *form*.

    *strict_fields*: a struct refuses fields that it does not name. *exact*: as of a `Column`.
    """
    kind = arrow_type(type_)
    match type_:
        case ListType(element):
            inner = shape_of(element, form=form, strict_fields=strict_fields)
            return Shape(GenericAlias(list, (inner.optional,)), list_of(kind, inner.convert))
        case MapType(key, value):
            values = shape_of(value, form=form.value if form else None, strict_fields=strict_fields)
            shape = _map_shape(kind, key, values)
            return (
                shape
                if form is None or form.key is None
                else _either(shape, kind, shape_of(key, form=form.key), values)
            )
        case StructType():
            return _struct_shape(kind, type_, form.fields if form else {}, strict_fields=strict_fields)
    if form is not None and form.name == "connect" and isinstance(type_, DecimalType):
        return _connect_decimal(kind, kind.scale if form.scale is None else form.scale)
    if form is not None and (written := shape_in_form(kind, form, exact=exact)):
        return written
    if isinstance(type_, DecimalType):
        return Shape(msgspec.Raw, _decimal_leaf(kind), NULL)
    return _primitive_shape(type_.name, kind, exact=exact, is_utc=form is not None and form.name == "iso_utc")


def _primitive_shape(name: str, kind: pa.DataType, *, exact: bool, is_utc: bool) -> Shape:
    if name in _BITS:
        return Shape(whole_number(_BITS[name]), lambda cells: pa.array(cells, kind))
    if name == "float":
        return Shape(
            float,
            leaf(
                _floats,
                describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{cell} does not fit float"),
                plausible=lambda cell: not abs(cell) >= _FLOAT_OVERFLOWS,  # NaN is one
            ),
        )
    if name in _TEXT_FORMS:
        return Shape(str, text_leaf(name, kind, exact=exact, is_utc=is_utc))
    if name == "binary":
        return base64_shape(kind)
    python = {"boolean": bool, "double": float, "string": str}[name]
    return Shape(python, lambda cells: pa.array(cells, kind))


# Text forms


def _dates(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return within(text.cast(kind), *DAYS)


def _timestamps(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return within(_cast_time(text, kind), DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)


def _times(text: pa.Array, kind: pa.DataType) -> pa.Array:
    return _cast_time(pc.binary_join_element_wise("1970-01-01T", text, ""), pa.timestamp("us")).view(kind)


def _cast_time(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast ISO 8601; a second try cuts off what is finer than microseconds and takes ``t`` and ``z``."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        if not pc.any(pc.match_substring_regex(text, r"[tz]|\.\d{7}")).as_py():
            raise
        return pc.replace_substring_regex(pc.utf8_upper(text), r"(\.\d{6})\d+", r"\1").cast(kind)


def _uuids(text: pa.Array, kind: pa.DataType) -> pa.Array:
    """8-4-4-4-12 hexadecimal digits, in either case."""
    validity, ends, data = text.buffers()
    valid = np.ones(len(text), bool) if text.null_count == 0 else text.is_valid().to_numpy(zero_copy_only=False)
    sizes = np.diff(np.frombuffer(ends, np.int32)[: len(text) + 1])
    if (sizes[valid] != 36).any():
        raise pa.ArrowInvalid("a uuid has 36 characters")
    letters = np.frombuffer(data, np.uint8).reshape(-1, 36)
    digits = _HEX[letters[:, _DIGITS]]
    if (digits == 255).any() or (letters[:, _DASHES] != ord("-")).any():
        raise pa.ArrowInvalid("a uuid has hexadecimal digits and four dashes")
    packed = np.zeros((len(text), UUID_BYTES), np.uint8)
    packed[valid] = digits[:, 0::2] << 4 | digits[:, 1::2]
    return pa.Array.from_buffers(kind, len(text), [validity, pa.py_buffer(packed)])


@dataclass(frozen=True, slots=True)
class _TextForm:
    convert: Callable[[pa.Array, pa.DataType], pa.Array]
    expected: str
    letters: re.Pattern[str]  #: every text that converts, and more


_HOUR, _SIXTIETH = r"([01]\d|2[0-3])", r"[0-5]\d"
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = rf"{_HOUR}(:{_SIXTIETH}(:{_SIXTIETH}(\.\d+)?)?)?"
_OFFSET = rf"([Zz]|[+-]{_HOUR}(:?{_SIXTIETH})?)"
_FINER = re.compile(r"\.\d{6}\d*[1-9]")  #: than a microsecond
_WITH_TIME = frozenset({"time", "timestamp", "timestamptz"})
_WITHOUT_ZONE = frozenset({"date", "time", "timestamp"})
_TEXT_FORMS = {
    "date": _TextForm(_dates, "a date such as 2026-01-31, years 1 to 9999", re.compile(_DATE)),
    "time": _TextForm(_times, "a time such as 23:59:59.123456, without offset", re.compile(_TIME)),
    "timestamp": _TextForm(
        _timestamps,
        "a timestamp such as 2026-01-31T23:59:59.123456, without offset, years 1 to 9999",
        re.compile(f"{_DATE}([Tt ]{_TIME})?"),
    ),
    "timestamptz": _TextForm(
        _timestamps,
        "a timestamp with its offset such as 2026-01-31T23:59:59.123456Z, years 1 to 9999",
        re.compile(f"{_DATE}[Tt ]{_TIME}{_OFFSET}"),
    ),
    "uuid": _TextForm(
        _uuids,
        "a uuid such as f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"),
    ),
}


def text_leaf(name: str, kind: pa.DataType, *, exact: bool = False, is_utc: bool = False) -> Convert:
    """Text of dates, times and uuids. *exact*: as of a `Column`.

    *is_utc*: what has no zone may be written with that of UTC, as `2026-01-31Z`.
    """
    form = _TEXT_FORMS[name]
    is_utc = is_utc and name in _WITHOUT_ZONE

    def convert(cells: Cells) -> pa.Array:
        text = pa.array(cells, pa.string())
        return form.convert(pc.replace_substring_regex(text, "[Zz]$", "") if is_utc else text, kind)

    def plausible(cell: str) -> Any:
        return form.letters.fullmatch(cell[:-1] if is_utc and cell[-1:] in ("Z", "z") else cell)

    def describe(cell: str) -> Unfit:
        reason = Reason.WRONG_TYPE
        if plausible(cell):
            try:
                convert([cell])
            except OutOfRange:
                reason = Reason.OUT_OF_RANGE
            except pa.ArrowInvalid:
                pass  # a 30th of February
        return Unfit(reason, f"expected {form.expected}, got {shown(cell)}")

    found = leaf(convert, describe=describe, plausible=plausible)
    return nothing_finer(found, _FINER.search) if exact and name in _WITH_TIME else found


# Numbers


_FLOAT_OVERFLOWS = 2.0**128 - 2.0**103  #: half way from the largest float to what would be the next one


def _floats(cells: Cells) -> pa.Array:
    array = pa.array(cells, pa.float64()).cast(pa.float32())
    if pc.any(pc.is_inf(array)).as_py():
        raise OutOfRange
    return array


def _decimals(cells: Sequence[msgspec.Raw], kind: pa.DataType) -> pa.Array:
    """JSON text of numbers to exact decimals: no value ever passes through binary floating point."""
    lengths = np.fromiter(map(len, cells), np.int32, len(cells))
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    data = b"".join(cells)
    text = pa.StringArray.from_buffers(len(cells), pa.py_buffer(ends), pa.py_buffer(data))
    if b"null" in data:
        text = pc.if_else(pc.equal(text, "null"), pa.scalar(None, pa.string()), text)
    if b'"' in data:
        text = pc.ascii_trim(text, characters='"')
    if lengths.max(initial=0) > _DECIMAL_DIGITS - kind.scale or b"e" in data or b"E" in data:
        text = plain_texts(text.to_pylist(), kind)
    return text.cast(kind)


def plain_texts(numbers: Iterable[str | None], kind: pa.DataType) -> pa.Array:
    """*numbers* as text that Arrow casts rightly: where it meets more than 38 digits on the way it wraps around."""
    safe = _DECIMAL_DIGITS - kind.scale
    plain = [n if n is None or (len(n) <= safe and "e" not in n.lower()) else _plain(n, kind) for n in numbers]
    return pa.array(plain, pa.string())


def _plain(number: str, kind: pa.DataType) -> str:
    """*number* without exponent and with exactly the digits behind the point that *kind* has.

    Raises: OutOfRange when it is no number, or does not fit exactly.
    """
    found = _NUMBER.fullmatch(number)
    if not found:
        raise OutOfRange
    sign, whole, part, exponent_sign, exponent = found.groups(default="")
    digits = (whole + part).rstrip("0")
    significant = digits.lstrip("0")
    if not significant:
        return "0"
    if len(exponent) > _EXPONENT_DIGITS:
        raise OutOfRange
    power = int(f"{exponent_sign}{exponent or 0}") + len(whole) - len(digits)
    if power < -kind.scale or len(significant) + power > kind.precision - kind.scale:
        raise OutOfRange
    unscaled = (significant + "0" * (power + kind.scale)).rjust(kind.scale + 1, "0")
    point = len(unscaled) - kind.scale
    return f"{sign}{unscaled[:point]}.{unscaled[point:]}"


def _decimal_leaf(kind: pa.DataType) -> Convert:
    # One cell that does not fit has all of its chunk looked at, of which nearly all are written so.
    part = rf"(?:\.[0-9]{{1,{kind.scale}}})?" if kind.scale else ""
    whole = rf"[0-9]{{1,{kind.precision - kind.scale}}}" if kind.precision > kind.scale else "0"
    fits = re.compile(rf'("?)-?{whole}{part}\1'.encode()).fullmatch
    return leaf(
        lambda cells: _decimals(cells, kind),
        describe=lambda cell: no_decimal(bytes(cell).decode(), kind),
        plausible=lambda cell: cell is NULL or fits(bytes(cell)) or _may_be_decimal(bytes(cell).decode(), kind),
    )


def _connect_decimal(kind: pa.DataType, scale: int) -> Shape:
    """Decimals of Kafka Connect: a number (`decimal.format=NUMERIC`), or text that is base64 of the unscaled one."""
    unscaled = decimal_shape(kind, scale, in_base64=True).convert
    read: Callable[[bytes], str | ScaledText | None] = msgspec.json.Decoder(str | ScaledText | None).decode

    def cell_of(cell: bytes) -> str | Scaled | ScaledText | None:
        if cell[:1] in (b'"', b"{", b"n"):
            return read(cell)
        digits = int(_plain(cell.decode(), kind).replace(".", ""))
        return Scaled(scale=kind.scale, value=_signed_bytes(digits))

    def convert(cells: Cells) -> pa.Array:
        texts = [bytes(cell) for cell in cells]
        if {text[:1] for text in texts}.isdisjoint({b'"', b"{"}):
            return _decimals(cells, kind)
        try:
            return unscaled([cell_of(text) for text in texts])
        except (msgspec.DecodeError, Misfits) as error:
            raise pa.ArrowInvalid("no decimal") from error

    def describe(cell: msgspec.Raw) -> Unfit:
        text = bytes(cell)
        if text[:1] not in (b'"', b"{"):
            return no_decimal(text.decode(), kind)
        try:
            unscaled([read(text)])
        except Misfits as misfits:
            return misfits.found[0]
        except msgspec.DecodeError:
            pass
        expected = f"decimal({kind.precision}, {kind.scale})"
        return Unfit(Reason.WRONG_TYPE, f"expected a number or its bytes in base64 for {expected}, got neither")

    return Shape(msgspec.Raw, leaf(convert, describe=describe), NULL)


def _signed_bytes(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


def _may_be_decimal(text: str, kind: pa.DataType) -> bool:
    try:
        return text == "null" or bool(_plain(text.strip('"'), kind))
    except OutOfRange:
        return False


def no_decimal(text: str, kind: pa.DataType) -> Unfit:
    """Why the JSON *text* is not one of the decimals of *kind*."""
    expected = f"decimal({kind.precision}, {kind.scale})"
    if _NUMBER.fullmatch(number := text.strip('"')):
        return Unfit(Reason.OUT_OF_RANGE, f"{shown(number)} does not fit {expected} exactly")
    found = _JSON_TYPES.get(text[0]) or shown(text)
    return Unfit(Reason.WRONG_TYPE, f"expected a number for {expected}, got {found}")


_JSON_TYPES = {"{": "object", "[": "array", "t": "boolean", "f": "boolean"}


# Lists, maps and structs


def _map_shape(kind: pa.DataType, key: Type, value: Shape) -> Shape:
    keys = _map_keys(key)

    def convert(cells: Cells) -> pa.Array:
        full, ends = [cell for cell in cells if cell], row_ends(cells)
        names = below(" key", keys.convert, flat(full), ends)
        refuse_twins(names, ends, key)
        values = below("[...]", value.convert, flat(cell.values() for cell in full), ends)
        return pa.MapArray.from_arrays(pa.array(ends), names, values, type=kind, mask=nulls(cells))

    return Shape(GenericAlias(dict, (keys.python, value.optional)), convert)


def _either(objects: Shape, kind: pa.DataType, key: Shape, value: Shape) -> Shape:
    """Maps as *objects*, or as arrays of pairs, which Kafka Connect writes where keys are no text."""

    def of_pairs(cells: Cells) -> pa.Array:
        pairs, ends = flat(filter(None, cells)), row_ends(cells)
        names = below(" key", key.convert, [name for name, _ in pairs], ends)
        refuse_same(names, ends)
        values = below("[...]", value.convert, [one for _, one in pairs], ends)
        return pa.MapArray.from_arrays(pa.array(ends), names, values, type=kind, mask=nulls(cells))

    def convert(cells: Cells) -> pa.Array:
        listed = [i for i, cell in enumerate(cells) if isinstance(cell, list)]
        if not listed:
            return objects.convert(cells)
        if len(listed) == len(cells):
            return of_pairs(cells)
        others = np.delete(np.arange(len(cells)), listed)
        both = [
            below_rows(places, one, cells) for places, one in ((listed, of_pairs), (others.tolist(), objects.convert))
        ]
        return pa.concat_arrays(both).take(pa.array(np.argsort(np.concatenate([listed, others]))))

    pair = GenericAlias(tuple, (key.python, value.optional))
    return Shape(objects.python | GenericAlias(list, (pair,)), convert)


def _map_keys(key: Type) -> Shape:
    """Keys are text in JSON; integers have one form (no ``-0``), the others that of their column."""
    kind = arrow_type(key)
    match key:
        case DecimalType():
            convert: Convert = lambda cells: plain_texts(cells, kind).cast(kind)  # noqa: E731
            return Shape(str, leaf(convert, describe=lambda cell: no_decimal(f'"{cell}"', kind)))
        case Primitive("int" | "long"):
            return Shape(str, int_keys(kind))
        case Primitive("string"):
            return Shape(str, lambda cells: pa.array(cells, kind))
    assert isinstance(key, Primitive), "the spec allows no other keys"
    return Shape(str, text_leaf(key.name, kind))


def int_keys(kind: pa.DataType) -> Convert:
    """Keys that are the text of whole numbers, each in its one form."""

    def convert(cells: Cells) -> pa.Array:
        text = pa.array(cells, pa.string())
        numbers = text.cast(kind)
        if not numbers.cast(pa.string()).equals(text):  # of another form, such as -0
            raise OutOfRange
        return numbers

    def describe(cell: str) -> Unfit:
        if _WHOLE.fullmatch(cell):
            return Unfit(Reason.OUT_OF_RANGE, f"{shown(cell)} does not fit {kind}")
        return Unfit(Reason.WRONG_TYPE, f"expected the text of a whole number, got {shown(cell)}")

    return leaf(convert, describe=describe, plausible=_WHOLE.fullmatch)


def _struct_shape(kind: pa.DataType, type_: StructType, forms: Mapping[str, Form], *, strict_fields: bool) -> Shape:
    shapes = [shape_of(f.type, form=forms.get(f.name), strict_fields=strict_fields) for f in type_.fields]
    python = struct_type(
        [(f.name, shape.optional, shape.missing) for f, shape in zip(type_.fields, shapes, strict=True)],
        strict_fields=strict_fields,
    )
    getters = [attrgetter(name) for name in python.__struct_fields__]

    def convert(cells: Cells) -> pa.Array:
        parts = []
        for field, shape, getter in zip(type_.fields, shapes, getters, strict=True):
            of_field = [shape.missing if cell is None else getter(cell) for cell in cells]
            parts.append(below(f".{field.name}", shape.convert, of_field))
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=nulls(cells))

    return Shape(python, convert)


FieldWords = tuple[str, Any, Any]  #: name, type and default of a field


def struct_type(fields: Iterable[FieldWords], *, strict_fields: bool) -> type[msgspec.Struct]:
    """A msgspec type with *fields*; a default of `msgspec.NODEFAULT` makes one required.

    Names may be anything: the attributes are ``f0``, ``f1``, ... in order.
    """
    fields = list(fields)
    return msgspec.defstruct(
        "Record",
        [(f"f{i}", python, msgspec.field(default=default)) for i, (_, python, default) in enumerate(fields)],
        rename={f"f{i}": name for i, (name, _, _) in enumerate(fields)},
        forbid_unknown_fields=strict_fields,
        kw_only=True,
        gc=False,
    )


def storable_text(convert: Convert) -> Convert:
    """Strings of a whole column are Postgres' text, which has no U+0000."""
    return leaf(
        lambda cells: _without_nul(convert(cells)),
        describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{shown(cell)} holds U+0000, which the buffer cannot store"),
        plausible=lambda cell: "\x00" not in cell,
    )


def _without_nul(text: pa.Array) -> pa.Array:
    data = text.buffers()[2]
    if data is not None and np.count_nonzero(np.frombuffer(data, np.uint8)) != data.size:
        raise OutOfRange
    return text
