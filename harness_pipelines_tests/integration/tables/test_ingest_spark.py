"""Ingest by Spark tasks: the same unit of work, on executors that are processes of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.ingest.on_engine import IngestTaskFailed, ingest_on_spark
from harness_pipelines_tests.rig import ENDLESS_S, TableRig, environment

CLUSTER = "local-cluster[2,1,1024]"
RUN = """
import sys
import harness_pipelines as hp
from datetime import timedelta
from uuid import uuid4
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.ingest.on_engine import ingest_on_spark

with hp.connect() as harness:
    table = harness.table(sys.argv[1]).row
    claim = harness.stores.ledger.claim(table, Stage.INGEST, shard=0, holder=str(uuid4()), lease=timedelta(minutes=5))
    done = ingest_on_spark(harness.stores, table, claim)
    again = ingest_on_spark(harness.stores, table, claim)
    print("rows", done.rows, "again", again.rows)
    harness.stores.spark().stop()
"""


@pytest.mark.long
def test_two_executor_processes_take_every_record_once(rig: TableRig, settings: Settings) -> None:
    rig.produce(500)
    rig.produce_misfit(b"{not json")

    done = subprocess.run(
        [sys.executable, "-c", RUN, rig.name],
        env=environment(settings, HARNESS_SPARK=CLUSTER),
        capture_output=True,
        text=True,
        timeout=ENDLESS_S,
        check=False,
    )

    assert "rows 1000 again 0" in done.stdout, done.stderr[-2000:]
    rig.assert_exact()


def test_ingest_over_connect_is_exact_and_a_second_call_takes_nothing(rig: TableRig) -> None:
    rig.produce(300)
    claim = rig.claim(Stage.INGEST)

    assert ingest_on_spark(rig.stores, rig.table.row, claim).rows == 600
    assert ingest_on_spark(rig.stores, rig.table.row, claim).rows == 0
    rig.assert_exact()


def test_a_task_that_finds_the_bound_moved_leaves_the_rows_to_who_was_first(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.produce(200)
    claim = rig.claim(Stage.INGEST)
    behind = rig.stores.segments.positions(rig.table.row)
    ingest_on_spark(rig.stores, rig.table.row, claim)
    monkeypatch.setattr(rig.stores.segments, "positions", lambda _table: behind)

    with pytest.raises(IngestTaskFailed, match="repeat records of partition"):
        ingest_on_spark(rig.stores, rig.table.row, claim)
    monkeypatch.undo()
    rig.assert_exact()
