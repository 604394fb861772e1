"""What the gate runs again on an object store is there under its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness_pipelines_tests.essential import ESSENTIAL, TESTS


def test_pytest_finds_each_that_is_named():
    """A test or a case that was renamed would end the second run without having begun it, half an hour into the gate.

    Names of cases exist only once pytest has collected the file, so pytest is asked.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider"]
    named = [str(TESTS / name) for name in ESSENTIAL]
    done = subprocess.run(
        [*command, "--warehouse", "s3", *named], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert all(name in done.stdout for name in ESSENTIAL)


@pytest.mark.parametrize("name", ESSENTIAL)
def test_none_has_its_lake_on_a_store_in_the_first_run_already(name: str):
    assert not name.startswith("integration/stores/")
