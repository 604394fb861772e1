"""Kafka records to rows: the codec decodes the value; for keyed tables also puts and deletes.

In a keyed table a record without a value (Kafka's tombstone) deletes the key that the record's key tells; a record
whose value matches the spec's rule deletes the key in its value. Change events state their own operation
(`DebeziumEvents`). The row of a delete has its key columns and coordinates, all else is NULL. Like the codecs below
it, a record's verdict never depends on others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import blake2b
from importlib.metadata import version

import numpy as np
import orjson
import pyarrow as pa

from harness_pipelines.formats.base import Codec, Decoded, Due, Headers, Reason, Refused
from harness_pipelines.formats.choose import key_codec, value_codec, value_key_codec
from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.formats.culprits import Apart
from harness_pipelines.formats.debezium.envelopes import JsonSources
from harness_pipelines.formats.debezium.json import DebeziumEvents
from harness_pipelines.formats.deletes import Rule, delete_rule
from harness_pipelines.formats.keyed_batches import Part, Sorter, at, decode_parts, inside, places_of
from harness_pipelines.formats.other_tables import Others, Sources
from harness_pipelines.formats.schema.registry import NoSchemas, Schemas
from harness_pipelines.formats.transform import transformer_of
from harness_pipelines.formats.whole_record import Records, WholeColumns, fields_of
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import DELETE, PUT
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.sections.transform import input_columns, source_column
from harness_pipelines.spec.table import TableSpec

#: Words of a spec that decide no row. All others do, and so does a new word until it is named here.
ELSEWHERE = frozenset(
    {
        *("table", "topic", "topics", "start", "views", "layout", "buffer", "shards", "tier", "recall", "stop_above"),
        *("quarantine_mb", "retention", "freshness", "catalogs", "mode", "serve", "engine"),
        *("description", "owners", "tags"),
    }
)


class RecordCodec:
    """Decodes the records of one table, transforms them and checks them by its contract, for every reader alike."""

    def __init__(self, spec: TableSpec, schemas: Schemas | None = None, *, due: Due = "take") -> None:
        """*schemas*: the registry that knows the schemas by the ids that records begin with.

        *due*: the treatment of a record whose schema first has to change the table.
        Raises: ContractUnusable, TransformUnusable; SchemaUnusable for a `schema` of the spec that cannot be read or
        does not give the fields.
        """
        self._judge = judge_of(spec)
        self._transformer = transformer_of(spec)
        # The codec decodes fields; only the transform behind it knows the columns that are derived from them.
        columns = tuple(replace(c, exact=c.name in spec.key) for c in input_columns(spec))
        known = schemas or NoSchemas()
        rule = delete_rule(spec, known, self._transformer) if spec.key else None
        asked, spec = spec, spec.model_copy(update={"columns": columns, "transform": None})
        fields = fields_of(spec)
        self._values = value_codec(spec, fields, known, due=due)
        self._sorter: Sorter | None = None
        if spec.key:
            self._sorter = _sorter(spec, self._values, known, rule, due=due)
        stored = [c for c in spec.stored if c.name in {f.name for f in fields}]
        self._schema = arrow_schema(stored).insert(0, pa.field(OPERATION, pa.string(), nullable=False))
        self._whole = WholeColumns(spec)
        self._others: Others | None = None
        if self._transformer is not None:
            self._others = Others(asked, self._transformer, known, _sources(asked, self._sorter))
        self._apart = Apart(spec.table, self._all)

    def decode(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None],
        headers: Sequence[Headers | None] | None = None,
    ) -> Decoded:
        """Decode records by their *values*, *keys* and *headers*; each becomes a row, is refused or is filtered.

        The rows of a keyed table have `_op` in front of the user's columns. A record that makes a codec, the
        transform or the contract raise is refused as ``undecodable``.

        Raises: SchemaDue, and what `Schemas.by_id` does.
        """
        return self._apart(Records(values=values, keys=keys, headers=headers))

    def _all(self, records: Records) -> Decoded:
        """Raises: whatever one of *records* makes a part of it raise."""
        decoded = self._decoded(records)
        if self._whole:
            decoded = self._whole.added(decoded, records)
        if self._transformer is not None and self._others is not None:
            decoded = self._others.left_out(decoded, records)
            decoded = self._transformer.transformed(self._others.added(decoded, records))
        return decoded if self._judge is None else self._judge.judged(decoded)

    def _decoded(self, records: Records) -> Decoded:
        if self._sorter is None:
            return self._values.decode(records.values)
        return decode_parts(*self._sorter.sort(records), self._schema)


def _sources(spec: TableSpec, sorter: Sorter | None) -> Sources | None:
    """Return the decoder of the events' source if an expression of *spec* reads it."""
    if (column := source_column(spec)) is None:
        return None
    if isinstance(sorter, DebeziumEvents):
        return JsonSources(column)
    from harness_pipelines.formats.debezium.avro import DebeziumAvroEvents

    assert isinstance(sorter, DebeziumAvroEvents), "only change events have a source"
    return sorter.sources_of(column)


def _sorter(spec: TableSpec, values: Codec, schemas: Schemas, rule: Rule | None, *, due: Due) -> Sorter:
    if spec.format == "debezium":
        return DebeziumEvents(spec)
    if spec.format == "debezium-avro":
        from harness_pipelines.formats.debezium.avro import DebeziumAvroEvents

        return DebeziumAvroEvents(spec, schemas, due=due)
    return _Keyed(spec, values, schemas, rule)


class _Keyed:
    """`Sorter` of plain values: a missing value deletes, and so does a value that matches the spec's rule."""

    def __init__(self, spec: TableSpec, values: Codec, schemas: Schemas, rule: Rule | None) -> None:
        self._values = values
        self._key = key_codec(spec, schemas)
        self._ruled = rule
        named = [c for c in fields_of(spec) if c.name in spec.key]
        in_order = sorted(named, key=lambda c: spec.key.index(c.name))
        self._value_key = value_key_codec(spec, in_order, schemas) if rule else self._key

    def sort(self, records: Records) -> tuple[list[Part], list[Refused]]:
        values, keys = records.values, records.keys
        none = np.array([value is None for value in values], np.bool_)
        ruled = np.zeros(len(values), np.bool_) if self._ruled is None else self._ruled(records)
        parts = [
            Part(operation=PUT, codec=self._values, values=at(values, places), places=places)
            for places in places_of(~(none | ruled))
        ] + [
            Part(operation=DELETE, codec=self._value_key, values=at(values, places), places=places)
            for places in places_of(ruled)
        ]  # fmt: skip
        for places in places_of(none):
            named = at(keys, places)
            parts.append(Part(operation=DELETE, codec=self._key, values=named, places=places, retold=_of_the_key))
        return parts, []


def _of_the_key(refused: Refused, index: int) -> Refused:
    """A tombstone is refused for what its key is not."""
    if refused.reason is Reason.NULL_VALUE:
        detail = "the record has neither a value nor a key: it deletes nothing"
        return replace(refused, index=index, reason=Reason.MISSING_KEY, detail=detail)
    return inside("the key of a record without a value")(refused, index)


def decoder_name(spec: TableSpec) -> str:
    """A digest of all that decides which rows records become: formats, columns, transform, contract, the code.

    Of a contract in Python code it has the checks, and what they compare with, but not the code of own functions: who
    changes that without a word in the spec changes what is decoded from then on. A registry's schemas are no part of
    it, since an id never changes its schema (`Reason.UNKNOWN_SCHEMA` is told apart: `UNSETTLED`).
    Raises: ContractUnusable.
    """
    judge = judge_of(spec)
    rules = [] if judge is None else [[r.name, r.severity, r.expected, r.columns] for r in judge.rules]
    said = [_release(), spec.model_dump(mode="json", exclude=set(ELSEWHERE)), rules]
    return blake2b(orjson.dumps(said, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


@cache
def _release() -> str:
    return version("harness-pipelines")
