"""Loads of a table that race with what moves it, with other servers and with deaths of servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines import faults
from harness_pipelines.faults import FaultInjected
from harness_pipelines_tests.contract.keyed_cut_rig import KeyedWorld
from harness_pipelines_tests.contract.stores_rig import RealRig

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")


@pytest.fixture
def keyed(real: RealRig, tmp_path: Path) -> Iterator[KeyedWorld]:
    made = KeyedWorld(real, tmp_path)
    yield made
    faults.disarm()
    made.stores.close()


def fails(world: KeyedWorld, point: str) -> None:
    """A load of the server ends at *point*; the server goes on."""

    def fail() -> None:
        raise FaultInjected(point)

    world.pause()
    faults.arm(point, fail)
    with pytest.raises(FaultInjected, match=point):
        world.cutter.load(world.row)
    faults.disarm()


@pytest.mark.parametrize("point", ["serve.after_chunks", "serve.after_files"])
def test_a_merged_state_is_no_state_of_the_levels_that_a_load_before_it_did_not_publish(keyed: KeyedWorld, point: str):
    keyed.ingest({0: 40, 1: 25})
    keyed.tier({0: 30, 1: 20})
    keyed.merge({0: 10, 1: 12})
    fails(keyed, point)
    keyed.tier({0: 40, 1: 25})
    keyed.merge({0: 40, 1: 25})
    keyed.assert_exact(keyed.cut())
    keyed.ingest({0: 60, 1: 30})
    keyed.assert_exact(keyed.cut())
