"""JSON with a schema: the rows of JSON, of values that the schema allows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together
from harness_pipelines_tests.wire import GivenSchemas, framed

SCHEMA = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 3}, "total": {"$ref": "money.json"}},
}
MONEY = {"type": "object", "required": ["currency"]}
KNOWN = WrittenSchema(kind="JSON", text=json.dumps(SCHEMA), references={"money.json": json.dumps(MONEY)})


def spec(**words: Any) -> TableSpec:
    columns = {"id": "long", "total": "struct<currency: string>"}
    return TableSpec.model_validate({"table": "a.b", "format": "json-schema", "columns": columns, **words})


VALUES = [
    framed(b'{"id": 5, "total": {"currency": "EUR"}}'), framed(b'{"id": 1}'), framed(b'{"id": 6, "total": {}}'),
    framed(b'{"id": "x"}'), framed(b"{"), framed(b'{"id": 3}', 2), framed(b'{"id": 9}'), b"{}",
]  # fmt: skip


def test_what_the_schema_does_not_allow_is_refused_with_its_place():
    found = RecordCodec(spec(), GivenSchemas({1: KNOWN})).decode(VALUES, [None] * len(VALUES))

    assert found.rows.to_pylist() == [{"id": 5, "total": {"currency": "EUR"}}, {"id": 9, "total": None}]
    assert [(r.index, r.reason, r.detail) for r in found.refused] == [
        (1, Reason.SCHEMA_VIOLATION, "`id`: 1 is less than the minimum of 3"),
        (2, Reason.SCHEMA_VIOLATION, '`total`: "currency" is a required property'),
        (3, Reason.WRONG_TYPE, "`id`: expected integer, got string"),
        (4, Reason.MALFORMED, "not JSON: Input data was truncated"),
        (5, Reason.UNKNOWN_SCHEMA, "the registry has no schema 2"),
        (7, Reason.WRONG_MAGIC_BYTE, "the first byte is 123, not 0"),
    ]


def test_the_verdict_on_a_record_never_depends_on_its_batch():
    assert_alone_as_together(RecordCodec(spec(), GivenSchemas({1: KNOWN})), [(None, value) for value in VALUES])


def test_keys_are_objects_or_bare_values():
    key = WrittenSchema(kind="JSON", text='{"type": ["integer", "object"], "maximum": 9}')
    codec = RecordCodec(spec(key=["id"]), GivenSchemas({1: key}))
    found = codec.decode([None] * 3, [framed(b"4"), framed(b'{"id": 5}'), framed(b"x")])
    assert found.rows.column("id").to_pylist() == [4, 5]
    assert [r.reason for r in found.refused] == [Reason.MALFORMED]


def test_the_specs_own_schema_reads_plain_json():
    codec = RecordCodec(spec(schema={"text": '{"required": ["id"]}'}))
    found = codec.decode([b'{"id": 1}', b"{}"], [None, None])
    assert found.rows.num_rows == 1
    assert found.refused[0].detail == '"id" is a required property'


@pytest.mark.parametrize("text", ["{", '{"type": "lang"}', '{"$ref": "http://127.0.0.1:1/x.json"}'])
def test_a_schema_that_cannot_be_used_is_refused_and_nothing_is_fetched(text):
    with pytest.raises(SchemaUnusable, match="no JSON Schema that can be used"):
        RecordCodec(spec(schema={"text": text}))
    codec = RecordCodec(spec(), GivenSchemas({1: WrittenSchema(kind="JSON", text=text)}))
    assert [r.reason for r in codec.decode([framed(b"{}")], [None]).refused] == [Reason.UNUSABLE_SCHEMA]


def test_a_value_says_that_it_deletes_by_a_field():
    words = {"key": ["id"], "delete": {"field": "op", "values": ["d"]}}
    found = RecordCodec(spec(**words), GivenSchemas({1: KNOWN})).decode([framed(b'{"id": 4, "op": "d"}')], [None])
    assert found.rows.to_pylist() == [{"_op": "delete", "id": 4, "total": None}]


OF_LISTS = {"type": "array", "items": {"$ref": "#/$defs/x"}}
LISTS: Any = {"anyOf": [OF_LISTS, {**OF_LISTS, "minItems": 2}, {"type": "integer"}]}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"x": {"$ref": "#/$defs/x"}}, "$defs": {"x": LISTS}},
        {"properties": {"x": {"$ref": "#x"}}, "$defs": {"x": {"$anchor": "x", **LISTS}}},
        {"properties": {"x": {"$dynamicRef": "#x"}}, "$defs": {"x": {"$dynamicAnchor": "x", **LISTS}}},
    ],
)
def test_an_error_that_has_a_way_for_each_reference_is_not_told_for_ever(schema: Any):
    """Of each of the two references at each depth the validator makes an error: twice as many for each bracket."""
    deep = b'{"id":5,"x":' + b"[" * 40 + b'"a"' + b"]" * 40 + b"}"
    flat = [b'{"id":5,"x":[1,[2,3]]}', b'{"id":5,"x":["a"]}']
    written = WrittenSchema(
        kind="JSON", text=json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    )
    codec = RecordCodec(spec(), GivenSchemas({1: written}))
    found = codec.decode([framed(value) for value in (deep, *flat)], [None] * 3)
    assert [row["id"] for row in found.rows.to_pylist()] == [5]
    assert [(r.index, r.reason) for r in found.refused] == [(i, Reason.SCHEMA_VIOLATION) for i in (0, 2)]
    assert "the schema does not allow the value" in found.refused[0].detail


def test_a_wide_schema_and_a_chain_of_references_still_tell_the_place():
    wide = {f"c{i}": {"anyOf": [{"type": "integer"}, {"type": "null"}]} for i in range(1_500)}
    chain = {"properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}}}
    schema = {"properties": {**wide, "id": {"maximum": 3}, "node": {"$ref": "#/$defs/node"}}, "$defs": {"node": chain}}
    value = b'{"id":1,"node":' + b'{"next":' * 100 + b'{"v":"a"}' + b"}" * 101
    codec = RecordCodec(spec(), GivenSchemas({1: WrittenSchema(kind="JSON", text=json.dumps(schema))}))
    found = codec.decode([framed(b'{"id":9}'), framed(value)], [None] * 2)
    assert "`id`: 9 is greater than the maximum of 3" in found.refused[0].detail
    assert found.refused[1].detail.startswith("`node.next.next.next.")
