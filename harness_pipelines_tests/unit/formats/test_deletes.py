"""Rules of deletion: by a field, by its path, by a column that is made."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.load import load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together

COLUMNS = {"id": {"type": "long", "required": True}, "total": {"type": "int", "required": True}}


def spec(**words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": COLUMNS, "key": ["id"], **words})


def decode(made: TableSpec, *values: Any, headers: Any = None) -> Decoded:
    codec = RecordCodec(made)
    written = [json.dumps(value).encode() for value in values]
    return codec.decode(written, [None] * len(written), headers)


def ops(found: Decoded) -> list[tuple[str, int]]:
    assert not found.refused
    return [(row["_op"], row["id"]) for row in found.rows.to_pylist()]


PUT = {"id": 1, "total": 5, "meta": {"op": "c", "of": {"how": "c"}}}
DELETE = {"id": 1, "meta": {"op": "d", "of": {"how": "d"}}}


@pytest.mark.parametrize("field", ["meta.op", "meta.of.how"])
def test_a_rule_takes_a_path_into_the_value(field: str) -> None:
    made = spec(delete={"field": field, "values": ["d"]})
    found = decode(made, PUT, DELETE, {"id": 2, "total": 1, "meta": "d"}, {"id": 3, "total": 1, "meta": {"op": ["d"]}})
    assert ops(found) == [("put", 1), ("delete", 1), ("put", 2), ("put", 3)]


def test_a_field_that_has_the_whole_name_counts_before_the_path() -> None:
    made = spec(delete={"field": "meta.op", "values": ["d"]})
    found = decode(made, {"id": 1, "total": 1, "meta.op": "c", "meta": {"op": "d"}}, {"id": 2, "meta.op": "d"})
    assert ops(found) == [("put", 1), ("delete", 2)]


def test_a_path_begins_with_any_name_of_its_column() -> None:
    columns = COLUMNS | {"meta": {"type": "struct<op: string>", "aliases": ["m"]}}
    made = spec(columns=columns, delete={"field": "meta.op", "values": ["d"]})
    assert ops(decode(made, {"id": 1, "m": {"op": "d"}}, {"id": 2, "meta": {"op": "d"}})) == [
        ("delete", 1),
        ("delete", 2),
    ]


@pytest.mark.parametrize(
    ("derived", "field"),
    [({"op": "meta.op"}, "op"), ({"op": "lower(meta.op)"}, "op"), ({"o": "{'op': meta.op}"}, "o.op")],
)
def test_a_rule_is_asked_of_the_column_that_is_made_and_a_delete_needs_no_other(
    derived: dict[str, str], field: str
) -> None:
    [name] = derived
    columns = COLUMNS | {name: "string" if name == "op" else "struct<op: string>"}
    made = spec(
        columns=columns,
        delete={"field": field, "values": ["d"]},
        transform={"fields": {"meta": "struct<op: string>"}, "derive": derived},
    )
    assert ops(decode(made, PUT, DELETE, {"id": 4, "total": 2})) == [("put", 1), ("delete", 1), ("put", 4)]
    records = [(None, json.dumps(value).encode()) for value in (PUT, DELETE, {"id": 1}, {"id": 2, "meta": 5})]
    assert_alone_as_together(RecordCodec(made), [*records, (b"7", None), (None, b"")])


def test_a_column_that_is_made_of_headers_tells_deletes() -> None:
    columns = COLUMNS | {"h": {"type": "list<struct<key: string, value: binary>>", "from": "headers"}, "op": "string"}
    made = spec(
        columns=columns,
        delete={"field": "op", "values": ["d"]},
        transform={"derive": {"op": "decode(h[1].value)"}},
    )
    found = decode(made, {"id": 1, "total": 2}, {"id": 1}, headers=[[("op", b"c")], [("op", b"d")]])
    assert ops(found) == [("put", 1), ("delete", 1)]


def test_an_expression_that_fails_deletes_nothing() -> None:
    made = spec(
        columns=COLUMNS | {"op": "int"},
        delete={"field": "op", "values": [4]},
        transform={"fields": {"o": "string"}, "derive": {"op": "CAST(o AS INT)"}},
    )
    found = decode(made, {"id": 1, "total": 2, "o": "x"}, {"id": 2, "o": "4"})
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("delete", 2)]
    assert [one.index for one in found.refused] == [0]


def test_a_path_into_avro_and_by_the_name_of_the_whole_field() -> None:
    how = {"type": "enum", "name": "E", "symbols": ["c", "d"]}
    meta = {"type": "record", "name": "M", "fields": [{"name": "op", "type": how}]}
    fields = [{"name": "id", "type": "long"}, {"name": "meta", "type": ["null", meta]}]
    schema = {"type": "record", "name": "R", "fields": fields}
    made = spec(
        columns={"id": "long"},
        format="avro",
        schema={"text": json.dumps(schema)},
        delete={"field": "meta.op", "values": ["d"]},
    )
    found = RecordCodec(made).decode([b"\x02\x02\x00", b"\x04\x02\x02", b"\x06\x00"], [None] * 3)
    assert ops(found) == [("put", 1), ("delete", 2), ("put", 3)]


@pytest.mark.parametrize(
    ("columns", "rule", "why"),
    [
        ("op: int", "{field: op, values: [d]}", "it is of type int, and none of its values can be ['d']"),
        ("op: int", "{field: op, values: [3000000000]}", "write whole numbers that it can hold"),
        ("op: string", "{field: op, values: [1]}", "put the values in quotes"),
        ("gone: boolean", "{field: gone, values: ['true']}", "write true or false, without quotes"),
        ("op: double", "{field: op, values: [1]}", "a double is compared with no value"),
        ("op: list<string>", "{field: op, values: [d]}", "a list<string> is compared with no value"),
        ("op: string", "{field: op.x, values: [d]}", "'x' would be inside a string"),
        ("m: 'struct<a: string>'", "{field: m.op, values: [d]}", "the struct has no field 'op'; fields: a"),
        ("m: 'struct<op: int>'", "{field: m.op, values: [d]}", "it is of type int"),
        ("h: {type: binary, from: raw_value}", "{field: h, values: [d]}", "is `from: raw_value`, not a field"),
    ],
)
def test_a_rule_that_can_never_fire_is_refused_with_its_line(columns: str, rule: str, why: str) -> None:
    text = f"table: a.b\ncolumns: {{id: long, {columns}}}\nkey: [id]\ndelete: {rule}\n"
    with pytest.raises(SpecError, match=re.escape(why)) as refused:
        load_spec_text(text, source="orders.yaml")
    assert str(refused.value).startswith("orders.yaml:4: delete: `")


def test_a_rule_of_a_made_column_that_can_never_fire_is_refused() -> None:
    text = (
        "table: a.b\ncolumns: {id: long, day: date}\nkey: [id]\ndelete: {field: day, values: ['2026-01-01']}\n"
        "transform: {fields: {at: timestamp}, derive: {day: CAST(at AS DATE)}}"
    )
    with pytest.raises(SpecError, match="column 'day' gives date, and values of a rule are string, boolean, int, long"):
        load_spec_text(text)


@pytest.mark.parametrize(
    "rule", ["{field: op, values: [d, 1]}", "{field: other, values: [1]}", "{field: m.k, values: [d]}"]
)
def test_a_rule_that_may_fire_is_taken(rule: str) -> None:
    load_spec_text(
        f"table: a.b\ncolumns: {{id: long, op: string, m: 'map<string, string>'}}\nkey: [id]\ndelete: {rule}"
    )
