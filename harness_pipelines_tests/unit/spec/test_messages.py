"""What is said of specs that are wrong: the file, the line, the field, what was found and what is right."""

from __future__ import annotations

import pytest

from harness_pipelines.spec.load import SpecError, load_spec_text
from harness_pipelines_tests.unit.spec.wrong import SPECS

SAID = {
    "no YAML": "orders.yaml:1: not YAML: expected ',' or ']', but got '<stream end>'",
    "a list": "orders.yaml:1: a spec is a mapping of settings, starting with `table: namespace.name`",
    "nothing": "orders.yaml: the spec is empty; it starts with `table: namespace.name`",
    "no columns": "orders.yaml:1: columns: `columns` is missing",
    "no table": "orders.yaml:1: table: `table` is missing",
    "a table without a namespace": (
        "orders.yaml:1: table: 'orders' is not a table name; write namespace.name, each of a-z, 0-9 and _, "
        "beginning with a letter"
    ),
    "a table in capitals": (
        "orders.yaml:1: table: 'Shop.Orders' is not a table name; write namespace.name, each of a-z, 0-9 "
        "and _, beginning with a letter"
    ),
    "a word that is none": (
        "orders.yaml:3: colums: unknown setting `colums` (did you mean `columns`?); allowed: table, topic, "
        "topics, start, format, schema, columns, key, key_format, key_schema, delete, unavailable_value, "
        "views, layout, buffer, shards, tier, recall, on_error, unknown_fields, evolution, stop_above, "
        "quarantine_mb, transform, contract, retention, freshness, catalogs, mode"
    ),
    "a word of another place": (
        "orders.yaml:3: max_rows: unknown setting `max_rows`; allowed: table, topic, topics, start, format, "
        "schema, columns, key, key_format, key_schema, delete, unavailable_value, views, layout, buffer, "
        "shards, tier, recall, on_error, unknown_fields, evolution, stop_above, quarantine_mb, "
        "transform, contract, retention, freshness, catalogs, mode"
    ),
    "a topic with a space": (
        "orders.yaml:3: topic: 'my orders' is not a topic name; use 1 to 249 of A-Z, a-z, 0-9, `.`, `_` and `-`"
    ),
    "topics and topic": "orders.yaml:4: topics: "
    "write either `topic: a` or `topics: [a, b]`, and a name without a comma",
    "an unknown format": (
        "orders.yaml:3: format: 'xml' is not allowed; allowed: json, avro, protobuf, json-schema, raw, "
        "debezium, debezium-avro"
    ),
    "a format of later": (
        "orders.yaml:3: format: `format: csv` is reserved: it is not decoded yet; write `format: json` or remove it"
    ),
    "an unknown type": (
        "orders.yaml:2: columns.id.type: expected a type, found 'number' (did you mean decimal(p,s)?); "
        "allowed: boolean, int, long, float, double, date, time, timestamp, timestamptz, string, binary, "
        "uuid, decimal(p,s), list<type>, map<key, value>, struct<name: type, ...>"
    ),
    "a type of another database": (
        "orders.yaml:2: columns.id.type: expected a type, found 'serial' (did you mean int?); allowed: "
        "boolean, int, long, float, double, date, time, timestamp, timestamptz, string, binary, uuid, "
        "decimal(p,s), list<type>, map<key, value>, struct<name: type, ...>"
    ),
    "a decimal without digits": (
        "orders.yaml:2: columns.id.type: type 'decimal': a decimal names its digits, such as decimal(12,2)"
    ),
    "a decimal that is too large": (
        "orders.yaml:2: columns.id.type: type 'decimal(60,2)': the precision is 1 to 38, the scale 0 to the precision"
    ),
    "no columns in columns": "orders.yaml:2: columns: a table has 1 to 1,500 columns, not 0",
    "a column of ours": (
        "orders.yaml:2: columns._kafka_offset: the column name '_kafka_offset' is reserved, as are "
        "_kafka_*, _harness_*, _change_ordinal, _change_type, _commit_snapshot_id, _deleted, _file, "
        "_last_updated_sequence_number, _op, _partition, _pos, _row_id, _sample, _schema_version, "
        "_spec_id; give the field another name in the topic"
    ),
    "two columns that differ in case": "orders.yaml:2: columns.ID: "
    "the column occurs twice, also as 'id' (names ignore case)",
    "an unknown setting of a column": (
        "orders.yaml:2: columns.id.nullable: unknown setting `nullable`; "
        "allowed: type, required, from, aliases, default"
    ),
    "a column without a type": "orders.yaml:2: columns.id.type: `type` is missing",
    "a from that is none": (
        "orders.yaml:2: columns.at.from: 'unix' is not allowed; allowed: iso8601, epoch_days, epoch_ms, "
        "epoch_us, epoch_ns, ms_of_day, us_of_day, ns_of_day, number, base64, headers, raw_key, raw_value"
    ),
    "a from of another type": (
        "orders.yaml:2: columns.id.from: `from` is for date, time, timestamp, timestamptz, decimal and "
        "lists of them, not for long"
    ),
    "a default of another type": (
        "orders.yaml:2: columns.id.default: the column is long: it cannot be compared with text (x)"
    ),
    "a key that is no column": "orders.yaml:3: key: 'order_id' is not a column; columns: id, name",
    "a key of a double": (
        "orders.yaml:3: key: column 'id' of type double cannot be a key; key types: boolean, int, long, "
        "decimal, date, time, timestamp, timestamptz, string, uuid, binary"
    ),
    "a delete without a key": "orders.yaml:3: delete: records can delete only in a table with a `key`",
    "a delete without values": "orders.yaml:4: delete.values: `values` is missing",
    "change events without a key": (
        "orders.yaml:1: key: `format: debezium` needs it: without a key each update of a row would count "
        "as one more row"
    ),
    "a schema of JSON": "orders.yaml:3: schema: `format: json` has no schema; remove it, or write `format: avro`",
    "views that are none": "orders.yaml:3: views: 'all' is not allowed; allowed: stream, batch, both",
    "a clustering by no column": "orders.yaml:3: layout.columns: 'city' is not a column; columns: id, name",
    "a duration without a unit that is known": (
        "orders.yaml:3: retention.versions: '3 weeks' is not a duration; write a number above 0 and ms, "
        "s, m, h or d (60s, 15m), or plain seconds"
    ),
    "a size without a number": (
        "orders.yaml:3: tier.max_bytes: 'big' is not a size; write a whole number above 0 and B, KB, MB, "
        "GB or TB (256MB), or plain bytes"
    ),
    "a negative count": "orders.yaml:3: tier.max_rows: it should be greater than or equal to 1, found -1",
    "a start that is none": (
        "orders.yaml:3: start: 'newest' is not a start; allowed: earliest, latest, {timestamp: 2026-01-01T00:00:00Z}"
    ),
    "a time without a zone": (
        "orders.yaml:3: start.timestamp: '2026-01-01 00:00' has no offset; write it with one, such as "
        "2026-01-01T00:00:00Z"
    ),
    "a share above all": (
        "orders.yaml:3: stop_above.refused: '120%' is not a share; write 0% to 100%, such as 5%, "
        "or a number such as 0.05"
    ),
    "two ways to stop": (
        "orders.yaml:4: stop_above: the table stops at the first refused record (`on_error: stop`); remove one of them"
    ),
    "a check of no column": "orders.yaml:3: contract.columns.amount.ge: there is no column 'amount'; columns: id, name",
    "a check that is none": (
        "orders.yaml:3: contract.columns.id.min: unknown setting `min`; allowed: ge, gt, le, lt, eq, ne, "
        "isin, notin, matches, min_length, max_length, not_null, severity"
    ),
    "a transform without anything": "orders.yaml:3: transform: write `derive`, `filter` or both",
    "a derived column that is none": (
        "orders.yaml:3: transform.derive.total: 'total' is not a column; add it with a type to `columns`: id, name"
    ),
    "a mode that is none": "orders.yaml:3: mode: 'auto' is not allowed; allowed: runs, external_worker, manual",
}


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_spec_is_told_in_words_that_help(name: str):
    with pytest.raises(SpecError) as raised:
        load_spec_text(SPECS[name], source="orders.yaml")
    assert str(raised.value) == SAID[name]
