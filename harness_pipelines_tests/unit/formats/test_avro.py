"""Avro: values of every type, by the schema that wrote them; and what is refused."""

from __future__ import annotations

import datetime as dt
import json
import math
from decimal import Context, Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.formats.base import Decoded, Reason
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import SchemaUnusable, WrittenSchema
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import DecimalType, FieldType, ListType, MapType, Primitive, StructType, Type
from harness_pipelines_tests.unit.formats import values
from harness_pipelines_tests.unit.formats.batching import assert_alone_as_together
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def spec(columns: Any, **words: Any) -> TableSpec:
    return TableSpec.model_validate({"table": "a.b", "format": "avro", "columns": columns, **words})


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


def decoded(columns: Any, schema: Any, *rows: Any, physical: Any = None, **words: Any) -> Decoded:
    """What *rows*, written by Apache's library, become; *physical*: the schema without logical types."""
    codec = RecordCodec(spec(columns, **words), GivenSchemas.avro(schema))
    written = [framed(avro_bytes(physical or schema, row)) for row in rows]
    return codec.decode(written, [None] * len(written))


def column(type_: str, avro: Any, *cells: Any, physical: Any = None, **words: Any) -> list[Any]:
    """The cells of a column x; a refused one is its reason and detail."""
    long = {"x": {"type": type_, **words}}
    found = decoded(
        long, record(field("x", avro)), *({"x": c} for c in cells), physical=record(field("x", physical or avro))
    )
    said = {r.index: (r.reason, r.detail) for r in found.refused}
    rows = dict(zip(found.accepted.tolist(), found.rows.column("x").to_pylist(), strict=True))
    return [said.get(i) or rows[i] for i in range(len(cells))]


# Every type


def logical(base: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": name, **more}


@pytest.mark.parametrize(
    ("type_", "avro", "physical", "cell", "meant"),
    [
        ("timestamptz", logical("long", "timestamp-millis"), "long", 1_500, EPOCH + dt.timedelta(seconds=1.5)),
        ("timestamptz", logical("long", "timestamp-nanos"), "long", -1, EPOCH - dt.timedelta(microseconds=1)),
        ("timestamp", logical("long", "timestamp-micros"), "long", 7, dt.datetime(1970, 1, 1, 0, 0, 0, 7)),
        ("timestamp", logical("long", "local-timestamp-millis"), "long", 0, dt.datetime(1970, 1, 1)),
        ("timestamp", logical("long", "local-timestamp-nanos"), "long", 5_999, dt.datetime(1970, 1, 1, 0, 0, 0, 5)),
        ("time", logical("int", "time-millis"), "int", 61_000, dt.time(0, 1, 1)),
        ("date", logical("int", "date"), "int", -1, dt.date(1969, 12, 31)),
        ("uuid", logical("string", "uuid"), "string", "00000000-0000-0000-0000-00000000000A", b"\x00" * 15 + b"\x0a"),
        ("string", logical("string", "uuid"), "string", "not looked at", "not looked at"),
        ("decimal(9,2)", logical("bytes", "decimal", precision=9, scale=2), "bytes", b"\xff\x38", Decimal("-2.00")),
        ("decimal(9,3)", logical("bytes", "decimal", precision=9, scale=2), "bytes", b"\x01", Decimal("0.010")),
        ("decimal(38,2)", logical("bytes", "decimal", precision=38, scale=2), "bytes", b"\x01", Decimal("0.01")),
        ("decimal(9,2)", "long", "long", 12, Decimal("12.00")),
        ("decimal(9,2)", "string", "string", "12.3", Decimal("12.30")),
        ("long", "int", "int", 3, 3), ("int", "long", "long", 3, 3), ("double", "int", "int", 3, 3.0),
        ("double", "float", "float", 0.5, 0.5), ("float", "double", "double", 0.5, 0.5),
        ("timestamptz", "string", "string", "2026-01-31T00:00:00Z", dt.datetime(2026, 1, 31, tzinfo=dt.UTC)),
        ("double", "double", "double", math.inf, math.inf),
        ("float", "double", "double", math.inf, math.inf),
        ("date", {"type": "int", "connect.name": "io.debezium.time.Date"}, "int", 1, dt.date(1970, 1, 2)),
        ("time", {"type": "long", "connect.name": "io.debezium.time.NanoTime"}, "long", 1_000, dt.time(0, 0, 0, 1)),
        ("long", logical("long", "of-tomorrow"), "long", 3, 3),
    ],
)  # fmt: skip
def test_a_value_means_what_its_schema_says(type_, avro, physical, cell, meant):
    assert column(type_, avro, cell, physical=physical) == [meant]
    assert column(type_, ["null", avro], cell, None, physical=["null", physical]) == [meant, None]


def test_fixed_bytes_are_bytes_decimals_or_a_uuid():
    fixed = {"type": "fixed", "name": "F", "size": 16}
    assert column("binary", fixed, b"\x01" * 16) == [b"\x01" * 16]
    assert column("uuid", {**fixed, "logicalType": "uuid"}, b"\x01" * 16, physical=fixed) == [b"\x01" * 16]
    money = {"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2}
    assert column("decimal(9,2)", money, b"\x00\x00\x00\x7b", physical={**fixed, "size": 4}) == [Decimal("1.23")]


@pytest.mark.parametrize(("type_", "form"), [("date", "epoch_days"), ("time", "us_of_day"), ("timestamp", "epoch_ms")])
def test_a_number_without_a_meaning_is_refused_with_a_form_that_its_column_has(type_, form):
    [(_, detail)] = column(type_, "long", 1_000)
    assert detail.startswith(
        f"`x`: the schema's long cannot be read as {type_}; say what the number counts, such as `from: {form}`"
    )
    assert column(type_, "long", 1, **{"from": form})[0] is not None


@pytest.mark.parametrize(
    ("avro", "payload", "said"),
    [
        ("int", b"", "the bytes end too early, or an index is wrong"),
        ("double", b"abc", "the bytes end too early, or an index is wrong"),
        ("string", b"\x02\xff", "a text is not UTF-8"),
        ({"type": "fixed", "name": "F", "size": 10**30}, b"ab", "a length is of more bytes than there are"),
    ],
)
def test_bytes_that_cannot_be_read_are_told_in_words_of_avro(avro, payload, said):
    codec = RecordCodec(spec({"x": {"int": "int", "double": "double", "string": "string"}.get(str(avro), "binary")}),
                        GivenSchemas.avro(record(field("x", avro))))  # fmt: skip
    [refused] = codec.decode([framed(payload)], [None]).refused
    assert (refused.reason, refused.detail) == (Reason.MALFORMED, f"not Avro of R: {said}")


def test_a_number_without_a_meaning_has_the_one_that_the_spec_gives_it():
    assert column("timestamptz", "long", 1_000, **{"from": "epoch_ms"}) == [EPOCH + dt.timedelta(seconds=1)]
    assert column("timestamptz", "long", 1_000, **{"from": "epoch_s"}) == [EPOCH + dt.timedelta(seconds=1_000)]
    [(reason, detail)] = column("timestamptz", "long", 1_000)
    assert (reason, detail) == (
        Reason.WRONG_TYPE,
        "`x`: the schema's long cannot be read as timestamptz; say what the number counts, such as `from: epoch_ms` "
        "(schema 1)",
    )


@pytest.mark.parametrize(
    ("type_", "avro", "cell", "detail"),
    [
        ("int", "long", 2**31, "expected integer <= 2147483647, got a larger one"),
        ("int", "long", -(2**31) - 1, "expected integer >= -2147483648, got a smaller one"),
        ("float", "double", 1e300, "1e+300 does not fit float"),
        ("double", "long", 2**53 + 1, "9007199254740993 is no double exactly"),
        ("decimal(3,2)", "int", 10, "'10' does not fit decimal(3, 2) exactly"),
        ("string", "string", "a\x00b", "'a\\x00b' holds U+0000, which the buffer cannot store"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_alone(type_, avro, cell, detail):
    good = {"int": 1, "float": 0.5, "double": 3, "decimal(3,2)": 1, "string": "a"}[type_]
    first, second, last = column(type_, avro, good, cell, good)
    assert second == (Reason.OUT_OF_RANGE, f"`x`: {detail}")
    assert first == last == good


@pytest.mark.parametrize(
    ("type_", "avro", "cell", "detail"),
    [
        ("date", logical("int", "date"), 2**30, "1073741824 days since 1970 are not in the years 1 to 9999"),
        ("time", logical("int", "time-millis"), 86_400_000, "86400000 ms are not of a day"),
        (
            "timestamptz",
            logical("long", "timestamp-millis"),
            2**62,
            f"{2**62} ms are not since 1970, in the years 1 to",
        ),
    ],
)
def test_times_are_of_the_years_that_every_reader_can_show(type_, avro, cell, detail):
    [(reason, said), fine] = column(type_, avro, cell, 0, physical=avro["type"])
    assert reason is Reason.OUT_OF_RANGE and said.startswith(f"`x`: {detail}")
    assert fine is not None


def test_a_decimal_fits_exactly_or_is_refused():
    money = logical("bytes", "decimal", precision=12, scale=3)
    cells = [b"\x0a", b"\x0b", b"", b"\x7f" * 20]
    found = column("decimal(4,2)", money, *cells, physical="bytes")
    assert found[0] == Decimal("0.01")
    assert [reason for reason, _ in found[1:]] == [Reason.OUT_OF_RANGE, Reason.WRONG_TYPE, Reason.OUT_OF_RANGE]


# Whole records


def test_columns_take_the_fields_of_their_names_whatever_schema_wrote_them():
    first = record(field("id", "long"), field("old", "string"))
    second = record(field("extra", {"type": "array", "items": "long"}), field("id", "int"), field("name", "string"))
    codec = RecordCodec(spec({"id": "long", "name": "string"}), schemas := GivenSchemas.avro(first, second))
    records = [
        framed(avro_bytes(second, {"extra": [1, 2], "id": 2, "name": "b"}), 2),
        framed(avro_bytes(first, {"id": 1, "old": "x"}), 1),
        framed(avro_bytes(second, {"extra": [], "id": 3, "name": "c"}), 2),
    ]

    found = codec.decode(records, [None] * 3)

    assert found.rows.to_pylist() == [{"id": 2, "name": "b"}, {"id": 1, "name": None}, {"id": 3, "name": "c"}]
    codec.decode(records, [None] * 3)
    assert sorted(schemas.asked) == [1, 2]


def test_a_field_that_was_renamed_is_found_by_its_alias():
    schema = record(field("order_id", "long", aliases=["id", "nr"]), field("nr", "int"))
    found = decoded({"id": "long", "nr": "long"}, schema, {"order_id": 5, "nr": 6})
    assert found.rows.to_pylist() == [{"id": 5, "nr": 6}]


def test_a_field_that_the_schema_lacks_is_null_or_refused():
    schema = record(field("id", "long"))
    assert decoded({"id": "long", "x": "date"}, schema, {"id": 1}).rows.to_pylist() == [{"id": 1, "x": None}]
    [refused] = decoded({"id": "long", "x": {"type": "date", "required": True}}, schema, {"id": 1}).refused
    assert (refused.reason, refused.detail) == (Reason.MISSING_FIELD, "`x`: required, but missing")


def test_nested_values_and_what_is_wrong_deep_inside():
    inner = record(field("n", ["null", "long"]), field("b", "boolean"), name="Inner")
    schema = record(field("x", {"type": "map", "values": {"type": "array", "items": ["null", inner]}}))
    columns = {"x": "map<string, list<struct<n: int, lacks: date>>>"}

    found = decoded(columns, schema, {"x": {"k": [{"n": 1, "b": True}, None]}}, {"x": {"k": [{"n": 2**40, "b": True}]}})

    assert found.rows.to_pylist() == [{"x": [("k", [{"n": 1, "lacks": None}, None])]}]
    assert [(r.index, r.detail) for r in found.refused] == [
        (1, "`x[...][...].n`: expected integer <= 2147483647, got a larger one")
    ]


@pytest.mark.parametrize(
    ("schema", "detail"),
    [
        (record(field("x", ["string", "long"])), "`x`: a union of string, long is no column; one type or null is"),
        (record(field("x", "string")), "`x`: the schema's string cannot be read as long"),
        (record(field("x", "null")), "`x`: null is no column"),
        (record(field("x", "long"), field("next", ["null", "R"])), "R is within itself; recursive types are not read"),
        (
            record(field("x", {"type": "array", "items": "null"})),
            "it is not a readable Avro schema: the elements of",
        ),
        (record(field("x", "lang")), "it is not a readable Avro schema: it has no type lang"),
        ([record(field("x", "long")), "string"], "a union of record R, string is no column; one type or null is"),
    ],
)
def test_a_schema_that_gives_no_column_refuses_its_records_alone(schema, detail):
    good = record(field("x", "long"))
    codec = RecordCodec(spec({"x": "long"}), GivenSchemas.avro(schema, good))

    found = codec.decode([framed(b"\x02", 1), framed(b"\x02", 2)], [None, None])

    assert found.rows.to_pylist() == [{"x": 1}]
    [refused] = found.refused
    assert refused.index == 0 and refused.detail.startswith(detail) and refused.detail.endswith("(schema 1)")
    with pytest.raises(
        SchemaUnusable, match="the `schema` of the spec"
    ):  # the spec's own is refused when it is applied
        RecordCodec(spec({"x": "long"}, schema={"text": json.dumps(schema)}))


def test_many_names_that_stand_for_each_other_twice_are_no_danger():
    names = [f"N{i}" for i in range(60)]
    deep: Any = record(field("n", "int"), name=names[0])
    for name in names[1:]:
        deep = record(field("a", deep), field("b", deep["name"]), name=name)
    found = decoded({"x": "long"}, record(field("x", "long"), field("rest", ["null", deep])), {"x": 3, "rest": None})
    assert found.rows.to_pylist() == [{"x": 3}]


def test_fields_that_no_column_names_are_refused_on_request():
    schema = record(field("id", "long"), field("more", record(field("a", "int"), field("b", "int"), name="M")))
    row = {"id": 1, "more": {"a": 1, "b": 2}}
    for columns, name in (({"id": "long"}, "more"), ({"id": "long", "more": "struct<a: int>"}, "more.b")):
        assert decoded(columns, schema, row).refused == []
        [refused] = decoded(columns, schema, row, unknown_fields="quarantine").refused
        assert refused.reason is Reason.UNKNOWN_FIELD
        assert refused.detail == f"`{name}`: no column or field has this name (schema 1)"


def test_references_are_parts_of_the_schema():
    money = record(field("cur", "string"), name="Money", namespace="shop")
    order = record(field("total", "shop.Money"), field("paid", ["null", "shop.Money"]))
    known = WrittenSchema(kind="AVRO", text=json.dumps(order), references={"shop.Money": json.dumps(money)})
    codec = RecordCodec(spec({"total": "struct<cur: string>", "paid": "struct<cur: string>"}), GivenSchemas({1: known}))
    whole = record(field("total", money), field("paid", ["null", "shop.Money"]))

    found = codec.decode([framed(avro_bytes(whole, {"total": {"cur": "EUR"}, "paid": None}))], [None])

    assert found.rows.to_pylist() == [{"total": {"cur": "EUR"}, "paid": None}]


def test_headers_that_are_none_are_refused_for_what_they_are():
    codec = RecordCodec(spec({"x": "long"}), GivenSchemas.avro(record(field("x", "long"))))
    found = codec.decode(
        [None, b"", b"\x00\x00", b"{}", b"\x01" + b"\x00" * 20, framed(b"\x02", 9), framed(b""), framed(b"\x02\x02")],
        [None] * 8,
    )
    assert [r.reason for r in found.refused] == [
        Reason.NULL_VALUE, Reason.NULL_VALUE, Reason.TRUNCATED_HEADER, Reason.WRONG_MAGIC_BYTE,
        Reason.WRONG_MAGIC_BYTE, Reason.UNKNOWN_SCHEMA, Reason.MALFORMED, Reason.MALFORMED,
    ]  # fmt: skip
    assert [found.refused[i].detail for i in (5, 7)] == [
        "the registry has no schema 9", "not Avro of R: 1 bytes are left after the record",
    ]  # fmt: skip


def test_a_schema_that_is_registered_later_is_found():
    codec = RecordCodec(spec({"x": "long"}), schemas := GivenSchemas({}))
    assert [r.reason for r in codec.decode([framed(b"\x02")], [None]).refused] == [Reason.UNKNOWN_SCHEMA]
    schemas.schemas = GivenSchemas.avro(record(field("x", "long"))).schemas
    assert codec.decode([framed(b"\x02")], [None]).rows.to_pylist() == [{"x": 1}]


def test_a_schema_of_another_kind_is_named():
    codec = RecordCodec(spec({"x": "long"}), GivenSchemas({1: WrittenSchema(kind="JSON", text="{}")}))
    [refused] = codec.decode([framed(b"\x02")], [None]).refused
    assert (refused.reason, refused.detail) == (Reason.UNUSABLE_SCHEMA, "schema 1 is JSON, not AVRO")


def test_a_value_that_is_no_record_is_the_only_column():
    number = framed(avro_bytes("int", 5))
    alone, two = (RecordCodec(spec(c), GivenSchemas.avro("int")) for c in ({"x": "long"}, {"x": "int", "y": "int"}))
    assert alone.decode([number], [None]).rows.to_pylist() == [{"x": 5}]
    [refused] = two.decode([number], [None]).refused
    assert refused.detail == "int is no record, so it is the value of one column, not of several (schema 1)"


def test_the_specs_own_schema_reads_values_without_a_header():
    schema = record(field("x", "long"))
    codec = RecordCodec(spec({"x": "long"}, schema={"text": json.dumps(schema)}))
    assert codec.decode([avro_bytes(schema, {"x": 5})], [None]).rows.to_pylist() == [{"x": 5}]


# Keys


def test_a_tombstone_deletes_by_its_key_a_record_or_the_bare_value():
    value, key = record(field("id", "long"), field("n", "int")), record(field("id", "long"))
    codec = RecordCodec(spec({"id": "long", "n": "int"}, key=["id"]), GivenSchemas.avro(value, key, "long"))
    found = codec.decode(
        [framed(avro_bytes(value, {"id": 1, "n": 2})), None, None, None, None],
        [None, framed(avro_bytes(key, {"id": 1}), 2), framed(avro_bytes("long", 7), 3), None, b"1"],
    )
    assert found.rows.to_pylist() == [
        {"_op": "put", "id": 1, "n": 2}, {"_op": "delete", "id": 1, "n": None}, {"_op": "delete", "id": 7, "n": None},
    ]  # fmt: skip
    assert [(r.index, r.reason) for r in found.refused] == [(3, Reason.MISSING_KEY), (4, Reason.WRONG_MAGIC_BYTE)]


def test_a_value_says_that_it_deletes_by_a_field_of_any_kind():
    symbols = {"type": "enum", "name": "Op", "symbols": ["put", "gone"]}
    schema = record(field("id", "long"), field("op", symbols), field("n", "int"))
    words = {"key": ["id"], "key_format": "text", "delete": {"field": "op", "values": ["gone"]}}
    rows = [{"id": 1, "op": "put", "n": 5}, {"id": 1, "op": "gone", "n": 5}]
    assert decoded({"id": "long", "n": "int"}, schema, *rows, **words).rows.to_pylist() == [
        {"_op": "put", "id": 1, "n": 5}, {"_op": "delete", "id": 1, "n": None},
    ]  # fmt: skip


# Any values, any bytes

NAMES = ("a", "b", "c", "id", "value")
types: st.SearchStrategy[Type] = st.recursive(
    values.primitive_types,
    lambda inner: (
        st.builds(ListType, inner)
        | st.builds(MapType, st.sampled_from(["string", "date", "uuid"]).map(Primitive), inner)
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda parts: StructType(tuple(FieldType(NAMES[i], part) for i, part in enumerate(parts)))
        )
    ),
    max_leaves=4,
)
BASE = {
    "boolean": "boolean", "int": "int", "long": "long", "float": "float", "double": "double", "string": "string",
    "binary": "bytes", "date": logical("int", "date"), "time": logical("long", "time-micros"),
    "timestamp": logical("long", "local-timestamp-micros"), "timestamptz": logical("long", "timestamp-micros"),
    "uuid": logical("string", "uuid"),
}  # fmt: skip


def avro_of(type_: Type, at: str, *, bare: bool) -> Any:
    """The schema of *type_* or null; *bare*: without logical types. *at* makes the names of records."""
    made: Any
    match type_:
        case DecimalType(precision, scale):
            made = "bytes" if bare else logical("bytes", "decimal", precision=precision, scale=scale)
        case ListType(element):
            made = {"type": "array", "items": avro_of(element, f"{at}_e", bare=bare)}
        case MapType(_, value):
            made = {"type": "map", "values": avro_of(value, f"{at}_v", bare=bare)}
        case StructType(fields):
            parts = [field(f.name, avro_of(f.type, f"{at}_{f.name}", bare=bare)) for f in fields]
            made = record(*parts, name=f"S{at}")
        case Primitive(name):
            made = BASE[name]["type"] if bare and isinstance(BASE[name], dict) else BASE[name]  # type: ignore[index]
    return ["null", made]


def datum(type_: Type, cell: Any) -> Any:
    """*cell* as the physical type has it."""
    if cell is None:
        return None
    match type_:
        case DecimalType(_, scale):
            number = int(cell.scaleb(scale, context=Context(prec=60)))
            return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)
        case ListType(element):
            return [datum(element, part) for part in cell]
        case MapType(key, value):
            return {k if key == Primitive("string") else _text(key, k): datum(value, v) for k, v in cell}
        case StructType(fields):
            return {f.name: datum(f.type, cell[f.name]) for f in fields}
        case Primitive("date"):
            return cell.toordinal() - EPOCH.date().toordinal()
        case Primitive("time"):
            return ((cell.hour * 60 + cell.minute) * 60 + cell.second) * 1_000_000 + cell.microsecond
        case Primitive("timestamp"):
            return (cell - EPOCH.replace(tzinfo=None)) // dt.timedelta(microseconds=1)
        case Primitive("timestamptz"):
            return (cell - EPOCH) // dt.timedelta(microseconds=1)
        case Primitive("uuid"):
            return _text(type_, cell)
    return cell


def _text(type_: Type, cell: Any) -> str:
    if type_ == Primitive("uuid"):
        text = cell.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    return str(cell.isoformat())


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[Any, ...], Any, Any]:
    kinds = draw(st.lists(types, min_size=1, max_size=4))
    columns = tuple(Column(name=NAMES[i], type=kind) for i, kind in enumerate(kinds))
    schemas = [record(*(field(c.name, avro_of(c.type, c.name, bare=bare)) for c in columns)) for bare in (False, True)]
    return columns, schemas[0], schemas[1]


def same(found: Any, meant: Any) -> bool:
    if isinstance(meant, dict):
        return found.keys() == meant.keys() and all(same(found[k], meant[k]) for k in meant)
    if isinstance(meant, list | tuple):
        return len(found) == len(meant) and all(map(same, found, meant))
    return bool(found == meant)


@settings(max_examples=60)
@given(st.data(), tables())
def test_every_value_of_every_type_comes_back_exactly(data, table):
    columns, schema, bare = table
    rows = data.draw(st.lists(values.records(columns).map(lambda one: one[1]), max_size=5))
    written = [framed(avro_bytes(bare, {c.name: datum(c.type, row[c.name]) for c in columns})) for row in rows]

    found = RecordCodec(spec(columns), GivenSchemas.avro(schema)).decode(written, [None] * len(written))

    assert found.refused == []
    found.rows.validate(full=True)
    assert all(map(same, found.rows.to_pylist(), rows))


@settings(max_examples=60)
@given(st.data(), tables())
def test_the_verdict_on_a_record_never_depends_on_its_batch(data, table):
    columns, schema, bare = table
    good = values.records(columns).map(
        lambda one: framed(avro_bytes(bare, {c.name: datum(c.type, one[1][c.name]) for c in columns}))
    )
    cut = st.tuples(good, st.integers(0, 30), st.binary(max_size=3)).map(
        lambda x: x[0][: x[1]] + x[2] + x[0][x[1] + 2 :]
    )
    records = data.draw(st.lists(good | cut | st.binary(max_size=12) | st.none(), max_size=7))

    assert_alone_as_together(RecordCodec(spec(columns), GivenSchemas.avro(schema)), [(None, r) for r in records])


@settings(max_examples=200)
@given(st.binary(max_size=40))
def test_no_bytes_do_harm(payload):
    parts = [
        field("s", "string"), field("l", {"type": "array", "items": "long"}),
        field("m", {"type": "map", "values": "int"}), field("u", ["null", "double"]),
        field("e", {"type": "enum", "name": "E", "symbols": ["a"]}),
    ]  # fmt: skip
    codec = RecordCodec(
        spec({"s": "string", "l": "list<long>", "m": "map<string, int>", "e": "string", "u": "double"}),
        GivenSchemas.avro(record(*parts)),
    )
    found = codec.decode([framed(payload), framed(b"\x02x\x00\x00\x00\x00")], [None, None])
    assert len(found.accepted) + len(found.refused) == 2
    assert 1 in found.accepted
