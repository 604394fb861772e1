"""Reconcile of tables with recalled rows: a database that is lost, set back, or lacks a table of them."""

from __future__ import annotations

import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.repair.lake import Way
from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines_tests.keyed import KeyedRig, row

from .scratch import Scratch, assert_sound, forget, work


def recalled(place: Scratch) -> KeyedRig:
    """Ids 0 .. 59 are in the batch view, those below 20 in Postgres, of which a merge has changed some."""
    rig = KeyedRig(place.harness, place.kafka)
    rig.put(*(row(i, n=i) for i in range(60)))
    work(rig)
    rig.recall("id < 20")
    rig.put(*(row(i, n=1000 + i) for i in range(10, 30)))
    work(rig)
    assert rig.recalled_rows().num_rows == 20
    rig.assert_merged()
    return rig


def judge(rig: KeyedRig) -> None:
    work(rig)
    rig.assert_merged()
    rig.assert_exact()
    assert_sound(rig)


@pytest.mark.long
def test_a_lost_database_has_its_recalled_rows_from_the_stream_view(place: Scratch):
    rig = recalled(place)
    place.lose()
    stores = place.harness.stores
    plan = plan_rebuild(stores, rig.table.spec)
    assert plan.batch is None, "a batch view that lacks rows is not taken over"
    rebuild(stores, plan, take_over=True)
    place.resume(rig)
    rig.assert_exact()
    assert rig.head.overlays == ()
    judge(rig)
    assert rig.batch_rows().num_rows == 60
    rig.recall("id < 5")
    judge(rig)


@pytest.mark.long
def test_a_restored_backup_goes_on_with_the_recalled_rows_that_it_has(place: Scratch):
    rig = recalled(place)
    backup = place.dump()
    held = rig.head.overlays
    rig.put(*(row(i, n=2000 + i) for i in range(15)))
    work(rig)
    assert rig.head.overlays != held
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert report.lake.way is Way.KAFKA
    assert settle(rig.stores, rig.table.row, report).settled
    assert rig.head.overlays == held
    judge(rig)
    rig.table.release_recalled()
    judge(rig)


@pytest.mark.long
def test_a_restored_backup_from_before_the_recall_begins_the_batch_view_anew(place: Scratch):
    rig = KeyedRig(place.harness, place.kafka)
    rig.put(*(row(i, n=i) for i in range(60)))
    work(rig)
    backup = place.dump()
    rig.recall("id < 20")
    rig.put(*(row(i, n=1000 + i) for i in range(10, 30)))
    work(rig)
    forget(rig)  # so that the lake is all that has the records
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert report.lake.way is Way.ADOPT
    assert settle(rig.stores, rig.table.row, report).settled
    assert rig.head.overlays == ()
    work(rig)
    rig.assert_merged()
    assert rig.batch_rows().num_rows == 60
    assert_sound(rig)


@pytest.mark.long
def test_a_table_of_recalled_rows_that_was_dropped_by_hand_is_named_and_made_anew(place: Scratch):
    rig = recalled(place)
    [overlay] = rig.head.overlays
    place.sql(f"DROP TABLE harness_buffer.{overlay.segment}")
    with pytest.raises(SegmentMissing, match=overlay.segment):
        rig.table.read()
    broken = fsck(rig.stores, [rig.name]).broken
    assert any(
        f"{overlay.segment}, which version {rig.head.version} names, is not in Postgres" in f.detail for f in broken
    )

    report = look(rig.stores, rig.table.row)
    assert report.lake.way is Way.BATCH
    assert settle(rig.stores, rig.table.row, report).settled
    rig.assert_exact()
    judge(rig)
    assert rig.batch_rows().num_rows == 60
