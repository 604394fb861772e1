"""Columns that records have by more than one name: each format, and what decides which name counts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.fixtures.debezium import KINDS, load
from harness_pipelines_tests.fixtures.debezium.in_avro import written
from harness_pipelines_tests.fixtures.debezium.tables import TABLES
from harness_pipelines_tests.unit.formats.batching import Record, assert_alone_as_together
from harness_pipelines_tests.unit.formats.test_debezium_avro import Registered
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed, proto_field

COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True, "aliases": ["nr", "no"]},
    "total": {"type": "decimal(6,2)", "aliases": ["amount"]},
    "note": "string",
}
KEYED = {"key": ["id"], "views": "stream"}


def spec(columns: Any = COLUMNS, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": columns, **words})


def decode(made: TableSpec, *records: Any, keys: list[bytes | None] | None = None) -> Decoded:
    """*records*: JSON text, or what is to become it; None is none."""
    texts = [r if r is None or isinstance(r, bytes) else json.dumps(r).encode() for r in records]
    return RecordCodec(made).decode(texts, keys or [None] * len(texts))


def rows(found: Decoded) -> list[tuple[Any, ...]]:
    assert found.refused == []
    return [tuple(None if v is None else str(v) for v in row.values()) for row in found.rows.to_pylist()]


# JSON


@pytest.mark.parametrize("unknown_fields", ["ignore", "quarantine"])
@pytest.mark.parametrize(
    ("record", "row"),
    [
        ('{"id": 1, "total": 2}', ("1", "2.00", None)),
        ('{"nr": 1, "amount": "2.5"}', ("1", "2.50", None)),
        ('{"no": 9, "amount": 7, "total": 2, "nr": 8, "id": 1}', ("1", "2.00", None)),
        ('{"no": 9, "nr": 1}', ("1", None, None)),
        ('{"no": 1, "note": "n"}', ("1", None, "n")),
        ('{"id": 1, "total": null, "amount": 2}', ("1", None, None)),  # null is there
        ('{"id": 1, "amount": null}', ("1", None, None)),
        ('{"id": 1, "nr": "x", "no": [], "total": 2, "amount": {}}', ("1", "2.00", None)),  # what does not count
        ('{"nr": 1, "no": null}', ("1", None, None)),
        ('{"nr": 5, "nr": 1}', ("1", None, None)),
    ],
)
def test_the_first_of_a_columns_names_that_a_record_has_counts(record: str, row: tuple[Any, ...], unknown_fields: str):
    assert rows(decode(spec(unknown_fields=unknown_fields), record.encode())) == [row]


@pytest.mark.parametrize(
    ("record", "reason", "detail"),
    [
        ({}, Reason.MISSING_FIELD, "`id`: required, but missing"),
        ({"amount": 1}, Reason.MISSING_FIELD, "`id`: required, but missing"),
        ({"id": None, "nr": 1}, Reason.MISSING_FIELD, "`id`: required, but null"),
        ({"nr": None, "no": 1}, Reason.MISSING_FIELD, "`id`: required, but null"),
        ({"no": "x"}, Reason.WRONG_TYPE, "`id`: expected integer, got string"),
        ({"nr": 2**63}, Reason.OUT_OF_RANGE, "`id`: "),
        ({"nr": 1, "amount": 1.234}, Reason.OUT_OF_RANGE, "`total`: '1.234' does not fit decimal(6, 2) exactly"),
        ({"nr": 1, "Amount": 1}, Reason.UNKNOWN_FIELD, "`Amount`: no column or field has this name"),
        ([], Reason.MALFORMED, "not a JSON object, but array"),
        (b'{"nr": 1} 2', Reason.MALFORMED, "not JSON: trailing characters"),
        (None, Reason.NULL_VALUE, "the record has no value"),
    ],
)
def test_what_is_refused_is_said_of_the_column_and_of_no_other_record(record: Any, reason: Reason, detail: str):
    found = decode(spec(unknown_fields="quarantine"), {"nr": 1}, record, {"id": 2, "total": 1})
    assert found.accepted.tolist() == [0, 2]
    assert [(one.index, one.reason) for one in found.refused] == [(1, reason)]
    assert found.refused[0].detail.startswith(detail)


def test_parts_of_a_value_are_named_below_the_column():
    columns = {"at": {"type": "list<struct<x: int>>", "aliases": ["places"]}}
    [refused] = decode(spec(columns), {"places": [{"x": 1}, {"x": "a"}]}).refused
    assert refused.detail == "`at[1].x`: expected integer, got string"


def test_a_value_is_written_as_the_column_says_by_whatever_name_it_comes():
    columns = {"at": {"type": "timestamptz", "from": "epoch_ms", "aliases": ["time"]}}
    found = decode(spec(columns), {"at": 0}, {"time": 0})
    assert len({*rows(found)}) == 1


def test_json_with_a_schema_is_judged_by_the_schema_as_it_is_written():
    text = {"type": "object", "required": ["nr"], "properties": {"nr": {"type": "integer", "maximum": 5}}}
    found = decode(spec(format="json-schema", schema={"text": json.dumps(text)}), {"nr": 1}, {"nr": 6}, {"id": 1})
    assert found.rows.column("id").to_pylist() == [1]
    assert [r.reason for r in found.refused] == [Reason.SCHEMA_VIOLATION] * 2


# Keys and deletes


@pytest.mark.parametrize("key", [b"1", b'{"id": 1}', b'{"nr": 1}', b'{"no": 1}', b'{"id": 1, "no": "x"}'])
def test_a_tombstone_is_told_by_any_name_of_a_key_column(key: bytes):
    found = decode(spec(**KEYED), None, keys=[key])
    assert rows(found) == [("delete", "1", None, None)]


def test_a_tombstone_without_any_name_of_its_key_is_refused():
    [refused] = decode(spec(**KEYED), None, keys=[b'{"amount": 1}']).refused
    assert (refused.reason, refused.detail) == (
        Reason.MISSING_KEY,
        "the key of a record without a value: `id`: there is no such field, so the record does not say which row to "
        "delete",
    )


@pytest.mark.parametrize("field", ["op", "was", "kind"])
def test_a_rule_of_deletion_speaks_of_the_column_by_any_of_its_names(field: str):
    columns = {**COLUMNS, "op": {"type": "string", "aliases": ["was", "kind"]}}
    made = spec(columns, **KEYED, delete={"field": field, "values": ["d"]})
    found = decode(made, {"id": 1, "op": "d"}, {"nr": 2, "was": "d"}, {"no": 3, "op": "u", "kind": "d"},
                   {"id": 4, "was": None, "kind": "d"}, {"id": 5})  # fmt: skip
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [
        ("delete", 1), ("delete", 2), ("put", 3), ("put", 4), ("put", 5)
    ]  # fmt: skip


def test_text_and_bytes_of_a_key_have_no_names():
    assert rows(decode(spec(**KEYED, key_format="text"), None, {"nr": 2}, keys=[b"1", b"2"])) == [
        ("delete", "1", None, None), ("put", "2", None, None)
    ]  # fmt: skip
    columns = {"id": {"type": "string", "aliases": ["nr"]}}
    assert rows(decode(spec(columns, **KEYED, key_format="raw"), None, {"nr": "b"}, keys=[b"a", b"b"])) == [
        ("delete", "a"), ("put", "b")
    ]  # fmt: skip


# Transform


def test_fields_of_a_transform_and_columns_that_it_reads_have_aliases():
    columns = {"id": {"type": "long", "aliases": ["nr"]}, "double": "long"}
    words = {
        "fields": {"n": {"type": "int", "aliases": ["number"]}},
        "derive": {"double": "n * 2 + id"},
        "filter": "n > 0",
    }
    found = decode(spec(columns, transform=words), {"id": 1, "n": 1}, {"nr": 1, "number": 1}, {"nr": 2, "number": 0})
    assert found.rows.to_pylist() == [{"id": 1, "double": 3}] * 2
    assert found.filtered == 1


# Avro


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


OLD = record("Old", field("nr", "long"), field("amount", ["null", "string"]))
NEW = record(
    "New", field("id", "long"), field("total", ["null", "string"]), field("amount", "boolean"), field("no", "int")
)
WITHOUT = record("Without", field("amount", "string"))


def test_in_avro_the_writers_schema_says_which_name_counts():
    schemas = GivenSchemas.avro(OLD, NEW, WITHOUT)
    codec = RecordCodec(spec(format="avro", unknown_fields="quarantine"), schemas)
    records: list[Record] = [
        (None, framed(avro_bytes(OLD, {"nr": 1, "amount": "1.5"}), 1)),
        (None, framed(avro_bytes(NEW, {"id": 2, "total": None, "amount": True, "no": 9}), 2)),
        (None, framed(avro_bytes(WITHOUT, {"amount": "1"}), 3)),
        (None, framed(avro_bytes(OLD, {"nr": 3, "amount": "x"}), 1)),
    ]

    found = codec.decode([value for _, value in records], [None] * len(records))

    assert [(r["id"], r["total"] and str(r["total"])) for r in found.rows.to_pylist()] == [(1, "1.50"), (2, None)]
    assert [(r.reason, r.detail.partition(":")[0]) for r in found.refused] == [
        (Reason.MISSING_FIELD, "`id`"), (Reason.WRONG_TYPE, "`total`")
    ]  # fmt: skip
    assert_alone_as_together(codec, records)


def test_a_field_that_counts_and_gives_no_value_is_not_made_up_for_by_another_name():
    schema = record("R", field("total", "boolean"), field("amount", "string"))
    columns = {"total": {"type": "decimal(6,2)", "aliases": ["amount"]}}
    codec = RecordCodec(spec(columns, format="avro"), GivenSchemas.avro(schema))
    [refused] = codec.decode([framed(avro_bytes(schema, {"total": True, "amount": "1"}))], [None]).refused
    assert refused.detail == "`total`: the schema's boolean cannot be read as decimal(6, 2) (schema 1)"
    with pytest.raises(SchemaUnusable, match="`total`: the schema's boolean cannot be read as decimal"):
        RecordCodec(spec(columns, format="avro", schema={"text": json.dumps(schema)}))


def test_an_alias_of_the_writers_schema_goes_before_the_columns():
    schema = record("R", field("sum", "string", aliases=["total"]), field("amount", "string"), field("id", "long"))
    codec = RecordCodec(spec(format="avro"), GivenSchemas.avro(schema))
    found = codec.decode([framed(avro_bytes(schema, {"sum": "1", "amount": "2", "id": 3}))], [None])
    assert [str(total) for total in found.rows.column("total").to_pylist()] == ["1.00"]


def test_two_fields_that_say_that_they_had_a_columns_name_are_told_with_it():
    schema = record("R", field("a", "long", aliases=["nr"]), field("b", "long", aliases=["nr"]))
    for words in ({}, {**KEYED, "delete": {"field": "id", "values": [0]}}):
        codec = RecordCodec(spec(format="avro", **words), GivenSchemas.avro(schema))
        [refused] = codec.decode([framed(avro_bytes(schema, {"a": 1, "b": 2}))], [None]).refused
        assert refused.reason is Reason.UNUSABLE_SCHEMA
        assert refused.detail == "`id`: `a` and `b` both have the alias `nr` (schema 1)"


def test_avro_keys_and_rules_of_deletion_have_aliases():
    key, value = record("Key", field("no", "long")), record("Value", field("nr", "long"), field("was", "string"))
    other = record("Other", field("x", "long"))
    columns = {"id": {"type": "long", "aliases": ["nr", "no"]}, "op": {"type": "string", "aliases": ["was"]}}
    made = spec(columns, **KEYED, format="avro", delete={"field": "op", "values": ["d"]})
    codec = RecordCodec(made, GivenSchemas.avro(key, value, other))
    found = codec.decode(
        [
            framed(avro_bytes(value, {"nr": 1, "was": "u"}), 2),
            framed(avro_bytes(value, {"nr": 2, "was": "d"}), 2),
            None,
            None,
        ],
        [None, None, framed(avro_bytes(key, {"no": 3}), 1), framed(avro_bytes(other, {"x": 3}), 3)],
    )
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("put", 1), ("delete", 2), ("delete", 3)]
    assert [r.reason for r in found.refused] == [Reason.MISSING_KEY]


# Protobuf

ORDER = """
syntax = "proto3";
message Order {
  int64 id = 1;
  int64 nr = 2;
  optional string total = 3;
  double amount = 4;
  repeated int32 tags = 5;
  repeated int32 labels = 6;
  optional string status = 7;
  State state = 8;
  enum State { NEW = 0; PAID = 1; GONE = 2; }
}
"""
PROTO_COLUMNS: dict[str, Any] = {
    "id": {"type": "long", "required": True, "aliases": ["nr"]},
    "total": {"type": "decimal(6,2)", "aliases": ["amount"]},
    "tags": {"type": "list<int>", "aliases": ["labels"]},
    "status": {"type": "string", "aliases": ["state"]},
}


def by_proto(*payloads: bytes, columns: Any = PROTO_COLUMNS, text: str = ORDER, **words: Any) -> Decoded:
    made = spec(columns, format="protobuf", schema={"text": text}, **words)
    return RecordCodec(made).decode(list(payloads), [None] * len(payloads))


def test_in_protobuf_a_record_has_the_fields_that_its_bytes_have():
    found = by_proto(
        b"",
        proto_field(1, 1) + proto_field(3, "1.5") + proto_field(5, b"\x07") + proto_field(7, "PAID"),
        proto_field(2, 2) + proto_field(6, b"\x07\x08") + proto_field(8, 1),
        proto_field(1, 3) + proto_field(2, 9) + proto_field(7, "") + proto_field(8, 1) + proto_field(6, b"\x07")
        + proto_field(5, b"\x09"),
        proto_field(8, 5),
        proto_field(2, 4) + proto_field(4, 1.5),
        proto_field(3, "2") + proto_field(4, 1.5),
        unknown_fields="quarantine",
    )  # fmt: skip
    assert [(r["id"], r["total"] and str(r["total"]), r["tags"], r["status"]) for r in found.rows.to_pylist()] == [
        (0, None, [], None), (1, "1.50", [7], "PAID"), (2, None, [7, 8], "PAID"), (3, None, [9], ""),
        (0, "2.00", [], None),
    ]  # fmt: skip
    assert [(r.index, r.reason, r.detail) for r in found.refused] == [
        (4, Reason.OUT_OF_RANGE, "`status`: enum Order.State has no name for 5"),
        (5, Reason.WRONG_TYPE, "`total`: the schema's double cannot be read as decimal(6, 2)"),
    ]


def test_a_map_that_is_empty_is_not_there_in_protobuf():
    columns = {"sizes": {"type": "map<string, int>", "aliases": ["counts"]}}
    text = 'syntax = "proto3"; message M { map<string, int32> sizes = 9; map<string, int32> counts = 10; }'
    entry = proto_field(1, "a") + proto_field(2, 7)
    found = by_proto(
        proto_field(10, entry), proto_field(9, entry) + proto_field(10, b""), b"", columns=columns, text=text
    )
    assert found.rows.column("sizes").to_pylist() == [[("a", 7)], [("a", 7)], []]


def test_text_that_cannot_be_stored_is_refused_in_a_column_of_several_fields_too():
    found = by_proto(proto_field(7, "a"), proto_field(7, "a\x00"), proto_field(8, 1))
    assert found.accepted.tolist() == [0, 2]
    [refused] = found.refused
    assert refused.reason is Reason.OUT_OF_RANGE
    assert refused.detail == "`status`: 'a\\x00' holds U+0000, which the buffer cannot store"


def test_a_schema_of_which_no_field_gives_the_column_is_refused_when_it_is_applied():
    columns = {"id": "long", "x": {"type": "date", "aliases": ["amount", "total"]}}
    by_proto(b"", columns=columns)  # the text of one is a date
    with pytest.raises(SchemaUnusable, match="`x`: the schema's double cannot be read as date"):
        by_proto(columns={"x": {"type": "date", "aliases": ["amount", "id"]}})


def test_a_rule_of_deletion_looks_at_the_field_that_a_message_has():
    words: dict[str, Any] = {**KEYED, "delete": {"field": "status", "values": ["GONE"]}}
    found = by_proto(
        proto_field(1, 1) + proto_field(7, "GONE"), proto_field(2, 2) + proto_field(8, 2),
        proto_field(1, 3) + proto_field(7, "NEW") + proto_field(8, 2), proto_field(1, 4), **words,
    )  # fmt: skip
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [
        ("delete", 1), ("delete", 2), ("put", 3), ("put", 4)
    ]  # fmt: skip


def test_verdicts_of_messages_never_depend_on_their_batch():
    schemas = GivenSchemas({1: WrittenSchema(kind="PROTOBUF", text=ORDER)})
    codec = RecordCodec(spec(PROTO_COLUMNS, format="protobuf"), schemas)
    parts = [b"", proto_field(1, 1), proto_field(2, 2), proto_field(3, "1.5"), proto_field(3, "x"), proto_field(4, 1.0),
             proto_field(6, b"\x07"), proto_field(7, "a\x00"), proto_field(8, 1), proto_field(8, 9)]  # fmt: skip
    assert_alone_as_together(codec, [(None, framed(a + b, indexes=(0,))) for a in parts for b in parts])


# Debezium


def renamed(words: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a table all of whose columns got new names."""
    columns = {}
    for name, said in words["columns"].items():
        columns[f"new {name}"] = {**(said if isinstance(said, dict) else {"type": said}), "aliases": ["never", name]}
        columns[f"new {name}"]["aliases"][0] += f" {name}"
    return {**words, "columns": columns, "key": [f"new {name}" for name in words["key"]]}


@pytest.mark.parametrize("name", sorted(TABLES))
@pytest.mark.parametrize("form", [*KINDS, "avro"])
def test_events_of_a_real_connector_are_the_same_rows_of_a_table_with_new_names(form: str, name: str):
    events, schemas = load("schema" if form == "avro" else form, name), Registered()
    records = [written(e, schemas) if form == "avro" else (e.key, e.value) for e in events]
    words = {**TABLES[name], "format": "debezium-avro" if form == "avro" else "debezium"}
    keys, values = [key for key, _ in records], [value for _, value in records]

    old = RecordCodec(spec(**words), schemas).decode(values, keys)
    new = RecordCodec(spec(**renamed(words)), schemas).decode(values, keys)

    assert new.accepted.tolist() == old.accepted.tolist()
    names = [name.removeprefix("new ") for name in new.rows.column_names]
    assert new.rows.rename_columns(names).equals(old.rows)
    assert [(r.index, r.reason, r.detail.replace("`new ", "`")) for r in new.refused] == [
        (r.index, r.reason, r.detail) for r in old.refused
    ]


def schema_block(*fields: tuple[str, str]) -> dict[str, Any]:
    block = {"type": "struct", "fields": [{"field": n, "type": "int64", "name": meant} for n, meant in fields]}
    return {"type": "struct", "fields": [{**block, "field": "before"}, {**block, "field": "after"}]}


MS, US = "io.debezium.time.Timestamp", "io.debezium.time.MicroTimestamp"
SEEN = {"id": "long", "at": {"type": "timestamp", "aliases": ["time"]}}
CHANGES = {"format": "debezium", "key": ["id"], "unknown_fields": "quarantine"}


@pytest.mark.parametrize(
    ("described", "after", "seen"),
    [
        ([("at", MS)], {"at": 1_000}, "1970-01-01 00:00:01"),
        ([("time", US)], {"time": 1_000}, "1970-01-01 00:00:00.001000"),
        ([("time", US), ("at", MS)], {"time": 5, "at": 1_000}, "1970-01-01 00:00:01"),
        ([("time", US), ("at", MS)], {"time": 5, "at": None}, None),
        (
            [("time", US), ("at", MS)],
            {"time": 5},
            None,
        ),  # Connect writes all that it describes: this is no value of `at`
    ],
)
def test_the_schema_block_says_which_name_counts_and_how_it_is_written(described: Any, after: Any, seen: str | None):
    block = schema_block(("id", ""), *described)
    found = decode(spec(SEEN, **CHANGES), {"schema": block, "payload": {"op": "c", "after": {"id": 1, **after}}})
    assert rows(found) == [("put", "1", seen)]


@pytest.mark.parametrize(
    ("key", "before", "told"),
    [(b'{"nr": 1}', None, True), (b'{"id": 1, "nr": 2}', None, True), (b'{"x": 1}', None, False),
     (None, {"nr": 1}, True), (None, {"nr": None}, False), (None, {"id": None, "nr": 1}, False)],
)  # fmt: skip
def test_a_delete_event_is_told_by_any_name_of_a_key_column(key: bytes | None, before: Any, told: bool):
    columns = {"id": {"type": "long", "aliases": ["nr"]}, "n": "int"}
    found = decode(spec(columns, **CHANGES), {"op": "d", "before": before}, keys=[key])
    if told:
        assert rows(found) == [("delete", "1", None)]
    else:
        assert [r.reason for r in found.refused] == [Reason.MISSING_KEY]


PLACEHOLDER = "__debezium_unavailable_value"


@pytest.mark.parametrize(
    ("after", "before", "stored"),
    [
        ({"text": PLACEHOLDER}, {"text": "as it was"}, "as it was"),
        ({"body": PLACEHOLDER}, {"body": "as it was"}, "as it was"),
        ({"body": PLACEHOLDER}, {"body": ""}, None),
        ({"body": "now", "text": PLACEHOLDER}, {}, "now"),
    ],
)
def test_a_value_that_is_not_in_the_event_is_looked_for_by_the_name_that_counts(after: Any, before: Any, stored: Any):
    names = [("id", "int64"), *((name, "string") for name in after)]
    block = {"type": "struct", "fields": [{"field": name, "type": kind} for name, kind in names]}
    schema = {"type": "struct", "fields": [{**block, "field": "before"}, {**block, "field": "after"}]}
    payload = {"op": "u", "before": {"id": 1, **before}, "after": {"id": 1, **after}}
    columns = {"id": "long", "body": {"type": "string", "aliases": ["text"]}}
    found = decode(spec(columns, **CHANGES), {"schema": schema, "payload": payload})
    assert [row["body"] for row in found.rows.to_pylist()] == ([stored] if stored else [])
    assert [r.detail.partition(":")[0] for r in found.refused] == ([] if stored else ["`body`"])
