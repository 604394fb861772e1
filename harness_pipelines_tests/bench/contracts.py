"""What a contract costs ingest, and what records cost that break it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from harness_pipelines.ledgers.postgres.views.status import Overview
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import produce_backlog, value
from harness_pipelines_tests.rig import INGEST

ROWS, QUICK_ROWS = 1_000_000, 100_000
ROUNDS = 5
POISON_EVERY = 100  #: one record of so many breaks the contract
#: As many checks as columns: bounds, a set of words, a pattern, and two columns of one row.
CONTRACT: Mapping[str, Any] = {
    "columns": {
        "customer": {"ge": 0, "not_null": True},
        "amount": {"ge": 0, "le": 10_000},
        "status": {"isin": ["placed", "paid", "shipped", "returned"]},
        "note": {"matches": r"order \d+"},
    },
    "rows": [{"name": "known_customer", "expr": "customer <= 100000 or id > customer"}],
}


def poisoned(number: int) -> bytes:
    """The record with id *number*; one of `POISON_EVERY` has an amount that the contract refuses."""
    made = value(number)
    return made if number % POISON_EVERY else made.replace(b'"amount":', b'"amount":-', 1)


def measure(run: Run) -> Sequence[Figure]:
    """Seconds of ingest of one backlog without and with a contract, and of one with poison records, in turns.

    The quickest of each counts: what else the machine does makes single rounds slower, never quicker.
    """
    rows = run.size(ROWS, QUICK_ROWS)
    run.say(f"contracts: producing two backlogs of {rows:,} records")
    clean, poison = run.topic(), run.topic()
    produce_backlog(run.harness.settings, clean, count=rows)
    produce_backlog(run.harness.settings, poison, count=rows, make=poisoned)
    ways: Mapping[str, tuple[str, dict[str, Any]]] = {
        "without": (clean, {}),
        "with": (clean, {"contract": CONTRACT}),
        "poison": (poison, {"contract": CONTRACT}),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, run.size(ROUNDS, 1)):  # the first warms up
        run.say(f"contracts: ingest, round {turn + 1}")
        for name, (topic, words) in ways.items():
            table = run.table(topic, **words)
            took = run.work(table, INGEST)
            refused = Overview(run.harness.stores.readers).counts(table.row).quarantined
            assert refused == (rows // POISON_EVERY if name == "poison" else 0), f"{name}: {refused} are refused"
            if turn >= 0:
                seconds[name].append(took)
    for name, took_s in seconds.items():
        run.note(f"contracts.{name}", rows / min(took_s), "rows/s")
        run.note(f"contracts.{name}.median", rows / statistics.median(took_s), "rows/s")
    without, with_, poison_s = (min(seconds[name]) for name in ways)
    return [
        Figure(figure="contracts.with_to_without", value=with_ / without, unit="x", goal=1.15, sense="<="),
        Figure(figure="contracts.poison_to_clean", value=poison_s / with_, unit="x", goal=1.1, sense="<="),
    ]
