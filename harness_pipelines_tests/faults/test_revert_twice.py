"""Two reverts, forth and back, over records that were corrected: no version that can be read changes."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.cli.main import cli
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import Kind, Wanted
from harness_pipelines.protocol.changes.reverts import RevertWaits
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages.replay.quarantine import drop
from harness_pipelines.stages.replay.ranges import replay_range
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.faults.test_replay import ODD, again, lenient, offsets, settled, states
from harness_pipelines_tests.rig import COLUMNS, TableRig, environment

pytestmark = pytest.mark.turns("odd")


def head(rig: TableRig) -> int:
    return rig.stores.tables.head(rig.table.row).version


def revert(rig: TableRig, to: int) -> int:
    return revert_table(rig.stores, rig.harness.table(rig.name).row, to=to).version


def ids(rig: TableRig, *, at: int | str | None = None) -> list[int]:
    found: list[int] = rig.harness.table(rig.name).read(columns=["id"], at=at)["id"].to_pylist()
    return sorted(found)


def put_back(rig: TableRig) -> None:
    lenient(rig)
    assert again(rig).replayed == 1


def removed(rig: TableRig) -> None:
    """Rows that a contract does not take are quarantined."""
    told = {"table": rig.name, "topic": rig.topic, "columns": COLUMNS, "views": rig.table.spec.views}
    told |= {"layout": {"columns": ["n"]}, "contract": {"columns": {"n": {"le": 2}}}}
    row, wanted = rig.harness.table(rig.name).row, OffsetRange(partition=0, low=0, high=5)
    assert replay_range(rig.stores, row, wanted, decoder=TableSpec.model_validate(told)).changes == {Kind.REMOVED: 2}


@pytest.fixture(params=["stream", "both", "batch"])
def odd(request: pytest.FixtureRequest, make_rig: MakeRig) -> TableRig:
    """A record of partition 0 is refused, 20 are not; version 1 has nothing in the lake, the last one all of it."""
    rig = make_rig(views=request.param, layout={"columns": ["n"]}, unknown_fields="quarantine")
    rig.produce(5)
    rig.kafka.produce(rig.topic, 0, [ODD % 1000])
    rig.produce(5)
    settled(rig)
    return rig


@pytest.mark.parametrize("correct", [put_back, removed])
def test_a_revert_over_a_correction_waits_until_no_version_that_can_be_read_would_show_it(
    odd: TableRig, correct: Callable[[TableRig], None]
):
    correct(odd)
    corrected = head(odd)
    now = ids(odd)
    back = revert(odd, to=1)
    before = ids(odd, at=back)
    assert before != now
    snapshot = f"s_{odd.topic}"
    odd.harness.snapshot(snapshot, [odd.name])
    run = CliRunner(env=environment(odd.stores.settings)).invoke
    shown = json.loads(run(cli, ["revert", odd.name, "--to", str(corrected), "--dry-run", "--json"]).stdout)
    assert (shown["possible"], shown["waits"]["way_on"]) == (False, f"harness run {odd.name} --until-idle")
    with pytest.raises(RevertWaits, match=f"version {back} can still be read.*harness run {odd.name} --until-idle"):
        revert(odd, to=corrected)
    assert head(odd) == back
    settled(odd)
    assert ids(odd, at=back) == ids(odd, at=snapshot) == before
    again_so = revert(odd, to=corrected)
    assert ids(odd) == now
    assert ids(odd, at=back) == ids(odd, at=snapshot) == before
    settled(odd)
    assert ids(odd, at=back) == ids(odd, at=snapshot) == before
    assert ids(odd, at=again_so) == now
    row = odd.harness.table(odd.name).row
    assert audit_table(odd.stores, row, full=True).ok
    assert fsck(odd.stores, [odd.name]).ok


def test_what_the_correction_is_not_among_waits_for_nothing(odd: TableRig):
    """The buffer of the head has later records alone."""
    put_back(odd)
    corrected = head(odd)
    before = corrected - 1
    revert(odd, to=before)
    odd.produce(3)
    odd.ingest()
    known = offsets(odd)
    revert(odd, to=corrected)
    assert offsets(odd) == sorted([*known, (0, 5)])
    assert states(odd) == {"replayed": 1}


def test_a_record_that_was_given_up_stays_so_when_its_replay_is_redone_and_undone_again(odd: TableRig):
    before = head(odd)
    put_back(odd)
    corrected = head(odd)
    revert(odd, to=before)
    assert states(odd) == {"held": 1}
    assert drop(odd.stores, odd.harness.table(odd.name).row, Wanted()) == 1
    revert(odd, to=corrected)
    assert states(odd) == {"replayed": 1}
    revert(odd, to=before)
    assert states(odd) == {"dropped": 1}
    assert fsck(odd.stores, [odd.name]).ok
