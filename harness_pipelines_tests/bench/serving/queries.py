"""An aggregate over a cut beside the same over the batch view alone, by each engine, with the same rows in both."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness_pipelines_tests.bench.base import Figure, Run, timed
from harness_pipelines_tests.bench.serving.readers import READERS, Reader, reader_of
from harness_pipelines_tests.bench.serving.table import Filled

ROWS, QUICK_ROWS, FILES = 4_000_000, 40_000, 16
HOT = 0.01  #: of the rows are above the batch view
TIMES = 11
SQL = (
    "SELECT status, count(*) AS n, sum(amount) AS amount, min(customer) AS low, max(t.at) AS latest "
    "FROM {} t GROUP BY status ORDER BY status"
)


@dataclass(frozen=True, slots=True)
class Both:
    """Two tables with the same rows."""

    cut: Filled  #: has some above its batch view
    alone: Filled  #: has all in its batch view


def measure(run: Run) -> Sequence[Figure]:
    """Append and keyed, by each engine that is there."""
    known = {name: found for name in READERS if (found := reader_of(run, name)) is not None}
    figures = []
    for kind, make, goal in (("append", append_tables, 1.15), ("keyed", _keyed_tables, 1.3)):
        tables = make(run)
        for name, reader in known.items():
            run.say(f"queries: {kind}, {tables.cut.rows:,} rows, {name}")
            figures.append(_ratio(run, reader, tables, f"queries.{kind}.{name}", goal=goal))
    return figures


def append_tables(run: Run) -> Both:
    """The tables without a key; made by the first who asks."""
    if "serving" not in run.shared:
        rows = run.size(ROWS, QUICK_ROWS)
        run.say(f"queries: two tables of {rows:,} rows")
        cut, alone, hot = Filled(run), Filled(run), round(HOT * rows)
        cut.load(np.arange(rows - hot), files=FILES)
        cut.tier(hot // 2)
        cut.ingest(hot - hot // 2)
        cut.index()
        alone.load(np.arange(rows), files=FILES)
        run.shared["serving"] = Both(cut, alone)
    found = run.shared["serving"]
    assert isinstance(found, Both)
    return found


def _keyed_tables(run: Run) -> Both:
    rows = run.size(ROWS, QUICK_ROWS)
    run.say(f"queries: two keyed tables of {rows:,} rows")
    cut, alone = Filled(run, key=["id"], serve={"over": "refuse"}), Filled(run, key=["id"])
    hot = np.array(sorted(random.Random(11).sample(range(rows), round(HOT * rows))))
    cut.load(np.arange(rows), files=FILES)
    cut.put(hot)
    cut.index()
    rounds = np.zeros(rows, np.int64)
    rounds[hot] = 1
    alone.load(np.arange(rows), files=FILES, rounds=rounds)
    return Both(cut, alone)


def _ratio(run: Run, reader: Reader, tables: Both, name: str, *, goal: float) -> Figure:
    """Medians of both, in turns. Both go through the catalog: its warehouse `lake` names the batch view alone."""
    fresh, lake = SQL.format(reader.fresh(tables.cut.name)), SQL.format(reader.lake(tables.alone.name))
    found, expected = _answer(reader.query(fresh)), _answer(reader.query(lake))
    assert found == expected, f"{name}: the cut answers {found}, the batch view {expected}"
    took: dict[str, list[float]] = {fresh: [], lake: []}
    for number in range(run.size(TIMES, 3)):
        for sql in (fresh, lake) if number % 2 else (lake, fresh):
            took[sql].append(timed(lambda sql=sql: reader.query(sql)))  # type: ignore[misc]
    cut_s, lake_s = (statistics.median(took[sql]) for sql in (fresh, lake))
    run.note(f"{name}.cut", cut_s, "s")
    run.note(f"{name}.batch_view", lake_s, "s")
    return Figure(figure=f"{name}.cut_to_batch_view", value=cut_s / lake_s, unit="x", goal=goal, sense="<=")


def _answer(found: pa.Table) -> list[tuple[str, ...]]:
    return [tuple(map(str, row.values())) for row in found.to_pylist()]
