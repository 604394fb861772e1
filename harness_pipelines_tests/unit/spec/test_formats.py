"""How records are written: what a spec may say, and what it may not."""

from __future__ import annotations

import re

import pytest

from harness_pipelines.spec.load import dump_spec, load_spec
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.wording import SpecError

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
HEADERS = "list<struct<key: string, value: binary>>"


def spec(**words) -> TableSpec:
    return TableSpec.model_validate({"table": "shop.orders", "columns": {"id": "long"}, **words})


@pytest.mark.parametrize(
    ("format_", "key_format"),
    [
        ("json", "json"), ("avro", "avro"), ("protobuf", "protobuf"), ("json-schema", "json-schema"),
        ("debezium", "json"), ("debezium-avro", "avro"),
    ],
)  # fmt: skip
def test_keys_are_written_as_values_are_unless_the_spec_says_otherwise(format_, key_format):
    assert spec(format=format_, key=["id"]).key_format == key_format
    if not format_.startswith("debezium"):
        assert spec(format=format_, key=["id"], key_format="text").key_format == "text"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"schema": {"text": AVRO}}, "`format: json` has no schema; remove it, or write `format: avro`"),
        ({"format": "avro", "schema": {"text": AVRO, "message": "Order"}}, "`message` is only for Protobuf"),
        ({"format": "avro", "schema": {"file": "a.avsc"}}, "`file` is read where the spec is a file; in Python"),
        ({"format": "avro", "schema": {"text": ""}}, "at least 1 character"),
        ({"format": "avro", "key_schema": {"text": AVRO}}, "`key_format: json` has no schema"),
        ({"format": "raw", "columns": {"v": "long"}}, "one column, of type binary or string"),
        ({"format": "raw", "columns": {"v": "binary", "w": "binary"}}, "one column, of type binary or string"),
        ({"columns": {"h": {"type": HEADERS, "from": "headers"}}}, "no column is a field; name one, or write"),
        ({"columns": {"id": "int", "h": {"type": "map<string, binary>", "from": "headers"}}}, f"gives {HEADERS}, not"),
        ({"columns": {"id": "int", "v": {"type": "long", "from": "raw_value"}}}, "gives binary or string, not long"),
        ({"format": "raw", "columns": {"v": "binary"}, "key": ["v"]}, "comes from the value, which tombstones lack"),
        (
            {"columns": {"k": {"type": "string", "from": "raw_key"}, "id": "long"}, "key": ["k"]},
            "column 'k' has the bytes of the record's key: write `key_format: raw`",
        ),
        ({"key": ["id"], "key_format": "raw"}, "raw keys are one column of type binary or string"),
        (
            {"format": "raw", "columns": {"k": {"type": "string", "from": "raw_key"}}, "key": ["k"],
             "delete": {"field": "op", "values": ["d"]}},
            "a value of `format: raw` has no fields; only tombstones delete",
        ),
        ({"format": "debezium-avro"}, "`format: debezium-avro` needs it: without a key"),
        ({"format": "debezium-avro", "key": ["id"], "key_format": "raw"}, "are avro or json"),
        ({"evolution": "strict"}, "records of `format: json` name no schema that says what columns there are"),
        ({"format": "json-schema", "evolution": "compatible"}, "records of `format: json-schema` name no schema that"),
        ({"format": "avro", "schema": {"text": AVRO}, "evolution": "strict"}, "records name no schema"),
        (
            {"format": "avro", "evolution": "compatible", "buffer": "none"},
            "with `buffer: none` there is no ingest; write `evolution: manual`, or remove it",
        ),
        (
            {"format": "avro", "evolution": "strict", "transform": {"filter": "id > 0"}},
            "with `transform` the columns are not the fields",
        ),
    ],
)  # fmt: skip
def test_words_that_do_not_go_together_are_named(words, message):
    with pytest.raises(SpecError, match=re.escape(message)):
        spec(**words)


def test_the_ledger_keeps_the_text_of_a_schema_that_a_file_has(tmp_path):
    (tmp_path / "order.avsc").write_text(AVRO)
    (tmp_path / "orders.yaml").write_text(
        "table: shop.orders\nformat: avro\nschema: {file: order.avsc}\ncolumns: {id: long}\n"
    )

    found = load_spec(tmp_path / "orders.yaml")

    assert found.value_schema is not None and found.value_schema.text == AVRO
    assert dump_spec(found)["schema"] == {"text": AVRO, "message": None}
    assert TableSpec.model_validate(dump_spec(found)) == found


def test_a_file_that_is_not_there_is_named_with_its_line(tmp_path):
    path = tmp_path / "orders.yaml"
    path.write_text("table: shop.orders\nformat: avro\nschema:\n  file: none.avsc\ncolumns: {id: long}\n")

    with pytest.raises(SpecError, match=r"orders.yaml:4: schema.file: .*none.avsc cannot be read: No such file"):
        load_spec(path)
