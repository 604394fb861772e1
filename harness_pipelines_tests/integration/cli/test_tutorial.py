"""The tutorial, from its first command to its last, as the page has it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness_pipelines_tests.producer import KafkaRig

PAGE = Path(__file__).parents[3] / "docs" / "tutorial" / "first-table.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: `deploy/run` of a clone whose services are those of the tests, which others go on using
_RUN = """#!/usr/bin/env bash
[[ "$1 $2" == "services down" ]] && exit 0
exec {python} -m harness_pipelines.cli.main --home={home} "$@"
"""


def _script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def clone(harness, rig: KafkaRig, tmp_path: Path) -> Iterator[Path]:
    """A folder with what the page expects of a clone, and the files that it has its reader write."""
    blocks = _BLOCK.findall(PAGE.read_text())
    [producer] = [text for kind, text in blocks if kind == "python"]
    [spec] = [text for kind, text in blocks if kind == "yaml"]
    (tmp_path / "orders.py").write_text(producer)
    (tmp_path / "orders.yaml").write_text(spec)
    _script(tmp_path / "deploy" / "run", _RUN.format(python=sys.executable, home=harness.home))
    _script(tmp_path / ".venv" / "bin" / "python", f'#!/usr/bin/env bash\nexec {sys.executable} "$@"\n')
    (tmp_path / ".harness").mkdir()
    commands = "".join(text for kind, text in blocks if kind == "sh")
    # The producer makes the topic in its first second; a reader types the spec meanwhile.
    apply = "deploy/run table apply orders.yaml\n"
    assert apply in commands
    commands = commands.replace(apply, f"for try in {{1..30}}; do {apply.strip()} && break; sleep 1; done\n")
    _script(tmp_path / "all.sh", f"set -em\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n{commands}")
    yield tmp_path
    words = yaml.safe_load(spec)
    if words["table"] in harness("table", "list").stdout:
        harness("table", "drop", words["table"], "--yes", "--purge")
    rig.delete(words["topic"])


def test_the_commands_of_the_page_do_what_it_says(clone: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HARNESS_")}
    env = {**kept, "HARNESS_JARS": os.environ["HARNESS_JARS"]}
    done = subprocess.run(["bash", "all.sh"], cwd=clone, env=env, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK  shop.orders: every record is in exactly one tier" in done.stdout
    assert (clone / "layout.png").read_bytes().startswith(b"\x89PNG")
    assert "dropped shop.orders" in done.stdout
