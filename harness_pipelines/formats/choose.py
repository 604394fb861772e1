"""Choose the codecs of a table for values and record keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness_pipelines.formats.base import Codec, Decoded, Due, Reason
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.keys import wrapper
from harness_pipelines.formats.raw import NoColumns, RawCodec
from harness_pipelines.formats.schema.registry import Schemas
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.formats import WITH_SCHEMA
from harness_pipelines.spec.table import TableSpec


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
    return Wrapped(wrapper(spec), JsonCodec(spec.key_columns))


@dataclass(frozen=True, slots=True)
class Wrapped:
    """`Codec` of JSON keys, or of the text of their only value."""

    wrap: Callable[[bytes | None], bytes | None]
    codec: Codec

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        return self.codec.decode([self.wrap(value) for value in values])
