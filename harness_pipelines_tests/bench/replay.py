"""What it takes to put quarantined records back: of an append table and of a keyed one, both views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import harness_pipelines as hp
from harness_pipelines_tests.bench.base import Figure, Run, timed
from harness_pipelines_tests.bench.contracts import CONTRACT, POISON_EVERY, poisoned
from harness_pipelines_tests.bench.records import produce_backlog

ROWS, QUICK_ROWS = 1_000_000, 100_000
GOAL_S = 10.0  #: for 10,000 records
WAYS: Mapping[str, dict[str, Any]] = {"append": {}, "keyed": {"key": ["id"]}}


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of a replay of all records that a contract refused, after the contract is gone."""
    rows = run.size(ROWS, QUICK_ROWS)
    refused = rows // POISON_EVERY
    topic = run.topic()
    run.say(f"replay: producing {rows:,} records, {refused:,} of which a contract refuses")
    produce_backlog(run.harness.settings, topic, count=rows, make=poisoned)
    return [_figure(run, name, topic, words, rows=rows, refused=refused) for name, words in WAYS.items()]


def _figure(run: Run, name: str, topic: str, words: Mapping[str, Any], *, rows: int, refused: int) -> Figure:
    run.say(f"replay: moving the records of the {name} table to the lake")
    table = run.table(topic, contract=CONTRACT, **words)
    run.work(table)
    without = run.harness.apply(table.spec.model_copy(update={"contract": None}))
    run.say(f"replay: putting {refused:,} records back")
    seconds = timed(lambda: _all_of_them(without, refused))
    found = without.read(columns=["id"]).num_rows
    assert found == rows, f"{name}: {found:,} rows of {rows:,}"
    run.note(f"replay.{name}.rate", refused / seconds, "records/s")
    return Figure(figure=f"replay.{name}", value=seconds, unit="s", goal=GOAL_S, sense="<=")


def _all_of_them(table: hp.Table, refused: int) -> None:
    done = table.replay()
    assert done.replayed == refused, done
