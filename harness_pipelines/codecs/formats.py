"""The codec of each format: what decodes values and record keys, and what tells a delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import msgspec

from harness_pipelines.codecs.base import Codec, Decoded, Due, Reason
from harness_pipelines.codecs.columns import struct_type
from harness_pipelines.codecs.json import JsonCodec
from harness_pipelines.codecs.keys import wrapper
from harness_pipelines.codecs.raw import NoColumns, RawCodec
from harness_pipelines.codecs.refusals import too_deep
from harness_pipelines.codecs.schemas import Schemas
from harness_pipelines.codecs.whole import fields_of
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.formats import WITH_SCHEMA
from harness_pipelines.spec.keys import DeleteRule
from harness_pipelines.spec.table import TableSpec

Rule = Callable[[bytes], bool]  #: whether a value says that it deletes


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
        from harness_pipelines.codecs.policy import Policy
        from harness_pipelines.codecs.with_schema import codec_with_schema

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
        from harness_pipelines.codecs.with_schema import codec_with_schema

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


def delete_rule(spec: TableSpec, schemas: Schemas) -> Rule | None:
    """What of *spec* tells deletes; none: only tombstones do."""
    rule = spec.delete
    if not isinstance(rule, DeleteRule):
        return None
    names = next((c.names for c in fields_of(spec) if rule.field in c.names), (rule.field,))
    if spec.format in WITH_SCHEMA:
        from harness_pipelines.codecs.with_schema import rule_with_schema

        return rule_with_schema(spec.format, rule, names, spec.value_schema, schemas=schemas)
    return JsonRule(rule, names)


class JsonRule:
    """Whether a value says that it deletes.

    What is no JSON object or nested too deep says nothing; it is refused as a put.
    """

    def __init__(self, rule: DeleteRule, names: Sequence[str]) -> None:
        """*names*: of the rule's field; the first that the value has counts."""
        kind = struct_type([(name, Any, msgspec.UNSET) for name in names], strict_fields=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._tellers = [attrgetter(name) for name in kind.__struct_fields__]
        self._says = says(rule)

    def __call__(self, value: bytes) -> bool:
        if too_deep(value):
            return False
        try:
            decoded = self._decode(value)
        except msgspec.DecodeError:
            return False
        there = (told for teller in self._tellers if (told := teller(decoded)) is not msgspec.UNSET)
        return self._says(next(there, None))


def says(rule: DeleteRule) -> Callable[[Any], bool]:
    """Whether the value of the rule's field is one that deletes."""
    values = {(type(value), value) for value in rule.values}  # true is not 1
    return lambda told: isinstance(told, str | int | bool) and (type(told), told) in values
