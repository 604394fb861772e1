"""Puts and deletes of keyed tables."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.formats.batching import Record, assert_alone_as_together

COLUMNS = {"id": {"type": "long", "required": True}, "total": {"type": "int", "required": True}, "note": "string"}


def spec(**words: Any) -> TableSpec:
    return TableSpec.model_validate({
        "table": "shop.orders", "columns": COLUMNS, "key": ["id"], "views": "stream", **words
    })  # fmt: skip


def decode(records: list[tuple[bytes | None, bytes | None]], **words: Any) -> Decoded:
    return RecordCodec(spec(**words)).decode([value for _, value in records], [key for key, _ in records])


def test_a_record_without_a_value_deletes_what_its_key_names_and_the_rest_are_puts_in_order():
    found = decode([(b"1", b'{"id": 1, "total": 5, "note": "a"}'), (b"1", None), (b'{"id": 2}', None),
                    (b"3", b'{"id": 3, "total": 7}')])  # fmt: skip
    assert found.rows.to_pylist() == [
        {"_op": "put", "id": 1, "total": 5, "note": "a"},
        {"_op": "delete", "id": 1, "total": None, "note": None},
        {"_op": "delete", "id": 2, "total": None, "note": None},
        {"_op": "put", "id": 3, "total": 7, "note": None},
    ]
    assert found.accepted.tolist() == [0, 1, 2, 3]


def test_a_rule_deletes_by_a_field_of_the_value_which_need_not_be_a_column_nor_have_the_other_columns():
    rule = {"field": "op", "values": ["d", 9]}
    found = decode(
        [(None, b'{"id": 1, "total": 5, "op": "c"}'), (None, b'{"id": 1, "op": "d"}'), (None, b'{"id": 2, "op": 9}'),
         (None, b'{"id": 2, "total": 1, "op": true}'), (b"4", None)],
        delete=rule,
    )  # fmt: skip
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [
        ("put", 1), ("delete", 1), ("delete", 2), ("put", 2), ("delete", 4)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "reason", "detail"),
    [
        (None, Reason.MISSING_KEY, "neither a value nor a key"),
        (b"", Reason.MISSING_KEY, "neither a value nor a key"),
        (b'"x"', Reason.WRONG_TYPE, "the key of a record without a value: `id`: expected integer"),
        (b'5, "id": 6', Reason.MALFORMED, "the key of a record without a value"),
        (b"abc", Reason.MALFORMED, "the key of a record without a value"),
        (b"null", Reason.MISSING_FIELD, "`id`: required, but null"),
        (b'{"other": 1}', Reason.MISSING_KEY, "`id`: there is no such field"),
    ],
)
def test_a_tombstone_whose_key_does_not_tell_what_it_deletes_is_refused(key: bytes | None, reason: Reason, detail: str):
    found = decode([(b"1", b'{"id": 1, "total": 5}'), (key, None), (b"7", None)])
    assert [(one.index, one.reason) for one in found.refused] == [(1, reason)]
    assert detail in found.refused[0].detail
    assert found.accepted.tolist() == [0, 2]


@pytest.mark.parametrize("depth", [500, 1_000, 100_000])
@pytest.mark.parametrize("words", [{}, {"delete": {"field": "op", "values": ["d"]}}, {"format": "debezium"}])
def test_what_is_nested_deep_is_refused_and_its_neighbours_are_not(words: dict[str, Any], depth: int):
    nested = b"[" * depth + b"]" * depth
    put = b'{"op": "c", "after": {"id": 1, "total": 5}}' if "format" in words else b'{"id": 1, "total": 5}'
    found = decode([(b"1", put), (b"1", b'{"x": %b}' % nested), (nested, None), (b"2", None)], **words)
    assert [(one.index, one.reason) for one in found.refused] == [(1, Reason.MALFORMED), (2, Reason.MALFORMED)]
    assert all("nested more than 400 deep" in one.detail for one in found.refused)
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("put", 1), ("delete", 2)]


def test_a_text_key_may_look_nested():
    text = b"[" * 1_000
    found = decode([(text, None)], key_format="text", columns={"id": "string"})
    assert [row["id"] for row in found.rows.to_pylist()] == [text.decode()]


OPTIONAL: dict[str, Any] = {"id": "long", "at": {"type": "string", "aliases": ["when"]}, "op": "string"}
NO_FIELD = "there is no such field, so the record does not say which row to delete"


@pytest.mark.parametrize("format_", ["json", "json-schema"])
def test_a_key_that_lacks_a_column_of_the_tables_key_never_deletes_the_row_of_null(format_: str):
    schemas = {"schema": {"text": "true"}, "key_schema": {"text": "true"}} if format_ == "json-schema" else {}
    words: dict[str, Any] = {"columns": OPTIONAL, "key": ["id", "at"], "format": format_, **schemas}
    keys = [b'{"id":1,"at":"a"}', b'{"id":1}', b'{"order_id":1}', b"{}", b'{"id":1,"when":null}',
            b'{"schema":{"type":"int64"},"payload":1}']  # fmt: skip
    found = decode([(key, None) for key in keys], **words)
    assert [(row["id"], row["at"]) for row in found.rows.to_pylist()] == [(1, "a"), (1, None)]
    assert found.accepted.tolist() == [0, 4]
    assert [(one.index, one.reason) for one in found.refused] == [(i, Reason.MISSING_KEY) for i in (1, 2, 3, 5)]
    assert found.refused[0].detail == f"the key of a record without a value: `at`: {NO_FIELD}"
    assert_alone_as_together(RecordCodec(spec(**words)), [(key, None) for key in keys])


def test_the_only_column_of_a_key_is_a_value_or_a_field_of_an_object():
    found = decode([(key, None) for key in (b"1", b"null", b'{"id":null}', b'{"ID":1}')], columns=OPTIONAL)
    assert found.rows.column("id").to_pylist() == [1, None, None]
    assert [(one.index, one.reason) for one in found.refused] == [(3, Reason.MISSING_KEY)]


@pytest.mark.parametrize("key", [b'{"\xb5":1}', b'{"id":"\xff"}', b'{"id":1', b'{"a":"\\ud800"}'])
def test_a_key_that_is_no_json_is_refused_as_such(key: bytes):
    found = decode([(key, None)], columns=OPTIONAL)
    assert [one.reason for one in found.refused] == [Reason.MALFORMED]


def test_a_value_that_deletes_tells_its_key():
    values = [b'{"op":"d","id":1}', b'{"op":"d"}', b'{"op":"d","before":{"id":1}}', b'{"op":"d","id":null}']
    found = decode([(b"1", value) for value in values], columns=OPTIONAL, delete={"field": "op", "values": ["d"]})
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("delete", 1), ("delete", None)]
    assert [(one.index, one.reason, one.detail) for one in found.refused] == [
        (i, Reason.MISSING_KEY, f"`id`: {NO_FIELD}") for i in (1, 2)
    ]


def test_what_is_required_of_a_put_is_not_of_a_delete():
    assert decode([(b"1", b'{"id": 1}')]).refused[0].reason is Reason.MISSING_FIELD
    assert decode([(b"1", None)]).refused == []


@pytest.mark.parametrize(
    ("type_", "key", "value"),
    [("string", b'say "hi"', 'say "hi"'), ("long", b"42", 42), ("boolean", b"true", True),
     ("uuid", b"00000000-0000-0000-0000-000000000001", bytes(15) + b"\x01")],
)  # fmt: skip
def test_a_key_may_be_plain_text(type_: str, key: bytes, value: object):
    found = decode([(key, None)], columns={"id": type_}, key_format="text")
    assert [row["id"] for row in found.rows.to_pylist()] == [value]


@pytest.mark.parametrize(
    ("type_", "source", "key"),
    [
        *(
            (kind, "iso8601", b"2023-11-14T22:13:20" + zone)
            for kind, zone in (("timestamp", b""), ("timestamptz", b"Z"))
        ),
        *((kind, "epoch_s", b"1700000000") for kind in ("timestamp", "timestamptz")),
        *((kind, "epoch_ms", b"1700000000000") for kind in ("timestamp", "timestamptz")),
        *((kind, "epoch_us", b"1700000000000000") for kind in ("timestamp", "timestamptz")),
        *((kind, "epoch_ns", b"1700000000000000000") for kind in ("timestamp", "timestamptz")),
        ("date", "iso8601", b"2023-11-14"),
        ("date", "epoch_days", b"19675"),
        ("time", "iso8601", b"22:13:20"),
        ("time", "ms_of_day", b"80000000"),
        ("time", "us_of_day", b"80000000000"),
        ("time", "ns_of_day", b"80000000000000"),
        ("decimal(12,2)", "number", b"12.50"),
        ("decimal(12,2)", "base64", b"BOI="),
    ],
)
def test_a_text_key_is_written_as_its_column_says(type_: str, source: str, key: bytes):
    columns = {"id": {"type": type_, "from": source}}
    found = decode([(key, None)], columns=columns, key_format="text")
    assert found.refused == []
    moment = datetime(2023, 11, 14, 22, 13, 20)
    value: object = {
        "timestamp": moment,
        "timestamptz": moment.replace(tzinfo=UTC),
        "date": moment.date(),
        "time": moment.time(),
        "decimal(12,2)": Decimal("12.50"),
    }[type_]
    assert [(row["_op"], row["id"]) for row in found.rows.to_pylist()] == [("delete", value)]


def test_a_text_key_that_is_no_utf8_is_refused():
    assert decode([(b"\xff", None)], columns={"id": "string"}, key_format="text").refused[0].reason is Reason.MALFORMED


def test_a_key_of_two_columns_is_an_object():
    words: dict[str, Any] = {"columns": {"a": "int", "b": "string", "c": "int"}, "key": ["b", "a"]}
    found = decode([(b'{"a": 1, "b": "x"}', None), (b"1", None)], **words)
    assert found.rows.to_pylist() == [{"_op": "delete", "a": 1, "b": "x", "c": None}]
    assert [one.index for one in found.refused] == [1]


RECORDS = st.tuples(
    st.sampled_from([None, b"", b"1", b"2", b'{"id": 3}', b"x"]),
    st.sampled_from([None, b"", b"{", b'{"id": 1, "total": 2}', b'{"id": 2, "op": "d"}', b'{"id": 2}', b"[]"]),
)


@given(records=st.lists(RECORDS, max_size=12))
def test_a_verdict_never_depends_on_the_records_beside_it(records: list[Record]):
    assert_alone_as_together(RecordCodec(spec(delete={"field": "op", "values": ["d"]})), records)
