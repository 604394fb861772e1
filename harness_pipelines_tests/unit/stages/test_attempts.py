"""What later attempts of moves without ranges take."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.protocol.lake.compaction import StreamFile
from harness_pipelines.stages import compact

MIB = 2**20


def test_a_compaction_takes_fewer_files_within_a_smaller_budget_and_never_none(monkeypatch: pytest.MonkeyPatch):
    files = [StreamFile(path=f"{at}", partition=0, low=at, high=at + 1, rows=1, bytes=MIB // 10) for at in range(100)]
    monkeypatch.setattr(compact, "stream_files", lambda _lake, _table, _metadata: files)
    stores: Any = SimpleNamespace(lake_reads=None)
    table: Any = SimpleNamespace(spec=SimpleNamespace(layout=SimpleNamespace(target_file_mb=1)))
    version: Any = SimpleNamespace(stream=SimpleNamespace(metadata="v.json"), stream_hi={0: 100})

    def taken(budget_bytes: int | None) -> int:
        return sum(len(run.files) for run in compact.due(stores, table, version, budget_bytes=budget_bytes))

    assert taken(None) == 100
    assert 4 <= taken(0) <= taken(4 * MIB) < 100
