"""What the gate runs again on an object store is there under its name."""

from __future__ import annotations

import pytest

from harness_pipelines_tests.essential import ESSENTIAL, TESTS


@pytest.mark.parametrize("name", ESSENTIAL)
def test_each_that_is_named_is_there(name: str):
    """A test that was renamed would end the second run without having begun it, half an hour into the gate."""
    path, _, rest = name.partition("::")
    function, _, _ = rest.partition("[")
    assert f"def {function}" in (TESTS / path).read_text()


@pytest.mark.parametrize("name", ESSENTIAL)
def test_none_has_its_lake_on_a_store_in_the_first_run_already(name: str):
    assert not name.startswith("integration/stores/")
