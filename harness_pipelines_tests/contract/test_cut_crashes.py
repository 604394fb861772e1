"""A server that dies while it makes a cut: the next load answers as if it had not been, and what is left goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines import faults
from harness_pipelines_tests.contract.cut_rig import CutWorld, dies
from harness_pipelines_tests.contract.stores_rig import RealRig
from harness_pipelines_tests.contract.test_cut_files import aged, ripe, there
from harness_pipelines_tests.contract.test_expire import expire

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option.*not implemented:UserWarning")
POINTS = [name for name, point in faults.POINTS.items() if point.stage == "serve"]


@pytest.fixture
def world(real: RealRig, tmp_path: Path) -> Iterator[CutWorld]:
    made = CutWorld(real, tmp_path, views="both", layout={"columns": ["id"], "sample": 0}, retention={"versions": "1h"})
    yield made
    faults.disarm()
    made.stores.close()


@pytest.mark.parametrize("point", POINTS)
def test_a_load_after_a_death_at_any_point_gives_all_rows_and_what_is_left_goes(
    world: CutWorld, point: str, monkeypatch: pytest.MonkeyPatch
):
    world.ingest({0: 40, 1: 25})
    world.tier({0: 30, 1: 20})
    world.merge({0: 10, 1: 5})
    first = world.cut()
    truth = world.truth()
    world.ingest({0: 60, 1: 25})
    before = world.files()
    dies(lambda: world.server().load(world.row), point, monkeypatch)
    left = world.files() - before
    assert left, "it wrote something"

    served = world.server().load(world.row)
    world.assert_exact(served.cut)
    assert world.seen(first) == truth
    assert served.cut.sequence > first.sequence
    assert served.cut.snapshot_id != first.snapshot_id
    assert served.made == (point != "serve.after_commit"), "what was published is found again"
    assert bool(left & set(served.cut.files)) == (point == "serve.after_commit")
    assert len(cuts_of(world)) == 2

    orphans = left - set(served.cut.files)
    aged(world.files())
    expire(world.rig, world.row)
    ripe(world.rig, world.row)
    expire(world.rig, world.row)
    assert there(orphans) == [False] * len(orphans)
    world.assert_exact(served.cut)
    assert world.seen(first) == truth


@pytest.mark.parametrize("point", POINTS)
def test_a_death_in_the_first_load_of_a_table_is_no_different(
    world: CutWorld, point: str, monkeypatch: pytest.MonkeyPatch
):
    world.ingest({0: 12})
    dies(lambda: world.server().load(world.row), point, monkeypatch)
    world.ingest({0: 15})
    cut = world.server().load(world.row).cut
    world.assert_exact(cut)
    sequences = cuts_of(world)
    assert len(sequences) == (2 if point == "serve.after_commit" else 1)
    assert cut.sequence == max(sequences)


def cuts_of(world: CutWorld) -> set[int]:
    """The sequences that were published; two cuts with one would be one here."""
    rows = world.rig.ask("SELECT sequence FROM harness.cuts WHERE table_id = %s", [world.row.table_id])
    assert len({row["sequence"] for row in rows}) == len(rows)
    return {row["sequence"] for row in rows}
