"""Which tables `harness run` takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.cli.operate.run import _chosen
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.ledger import TableUnknown


def opened(**modes: str) -> Any:
    tables = {name: SimpleNamespace(name=name, spec=SimpleNamespace(mode=mode)) for name, mode in modes.items()}

    def table(name: str) -> Any:
        if name not in tables:
            raise TableUnknown(name)
        return tables[name]

    return SimpleNamespace(survey=lambda: (list(tables.values()), []), table=table)


def test_without_names_the_modes_hold_and_a_named_table_is_taken_whatever_its_mode():
    harness = opened(one="runs", two="external_worker", three="manual")

    assert [table.name for table in _chosen(harness, (), waits=True)] == ["two"]
    assert [table.name for table in _chosen(harness, ("three", "one"), waits=False)] == ["three", "one"]


def test_where_no_table_is_left_to_workers_it_says_so():
    with pytest.raises(UsageError, match="no table has `mode: external_worker`.*harness run one"):
        _chosen(opened(one="runs"), (), waits=False)
    with pytest.raises(UsageError, match="there are no tables"):
        _chosen(opened(), (), waits=False)


@pytest.mark.parametrize("modes", [{}, {"one": "runs"}])
def test_a_service_waits_for_tables(modes: dict[str, str], capsys: pytest.CaptureFixture[str]):
    assert _chosen(opened(**modes), (), waits=True) == []
    assert "waiting for tables with `mode: external_worker`" in capsys.readouterr().err


def test_a_named_table_that_is_not_there_is_not_waited_for():
    with pytest.raises(TableUnknown):
        _chosen(opened(), ("two",), waits=False)
