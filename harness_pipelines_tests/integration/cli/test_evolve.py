"""`harness evolve`: a change is shown first, made by one command, and refused with the way on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli


@pytest.fixture
def table(harness: Cli, spec: tuple[str, Path]) -> str:
    name, file = spec
    harness("table", "apply", str(file))
    harness("run", name, "--until-idle")
    return name


def test_a_change_is_shown_and_made_in_one_version(harness: Cli, table: str, spec: tuple[str, Path], tmp_path: Path):
    shown = harness("evolve", table, "--add", "note string", "--dry-run").stdout
    assert "add note string" in shown
    assert f"{table} would have schema 2:" in shown
    before = json.loads(harness("table", "show", table, "--json").stdout)["spec"]["columns"]

    done = json.loads(harness("evolve", table, "--add", "note string", "--json").stdout)

    assert (done["schema_version"], done["changes"], done["done"]) == (2, ["add note string"], True)
    found = json.loads(harness("read", table, "--json").stdout)["rows"]
    assert len(found) == GOOD
    assert all(row["note"] is None for row in found)
    after = json.loads(harness("table", "show", table, "--json").stdout)["spec"]["columns"]
    assert [c["name"] for c in after] == [*(c["name"] for c in before), "note"]
    harness("run", table, "--until-idle")
    harness("audit", table, "--full")
    harness("fsck", table)

    behind = harness("table", "apply", str(spec[1]), code=1)
    assert f"`harness evolve {table} --to FILE --dry-run`" in behind.stderr
    ahead = tmp_path / "ahead.yaml"
    ahead.write_text(harness("table", "show", table).stdout)
    harness("table", "apply", str(ahead))
    words = yaml.safe_load(ahead.read_text())
    words["columns"]["remark"] = {"type": "string", "aliases": ["note"]}
    del words["columns"]["note"]
    ahead.write_text(yaml.safe_dump(words, sort_keys=False))
    assert "rename note to remark" in harness("evolve", table, "--to", str(ahead)).stdout
    harness("table", "apply", str(ahead))

    done = harness(
        "evolve", table, "--add", "box struct<a: int, b: string>", "--add", "state string default 'new'"
    ).stdout
    assert "add state string default 'new'" in done
    words = yaml.safe_load(harness("table", "show", table).stdout)
    assert words["columns"]["state"] == {"type": "string", "default": "new"}
    words["columns"]["box"] = "struct<c: int, a: long>"
    ahead.write_text(yaml.safe_dump(words, sort_keys=False))
    changes = json.loads(harness("evolve", table, "--to", str(ahead), "--json").stdout)["changes"]
    assert changes == ["drop box.b", "widen box.a from int to long", "add box.c int", "order c, a of box"]
    harness("table", "apply", str(ahead))
    harness("evolve", table, "--default", "state=null", "--describe", "state=Where it stands, or NULL")
    words = yaml.safe_load(harness("table", "show", table).stdout)
    assert words["columns"]["state"]["description"] == "Where it stands, or NULL"
    words["columns"]["state"]["description"] = "Where it stands"
    ahead.write_text(yaml.safe_dump(words, sort_keys=False))
    assert "`harness evolve" in harness("table", "apply", str(ahead), code=1).stderr
    assert "description of state: 'Where it stands'" in harness("evolve", table, "--to", str(ahead)).stdout
    words["description"] = "Orders of all shops"
    ahead.write_text(yaml.safe_dump(words, sort_keys=False))
    harness("table", "apply", str(ahead))
    assert yaml.safe_load(harness("table", "show", table).stdout)["description"] == "Orders of all shops"
    harness("evolve", table, "--describe", "state=")
    assert "description" not in yaml.safe_load(harness("table", "show", table).stdout)["columns"]["state"]
    harness("fsck", table)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "no change was asked for"),
        (("--add", "x int default y"), "'y' is no value of type int; write a number"),
        (("--default", "id=[1"), "not YAML"),
        (("--add", "x.y struct<default: int>", "--rename", "x.y=z"), "there is no column 'x.y'"),
        (("--drop", "nothing"), "there is no column 'nothing'; columns: "),
        (("--rename", "id"), "'id' is not a pair; write NAME=VALUE"),
        (("--add", "x number"), "'number'"),
    ],
)
def test_what_is_wrong_is_told_with_the_way_on(harness: Cli, kept_table: str, options: tuple[str, ...], why: str):
    told = harness("evolve", kept_table, *options, code=2).stderr
    assert why in told
    assert harness("evolve", kept_table, *options, "--dry-run", code=2).stderr == told
