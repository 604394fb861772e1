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
from harness_pipelines_tests.producer import wait_until

LEASE = timedelta(seconds=1.5)


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
    late, before = commit(real, table, claim), real.contents(table)
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(session_dsn(real.dsn, role=WORKER)) as other:
            other.execute(postgres.sql("ledger/lock_table"), {"table_id": table.table_id})
            waiting = pool.submit(late)
            wait_until(lambda: waits_for_a_lock(real), "the commit waits", deadline_s=8)
            ended = "SELECT clock_timestamp() > %s AS ended"
            wait_until(lambda: bool(real.ask(ended, [claim.lease_until])[0]["ended"]), "the lease has ended")
        with pytest.raises(FencedOut, match="the lease of epoch 1 ended"):
            waiting.result(30)
    assert real.contents(table) == before
