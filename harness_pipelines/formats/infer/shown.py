"""Show records without a spec: by the schema that they name, as JSON, as text, or as bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.infer.fields import fields_of_schema
from harness_pipelines.formats.schema.decode import Reader, SchemaCodec
from harness_pipelines.formats.schema.registry import Schemas, WrittenSchema
from harness_pipelines.formats.schema.wire import HEADER_BYTES, NamedSchema, opened, schema_id_of
from harness_pipelines.formats.schema.writer_schema import NoFit

if TYPE_CHECKING:
    from harness_pipelines.formats.schema.codec import Readers

_FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}  #: by the registry's kind of schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The key or value of a record, for people and programs."""

    form: str  #: null, json, text, bytes, or the schema: avro 12
    value: Any  #: what can be written as JSON; bytes as hexadecimal text
    text: str | None = None  #: as it is in the record, if it is text


class Shower:
    """Shows keys and values. *schemas*: of a registry."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._codecs: dict[NamedSchema, tuple[str, SchemaCodec | None]] = {}
        self._readers: dict[str, Readers] = {}

    def show(self, data: bytes | None) -> Shown:
        """Raises: as `Schemas.by_id`."""
        if data is None:
            return Shown(form="null", value=None)
        if (found := self._by_schema(data)) is not None:
            return found
        return plain(data)

    def _by_schema(self, data: bytes) -> Shown | None:
        """*data* as the schema says that it names; None: it names none that is known, or is not what that says."""
        if (kind := self._kind_of(data)) is None:
            return None
        if kind == "JSON":
            inside = plain(data[HEADER_BYTES:])
            return Shown(form=f"json-schema {schema_id_of(data)}", value=inside.value, text=inside.text)
        header = opened(data, has_indexes=kind == "PROTOBUF")
        if isinstance(header, Unfit):
            return None
        named, end = header
        codec = self._codec(kind, named)
        rows = [] if codec is None else codec.decode([data[end:]]).rows.to_pylist()
        if not rows:
            return None
        from harness_pipelines.formats.schema.avro import ANY_NAME

        [row] = rows
        value = row[ANY_NAME] if list(row) == [ANY_NAME] else row
        return Shown(form=f"{_FORMATS[kind]} {named.schema_id}", value=value)

    def _kind_of(self, data: bytes) -> str | None:
        if (schema_id := schema_id_of(data)) is None:
            return None
        try:
            schema = self._schemas.by_id(schema_id)
        except UsageError:  # no registry is known
            return None
        return None if schema is None or schema.kind not in _FORMATS else schema.kind

    def _codec(self, kind: str, named: NamedSchema) -> SchemaCodec | None:
        if named not in self._codecs:
            from harness_pipelines.formats.schema.codec import Readers

            if kind not in self._readers:
                self._readers[kind] = Readers(_FORMATS[kind], self._schemas)
            reader: Reader | WrittenSchema | Unfit = self._readers[kind].of(named)
            made = None
            if not isinstance(reader, WrittenSchema | Unfit):
                columns = [one.column for one in fields_of_schema(reader.written).columns]
                with suppress(NoFit):  # it is shown as bytes
                    made = SchemaCodec(columns, reader)
            self._codecs[named] = kind, made
        return self._codecs[named][1]


def plain(data: bytes) -> Shown:
    """*data* as JSON where it is an object, a list or any other JSON text, else as text, else in hexadecimal digits."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return Shown(form="bytes", value=data.hex())
    try:
        return Shown(form="json", value=json.loads(text, parse_constant=_refused), text=text)
    except (ValueError, RecursionError):
        return Shown(form="text", value=text, text=text)


def _refused(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")
