"""Reconcile with the lake on an object store: what it concludes from a listing, or from branches, holds there too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines.services import Endpoints
from harness_pipelines_tests.integration.audit.scratch import Scratch, scratch
from harness_pipelines_tests.integration.audit.test_reconcile import (
    test_a_move_without_claim_and_files_is_abandoned_with_its_leases_and_branches,
)
from harness_pipelines_tests.integration.audit.test_reconcile_lake import (
    test_a_lost_database_is_rebuilt_from_lake_and_kafka,
)

__all__ = [
    "test_a_lost_database_is_rebuilt_from_lake_and_kafka",
    "test_a_move_without_claim_and_files_is_abandoned_with_its_leases_and_branches",
]


@pytest.fixture
def place(endpoints: Endpoints, tmp_path: Path) -> Iterator[Scratch]:
    """A database and a warehouse of the test's own, beside that of the shared services."""
    with scratch(endpoints, tmp_path) as made:
        assert made.warehouse.startswith("s3://")
        yield made
