"""A language-neutral description of a writer's schema, and its values as columns.

Avro and Protobuf differ in how schemas are written and bytes are read. Their values are much the same: numbers, text,
bytes, lists, maps and records, each with a meaning that its type tells. A schema that cannot give a column is found
before a record is read (`NoFit`); a value that does not fit is found by its record (`Misfits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.arrow import int_keys, no_decimal, plain_texts, text_leaf
from harness_pipelines.formats.columns.encodings import Scaled, decimal_shape
from harness_pipelines.formats.columns.nesting import below, flat, list_of, nulls, refuse_twins, row_ends
from harness_pipelines.formats.columns.shapes import (
    DAY_US,
    DAYS,
    Cells,
    Convert,
    Misfits,
    OutOfRange,
    Unfit,
    leaf,
    nothing_finer,
    shown,
    within,
)
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.sources import Source
from harness_pipelines.spec.types import DecimalType, ListType, MapType, Primitive, StructType, Type

Kind = Literal[
    "boolean", "int", "float", "string", "bytes", "enum", "decimal", "date", "time", "instant", "local", "uuid",
    "list", "map", "struct", "none",
]  # fmt: skip
Unit = Literal["d", "s", "ms", "us", "ns"]
BOOLEANS: Mapping[Any, bool | None] = {b"\x00": False, b"\x01": True, None: None}
_MICROSECONDS: Mapping[Unit, int] = {"s": 10**6, "ms": 1000}
_EPOCH_US = (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)
_SAID: Mapping[Source, tuple[Kind, Unit]] = {
    "epoch_days": ("date", "d"),
    "epoch_s": ("instant", "s"),
    "epoch_ms": ("instant", "ms"),
    "epoch_us": ("instant", "us"),
    "epoch_ns": ("instant", "ns"),
    "ms_of_day": ("time", "ms"),
    "us_of_day": ("time", "us"),
    "ns_of_day": ("time", "ns"),
}  #: what a spec says of numbers of which the schema says nothing
_TIMES: Mapping[str, tuple[Kind, ...]] = {
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("instant", "local"),  # of an instant its time in UTC
    "timestamptz": ("instant",),
}
#: What a number of a column most often counts.
_NUMBERS: Mapping[str, Source] = {
    "date": "epoch_days", "time": "us_of_day", "timestamp": "epoch_ms", "timestamptz": "epoch_ms",
}  # fmt: skip


class Truncated(int):
    """Microseconds, of which something finer was cut off."""


class Unnamed(int):
    """A number in a list of a closed enum that has no name for it: its place in the list is lost."""


class Odd(int):
    """What stands for no date or time of its column, and is refused with *why*."""

    why: str

    def __new__(cls, why: str) -> Odd:
        made = super().__new__(cls, 2**62)
        made.why = why
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterType:
    """How values are written: what their library makes of them, and what is meant."""

    kind: Kind
    name: str  #: of the type, for people
    bits: int | None = None  #: of whole numbers whose reader takes longer ones, which are malformed
    unit: Unit = "us"  #: of date, time, instant, local
    scale: int = 0  #: of decimals that do not tell their own
    digits: int | None = None  #: of decimals, where the schema tells
    names: Mapping[int, str] | None = None  #: of an enum, by the numbers that are read
    has_numbers: bool = True  #: of an enum: its numbers mean something; else they are places in the schema
    element: WriterType | None = None  #: of a list, or the values of a map
    key: WriterType | None = None  #: of a map
    fields: tuple[WrittenField, ...] = ()
    trouble: str = ""  #: kind ``none``: why no column can be had of it
    is_checked: bool = True  #: of text: what is not UTF-8 is refused where it is read; else it comes as bytes
    column: str | None = None  #: the type of a column that is made for it, where the kind does not tell


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenField:
    """A field of a record."""

    name: str
    written: WriterType
    get: Callable[[Any], Any]  #: its value in a record, None where it has none
    aliases: tuple[str, ...] = ()
    default: Any = None
    description: str | None = None  #: that a column made for it has
    nullable: bool = False  #: the schema says that it may be null
    has: Callable[[Any], bool] | None = None  #: whether a record has it; none: all of the schema have, with null or not


class NoFit(Exception):
    """A schema does not give a column, or a part of one."""

    def __init__(self, why: str, *, path: str = "", reason: Reason = Reason.WRONG_TYPE) -> None:
        super().__init__(f"{path}: {why}")
        self.why, self.path, self.reason = why, path, reason

    def below(self, path: str) -> NoFit:
        """The same, found in the part *path* of something."""
        return NoFit(self.why, path=path + self.path, reason=self.reason)


def field_of(fields: tuple[WrittenField, ...], name: str) -> WrittenField | None:
    """Return the field *name*, else the field with this alias. Raises: NoFit if two fields have it."""
    for field in fields:
        if field.name == name:
            return field
    former = [field for field in fields if name in field.aliases]
    if len(former) > 1:
        told = " and ".join(f"`{field.name}`" for field in former)
        raise NoFit(f"{told} both have the alias `{name}`", reason=Reason.UNUSABLE_SCHEMA)
    return former[0] if former else None


def found_by(fields: tuple[WrittenField, ...], names: Sequence[str]) -> list[WrittenField]:
    """The fields that a column of *names* may be in, in the names' order; of those that a record has the first counts.

    Raises: NoFit.
    """
    found: list[WrittenField] = []
    for name in names:
        field = field_of(fields, name)
        if field is None or any(field.name == known.name for known in found):
            continue
        found.append(field)
        if field.has is None:
            break  # no record is without it
    return found


def first_there(fields: Sequence[WrittenField], record: Any) -> int:
    """The position of the field that counts; that of the first where *record* has none."""
    return next((at for at, field in enumerate(fields) if field.has is None or field.has(record)), 0)


def convert_of(
    written: WriterType,
    type_: Type,
    source: Source | None = None,
    *,
    strict_fields: bool = False,
    exact: bool = False,
) -> Convert:
    """How values that are *written* so become a column of *type_*; *source*: what the spec says of how.

    *strict_fields*: a struct takes no record that has fields which it does not name. *exact*: as of a `Column`.
    Raises: NoFit.
    """
    kind = arrow_type(type_)
    if written.kind == "none":
        raise NoFit(written.trouble, reason=Reason.UNUSABLE_SCHEMA)
    match type_, written.kind:
        case (ListType(element), "list"):
            assert written.element is not None
            return list_of(kind, _part("[...]", written.element, element, source, strict_fields=strict_fields))
        case (MapType(key, value), "map"):
            assert written.key is not None and written.element is not None
            keys = _keys(written.key, key)
            return _map(kind, key, keys, _part("[...]", written.element, value, None, strict_fields=strict_fields))
        case (StructType(), "struct"):
            return _struct(kind, type_, written, strict_fields=strict_fields)
        case (DecimalType(), _):
            found = _decimal(written, kind)
        case (Primitive(name), _):
            found = _primitive(written, name, kind, source, exact=exact)
        case _:
            found = None
    if found is None:
        raise NoFit(_no_match(written, type_))
    if written.kind == "int" and written.bits is not None and written.bits < kind.bit_width:
        return _of_bits(written.name, written.bits, found)
    return found if written.kind != "string" or written.is_checked else _of_text(found)


def _no_match(written: WriterType, type_: Type) -> str:
    hint = ""
    if written.kind == "int" and (form := _NUMBERS.get(str(type_))) is not None:
        hint = f"; say what the number counts, such as `from: {form}`"
    return f"the schema's {written.name} cannot be read as {type_}{hint}"


def _part(
    path: str, written: WriterType, type_: Type, source: Source | None, *, strict_fields: bool = False
) -> Convert:
    try:
        return convert_of(written, type_, source, strict_fields=strict_fields)
    except NoFit as why:
        raise why.below(path) from None


# Values of one part


def _of_text(convert: Convert) -> Convert:
    """*convert* of text that comes as bytes where it is not UTF-8."""

    def run(cells: Cells) -> pa.Array:
        if bytes in set(map(type, cells)):
            wrong = [i for i, cell in enumerate(cells) if isinstance(cell, bytes)]
            raise Misfits(dict.fromkeys(wrong, Unfit(Reason.MALFORMED, "the text is not UTF-8")))
        return convert(cells)

    return run


def _of_bits(name: str, bits: int, convert: Convert) -> Convert:
    """*convert* of numbers whose type is shorter than the column, which would not refuse longer ones."""
    bound = 2 ** (bits - 1)

    def run(cells: Cells) -> pa.Array:
        found = pc.min_max(pa.array(cells, pa.int64())).as_py()
        if found["min"] is not None and not -bound <= found["min"] <= found["max"] < bound:
            wrong = [i for i, cell in enumerate(cells) if cell is not None and not -bound <= cell < bound]
            why = Unfit(Reason.MALFORMED, f"the {name} has more than {bits} bits")
            raise Misfits(dict.fromkeys(wrong, why))
        return convert(cells)

    return run


def _primitive(
    written: WriterType, name: str, kind: pa.DataType, source: Source | None, *, exact: bool
) -> Convert | None:
    if name in _TIMES:
        return _time(written, name, kind, source, exact=exact)
    match name, written.kind:
        case ("boolean", "boolean"):
            return _boolean(kind)
        case ("int" | "long", "int" | "enum") if written.kind == "int" or written.has_numbers:
            return _whole(kind) if written.kind == "int" else _of_order(_whole(kind), written.name)
        case ("float" | "double", "int"):
            return _exact(kind)
        case ("double", "float"):
            return lambda cells: pa.array(cells, kind)
        case ("float", "float"):
            return _single(kind)
        case ("string", "string") | ("binary", "bytes"):
            return lambda cells: pa.array(cells, kind)
        case ("string", "enum"):
            return _enum(kind, written)
        case ("uuid", "uuid"):
            return lambda cells: pa.array(cells, kind)
        case ("uuid", "string"):
            return text_leaf(name, kind)
    return None


def _time(written: WriterType, name: str, kind: pa.DataType, source: Source | None, *, exact: bool) -> Convert | None:
    meant, unit = written.kind, written.unit
    if meant == "int" and source is not None and source in _SAID:
        meant, unit = _SAID[source]
    if meant in _TIMES[name]:
        return _date(kind) if name == "date" else _moment(kind, unit, exact=exact)
    if written.kind != "string" or source not in (None, "iso8601"):
        return None
    return text_leaf(name, kind, exact=exact, is_utc=written.column == name)


def _boolean(kind: pa.DataType) -> Convert:
    """Booleans, or the bytes of them: Avro's have one, which is 0 or 1."""

    def convert(cells: Cells) -> pa.Array:
        types = set(map(type, cells))
        if bytes not in types:
            return pa.array(cells, kind)
        if types == {bytes} and (numbers := np.frombuffer(b"".join(cells), np.uint8)).max() <= 1:
            return pa.array(numbers.view(np.bool_))
        if wrong := [i for i, cell in enumerate(cells) if cell not in BOOLEANS]:
            raise Misfits({i: Unfit(Reason.MALFORMED, f"the byte {cells[i].hex()} is no boolean") for i in wrong})
        return pa.array([BOOLEANS[cell] for cell in cells], kind)

    return convert


def _whole(kind: pa.DataType) -> Convert:
    bits = kind.bit_width - 1

    def describe(cell: int) -> Unfit:
        bound = f"<= {2**bits - 1}, got a larger one" if cell > 0 else f">= {-(2**bits)}, got a smaller one"
        return Unfit(Reason.OUT_OF_RANGE, f"expected integer {bound}")

    return leaf(lambda cells: _ints(cells, kind), describe=describe)


def _of_order(convert: Convert, name: str) -> Convert:
    """*convert* of the numbers of an enum, none of which has lost its place in a list."""

    def run(cells: Cells) -> pa.Array:
        if Unnamed in set(map(type, cells)):
            wrong = [i for i, cell in enumerate(cells) if type(cell) is Unnamed]
            raise Misfits({i: Unfit(Reason.OUT_OF_RANGE, f"{name} has no name for {cells[i]}") for i in wrong})
        return convert(cells)

    return run


def _ints(cells: Cells, kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(cells, kind)
    except OverflowError as error:
        raise OutOfRange from error


def _exact(kind: pa.DataType) -> Convert:
    """Whole numbers as binary floats, none of them rounded."""
    return leaf(
        lambda cells: _ints(cells, pa.int64()).cast(kind),
        describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{cell} is no {kind} exactly"),
    )


def _single(kind: pa.DataType) -> Convert:
    def convert(cells: Cells) -> pa.Array:
        wide = pa.array(cells, pa.float64())
        array = wide.cast(kind)
        if pc.any(pc.and_(pc.is_inf(array), pc.invert(pc.is_inf(wide)))).as_py():
            raise OutOfRange
        return array

    return leaf(convert, describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{cell} does not fit float"))


def _enum(kind: pa.DataType, written: WriterType) -> Convert:
    names = written.names or {}

    def convert(cells: Cells) -> pa.Array:
        array = pa.array([names.get(cell) for cell in cells], kind)
        if array.null_count != cells.count(None):
            raise OutOfRange
        return array

    return leaf(convert, describe=lambda cell: Unfit(Reason.OUT_OF_RANGE, f"{written.name} has no name for {cell}"))


def _date(kind: pa.DataType) -> Convert:
    return leaf(
        lambda cells: within(_ints(cells, pa.int32()).view(kind), *DAYS),
        describe=lambda cell: _beyond(cell, "days since 1970 are not in the years 1 to 9999"),
    )


def _beyond(cell: int, why: str) -> Unfit:
    return Unfit(Reason.OUT_OF_RANGE, cell.why if isinstance(cell, Odd) else f"{cell} {why}")


def _moment(kind: pa.DataType, unit: Unit, *, exact: bool) -> Convert:
    bounds = (0, DAY_US - 1) if pa.types.is_time64(kind) else _EPOCH_US
    what = "of a day" if pa.types.is_time64(kind) else "since 1970, in the years 1 to 9999"

    def convert(cells: Cells) -> pa.Array:
        numbers = _ints(cells, pa.int64())
        if unit in _MICROSECONDS:
            numbers = pc.multiply_checked(numbers, _MICROSECONDS[unit])
        elif unit == "ns":  # what is finer than a microsecond is cut off, as it is of text
            counted = np.floor_divide(pc.fill_null(numbers, 0).to_numpy(), 1000)
            numbers = pa.array(counted, pa.int64(), mask=numbers.is_null().to_numpy(zero_copy_only=False))
        return within(numbers, *bounds).view(kind)

    found = leaf(convert, describe=lambda cell: _beyond(cell, f"{unit} are not {what}"))
    return nothing_finer(found, (lambda cell: cell % 1000) if unit == "ns" else _is_cut) if exact else found


def _is_cut(cell: int) -> bool:
    return type(cell) is Truncated


# Decimals


def _decimal(written: WriterType, kind: pa.DataType) -> Convert | None:
    if written.kind == "decimal":
        return _unscaled(kind, written.scale)
    if written.kind == "int":
        return _text_decimal(kind, lambda cells: [None if cell is None else str(cell) for cell in cells])
    if written.kind == "string":
        return _text_decimal(kind, lambda cells: cells)
    return None


def _text_decimal(kind: pa.DataType, texts: Callable[[Cells], Cells]) -> Convert:
    return leaf(
        lambda cells: plain_texts(texts(cells), kind).cast(kind),
        describe=lambda cell: no_decimal(f'"{cell}"', kind),
    )


def _unscaled(kind: pa.DataType, scale: int) -> Convert:
    """Unscaled numbers, big-endian in two's complement, or records that tell their scale."""
    convert = decimal_shape(kind, scale).convert

    def unscaled(cells: Cells) -> pa.Array:
        tell = dict in set(map(type, cells))
        return convert([_scaled(cell) if isinstance(cell, dict) else cell for cell in cells] if tell else cells)

    return unscaled


def _scaled(cell: Mapping[str, Any]) -> Scaled:
    return Scaled(scale=cell["scale"], value=cell["value"])


# Maps and structs


def _keys(written: WriterType, type_: Type) -> Convert:
    """Raises: NoFit."""
    if written.kind == "string" and type_ in (Primitive("int"), Primitive("long")):
        found = int_keys(arrow_type(type_))
        return found if written.is_checked else _of_text(found)
    return _part(" key", written, type_, None)


def _map(kind: pa.DataType, key: Type, keys: Convert, values: Convert) -> Convert:
    def convert(cells: Cells) -> pa.Array:
        full, ends = [cell for cell in cells if cell], row_ends(cells)
        names = below(" key", keys, flat(full), ends)
        refuse_twins(names, ends, key)
        parts = below("[...]", values, flat(cell.values() for cell in full), ends)
        return pa.MapArray.from_arrays(pa.array(ends), names, parts, type=kind, mask=nulls(cells))

    return convert


def _struct(kind: pa.DataType, type_: StructType, written: WriterType, *, strict_fields: bool) -> Convert:
    parts: list[tuple[str, pa.DataType, WrittenField | None, Convert | None]] = []
    taken: set[str] = set()
    for wanted in type_.fields:
        try:
            field = field_of(written.fields, wanted.name)
        except NoFit as why:
            raise why.below(f".{wanted.name}") from None
        convert_part = None
        if field is not None:
            taken.add(field.name)
            convert_part = _part(f".{wanted.name}", field.written, wanted.type, None, strict_fields=strict_fields)
        parts.append((wanted.name, arrow_type(wanted.type), field, convert_part))
    if strict_fields:
        refuse_unknown(written, taken)

    def convert(cells: Cells) -> pa.Array:
        arrays: list[pa.Array] = []
        for name, part_kind, field, convert_part in parts:
            if field is None or convert_part is None:
                arrays.append(pa.nulls(len(cells), part_kind))
                continue
            get = field.get
            arrays.append(below(f".{name}", convert_part, [None if cell is None else get(cell) for cell in cells]))
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=nulls(cells))

    return convert


def refuse_unknown(written: WriterType, taken: set[str]) -> None:
    """Raises: NoFit when *written* has fields that are not *taken*."""
    for field in written.fields:
        if field.name not in taken:
            raise NoFit("no column or field has this name", path=f".{field.name}", reason=Reason.UNKNOWN_FIELD)


def absent(kind: pa.DataType, *, required: bool) -> Convert:
    """A column that the schema has no field for."""

    def convert(cells: Cells) -> pa.Array:
        if required and cells:
            raise Misfits(dict.fromkeys(range(len(cells)), Unfit(Reason.MISSING_FIELD, "required, but missing")))
        return pa.nulls(len(cells), kind)

    return convert


def malformed(name: str, error: BaseException | str) -> Unfit:
    """A library's message about bytes that it cannot read."""
    said = error if isinstance(error, str) else f"{error}" or type(error).__name__
    return Unfit(Reason.MALFORMED, f"not {shown(name)[1:-1]}: {said}")
