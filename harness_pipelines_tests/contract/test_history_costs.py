"""What a statement reads does not grow with the history of a table: by counts of blocks, which no machine changes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres.history.fold import HistoryFold
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.planted import plant

HISTORIES = (100, 2_000, 20_000)  #: steps, each of a move of ingest, one of tier, a version and an event
GAP = timedelta(hours=12)  #: so that 60 steps are younger than what is folded
GROWTH_MAX = 1.3
DEEPER = 8  #: blocks: an index of 20,000 rows is a level deeper than one of 100, in each of a statement's lookups
#: By name the parameters of statements that ask for one thing of the history.
SINGLE: Mapping[str, Mapping[str, Any]] = {
    "reads/version_of_move": {},
    "upkeep/folders": {},
    "overview/counts": {},
    "overview/since_ingest": {},
    "checks/last_committed": {"stage": "tier"},
    "ledger/since_tier": {},
    "snapshots/version_then": {},
}
#: Of statements that read all of it, which is folded.
WHOLE: Mapping[str, Mapping[str, Any]] = {
    "checks/seams": {},
    "checks/moved_rows": {},
    "fsck/versions": {},
    "fsck/moves": {},
    "fsck/checkpoints": {},
    "fsck/outbox": {},
    "fsck/outbox_gaps": {"limit": 20},
    "audit/taken": {"stage": "ingest"},
    "lineage/carried": {"partition": "0", "offset": 1},
    "revert/lineage": {},
    "fold/state": {"history": timedelta(days=30), "least": 100, "newest": 50},
}


@pytest.fixture(scope="module")
def tables(opened: RealRig) -> dict[int, TableRow]:
    """A table of each length of history, in one ledger."""
    found: dict[int, TableRow] = {}
    for steps in HISTORIES:
        found[steps] = opened.table(partitions=2)
        with opened.owner.transaction() as connection:
            plant(connection, found[steps].table_id, steps=steps, gap=GAP)
    analyse(opened)
    return found


def analyse(real: RealRig) -> None:
    """As autovacuum does: what was folded takes no blocks after it."""
    with psycopg.connect(real.dsn, autocommit=True) as connection:
        for name in ("moves", "versions", "outbox", "checkpoints", "rows_brought"):
            connection.execute(f"VACUUM ANALYZE harness.{name}")


def blocks(real: RealRig, table: TableRow, name: str, given: Mapping[str, Any]) -> int:
    """Blocks that a statement touches, in memory or not. Its second run counts: the first one reads the catalog."""
    move = "(SELECT max(move_id) FROM harness.moves WHERE table_id = %s)"
    [newest] = real.ask(f"SELECT {move} AS move_id, clock_timestamp() AS then", [table.table_id])
    key = {"table_id": table.table_id, "tables": [table.table_id], **newest, **given}
    asked = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql(name)}"
    with real.owner.transaction() as connection:
        for _ in range(2):
            [row] = connection.execute(asked, key).fetchall()
    plan = row["QUERY PLAN"][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_answer_costs_the_same_however_long_the_history_is(
    opened: RealRig, tables: dict[int, TableRow], name: str
):
    costs = {steps: blocks(opened, table, name, SINGLE[name]) for steps, table in tables.items()}

    print(name, costs)
    assert costs[20_000] <= max(GROWTH_MAX * costs[100], costs[100] + DEEPER)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_history_costs_the_same_once_it_is_folded(opened: RealRig, folded: dict[int, TableRow], name: str):
    costs = {steps: blocks(opened, table, name, WHOLE[name]) for steps, table in folded.items()}

    print(name, costs)
    assert costs[20_000] <= max(GROWTH_MAX * costs[100], costs[100] + DEEPER)


@pytest.fixture(scope="module")
def folded(opened: RealRig, tables: dict[int, TableRow]) -> dict[int, TableRow]:
    """The same tables once expire has run. (After the tests of what is not folded, by the order of use.)"""
    for table in tables.values():
        claim = opened.claim(table, Stage.EXPIRE)
        fold = HistoryFold(opened.database, at_least=1, at_once=2_000)
        while fold.fold(table, claim).moves:
            pass
        opened.ledger.release(claim)
    analyse(opened)
    return tables
