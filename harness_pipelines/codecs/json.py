"""JSON objects to rows.

Each record is decoded by msgspec against a type made from the spec, so that a wrong value is found with its path;
`harness_pipelines.codecs.columns` makes Arrow arrays of the values, a chunk of records at a time. Only where that
fails are single records looked at, by the same code on fewer records: the verdict on a record never depends on others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.codecs.base import Decoded, Reason, Refused
from harness_pipelines.codecs.columns import (
    Convert,
    Misfits,
    Shape,
    Unfit,
    complete,
    required,
    shape_of,
    storable_text,
    struct_type,
)
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import Column
from harness_pipelines.spec.types import Primitive

VALUE_BYTES_MAX = 64 * 2**20
NESTING_MAX = 400  #: deeper is refused; far below what Python's stack takes, so that the caller's depth is no matter
CHUNK_RECORDS = 2_048  #: values of a chunk stay in the processor's cache: 1.4 times the rate of whole batches
CHUNK_BYTES = 8 * 2**20
DETAIL_CHARS = 300
_ANY_JSON = msgspec.json.Decoder(msgspec.Raw)
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_PATH = re.compile(r"(.*) - at (`key` in )?`\$\.?(.*)`", re.DOTALL)
_JSON_NAMES = {"int": "integer", "float": "number", "str": "string", "bool": "boolean"}


class JsonCodec:
    """`Codec` of JSON objects (RFC 8259, UTF-8): one field per column, by its exact name.

    - int, long: integers without fraction or exponent (``1.0`` is a wrong type); float, double: any number in range.
    - decimal: a number, or a string that holds one; it must fit precision and scale exactly (``12.300`` fits scale 2),
      and is never read as a binary float.
    - date, time, timestamp, timestamptz: ISO 8601 text of the years 1 to 9999; a timestamptz has its offset, a
      timestamp none (a date alone is its midnight). Digits below a microsecond are cut off. With ``from: epoch_ms`` or
      ``epoch_us`` an integer.
    - uuid: 36 characters; binary: base64 with padding; string: any but U+0000, which Postgres cannot hold (a string
      inside a list, map or struct may have it).
    - list: array; map: object, its keys in the text form of their type; struct: object. Parts may be null or missing.

    Of a field that is there twice the last counts. Nothing but JSON is taken: no NaN, no comments, no text after it.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        unknown_fields: Literal["ignore", "quarantine"] = "ignore",
        value_bytes_max: int = VALUE_BYTES_MAX,
    ) -> None:
        strict = unknown_fields == "quarantine"
        shapes = [shape_of(c.type, source=c.source, strict_fields=strict) for c in columns]
        record = struct_type(
            [
                (c.name, shape.python, msgspec.NODEFAULT) if c.required else (c.name, shape.optional, shape.missing)
                for c, shape in zip(columns, shapes, strict=True)
            ],
            strict_fields=strict,
        )
        self._schema = arrow_schema(columns)
        self._value_bytes_max = value_bytes_max
        self._decode = msgspec.json.Decoder(record).decode
        self._makers = [
            _Maker(column.name, attrgetter(name), _converter(column, shape))
            for column, name, shape in zip(columns, record.__struct_fields__, shapes, strict=True)
        ]

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode *values*; all of them appear in the result, as a row or as refused."""
        chunks = [self._chunk(values[low:high], low) for low, high in _chunks(values, 0, len(values))]
        rows = pa.Table.from_batches([chunk.rows for chunk in chunks], self._schema)
        return Decoded(
            rows=rows.combine_chunks(),
            accepted=np.concatenate([np.empty(0, np.int64), *(chunk.accepted for chunk in chunks)]),
            refused=[refused for chunk in chunks for refused in chunk.refused],
        )

    def _chunk(self, values: Sequence[bytes | None], first: int) -> _Chunk:
        refused: dict[int, Unfit] = {}
        if not self._surely_sound(values):
            refused = {i: why for i, value in enumerate(values) if (why := self._unsound(value))}
        records = self._records(values, refused)
        places = _left(len(values), refused)
        arrays, wrong = self._arrays(records)
        if wrong:
            refused |= {int(places[position]): why for position, why in wrong.items()}
            arrays, _ = self._arrays([record for position, record in enumerate(records) if position not in wrong])
            places = _left(len(values), refused)
        return _Chunk(
            rows=pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            accepted=places + first,
            refused=[_refused(first + i, refused[i]) for i in sorted(refused)],
        )

    def _surely_sound(self, values: Sequence[bytes | None]) -> bool:
        """A quick yes for a whole chunk; no means: look at each."""
        if None in values:
            return False
        lengths = list(map(len, values))  # type: ignore[arg-type]
        if min(lengths) == 0 or max(lengths) > min(self._value_bytes_max, NESTING_MAX):
            return False
        text = b"\n".join(values)  # type: ignore[arg-type]
        return text.isascii() or _bad_utf8(text) is None

    def _unsound(self, value: bytes | None) -> Unfit | None:
        """What is wrong with a value before it is parsed."""
        if not value:
            return Unfit(Reason.NULL_VALUE, "the record has no value" if value is None else "the value is empty")
        if len(value) > self._value_bytes_max:
            return Unfit(
                Reason.TOO_LARGE, f"the value has {len(value):,} bytes; at most {self._value_bytes_max:,} are decoded"
            )
        if not value.isascii() and (at := _bad_utf8(value)) is not None:
            return Unfit(Reason.MALFORMED, f"not UTF-8 at byte {at}")
        if len(value) > NESTING_MAX and _depth(value) > NESTING_MAX:
            return Unfit(Reason.MALFORMED, f"nested more than {NESTING_MAX} deep")
        return None

    def _records(self, values: Sequence[bytes | None], refused: dict[int, Unfit]) -> list[Any]:
        """The decoded values but the *refused* ones, to which those are added that msgspec does not take."""
        if not refused:
            try:
                return list(map(self._decode, values))  # type: ignore[arg-type]
            except msgspec.DecodeError:
                pass  # which one it is, the loop finds
        records: list[Any] = []
        for i, value in enumerate(values):
            if i not in refused:
                try:
                    records.append(self._decode(value))  # type: ignore[arg-type]
                except msgspec.DecodeError as error:
                    refused[i] = _malformed(value) or _explained(error)  # type: ignore[arg-type]
        return records

    def _arrays(self, records: list[Any]) -> tuple[list[pa.Array], dict[int, Unfit]]:
        """The columns of *records*, or the records that keep them from being made, by position."""
        arrays: list[pa.Array] = []
        wrong: dict[int, Unfit] = {}
        for maker in self._makers:
            cells = list(map(maker.getter, records))
            try:
                arrays.append(maker.convert(cells))
            except Misfits as misfits:
                for position, why in misfits.found.items():
                    wrong.setdefault(position, Unfit(why.reason, f"`{maker.name}{why.path}`: {why.detail}"))
        return arrays, wrong


@dataclass(frozen=True, slots=True)
class _Maker:
    name: str
    getter: attrgetter[Any]
    convert: Convert


@dataclass(frozen=True, slots=True)
class _Chunk:
    rows: pa.RecordBatch
    accepted: NDArray[np.int64]
    refused: list[Refused]


def _left(count: int, refused: Mapping[int, Unfit]) -> NDArray[np.int64]:
    """Positions below *count* that are not refused."""
    return np.delete(np.arange(count, dtype=np.int64), list(refused)) if refused else np.arange(count, dtype=np.int64)


def _refused(index: int, why: Unfit) -> Refused:
    detail = why.detail if why.detail.isprintable() else repr(why.detail)[1:-1]
    return Refused(index=index, reason=why.reason, detail=detail[:DETAIL_CHARS])


def _chunks(values: Sequence[bytes | None], low: int, high: int) -> Iterator[tuple[int, int]]:
    """Ranges of positions: few enough records, and bytes that an Arrow array can hold."""
    count = high - low
    if count > CHUNK_RECORDS or (count > 1 and sum(map(len, filter(None, values[low:high]))) > CHUNK_BYTES):
        middle = low + count // 2
        yield from _chunks(values, low, middle)
        yield from _chunks(values, middle, high)
    elif count:
        yield low, high


def _converter(column: Column, shape: Shape) -> Convert:
    convert = storable_text(shape.convert) if column.type == Primitive("string") else shape.convert
    return complete(required(convert) if column.required else convert)


def _bad_utf8(value: bytes) -> int | None:
    """Where *value* stops being UTF-8; msgspec does not look at the text of fields that it skips."""
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _depth(value: bytes) -> int:
    """How deep arrays and objects are nested, at most."""
    if value.count(b"[") + value.count(b"{") <= NESTING_MAX:
        return 0
    signs = np.frombuffer(_STRINGS.sub(b"", value), np.uint8)
    steps = np.isin(signs, (ord("["), ord("{"))).astype(np.int64) - np.isin(signs, (ord("]"), ord("}")))
    return int(steps.cumsum().max(initial=0))


def _malformed(value: bytes) -> Unfit | None:
    """Whether *value* is JSON to its end: a wrong type further in front would hide that it is not."""
    try:
        _ANY_JSON.decode(value)
    except msgspec.DecodeError as error:
        return Unfit(Reason.MALFORMED, f"not JSON: {str(error).removeprefix('JSON is malformed: ')}")
    return None


def _explained(error: msgspec.DecodeError) -> Unfit:
    """msgspec's message as a reason and a detail that begins with the field."""
    text = str(error)
    found = _PATH.fullmatch(text)
    what, of_key, path = found.groups() if found else (text, None, "")
    if what.startswith("Object "):
        name = what[what.index("`") + 1 : what.rindex("`")]
        path = f"{path}.{name}" if path else name
        if what.startswith("Object missing"):
            return Unfit(Reason.MISSING_FIELD, f"`{path}`: required, but missing")
        return Unfit(Reason.UNKNOWN_FIELD, f"`{path}`: no column or field has this name")
    if not path:
        return Unfit(Reason.MALFORMED, f"not a JSON object, but {_json_name(what.rpartition('got ')[2])}")
    reason, detail = _misfit(what)
    return Unfit(reason, f"`{path}{' key' if of_key else ''}`: {detail}")


def _misfit(what: str) -> tuple[Reason, str]:
    if bound := re.fullmatch(r"Expected `int` ([<>]=) (-?\d+)", what):
        side = "larger" if bound[1] == "<=" else "smaller"
        return Reason.OUT_OF_RANGE, f"expected integer {bound[1]} {bound[2]}, got a {side} one"
    if what == "Number out of range":
        return Reason.OUT_OF_RANGE, "the number does not fit"
    if types := re.fullmatch(r"Expected (`.*`), got (`.*`)", what):
        if types[2] == "`null`":
            return Reason.MISSING_FIELD, "required, but null"
        return Reason.WRONG_TYPE, f"expected {_json_name(types[1])}, got {_json_name(types[2])}"
    return Reason.WRONG_TYPE, what[:1].lower() + what[1:]


def _json_name(quoted: str) -> str:
    """JSON's name of msgspec's type, such as "`int | null`"."""
    name = quoted.strip("`").removesuffix(" | null")
    return _JSON_NAMES.get(name, name)
