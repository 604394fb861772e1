"""Debezium's change events in Avro: puts and deletes.

The rules are those of `harness_pipelines.formats.debezium.json`. The event's schema says what columns mean (Kafka
Connect's semantic types, as `connect.name`), so nothing of `from` is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.formats.base import Codec, Due, Reason, Refused
from harness_pipelines.formats.choose import key_codec
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.debezium.envelopes import spread
from harness_pipelines.formats.debezium.json import NO_ROW_NAMED, keyless, op_trouble
from harness_pipelines.formats.debezium.toast import Unavailable
from harness_pipelines.formats.keyed_batches import Part, inside
from harness_pipelines.formats.refusals import refusal
from harness_pipelines.formats.schema.codec import KNOWN_MAX, Readers
from harness_pipelines.formats.schema.decode import Reader, RecordsCodec, unfit
from harness_pipelines.formats.schema.policy import Policy
from harness_pipelines.formats.schema.registry import Schemas, SchemaUnusable, WrittenSchema
from harness_pipelines.formats.schema.wire import NamedSchema, grouped
from harness_pipelines.formats.schema.writer_schema import NoFit, WriterType, field_of, found_by
from harness_pipelines.formats.whole_record import Records, fields_of
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class _Events:
    """How the events of one schema are read."""

    reader: Reader
    row: Codec  #: of `after`
    key: Codec  #: of `before`
    names: Mapping[str, str]  #: of the fields that columns are taken from, by column
    defaults: Mapping[str, Any]  #: by field
    ops: Mapping[Any, str]  #: where `op` is an enum: by its numbers


@dataclass(slots=True)
class _Group:
    """Parts of records that are decoded alike, in the records' order."""

    places: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)

    def add(self, place: int, value: Any) -> None:
        self.places.append(place)
        self.values.append(value)

    def part(self, operation: str, codec: Codec, where: str) -> list[Part]:
        """No part of nothing."""
        places = np.array(self.places, np.int64)
        made = Part(operation=operation, codec=codec, values=self.values, places=places, retold=inside(where))
        return [made] if self.places else []


class DebeziumAvroEvents:
    """`Sorter` of the events of one table."""

    def __init__(self, spec: TableSpec, schemas: Schemas, *, due: Due = "take") -> None:
        """Raises: SchemaUnusable."""
        self._columns = fields_of(spec)
        self._key, self._unknown_fields = spec.key_columns, spec.unknown_fields
        self._keys = key_codec(spec, schemas)
        self._unavailable = Unavailable(spec.unavailable_value, self._columns)
        self._readers = Readers(spec.format, schemas)
        self._policy = Policy.of(spec, due=due)
        self._known: dict[NamedSchema, _Events | Unfit] = {}
        self._only: _Events | None = None
        if spec.value_schema is not None:
            try:
                self._only = self._events(self._readers.given(spec.value_schema))
            except NoFit as why:
                raise SchemaUnusable(f"the `schema` of the spec: {why}").blaming("schema") from why

    def sort(self, records: Records) -> tuple[list[Part], list[Refused]]:
        values, keys = records.values, records.keys
        refused: dict[int, Unfit] = {}
        parts: list[Part] = []
        by_key = _Group()
        for i, value in enumerate(values):
            if value is None:
                self._by_key(i, keys[i], by_key, refused)
        for events, places, payloads in self._grouped(values, refused):
            found, wrong = events.reader.read(payloads)
            refused |= {places[position]: why for position, why in wrong.items()}
            read = [place for position, place in enumerate(places) if position not in wrong]
            parts += self._sorted(events, dict(zip(read, found, strict=True)), keys, by_key, refused)
        parts += by_key.part(DELETE, self._keys, "the record's key")
        return parts, [refusal(i, why) for i, why in sorted(refused.items())]

    def sources_of(self, column: Column) -> Callable[[Sequence[bytes | None]], pa.Array]:
        """Return the decoder of the events' `source`; *column* has its fields."""
        nullable = replace(column, required=False)

        def sources(values: Sequence[bytes | None]) -> pa.Array:
            found = pa.nulls(len(values), arrow_type(column.type))
            for events, places, payloads in self._grouped(values, {}):
                records, wrong = events.reader.read(payloads)
                read = [place for position, place in enumerate(places) if position not in wrong]
                try:
                    codec = RecordsCodec([nullable], events.reader.written)
                except NoFit:  # the schema has no such `source`
                    continue
                found = pc.coalesce(spread(codec.decode(records), read, len(values)), found)
            return found

        return sources

    def _grouped(
        self, values: Sequence[bytes | None], refused: dict[int, Unfit]
    ) -> list[tuple[_Events, list[int], list[bytes]]]:
        """The values that are there by how they are read; adds to *refused* those that cannot be."""
        there = {i: value for i, value in enumerate(values) if value is not None}
        if self._only is not None:
            return [(self._only, list(there), list(there.values()))] if there else []
        groups, wrong = grouped(values)
        refused |= {i: why for i, why in wrong.items() if i in there}
        found = []
        for named, places, payloads in groups:
            events = self._of(named)
            if isinstance(events, Unfit):
                refused |= dict.fromkeys(places, events)
            else:
                found.append((events, places, payloads))
        return found

    def _sorted(
        self,
        events: _Events,
        records: Mapping[int, Any],
        keys: Sequence[bytes | None],
        by_key: _Group,
        refused: dict[int, Unfit],
    ) -> list[Part]:
        puts, befores = _Group(), _Group()
        for place, record in records.items():
            op, after, before = record.get("op"), record.get("after"), record.get("before")
            op = events.ops.get(op, op)
            if (why := op_trouble(op, has_after=after is not None, plain="avro")) is not None:
                refused[place] = why
            elif op != "d":
                row = self._unavailable.filled(after, before, events.defaults)
                if isinstance(row, Unfit):
                    refused[place] = row
                else:
                    puts.add(place, row)
            elif keys[place] or before is None:
                self._by_key(place, keys[place], by_key, refused)
            elif lacking := [c.name for c in self._key if before.get(events.names.get(c.name)) is None]:
                refused[place] = keyless(lacking, "`before`")
            else:
                befores.add(place, before)
        return [*puts.part(PUT, events.row, "`after`"), *befores.part(DELETE, events.key, "`before`")]

    def _by_key(self, place: int, key: bytes | None, group: _Group, refused: dict[int, Unfit]) -> None:
        if key:
            group.add(place, key)
        else:
            refused[place] = Unfit(Reason.MISSING_KEY, NO_ROW_NAMED)

    def _of(self, named: NamedSchema) -> _Events | Unfit:
        found = self._known.get(named)
        if found is None:
            reader = self._readers.of(named)
            if isinstance(reader, Unfit):
                found = reader
                if reader.reason is Reason.UNKNOWN_SCHEMA:
                    return reader  # it may be registered any moment
            else:
                try:
                    found = self._events(reader, named)
                except NoFit as why:
                    found = unfit(why, f"schema {named.schema_id}")
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[named] = found
        return found

    def _events(self, reader: Reader | WrittenSchema, named: NamedSchema | None = None) -> _Events:
        """Raises: NoFit when the schema does not give the columns; SchemaDue."""
        assert not isinstance(reader, WrittenSchema), "Avro has readers"
        after = _block(reader.written, "after")
        if after is None:
            raise NoFit(
                "the schema does not describe `after`, so it is no change event. If the connector unwraps its events "
                "(ExtractNewRecordState), write `format: avro`",
                reason=Reason.MISSING_BLOCK,
            )
        if self._policy is not None and named is not None:
            self._policy.check(named, after)
        row = RecordsCodec(self._columns, after, unknown_fields=self._unknown_fields)
        fields = {c.name: found for c in self._columns if (found := found_by(after.fields, c.names))}
        before = _block(reader.written, "before") or after
        return _Events(
            reader=reader,
            row=row,
            key=RecordsCodec(self._key, before),
            names={name: found[0].name for name, found in fields.items()},
            defaults={found[0].name: found[0].default for found in fields.values()},
            ops=(op.written.names if (op := field_of(reader.written.fields, "op")) else None) or {},
        )


def _block(written: WriterType, name: str) -> WriterType | None:
    found = field_of(written.fields, name)
    return found.written if found is not None and found.written.kind == "struct" else None
