"""The database's clock was set back: its last moves lie ahead of it, and nobody waits until it comes there."""

from __future__ import annotations

import pytest

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

SET_BACK = (
    "UPDATE harness.moves SET planned_at = planned_at + interval '1 hour', committed_at = committed_at + interval "
    "'1 hour' WHERE table_id = %s AND stage = %s"
)


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    """A table both of whose views were written by a clock that was an hour ahead, with more to move."""
    rig = make_rig(views="both", tier={"max_age": "1s"}, freshness={"lake": "1s"})
    rig.produce(10)
    rig.ingest()
    rig.tier()
    rig.move_once(Stage.OTREE, otree_once, crash=None)
    return rig


def set_back(rig: TableRig, stage: Stage) -> None:
    with rig.stores.database.transaction() as connection:
        assert connection.execute(SET_BACK, [rig.table.row.table_id, stage.value]).rowcount
    rig.produce(10)
    rig.ingest()


def test_tier_moves_at_once(rig: TableRig):
    set_back(rig, Stage.TIER)
    with rig.working(frozenset({Stage.TIER})):
        wait_until(lambda: all(stream == buffer for stream, buffer in rig.status().values()), "tier moved")
    rig.assert_exact()


def test_otree_merges_at_once(rig: TableRig):
    set_back(rig, Stage.OTREE)
    rig.tier()
    with rig.working(frozenset({Stage.OTREE})):
        wait_until(lambda: all(p.bounds.batch_hi == p.bounds.buffer_hi for p in rig.table.positions()), "otree merged")
    rig.assert_exact()
