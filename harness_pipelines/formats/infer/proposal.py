"""Propose a table's format, columns and key from sampled records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.infer.envelopes import body_of, fields_of_events, is_wrapped
from harness_pipelines.formats.infer.fields import Fields, ProposedColumn, fields_of_objects, fields_of_schema
from harness_pipelines.formats.infer.keys import InferredKey, infer_key, key_fields
from harness_pipelines.formats.infer.values import parsed
from harness_pipelines.formats.schema.registry import Schemas, WrittenSchema
from harness_pipelines.formats.schema.wire import HEADER_BYTES, opened, schema_id_of
from harness_pipelines.formats.schema.writer_schema import NoFit, WriterType, field_of
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sections.formats import Format, KeyFormat
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.wording import quantity

DELETED = "__deleted"  #: what Debezium's ExtractNewRecordState adds to a row (`delete.tombstone.handling.mode`)
_FORMATS: dict[str, Format] = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json-schema"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a spec of a topic could say."""

    format: Format
    fields: Fields
    key: tuple[str, ...] = ()  #: columns whose values the record keys have, or the envelope's rows are known by
    key_format: KeyFormat | None = None  #: None: that of the format
    is_keyed: bool = False  #: the records say that newer ones replace or delete older ones with the same key
    deleted: str | bool | None = None  #: a row with this in `DELETED` is a delete; None: no row says so
    notes: tuple[str, ...] = field(default=())  #: for people, about the whole
    records: int = 0


def propose(values: Sequence[bytes | None], keys: Sequence[bytes | None], schemas: Schemas) -> Proposal:
    """Propose what records of *values* and *keys* are read by. *schemas*: of a registry.

    Raises: UsageError where nothing can be proposed; what `Schemas.by_id` does.
    """
    if all(value is None for value in values):
        why = f"none of the {len(values):,} records that were read has a value" if values else "it has no records"
        raise UsageError(f"no columns can be proposed for the topic: {why}")
    tombstones = sum(value is None and key is not None for value, key in zip(values, keys, strict=True))
    there = [(value, key) for value, key in zip(values, keys, strict=True) if value]
    framed = [(value, key) for value, key in there if _schema_of(value, schemas) is not None]
    found = _of_registry(framed, schemas) if len(framed) * 2 > len(there) else _of_text(there)
    is_keyed = found.is_keyed or (tombstones > 0 and bool(found.key))
    notes = [*found.notes]
    if tombstones:
        notes.append(f"{quantity(tombstones, 'record')} without a value would delete the row of its key")
    return replace(found, is_keyed=is_keyed, notes=tuple(notes), records=len(values))


# -- records that name their schema -----------------------------------------------------------------------------


def _schema_of(value: bytes, schemas: Schemas) -> str | None:
    """The kind of the schema that *value* names; None: it names none that the registry has."""
    if (schema_id := schema_id_of(value)) is None:
        return None
    try:
        schema = schemas.by_id(schema_id)
    except UsageError:  # no registry is known
        return None
    return None if schema is None else schema.kind


def _of_registry(records: Sequence[tuple[bytes, bytes | None]], schemas: Schemas) -> Proposal:
    """By the schema of the newest record; those of the others differ at most by what can evolve."""
    newest = records[-1][0]
    kind = _schema_of(newest, schemas) or ""
    format_ = _FORMATS.get(kind)
    if format_ is None:
        raise UsageError(f"the records name a schema of kind {kind}, which no format reads")
    if format_ == "json-schema":
        return _of_json_schema(records)
    written = _written(format_, newest, schemas)
    keys = _schema_key([key for _, key in records], schemas)
    row = _row_of_events(written) if format_ == "avro" else None
    if row is not None:
        again = _row_of_events(_written("debezium-avro", newest, schemas)) or row
        return Proposal(format="debezium-avro", fields=fields_of_schema(again), key=keys, is_keyed=True)
    fields = fields_of_schema(written)
    return Proposal(format=format_, fields=fields, key=keys if set(keys) <= set(fields.names) else ())


def _written(format_: Format, value: bytes, schemas: Schemas) -> WriterType:
    """What the schema of *value* says of it. Raises: UsageError."""
    from harness_pipelines.formats.schema.codec import Readers

    header = opened(value, has_indexes=format_ == "protobuf")
    reader = header if isinstance(header, Unfit) else Readers(format_, schemas).of(header[0])
    if isinstance(reader, Unfit):
        raise UsageError(f"no columns can be proposed: {reader.detail}")
    assert not isinstance(reader, WrittenSchema), "only JSON Schema has no reader"
    return reader.written


def _row_of_events(written: WriterType) -> WriterType | None:
    """What is written in `after` of change events; None: they are none."""
    try:
        parts = {name: field_of(written.fields, name) for name in ("before", "after", "op", "source")}
    except NoFit:
        return None
    after = parts["after"]
    return None if after is None or None in parts.values() or after.written.kind != "struct" else after.written


def _schema_key(keys: Sequence[bytes | None], schemas: Schemas) -> tuple[str, ...]:
    """The fields of record keys that name their Avro schema."""
    newest = next((key for key in reversed(keys) if key is not None), None)
    if newest is None or _schema_of(newest, schemas) != "AVRO":
        return ()
    try:
        written = _written("avro", newest, schemas)
    except UsageError:
        return ()
    return fields_of_schema(written).names


def _of_json_schema(records: Sequence[tuple[bytes, bytes | None]]) -> Proposal:
    bare = [(value[HEADER_BYTES:], key) for value, key in records]
    found = _of_text(bare)
    if found.format != "json":
        raise UsageError("the records name a JSON Schema, and their values are no JSON objects: no column is a field")
    keys = [None if key is None else key[HEADER_BYTES:] for _, key in records]
    key = key_fields(keys) if all(schema_id_of(key) is not None for _, key in records if key is not None) else ()
    return replace(found, format="json-schema", key=key if set(key) <= set(found.fields.names) else (), key_format=None)


# -- records that are text --------------------------------------------------------------------------------------


def _of_text(records: Sequence[tuple[bytes, bytes | None]]) -> Proposal:
    """JSON objects, change events, or any other text or bytes."""
    found = [(_json(value), key) for value, key in records]
    objects = [(one, key) for one, key in found if isinstance(one, dict)]
    events = [(one, key) for one, key in objects if body_of(one) is not None]
    if len(events) * 2 > len(records):
        return _of_events(events, others=len(records) - len(events))
    if len(objects) * 2 > len(records):
        return _of_objects(objects, others=len(records) - len(objects))
    return _raw([value for value, _ in records], [key for _, key in records])


def _json(value: bytes) -> Any:
    try:
        return parsed(value)
    except ValueError:
        return None


def _of_events(records: Sequence[tuple[dict[str, Any], bytes | None]], *, others: int) -> Proposal:
    fields = fields_of_events([event for event, _ in records])
    notes = _others(others, "change event")
    tables = Counter(_table_of(event) for event, _ in records)
    if len(tables) > 1:
        notes.append(f"the events are of {len(tables)} tables ({', '.join(sorted(tables))}): choose one by `transform: "
                     "{filter: source.table = '...'}`")  # fmt: skip
    key = key_fields([key for _, key in records])
    if not key:
        notes.append("the record keys do not name the primary key: name its columns, by `key:` or --key")
    return Proposal(format="debezium", fields=fields, key=key, is_keyed=True, notes=tuple(notes))


def _table_of(event: Any) -> str:
    source = (body_of(event) or {}).get("source")
    return str(source.get("table", "?")) if isinstance(source, dict) else "?"


def _of_objects(records: Sequence[tuple[dict[str, Any], bytes | None]], *, others: int) -> Proposal:
    rows = [row for row, _ in records]
    deleted = _deleted(rows)
    wrapped = all(map(is_wrapped, rows))
    without = ["schema"] if wrapped else [] if deleted is None else [DELETED]
    fields = fields_of_objects(rows, without=without)
    if not fields.columns:
        raise UsageError("no field of the records can be a column: " + "; ".join(fields.left_out.values()))
    found = infer_key([key for _, key in records], rows) or InferredKey(columns=(), format="json")
    notes = _others(others, "JSON object")
    if wrapped:
        notes.append("the values have Kafka Connect's schema block around their fields: a converter with "
                     "schemas.enable=false writes the fields themselves")  # fmt: skip
    key = found.columns if set(found.columns) <= set(fields.names) else ()
    if deleted is not None and not key:
        notes.append(f"rows say by {DELETED} that they are deleted, and the record keys are no fields: give --key")
    return Proposal(
        format="json",
        fields=fields,
        key=key,
        key_format=found.format if key and found.format != "json" else None,
        is_keyed=deleted is not None and bool(key),
        deleted=deleted,
        notes=tuple(notes),
    )


def _others(count: int, what: str) -> list[str]:
    return [f"{quantity(count, 'record')} without a {what} would be quarantined"] if count else []


def _deleted(rows: Sequence[dict[str, Any]]) -> str | bool | None:
    """What a deleted row has in `DELETED`, if every row has that field."""
    found = [row.get(DELETED) for row in rows]
    if all(isinstance(one, bool) for one in found):
        return True
    return "true" if all(one in ("true", "false") for one in found) else None


def _raw(values: Sequence[bytes], keys: Sequence[bytes | None]) -> Proposal:
    """Values that are neither: one column has each as it is."""
    ids = sum(schema_id_of(value) is not None for value in values)
    note = "the values are no JSON objects"
    if ids * 2 > len(values):
        note += "; they begin as if with the id of a schema, which no registry has that is known (HARNESS_REGISTRY)"
    columns = [ProposedColumn(column=Column(name="value", type=Primitive(_text_or_bytes(values))), note="")]
    if any(key is not None for key in keys):
        kind = Primitive(_text_or_bytes([key for key in keys if key is not None]))
        columns.append(ProposedColumn(column=Column(name="key", type=kind, source="raw_key"), note=""))
    return Proposal(format="raw", fields=Fields(columns=tuple(columns)), notes=(note,))


def _text_or_bytes(values: Sequence[bytes]) -> str:
    for value in values:
        try:
            if "\0" in value.decode():
                return "binary"
        except UnicodeDecodeError:
            return "binary"
    return "string"
