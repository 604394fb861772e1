"""The fence goes by the time of its statement: a commit that waited for a lock past its lease is refused (S5).

By the time at which its transaction began the lease was alive. `model` cannot tell the two clocks apart.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import psycopg
import pytest

from harness_pipelines.drivers import postgres
from harness_pipelines.drivers.postgres import WORKER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_postgres import waits_for_a_lock
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

LEASE = timedelta(hours=1)
END = "UPDATE harness.claims SET lease_until = clock_timestamp() WHERE table_id = %s"


def publish(real: RealRig, table: TableRow, claim: Claim) -> Callable[[], object]:
    move = real.plan(table, claim, {0: 0}, {0: 10})
    return lambda: real.publish(table, claim, move)


def trim(real: RealRig, table: TableRow, claim: Claim) -> Callable[[], object]:
    return lambda: real.upkeep.trim(table, claim)


@pytest.mark.parametrize(("stage", "commit"), [(Stage.TIER, publish), (Stage.EXPIRE, trim)])
def test_a_commit_that_waited_past_its_lease_is_refused(
    real: RealRig, stage: Stage, commit: Callable[[RealRig, TableRow, Claim], Callable[[], object]]
):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    claim = real.claim(table, stage, lease=LEASE)
    late = commit(real, table, claim)
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(session_dsn(real.dsn, role=WORKER)) as other:
            other.execute(postgres.sql("ledger/lock_table"), {"table_id": table.table_id})
            waiting = pool.submit(late)
            wait_until(lambda: waits_for_a_lock(real), "the commit waits")
            real.ask(END, [table.table_id])
            before = real.contents(table)
        with pytest.raises(FencedOut, match="the lease of epoch 1 ended"):
            waiting.result(DEADLINE_S)
    assert real.contents(table) == before
