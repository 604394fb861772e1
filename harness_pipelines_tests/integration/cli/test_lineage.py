"""`harness lineage` on a real table: what people see, what programs get, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli


@pytest.fixture(scope="module")
def tiered(harness: Cli, kept_table: str) -> str:
    """A table with all that fits in the stream view, of which no test changes anything."""
    harness("run", kept_table, "--stage", "tier", "--until-idle")
    return kept_table


def told(harness: Cli, table: str, what: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(harness("lineage", table, what, "--json").stdout)
    return found


def test_a_record_leads_to_its_file_and_the_file_to_its_move(harness: Cli, tiered: str):
    record = told(harness, tiered, "0:7")
    assert (record["kind"], record["place"], record["record"], record["version"]) == ("record", "stream", True, 2)
    [file] = record["files"]
    assert (file["view"], file["partition"], file["offsets"]) == ("stream", 0, [0, GOOD // 2])

    found = told(harness, tiered, file["path"])
    assert (found["kind"], found["file"]["rows"]) == ("file", GOOD // 2)
    assert found["versions"] == {"first": 2, "last": 2, "live": True, "oldest_kept": 1, "newest": 2}
    assert found["snapshot"]["operation"] == "append"
    move = found["move"]
    assert (move["stage"], move["state"], move["version"], move["rows"]) == ("tier", "COMMITTED", 2, GOOD)
    assert move["ranges"] == {"0": [0, GOOD // 2 + 1], "1": [0, GOOD // 2]}

    of_move = told(harness, tiered, str(move["move_id"]))
    assert (of_move["kind"], of_move["move"]) == ("move", move)
    assert (len(of_move["files"]["added"]), of_move["files"]["removed"]) == (2, [])
    assert of_move["files"]["complete"]


def test_people_get_a_few_lines(harness: Cli, tiered: str):
    path = told(harness, tiered, "0:7")["files"][0]["path"]
    name, move = path.rsplit("/", 1)[-1], told(harness, tiered, path)["move"]["move_id"]

    file = harness("lineage", tiered, name).stdout
    assert f"{tiered}: a data file of the stream view\n" in file
    assert f"  path      {path}\n" in file
    assert "offsets [0, 30) of partition 0" in file
    assert "in version 2, the newest (of the retained ones, 1 to 2)" in file
    assert f"  move      {move}: tier, COMMITTED in attempt 1" in file
    assert "  offsets   0: [0, 31), 1: [0, 30)\n" in file
    shown = harness("lineage", tiered, str(move)).stdout
    assert f"  added     stream  {name}  30 rows" in shown
    assert "  removed   no file\n" in shown
    record = harness("lineage", tiered, "0:7").stdout
    assert "  lies      in the stream view\n" in record
    assert f"{name}  30 rows; offsets [0, 30) of partition 0; by tier move {move}" in record
    ingest, tier = record.splitlines()[-2:]
    assert ingest.startswith("  ingest    move ")
    assert tier.startswith(f"  tier      move {move}, ")
    assert tier.endswith("made version 2")


def test_records_outside_the_lake_are_told_too(harness: Cli, table: str):
    assert "  lies      in the buffer: " in harness("lineage", table, "1:3").stdout
    refused = harness("lineage", table, f"0:{GOOD // 2}").stdout
    assert "in quarantine" in refused
    assert f"`harness quarantine show {table} 0 {GOOD // 2}`" in refused
    ingest = told(harness, table, "1:3")["moves"][0]
    assert ingest["stage"] == "ingest"
    assert "none: its rows went to the buffer" in harness("lineage", table, str(ingest["move_id"])).stdout


def test_what_is_not_there_ends_with_1_and_what_is_no_question_with_2(harness: Cli, tiered: str):
    assert "no file 'gone.parquet'" in harness("lineage", tiered, "gone.parquet", code=1).stderr
    assert "has no move 999999999" in harness("lineage", tiered, "999999999", code=1).stderr
    assert f"ends at {GOOD // 2 + 1}" in harness("lineage", tiered, f"0:{GOOD}", code=1).stderr
    assert "has no partition 9" in harness("lineage", tiered, "9:0", code=1).stderr
    assert "PARTITION:OFFSET" in harness("lineage", tiered, "0/5", code=2).stderr
    assert "no.table" in harness("lineage", "no.table", "5", code=1).stderr
