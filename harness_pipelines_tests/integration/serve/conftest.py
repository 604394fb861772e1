"""The tables of the fault tests, here to be read by engines, and a running `harness serve`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import harness_pipelines as hp
from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, settings
from harness_pipelines_tests.integration.serve.server import Served, serving

__all__ = ["harness", "kafka", "make_rig", "settings"]


@pytest.fixture(scope="module")
def served(harness: hp.Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(harness, tmp_path_factory.mktemp("serve")) as found:
        yield found
