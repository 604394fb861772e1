"""Avro's blocks of arrays and maps: one that states a size has that size, and no count makes work without bytes."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together
from harness_pipelines_tests.wire import GivenSchemas, framed

COLUMNS = {"id": "long", "a": "list<string>", "m": "map<string, long>", "d": "list<list<int>>", "end": "string"}
FIELDS: list[Any] = [
    {"name": "id", "type": "long"},
    {"name": "a", "type": ["null", {"type": "array", "items": "string"}]},
    {"name": "m", "type": {"type": "map", "values": ["long", "null"]}},
    {"name": "d", "type": {"type": "array", "items": {"type": "array", "items": "int"}}},
    {"name": "end", "type": "string"},
]
MANY = 200  #: records that are walked in step


def codec() -> RecordCodec:
    spec = TableSpec.model_validate({"table": "a.b", "format": "avro", "columns": COLUMNS})
    return RecordCodec(spec, GivenSchemas.avro({"type": "record", "name": "R", "fields": FIELDS}))


def number(n: int) -> bytes:
    left, made = (n << 1) ^ (n >> 63), bytearray()
    while left > 0x7F:
        made.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*made, left])


def text(said: str) -> bytes:
    return number(len(said.encode())) + said.encode()


def block(*elements: bytes, off_by: int | None = None) -> bytes:
    """A block of *elements*; with *off_by* it states its size, wrong by so much."""
    inside = b"".join(elements)
    if off_by is None:
        return number(len(elements)) + inside
    return number(-len(elements)) + number(len(inside) + off_by) + inside


def entry(key: str, value: int) -> bytes:
    return text(key) + number(0) + number(value)


def value(a: bytes = b"", m: bytes = b"", d: bytes = b"") -> bytes:
    parts = [number(7), number(1), a, number(0), m, number(0), d, number(0), text("end")]
    return framed(b"".join(parts))


A_LIST = value(a=block(text("one"), text("two"), off_by=0) + block(text("three")))
ALL_KINDS = value(
    a=block(text("x"), off_by=0),
    m=block(entry("k", 1), off_by=0),
    d=block(block(number(1), off_by=0) + b"\0", off_by=0),
)


def decoded(*values: bytes) -> Decoded:
    return codec().decode(values, [None] * len(values))


def test_a_block_with_the_size_that_it_states_is_read():
    found = decoded(A_LIST, ALL_KINDS)
    assert not found.refused
    assert found.rows.to_pylist() == [
        {"id": 7, "a": ["one", "two", "three"], "m": [], "d": [], "end": "end"},
        {"id": 7, "a": ["x"], "m": [("k", 1)], "d": [[1]], "end": "end"},
    ]


@pytest.mark.parametrize("off_by", [1, -1, 100, -100, 2**40, -(2**62)])
@pytest.mark.parametrize(
    ("part", "elements"),
    [
        ("a", [text("one"), text("two")]),
        ("a", [text("é" * 300)]),
        ("m", [entry("k", 1), entry("l", 2)]),
        ("d", [block(number(1), number(2)) + b"\0"]),
    ],
)
@pytest.mark.parametrize("others", [0, MANY])
def test_a_block_of_another_size_than_it_states_is_malformed(part, elements, off_by, others):
    wrong = value(**{part: block(*elements, off_by=off_by)})
    found = decoded(*[A_LIST, ALL_KINDS] * (others // 2), wrong)

    [refused] = found.refused
    assert (refused.index, refused.reason) == (others, Reason.MALFORMED)
    assert "a block of an array or map states" in refused.detail
    assert found.rows.num_rows == others


def test_a_block_within_a_block_is_looked_at():
    found = decoded(*[ALL_KINDS] * MANY, value(d=block(block(number(1), off_by=3) + b"\0", off_by=0)))
    assert [one.index for one in found.refused] == [MANY]


@pytest.mark.parametrize("count", [2**31, 2**40, 2**62, -(2**40), -(2**62), 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("part", ["a", "m", "d"])
def test_a_count_of_more_elements_than_there_are_bytes_takes_no_time(count, part):
    size = number(4) if count < 0 else b""
    began = time.process_time()
    found = decoded(*[A_LIST] * MANY, value(**{part: number(count) + size + number(1) * 4}))
    assert time.process_time() - began < 5
    assert [(one.index, one.reason) for one in found.refused] == [(MANY, Reason.MALFORMED)]


def blocks(element: st.SearchStrategy[bytes], wrong: st.SearchStrategy[int | None]) -> st.SearchStrategy[bytes]:
    one = st.builds(lambda inside, off_by: block(*inside, off_by=off_by), st.lists(element, min_size=1), wrong)
    return st.lists(one, max_size=3).map(b"".join)


WRONG = st.sampled_from([None, None, 0, 0, 0, 0, 0, 0, 0, 1, -1])
NUMBERS = st.integers(-(2**31), 2**31 - 1).map(number)
VALUES = st.builds(
    value,
    a=blocks(st.text(max_size=80).map(text), WRONG),
    m=blocks(st.builds(entry, st.text(max_size=3), st.integers(-(2**63), 2**63 - 1)), WRONG),
    d=blocks(blocks(NUMBERS, WRONG).map(lambda inside: inside + b"\0"), WRONG),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=60))
def test_the_walk_in_step_says_what_the_walk_of_one_record_says(payloads):
    assert_alone_as_together(codec(), [(None, payload) for payload in payloads])
