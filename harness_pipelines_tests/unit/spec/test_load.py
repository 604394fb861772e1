"""Spec files: what is wrong is said with file, line and the allowed words."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from harness_pipelines.errors import Recovery, UsageError
from harness_pipelines.spec.load import check_rules, dump_spec, load_spec, load_spec_text, load_value, read_back
from harness_pipelines.spec.table import StartAt, TableSpec
from harness_pipelines.spec.wording import SpecError

HEAD = "table: shop.orders\ncolumns:\n  order_id: long\n"
FULL = """\
# every word
table: shop.orders
topic: orders
start: {timestamp: 2026-01-01T00:00:00Z}
format: json
columns:
  order_id: {type: long, required: true}
  amount: decimal(12,2)
  ordered_at: {type: timestamptz, from: iso8601}
  tags: list<string>
views: stream
buffer: none
shards: 1
tier: {max_rows: 1000, max_bytes: 1MB, max_age: 5s}
on_error: stop
unknown_fields: quarantine
retention: {versions: 1h, snapshots: 5, lease: 1m, grace: 30s}
freshness: {visible: 1s, lake: 1m}
mode: external_worker
"""


def test_every_word_is_read(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(FULL)

    orders = load_spec(file)

    assert orders.start == StartAt(timestamp=datetime(2026, 1, 1, tzinfo=UTC))
    assert [str(c.type) for c in orders.columns] == ["long", "decimal(12, 2)", "timestamptz", "list<string>"]
    assert (orders.buffer, orders.on_error, orders.unknown_fields) == ("none", "stop", "quarantine")
    assert (orders.tier.max_rows, orders.tier.max_bytes, orders.tier.max_age) == (1000, 2**20, 5.0)
    assert orders.mode == "external_worker"
    assert load_spec(str(file)) == orders == TableSpec.model_validate(dump_spec(orders))


def test_json_is_a_spec_too():
    assert load_spec_text('{"table": "shop.orders", "columns": {"order_id": "long"}}') == load_spec_text(HEAD)


@pytest.mark.parametrize("name", ["on", "off", "yes", "no", "y", "null", "true", "1", "1.5", "2026-01-01", "12:30"])
def test_column_names_that_yaml_would_take_for_something_else_stay_text(name):
    assert load_spec_text(f"table: a.b\ncolumns:\n  {name}: string\n").columns[0].name == name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "table: Orders\ncolumns: {a: int}",
            "t.yaml:1: table: 'Orders' is not a table name; write namespace.name, each of "
            "a-z, 0-9 and _, beginning with a letter",
        ),
        (
            HEAD + "topicz: x",
            "t.yaml:4: topicz: unknown setting `topicz` (did you mean `topic`?); allowed: table, description, "
            "owners, tags, topic, topics, start, format, schema, columns, key, key_format, key_schema, delete, "
            "unavailable_value, views, layout, buffer, engine, shards, tier, recall, serve, on_error, unknown_fields,"
            " evolution, stop_above, quarantine_mb, transform, contract, retention, freshness, catalogs, mode",
        ),
        (
            HEAD + "tier:\n  max_age: 1s\n  max_row: 5",
            "t.yaml:6: tier.max_row: unknown setting `max_row` (did you mean "
            "`max_rows`?); allowed: max_rows, max_bytes, max_age",
        ),
        (
            HEAD + "mode: extrnal_worker",
            "t.yaml:4: mode: 'extrnal_worker' is not allowed (did you mean "
            "`external_worker`?); allowed: runs, external_worker, manual",
        ),
        (
            HEAD + "buffer: kafka",
            "t.yaml:4: buffer: 'kafka' is not allowed; allowed: postgres, none, {max_bytes: 20GB}",
        ),
        (
            HEAD + "format: xml",
            "t.yaml:4: format: 'xml' is not allowed; allowed: json, avro, protobuf, json-schema, raw, debezium, "
            "debezium-avro",
        ),
        (
            HEAD + "views: strem",
            "t.yaml:4: views: 'strem' is not allowed (did you mean `stream`?); allowed: stream, batch, both",
        ),
        (
            HEAD + "layout:\n  columns: [order_id, amout]",
            "t.yaml:5: layout.columns: there is no column 'amout'; columns: order_id",
        ),
        (
            HEAD + "layout: {columns: [order_id, order_id]}",
            "t.yaml:4: layout.columns: 'order_id' is named twice; remove one",
        ),
        (
            HEAD + "layout: {queries: [[order_id], [amout]]}",
            "t.yaml:4: layout.queries: the view is not clustered by 'amout', but by order_id",
        ),
        (
            HEAD + "layout: {queries: [[order_id, order_id]]}",
            "t.yaml:4: layout.queries: 'order_id' is named twice in [order_id, order_id]; remove one",
        ),
        (
            HEAD + "layout: {column: [order_id]}",
            "t.yaml:4: layout.column: unknown setting `column` (did you mean `columns`?); allowed: columns, "
            "target_file_mb, regions, queries, sample, staged_ratio",
        ),
        (
            "table: a.b\ncolumns: {a: list<int>}\nlayout: {columns: [a]}",
            "t.yaml:3: layout.columns: column 'a' of type list<int> has no order to cluster by; types "
            "that have: boolean, int, long, float, double, decimal, date, timestamp, timestamptz, time, "
            "string, uuid",
        ),
        (HEAD + "shards: 0", "t.yaml:4: shards: 0 is not allowed; allowed: 1"),
        (
            HEAD + "start: later",
            "t.yaml:4: start: 'later' is not a start; allowed: earliest, latest, {timestamp: 2026-01-01T00:00:00Z}",
        ),
        (
            HEAD + "start: {timestamp: 2026-01-01}",
            "t.yaml:4: start.timestamp: '2026-01-01' has no time zone; write one such as 2026-01-01T00:00:00Z",
        ),
        (
            HEAD + "start:\n  at: 1",
            "t.yaml:4: start.timestamp: `timestamp` is missing\n"
            "t.yaml:5: start.at: unknown setting `at`; allowed: timestamp",
        ),
        (HEAD + "tier: 7", "t.yaml:4: tier: write settings below it, not 7; allowed: max_rows, max_bytes, max_age"),
        (HEAD + "tier: {max_rows: lots}", "t.yaml:4: tier.max_rows: write a whole number, not 'lots'"),
        (HEAD + "tier: {max_rows: 0}", "t.yaml:4: tier.max_rows: write a number of at least 1, not 0"),
        (
            HEAD + "tier: {max_age: 5 parsecs}",
            "t.yaml:4: tier.max_age: '5 parsecs' is not a duration; write a number above 0 "
            "and ms, s, m, h or d (60s, 15m), or plain seconds",
        ),
        (
            HEAD + "tier: {max_bytes: big}",
            "t.yaml:4: tier.max_bytes: 'big' is not a size; write a whole number above 0 and "
            "B, KB, MB, GB or TB (256MB), or plain bytes",
        ),
        (
            HEAD + "retention:\n  lease: 25h",
            "t.yaml:5: retention.lease: a lease lasts at most 24h, not 25h",
        ),
        (
            HEAD + "topic: a b",
            "t.yaml:4: topic: 'a b' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`",
        ),
        (
            HEAD + "  a: bigint",
            "t.yaml:4: columns.a.type: expected a type, found 'bigint' (did you mean long?); allowed: "
            "boolean, int, long, float, double, date, time, timestamp, timestamptz, string, binary, uuid, "
            "decimal(p,s), list<type>, map<key, value>, struct<name: type, ...>",
        ),
        (
            HEAD + "  a: {typ: int}",
            "t.yaml:4: columns.a.typ: unknown setting `typ` (did you mean `type`?); allowed: type, "
            "required, from, aliases, default, description",
        ),
        (
            HEAD + "  a:\n    type: int\n    required: yes",
            "t.yaml:6: columns.a.required: write true or false, not 'yes'",
        ),
        (
            HEAD + "  a: {type: timestamp, from: epoch}",
            "t.yaml:4: columns.a.from: 'epoch' is not allowed (did you mean "
            "`epoch_s`?); allowed: iso8601, epoch_days, epoch_s, epoch_ms, epoch_us, epoch_ns, ms_of_day, "
            "us_of_day, ns_of_day, number, base64, headers, raw_key, raw_value",
        ),
        (
            HEAD + "  a: {type: int, from: iso8601}",
            "t.yaml:4: columns.a.from: `from` is for date, time, timestamp, timestamptz, decimal and lists of them, "
            "not for int",
        ),
        (
            HEAD + "  a: 5",
            "t.yaml:4: columns.a: 5 is not a type; write one, such as `long`, or {type: long, required: true}",
        ),
        (HEAD + "  order_id: int", "t.yaml:4: columns.order_id: `order_id` occurs twice, first in line 3"),
        (
            HEAD + "  ORDER_ID: int",
            "t.yaml:4: columns.ORDER_ID: the column occurs twice, also as 'order_id' (names ignore case); "
            "keep one, or give one of the fields another name in the topic",
        ),
        (HEAD + "  ? [a]\n  : int", "t.yaml:4: columns: the name of a setting is text, not a list or a mapping"),
        (
            "table: a.b\ncolumns:\n  - int",
            "t.yaml:2: columns: write names with their types, such as `order_id: long`, not ['int']",
        ),
        (
            "table: a.b\ncolumns: {}",
            "t.yaml:2: columns: a table has 1 to 1,500 columns, not 0; name those to keep, such as `order_id: long`",
        ),
        ("table: a.b", "t.yaml:1: columns: `columns` is missing; write `columns: {order_id: long, note: string}`"),
        ("columns: {a: int}", "t.yaml:1: table: `table` is missing; write `table: namespace.name`"),
        (HEAD + "table: a.b", "t.yaml:4: table: `table` occurs twice, first in line 1"),
        ("- a", "t.yaml:1: a spec is a mapping of settings, such as `table: namespace.name`, not ['a']"),
        ("", "t.yaml: the spec is empty; it starts with `table: namespace.name`"),
        ("# nothing\n", "t.yaml: the spec is empty; it starts with `table: namespace.name`"),
        (HEAD + "tier: [", "t.yaml:4: not YAML: the `[` in this line is never closed"),
        (
            HEAD + "  place: struct<a: long, b: int>",
            "t.yaml:4: not YAML: a second `: ` in one value; quote a type that has colons or commas in "
            "it: 'struct<a: long, b: int>'",
        ),
        (
            HEAD + "topic: %x",
            "t.yaml:4: not YAML: found character '%' that cannot start any token; quote a text that begins with `%`",
        ),
        (HEAD + "\ttopic: x", "t.yaml:4: not YAML: a tab stands where spaces belong; YAML indents with spaces"),
        (HEAD + "---\n" + HEAD, "t.yaml:4: not YAML: `---` begins a second document; a file holds one spec"),
    ],
)
def test_each_mistake_is_named_with_its_line(text, message):
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, source="t.yaml")

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "format: csv",
            "`format: csv` is reserved: it is not decoded yet; write `format: json` or remove it",
        ),
        ("shards: 3", "`shards: 3` is reserved: tables have one shard; write `shards: 1` or remove it"),
    ],
)
def test_a_word_that_does_not_work_yet_is_refused_with_its_line(line, message):
    with pytest.raises(SpecError) as caught:
        load_spec_text(HEAD + line, source="t.yaml")

    assert str(caught.value) == f"t.yaml:4: {line.partition(':')[0]}: {message}"


def test_all_mistakes_are_named_at_once_in_the_order_of_their_lines():
    with pytest.raises(SpecError) as caught:
        load_spec_text("mode: x\ntable: y\ncontract: x\ncolumns:\n  a: z\n  _op: int\n", source="t.yaml")

    assert [(p.line, p.field) for p in caught.value.problems] == [
        (1, "mode"),
        (2, "table"),
        (3, "contract"),
        (5, "columns.a.type"),
        (6, "columns._op"),
    ]
    assert str(caught.value).count("\n") == 4


def test_a_mistake_is_wrong_usage_that_no_repetition_helps():
    error = SpecError("t.yaml", [])

    assert isinstance(error, UsageError) and error.exit_code == 2 and error.recovery is Recovery.NEVER


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"nowhere.yaml: the spec cannot be read: No such file or directory"):
        load_spec(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("encoding", ["UTF-16", "UTF-16-LE", "UTF-16-BE", "UTF-32"])
def test_a_file_in_another_encoding_is_named_with_the_way_on(tmp_path, encoding):
    file = tmp_path / "spec.yaml"
    file.write_text(HEAD, encoding=encoding)

    with pytest.raises(SpecError, match=r"UTF-16 does.*; save it as UTF-8"):
        load_spec(file)


def test_a_file_of_any_number_of_values_is_not_read_to_its_end(monkeypatch):
    monkeypatch.setattr("harness_pipelines.spec.yaml_reader._VALUES_MAX", 1_000)
    text = "x: [\n" + "a,\n" * 5_000 + "]\n"

    with pytest.raises(SpecError, match=r"^s:99\d: more than 1,000 values; is this file a spec\?"):
        load_spec_text(text, source="s")


def test_of_hundreds_of_problems_the_first_are_shown():
    columns = ", ".join(f"c{at}: numbr" for at in range(300))

    with pytest.raises(SpecError) as raised:
        load_spec_text(f"table: a.b\ncolumns: {{{columns}}}\n", source="s")

    lines = str(raised.value).splitlines()
    assert (len(lines), lines[-1]) == (51, "s: 250 more problems")
    assert len(raised.value.problems) == 300


def test_a_file_that_is_not_text_is_named(tmp_path):
    file = tmp_path / "spec.yaml"
    file.write_bytes(b"table: \xff")

    with pytest.raises(
        SpecError, match=r"spec.yaml: the spec is not UTF-8: invalid start byte at byte 7, in line 1; save it"
    ):
        load_spec(file)


def test_an_alias_of_itself_ends_with_a_message():
    with pytest.raises(SpecError, match="an alias is inside the node that it names"):
        load_spec_text("table: &a [*a]")


def _doubling(levels):
    lines = ["a0: &a0 {type: int}", *(f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, levels))]
    return "table: a.b\n" + "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("columns: &c {a: *c, b: *c}", "an alias is inside the node that it names"),
        (_doubling(45), "more than 200,000 values once its aliases are followed"),
        ("[" * 3000, "nested more than 50 deep"),
        ("{a: " * 3000, "nested more than 50 deep"),
        ("- " * 3000, "nested more than 50 deep"),
        ("tier: {max_rows: " + "9" * 5000 + "}", "has 5,000 characters; a number has at most 400"),
        ("tier: {max_rows: !!int abc}", "write text, a number, true, false or null"),
        ("tier: {max_rows: !!float abc}", "write text, a number, true, false or null"),
        ("topic: !!python/object:os.system x", "write text, a number, true, false or null"),
        ("topic: !!bool maybe", "write text, a number, true, false or null"),
        ("tier: {max_rows: 1.0e999999}", "beyond the range of a number"),
        ('topic: "a\\0b"', r"U\+0000 at character 2"),
        ('topic: "\\ud800"', r"half of a surrogate pair \(U\+D800\) at character 1"),
        ('"\\ud800": 1', "half of a surrogate pair"),
    ],
)
def test_a_hostile_spec_is_refused_by_name(text, message):
    with pytest.raises(SpecError, match=message):
        load_spec_text(text)


def test_a_spec_without_an_end_is_not_read_for_ever():
    with pytest.raises(SpecError, match="the spec cannot be read: it is a device"):
        load_spec("/dev/zero")


def test_aliases_save_typing():
    spec = load_spec_text("table: a.b\ncolumns: {a: &money 'decimal(12,2)', b: *money}")

    assert [str(column.type) for column in spec.columns] == ["decimal(12, 2)", "decimal(12, 2)"]


def test_a_value_with_too_many_digits_is_refused():
    with pytest.raises(SpecError, match="a number has at most 400"):
        load_value("9" * 5000)


def test_one_name_is_a_list_of_one():
    spec = load_spec_text("table: a.b\nkey: id\ncolumns: {id: long, at: date}\nlayout: {columns: at}")

    assert (spec.key, spec.layout.columns) == (("id",), ("at",))


ALONE = "table: shop.orders\ncolumns: {id: {type: long, required: true}}\n"
RAW = "table: shop.orders\nformat: raw\ncolumns: {v: binary}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            ALONE + "key_format: text\n",
            "3: key_format: record keys are read only if the table has a `key`; add one, or",
        ),
        (RAW + "key_format: raw\n", "4: key_format: record keys are read only if the table has a `key`"),
        (RAW + "unknown_fields: quarantine\n", "4: unknown_fields: a value of `format: raw` has no fields"),
        (
            ALONE + "contract:\n  columns:\n    id: {severity: warn}\n  rows: [{name: a, expr: id > 0}]\n",
            "5: contract.columns.id: it checks nothing; write a check, such as `not_null: true`, or remove it",
        ),
        (
            ALONE + "contract:\n  columns:\n    id: {not_null: false}\n  rows: [{name: a, expr: id > 0}]\n",
            "5: contract.columns.id: it checks nothing",
        ),
    ],
)
def test_a_setting_that_does_nothing_is_refused_with_what_to_do(text, message):
    with pytest.raises(SpecError, match=re.escape(f"t.yaml:{message}")):
        load_spec_text(text, source="t.yaml")


@pytest.mark.parametrize("words", ["key_format: json\n", "unknown_fields: ignore\n", "key: id\nkey_format: text\n"])
def test_what_is_the_default_or_has_its_key_is_no_such_setting(words):
    load_spec_text(ALONE + words, source="t.yaml")


def test_a_table_that_is_there_keeps_a_setting_that_does_nothing():
    words = {"table": "a.b", "columns": {"id": "long"}, "key_format": "text"}
    assert read_back(words, source="a.b").key_format == "text"
    with pytest.raises(SpecError, match="^a.b: key_format: "):
        check_rules(TableSpec.model_validate(words), source="a.b")
