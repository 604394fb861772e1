"""Columns from fields, filters, and what is refused: of an expression, and of a record."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.transform import Transformer, TransformUnusable, _database, _function_troubles
from harness_pipelines.spec.load import load_spec_text
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError

FIELDS = {
    "price": "decimal(9,2)",
    "quantity": "int",
    "customer": "struct<name: string, address: struct<city: string>>",
    "tags": "list<string>",
    "ratio": "double",
    "op": "string",
}


def spec(columns: dict[str, Any], **words: Any) -> TableSpec:
    transform = {"fields": FIELDS, **words.pop("transform")}
    return TableSpec.model_validate({"table": "shop.orders", "columns": columns, "transform": transform, **words})


def decode(made: TableSpec, *records: dict[str, Any]) -> Decoded:
    return RecordCodec(made).decode([json.dumps(one).encode() for one in records], [None] * len(records))


def made_of(kind: str, sql: str, record: dict[str, Any]) -> Any:
    decoded = decode(spec({"id": "long", "seen": "timestamptz", "x": kind}, transform={"derive": {"x": sql}}), record)
    assert not decoded.refused, decoded.refused
    return decoded.rows.column("x")[0].as_py()


AT = "2026-03-01T23:30:00Z"


@pytest.mark.parametrize(
    ("kind", "sql", "record", "value"),
    [
        ("decimal(12,2)", "price * quantity", {"price": 1.25, "quantity": 4}, Decimal("5.00")),
        ("string", "customer.address.city", {"customer": {"address": {"city": "Oslo"}}}, "Oslo"),
        ("string", "upper(customer.name) || '!'", {"customer": {"name": "ann"}}, "ANN!"),
        ("date", "CAST(seen AS DATE)", {"seen": AT}, date(2026, 3, 1)),
        ("timestamptz", "date_trunc('hour', seen)", {"seen": AT}, datetime(2026, 3, 1, 23, tzinfo=UTC)),
        ("long", "id + 1", {"id": 2**53}, 2**53 + 1),
        ("int", "id", {"id": 7}, 7),
        ("string", "CASE WHEN quantity > 10 THEN 'many' ELSE 'few' END", {"quantity": 11}, "many"),
        ("list<string>", "list_transform(tags, t -> lower(t))", {"tags": ["A", "B"]}, ["a", "b"]),
        ("list<long>", "range(id)", {"id": 2}, [0, 1]),
        ("list<string>", "[chr(CAST(op AS INTEGER))]", {"op": "0"}, ["\0"]),
        ("string", "repeat(op, 2)", {"op": "ab"}, "abab"),
        ("string", "array_to_string(tags, '+')", {"tags": ["A", "B"]}, "A+B"),
        ("boolean", "op IN ('a', 'b')", {"op": "b"}, True),
        ("string", "nullif(op, '')", {"op": ""}, None),
        ("double", "ratio * 2", {"ratio": 0.1}, 0.2),
        ("struct<a: long>", "{'a': id}", {"id": 3}, {"a": 3}),
        ("string", "coalesce(op, 'none')", {}, "none"),
        ("binary", "encode(op)", {"op": "é"}, "é".encode()),
    ],
)
def test_a_column_is_made_of_fields(kind: str, sql: str, record: dict[str, Any], value: Any):
    assert made_of(kind, sql, record) == value


def test_columns_keep_the_order_of_the_spec_and_fields_are_not_stored():
    made = spec({"total": "decimal(12,2)", "id": "long"}, transform={"derive": {"total": "price * quantity"}})
    decoded = decode(made, {"id": 1, "price": 2, "quantity": 3})
    assert decoded.rows.to_pylist() == [{"total": Decimal("6.00"), "id": 1}]


def test_only_records_for_which_the_filter_is_true_are_rows():
    made = spec({"id": "long"}, transform={"filter": "op <> 'test'"})
    decoded = decode(made, {"id": 1, "op": "a"}, {"id": 2, "op": "test"}, {"id": 3})
    assert decoded.rows.to_pylist() == [{"id": 1}]
    assert (decoded.accepted.tolist(), decoded.refused, decoded.filtered) == ([0], [], 2)


def test_a_record_for_which_an_expression_fails_is_refused_alone():
    made = spec({"id": "long", "n": "int"}, transform={"derive": {"n": "CAST(op AS INTEGER)"}, "filter": "1 / id > 0"})
    decoded = decode(
        made, {"id": 1, "op": "1"}, {"id": 2, "op": "x"}, {"id": -1, "op": "y"}, {"id": 4, "op": "3000000000"}
    )
    assert decoded.rows.to_pylist() == [{"id": 1, "n": 1}]
    assert [(one.index, one.reason) for one in decoded.refused] == [(1, Reason.TRANSFORM), (3, Reason.TRANSFORM)]
    assert decoded.refused[0].detail == "`n`: CAST(op AS INTEGER) cannot be evaluated for op = 'x'"
    assert decoded.filtered == 1, "what is filtered is not asked for its columns"


def test_each_record_is_told_its_own_reason_whatever_its_fields_are_called():
    names = ("given", "failing", "reason", "rowid", "at", "record")
    made = spec(
        {"id": "long", "n": "int"},
        transform={"fields": dict.fromkeys(names, "string"), "derive": {"n": "CAST(rowid || record.at AS INTEGER)"}},
    )
    records = [{"id": i, "rowid": "r", "at": f"{i}"} | dict.fromkeys(names[:3], "7") for i in range(40)]
    told = [one.detail for one in decode(made, *records).refused]
    said = "`n`: CAST(rowid || record.at AS INTEGER) cannot be evaluated for rowid = 'r'"
    assert told == [f"{said}, at = '{i}', record = NULL" for i in range(40)]


def test_a_record_whose_values_need_too_much_memory_is_refused_alone():
    made = spec(
        {"id": "long", "s": "string"}, transform={"fields": FIELDS | {"n": "long"}, "derive": {"s": "repeat(op, n)"}}
    )
    records = [{"id": i, "op": "a", "n": 600_000_000 if i == 2 else i} for i in range(5)]
    found = decode(made, *records)
    assert found.rows.column("s").to_pylist() == ["", "a", "aaa", "aaaa"]
    assert [(one.index, one.reason, one.detail) for one in found.refused] == [
        (2, Reason.TRANSFORM, "`s`: repeat(op, n) needs more than 512 MiB of memory")
    ]


def test_records_that_only_together_need_too_much_memory_are_rows():
    made = spec(
        {"id": "long", "s": "long"},
        transform={"fields": FIELDS | {"n": "long"}, "derive": {"s": "length(repeat(op, n))"}},
    )
    found = decode(made, *({"id": i, "op": "a", "n": 100_000_000} for i in range(8)))
    assert (found.refused, found.rows.column("s").to_pylist()) == ([], [100_000_000] * 8)


def test_what_an_expression_makes_has_a_size():
    made = spec(
        {"id": "long", "s": "string"}, transform={"fields": FIELDS | {"n": "long"}, "derive": {"s": "repeat(op, n)"}}
    )
    found = decode(made, {"id": 1, "op": "a", "n": 2**26}, {"id": 2, "op": "a", "n": 2**26 + 1})
    assert found.rows.column("id").to_pylist() == [1]
    assert [one.detail for one in found.refused] == ["`s`: it has more than 67,108,864 bytes"]


def test_a_value_too_large_for_its_column_is_refused():
    decoded = decode(spec({"n": "int"}, transform={"derive": {"n": "quantity::BIGINT * 4"}}), {"quantity": 2**30})
    assert [one.reason for one in decoded.refused] == [Reason.TRANSFORM]
    assert "`n`" in decoded.refused[0].detail


@pytest.mark.parametrize(
    ("kind", "sql", "bad", "good", "why"),
    [
        ("timestamp", "CAST(op AS TIMESTAMP)", "infinity", "9999-12-31 23:59:59.999999", "years 1 to 9999"),
        ("timestamp", "CAST(op AS TIMESTAMP)", "10000-01-01", "0001-01-01", "years 1 to 9999"),
        ("timestamptz", "CAST(op AS TIMESTAMPTZ)", "-infinity", "0001-01-01 00:00:00Z", "years 1 to 9999"),
        ("date", "CAST(op AS DATE)", "0001-12-31 (BC)", "0001-01-01", "years 1 to 9999"),
        ("date", "CAST(op AS DATE)", "infinity", "9999-12-31", "years 1 to 9999"),
        ("time", "CAST(op AS TIME)", "24:00:00", "23:59:59.999999", "not one of a day"),
        ("string", "'é' || chr(CAST(op AS INTEGER))", "0", "65", r"U\+0000"),
        ("map<string, date>", "MAP {'b': NULL, 'a': CAST(op AS DATE)}", "infinity", "2026-01-01", "years 1 to 9999"),
        ("map<date, int>", "MAP {CAST(op AS DATE): 1}", "infinity", "2026-01-01", "years 1 to 9999"),
        ("struct<a: list<time>>", "{'a': [CAST(op AS TIME)]}", "24:00:00", "00:00:00", "not one of a day"),
    ],
)  # fmt: skip
def test_a_value_that_no_tier_can_hold_is_refused_alone(kind: str, sql: str, bad: str, good: str, why: str):
    made = spec({"id": "long", "x": kind}, transform={"derive": {"x": f"CASE WHEN id > 0 THEN {sql} END"}})
    decoded = decode(made, {"id": 0}, {"id": 1, "op": good}, {"id": 2, "op": bad}, {"id": 3, "op": good}, {"id": 0})
    assert decoded.accepted.tolist() == [0, 1, 3, 4]
    [refused] = decoded.refused
    assert (refused.index, refused.reason) == (2, Reason.TRANSFORM)
    assert re.search(f"`x`: .*{why}", refused.detail)
    assert [row["x"] is None for row in decoded.rows.to_pylist()] == [True, False, False, True]


#: Without arguments they are refused by DuckDB itself.
_BOUND_BY_NOBODY = {
    "+", "array_to_json", "array_value", "array_zip", "json_quote", "list_zip", "map_concat", "row", "row_to_json",
    "struct_concat", "struct_insert", "struct_pack", "struct_update", "to_json", "union_value",
}  # fmt: skip


def test_a_function_without_arguments_gives_the_same_each_time():
    """Whatever DuckDB's catalogue says of it: some that tell the time are called consistent there."""
    database = _database("shop.orders")
    names = database.execute(
        "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE len(parameters) = 0 ORDER BY 1"
    ).fetchall()
    taken = {name for [name] in names if not list(_function_troubles(database, name, frozenset()))} - _BOUND_BY_NOBODY
    for name in taken:
        codec = RecordCodec(spec({"id": "long", "x": "string"}, transform={"derive": {"x": f"{name}()::VARCHAR"}}))
        assert decode_alone(codec) == decode_alone(codec), name
    assert taken <= {
        "add", "current_role", "current_user", "inet_client_addr", "inet_client_port", "inet_server_addr",
        "inet_server_port", "json_array", "json_object", "list_cat", "list_concat", "list_pack", "list_value", "map",
        "pg_my_temp_schema", "pi", "session_user", "array_cat", "array_concat", "unpivot_list",
    }  # fmt: skip


def decode_alone(codec: RecordCodec) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = codec.decode([b'{"id":1}'], [None]).rows.to_pylist()
    return found


def test_a_required_column_may_not_become_null():
    made = spec({"city": {"type": "string", "required": True}}, transform={"derive": {"city": "customer.address.city"}})
    decoded = decode(made, {"customer": None}, {"customer": {"address": {"city": "Rome"}}})
    assert decoded.rows.to_pylist() == [{"city": "Rome"}]
    assert "`city`: required" in decoded.refused[0].detail


def test_the_contract_judges_what_was_made():
    contract = {"columns": {"total": {"le": 10}}}
    made = spec({"total": "decimal(12,2)"}, transform={"derive": {"total": "price * quantity"}}, contract=contract)
    decoded = decode(made, {"price": 5, "quantity": 3}, {"price": 5, "quantity": 2})
    assert decoded.rows.to_pylist() == [{"total": Decimal("10.00")}]
    assert [one.reason for one in decoded.refused] == [Reason.CONTRACT]


def test_a_delete_goes_through_whatever_the_filter_says():
    made = spec(
        {"id": "long", "total": "decimal(12,2)"}, key=["id"],
        transform={"derive": {"total": "price * quantity"}, "filter": "quantity > 0"},
    )  # fmt: skip
    values = [b'{"id":1,"price":1,"quantity":2}', None, b'{"id":2,"price":1,"quantity":0}']
    decoded = RecordCodec(made).decode(values, [b'{"id":1}', b'{"id":3}', b'{"id":2}'])
    assert decoded.rows.select(["_op", "id", "total"]).to_pylist() == [
        {"_op": "put", "id": 1, "total": Decimal("2.00")},
        {"_op": "delete", "id": 3, "total": None},
    ]
    assert (decoded.accepted.tolist(), decoded.filtered) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("sum(id)", r"sum\(\) looks at many records"),
        ("row_number() OVER ()", "a window looks at other records"),
        ("(SELECT 1)", "a subquery looks at other rows"),
        ("id + random()", r"random\(\) gives another value"),
        ("now()", r"now\(\) gives another value"),
        ("current_date", "no field 'current_date'"),
        ("age(seen)", r"age\(\) gives another value"),
        ("current_setting('threads')", "gives another value"),
        ("current_localtime()::VARCHAR::INT", r"current_localtime\(\) gives another value"),
        ("hash(op)", r"hash\(\) gives another value"),
        ("current_database()", r"current_database\(\) gives another value"),
        ("unnest(tags)", r"unnest\(\) gives rows"),
        ("CASE WHEN op LIKE op THEN 1 END", "a pattern of LIKE that is not written here can take for ever"),
        ("CASE WHEN op LIKE '%' || op THEN 1 END", r"write contains\(\), starts_with\(\)"),
        ("CASE WHEN op ILIKE '%a%b' THEN 1 END", "the pattern '%a%b' with several % can take for ever on one text"),
        ("CASE WHEN op NOT LIKE '%_%a%' THEN 1 END", "the pattern '%_%a%' with several %"),
        ("CASE WHEN op GLOB '*a*b*' THEN 1 END", r"the pattern '\*a\*b\*' with several \*"),
        ("CASE WHEN op LIKE '%a%b' ESCAPE 'x' THEN 1 END", "the pattern '%a%b' with several %"),
        ("*", "`\\*` names no field"),
        ("$1", "there are no parameters"),
        ("nothing", "no field 'nothing'; fields: customer, id"),
        ("id)", "syntax error"),
        ("1) FROM (SELECT 1", "no expression"),
        ("id; DROP TABLE x", "syntax error"),
        ("ratio", "double, which does not fit long"),
        ("op", "string, which does not fit long"),
        ("price", "decimal"),
        ("id + 'x'::DATE", "No function matches"),
        ("not_there(id)", "not_there"),
    ],
)
def test_an_expression_that_is_not_of_one_record_is_refused_by_name(sql: str, why: str):
    made = spec({"id": "long", "seen": "timestamptz", "x": "long"}, transform={"derive": {"x": sql}})
    with pytest.raises(TransformUnusable, match=f"shop.orders: transform.derive.x: .*{why}"):
        RecordCodec(made)


def test_a_field_that_is_a_word_of_sql_is_quoted_and_the_message_says_so():
    columns = {"at": "timestamptz", "end": "int", "day": "date"}
    with pytest.raises(TransformUnusable, match='syntax error .* written in double quotes: "at"; nothing was changed'):
        RecordCodec(spec(columns, transform={"derive": {"day": "CAST(at AS DATE)"}}))
    made = spec(columns, transform={"derive": {"day": 'CAST("at" AS DATE)'}, "filter": '"end" > 0'})
    assert decode(made, {"at": AT, "end": 1}).rows.column("day").to_pylist() == [date(2026, 3, 1)]


@pytest.mark.parametrize(
    ("condition", "found"),
    [("LIKE '%a%a%a%b'", False), ("ILIKE '%A%'", True), ("LIKE 'a_%'", True), ("NOT LIKE '%_b%'", True),
     ("GLOB '*a*'", True), ("LIKE NULL", None)],
)  # fmt: skip
def test_a_pattern_that_is_quick_on_any_text_is_taken(condition: str, found: bool | None):
    made = spec({"s": "string", "b": "boolean"}, transform={"derive": {"b": f"s {condition}"}})
    assert decode(made, {"s": "a" * 100_000}).rows.column("b").to_pylist() == [found]


@pytest.mark.parametrize(
    ("words", "place", "why"),
    [
        ("{}", "transform", "write `derive`, `filter` or both"),
        ("{derive: {y: id}}", "transform.derive.y", "there is no column"),
        ("{derive: {id: n}}", "transform.derive.id", "is a key column"),
        ("{derive: {u: id}}", "transform.derive.u", "an expression cannot derive a uuid"),
        ("{derive: {us: id}}", "transform.derive.us", "an expression cannot derive a uuid"),
        ("{derive: {n: 3}}", "transform.derive.n", "write an SQL expression as text"),
        ("{fields: {ID: long}, filter: n > 1}", "transform.fields.ID", "'id' is a column already"),
        ("{fields: {h: raw}, filter: n > 1}", "transform.fields.h.type", "raw"),
        ("{filter: n > 1, drop: [n]}", "transform.drop", "unknown setting"),
    ],
)
def test_what_does_not_fit_the_spec_is_named_with_its_line(words: str, place: str, why: str):
    columns = "{id: long, n: long, u: uuid, us: 'list<struct<a: uuid>>'}"
    text = f"table: shop.orders\ncolumns: {columns}\nkey: [id]\ntransform: {words}\n"
    with pytest.raises(SpecError, match=f"4: {place}: .*{why}"):
        load_spec_text(text)


RECORDS = st.lists(
    st.fixed_dictionaries({
        "id": st.integers(-3, 3),
        "op": st.sampled_from(["1", "2", "x", "", "99999999999"]) | st.none(),
        "quantity": st.integers(-(2**31), 2**31 - 1) | st.none(),
    }),
    max_size=12,
)  # fmt: skip


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(records=RECORDS, cut=st.integers(0, 12))
def test_what_becomes_of_a_record_does_not_depend_on_those_beside_it(records: list[dict[str, Any]], cut: int):
    made = spec(
        {"id": "long", "n": "int", "d": "int"},
        transform={"derive": {"n": "CAST(op AS INTEGER)", "d": "quantity * 2"}, "filter": "id <> 0"},
    )
    codec = RecordCodec(made)

    def told(some: list[dict[str, Any]], first: int) -> list[tuple[int, Any]]:
        decoded = codec.decode([json.dumps(one).encode() for one in some], [None] * len(some))
        rows = zip(decoded.accepted.tolist(), decoded.rows.to_pylist(), strict=True)
        assert decoded.filtered + decoded.rows.num_rows + len(decoded.refused) == len(some)
        return sorted(
            [(first + at, row) for at, row in rows] + [(first + one.index, one.detail) for one in decoded.refused]
        )

    assert told(records, 0) == told(records[:cut], 0) + told(records[cut:], len(records[:cut]))


TEXTS = ["1", "x", None, "", "-7", "99999999999999999999", "1.5", " 2 ", "u", "2024-02-30", "0"]
ROWS = pa.table({
    "t": TEXTS * 50,
    "l": pa.array([[text, "3"] if text else None for text in TEXTS] * 50, pa.list_(pa.string())),
    "s": pa.array([{"a": text, "b c": 1} for text in TEXTS] * 50, pa.struct([("a", pa.string()), ("b c", pa.int64())])),
})  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "is_apart"),
    [
        ("CAST(t AS BIGINT)", True),
        ("t::INT + 2147483647", False),  # the sum fails too
        ("coalesce(TRY_CAST(t AS INT), 5) + CAST(s.a AS BIGINT)", True),
        ("CASE WHEN t = 'u' THEN 1 WHEN t IS NULL THEN 2 ELSE t::INT END", True),
        ("coalesce(CAST(t AS INT), 7)", True),
        ("1000 // CAST(t AS INT)", True),
        ("list_sum(list_transform(l, x -> CAST(x AS INT)))::BIGINT", False),  # casts in a lambda
        ("len(list_filter(l, x -> x = '3')) + CAST(l[1] AS INT)", True),
        ("s['b c'] + CAST(CAST(s.a AS DOUBLE) AS INT)", True),
        ("ln(s.a::DOUBLE)::BIGINT", False),
        ("year(CAST(t AS DATE))", True),
        ("length(t)", False),
    ],
)
def test_where_casts_fail_the_rows_are_those_that_fail_one_by_one(sql: str, is_apart: bool):
    columns: Any = {"n": "long", "t": "string", "l": "list<string>", "s": "struct<a: string, `b c`: long>"}
    made = Transformer(
        TableSpec.model_validate({"table": "a.b", "columns": columns, "transform": {"derive": {"n": sql}}})
    )
    [one] = made._derive

    column, failing = made._row_by_row(one, ROWS)
    apart = made._apart(one, ROWS)

    assert (apart is not None) == is_apart or not len(failing)
    if apart is not None:
        assert apart[0].to_pylist() == column.to_pylist()
        assert apart[1].tolist() == failing.tolist()
    [found], wrong = made._evaluated([one], ROWS)
    assert (found.to_pylist(), [*wrong]) == (column.to_pylist(), failing.tolist())


@pytest.mark.parametrize(
    "function", ["list_distance", "list_cosine_distance", "list_cosine_similarity", "list_inner_product",
                 "list_dot_product", "list_negative_inner_product", "list_negative_dot_product"]
)  # fmt: skip
def test_a_null_in_the_list_of_one_record_fails_no_other(function: str):
    made = spec(
        {"d": "double"}, transform={"fields": {"xs": "list<double>"}, "derive": {"d": f"{function}(xs, [1.0, 2.0])"}}
    )
    lists = [[3.0, 4.0], [1.0, None], [1.0], [1.0, 2.0], None, [5.0, 6.0]]
    together = decode(made, *({"xs": one} for one in lists))
    alone = [decode(made, {"xs": one}) for one in lists]
    assert [one.index for one in together.refused] == [i for i, one in enumerate(alone) if one.refused] == [1, 2]
    assert together.rows.to_pylist() == [row for one in alone for row in one.rows.to_pylist()]


@pytest.mark.parametrize("text", ["\ufeff", "\U0001f600", "é", "2"])
def test_a_text_that_the_message_about_it_cuts_within_a_letter_is_of_its_record(text: str):
    made = spec({"x": "string"}, transform={"fields": {"s": "string"}, "derive": {"x": "s::BIT::VARCHAR"}})
    found = decode(made, {"s": "101"}, {"s": text}, {"s": "1"})
    assert found.rows.column("x").to_pylist() == ["101", "1"]
    [refused] = found.refused
    assert (refused.index, refused.reason) == (1, Reason.TRANSFORM)


def test_an_expression_without_fields_that_fails_says_that_it_always_does():
    made = spec({"x": "string"}, transform={"derive": {"x": "'2'::BIT::VARCHAR"}})
    [refused] = decode(made, {"price": 1}).refused
    assert refused.detail == "`x`: '2'::BIT::VARCHAR cannot be evaluated for any record"
