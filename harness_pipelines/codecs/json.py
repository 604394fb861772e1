"""JSON objects to rows.

Each record is decoded by msgspec against a type made from the spec, so that a wrong value is found with its path;
`harness_pipelines.codecs.columns` makes Arrow arrays of the values, a chunk of records at a time. Only where that
fails are single records looked at, by the same code on fewer records: the verdict on a record never depends on others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.codecs.base import Decoded, Refused
from harness_pipelines.codecs.columns import shape_of, storable_text, struct_type
from harness_pipelines.codecs.forms import Form
from harness_pipelines.codecs.refusals import VALUE_BYTES_MAX, explained, malformed, refusal, unsound
from harness_pipelines.codecs.shapes import Convert, Misfits, Shape, Unfit, complete, required
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.table import Column
from harness_pipelines.spec.types import Primitive

CHUNK_RECORDS = 2_048  #: values of a chunk stay in the processor's cache: 1.4 times the rate of whole batches
CHUNK_BYTES = 8 * 2**20


class JsonCodec:
    """`Codec` of JSON objects (RFC 8259, UTF-8): one field per column, by its exact name.

    - int, long: integers without fraction or exponent (``1.0`` is a wrong type); float, double: any number in range.
    - decimal: a number, or a string that holds one; it must fit precision and scale exactly (``12.300`` fits scale 2),
      and is never read as a binary float.
    - date, time, timestamp, timestamptz: ISO 8601 text of the years 1 to 9999; a timestamptz has its offset, a
      timestamp none (a date alone is its midnight). Digits below a microsecond are cut off.
    - uuid: 36 characters; binary: base64 with padding; string: any but U+0000, which Postgres cannot hold (a string
      inside a list, map or struct may have it).
    - What is written otherwise (``from`` in the spec): `harness_pipelines.codecs.forms`.
    - list: array; map: object, its keys in the text form of their type; struct: object. Parts may be null or missing.

    Of a field that is there twice the last counts. Nothing but JSON is taken: no NaN, no comments, no text after it.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        unknown_fields: Literal["ignore", "quarantine"] = "ignore",
        forms: Mapping[str, Form] | None = None,
        value_bytes_max: int = VALUE_BYTES_MAX,
    ) -> None:
        """*forms*: how the values of a column are written, in place of what the column says itself."""
        strict = unknown_fields == "quarantine"
        said = {c.name: Form(c.source) for c in columns if c.source} | dict(forms or {})
        shapes = [shape_of(c.type, form=said.get(c.name), strict_fields=strict) for c in columns]
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
        refused = unsound(values, self._value_bytes_max)
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
            refused=[refusal(first + i, refused[i]) for i in sorted(refused)],
        )

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
                    refused[i] = malformed(value) or explained(error)  # type: ignore[arg-type]
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
