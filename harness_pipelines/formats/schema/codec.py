"""Codecs for values with a schema, from the registry by id or from the spec.

Which schema a record was written with says the record; the columns are the spec's. A schema that does not give them
refuses its records; a schema that the spec itself has is refused when the spec is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness_pipelines.formats.base import Codec, Reason
from harness_pipelines.formats.choose import Wrapped
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.json.json_schema import JsonSchemaCodec
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.schema.avro import ANY_NAME, AvroReader
from harness_pipelines.formats.schema.decode import Reader, Refusing, SchemaCodec, unfit
from harness_pipelines.formats.schema.policy import Policy
from harness_pipelines.formats.schema.protobuf import ProtobufFile
from harness_pipelines.formats.schema.registry import Schemas, SchemaUnusable, WrittenSchema
from harness_pipelines.formats.schema.wire import Framed, NamedSchema
from harness_pipelines.formats.schema.writer_schema import NoFit, WriterType, found_by
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sections.formats import GivenSchema

KINDS = {"avro": "AVRO", "debezium-avro": "AVRO", "protobuf": "PROTOBUF", "json-schema": "JSON"}
KNOWN_MAX = 1_000  #: schemas, and messages of them, whose codecs are kept
UnknownFields = Literal["ignore", "quarantine"]
Wrap = Callable[[bytes | None], bytes | None]


def codec_with_schema(
    format_: str,
    columns: Sequence[Column],
    given: GivenSchema | None,
    *,
    schemas: Schemas,
    unknown_fields: UnknownFields = "ignore",
    wrap: Wrap | None = None,
    policy: Policy | None = None,
) -> Codec:
    """The codec of values with *columns*. *wrap*: they are keys, and may be the value of the only column.

    *policy*: what is made of the schemas that records name; none: what they lack is NULL, what they have more is left.
    Raises: SchemaUnusable when the spec's own schema (*given*) does not give the columns.
    """
    make = _Codecs(columns, unknown_fields, wrap)
    if given is not None:
        try:
            return make(Readers(format_, schemas).given(given))
        except NoFit as why:
            path = f"`{why.path.removeprefix('.')}`: " if why.path else ""
            word = "schema" if wrap is None else "key_schema"
            raise SchemaUnusable(f"the `{word}` of the spec: {path}{why.why}").blaming(word) from why
    readers, known = Readers(format_, schemas), dict[NamedSchema, Codec]()

    def find(named: NamedSchema) -> Codec:
        found = known.get(named)
        if found is None:
            reader = readers.of(named)
            if isinstance(reader, Unfit):
                found = Refusing(columns, reader)
                if reader.reason is Reason.UNKNOWN_SCHEMA:
                    return found  # it may be registered any moment
            else:
                try:
                    if policy is not None and not isinstance(reader, WrittenSchema):
                        policy.check(named, make.named(reader).written)
                    found = make(reader)
                except NoFit as why:
                    found = Refusing(columns, unfit(why, f"schema {named.schema_id}"))
            if len(known) >= KNOWN_MAX:
                known.clear()
            known[named] = found
        return found

    return Framed(arrow_schema(columns), find, has_indexes=format_ == "protobuf")


@dataclass(frozen=True, slots=True)
class _Codecs:
    """Makes the codec of one schema's values."""

    columns: Sequence[Column]
    unknown_fields: UnknownFields
    wrap: Wrap | None

    def __call__(self, schema: Reader | WrittenSchema) -> Codec:
        """Raises: NoFit."""
        if isinstance(schema, WrittenSchema):
            plain = JsonCodec(self.columns, unknown_fields=self.unknown_fields)
            return JsonSchemaCodec(schema, plain if self.wrap is None else Wrapped(self.wrap, plain, self.columns))
        schema = self.named(schema)
        if self.wrap is not None:
            for column in self.columns:
                try:
                    found = found_by(schema.written.fields, column.names)
                except NoFit as why:
                    raise why.below(column.name) from None
                if not found:
                    raise NoFit("the key has no such field", path=column.name, reason=Reason.MISSING_KEY)
        return SchemaCodec(self.columns, schema, unknown_fields=self.unknown_fields)

    def named(self, schema: Reader) -> Reader:
        """A schema that is not a record gets the name of the only column. Raises: NoFit."""
        if not _is_bare(schema.written):
            return schema
        if len(self.columns) != 1:
            raise NoFit(f"{schema.written.name} is no record, so it is the value of one column, not of several")
        return _Bare(schema, self.columns[0].name)


def _is_bare(written: WriterType) -> bool:
    return [field.name for field in written.fields] == [ANY_NAME]


class _Bare:
    """`Reader` of a schema that is no record: its value is the only column."""

    def __init__(self, reader: Reader, column: str) -> None:
        [only] = reader.written.fields
        self.written = replace(reader.written, fields=(replace(only, name=column),))
        self.read = reader.read


class Readers:
    """Reads the schemas of one format."""

    def __init__(self, format_: str, schemas: Schemas) -> None:
        self._format, self._schemas = format_, schemas
        self._files: dict[int, ProtobufFile] = {}

    def given(self, schema: GivenSchema) -> Reader | WrittenSchema:
        """Raises: NoFit."""
        written = WrittenSchema(kind=KINDS[self._format], text=schema.text)
        if self._format == "protobuf":
            return ProtobufFile(written).named(schema.message)
        return self._read(written)

    def of(self, named: NamedSchema) -> Reader | WrittenSchema | Unfit:
        """Return the reader of a schema's records, or the reason why there is none. Raises: as `Schemas.by_id`."""
        number = named.schema_id
        try:
            if (file := self._files.get(number)) is not None:
                return file.at(named.indexes)
            schema = self._schemas.by_id(number)
            if schema is None:
                return Unfit(Reason.UNKNOWN_SCHEMA, f"the registry has no schema {number}")
            if (why := self._trouble(number, schema)) is not None:
                return why
            if self._format != "protobuf":
                return self._read(schema)
            file = self._files[number] = ProtobufFile(schema)
            return file.at(named.indexes)
        except NoFit as why_not:
            return unfit(why_not, f"schema {number}")

    def _trouble(self, number: int, schema: WrittenSchema) -> Unfit | None:
        if schema.lacks is not None:
            return Unfit(Reason.UNKNOWN_SCHEMA, f"schema {number} refers to what the registry lacks: {schema.lacks}")
        if schema.kind != KINDS[self._format]:
            return Unfit(Reason.UNUSABLE_SCHEMA, f"schema {number} is {schema.kind}, not {KINDS[self._format]}")
        return None

    def _read(self, schema: WrittenSchema) -> Reader | WrittenSchema:
        if self._format == "json-schema":
            return schema
        return AvroReader(schema, is_debezium=self._format == "debezium-avro")
