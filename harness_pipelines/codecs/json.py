"""JSON objects to rows.

Each record is decoded by msgspec against a type made from the spec, so that a wrong value is found with its path;
`harness_pipelines.codecs.columns` makes Arrow arrays of the values, a chunk of records at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from harness_pipelines.codecs.chunked import ColumnCodec, Maker, finished
from harness_pipelines.codecs.columns import shape_of, struct_type
from harness_pipelines.codecs.forms import Form
from harness_pipelines.codecs.refusals import VALUE_BYTES_MAX, explained, malformed, unsound
from harness_pipelines.codecs.shapes import Unfit
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column


class JsonCodec(ColumnCodec):
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
        self._value_bytes_max = value_bytes_max
        self._decode = msgspec.json.Decoder(record).decode
        makers = [
            Maker(column.name, attrgetter(name), finished(column, shape.convert))
            for column, name, shape in zip(columns, record.__struct_fields__, shapes, strict=True)
        ]
        super().__init__(arrow_schema(columns), makers)

    def _unsound(self, values: Sequence[bytes | None]) -> dict[int, Unfit]:
        return unsound(values, self._value_bytes_max)

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
