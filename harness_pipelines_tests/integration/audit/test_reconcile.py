"""Reconcile: what crashes, restores and losses leave behind, judged by the producer's own log."""

from __future__ import annotations

import json
import re
import uuid
from datetime import timedelta

import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.repair.accept_loss import accept_loss
from harness_pipelines.audit.repair.lake import NothingToAdopt, Way
from harness_pipelines.audit.repair.rebuild import plan_rebuild
from harness_pipelines.audit.repair.reconcile import ReconcileReport, look, settle
from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.inspect.history import number_of
from harness_pipelines.ports.errors import LakeAway, LedgerOlderThanLake, RecordsLost, WarehouseTaken
from harness_pipelines.ports.ledger import TableUnknown
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.lake_files import content, put
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, await_trouble

from .scratch import Scratch, assert_sound, forget, unmounted, work


def looked(rig: TableRig) -> ReconcileReport:
    return look(rig.stores, rig.table.row)


def settled(rig: TableRig) -> ReconcileReport:
    return settle(rig.stores, rig.table.row, looked(rig))


def verdicts(report: ReconcileReport, kind: str) -> list[str]:
    return [v.verdict for v in report.verdicts if v.kind == kind]


def test_a_healthy_table_has_nothing_to_settle_and_a_look_changes_nothing(place: Scratch):
    rig = place.rig()
    rig.produce(20)
    work(rig)
    before = place.rows()
    assert looked(rig).acts == []
    assert place.rows() == before


def test_an_open_move_is_judged_by_its_claim_and_by_what_is_staged(place: Scratch):
    rig = place.rig()
    rig.produce(20)
    rig.ingest()
    stores, table = rig.stores, rig.table.row
    claim = rig.claim(Stage.TIER)
    move = tier.plan(stores, table, claim, trigger="test", run_id=None)
    assert move is not None
    before = place.rows()
    [held] = verdicts(looked(rig), "move")
    assert claim.holder in held
    assert looked(rig).acts == []
    tier.stage(stores, table, move)
    stores.ledger.release(claim)
    [staged] = verdicts(looked(rig), "move")
    assert f"staged on branch move_{move.move_id}_1" in staged
    assert "attempt 2" in staged
    after = place.rows()
    assert after["moves"] == before["moves"]
    settled(rig)
    work(rig)
    rig.assert_exact()


def test_a_move_without_claim_and_files_is_abandoned_with_its_leases_and_branches(place: Scratch):
    rig = place.rig()
    rig.produce(20)
    rig.ingest()
    stores, table = rig.stores, rig.table.row
    claim = rig.claim(Stage.TIER)
    move = tier.plan(stores, table, claim, trigger="test", run_id=None)
    assert move is not None
    stores.lake.make_branch(table, move, rig.table.versions()[-1].stream)
    stores.ledger.release(claim)
    rig.table.plan(lease=timedelta(milliseconds=1))
    before = place.rows()
    report = looked(rig)
    assert place.rows() == before
    assert [v.kind for v in report.acts] == ["move", "lease"]
    done = settled(rig)
    assert done.settled
    assert stores.ledger.moves(table, stage=Stage.TIER)[0]["state"] == "ABANDONED"
    assert stores.upkeep.dead_branches(table) == []
    assert looked(rig).acts == []
    work(rig)
    rig.assert_exact()


@pytest.mark.parametrize("written", ["", '{"format-version": 2, "table-uu'], ids=["nothing", "a part"])
def test_a_metadata_file_that_its_writer_never_finished_stops_nobody(place: Scratch, written: str):
    rig = place.rig()
    rig.produce(10)
    work(rig)
    folder, _, newest = rig.table.versions()[-1].stream.metadata.rpartition("/")
    put(f"{folder}/{number_of(newest) + 1:05d}-{uuid.uuid4()}.metadata.json", written.encode())
    rig.produce(10)
    place.reopen(rig)  # so that its worker asks again whether the lake is the ledger's
    work(rig)
    rig.assert_exact()
    assert looked(rig).acts == []
    assert_sound(rig)


def test_a_view_that_another_engine_dropped_has_one_way_back_and_everybody_names_it(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    place.sql("DELETE FROM public.iceberg_tables WHERE table_name = %s", rig.table.row.tiered_view)
    place.reopen(rig)  # so that its worker asks again whether the lake is the ledger's
    rig.produce(10)
    stores, table, way = rig.stores, rig.table.row, f"`harness revert {rig.name} --to HEAD --yes` restores it"
    for ask in (
        lambda: look(stores, table),
        lambda: plan_rebuild(stores, table.spec),
        lambda: stores.upkeep.condemn(table, dry_run=True),
        lambda: work(rig),
    ):
        with pytest.raises(TableUnknown, match=re.escape(way)):
            ask()
    assert way in (rig.harness.table(rig.name).row.stopped or "")
    assert any(way in found.detail for found in fsck(stores, [rig.name]).broken)

    revert_table(stores, table, to=None)

    assert looked(rig).acts == []
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


@pytest.mark.long
def test_a_restored_backup_stops_its_workers_and_goes_on_from_kafka(place: Scratch):
    rig = place.rig()
    rig.produce(30)
    work(rig)
    backup = place.dump()
    for _ in range(2):
        rig.produce(20)
        work(rig)
    lost = max(m["move_id"] for m in rig.stores.ledger.moves(rig.table.row))
    place.restore(backup, rig)
    before = place.rows()
    with pytest.raises(LedgerOlderThanLake, match=r"restored from an older backup.*harness reconcile"):
        revert_table(rig.stores, rig.table.row, to=None)
    assert place.rows() == before
    with pytest.raises(LedgerOlderThanLake, match=r"restored from an older backup.*harness reconcile"):
        work(rig)
    before = place.rows()
    report = looked(rig)
    assert report.lake.way is Way.KAFKA
    assert place.rows() == before
    assert settled(rig).settled
    rig.produce(10)
    work(rig)
    rig.assert_exact()
    assert min(m["move_id"] for m in rig.stores.ledger.moves(rig.table.row, limit=2)) > lost
    assert_sound(rig)
    assert looked(rig).acts == []


def test_a_restored_backup_is_told_of_after_ingest_went_on_while_the_lake_was_away(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.dump()
    rig.produce(10)
    work(rig)
    lost = max(m["move_id"] for m in rig.stores.ledger.moves(rig.table.row))
    metadata = rig.table.versions()[-1].stream.metadata.rpartition("/")[0]
    place.restore(backup, rig)
    with unmounted(metadata):
        for _ in range(lost):  # each worker's claim takes one number
            rig.produce(1)
            rig.ingest()
            if rig.stores.ledger.moves(rig.table.row, limit=1)[0]["move_id"] > lost:
                break
    assert rig.stores.ledger.moves(rig.table.row, limit=1)[0]["move_id"] > lost

    with pytest.raises(LedgerOlderThanLake, match=r"restored from an older backup.*harness reconcile"):
        work(rig)
    assert settled(rig).settled
    work(rig)
    rig.assert_exact()
    assert_sound(rig)


def test_a_lake_that_is_not_mounted_is_away_and_not_empty(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    with unmounted(rig.table.versions()[-1].stream.metadata.rpartition("/")[0]):
        place.reopen(rig)
        with pytest.raises(LakeAway, match="holds no file, and the catalog names one there"):
            rig.stores.guard.check(rig.table.row, rig.stores.ledger)

    work(rig)
    rig.assert_exact()


@pytest.mark.long
def test_a_restored_backup_adopts_what_kafka_has_dropped(place: Scratch):
    rig = place.rig()
    rig.produce(30)
    work(rig)
    rig.produce(7)
    rig.ingest()  # in the buffer of the backup, in the lake later
    place.sql("UPDATE harness.tables SET quarantine_folder = 'file:///nowhere'")
    backup = place.dump()
    rig.tier()
    for _ in range(2):
        rig.produce(20)
        work(rig)
    truth = rig.read()
    forget(rig)
    place.restore(backup, rig)
    before = place.rows()
    report = looked(rig)
    assert place.rows() == before
    assert report.lake.way is Way.ADOPT
    assert len(report.lake.adopted) == 4  # three of tier, and the ingest that came before them
    assert settled(rig).settled
    [[folder]] = place.sql("SELECT quarantine_folder FROM harness.tables")
    assert folder is None, "it may have bytes of records that the backup does not know: they are no orphans"
    assert rig.read() == truth
    rig.produce(10)
    work(rig)
    rig.assert_exact()
    assert_sound(rig)
    [begun] = [e.payload for e in rig.table.events() if e.event == "history_lost"]
    numbers = [v.version for v in rig.table.versions()]
    assert numbers == [*range(1, begun["from"]), *range(begun["to"] + 1, numbers[-1] + 1)]


def test_a_restored_open_move_that_was_published_in_the_lost_time_is_adopted_as_itself(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    rig.ingest()
    claim = rig.claim(Stage.TIER)
    move = tier.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    rig.stores.ledger.release(claim)
    backup = place.dump()
    work(rig)
    rig.produce(5)
    work(rig)
    forget(rig)
    place.restore(backup, rig)
    assert verdicts(looked(rig), "move") == ["the lake says that it was published"]
    assert settled(rig).settled
    states = {m["move_id"]: m["state"] for m in rig.stores.ledger.moves(rig.table.row)}
    assert states[move.move_id] == "COMMITTED"
    rig.produce(5)
    work(rig)
    rig.assert_exact()


def test_records_that_only_the_lost_buffer_had_are_named_and_accepted(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.dump()
    rig.produce(10)
    work(rig)
    rig.produce(10)
    rig.ingest()
    forget(rig)
    place.restore(backup, rig)
    report = looked(rig)
    [lost] = report.lake.lost
    assert (lost.partition, lost.low, lost.high) == (0, 20, 30)
    with pytest.raises(LedgerOlderThanLake, match="harness reconcile"):  # the lake has [10, 20)
        accept_loss(rig.stores, rig.table.row, partition=0, to=30)
    settled(rig)
    with pytest.raises(RecordsLost, match="accept-loss"):
        work(rig)
    accept_loss(rig.stores, rig.table.row, partition=0, to=30)
    rig.produce(10)
    work(rig)
    kept = {key: n for key, n in rig.truth.items() if not 20 <= key[1] < 30}
    assert rig.read() == kept


def test_a_loss_that_no_lake_can_mend_is_accepted_on_a_restored_ledger_too(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.dump()
    rig.produce(10)
    rig.ingest()
    claim = rig.claim(Stage.TIER)
    move = tier.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    rig.stores.lake.make_branch(rig.table.row, move, rig.table.versions()[-1].stream)  # the lake names it, no more
    rig.stores.ledger.release(claim)
    forget(rig)
    place.restore(backup, rig)
    with pytest.raises(NothingToAdopt, match="harness accept-loss"):
        looked(rig)
    accept_loss(rig.stores, rig.table.row, partition=0, to=20)
    assert settled(rig).settled
    rig.produce(10)
    work(rig)
    assert rig.read() == {key: n for key, n in rig.truth.items() if not 10 <= key[1] < 20}


def test_a_backup_restored_beside_the_old_database_must_take_the_warehouse_over(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    place.restore(place.dump(), rig, beside=True)
    with pytest.raises(WarehouseTaken, match=r"another copy of this ledger, in database rec_.*--take-over"):
        work(rig)
    with pytest.raises(WarehouseTaken):
        looked(rig)
    with pytest.raises(WarehouseTaken):
        revert_table(rig.stores, rig.table.row, to=None)
    report = look(rig.stores, rig.table.row, take_over=True)
    assert [v.act for v in report.acts] == ["take the warehouse over"]
    with pytest.raises(WarehouseTaken):
        looked(rig)
    assert settle(rig.stores, rig.table.row, report, take_over=True).settled
    rig.produce(10)
    work(rig)
    rig.assert_exact()


def test_a_running_worker_stops_by_name_when_its_warehouse_is_taken_over(
    place: Scratch, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness_pipelines.lakes.owner.TRUSTED_S", 0.0)
    rig = place.rig(partitions=1, tier={"max_rows": 10, "max_age": "1s"})
    theirs = json.dumps({"ledger": "theirs", "instance": "1/1", "epoch": "theirs", "database": "theirs"}).encode()
    ours = content(place.mark)
    with rig.working(INGEST | TIER) as worker:
        rig.produce(10)
        wait_until(lambda: rig.status() == {0: (10, 10)}, "the rows are in the lake")
        place.let_mark_be(theirs)
        rig.produce(10)  # a worker that has nothing to write does not look
        assert "belongs to the ledger theirs in database theirs" in await_trouble(worker, Stage.INGEST)
        assert rig.status() == {0: (10, 10)}
        place.let_mark_be(ours)
        wait_until(lambda: rig.status() == {0: (20, 20)}, "it goes on once the warehouse is its again")
    rig.assert_exact()


def test_a_mark_that_cannot_be_read_is_written_anew_by_a_take_over(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    place.let_mark_be(b"{")
    place.reopen(rig)
    with pytest.raises(WarehouseTaken, match=r"cannot be read.*--take-over"):
        looked(rig)
    report = look(rig.stores, rig.table.row, take_over=True)
    assert settle(rig.stores, rig.table.row, report, take_over=True).settled
    rig.produce(10)
    work(rig)
    rig.assert_exact()


def test_a_second_database_at_one_warehouse_is_refused_by_name(place: Scratch):
    rig = place.rig(partitions=1)
    first = place.database
    place.lose()
    with pytest.raises(
        WarehouseTaken, match=rf"belongs to the ledger [0-9a-f-]+ in database {first} at .*{place.database}"
    ):
        place.rig(partitions=1)
    assert rig.name not in [t.name for t in place.harness.tables()]


def test_a_ledger_that_somebody_works_on_is_not_brought_up_to_the_lake(place: Scratch):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.dump()
    rig.produce(10)
    work(rig)
    place.restore(backup, rig)
    claim = rig.claim(Stage.EXPIRE)
    before = place.rows()
    with pytest.raises(HarnessError, match=rf"expire by {claim.holder}.*nothing was changed"):
        settled(rig)
    assert place.rows() == before
    rig.stores.ledger.release(claim)
    assert settled(rig).settled
