"""Change events, as a real Debezium Postgres connector wrote them (`fixtures.debezium`) and broken ones."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.debezium.json import DebeziumEvents
from harness_pipelines.formats.json.objects import JsonCodec
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.fixtures.debezium import KINDS, Event, load, state
from harness_pipelines_tests.fixtures.debezium.tables import TABLES
from harness_pipelines_tests.unit.formats.batching import Record, assert_alone_as_together

BOTH = pytest.mark.parametrize("kind", KINDS)
PLACEHOLDER = "__debezium_unavailable_value"


def spec(table: str, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.t", "format": "debezium", **TABLES[table], **words})


def decode(table: TableSpec, records: Sequence[Record]) -> Decoded:
    return RecordCodec(table).decode([value for _, value in records], [key for key, _ in records])


def of(table: TableSpec, events: Sequence[Event]) -> Decoded:
    return decode(table, [(event.key, event.value) for event in events])


def folded(table: TableSpec, events: Sequence[Event], found: Decoded) -> list[Mapping[str, Any]]:
    """What the decoded events leave, newest offset last, ordered by key."""
    rows: dict[Any, Mapping[str, Any]] = {}
    places = [(events[i].partition, events[i].offset) for i in found.accepted.tolist()]
    for _, row in sorted(zip(places, found.rows.to_pylist(), strict=True), key=lambda one: one[0]):
        key = tuple(row[name] for name in table.key)
        rows.pop(key, None)
        if row.pop("_op") == "put":
            rows[key] = row
    return sorted(rows.values(), key=repr)


def in_the_end(table: TableSpec, name: str) -> list[Mapping[str, Any]]:
    """What the source's table held, read by the codec of plain JSON."""
    found = JsonCodec([replace(column, source=None) for column in table.columns]).decode(state(name))
    assert found.refused == []
    return sorted(found.rows.to_pylist(), key=repr)


# What the connector wrote


@BOTH
@pytest.mark.parametrize("name", ["customers", "prices", "kinds", "papers_full"])
def test_the_events_of_a_table_leave_what_its_source_holds(name: str, kind: str):
    table, events = spec(name), load(kind, name)
    found = of(table, events)
    assert found.refused == []
    assert len(found.accepted) == len(events) > 3
    assert folded(table, events, found) == in_the_end(table, name) != []


@BOTH
def test_a_changed_key_is_a_delete_of_the_old_one_and_a_put_of_the_new(kind: str):
    table, events = spec("customers"), load(kind, "customers")
    found = of(table, events)
    rows = dict(zip(found.accepted.tolist(), found.rows.to_pylist(), strict=True))
    old = [rows[i] for i, event in enumerate(events) if "__debezium.newkey" in event.headers]
    new = [rows[i] for i, event in enumerate(events) if "__debezium.oldkey" in event.headers]
    assert [(row["_op"], row["id"]) for row in old] == [("delete", 3), ("delete", 3)]  # and its tombstone
    assert [(row["_op"], row["id"], row["name"]) for row in new] == [("put", 30, "Cyd")]


@BOTH
def test_a_value_that_did_not_change_and_is_not_in_the_event_is_never_stored(kind: str):
    table, events = spec("papers"), load(kind, "papers")
    found = of(table, events)
    assert [one.reason for one in found.refused] == [Reason.UNAVAILABLE_VALUE] * 3
    every = ("body", "raw", "tags", "nums", "bigs", "days", "idents", "attrs", "doc")
    for one in found.refused:
        changed = {"body"} if b'"new"' in (events[one.index].value or b"") else set()
        assert one.detail.startswith(", ".join(f"`{name}`" for name in every if name not in changed) + ": not in the")
        assert "REPLICA IDENTITY FULL" in one.detail
    for column in every:  # each in the form of its type
        alone = {"columns": {"id": "int", column: TABLES["papers"]["columns"][column]}}
        assert len(of(spec("papers", **alone), events).refused) >= 2
    assert of(spec("papers", columns={"id": "int", "n": "int"}), events).refused == []  # nobody asks for it


@BOTH
def test_what_before_has_for_columns_that_are_not_of_the_replica_identity_is_no_value(kind: str):
    table, events = spec("papers_index"), load(kind, "papers_index")
    [update] = [e for e in events if b'"op":"u"' in (e.value or b"")]
    assert b"a default of a length" in (update.value or b"").split(b'"after"')[0 if kind == "plain" else -2]
    [refused] = of(table, events).refused
    assert (events[refused.index], refused.reason) == (update, Reason.UNAVAILABLE_VALUE)
    deletes = of(spec("papers_index", key=["id", "tenant"]), events).refused
    assert {one.reason for one in deletes} == {Reason.UNAVAILABLE_VALUE, Reason.MISSING_KEY}
    assert len(deletes) == 3  # the delete and its tombstone: their key is (1, acme), not (1, a default that nobody has)


@BOTH
def test_a_table_without_a_primary_key_deletes_by_before(kind: str):
    found = of(spec("keyless"), load(kind, "keyless"))
    assert [(row["_op"], row["id"], row["n"]) for row in found.rows.to_pylist()] == [
        ("put", 1, 1), ("put", 1, 2), ("delete", 1, None)
    ]  # fmt: skip
    [refused] = found.refused  # the tombstone
    assert (refused.reason, "no key and no `before`" in refused.detail) == (Reason.MISSING_KEY, True)


@BOTH
def test_what_is_no_change_of_a_row_is_refused_by_name(kind: str):
    table = spec("customers")
    [truncate] = of(table, [e for e in load(kind, "wiped") if b'"op":"t"' in (e.value or b"")]).refused
    assert (truncate.reason, "a truncate (op t) names no key" in truncate.detail) == (Reason.UNSUPPORTED_OP, True)
    [message] = of(table, load(kind, f"{kind}.message")).refused
    assert (message.reason, "a logical message (op m)" in message.detail) == (Reason.UNSUPPORTED_OP, True)
    strangers = [*load(kind, f"__debezium-heartbeat.{kind}"), *load(kind, f"{kind}.transaction")]
    found = of(table, strangers).refused
    assert [(one.reason, "the event has no `op`" in one.detail) for one in found] == [(Reason.MISSING_BLOCK, True)] * 3


@BOTH
def test_infinity_is_refused_where_a_column_cannot_hold_it_and_nan_is_a_double(kind: str):
    events = load(kind, "odd")
    by_id = {json.loads(e.key or b"").get("payload", json.loads(e.key or b"")).get("id"): e for e in events}
    found = of(spec("odd"), [by_id[1], by_id[2], by_id[3]])
    details = [(one.index, one.reason, one.detail.partition(", got")[0]) for one in found.refused]
    expected = [
        (0, Reason.OUT_OF_RANGE, "`after`: `moment`: expected integer <= 253402300799999999"),
        (1, Reason.OUT_OF_RANGE, "`after`: `day`: expected integer >= -719162"),
    ]
    if kind == "schema":  # by the schema, the scale of numeric(5,-2) is 2,046
        assert [str(row["rounded"]) for row in found.rows.to_pylist()] == ["12300"]
    else:
        expected.append(
            (2, Reason.OUT_OF_RANGE, "`after`: `rounded`: a decimal of scale 0 does not fit decimal(9, 0) exactly")
        )
    assert details == expected
    floats = of(spec("odd", columns={"id": "int", "real8": "double"}), [by_id[1], by_id[2], by_id[3]])
    assert repr(floats.rows.column("real8").to_pylist()) == "[nan, -inf, None]"


@pytest.mark.parametrize(
    ("column", "type_", "given"),
    [
        ("price", "long", "org.apache.kafka.connect.data.Decimal (bytes)"),
        ("loose", "struct<scale: int, value: binary>", "io.debezium.data.VariableScaleDecimal (struct)"),
        ("raw", "string", "bytes"),
        ("note", "binary", "string"),
        ("day", "timestamp", "io.debezium.time.Date (int32)"),
        ("moment", "date", "io.debezium.time.MicroTimestamp (int64)"),
        ("days", "list<timestamp>", "array"),
        ("real8", "uuid", "double"),
        ("tags", "string", "array"),
    ],
)
def test_by_its_schema_block_an_event_is_refused_whose_form_gives_no_value_of_the_column(
    column: str, type_: str, given: str
):
    table = spec("kinds", columns={"id": "long", column: type_})
    found = of(table, load("schema", "kinds"))
    assert len(found.refused) == len(load("schema", "kinds"))
    for one in found.refused:
        assert one.reason is Reason.WRONG_TYPE
        assert one.detail.startswith(f"`{column}`: the event's {given} cannot be read as {table.columns[1].type}; ")


@pytest.mark.parametrize("told", [{}, {"scale": "two"}, {"scale": "9" * 5000}])
def test_a_decimal_whose_schema_block_does_not_tell_its_scale_is_refused(told: dict[str, str]):
    price = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "field": "price", "parameters": told}
    after = {"type": "struct", "field": "after", "fields": [{"type": "int64", "field": "id"}, price]}
    table = spec("kinds", columns={"id": "long", "price": {"type": "decimal(12,2)", "from": "base64"}})
    value = _wrapped(event("c", after={"id": 1, "price": "AQ=="}), {"type": "struct", "fields": [after]})
    assert [one.reason for one in decode(table, [(None, value)]).refused] == [Reason.WRONG_TYPE]


@pytest.mark.parametrize(
    ("column", "type_", "value"),
    [
        ("day", "int", 20484),
        ("moment", "long", 1769903999123456),
        ("moment", "timestamptz", datetime(2026, 1, 31, 23, 59, 59, 123456, UTC)),
        ("flags", "binary", bytes([1, 2])),
        ("real4", "double", 1.5),
        ("small", "long", -7),
    ],
)
def test_by_its_schema_block_a_value_is_read_as_what_the_column_is(column: str, type_: str, value: object):
    found = of(spec("kinds", columns={"id": "long", column: type_}), load("schema", "kinds"))
    assert found.refused == []
    assert value in found.rows.column(column).to_pylist()


# Events that are not as the connector writes them


def event(op: str | None = "c", **blocks: Any) -> bytes:
    return json.dumps({**blocks, **({"op": op} if op is not None else {})}).encode()


NUMBERS = {"columns": {"id": {"type": "int", "required": True}, "n": "int", "s": "string"}, "key": ["id"]}
SCHEMA: dict[str, Any] = {
    "type": "struct",
    "fields": [
        {
            "type": "struct",
            "field": block,
            "fields": [
                {"type": "int32", "field": "id"},
                {"type": "int32", "field": "n"},
                {"type": "string", "field": "s"},
            ],
        }
        for block in ("before", "after")
    ],
}


def numbers(**words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.t", "format": "debezium", **NUMBERS, **words})


@pytest.mark.parametrize(
    ("key", "value", "reason", "detail"),
    [
        (b"", b"", Reason.NULL_VALUE, "the value is empty"),
        (b"", b"{", Reason.MALFORMED, "not JSON: "),
        (b"", b"[]", Reason.MALFORMED, "not a JSON object, but array"),
        (b"", b"\xff", Reason.MALFORMED, "not UTF-8 at byte 0"),
        (b"", b'{"op": "c", "after": ' + b"[" * 500 + b"]" * 500 + b"}", Reason.MALFORMED, "nested more than 400 deep"),
        (b"", event(None, after={"id": 1}), Reason.MISSING_BLOCK, "the event has no `op`"),
        (b"", event("c"), Reason.MISSING_BLOCK, "the event has no `after`, which op c puts"),
        (b"", event("u", after=None), Reason.MISSING_BLOCK, "the event has no `after`, which op u puts"),
        (b"", event("r", after=5), Reason.MALFORMED, "`after`: not a JSON object, but int"),
        (b"", event("c", after={"id": "x"}), Reason.WRONG_TYPE, "`after`: `id`: expected integer, got string"),
        (b"", event("c", after={"n": 1}), Reason.MISSING_FIELD, "`after`: `id`: required, but missing"),
        (b"", event("x", after={"id": 1}), Reason.UNSUPPORTED_OP, "op 'x' is unknown; known are c, r, u, d"),
        (b"", b'{"op": 5}', Reason.WRONG_TYPE, "`op`: expected string, got integer"),
        (b"", b'{"schema": null, "payload": null}', Reason.MISSING_BLOCK, "has a `schema` and no `payload`"),
        (b"", b'{"schema": {}}', Reason.MISSING_BLOCK, "has a `schema` and no `payload`"),
        (b"", b'{"schema": null, "payload": {"id": 1}}', Reason.MISSING_BLOCK, "the event has no `op`"),
        (b"", b'{"schema": 5, "payload": {"op": "c", "after": {"id": 1}}}', Reason.WRONG_TYPE, "`schema` is no schema"),
        (b"", b'{"schema": {"type": "struct"}, "payload": {"op": "c", "after": {"id": 1}}}', Reason.MISSING_BLOCK,
         "`schema` does not describe `after`"),
        (b"", event("d"), Reason.MISSING_KEY, "the record has no key and no `before`"),
        (b"", event("d", before={"id": None}), Reason.MISSING_KEY, "`before` has no `id`"),
        (b"", event("d", before={"id": "x"}), Reason.WRONG_TYPE, "`before`: `id`: expected integer"),
        (b'{"other": 1}', event("d", before={"id": 1}), Reason.MISSING_KEY, "the record's key has no `id`"),
        (b'{"id": "x"}', event("d", before={"id": 1}), Reason.WRONG_TYPE, "the record's key: `id`: expected integer"),
        (b'{"id": 1', event("d", before={"id": 1}), Reason.MALFORMED, "the record's key: not JSON"),
        (b'{"schema": {"type": "struct", "fields": [{"type": "string", "field": "id"}]}, "payload": {"id": "x"}}', None,
         Reason.WRONG_TYPE, "`id`: the event's string cannot be read as int"),
        (b"\xff", None, Reason.MALFORMED, "the record's key: not UTF-8"),
        (None, None, Reason.MISSING_KEY, "the record has no key and no `before`"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_an_event_is_said(key: bytes | None, value: bytes | None, reason: Reason, detail: str):
    sound = (b'{"id": 7}', event("c", after={"id": 7}))
    found = decode(numbers(), [sound, (key, value), sound])
    assert [(one.index, one.reason) for one in found.refused] == [(1, reason)]
    assert detail in found.refused[0].detail
    assert found.accepted.tolist() == [0, 2]


@pytest.mark.parametrize(
    "key", [b'{"id": 5}', b'{"id": 5, "__dbz__physicalTableIdentifier": "a"}', b"5", b'{"schema": null, "payload": 5}']
)
@pytest.mark.parametrize("value", [None, event("d", before={"id": 9}), event("d")])
def test_a_delete_is_of_the_key_that_the_record_has(key: bytes, value: bytes | None):
    found = decode(numbers(), [(key, value)])
    assert found.rows.to_pylist() == [{"_op": "delete", "id": 5, "n": None, "s": None}]


def test_a_field_that_no_column_names_is_refused_where_the_spec_says_so():
    record = (b"", event("c", after={"id": 1, "x": 2}, source={"y": 1}, transaction=None))
    assert decode(numbers(), [record]).refused == []
    [refused] = decode(numbers(unknown_fields="quarantine"), [record]).refused
    assert (refused.reason, refused.detail) == (Reason.UNKNOWN_FIELD, "`after`: `x`: no column or field has this name")


def _filled(part: dict[str, Any]) -> dict[str, Any]:
    id_, n, text = part["fields"]
    return {**part, "fields": [id_, n, {**text, "default": "filled"}]}


FILLED = {**SCHEMA, "fields": [_filled(part) for part in SCHEMA["fields"]]}


@pytest.mark.parametrize(
    ("schema", "before", "stored"),
    [
        (SCHEMA, {"id": 1, "s": "as it was"}, "as it was"),
        (SCHEMA, {"id": 1, "s": None}, None),
        (SCHEMA, {"id": 1, "s": ""}, None),
        (SCHEMA, {"id": 1, "s": PLACEHOLDER}, None),
        (SCHEMA, {"id": 1}, None),
        (SCHEMA, None, None),
        (FILLED, {"id": 1, "s": "filled"}, None),
        (FILLED, {"id": 1, "s": "as it was"}, "as it was"),
        (None, {"id": 1, "s": "as it was"}, None),  # nothing tells that it is no default
    ],
)
def test_the_value_is_taken_from_before_only_where_it_is_surely_one(schema: Any, before: Any, stored: str | None):
    body = {"op": "u", "before": before, "after": {"id": 1, "n": 2, "s": PLACEHOLDER}}
    found = decode(numbers(), [(b"", json.dumps({"schema": schema, "payload": body}).encode())])
    assert [row["s"] for row in found.rows.to_pylist()] == ([stored] if stored else [])
    assert [one.reason for one in found.refused] == ([] if stored else [Reason.UNAVAILABLE_VALUE])


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("string", PLACEHOLDER),
        ("string", PLACEHOLDER.encode().hex()),
        ("string", f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'),
        ("binary", base64.b64encode(PLACEHOLDER.encode()).decode()),
        ("list<string>", [PLACEHOLDER]),
        ("list<binary>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
        ("list<long>", list(PLACEHOLDER.encode())),
        ("list<double>", list(PLACEHOLDER.encode())),
        ("list<uuid>", ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]),
        ("map<string, string>", {PLACEHOLDER: PLACEHOLDER}),
        ("struct<wkb: binary, srid: int>", {"wkb": "AQEAACDmEAAAAAAA/IPXl8EAAAD8g9eXwQ==", "srid": 4326}),
    ],
)
def test_the_placeholder_is_known_in_each_of_its_forms(type_: str, value: Any):
    table = numbers(columns={"id": "int", "v": type_})
    spaced = json.dumps({"op": "u", "after": {"id": 1, "v": value}}).encode()
    tight = json.dumps({"op": "u", "after": {"id": 1, "v": value}}, separators=(",", ":")).encode()
    found = decode(table, [(b"", spaced), (b"", tight)])
    assert [one.reason for one in found.refused] == [Reason.UNAVAILABLE_VALUE] * 2


def test_another_placeholder_is_one_by_the_spec_and_one_inside_of_a_value_is_none():
    table = numbers(unavailable_value="**unchanged**")
    values = ["**unchanged**", "it says **unchanged**", PLACEHOLDER]
    found = decode(table, [(b"", event("c", after={"id": i, "s": value})) for i, value in enumerate(values)])
    assert [one.index for one in found.refused] == [0]
    assert found.rows.column("s").to_pylist() == values[1:]


# A record's verdict never depends on others


def _wrapped(value: bytes, schema: Any = SCHEMA) -> bytes:
    """As the connector writes it, without spaces; *value* need not be JSON."""
    return b'{"schema":%b,"payload":%b}' % (json.dumps(schema, separators=(",", ":")).encode(), value)


_PLAIN = [
    event("c", after={"id": 1, "n": 2}), event("u", after={"id": 2, "s": "x"}),
    event("u", after={"id": 2, "s": PLACEHOLDER}), event("d", before={"id": 1}),
    event("u", before={"id": 2, "s": "long ago"}, after={"id": 2, "s": PLACEHOLDER}),
    event("d"), event("t"), event("c", after={"id": "x"}), event("c", after={"id": 2**40}),
]  # fmt: skip
_BEHIND_A_SCHEMA = [
    *map(_wrapped, _PLAIN), _wrapped(b"null"), _wrapped(b"{"), _wrapped(b"[]"), _wrapped(_PLAIN[0] + b"}"),
    _wrapped(b"{}"),
    _wrapped(_PLAIN[0] + b',"schema":null'), _wrapped(_PLAIN[0] + b',"x":{}'), _wrapped(_PLAIN[0]) + b" ",
    _wrapped(_PLAIN[0])[:-1], _wrapped(_PLAIN[0])[:-1] + b"]", _wrapped(_PLAIN[0], FILLED), _wrapped(_PLAIN[0], None),
]  # fmt: skip
RECORDS = st.tuples(
    st.sampled_from([None, b"", b"x", b'{"id": 1}', b'{"id": "x"}', b'{"schema": null, "payload": {"id": 2}}']),
    st.sampled_from([None, b"", b"{", b"[]", *_PLAIN, *_BEHIND_A_SCHEMA]),
)


@given(records=st.lists(RECORDS, max_size=12))
def test_a_verdict_never_depends_on_the_records_beside_it(records: list[Record]):
    assert_alone_as_together(RecordCodec(numbers()), records)


_LISTED = event("c", after={"id": 1, "n": [*PLACEHOLDER.encode()]})  # a list where the column has none
_ODD = [
    _LISTED, event("c", after={"id": 1, "n": "1.25"}), event("c", after={"id": 1, "old": 2, "m": 3}),
    event("c", after={"id": 1, "n": None, "old": "x"}), event("c", after={"id": 1, "more": {}}),
    event("c", after={"id": 1, "s": "nul \x00"}), event("r", after={"id": 1}, payload=None),
    event("c", after={"id": 1}, schema=7, source={"name": PLACEHOLDER}), event("c", after=[1]), event(None, after={}),
    b'{"op":"d","after":{"id":1},"op":"c"}', b'{"op":"c","after":{"id":1},"after":{"id":"x"}}',
    b'{"op":"c","after":{"id":1}',
    b'{"op":"c","after":{"id":1},"payload":{"op":"c","after":{"id":2}}}', b'{"op":"c","after":{"id":1,"s":"\xff"}}',
]  # fmt: skip


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"unknown_fields": "quarantine"},
        {"columns": {"id": "int", "n": {"type": "decimal(9,2)", "from": "number"}, "s": "string"}},
        {"columns": {"id": "int", "n": {"type": "int", "aliases": ["old", "m"], "required": True}, "s": "string"}},
        {"columns": {"id": "int", "n": {"type": "list<int>"}, "s": "string"}},
    ],
)
def test_what_is_read_in_one_pass_is_what_is_read_event_by_event(
    table: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    values: list[bytes | None] = [None, *_PLAIN, *_ODD, *_BEHIND_A_SCHEMA, *map(_wrapped, _ODD)]
    for some in (values, values[::-1], [_wrapped(value) for value in _PLAIN for _ in "12"]):
        assert_at_once_as_one_by_one(numbers(**table), [(b'{"id": 1}', value) for value in some], monkeypatch)


@BOTH
def test_events_of_a_real_connector_are_read_in_one_pass_as_event_by_event(kind: str, monkeypatch: pytest.MonkeyPatch):
    for name in TABLES:
        records = [(one.key, one.value) for one in load(kind, name)]
        for some in (records, [one for one in records if b'"op":"' in (one[1] or b"")]):
            assert_at_once_as_one_by_one(spec(name), some, monkeypatch)


def assert_at_once_as_one_by_one(table: TableSpec, records: Sequence[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = decode(table, records)
    with monkeypatch.context() as patched:
        patched.setattr(DebeziumEvents, "_put", lambda self, values, places, opened, made: places.tolist())
        exact = decode(table, records)
    assert at_once.rows.equals(exact.rows)
    assert (at_once.accepted.tolist(), at_once.refused) == (exact.accepted.tolist(), exact.refused)


def test_an_event_that_puts_is_not_read_twice(monkeypatch: pytest.MonkeyPatch):
    codec, puts = RecordCodec(numbers()), [event("c", after={"id": i, "s": "x"}) for i in range(20)]
    found: list[bytes] = []
    monkeypatch.setattr(DebeziumEvents, "_puts", lambda self, schema, group, refused: found.extend(group.blocks))
    for first, wrong, last in ((puts, _wrapped(b"{"), puts), ([*map(_wrapped, puts)], b"{", [])):
        some = [*first, wrong, *last]
        decoded = codec.decode(some, [None] * len(some))
        assert (found, decoded.rows.num_rows, len(decoded.refused)) == ([], len(first) + len(last), 1)


@pytest.mark.long
@BOTH
@given(data=st.data())
def test_events_of_a_real_connector_are_read_the_same_however_they_are_batched(kind: str, data: st.DataObject):
    table, events = spec("papers"), [*load(kind, "papers"), *load(kind, "papers_full"), *load(kind, "customers")]
    order = data.draw(st.permutations(range(len(events))))
    cut = data.draw(st.integers(0, len(events)))
    verdicts: dict[int, Any] = {}
    for part in (order[:cut], order[cut:]):
        found = of(table, [events[i] for i in part])
        verdicts |= {part[i]: row for i, row in zip(found.accepted.tolist(), found.rows.to_pylist(), strict=True)}
        verdicts |= {part[one.index]: (one.reason, one.detail) for one in found.refused}
    assert [verdicts[i] for i in range(len(events))] == [_alone(kind, i) for i in range(len(events))]


@cache
def _alone(kind: str, index: int) -> Any:
    events = [*load(kind, "papers"), *load(kind, "papers_full"), *load(kind, "customers")]
    found = of(spec("papers"), [events[index]])
    return found.rows.to_pylist()[0] if not found.refused else (found.refused[0].reason, found.refused[0].detail)
