"""Choose the codecs of a table for values and record keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from harness_pipelines.formats.base import Codec, Decoded, Due, Reason
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.keys import wrapper
from harness_pipelines.formats.raw import NoColumns, RawCodec
from harness_pipelines.formats.refusals import refusal, too_deep
from harness_pipelines.formats.schema.registry import Schemas
from harness_pipelines.formats.schema.wire import gathered
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sections.formats import WITH_SCHEMA
from harness_pipelines.spec.table import TableSpec

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def value_codec(
    spec: TableSpec, columns: Sequence[Column], schemas: Schemas, *, all_fields: bool = True, due: Due = "take"
) -> Codec:
    """The codec of values that have *columns*; without *all_fields* what else they have is no matter.

    *due*: as of `RecordCodec`. Raises: SchemaUnusable.
    """
    if not columns:
        return NoColumns()
    unknown_fields = spec.unknown_fields if all_fields else "ignore"
    if spec.format in WITH_SCHEMA:
        from harness_pipelines.formats.schema.codec import codec_with_schema
        from harness_pipelines.formats.schema.policy import Policy

        return codec_with_schema(
            spec.format,
            columns,
            spec.value_schema,
            schemas=schemas,
            unknown_fields=unknown_fields,
            policy=Policy.of(spec, due=due) if all_fields else None,
        )
    return JsonCodec(columns, unknown_fields=unknown_fields)


def key_codec(spec: TableSpec, schemas: Schemas) -> Codec:
    """The codec of record keys, which gives the columns of the table's key. Raises: SchemaUnusable."""
    if spec.key_format == "raw":
        return RawCodec(replace(spec.key_columns[0], required=True), missing=Reason.NULL_VALUE)
    if spec.key_format in WITH_SCHEMA:
        from harness_pipelines.formats.schema.codec import codec_with_schema

        return codec_with_schema(
            spec.key_format, spec.key_columns, spec.key_schema, schemas=schemas, wrap=wrapper(spec)
        )
    return Wrapped(wrapper(spec), JsonCodec(spec.key_columns), spec.key_columns)


def value_key_codec(spec: TableSpec, columns: Sequence[Column], schemas: Schemas) -> Codec:
    """The codec of the key, of *columns*, in values that delete. Raises: SchemaUnusable."""
    found = value_codec(spec, columns, schemas, all_fields=False)
    return Wrapped(lambda value: value, found, columns) if isinstance(found, JsonCodec) else found


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`Codec` of JSON keys, or of the text of their only value.

    An object without a field of one of *must* is refused: of a key that is not the table's, NULL would be made.
    """

    wrap: Callable[[bytes | None], bytes | None]
    codec: Codec
    must: Sequence[Column] = ()

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        texts = [self.wrap(value) for value in values]
        refused = {
            i: why
            for i, (value, text) in enumerate(zip(values, texts, strict=True))
            if text is value and (why := self._lacking(text))
        }
        decoded = self.codec.decode([text for i, text in enumerate(texts) if i not in refused])
        if not refused:
            return decoded
        places = np.array([i for i in range(len(texts)) if i not in refused], np.int64)
        return gathered([(places, decoded)], [refusal(i, why) for i, why in refused.items()], decoded.rows.schema)

    def _lacking(self, text: bytes | None) -> Unfit | None:
        """Which field an object lacks; None for what the codec refuses, or takes, as it is."""
        if not self.must or not text or too_deep(text):
            return None
        try:
            found = _OBJECT.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        lacking = next((c.name for c in self.must if c.name_in(found) not in found), None)
        why = f"`{lacking}`: there is no such field, so the record does not say which row to delete"
        return Unfit(Reason.MISSING_KEY, why) if lacking else None
