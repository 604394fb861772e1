"""Several tables in one topic: the filter tells ours, and deletes and tombstones of others never touch it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed

COLUMNS = {"id": {"type": "long", "required": True}, "name": {"type": "string", "required": True}}
OURS = "source.table = 'products'"


def spec(**words: Any) -> TableSpec:
    made = {"table": "shop.products", "columns": COLUMNS, "key": ["id"], **words}
    return TableSpec.model_validate(made)


def event(table: str | None, op: str, row: dict[str, Any], **more: Any) -> dict[str, Any]:
    source = {"source": {"db": "shop", "table": table, "snapshot": "false", "ts_ms": 1}} if table else {}
    before, after = (row, None) if op == "d" else (None, row)
    return {"before": before, "after": after, "op": op, **source, **more}


def seen(found: Decoded) -> list[tuple[int, str, int]]:
    rows = found.rows.to_pylist()
    return [(i, row["_op"], row["id"]) for i, row in zip(found.accepted.tolist(), rows, strict=True)]


EVENTS: list[tuple[Any, Any]] = [
    ({"id": 1}, event("products", "c", {"id": 1, "name": "a"})),
    ({"id": 1}, event("orders", "c", {"id": 1, "name": "b"})),  # fits our columns
    ({"id": 1}, event("orders", "u", {"id": 1, "total": 5})),  # does not
    ({"id": 1}, event("orders", "d", {"id": 1})),
    ({"id": 1}, None),
    ({"id": 2}, event("products", "d", {"id": 2})),
    ({"id": 2}, None),
    ({"no": 3}, event("orders", "d", {"no": 3})),
    (None, event("orders", "t", {})),
    ({"id": 4}, event("products", "u", {"id": 4})),  # ours, and misfits
]
KEPT = [(0, "put", 1), (5, "delete", 2)]


def as_json(events: list[tuple[Any, Any]], *, block: bool) -> tuple[list[bytes | None], list[bytes | None]]:
    def told(value: Any) -> bytes | None:
        if value is None:
            return None
        return json.dumps({"schema": None, "payload": value} if block else value).encode()

    return [told(value) for _, value in events], [
        None if key is None else json.dumps(key).encode() for key, _ in events
    ]


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("fields", [{}, {"fields": {"source": "struct<db: string, table: string>"}}])
@pytest.mark.parametrize("sql", [OURS, f"{OURS} AND name <> 'x'", f"source.db = 'shop' AND ({OURS})"])
def test_a_filter_on_the_source_tells_the_tables_of_a_topic(sql: str, fields: dict[str, Any], block: bool):
    codec = RecordCodec(spec(format="debezium", transform={"filter": sql, **fields}))
    found = codec.decode(*as_json(EVENTS, block=block))
    assert seen(found) == KEPT
    assert [(one.index, one.reason) for one in found.refused] == [(9, Reason.MISSING_FIELD)]
    assert found.filtered == 7


def test_each_event_is_judged_alone():
    codec = RecordCodec(spec(format="debezium", transform={"filter": OURS}))
    values, keys = as_json(EVENTS, block=False)
    alone = [codec.decode([value], [key]) for value, key in zip(values, keys, strict=True)]
    assert [(i, op, id_) for i, one in enumerate(alone) for _, op, id_ in seen(one)] == KEPT
    assert sum(one.filtered for one in alone) == 7


def test_a_column_may_be_made_of_the_source():
    columns = {**COLUMNS, "origin": "string"}
    made = spec(
        format="debezium", columns=columns, transform={"derive": {"origin": "source.db || '.' || source.table"}}
    )
    found = RecordCodec(made).decode(*as_json(EVENTS[:2], block=False))
    assert [row["origin"] for row in found.rows.to_pylist()] == ["shop.products", "shop.orders"]


@pytest.mark.parametrize("source", [None, 7, "products", {"table": 5}])
def test_a_put_without_a_source_that_can_be_read_is_refused_not_left_out(source: Any):
    codec = RecordCodec(spec(format="debezium", transform={"filter": OURS}))
    put = event(None, "c", {"id": 1, "name": "a"}, source=source)
    found = codec.decode(*as_json([({"id": 1}, put)], block=False))
    assert (found.rows.num_rows, found.filtered) == (0, 0)
    assert [one.reason for one in found.refused] == [Reason.MISSING_BLOCK]
    assert "`source`" in found.refused[0].detail


@pytest.mark.parametrize("source", [None, 7, "products", {"table": 5}])
def test_a_delete_without_a_source_that_can_be_read_is_refused_where_the_filter_goes_by_it(source: Any):
    """It may be of another table, whose key equals one of ours."""
    codec = RecordCodec(spec(format="debezium", transform={"filter": OURS}))
    found = codec.decode(*as_json([({"id": 1}, event(None, "d", {"id": 1}, source=source))], block=False))
    assert (found.rows.num_rows, found.filtered) == (0, 0)
    assert [one.reason for one in found.refused] == [Reason.MISSING_BLOCK]
    assert "`source`" in found.refused[0].detail


NO_TABLE: list[dict[str, Any]] = [{}, {"db": "shop"}, {"db": "shop", "table": None}]


@pytest.mark.parametrize("source", NO_TABLE)
@pytest.mark.parametrize(
    "sql",
    [
        OURS,
        f"{OURS} AND name <> 'x'",
        f"name <> 'x' AND (source.db = 'shop' AND {OURS})",
        f"{OURS} OR source.table = 'goods'",
        "lower(source.table) IN ('products') AND upper(name) = 'A'",
    ],
)
def test_an_event_whose_source_names_no_table_is_not_of_this_one(sql: str, source: dict[str, Any]):
    codec = RecordCodec(spec(format="debezium", transform={"filter": sql}))
    events = [
        ({"id": 1}, event(None, "d", {"id": 1}, source=source)),
        ({"id": 1}, event(None, "u", {"id": 1}, source=source)),  # it need not fit
        ({"id": 2}, event("products", "d", {"id": 2})),
    ]
    found = codec.decode(*as_json(events, block=False))
    assert (seen(found), found.refused, found.filtered) == ([(2, "delete", 2)], [], 2)


def test_a_filter_says_itself_that_events_without_a_table_are_ours():
    sql = "coalesce(source.table, 'products') = 'products' AND name <> 'x'"
    codec = RecordCodec(spec(format="debezium", transform={"filter": sql}))
    events = [({"id": i}, event(None, "d", {"id": i}, source=source)) for i, source in enumerate(NO_TABLE)]
    assert [id_ for _, _, id_ in seen(codec.decode(*as_json(events, block=False)))] == [0, 1, 2]


def test_a_condition_that_fails_for_a_delete_leaves_it_to_the_whole_filter():
    sql = f"{OURS} AND CAST(source.db AS int) = 1"
    codec = RecordCodec(spec(format="debezium", transform={"filter": sql}))
    deletes = [({"id": 1}, event("products", "d", {"id": 1})), ({"id": 1}, event("orders", "d", {"id": 1}))]
    assert seen(codec.decode(*as_json(deletes, block=False))) == [(0, "delete", 1)]


def test_a_delete_without_a_source_counts_where_only_a_column_is_made_of_it():
    columns = {**COLUMNS, "origin": "string"}
    made = spec(format="debezium", columns=columns, transform={"derive": {"origin": "source.table"}})
    deletes = [({"id": 1}, event(None, "d", {"id": 1})), ({"id": 2}, None)]
    assert seen(RecordCodec(made).decode(*as_json(deletes, block=False))) == [(0, "delete", 1), (1, "delete", 2)]


def test_a_row_may_have_a_field_called_source():
    columns = {**COLUMNS, "source": "string"}
    made = spec(format="debezium", columns=columns, transform={"filter": "source = 'web'"})
    events = [({"id": 1}, event("orders", "c", {"id": 1, "name": "a", "source": "web"})), ({"id": 1}, None)]
    assert seen(RecordCodec(made).decode(*as_json(events, block=False))) == [(0, "put", 1), (1, "delete", 1)]


def test_a_filter_on_the_source_of_events_in_avro():
    row = {"type": "record", "name": "Value", "fields": [
        {"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None},
    ]}  # fmt: skip
    source = {"type": "record", "name": "Source", "fields": [{"name": "table", "type": ["null", "string"]}]}
    envelope = {"type": "record", "name": "Envelope", "fields": [
        {"name": "before", "type": ["null", row]}, {"name": "after", "type": ["null", "Value"]},
        {"name": "source", "type": source}, {"name": "op", "type": "string"},
    ]}  # fmt: skip
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}

    def told(table: str, op: str, number: int) -> tuple[bytes, bytes]:
        made = {"id": number, "name": "a"}
        parts = {"before": made if op == "d" else None, "after": None if op == "d" else made}
        value = avro_bytes(envelope, {**parts, "source": {"table": table}, "op": op})
        return framed(avro_bytes(key, {"id": number}), 2), framed(value, 1)

    records = [told("products", "c", 1), told("orders", "c", 1), told("orders", "d", 1), told("products", "d", 2)]
    columns = {"id": {"type": "long", "required": True}, "name": "string"}
    fields = {"source": "struct<table: string>"}
    made = spec(format="debezium-avro", columns=columns, transform={"filter": OURS, "fields": fields})
    codec = RecordCodec(made, GivenSchemas.avro(envelope, key))
    found = codec.decode([*(v for _, v in records), None], [*(k for k, _ in records), records[0][0]])
    assert seen(found) == [(0, "put", 1), (3, "delete", 2)]
    assert (found.refused, found.filtered) == ([], 3)


# Plain values: by fields of the value, or of the record's key

PLAIN = {
    "columns": {"id": {"type": "long", "required": True}, "name": {"type": "string", "required": True}},
    "transform": {"fields": {"kind": "string", "op": "string"}, "filter": "kind = 'product'"},
    "delete": {"field": "op", "values": ["d"]},
}


def plain(*records: tuple[Any, Any], **words: Any) -> Decoded:
    values = [None if value is None else json.dumps(value).encode() for _, value in records]
    return RecordCodec(spec(**{**PLAIN, **words})).decode(values, [json.dumps(key).encode() for key, _ in records])


def test_a_delete_of_another_table_does_not_touch_ours():
    found = plain(
        ({"id": 1}, {"kind": "product", "id": 1, "name": "a"}),
        ({"id": 1}, {"kind": "order", "id": 1, "op": "d"}),
        ({"id": 2}, {"kind": "product", "id": 2, "op": "d"}),
        ({"id": 3}, {"id": 3, "op": "d"}),  # nothing tells: it has its key alone
        ({"id": 1}, {"kind": "order", "id": 1, "total": 5}),  # need not fit
        ({"id": 1}, {"kind": "product", "id": 1}),
    )
    assert seen(found) == [(0, "put", 1), (2, "delete", 2), (3, "delete", 3)]
    assert ([one.index for one in found.refused], found.filtered) == ([5], 2)


def test_a_delete_with_an_object_that_names_no_table_does_not_touch_ours():
    transform = {"fields": {"origin": "struct<table: string>", "op": "string"}, "filter": "origin.table = 'products'"}
    deletes = [{"id": i, "op": "d", "origin": origin} for i, origin in enumerate([{}, {"table": "products"}, None])]
    found = plain(*(({"id": 1}, value) for value in deletes), transform=transform)
    assert (seen(found), found.filtered) == ([(1, "delete", 1), (2, "delete", 2)], 1)


def test_a_tombstone_is_told_by_the_fields_of_its_key():
    found = plain(
        ({"id": 1, "kind": "order"}, None), ({"id": 2, "kind": "product"}, None), ({"id": 3}, None), (4, None)
    )  # fmt: skip
    assert seen(found) == [(1, "delete", 2), (2, "delete", 3), (3, "delete", 4)]
    assert (found.refused, found.filtered) == ([], 1)


def test_a_filter_that_gives_false_for_what_is_missing_keeps_no_delete_from_its_row():
    found = plain(({"id": 1}, None), transform={"fields": {"n": "int", "op": "string"}, "filter": "coalesce(n, 0) > 0"})
    assert seen(found) == [(0, "delete", 1)]


def test_without_a_key_what_the_filter_does_not_take_need_not_fit():
    found = plain(({}, {"kind": "order", "id": "x"}), ({}, {"kind": "product", "id": "x"}), key=[], delete="tombstone")
    assert ([one.index for one in found.refused], found.filtered) == ([1], 1)
