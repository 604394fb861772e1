"""Change events of a real connector, as its Avro converter writes them: the same rows as of its JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.fixtures.debezium import load
from harness_pipelines_tests.fixtures.debezium.in_avro import written
from harness_pipelines_tests.fixtures.debezium.tables import TABLES
from harness_pipelines_tests.unit.formats.batching import Record, assert_alone_as_together
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed


class Registered(GivenSchemas):
    """Schemas that come to be known as records are written with them."""

    def __init__(self) -> None:
        super().__init__({})

    def __call__(self, schema: Any, payload: bytes) -> bytes:
        text = json.dumps(schema)
        for number, known in self.schemas.items():
            if known.text == text:
                return framed(payload, number)
        self.schemas[len(self.schemas) + 1] = WrittenSchema(kind="AVRO", text=text)
        return framed(payload, len(self.schemas))


def spec(format_: str, name: str, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "a.b", "format": format_, **TABLES[name], **words})


@pytest.mark.parametrize("name", sorted(set(TABLES)))
def test_events_in_avro_are_the_rows_and_refusals_of_events_in_json(name):
    events = load("schema", name)
    schemas = Registered()
    records = [written(event, schemas) for event in events]

    by_json = RecordCodec(spec("debezium", name)).decode([e.value for e in events], [e.key for e in events])
    by_avro = RecordCodec(spec("debezium-avro", name), schemas).decode([v for _, v in records], [k for k, _ in records])

    assert by_avro.rows.num_rows > 0 or not events or by_json.rows.num_rows == 0
    assert by_avro.accepted.tolist() == by_json.accepted.tolist()
    assert by_avro.rows.equals(by_json.rows)
    assert [(r.index, r.reason) for r in by_avro.refused] == [(r.index, r.reason) for r in by_json.refused]


VALUE = {"type": "record", "name": "Value", "fields": [
    {"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None},
]}  # fmt: skip
ENVELOPE = {"type": "record", "name": "Envelope", "fields": [
    {"name": "before", "type": ["null", VALUE]}, {"name": "after", "type": ["null", "Value"]},
    {"name": "op", "type": "string"},
]}  # fmt: skip
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
COLUMNS = {"id": {"type": "long", "required": True}, "note": "string"}
PLAIN = TableSpec.model_validate({"table": "a.b", "format": "debezium-avro", "columns": COLUMNS, "key": ["id"]})


def event(op: str, *, before: Any = None, after: Any = None) -> bytes:
    return framed(avro_bytes(ENVELOPE, {"op": op, "before": before, "after": after}), 1)


def key(number: int) -> bytes:
    return framed(avro_bytes(KEY, {"id": number}), 2)


def known() -> GivenSchemas:
    return GivenSchemas.avro(
        ENVELOPE, KEY, {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]}
    )


ROW = {"id": 1, "note": "n"}
RECORDS: list[Record] = [
    (key(1), event("c", after=ROW)), (key(1), event("d", before=ROW)), (None, event("d", before=ROW)), (key(1), None),
    (None, None), (None, event("d")), (key(1), event("u")), (key(1), event("t")), (key(1), framed(b"\x02", 3)),
    (key(1), framed(b"", 9)), (b"{}", event("d")), (framed(b"\x02", 3), None),
    (key(1), event("u", after={"id": 1, "note": "__debezium_unavailable_value"})), (key(1), b"\x00"),
    (key(1), event("c", after=ROW)[:-1]),
]  # fmt: skip


def test_what_an_event_does_and_why_it_does_nothing():
    found = RecordCodec(PLAIN, known()).decode([v for _, v in RECORDS], [k for k, _ in RECORDS])
    assert found.rows.to_pylist() == [{"_op": "put", **ROW}, *[{"_op": "delete", "id": 1, "note": None}] * 3]
    assert found.accepted.tolist() == [0, 1, 2, 3]
    assert {r.index: r.reason for r in found.refused} == {
        4: Reason.MISSING_KEY, 5: Reason.MISSING_KEY, 6: Reason.MISSING_BLOCK, 7: Reason.UNSUPPORTED_OP,
        8: Reason.MISSING_BLOCK, 9: Reason.UNKNOWN_SCHEMA, 10: Reason.WRONG_MAGIC_BYTE, 11: Reason.MISSING_KEY,
        12: Reason.UNAVAILABLE_VALUE, 13: Reason.TRUNCATED_HEADER, 14: Reason.MALFORMED,
    }  # fmt: skip


def test_the_verdict_on_an_event_never_depends_on_its_batch():
    assert_alone_as_together(RecordCodec(PLAIN, known()), RECORDS)


def test_a_value_that_is_not_in_the_event_is_taken_from_before_where_that_has_it():
    schema = json.loads(json.dumps(ENVELOPE))
    codec = RecordCodec(PLAIN, GivenSchemas.avro(schema))
    after = {"id": 1, "note": "__debezium_unavailable_value"}
    found = codec.decode([event("u", before={"id": 1, "note": "long"}, after=after)], [None])
    assert found.rows.to_pylist() == [{"_op": "put", "id": 1, "note": "long"}]


def test_the_specs_own_schema_is_of_the_event_and_of_the_key():
    own = {"schema": {"text": json.dumps(ENVELOPE)}, "key_schema": {"text": json.dumps(KEY)}}
    words = {"table": "a.b", "format": "debezium-avro", "columns": COLUMNS, "key": ["id"]}
    codec = RecordCodec(TableSpec.model_validate({**words, **own}))
    found = codec.decode([event("c", after=ROW)[5:], None], [None, key(7)[5:]])
    assert [(r["_op"], r["id"]) for r in found.rows.to_pylist()] == [("put", 1), ("delete", 7)]
    with pytest.raises(SchemaUnusable, match="does not describe `after`.*write `format: avro`"):
        RecordCodec(TableSpec.model_validate({**words, **own, "schema": {"text": json.dumps(KEY)}}))
