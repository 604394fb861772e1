"""Detect deletes by value: ``delete: {field: ..., values: [...]}`` of the spec.

The field is one of the value, by its name or by its path (``payload.op``), or a column that the transform makes. A rule
is asked before the record is decoded as a row, since a delete need not have what a row has: of a column that is made,
only what its expression reads is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from harness_pipelines.formats.choose import value_codec
from harness_pipelines.formats.columns.arrow import struct_type
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.refusals import too_deep
from harness_pipelines.formats.schema.registry import Schemas, WrittenSchema
from harness_pipelines.formats.schema.wire import NamedSchema, opened
from harness_pipelines.formats.schema.writer_schema import (
    BOOLEANS,
    NoFit,
    WriterType,
    WrittenField,
    field_of,
    first_there,
    found_by,
)
from harness_pipelines.formats.transform import Transformer
from harness_pipelines.formats.whole_record import Records, WholeColumns, fields_of
from harness_pipelines.spec.sections.formats import WITH_SCHEMA
from harness_pipelines.spec.sections.keys import DeleteRule
from harness_pipelines.spec.sections.transform import input_columns
from harness_pipelines.spec.table import TableSpec

Rule = Callable[[Records], NDArray[np.bool_]]  #: tells which records are deletes by their values
OfValue = Callable[[bytes], bool]  #: whether a value says that it deletes
Path = tuple[str, ...]  #: a field, or one inside of another
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


def delete_rule(spec: TableSpec, schemas: Schemas, transformer: Transformer | None = None) -> Rule | None:
    """Return the delete rule of *spec*; None: only tombstones delete.

    *transformer*: of *spec*, where it has a transform. Raises: SchemaUnusable.
    """
    rule = spec.delete
    if not isinstance(rule, DeleteRule):
        return None
    made = spec.transform.derive if spec.transform else {}
    if transformer is not None and (name := rule.column_of(made)) is not None:
        return DerivedRule(spec, rule, name, transformer, schemas)
    fields = spec.model_copy(update={"columns": input_columns(spec)})
    names = {name: column.names for column in fields_of(fields) for name in column.names}
    paths = _paths(rule, names)
    if spec.format in WITH_SCHEMA:
        return _each(rule_with_schema(spec, rule, paths, schemas))
    return _each(JsonRule(rule, paths))


def _paths(rule: DeleteRule, names: dict[str, tuple[str, ...]]) -> list[Path]:
    """Where the field may be, in the order in which it counts: under its whole name, then inside of others.

    *names*: all names of a column, by each of them.
    """
    whole: list[Path] = [(name,) for name in names.get(rule.field, (rule.field,))]
    first = rule.column_of(names) or rule.field.partition(".")[0]
    if first == rule.field:
        return whole
    inner = tuple(rule.field[len(first) + 1 :].split("."))
    return [*whole, *((name, *inner) for name in names.get(first, (first,)))]


def _each(of_value: OfValue) -> Rule:
    def told(records: Records) -> NDArray[np.bool_]:
        return np.array([value is not None and of_value(value) for value in records.values], np.bool_)

    return told


def says(rule: DeleteRule) -> Callable[[Any], bool]:
    """Return whether the value of the rule's field deletes."""
    values = {(type(value), value) for value in rule.values}  # true is not 1
    return lambda told: isinstance(told, str | int | bool) and (type(told), told) in values


class JsonRule:
    """Return whether a value is a delete.

    A value that is not a JSON object, or is nested too deep, is no delete; it is refused as a put.
    """

    def __init__(self, rule: DeleteRule, paths: Sequence[Path]) -> None:
        """*paths*: of the rule's field; the first that the value has counts."""
        words = {path[0]: Any if len(path) == 1 else msgspec.Raw for path in reversed(paths)}
        kind = struct_type([(name, python, msgspec.UNSET) for name, python in words.items()], strict_fields=False)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        attributes = dict(zip(words, kind.__struct_fields__, strict=True))
        self._paths = [(attributes[first], inner) for first, *inner in paths]
        self._says = says(rule)

    def __call__(self, value: bytes) -> bool:
        if too_deep(value):
            return False
        try:
            decoded = self._decode(value)
        except msgspec.DecodeError:
            return False
        for attribute, inner in self._paths:
            told = getattr(decoded, attribute)
            if inner and told is not msgspec.UNSET:
                told = _inside(told, inner)
            if told is not msgspec.UNSET:
                return self._says(told)
        return False


def _inside(told: msgspec.Raw, path: Sequence[str]) -> Any:
    """What is at *path* of an object; UNSET where there is none."""
    for name in path:
        if bytes(told)[:1] != b"{":
            return msgspec.UNSET
        found = _OBJECT.decode(told).get(name)
        if found is None:
            return msgspec.UNSET
        told = found
    return msgspec.json.decode(told)


class DerivedRule:
    """`Rule` of a column that the transform makes, or of a field of it."""

    def __init__(
        self, spec: TableSpec, rule: DeleteRule, name: str, transformer: Transformer, schemas: Schemas
    ) -> None:
        reads = transformer.reads(name)
        columns = tuple(replace(c, required=False) for c in input_columns(spec) if c.name in reads)
        asked = spec.model_copy(update={"columns": columns, "transform": None, "key": ()})
        self._codec = value_codec(asked, fields_of(asked), schemas, all_fields=False)
        self._whole = WholeColumns(asked)
        self._name, self._transformer, self._says = name, transformer, says(rule)
        self._inner = rule.field[len(name) + 1 :].split(".") if rule.field != name else []

    def __call__(self, records: Records) -> NDArray[np.bool_]:
        there = [i for i, value in enumerate(records.values) if value is not None]
        deletes = np.zeros(len(records.values), np.bool_)
        chosen = records.at(there)
        decoded = self._codec.decode(chosen.values)
        if self._whole:
            decoded = self._whole.added(decoded, chosen)
        if not len(decoded.accepted):
            return deletes
        made = self._transformer.made(self._name, decoded.rows, len(decoded.accepted))
        for at, cell in zip(decoded.accepted.tolist(), made.to_pylist(), strict=True):
            deletes[there[at]] = self._says(self._at_path(cell))
        return deletes

    def _at_path(self, cell: Any) -> Any:
        for name in self._inner:
            cell = dict(cell).get(name) if isinstance(cell, dict | list) else None
        return cell


def rule_with_schema(spec: TableSpec, rule: DeleteRule, paths: Sequence[Path], schemas: Schemas) -> OfValue:
    """Return whether a value is a delete. An unreadable value is not; it is refused as a put.

    *paths*: of the rule's field, in the order in which they count.
    """
    from harness_pipelines.formats.schema.codec import Readers

    format_, given = spec.format, spec.value_schema
    by_json = JsonRule(rule, paths)
    readers, known = Readers(format_, schemas), dict[NamedSchema | None, OfValue]()
    alone = readers.given(given) if given is not None else None

    def deletes(value: bytes) -> bool:
        if alone is not None:
            named, end = None, 0
        else:
            header = opened(value, has_indexes=format_ == "protobuf")
            if isinstance(header, Unfit):
                return False
            named, end = header
        if named not in known:
            reader = alone or (readers.of(named) if named is not None else None)
            assert reader is not None
            if isinstance(reader, Unfit):
                return False  # it may be known later
            known[named] = by_json if isinstance(reader, WrittenSchema) else _read_by(reader, rule, paths)
        return known[named](value[end:])

    return deletes


def _read_by(reader: Any, rule: DeleteRule, paths: Sequence[Path]) -> OfValue:
    """The rule over records of one schema, of which *reader* is the `Reader`."""
    tell, fields = says(rule), _fields_at(reader.written, paths)

    def told(payload: bytes) -> bool:
        records, _ = reader.read([payload]) if fields else ([], {})
        return bool(records) and tell(_value_at(fields, records[0]))

    return told


def _fields_at(written: WriterType, paths: Sequence[Path]) -> list[tuple[list[WrittenField], Sequence[str]]]:
    """The fields that the *paths* begin with, each with what is left of its path."""
    try:
        whole = found_by(written.fields, [path[0] for path in paths if len(path) == 1])
    except NoFit:
        whole = []
    found: list[tuple[list[WrittenField], Sequence[str]]] = [(whole, ())] if whole else []
    for first, *inner in paths:
        try:
            field = field_of(written.fields, first) if inner else None
        except NoFit:
            field = None
        if field is not None and field.written.kind in {"struct", "map"}:
            found.append(([field], inner))
    return found


def _value_at(places: Sequence[tuple[list[WrittenField], Sequence[str]]], record: Any) -> Any:
    """The value of the first field that the record has."""
    for fields, path in places:
        field = fields[first_there(fields, record)]
        if field.has is not None and not field.has(record) and (fields, path) != places[-1]:
            continue
        found = _below(field, record, path)
        if found is not None or not path:
            return found
    return None


def _below(field: WrittenField, record: Any, path: Sequence[str]) -> Any:
    value, written = field.get(record), field.written
    for name in path:
        if value is None:
            return None
        if written.kind == "map" and written.element is not None:
            value, written = dict(value).get(name), written.element
            continue
        try:
            inner = field_of(written.fields, name) if written.kind == "struct" else None
        except NoFit:
            inner = None
        if inner is None:
            return None
        value, written = inner.get(value), inner.written
    if written.kind == "boolean" and isinstance(value, bytes):
        value = BOOLEANS.get(value)
    return written.names.get(value) if written.names is not None and isinstance(value, int) else value
