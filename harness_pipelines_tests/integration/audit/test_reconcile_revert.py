"""After reconcile took rows over from the lake, a revert counts on no row that the buffer never held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.repair.lake import Way
from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.rig import TableRig

from .scratch import Scratch, assert_sound, forget, work


def adopted(place: Scratch, rig: TableRig) -> None:
    """The backup has [0, 10) in the lake and [10, 14) in the buffer of partition 0; the lake has 30 of each by now."""
    rig.produce(10)
    work(rig)
    rig.kafka.produce(rig.topic, 0, rig.values(4))
    rig.ingest()
    backup = place.dump()
    rig.kafka.produce(rig.topic, 0, rig.values(16))
    rig.kafka.produce(rig.topic, 1, rig.values(20))
    work(rig)
    forget(rig)
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert report.lake.way is Way.ADOPT
    assert settle(rig.stores, rig.table.row, report).settled


def rebuilt(place: Scratch, rig: TableRig) -> None:
    for count in (10, 20):
        rig.produce(count)
        work(rig)
    place.lose()
    rebuild(place.harness.stores, plan_rebuild(place.harness.stores, rig.table.spec), take_over=True)
    place.resume(rig)


@pytest.mark.parametrize("taken_over", [adopted, rebuilt])
def test_what_the_buffer_never_held_cannot_go_back_to_it(
    place: Scratch, taken_over: Callable[[Scratch, TableRig], None]
):
    rig = place.rig()
    taken_over(place, rig)
    rig.assert_exact()
    *olds, head = (version for (version,) in place.sql("SELECT version FROM harness.versions ORDER BY version"))
    for version in olds:
        with pytest.raises(RevertRefused, match=r"the buffer limits it.*only from offset 30 on"):
            revert_table(rig.stores, rig.table.row, to=version)
    rig.assert_exact()
    rig.produce(5)
    work(rig)
    revert_table(rig.stores, rig.table.row, to=head)
    rig.assert_exact()
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def holes(rig: TableRig) -> list[str]:
    return [found.detail for found in fsck(rig.stores, [rig.name]).broken if found.invariant == "S13"]


def test_fsck_finds_what_a_revert_would_count_on_and_the_buffer_does_not_have(place: Scratch):
    rig = place.rig()
    adopted(place, rig)
    assert holes(rig) == []
    place.sql("UPDATE harness.lake_positions SET trim_floor = start")  # as earlier releases left it
    [found] = holes(rig)
    assert "ingest brought 60 rows above the trim floor, the buffer holds 24: partition 0 [0, 30) 14 rows" in found


def test_fsck_finds_rows_that_are_gone_below_the_lake_s_bound_as_well(place: Scratch):
    rig = place.rig()
    for _ in range(2):
        rig.produce(10)
        work(rig)
    assert holes(rig) == []
    segment = place.sql("SELECT segment FROM harness.segments WHERE state = 'open'")[0][0]
    place.sql(f'DELETE FROM harness_buffer."{segment}" WHERE _kafka_partition = 1 AND _kafka_offset = 12')
    [found] = holes(rig)
    assert "ingest brought 40 rows above the trim floor, the buffer holds 39" in found
    rig.assert_exact()
