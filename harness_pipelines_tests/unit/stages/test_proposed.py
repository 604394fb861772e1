"""Specs that are proposed for topics, as files, and records that are looked at without a table."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.infer.shown import Shower
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.ports.errors import TopicMissing
from harness_pipelines.show.spec_file import spec_text
from harness_pipelines.spec.load import load_spec_text
from harness_pipelines.spec.wording import SpecError
from harness_pipelines.stages.table.peeked import peek
from harness_pipelines.stages.table.proposed import propose_spec, table_of
from harness_pipelines_tests.memory.log import MemoryLog
from harness_pipelines_tests.unit.formats.infer.payloads import PAYLOADS
from harness_pipelines_tests.wire import GivenSchemas, avro_bytes, framed

ROW = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": "string"}]}


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    made.create_topic("orders", 3)
    return made


def stores(log: MemoryLog, schemas: Any = None) -> Any:
    return SimpleNamespace(log=log, schemas=schemas or NoSchemas())


def fill(log: MemoryLog, count: int, *, topic: str = "orders") -> None:
    for i in range(count):
        value = {"order_id": i, "amount": i + 0.25, "state": ["open", "paid"][i % 2]}
        log.append(topic, i % 3, json.dumps(value).encode(), key=b"%d" % i, timestamp_ms=1_000 + i)


# -- the file


def test_the_file_is_a_spec_that_takes_the_records(log):
    fill(log, 60)

    made = propose_spec(stores(log), "orders", table="shop.orders")
    text = spec_text(made, file="orders.yaml")

    assert load_spec_text(text) == made.spec
    assert (made.sampled.fit, made.sampled.records) == (60, 60)
    lines = text.splitlines()
    assert lines[0] == "# Proposed from 60 records of topic orders (3 partitions): 60 of 60 fit."
    assert "  order_id: long                                # 0" in lines
    assert '  state: string                                 # "open"; 2 values: open, paid' in lines
    assert any(line.startswith("# key: [order_id]") for line in lines), "the record keys are its values"


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_file_of_each_payload_is_read_back_as_proposed(log, name):
    for one in PAYLOADS[name][0]:
        log.append("orders", 0, json.dumps(one).encode())

    made = propose_spec(stores(log), "orders")

    assert load_spec_text(spec_text(made, file="f.yaml")) == made.spec
    assert not made.sampled.misfits


@pytest.mark.parametrize(
    "name", ["yes", "null", "1", "a b", "a: b", "#x", "- a", "straße", "0x1F", "1e3", "{a}", "'", "on"]
)
def test_names_that_mean_something_in_yaml_stay_names(log, name):
    log.append("orders", 0, json.dumps({name: 1, "id": {name: 2}}).encode())

    made = propose_spec(stores(log), "orders")
    read = load_spec_text(spec_text(made, file="f.yaml"))

    assert [c.name for c in read.columns] == [name, "id"]
    assert read == made.spec


def test_a_long_line_has_a_blank_before_its_comment(log):
    log.append("orders", 0, json.dumps({"a_rather_long_name_created_at": 1_767_225_600_000}).encode())

    text = spec_text(propose_spec(stores(log), "orders"), file="f.yaml")

    assert "from: epoch_ms} # 1767225600000" in text


def test_what_records_hold_breaks_no_line(log):
    log.append("orders", 0, json.dumps({"id": "a\nb: c\u2028\x1b[31m", "x\ny": 1}).encode())

    made = propose_spec(stores(log), "orders")
    text = spec_text(made, file="f.yaml")

    assert text.isprintable() or all(line.isprintable() for line in text.splitlines())
    assert load_spec_text(text) == made.spec


def test_the_newest_and_oldest_records_are_read_of_a_long_topic(log):
    fill(log, 3_000)

    made = propose_spec(stores(log), "orders", records=60)

    assert made.sampled.records == 60
    assert made.proposal.fields.columns[0].note == "0"


# -- the key


def test_a_key_of_the_caller_is_the_key(log):
    fill(log, 6)

    made = propose_spec(stores(log), "orders", key=["state"])

    assert made.spec.key == ("state",)
    assert yaml.safe_load(spec_text(made, file="f.yaml"))["key"] == ["state"]


def test_a_key_of_the_caller_goes_with_the_rule_of_the_rows(log):
    for state in ("false", "true"):
        log.append("orders", 0, json.dumps({"id": 1, "__deleted": state}).encode())

    made = propose_spec(stores(log), "orders", key=["id"])

    assert made.words["delete"] == {"field": "__deleted", "values": ["true"]}
    assert made.sampled.fit == 2


def test_record_keys_that_would_delete_no_row_are_named(log):
    log.append("orders", 0, json.dumps({"id": 1}).encode(), key=b"x")

    assert propose_spec(stores(log), "orders", key=["id"]).sampled.key_misfit is not None


def test_a_key_that_is_no_column_is_refused(log):
    fill(log, 6)

    with pytest.raises(SpecError, match="oder_id"):
        propose_spec(stores(log), "orders", key=["oder_id"])


def test_a_compacted_topic_has_a_table_with_a_key():
    log = MemoryLog()
    log.create_topic("orders", 3, policy="compact")
    fill(log, 6)

    made = propose_spec(stores(log), "orders")

    assert made.spec.key == ("order_id",)


def test_a_compacted_topic_without_a_known_key_says_what_is_needed():
    log = MemoryLog()
    log.create_topic("orders", 1, policy="compact")
    log.append("orders", 0, b'{"id":1}')

    assert any("give --key" in one for one in propose_spec(stores(log), "orders").notes)


def test_record_keys_that_can_be_no_key_are_named(log):
    log.append("orders", 0, b'{"at":1.5}', key=b'{"at":1.5}')

    made = propose_spec(stores(log), "orders")

    assert made.proposal.key == ()
    assert any("cannot be a key" in one for one in made.notes)


# -- names


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("orders", "topics.orders"),
        ("shop.orders", "shop.orders"),
        ("server.shop.orders", "shop.orders"),
        ("Shop-EU.Orders", "shop_eu.orders"),
        ("2024.orders", "t_2024.orders"),
        ("..orders..", "topics.orders"),
        ("-", "topics.topic"),
        ("a" * 200, f"topics.{'a' * 55}"),
    ],
)
def test_the_table_is_named_after_its_topic(topic, table):
    assert table_of(topic) == table


def test_a_topic_that_is_missing_is_named(log):
    with pytest.raises(TopicMissing, match="oders"):
        propose_spec(stores(log), "oders")


@pytest.mark.parametrize("table", ["Orders", "a.b__stream", "a"])
def test_a_name_that_no_table_can_have_is_refused(log, table):
    fill(log, 3)

    with pytest.raises(SpecError):
        propose_spec(stores(log), "orders", table=table)


# -- looking at records


def test_the_newest_records_are_shown_over_all_partitions(log):
    fill(log, 30)

    found = peek(stores(log), "orders", 4)

    assert [(one.partition, one.offset) for one in found] == [(2, 8), (0, 9), (1, 9), (2, 9)]
    assert found[-1].value.value == {"order_id": 29, "amount": 29.25, "state": "paid"}
    assert (found[-1].key.form, found[-1].key.text) == ("json", "29")


def test_records_from_an_offset_on_are_shown(log):
    fill(log, 30)

    found = peek(stores(log), "orders", 2, partition=1, offset=4)

    assert [(one.partition, one.offset) for one in found] == [(1, 4), (1, 5)]


def test_gaps_do_not_hide_records(log):
    fill(log, 9)
    for _ in range(50):
        transaction = log.begin()
        log.append("orders", 0, b"x", transaction=transaction)
        transaction.abort()

    assert [one.offset for one in peek(stores(log), "orders", 3, partition=0)] == [0, 1, 2]


@pytest.mark.parametrize("timestamp_ms", [-1, 2**62, 253_402_300_800_000])
def test_a_time_that_is_none_hides_no_record(log, timestamp_ms):
    log.append("orders", 0, b"1", timestamp_ms=timestamp_ms)

    [found] = peek(stores(log), "orders", 1)

    assert found.time is None


def test_an_empty_topic_shows_nothing(log):
    assert peek(stores(log), "orders", 3) == []


def test_a_partition_that_is_not_there_is_named(log):
    with pytest.raises(UsageError, match="has partitions 0 to 2, and no partition 3"):
        peek(stores(log), "orders", 3, partition=3)


@pytest.mark.parametrize(
    ("data", "form", "value"),
    [
        (None, "null", None),
        (b"", "text", ""),
        (b'{"a": 1.50}', "json", {"a": 1.5}),
        (b"NaN", "text", "NaN"),
        (b"hello", "text", "hello"),
        (b"\xff\x00", "bytes", "ff00"),
        (b"[" * 100_000, "text", "[" * 100_000),
    ],
)
def test_what_is_no_record_of_a_schema_is_shown_as_it_is(data, form, value):
    found = Shower(NoSchemas()).show(data)

    assert (found.form, found.value) == (form, value)


def test_a_record_is_shown_by_the_schema_that_it_names():
    shower = Shower(GivenSchemas.avro(ROW, "long"))

    assert shower.show(framed(avro_bytes(ROW, {"id": 1, "name": "a"}))).value == {"id": 1, "name": "a"}
    assert (shower.show(framed(b"\x02", 2)).form, shower.show(framed(b"\x02", 2)).value) == ("avro 2", 1)
    assert shower.show(framed(b"\xff" * 20)).form == "bytes", "it is not what its schema says"
    assert shower.show(framed(b"x", 9)).form == "text", "the registry has no such schema"
