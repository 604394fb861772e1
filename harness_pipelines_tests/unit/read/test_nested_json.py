"""Nested values survive the way through a segment's text."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, given, settings

from harness_pipelines.protocol.schema.nested_json import decode_json, encode_json, uuid_text
from harness_pipelines.protocol.schema.schemas import DigestLayout, Slot
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.unit.read.values import nested_types, tables


def exact(value: Any) -> Any:
    """*value* in a form in which NaN equals itself and the two zeros differ."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, dict):
        return {key: exact(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [exact(member) for member in value]
    return value


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(tables(kinds=nested_types(), columns_max=2))
def test_nested_values_come_back_as_they_went(drawn):
    _, table = drawn
    for column in table.columns:
        for array in (column.combine_chunks(), column.combine_chunks().slice(1)):
            found = decode_json(encode_json(array), array.type)

            found.validate(full=True)
            assert exact(found.to_pylist()) == exact(array.to_pylist())


def test_the_text_is_one_line_of_plain_json():
    kind = arrow_type(parse_type("struct<a: string, b: map<date, double>, c: list<uuid>>"))
    value = {"a": 'x\n"y"\\', "b": [(0, float("inf"))], "c": [b"\1" * 16, None]}

    [text] = encode_json(pa.array([value], type=kind)).to_pylist()

    assert text == (
        '{"f0":"x\\u000a\\"y\\"\\\\","f1":[{"key":0,"value":"inf"}],"f2":["01010101-0101-0101-0101-010101010101",null]}'
    )


def test_digests_see_a_struct_as_if_no_field_had_come_and_none_had_gone():
    was = arrow_type(parse_type("list<struct<a: int, gone: int>>"))
    now = arrow_type(parse_type("list<struct<late: string, a: int>>"))
    struct = DigestLayout(slots=(Slot(1, True, None), Slot(None, True, None), Slot(0, False, None)))
    first = encode_json(pa.array([[{"a": 1}, None, {}], None, []], type=was))

    rows = pa.array([[{"a": 1}, None, {}], None, []], type=now)
    assert encode_json(rows, DigestLayout(element=struct)).equals(first)
    [text] = encode_json(pa.array([[{"late": "x"}]], type=now), DigestLayout(element=struct)).to_pylist()
    assert text == '[{"f0":null,"f1":null,"f2":"x"}]'


def test_a_column_of_nulls_needs_no_text():
    assert decode_json(pa.nulls(3, pa.string()), pa.list_(pa.int64())).null_count == 3
    assert len(decode_json(pa.array([], pa.string()), pa.list_(pa.int64()))) == 0


def test_a_uuid_is_written_in_its_canonical_form():
    array = pa.array([bytes(range(16)), None], type=pa.binary(16))

    assert uuid_text(array.slice(0, 2)).to_pylist() == ["00010203-0405-0607-0809-0a0b0c0d0e0f", None]
    assert uuid_text(array.slice(1)).to_pylist() == [None]
