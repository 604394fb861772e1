"""Columns that have the bytes of a record, or its headers, as a whole."""

from __future__ import annotations

import pytest

from harness_pipelines.formats.base import UNREADABLE_HEADERS, Headers, Reason, header_name
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec

HEADERS = "list<struct<key: string, value: binary>>"


def codec(**words) -> RecordCodec:
    return RecordCodec(TableSpec.model_validate({"table": "a.b", "format": "raw", **words}))


def test_raw_values_are_taken_as_they_are_and_none_is_null():
    decoded = codec(columns={"v": "binary"}).decode([b"\x00\xff", b"", None], [None] * 3)

    assert decoded.rows.to_pydict() == {"v": [b"\x00\xff", b"", None]}
    assert decoded.accepted.tolist() == [0, 1, 2] and decoded.refused == []


def test_raw_text_is_utf8_that_can_be_stored():
    columns = {"v": {"type": "string", "required": True}}
    decoded = codec(columns=columns).decode(["größe".encode(), b"\xff", b"a\x00b", None], [None] * 4)

    assert decoded.rows.to_pydict() == {"v": ["größe"]}
    assert [(r.index, r.reason, r.detail) for r in decoded.refused] == [
        (1, Reason.WRONG_TYPE, "`v`: not UTF-8 at byte 0; take it as binary"),
        (2, Reason.OUT_OF_RANGE, "`v`: the text holds U+0000, which the buffer cannot store"),
        (3, Reason.MISSING_FIELD, "`v`: required, but null"),
    ]


def test_headers_and_bytes_stand_beside_the_fields_in_the_order_of_the_spec():
    columns = {
        "h": {"type": HEADERS, "from": "headers"},
        "n": "int",
        "k": {"type": "binary", "from": "raw_key"},
        "v": {"type": "string", "from": "raw_value"},
    }
    values = [b'{"n": 1}', b'{"n": "x"}', b'{"n": 3}']
    headers: list[Headers | None] = [[("a", b"1"), ("a", None)], None, None]

    decoded = codec(format="json", columns=columns).decode(values, [b"k1", b"k2", None], headers)

    assert decoded.rows.to_pydict() == {
        "h": [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None],
        "n": [1, 3],
        "k": [b"k1", None],
        "v": ['{"n": 1}', '{"n": 3}'],
    }
    assert decoded.accepted.tolist() == [0, 2]
    assert [r.index for r in decoded.refused] == [1]


def test_required_headers_are_asked_for():
    columns = {"v": "binary", "h": {"type": HEADERS, "from": "headers", "required": True}}
    decoded = codec(columns=columns).decode([b"1", b"2"], [None, None], [[], [("a", b"")]])

    assert decoded.rows.to_pydict() == {"v": [b"2"], "h": [[{"key": "a", "value": b""}]]}
    assert [(r.index, r.reason) for r in decoded.refused] == [(0, Reason.MISSING_FIELD)]


@pytest.mark.parametrize("required", [True, False])
def test_the_bytes_of_a_key_can_be_the_key_and_a_tombstone_deletes_by_them(required):
    key = {"type": "string", "from": "raw_key", "required": required}
    raw = codec(columns={"k": key, "v": "binary"}, key=["k"])

    decoded = raw.decode([b"one", None, None, b"two"], [b"a", b"a", None, b"\xff"])

    assert decoded.rows.to_pydict() == {"_op": ["put", "delete"], "k": ["a", "a"], "v": [b"one", None]}
    assert [(r.index, r.reason) for r in decoded.refused] == [(2, Reason.MISSING_KEY), (3, Reason.WRONG_TYPE)]


def test_a_delete_has_its_key_and_nothing_else():
    columns = {
        "id": "int",
        "v": {"type": "binary", "from": "raw_value", "required": True},
        "k": {"type": "string", "from": "raw_key", "required": True},
    }
    by_rule = codec(format="json", columns=columns, key=["id"], delete={"field": "op", "values": ["d"]})

    decoded = by_rule.decode([b'{"id":1}', b'{"id":1,"op":"d"}', None], [b"x", b"\xff", b'{"id":2}'])

    assert decoded.rows.to_pydict() == {
        "_op": ["put", "delete", "delete"], "id": [1, 1, 2], "v": [b'{"id":1}', None, None], "k": ["x", None, None],
    }  # fmt: skip
    assert decoded.refused == []


def test_a_header_whose_name_is_no_text_costs_the_record_only_where_a_column_has_it():
    unreadable: list[Headers | None] = [UNREADABLE_HEADERS, [("a", b"1")], [("b\ufffd", b"")]]
    columns = {"v": "string", "h": {"type": HEADERS, "from": "headers"}}
    values = [b'{"v":"1"}', b'{"v":"2"}', b'{"v":"3"}']
    with_headers = codec(format="json", columns=columns).decode(values, [None] * 3, unreadable)
    assert with_headers.rows.column("v").to_pylist() == ["2"]
    assert [(one.index, one.reason, one.detail) for one in with_headers.refused] == [
        (at, Reason.MALFORMED, "`h`: the name of a header is not UTF-8") for at in (0, 2)
    ]
    without = codec(format="json", columns={"v": "string"}).decode(values, [None] * 3, unreadable)
    assert without.rows.column("v").to_pylist() == ["1", "2", "3"]


def test_the_name_of_a_header_ends_at_its_first_nul_by_every_client():
    assert [header_name(name) for name in ("a\0b", "a", "\0")] == ["a", "a", ""]
