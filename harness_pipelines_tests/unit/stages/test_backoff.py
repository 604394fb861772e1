"""How long a stage of a worker waits after a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.engines.spark.write import SparkFailed
from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ledgers.postgres.retention import SizeGuard
from harness_pipelines.pauses import JITTER
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.stages.run.progress import TableProgress
from harness_pipelines.stages.run.trouble import BACKOFF_S_MAX, COUNTED_S, Backoff


def waits(
    stage: Stage, error: HarnessError, *, times: int, pause_s: float = 0.0, progress: TableProgress | None = None
) -> list[float]:
    """What a stage that fails again and again waits for."""
    owner: Any = SimpleNamespace(
        table=SimpleNamespace(name="a.b", stopped=None),
        progress=progress or TableProgress(name="a.b"),
        doubt=lambda _stage: None,
        reload=lambda: None,
        ledger=SimpleNamespace(stop_table=lambda *_, **__: None),
        fatal=None,
    )
    backoff = Backoff(owner, stage)
    return [backoff.failed(error, pause_s=pause_s) for _ in range(times)]


def near(*expected: float) -> Any:
    return pytest.approx(expected, rel=JITTER)


def test_each_try_that_fails_is_counted_but_not_that_a_claim_went_to_another_one():
    progress = TableProgress(name="a.b")
    waits(Stage.TIER, TryAgain("Spark is away"), times=3, progress=progress)
    waits(Stage.OTREE, FencedOut("another one has it"), times=1, progress=progress)
    assert progress.errors == {"tier": 3}


@pytest.mark.parametrize("error", [SchemaMoved("another schema"), FencedOut("another holder")])
def test_what_is_met_again_before_any_work_was_done_is_shown_and_waited_out(error: HarnessError):
    progress = TableProgress(name="a.b")
    found = waits(Stage.INGEST, error, times=9, progress=progress)
    assert progress.trouble == {"ingest": str(error)}
    assert found[0] == 0.0, "the first one alone is tried again at once"
    assert found[1:4] == near(0.1, 0.2, 0.4)
    assert sum(waits(Stage.INGEST, error, times=2)) < 10, "it is shown by then"


def test_two_that_met_the_same_do_not_come_back_together():
    error = TryAgain("Spark is away")
    assert waits(Stage.TIER, error, times=5) != waits(Stage.TIER, error, times=5)


def test_an_outage_is_looked_at_soon_and_then_ever_more_rarely():
    found = waits(Stage.TIER, TryAgain("Spark is away"), times=8)
    assert found[:3] == near(0.1, 0.2, 0.4)
    assert found[-2:] == near(BACKOFF_S_MAX, BACKOFF_S_MAX)


def test_failures_that_count_against_a_move_come_seconds_apart():
    """Three of them halve it, or hold its stage: a fault of a moment must not do that."""
    assert waits(Stage.OTREE, SparkFailed("out of memory"), times=3) == near(COUNTED_S, 2 * COUNTED_S, 4 * COUNTED_S)
    assert waits(Stage.INGEST, SparkFailed("a unit is decoded again"), times=1) == near(0.1)


def test_what_needs_a_person_is_not_looked_at_more_often_than_the_stage_works():
    """Each look of expire lists all of a table's folders."""
    assert waits(Stage.EXPIRE, SizeGuard("too much at once"), times=3, pause_s=60.0) == [60.0, 60.0, 60.0]
    assert waits(Stage.TIER, SizeGuard("as an example"), times=2, pause_s=0.25) == near(COUNTED_S, 2 * COUNTED_S)
    assert waits(Stage.EXPIRE, TryAgain("the lake is away"), times=2, pause_s=60.0) == near(0.1, 0.2)
