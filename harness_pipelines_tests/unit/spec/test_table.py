"""What a spec means, from Python and in its stored form."""

from __future__ import annotations

import json
import pickle
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.load import dump_spec, load_spec_text, read_back, written_spec
from harness_pipelines.spec.sections.keys import KEY_COLUMNS_MAX
from harness_pipelines.spec.table import StartAt, TableSpec
from harness_pipelines.spec.types import DecimalType, Primitive
from harness_pipelines.spec.wording import SpecError

ROOT = Path(__file__).parents[3]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"```ya?ml\n(.*?)```", re.DOTALL)
COLUMNS = {"order_id": {"type": "long", "required": True}, "amount": "decimal(12,2)"}


def spec(**words) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": COLUMNS, **words})


def test_a_spec_can_be_written_in_python():
    orders = TableSpec(
        table="shop.orders",
        columns={"order_id": {"type": "long", "required": True}, "amount": "decimal(12,2)"},
    )

    assert (orders.namespace, orders.name, orders.topic) == ("shop", "orders", "shop.orders")
    assert orders.columns == (
        Column(name="order_id", type=Primitive("long"), required=True),
        Column(name="amount", type=DecimalType(12, 2)),
    )


def test_what_is_not_given_has_the_documented_default():
    orders = spec()

    assert (orders.start, orders.format, orders.views, orders.buffer) == ("earliest", "json", "both", "postgres")
    assert (orders.shards, orders.on_error, orders.unknown_fields, orders.mode) == (1, "quarantine", "ignore", "runs")
    assert (orders.tier.max_rows, orders.tier.max_bytes, orders.tier.max_age) == (500_000, 268_435_456, 60.0)
    assert (orders.retention.versions, orders.retention.snapshots) == (86_400.0, 50)
    assert (orders.retention.lease, orders.retention.grace) == (900.0, 600.0)
    assert (orders.freshness.visible, orders.freshness.lake) == (5.0, 900.0)


def test_owners_and_tags_are_those_that_dagster_takes():
    made = spec(owners=["ada@example.com", "team:shop", "team:shop"], tags={"tier": "gold", "eu/pii": ""})

    assert (made.owners, dict(made.tags)) == (("ada@example.com", "team:shop"), {"tier": "gold", "eu/pii": ""})
    assert read_back(dump_spec(made), source="test") == made
    assert written_spec(made)["tags"] == {"tier": "gold", "eu/pii": ""}
    assert spec(owners="team:shop").owners == ("team:shop",)
    assert spec(tags=made.tags).tags == made.tags
    for words, why in (
        ({"owners": ["ada"]}, "'ada' is no owner; write an address"),
        ({"owners": ["team:"]}, "is no owner"),
        ({"owners": 5}, "write a list such as"),
        ({"owners": [f"team:t{n}" for n in range(17)]}, "16"),
        ({"tags": ["a"]}, "write names with values"),
        ({"tags": {"a b": "c"}}, "'a b' is no tag"),
        ({"tags": {"harness/table": "c"}}, "is taken"),
        ({"tags": {"a": True}}, "true is no value of a tag"),
    ):
        with pytest.raises(SpecError, match=why):
            spec(**words)


@given(
    seconds=st.floats(min_value=0.001, max_value=36_500 * 86_400) | st.integers(1, 10_000).map(lambda n: n * 60.0),
    size=st.integers(64 * 2**20, 2**62) | st.integers(64, 9_000).map(lambda n: n * 2**20),
)
def test_what_is_written_for_people_is_read_back(seconds: float, size: int):
    made = spec(
        tier={"max_age": seconds, "max_bytes": size},
        buffer={"max_bytes": size},
        freshness={"visible": seconds},
        key=["order_id"],
        columns={**COLUMNS, "s": {"type": "string", "default": "", "aliases": ["old"], "description": "A text"}},
    )
    assert TableSpec.model_validate(written_spec(made)) == made
    assert read_back(dump_spec(made), source="test") == made


def test_durations_and_sizes_are_written_in_units():
    words = written_spec(spec(tier={"max_age": 90, "max_bytes": 2**20 + 1}, buffer={"max_bytes": "20GB"}))
    assert words["tier"] == {"max_rows": 500_000, "max_bytes": 2**20 + 1, "max_age": "90s"}
    assert words["buffer"] == {"max_bytes": "20GB"}
    assert words["retention"]["versions"] == "1d"
    assert words["columns"] == {"order_id": {"type": "long", "required": True}, "amount": "decimal(12, 2)"}
    assert dump_spec(spec())["tier"]["max_age"] == 60.0


def test_descriptions_are_text_of_the_table_and_of_its_columns():
    made = spec(
        description=" What was ordered.\n", columns={"id": {"type": "long", "description": "Its number"}, "n": "int"}
    )

    assert (made.description, [c.description for c in made.columns]) == ("What was ordered.", ["Its number", None])
    assert read_back(dump_spec(made), source="test") == made
    assert spec(description="  ").description is None
    assert "description" not in dump_spec(spec())["columns"][0]
    for odd in (5, "a\x00", "x" * 2_001, ["a"]):
        with pytest.raises(SpecError, match="description"):
            spec(description=odd)
        with pytest.raises(SpecError, match=r"columns\.id\.description"):
            spec(columns={"id": {"type": "long", "description": odd}})


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("60s", 60), ("15m", 900), ("24h", 86_400), ("500ms", 0.5), ("1.5h", 5400), (7, 7), ("2d", 172_800)],
)
def test_durations_are_seconds(written, seconds):
    assert spec(tier={"max_age": written}).tier.max_age == seconds


@pytest.mark.parametrize(
    ("written", "count"), [("256MB", 2**28), ("1 kb", 1024), ("2GB", 2**31), (4096, 4096), ("9B", 9)]
)
def test_sizes_are_bytes_in_powers_of_1024(written, count):
    assert spec(tier={"max_bytes": written}).tier.max_bytes == count


@pytest.mark.parametrize("written", ["0s", "-1s", "5", "five", "1w", 0, True, float("inf"), float("nan"), [1]])
def test_a_duration_that_is_none_is_refused(written):
    with pytest.raises(SpecError, match="is not a duration; write a number above 0 and ms, s, m, h or d"):
        spec(tier={"max_age": written})


@pytest.mark.parametrize("written", ["0MB", "1.5MB", "12", "MB", 0, 1.5, False])
def test_a_size_that_is_none_is_refused(written):
    with pytest.raises(SpecError, match="is not a size; write a whole number above 0 and B, KB, MB, GB or TB"):
        spec(tier={"max_bytes": written})


def test_a_lease_is_at_most_a_day():
    with pytest.raises(SpecError, match="a lease lasts at most 24h"):
        spec(retention={"lease": "25h"})


def test_a_start_time_has_an_offset_and_is_kept_in_utc():
    assert spec(start={"timestamp": "2026-01-01T01:00:00+01:00"}).start == StartAt(
        timestamp=datetime(2026, 1, 1, tzinfo=UTC)
    )
    with pytest.raises(SpecError, match="has no time zone; write one such as"):
        spec(start={"timestamp": "2026-01-01T01:00:00"})


@pytest.mark.parametrize("moment", [2026, 20260101, "2026", "1700000000000", 1.7e9, "1e9", True])
def test_a_start_time_is_no_number_whose_unit_is_a_guess(moment):
    with pytest.raises(SpecError, match=r"is not a time; write one such as 2026-01-01T00:00:00Z"):
        spec(start={"timestamp": moment})


@pytest.mark.parametrize(
    "name",
    [
        "order-id",
        "größe",
        "select",
        "user",
        "group",
        "a b",
        "a.b",
        "2nd",
        "it's",
        "back`tick",
        "true",
        "x" * 63,
        "日本" * 10,
    ],
)
def test_column_names_may_be_any_printable_text(name):
    assert spec(columns={name: "int"}).columns[0].name == name


@pytest.mark.parametrize(
    "name",
    [
        "_kafka_offset",
        "_kafka_x",
        "_KAFKA_x",
        "_harness_key_0",
        "_op",
        "_Op",
        "_schema_version",
        "_partition",
        "_file",
        "_pos",
        "_spec_id",
        "_deleted",
        "_row_id",
        "_last_updated_sequence_number",
    ],
)
def test_names_of_the_harness_and_of_iceberg_are_reserved(name):
    with pytest.raises(SpecError, match=f"the column name '{name}' is reserved, as are _kafka_\\*.*_spec_id"):
        spec(columns={name: "int"})


def test_names_that_only_look_reserved_are_free():
    assert len(spec(columns={"_opened": "int", "_pos_x": "int", "kafka_offset": "int"}).columns) == 3


@pytest.mark.parametrize("name", ["", "x" * 64, "日" * 22])
def test_a_column_name_fits_postgres(name):
    with pytest.raises(SpecError, match="a column name has 1 to 63 bytes, not"):
        spec(columns={name: "int"})


@pytest.mark.parametrize("name", ["  ", "\u3164", "\ufe0f", "\u2800"])
def test_something_of_a_column_name_can_be_seen(name):
    with pytest.raises(SpecError, match="a column name has a character that can be seen, and .* has none"):
        spec(columns={name: "int"})


@pytest.mark.parametrize("name", ["a\nb", "a\x00b", "a\u202eb"])
def test_a_column_name_can_be_printed(name):
    with pytest.raises(SpecError, match="holds characters that cannot be printed"):
        spec(columns={name: "int"})


@pytest.mark.parametrize("name", ['quo"te', "back\\slash"])
def test_a_name_is_one_that_json_writes_as_it_is(name):
    with pytest.raises(SpecError, match="which JSON escapes"):
        spec(columns={name: "int"})
    with pytest.raises(SpecError, match="the field name .* which JSON escapes"):
        spec(columns={"s": f"list<struct<{name}: int>>"})


def test_column_names_differ_by_more_than_case():
    with pytest.raises(SpecError, match="occurs twice, also as 'Amount'"):
        spec(columns={"Amount": "int", "AMOUNT": "long"})


@pytest.mark.parametrize("count", [0, 1501])
def test_a_table_has_columns_but_not_more_than_postgres_takes(count):
    with pytest.raises(SpecError, match="a table has 1 to 1,500 columns, not"):
        spec(columns={f"c{i}": "int" for i in range(count)})


@pytest.mark.parametrize("key", ["double", "float", "boolean", "binary", "list<int>", "struct<a: int>"])
def test_a_map_has_keys_that_json_can_write(key):
    with pytest.raises(SpecError, match="cannot be the key of a JSON map; allowed: string, int"):
        spec(columns={"m": f"list<struct<x: map<{key}, int>>>"})


def test_only_times_and_decimals_say_how_they_are_written():
    assert spec(columns={"at": {"type": "timestamp", "from": "epoch_us"}}).columns[0].source == "epoch_us"
    with pytest.raises(SpecError, match="`from: epoch_us` is not for date; allowed: iso8601, epoch_days"):
        spec(columns={"at": {"type": "date", "from": "epoch_us"}})
    assert spec(columns={"at": {"type": "list<date>", "from": "epoch_days"}}).columns[0].source == "epoch_days"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"key": []}, "`format: debezium` needs it: without a key each update of a row would count as one more row"),
        ({"delete": {"field": "op", "values": ["d"]}}, "state themselves which row they delete; remove it"),
        ({"key_format": "text"}, "the record keys of `format: debezium` are json; remove it"),
        ({"unavailable_value": 'say "no" to it'}, "is not of ASCII's letters, digits and signs"),
        ({"unavailable_value": "no"}, "at least 8 characters"),
        ({"format": "json", "unavailable_value": "__elsewhere"}, "only events of `format: debezium` have it"),
        ({"columns": {"id": "int", "a": "decimal(9,2)"}}, "column 'a' of type decimal(9, 2): say how events without"),
        ({"columns": {"id": "int", "a": "list<decimal(9,2)>"}}, "`from: base64` (the connector's decimal.hand"),
        ({"columns": {"id": "int", "a": "map<string, decimal(9,2)>"}}, "decimals in a map or struct cannot be told"),
    ],
)  # fmt: skip
def test_what_a_table_of_change_events_cannot_be(words, message):
    plain = {"columns": {"id": "int"}, "key": ["id"], "format": "debezium"}
    assert spec(**plain).unavailable_value == "__debezium_unavailable_value"
    with pytest.raises(SpecError, match=re.escape(message)):
        spec(**{**plain, **words})


@pytest.mark.parametrize(
    "table", ["orders", "Shop.orders", "shop.1orders", "shop.or-ders", "a.b.c", "shop.", "shop.orders\n"]
)
def test_a_table_is_named_by_namespace_and_name(table):
    with pytest.raises(SpecError, match="is not a table name; write namespace.name"):
        spec(table=table)


def test_a_table_does_not_take_the_name_of_anothers_stream_view():
    with pytest.raises(SpecError, match="ends with __stream"):
        spec(table="shop.orders__stream")
    with pytest.raises(SpecError, match="each part has at most 55 characters"):
        spec(table="shop." + "x" * 56)


@pytest.mark.parametrize("topic", ["a b", "a/b", "..", ".", "x" * 250, "größe"])
def test_a_topic_has_a_name_that_kafka_allows(topic):
    with pytest.raises(SpecError, match="is not a topic name; use"):
        spec(topic=topic)


def test_several_topics_are_one_whose_name_no_topic_has():
    several = spec(topics=["a", "b"])
    assert (several.topic, several.topics) == ("a,b", ("a", "b"))
    assert TableSpec.model_validate(dump_spec(several)) == several
    assert spec(topics=[]) == spec()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"topic": "a,b"}, "write either `topic: a` or `topics: .a, b.`"),
        ({"topic": "a", "topics": ["a", "b"]}, "write either `topic: a` or `topics: .a, b.`"),
        ({"topics": ["a,b", "c"]}, "names without commas"),
        ({"topics": ["a"]}, "one topic is written `topic: a`"),
        ({"topics": ["a", "b", "a"]}, "'a' is named twice"),
        ({"topics": ["a", "b c"]}, "'b c' is not a topic name"),
        ({"topics": [f"t{i}" for i in range(33)]}, "at most 32"),
        (
            {"topics": ["a", "b"], "key": ["id"]},
            "a keyed table has one topic: all records of a key must be in one partition",
        ),
    ],
)
def test_what_several_topics_cannot_be(words, message):
    with pytest.raises(SpecError, match=message):
        spec(**words)


@pytest.mark.parametrize(
    ("word", "value", "message"),
    [
        (
            "format",
            "csv",
            "`format: csv` is reserved: it is not decoded yet; write `format: json`",
        ),
        ("shards", 4, "`shards: 4` is reserved: tables have one shard; write `shards: 1` or remove it"),
    ],
)
def test_a_word_that_does_not_work_yet_is_refused_by_name(word, value, message):
    with pytest.raises(SpecError, match=message):
        spec(**{word: value})


def test_the_stored_form_is_read_back_even_by_a_store_that_sorts_keys():
    orders = spec(
        columns={
            "z": {"type": "timestamptz", "from": "epoch_ms", "aliases": ["y", "x"]},
            "a": {"type": "list<struct<`x y`: int>>"},
            "m": "long",
        },
        start={"timestamp": "2026-01-01T00:00:00.5Z"},
        tier={"max_age": "90s"},
        topic="orders",
    )

    stored = json.dumps(dump_spec(orders), sort_keys=True)

    assert TableSpec.model_validate(json.loads(stored)) == orders
    assert [c.name for c in TableSpec.model_validate_json(stored).columns] == ["z", "a", "m"]
    assert orders.columns[0].names == ("z", "y", "x")
    assert "aliases" not in dump_spec(orders)["columns"][2]  # specs that are stored already stay what they are


def test_a_spec_is_a_value():
    orders = spec()

    assert orders == spec() and hash(orders) == hash(spec()) and orders != spec(shards=1, mode="manual")
    assert pickle.loads(pickle.dumps(orders)) == orders
    assert TableSpec(table="shop.copy", columns=orders.columns).columns == orders.columns
    with pytest.raises(ValidationError, match="frozen"):
        orders.mode = "manual"  # type: ignore[misc]  # that is what is tried


class Fleet(BaseModel):
    tables: list[TableSpec]


WRONG = {
    "table": "shop.orders",
    "columns": {"id": "lnog"},
    "tier": {"max_rows": 0},
    "layuot": {},
}


@pytest.mark.parametrize(
    "made",
    [
        lambda: TableSpec(**WRONG),
        lambda: TableSpec.model_validate(WRONG),
        lambda: TableSpec.model_validate_json(json.dumps(WRONG)),
    ],
)
def test_a_wrong_spec_in_python_is_refused_in_the_sentences_of_a_file(made):
    with pytest.raises(SpecError) as refused:
        made()
    with pytest.raises(SpecError) as in_yaml:
        load_spec_text(json.dumps(WRONG), source="shop.orders")

    found = {(p.field, p.message) for p in refused.value.problems}
    assert found == {(p.field, p.message) for p in in_yaml.value.problems}
    assert {field for field, _ in found} == {"columns.id.type", "tier.max_rows", "layuot"}
    assert str(refused.value).startswith(("shop.orders: ", "TableSpec: "))
    assert refused.value.__cause__ is None and "pydantic" not in str(refused.value)


@pytest.mark.parametrize("words", [None, [], "shop.orders", 1, {"table": 3}])
def test_what_is_no_spec_at_all_is_refused_by_name(words):
    with pytest.raises(
        SpecError, match="TableSpec: (the spec is empty|a spec is a mapping of settings|table: 3 is not a table name)"
    ):
        TableSpec.model_validate(words)


def test_a_wrong_spec_within_another_model_has_its_place_there():
    with pytest.raises(ValidationError) as refused:
        Fleet.model_validate({"tables": [{"table": "a.b", "columns": {"id": "long"}}, WRONG]})
    assert {one["loc"][:2] for one in refused.value.errors()} == {("tables", 1)}


def test_a_word_without_a_value_is_absent():
    assert spec(topic=None, tier=None, key=None) == spec()


def test_an_editor_gets_a_schema_that_describes_every_word():
    schema = TableSpec.model_json_schema()

    assert set(schema["required"]) == {"table", "columns"}
    assert all(words.get("description") or "$ref" in words for words in schema["properties"].values())
    assert all(p["description"] for p in schema["$defs"].values())
    assert all(words["description"] for part in schema["$defs"].values() for words in part["properties"].values())
    assert "decimal(p,s)" in json.dumps(schema["properties"]["columns"])
    long_form = schema["properties"]["columns"]["additionalProperties"]["anyOf"][1]["properties"]
    assert all(words["description"] for words in long_form.values())
    assert long_form["aliases"]["anyOf"] == [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}]
    assert schema["properties"]["key"]["anyOf"][1]["maxItems"] == KEY_COLUMNS_MAX
    assert schema["properties"]["mode"]["enum"] == ["runs", "external_worker", "manual"]


def test_the_schema_takes_what_the_reader_takes():
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    validator = jsonschema_rs.validator_for(TableSpec.model_json_schema())
    blocks = [yaml.safe_load(text) for page in PAGES for text in _BLOCK.findall(page.read_text())]
    specs = [words for words in blocks if isinstance(words, dict) and {"table", "columns"} <= words.keys()]
    assert len(specs) > 10
    short = {"table": "a.b", "key": "id", "columns": {"id": "long"}, "layout": {"columns": "id"}, "topic": "t"}
    full = spec(
        key="order_id", delete={"field": "op", "values": ["d", 1]}, stop_above={"refused": "5%", "of_last": 9},
        buffer={"max_bytes": "20GB"}, start={"timestamp": "2026-01-01T00:00:00Z"}, description="Orders",
    )  # fmt: skip
    for words in (*specs, short, written_spec(full)):
        plain = json.loads(json.dumps(words, default=str))
        assert not [f"{error.instance_path}: {error.message}" for error in validator.iter_errors(plain)], words
        assert TableSpec.model_validate(words)
    assert not validator.is_valid({**short, "tier": {"max_age": "soon"}})
    assert not validator.is_valid({**short, "topik": "t"})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"key": ["nope"]}, "there is no column 'nope'; columns: "),
        ({"key": ["price"]}, "column 'price' of type double cannot be a key; key types: boolean, int"),
        ({"key": ["id", "id"]}, "'id' is named twice"),
        ({"key": ["id", "day"], "key_format": "text"}, "text holds one value, and the key has 2 columns"),
        ({"delete": {"field": "op", "values": ["d"]}}, "records can delete only in a table with a `key`"),
        ({"key": ["id"], "delete": "null"}, "'null' is not a delete rule; allowed: tombstone, {field: op"),
        ({"key": ["id"], "delete": {"field": "op", "values": []}}, "write at least 1 entry, not 0"),
    ],
)
def test_what_a_key_cannot_be(words, message):
    columns = {"id": {"type": "long", "required": True}, "day": "date", "price": "double"}
    with pytest.raises(SpecError, match=re.escape(message)):
        spec(**{"columns": columns, "views": "stream", **words})


def test_the_columns_of_a_keyed_table_are_stored_so_that_a_delete_fits():
    columns = {"id": {"type": "long", "required": True}, "total": {"type": "int", "required": True}}
    orders = spec(columns=columns, key=["id"], views="stream", delete={"field": "op", "values": ["d", 1, True]})
    assert [(c.name, c.required) for c in orders.stored] == [("id", True), ("total", False)]
    assert [c.required for c in orders.columns] == [True, True]
    assert TableSpec.model_validate(json.loads(json.dumps(dump_spec(orders)))) == orders
    assert spec(columns=columns).stored == spec(columns=columns).columns


def test_a_spec_of_the_ledger_that_is_wrong_is_told_in_the_words_of_a_spec():
    words = {"table": "a.b", "columns": [{"name": "n", "type": "long", "default": "x"}], "extra": 1}
    with pytest.raises(
        SpecError, match="a.b: columns.n.default: 'x' is no value of type long; write a number"
    ) as found:
        read_back(words, source="a.b")
    assert "extra" in str(found.value) and "Extra inputs" not in str(found.value)
    with pytest.raises(SpecError):
        read_back([1], source="a.b")


def test_a_buffer_may_have_a_limit_of_two_segments_or_more():
    limited = spec(buffer={"max_bytes": "20GB"})
    assert (limited.buffer_kind, limited.buffer_bytes_max) == ("postgres", 20 * 2**30)
    assert TableSpec.model_validate(dump_spec(limited)) == limited
    assert dump_spec(limited)["buffer"] == {"max_bytes": 20 * 2**30}
    assert (spec(buffer="none").buffer_kind, spec(buffer="none").buffer_bytes_max) == ("none", None)
    with pytest.raises(SpecError, match="buffer.max_bytes: 67,108,863 bytes are less than two segments.*at least 64MB"):
        spec(buffer={"max_bytes": 64 * 2**20 - 1})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"kind": "none", "max_bytes": "1GB"}, r"buffer\.kind: unknown setting `kind`"),
        ({}, r"buffer\.max_bytes: `max_bytes` is missing"),
        ("1GB", r"buffer: '1GB' is not allowed; allowed: postgres, none, \{max_bytes: 20GB\}"),
    ],
)
def test_a_buffer_that_there_is_none_of_has_no_limit(words, said: str):
    with pytest.raises(SpecError, match=said):
        spec(buffer=words)
