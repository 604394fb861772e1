"""How long a stage of a worker waits after a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.worker import BACKOFF_S_MAX, COUNTED_S, _Backoff
from harness_pipelines.stores.spark_write import SparkFailed


def waits(stage: Stage, error: HarnessError, *, times: int) -> list[float]:
    """What a stage that fails again and again waits for."""
    waited: list[float] = []
    worker = SimpleNamespace(stop=SimpleNamespace(wait=waited.append))
    table = SimpleNamespace(name="a.b", stopped=None)
    owner: Any = SimpleNamespace(worker=worker, table=table, progress=SimpleNamespace(trouble={}), fatal=None)
    backoff = _Backoff(owner, stage)
    for _ in range(times):
        backoff.wait(error)
    return waited


def test_an_outage_is_looked_at_soon_and_then_ever_more_rarely():
    found = waits(Stage.TIER, TryAgain("Spark is away"), times=8)
    assert found[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert max(found) == found[-1] == BACKOFF_S_MAX


def test_failures_that_count_against_a_move_come_seconds_apart():
    """Three of them halve it, or hold its stage: a fault of a moment must not do that."""
    assert waits(Stage.OTREE, SparkFailed("out of memory"), times=3) == [COUNTED_S, 2 * COUNTED_S, 4 * COUNTED_S]
    assert waits(Stage.INGEST, SparkFailed("a unit is decoded again"), times=1) == pytest.approx([0.1])
