"""JSON objects to rows.

Each record is decoded by msgspec against a type made from the spec, so that a wrong value is found with its path;
`harness_pipelines.formats.columns.arrow` makes Arrow arrays of the values, a chunk of records at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal

import msgspec

from harness_pipelines.formats.columns.arrow import FieldWords, shape_of, struct_type
from harness_pipelines.formats.columns.chunked import ColumnCodec, Maker, finished
from harness_pipelines.formats.columns.encodings import Form
from harness_pipelines.formats.columns.shapes import ABSENT, NULL, Shape, Unfit
from harness_pipelines.formats.json.aliases import Aliased
from harness_pipelines.formats.refusals import VALUE_BYTES_MAX, explained, malformed, unsound
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column


class JsonCodec(ColumnCodec):
    """`Codec` of JSON objects (RFC 8259, UTF-8): one field per column, by its exact name or an alias.

    - int, long: integers without fraction or exponent (``1.0`` is a wrong type); float, double: any number in range.
    - decimal: a number, or a string that holds one; it must fit precision and scale exactly (``12.300`` fits scale 2),
      and is never read as a binary float.
    - date, time, timestamp, timestamptz: ISO 8601 text of the years 1 to 9999; a timestamptz has its offset, a
      timestamp none (a date alone is its midnight). Digits below a microsecond are cut off.
    - uuid: 36 characters; binary: base64 with padding; string: any but U+0000, which Postgres cannot hold (a string
      inside a list, map or struct may have it).
    - What is written otherwise (``from`` in the spec): `harness_pipelines.formats.columns.encodings`.
    - list: array; map: object, its keys in the text form of their type; struct: object. Parts may be null or missing.

    Of a field that is there twice the last counts, of a column's names the first that the object has. Nothing but JSON
    is taken: no NaN, no comments, no text after it.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        unknown_fields: Literal["ignore", "quarantine"] = "ignore",
        forms: Mapping[str, Form] | None = None,
        no_columns: Sequence[str] = (),
        value_bytes_max: int = VALUE_BYTES_MAX,
    ) -> None:
        """*forms*: how the values of a column are written, in place of what the column says itself;
        *no_columns*: fields that are known and not read.
        """
        strict = unknown_fields == "quarantine"
        said = {c.name: Form(c.source) for c in columns if c.source} | dict(forms or {})
        shapes = [shape_of(c.type, form=said.get(c.name), strict_fields=strict, exact=c.exact) for c in columns]
        words = [_words(column, shape) for column, shape in zip(columns, shapes, strict=True)]
        more: list[FieldWords] = [(name, msgspec.Raw, NULL) for name in no_columns]
        self._value_bytes_max = value_bytes_max
        self._aliased: Aliased | None = None
        if any(c.aliases for c in columns):
            self._aliased = Aliased(columns, words, more, strict_fields=strict)
            self.record, self._decode = self._aliased.record, self._aliased.decode
            self._decode_one: Callable[[bytes], Any] = self._aliased.read
            getters = [self._aliased.getter(at) for at in range(len(columns))]
        else:
            self.record = struct_type([*words, *more], strict_fields=strict)
            self._decode = self._decode_one = msgspec.json.Decoder(self.record).decode
            getters = [attrgetter(name) for name in self.record.__struct_fields__[: len(columns)]]
        makers = [
            Maker(column.name, getter, finished(column, shape.convert, null=shape.missing))
            for column, getter, shape in zip(columns, getters, shapes, strict=True)
        ]
        super().__init__(arrow_schema(columns), makers)

    def complete(self, records: Sequence[Any]) -> bool:
        """Return whether all *records*, decoded to the type `record`, equal what the codec makes of their text."""
        return self._aliased is None or self._aliased.complete(records)

    def _unsound(self, values: Sequence[bytes | None]) -> dict[int, Unfit]:
        return unsound(values, self._value_bytes_max)

    def _records(self, values: Sequence[bytes | None], refused: dict[int, Unfit]) -> list[Any]:
        """The decoded values but the *refused* ones, to which those are added that msgspec does not take."""
        if not refused:
            try:
                found = list(map(self._decode, values))  # type: ignore[arg-type]
                if self.complete(found):
                    return found
            except msgspec.DecodeError:
                pass  # which one it is, the loop finds
        records: list[Any] = []
        for i, value in enumerate(values):
            if i not in refused:
                try:
                    records.append(self._decode_one(value))  # type: ignore[arg-type]
                except msgspec.DecodeError as error:
                    refused[i] = malformed(value) or explained(error)  # type: ignore[arg-type]
        return records


def _words(column: Column, shape: Shape) -> FieldWords:
    """The field of *column*: what is taken for its value, and for its lack."""
    python = shape.python if column.required else shape.optional
    if column.default is not None:
        return column.name, python, ABSENT
    return column.name, python, msgspec.NODEFAULT if column.required else shape.missing
