"""`harness table`, `status`, `read`, `explain` and `quarantine` on a real table."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from harness_pipelines_tests.integration.cli.conftest import GOOD
from harness_pipelines_tests.producer import DEADLINE_S


def test_applying_a_spec_twice_creates_once_and_then_changes_nothing(harness, spec):
    name, file = spec

    shown = harness("table", "apply", str(file), "--dry-run").output
    assert f"would create {name}" in shown and "a sample of its records: " in shown
    assert name not in harness("table", "list").stdout
    assert f"created {name}" in harness("table", "apply", str(file)).output
    assert json.loads(harness("table", "apply", str(file), "--json").stdout)["result"] == "unchanged"
    file.write_text(file.read_text() + "freshness: {visible: 9s}\n")
    planned = json.loads(harness("table", "apply", str(file), "--dry-run", "--json").stdout)
    change = {"setting": "freshness.visible", "old": "5s", "new": "9s"}
    assert (planned["result"], planned["changes"]) == ("would change", [change])
    assert "visible: 5s" in harness("table", "show", name).stdout
    assert "freshness.visible: 5s -> 9s" in harness("table", "apply", str(file)).output
    assert "visible: 9s" in harness("table", "show", name).stdout
    assert "would not change" in harness("table", "apply", str(file), "--dry-run").output
    file.write_text(file.read_text().replace("decimal(9,2)", "decimal(12,2)"))
    assert "`harness evolve" in harness("table", "apply", str(file), "--dry-run", code=1).stderr


def test_a_spec_that_is_wrong_ends_with_2_and_names_file_and_line(harness, spec):
    _, file = spec
    file.write_text(file.read_text().replace("topic:", "topik:"))

    assert f"{file}:2" in harness("table", "apply", str(file), code=2).stderr


def test_status_has_the_fixed_form_and_counts_the_lag(harness, kept_table):
    found = json.loads(harness("status", kept_table, "--json").stdout)["tables"]

    assert [one["table"] for one in found] == [kept_table]
    assert found[0]["version"] == 1
    assert found[0]["lag"] == {"tail": 0, "buffer": GOOD + 1, "stream": 0}
    assert found[0]["quarantined"] == 1
    assert 0 < found[0]["since_ingest_s"] < found[0]["since_tier_s"], "the table is older than its newest commit"
    assert found[0]["freshness"] == {"visible_s": 5.0, "lake_s": 900.0}
    assert found[0]["partitions"][0] == {
        "partition": 0,
        "start": 0,
        "end": GOOD // 2 + 1,
        "buffer_hi": GOOD // 2 + 1,
        "stream_hi": 0,
        "batch_hi": 0,
        "refused": 1,
        "filtered": 0,
    }


def test_status_is_shown_again_and_again_until_it_is_interrupted(harness, kept_table):
    with harness.start("status", kept_table, "--watch", "--every", "100ms") as process:
        assert process.stdout is not None
        looks = (line for line in iter(process.stdout.readline, "") if line.startswith(kept_table))
        assert all("version 1" in next(looks) for _ in range(3))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    assert "--json` prints it once" in harness("status", "--watch", "--json", code=2).stderr


@pytest.mark.long
def test_status_shows_what_the_ledger_knows_while_kafka_is_away(harness, table):
    result = harness("status", table, "--json", env={"HARNESS_KAFKA": "127.0.0.1:1"})

    found = json.loads(result.stdout)
    assert found["tables"][0]["lag"] == {"tail": None, "buffer": GOOD + 1, "stream": 0}
    assert found["tables"][0]["partitions"][0]["end"] is None
    assert "127.0.0.1:1" in found["kafka"]
    assert "127.0.0.1:1" in result.stderr


def test_status_for_people_shows_a_bar_per_partition_and_how_to_go_on(harness, kept_table):
    shown = harness("status", kept_table).output

    assert shown.count("▓" * 40) == 2
    assert f"{GOOD // 2} | 0 | 1" in shown, "the refused offset is no row of the buffer"
    assert f"{GOOD + 1} only in the buffer (1 refused)" in shown
    assert "✗ no rows" in shown
    assert f"`harness run {kept_table}`" in shown
    assert f"`harness quarantine list {kept_table}`" in shown


def test_read_gives_the_rows_in_every_format(harness, kept_table, tmp_path):
    where = ("--where", "id < 3", "--columns", "id,amount")
    expected = [(i, f"{i}.50") for i in range(3)]

    array = json.loads(harness("read", kept_table, *where, "--format", "json").stdout)
    lines = list(csv.reader(io.StringIO(harness("read", kept_table, *where, "--format", "csv").stdout)))
    harness("read", kept_table, *where, "--output", str(tmp_path / "rows.parquet"))
    file = pq.read_table(tmp_path / "rows.parquet")

    assert sorted((row["id"], row["amount"]) for row in array) == expected
    assert lines[0] == ["id", "amount"]
    assert sorted((int(i), a) for i, a in lines[1:]) == expected
    assert sorted((row["id"], str(row["amount"])) for row in file.to_pylist()) == expected
    assert [path.name for path in tmp_path.iterdir() if path.suffix in {".new", ".parquet"}] == ["rows.parquet"]


def test_read_gives_the_same_sample_in_every_format(harness, kept_table, tmp_path):
    words = ("read", kept_table, "--columns", "id", "--sample", "0.4")
    expected = sorted(row["id"] for row in json.loads(harness(*words, "--json").stdout)["rows"])  # they have no order
    harness(*words, "--output", str(tmp_path / "rows.parquet"))
    head, *lines = harness(*words, "--format", "csv").stdout.split()

    assert 0 < len(expected) < GOOD
    assert sorted(row["id"] for row in json.loads(harness(*words, "--format", "json").stdout)) == expected
    assert (head, sorted(map(int, lines))) == ('"id"', expected)
    assert sorted(pq.read_table(tmp_path / "rows.parquet").column("id").to_pylist()) == expected
    assert f"{len(expected)} rows" in harness(*words).output
    assert len(json.loads(harness(*words, "--limit", "3", "--json").stdout)["rows"]) == 3
    assert "--sample" in harness(*words[:-1], "40", code=2).stderr


def test_read_shows_coordinates_when_asked(harness, kept_table):
    rows = json.loads(harness("read", kept_table, "--coordinates", "--json").stdout)["rows"]

    assert {(row["_kafka_partition"], row["_kafka_offset"]) for row in rows} == {
        (p, o) for p in range(2) for o in range(GOOD // 2)
    }


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--where", "amunt > 1"), 2, "did you mean 'amount'?"),
        (("--columns", "idd"), 2, "no column 'idd'"),
        (("--where", "id >"), 2, "expected"),
        (("--at", "99"), 1, "version 99 is not retained"),
        (("--columns", " , "), 2, "at least one column"),
    ],
)
def test_what_cannot_be_read_is_said_and_no_row_is_printed(harness, kept_table, words, code, said):
    result = harness("read", kept_table, *words, code=code)

    assert said in result.stderr
    assert result.stdout == ""


def test_an_unknown_table_is_answered_with_those_that_exist(harness, kept_table):
    assert kept_table in harness("read", "cli.nope", code=1).stderr


def test_a_reader_that_goes_away_ends_the_command_quietly(harness, kept_table):
    reading = (
        f"{sys.executable} -m harness_pipelines.cli.main --home={harness.home} read {kept_table} --format csv | head -1"
    )

    done = subprocess.run(["sh", "-c", reading], capture_output=True, text=True, timeout=300, check=True)

    assert done.stdout == '"id","amount"\n'
    assert "Traceback" not in done.stderr


def test_explain_prints_the_plan_and_ends_its_lease(harness, table):
    plan = json.loads(harness("explain", table, "--where", "_kafka_partition = 1", "--analyze", "--json").stdout)
    after = json.loads(harness("status", table, "--json").stdout)["tables"][0]

    assert plan["format"] == 5
    assert plan["tiers"]["buffer"] == {"offsets": GOOD + 1, "after_where": GOOD // 2}
    assert plan["analyze"]["rows"] == GOOD // 2
    assert after["readers"] == 0


def test_a_quarantined_record_is_listed_and_shown_with_its_bytes(harness, kept_table):
    listed = json.loads(harness("quarantine", "list", kept_table, "--json").stdout)
    shown = json.loads(harness("quarantine", "show", kept_table, "0", str(GOOD // 2), "--json").stdout)

    assert [(one["reason"], one["records"]) for one in listed["reasons"]] == [("malformed", 1)]
    assert bytes.fromhex(shown["value"]) == b'{"bad'
    assert shown["value_text"] == '{"bad'
    assert "no quarantined record" in harness("quarantine", "show", kept_table, "0", "1", code=1).stderr


def test_drop_without_yes_changes_nothing_and_says_what_would_go(harness, kept_table):
    result = harness("table", "drop", kept_table, code=2)

    assert f"would drop {kept_table}" in result.stdout
    assert "add --yes" in result.stderr
    assert json.loads(harness("table", "drop", kept_table, "--dry-run", "--json").stdout)["quarantined"] == 1
    assert json.loads(harness("read", kept_table, "--json").stdout)["rows"]


def test_a_dropped_table_leaves_nothing_behind_and_can_be_made_again(harness, table, spec):
    gone = json.loads(harness("table", "drop", table, "--yes", "--purge", "--json").stdout)

    assert gone["dropped"]
    assert gone["segments"]
    assert table not in harness("table", "list").stdout
    harness("table", "apply", str(spec[1]))
    assert json.loads(harness("status", table, "--json").stdout)["tables"][0]["quarantined"] == 0
