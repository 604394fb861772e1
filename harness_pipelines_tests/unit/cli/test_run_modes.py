"""Which tables `harness run` takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.cli.operate.run import _chosen
from harness_pipelines.errors import UsageError


def opened(**modes: str) -> Any:
    tables = {name: SimpleNamespace(name=name, spec=SimpleNamespace(mode=mode)) for name, mode in modes.items()}
    return SimpleNamespace(tables=lambda: list(tables.values()), table=tables.__getitem__, sick_tables=list)


def test_without_names_the_modes_hold_and_a_named_table_is_taken_whatever_its_mode():
    harness = opened(one="runs", two="external_worker", three="manual")

    assert [table.name for table in _chosen(harness, ())] == ["two"]
    assert [table.name for table in _chosen(harness, ("three", "one"))] == ["three", "one"]


def test_where_no_table_is_left_to_workers_it_says_so():
    with pytest.raises(UsageError, match="no table has `mode: external_worker`.*harness run one"):
        _chosen(opened(one="runs"), ())
