"""`harness replay`: a range, looked at first and decoded again then."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness_pipelines_tests.integration.cli.conftest import GOOD, Cli


@pytest.fixture
def table(harness: Cli, spec: tuple[str, Path]) -> str:
    """A table whose records are in the lake."""
    name, file = spec
    harness("table", "apply", str(file))
    harness("run", name, "--until-idle")
    return name


def test_a_range_is_shown_first_and_replaced_when_told(
    harness: Cli, table: str, spec: tuple[str, Path], tmp_path: Path
):
    part = ("--partition", "1", "--from", "0", "--to", "10")
    assert "nothing changed: no version was published" in harness("replay", table, *part, "--yes").stdout
    strict = tmp_path / "strict.yaml"
    strict.write_text(spec[1].read_text() + "contract: {columns: {id: {lt: 0}}}\n")
    named = (*part, "--decoder", str(strict))

    shown = harness("replay", table, *named, code=2)
    assert "10 records of partition 1 [0, 10): 0 equal, 0 changed, 0 added, 10 removed" in shown.stdout
    assert "  0  removed: contract: " in shown.stdout
    assert "--yes" in shown.stderr
    tried = json.loads(harness("replay", table, *named, "--dry-run", "--json").stdout)
    assert (tried["removed"], tried["version"]) == (10, None)
    assert len(json.loads(harness("read", table, "--json").stdout)["rows"]) == GOOD

    done = json.loads(harness("replay", table, *named, "--yes", "--json").stdout)
    assert done["version"] is not None
    assert len(json.loads(harness("read", table, "--json").stdout)["rows"]) == GOOD - 10
    harness("audit", table, "--full")
    harness("fsck", table)


def test_what_cannot_be_is_refused_by_name(harness: Cli, table: str):
    assert (
        "--from 5 is not below --to 5"
        in harness("replay", table, "--partition", "0", "--from", "5", "--to", "5", code=2).stderr
    )
    far = harness("replay", table, "--partition", "0", "--from", "0", "--to", "100000", "--yes", code=1)
    assert "--until-idle" in far.stderr
