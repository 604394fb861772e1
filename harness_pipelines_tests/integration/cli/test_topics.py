"""`harness topics`, `peek` and `table init`, and a folder of specs, against a real Kafka."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from harness_pipelines_tests.integration.cli.conftest import Cli
from harness_pipelines_tests.producer import KafkaRig


@pytest.fixture
def topic(rig: KafkaRig) -> str:
    """A topic with ten orders, whose keys are their ids, in two partitions."""
    name = rig.create(2)
    for partition in range(2):
        for i in range(partition, 10, 2):
            order = {"order_id": i, "amount": i + 0.5, "at": "2026-01-01T00:00:00Z"}
            rig.produce(name, partition, [json.dumps(order).encode()], key=b"%d" % i)
    return name


def test_a_topic_becomes_a_table_by_two_commands(harness: Cli, topic: str, tmp_path: Path):
    table = f"cli.t_{uuid.uuid4().hex[:10]}"
    made = harness("table", "init", topic, "--table", table)
    file = tmp_path / "orders.yaml"
    file.write_text(made.stdout)

    assert "10 of 10 fit" in made.stderr
    applied = harness("table", "apply", str(file)).output
    assert f"created {table}" in applied
    assert "10 of 10 fit" in applied
    harness("run", table, "--stage", "ingest", "--until-idle")
    rows = harness("read", table, "--columns", "order_id", "--format", "csv").stdout.split()[1:]
    assert sorted(map(int, rows)) == list(range(10))
    harness("table", "drop", table, "--yes", "--purge")


def test_a_proposal_is_json_for_programs(harness: Cli, topic: str):
    found = json.loads(harness("table", "init", topic, "--json").stdout)

    assert found["spec"]["columns"] == {"order_id": "long", "amount": "decimal(18, 2)", "at": "timestamptz"}
    assert found["key_of_records"] == ["order_id"]
    assert found["sample"]["fit"] == 10


def test_topics_are_listed_with_their_tables(harness: Cli, topic: str, table: str):
    found = {one["topic"]: one for one in json.loads(harness("topics", "--json").stdout)["topics"]}

    assert found[topic] == {"topic": topic, "partitions": 2, "offsets": 10, "tables": [], "trouble": None}
    assert [one for one in found.values() if table in one["tables"]]
    assert "__consumer_offsets" not in found
    told = harness("topics", topic)
    assert topic in told.stdout
    assert "no table" in told.stdout
    assert "no topic matches" in harness("topics", "nothing-like-it").stderr


def test_records_are_shown(harness: Cli, topic: str):
    found = json.loads(harness("peek", topic, "-n", "3", "--partition", "1", "--json").stdout)["records"]

    assert [one["offset"] for one in found] == [2, 3, 4]
    assert found[-1]["value"]["order_id"] == 9
    assert found[-1]["key"] == 9
    told = harness("peek", topic, "-n", "1", "--partition", "1", "--from", "0").stdout
    assert "partition 1, offset 0" in told
    assert '"order_id": 1' in told


def test_many_topics_get_a_file_each_and_are_applied_as_a_folder(harness: Cli, rig: KafkaRig, tmp_path: Path):
    mark = f"m{uuid.uuid4().hex[:8]}"
    for name in ("a", "b", "empty"):
        rig.create(1, topic=f"{mark}.{name}")
    for name in ("a", "b"):
        rig.produce(f"{mark}.{name}", 0, [b'{"id":1}'])
    into = tmp_path / "specs"

    told = harness("table", "init", "--all", f"{mark}.*", "--into", str(into)).stdout

    assert sorted(one.name for one in into.iterdir()) == [f"{mark}.a.yaml", f"{mark}.b.yaml"]
    assert "has no records" in told
    (into / "wrong.yaml").write_text("table: x\n")
    applied = harness("table", "apply", str(into), code=1)
    assert f"created {mark}.a" in applied.stdout
    assert f"created {mark}.b" in applied.stdout
    assert "wrong.yaml" in applied.stderr
    again = harness("table", "init", "--all", f"{mark}.*", "--into", str(into)).stdout
    assert f"table {mark}.a reads it" in again
    for name in ("a", "b"):
        harness("table", "drop", f"{mark}.{name}", "--yes", "--purge")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "name one topic"),
        (("t", "--all", "*", "--into", "x"), "name one topic"),
        (("--all", "*"), "go together"),
        (("t", "--into", "x"), "go together"),
        (("--all", "*", "--into", "x", "--key", "id"), "with --all correct the files"),
        (("--all", "nothing-like-it", "--into", "x"), "no topic matches"),
    ],
)
def test_words_that_do_not_go_together_are_refused(harness: Cli, tmp_path: Path, monkeypatch, words, why):
    monkeypatch.chdir(tmp_path)

    assert why in harness("table", "init", *words, code=2).stderr


def test_a_topic_that_is_missing_is_named_with_those_like_it(harness: Cli, topic: str):
    said = harness("peek", f"{topic}x", code=1).stderr

    assert f"{topic}x" in said
    assert f"did you mean {topic!r}?" in said


def test_a_folder_without_specs_is_refused(harness: Cli, tmp_path: Path):
    assert "has no specs" in harness("table", "apply", str(tmp_path), code=2).stderr
