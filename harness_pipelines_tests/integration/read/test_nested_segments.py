"""Structs of a segment of another schema, as Postgres hands them over and as Arrow makes them: the same, by field."""

from __future__ import annotations

from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql

from harness_pipelines.buffers.postgres.nested_sql import projected_json
from harness_pipelines.drivers.conform import in_schema
from harness_pipelines.protocol.schema.nested_json import decode_json, encode_json
from harness_pipelines.protocol.schema.schemas import Other
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import parse_type

HOSTILE = 'x\n"y"\\ \x00\x00 ü }] \\/ \\u0000 \\\x00/\x00 \\\\u0000'
WIDE = ", ".join(f"c{i}: int" for i in range(120))  # more than a function of Postgres takes


@pytest.mark.parametrize(
    ("have", "want", "value", "expected"),
    [
        ("struct<a: int, b: string>", "struct<b: string, c: int, a: long>", {"a": 2**31 - 1, "b": HOSTILE},
         {"b": HOSTILE, "c": None, "a": 2**31 - 1}),
        ("struct<a: struct<x: int, y: double>>", "struct<a: struct<y: double>>",
         {"a": {"x": 1, "y": 0.1}}, {"a": {"y": 0.1}}),
        ("struct<a: struct<x: int>>", "struct<a: struct<x: int, y: int>>", {"a": None}, {"a": None}),
        ("list<struct<a: decimal(4,2)>>", "list<struct<b: int, a: decimal(30,2)>>",
         [{"a": "1.20"}, None, {"a": None}], [{"b": None, "a": "1.20"}, None, {"b": None, "a": None}]),
        ("list<struct<a: int>>", "list<struct<a: int, b: int>>", [], []),
        ("list<list<struct<a: int>>>", "list<list<struct<b: int, a: int>>>", [[{"a": 1}], None],
         [[{"b": None, "a": 1}], None]),
        ("map<string, struct<a: int, b: int>>", "map<string, struct<b: int>>", [("k", {"a": 1, "b": 2}), ("l", None)],
         [("k", {"b": 2}), ("l", None)]),
        (f"struct<{WIDE}>", f"struct<{WIDE}, more: int>", {"c7": 7}, {"c7": 7}),
    ],
)  # fmt: skip
def test_a_struct_of_another_schema_is_read_by_its_fields(dsn: str, have: str, want: str, value: Any, expected: Any):
    there, kind = arrow_type(parse_type(have)), arrow_type(parse_type(want))
    given = pa.array([_decimals(value), None], type=there)
    texts = encode_json(given).to_pylist()
    with psycopg.connect(dsn) as connection:
        query = sql.SQL("SELECT {} FROM unnest(%s::text[]) WITH ORDINALITY AS t (x, n) ORDER BY n").format(
            projected_json(sql.SQL("x"), there, kind)
        )
        found = [row[0] for row in connection.execute(query, [texts]).fetchall()]

    read = decode_json(pa.array(found, pa.string()), kind)

    assert read.equals(pa.array([_decimals(expected), None], type=kind))
    others = [Other(name="n", stored="o", type=have)]
    assert in_schema(pa.table({"o": given}), others, pa.schema([("n", kind)])).column("n").combine_chunks().equals(read)


def _decimals(value: Any) -> Any:
    from decimal import Decimal

    if isinstance(value, dict):
        return {
            k: Decimal(v) if k == "a" and isinstance(v, str) and "." in v else _decimals(v) for k, v in value.items()
        }
    return [_decimals(v) for v in value] if isinstance(value, list) else value
