"""What a transform costs ingest: a filter and two derived columns, and records for which an expression fails."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.contracts import POISON_EVERY
from harness_pipelines_tests.bench.records import COLUMNS, produce_backlog, value
from harness_pipelines_tests.rig import INGEST

ROWS, QUICK_ROWS = 1_000_000, 100_000
ROUNDS = 3
#: The filter takes every record, so that both sides write as many rows.
DERIVED: Mapping[str, Any] = {
    "columns": {**COLUMNS, "day": "date", "gross": "decimal(15,4)"},
    "transform": {
        "derive": {"day": 'CAST("at" AS DATE)', "gross": "amount * 1.19"},
        "filter": "status <> 'test' AND customer >= 0",
    },
}
CAST: Mapping[str, Any] = {
    "columns": {**COLUMNS, "number": "long"},
    "transform": {"derive": {"number": "CAST(note[7:] AS BIGINT)"}},
}


def uncastable(number: int) -> bytes:
    """The record with id *number*; one of `POISON_EVERY` has a note that ends in no number."""
    made = value(number)
    return made if number % POISON_EVERY else made.replace(b'"note":"order ', b'"note":"order x', 1)


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of ingest of one backlog without and with a transform, and where a cast fails now and then, in turns.

    The quickest of each counts. There is no goal: more columns are more work.
    """
    rows = run.size(ROWS, QUICK_ROWS)
    run.say(f"transform: producing two backlogs of {rows:,} records")
    clean, poison = run.topic(), run.topic()
    produce_backlog(run.harness.settings, clean, count=rows)
    produce_backlog(run.harness.settings, poison, count=rows, make=uncastable)
    ways: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        "without": (clean, {}),
        "with": (clean, DERIVED),
        "cast": (clean, CAST),
        "poison": (poison, CAST),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, run.size(ROUNDS, 1)):  # the first warms up
        run.say(f"transform: ingest, round {turn + 1}")
        for name, (topic, words) in ways.items():
            table = run.table(topic, **words)
            took = run.work(table, INGEST)
            counts = Overview(run.harness.stores.readers).counts(table.row)
            refused = rows // POISON_EVERY if name == "poison" else 0
            assert (counts.quarantined, counts.filtered) == (refused, 0), f"{name}: {counts}"
            if turn >= 0:
                seconds[name].append(took)
    best = {name: min(took_s) for name, took_s in seconds.items()}
    for name, took_s in seconds.items():
        run.note(f"transform.{name}", rows / best[name], "rows/s")
        run.note(f"transform.{name}.median", rows / statistics.median(took_s), "rows/s")
    run.note("transform.with_to_without", best["with"] / best["without"], "x")
    run.note("transform.poison_to_cast", best["poison"] / best["cast"], "x")
    return []
