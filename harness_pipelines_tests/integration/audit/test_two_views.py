"""A table with both views: expire, fsck, audit and reconcile see the batch view as well as the stream view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.foreign import ForeignRefused, find_foreign
from harness_pipelines.audit.repair.lake import Way
from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.audit.repair.reconcile import ReconcileReport, look, settle
from harness_pipelines.drivers.files import listed
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.protocol.versions import ForeignCommit, Version
from harness_pipelines.read.clustering import layout_of
from harness_pipelines.stages.otree.otree import otree_once, plan
from harness_pipelines.stages.otree.recluster import plan_recluster
from harness_pipelines.stages.run.moving import make_branch
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.lake_files import content, exists, moved_away, name_of, parquet, put, remove, rewrite
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

from .flips import unnoted
from .scratch import Scratch, assert_sound, forget

LAYOUT = {"columns": ["n", "id"], "regions": 4}


def both(place: Scratch, **spec: Any) -> TableRig:
    return place.rig(views="both", layout=LAYOUT, **spec)


def take(rig: TableRig, count: int) -> None:
    """*count* more records per partition come to the stream view."""
    rig.produce(count)
    rig.ingest()
    rig.tier()


def merge(rig: TableRig) -> Version:
    """All that the stream view has more comes to the batch view, and all regions that are due are rewritten."""
    claim = rig.claim(Stage.OTREE)
    try:
        while otree_once(rig.stores, rig.table.row, claim, trigger="test") is not None or not is_merged(rig):
            pass  # a relayout that was not better is dropped, and merges go on
    finally:
        rig.stores.ledger.release(claim)
    return head(rig)


def is_merged(rig: TableRig) -> bool:
    return all(b.batch_hi == b.stream_hi for b in head(rig).bounds.values())


def merged(place: Scratch, *, rounds: Sequence[int] = (20, 10), **spec: Any) -> TableRig:
    """A table whose batch view has several moves, and whose stream view has more."""
    rig = both(place, **spec)
    for count in rounds:
        take(rig, count)
        merge(rig)
    take(rig, 5)
    return rig


def head(rig: TableRig) -> Version:
    return rig.stores.ledger.head(rig.table.row)


def batch_files(version: Version) -> list[str]:
    assert version.batch is not None
    return [file.path for file in pinned(version.batch.metadata).files]


def broken(rig: TableRig) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in fsck(rig.stores, [rig.name]).broken:
        found.setdefault(finding.invariant, []).append(finding.detail)
    return found


def faults(rig: TableRig) -> list[tuple[str, int, int, str]]:
    report = audit_table(rig.stores, rig.table.row, full=True)
    return [(str(f.kind), f.partition, f.offset, f.tier) for f in report.findings]


@contextmanager
def rewritten(path: str, change: Callable[[pa.Table], pa.Table]) -> Iterator[None]:
    """A data file holds other rows for the length of the block."""
    whole = content(path)
    rewrite(path, change(parquet(path)))
    unnoted(path)
    try:
        yield
    finally:
        put(path, whole)


def append_foreign(place: Scratch, rig: TableRig) -> None:
    """Another engine commits a copy of a file to the batch view."""
    from harness_pipelines_tests.other_catalog import sql_catalog

    catalog = sql_catalog("harness", dsn=place.dsn, warehouse=place.warehouse)
    try:
        view = catalog.load_table((rig.table.spec.namespace, rig.table.row.views["batch"]))
        view.append(view.scan().to_arrow().slice(0, 1))
    finally:
        catalog.close()


# -- sound tables and planted faults ------------------------------------------------------------------------


@pytest.mark.long
def test_a_table_with_both_views_is_sound_after_merges_a_revert_and_more_merges(place: Scratch):
    rig = merged(place)
    rig.assert_exact()
    assert_sound(rig)
    revert_table(rig.stores, rig.table.row, to=3)  # tier, then the first merge
    rig.assert_exact()
    assert_sound(rig)
    rig.tier()
    merge(rig)
    rig.relayout()
    rig.assert_exact()
    assert_sound(rig)
    report = audit_table(rig.stores, rig.table.row, full=True).to_json()["batch"]
    assert (report["ok"], report["read"], report["rows"]) == (True, True, rig.truth.total())
    assert not audit_table(rig.stores, rig.table.row).to_json()["batch"]["read"], "by default it is counted"


@pytest.mark.long
def test_faults_of_the_batch_view_are_named(place: Scratch):
    rig = merged(place)
    file, *_ = batch_files(head(rig))

    with moved_away(file):
        [detail] = broken(rig)["S10"]
        assert "there is no such file" in detail
        assert name_of(file) in detail

    rows = parquet(file)
    gone = (rows.column("_kafka_partition")[0].as_py(), rows.column("_kafka_offset")[0].as_py())
    with rewritten(file, lambda found: found.slice(1)):
        assert faults(rig) == [("missing", *gone, "batch")]
    with rewritten(file, lambda found: pa.concat_tables([found, found.slice(0, 1)])):
        assert faults(rig) == [("duplicated", *gone, "batch")]
    with rewritten(file, lambda found: found.set_column(1, "n", pc.add(found.column("n"), 1).cast(pa.int32()))):
        assert {kind for kind, *_ in faults(rig)} == {"changed"}

    table_id = rig.table.row.table_id
    place.sql(
        "UPDATE harness.lake_positions SET batch_hi = batch_hi - 1 WHERE table_id = %s AND partition = 0", table_id
    )
    found = broken(rig)
    assert any("lake_positions has batch_hi 29" in detail for detail in found["S3"]), found
    assert any("otree moves end at 30, the position is 29" in detail for detail in found["S6"]), found
    place.sql(
        "UPDATE harness.lake_positions SET batch_hi = batch_hi + 1 WHERE table_id = %s AND partition = 0", table_id
    )

    version = head(rig).version
    set_bound = (
        "UPDATE harness.versions SET bounds = jsonb_set(bounds, '{0,batch_hi}', %s::text::jsonb) WHERE version = %s"
    )
    place.sql(set_bound, "31", version)
    found = broken(rig)
    assert any("batch_hi is 31, its snapshot of the batch view says 30" in detail for detail in found["S28"]), found
    assert any("60 rows, the stream view has 61" in detail for detail in found["S19"]), found
    place.sql(set_bound, "30", version)

    rig.relayout()
    version = head(rig).version
    assert "S20" not in broken(rig)
    place.sql(  # the relayout then looks as if it had found the first merge alone
        "UPDATE harness.versions v SET batch_metadata = old.batch_metadata FROM harness.versions old "
        "WHERE v.table_id = %s AND old.table_id = v.table_id AND v.version = %s AND old.version = 3",
        table_id,
        version - 1,
    )
    [detail] = broken(rig)["S20"]
    assert f"has 60 rows in {rig.table.spec.namespace}." in detail
    assert f"version {version - 1} had 40" in detail

    layout = head(rig).layout
    place.sql("UPDATE harness.layouts SET digest = 'x' || digest WHERE version = %s", layout)
    assert "the tree has digest" in broken(rig)["S10"][0]
    place.sql("DELETE FROM harness.layouts WHERE version = %s", layout)
    assert f"no row {layout} in harness.layouts" in broken(rig)["S10"][0]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_a_foreign_commit_to_the_batch_view_stops_otree_is_named_and_a_revert_undoes_it(place: Scratch):
    rig = merged(place)
    append_foreign(place, rig)

    assert "not of the harness: snapshot" in broken(rig)["S7"][0]
    report = audit_table(rig.stores, rig.table.row)
    assert not report.ok
    assert "another writer committed" in (report.to_json()["batch"]["foreign"] or "")
    with pytest.raises(ForeignCommit, match="the batch view is at snapshot"):
        merge(rig)
    with pytest.raises(ForeignRefused, match="batch view is at snapshot"):
        find_foreign(rig.stores, rig.table.row)
    rig.assert_exact()

    revert_table(rig.stores, rig.table.row, to=None)
    merge(rig)
    rig.assert_exact()
    assert_sound(rig)


# -- expire -------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_what_an_old_reader_holds_stays_through_relayouts_and_goes_with_its_lease(place: Scratch):
    rig = both(place, retention={"versions": "1ms", "snapshots": 1, "grace": "1ms"})
    take(rig, 200)
    old = merge(rig)
    assert old.batch is not None
    lease = rig.stores.leases.look(rig.table.row, holder="an old reader", lease=timedelta(minutes=10))
    held = [*batch_files(old), old.batch.metadata]
    for _ in range(3):
        take(rig, 50)
        merge(rig)
        rig.relayout()
    assert not set(batch_files(head(rig))) & set(held)

    claim = rig.claim(Stage.EXPIRE)
    for _ in range(3):
        expire_once(rig.stores, rig.table.row, claim)
    assert all(exists(path) for path in held)
    assert broken(rig) == {}
    rig.assert_exact()

    rig.stores.leases.end(lease.lease_id)

    def gone() -> bool:
        expire_once(rig.stores, rig.table.row, claim)
        return not any(exists(path) for path in held)

    wait_until(gone, "the files of the old reader are gone")
    assert all(exists(path) for path in batch_files(head(rig)))
    assert broken(rig) == {}
    rig.assert_exact()


@pytest.mark.long
def test_branches_of_dead_attempts_leave_both_views(place: Scratch):
    rig = merged(place)
    claim = rig.claim(Stage.OTREE)
    move = plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    make_branch(rig.stores, rig.table.row, move)
    rig.stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="test")
    rig.stores.ledger.release(claim)
    assert move.branch in rig.stores.upkeep.dead_branches(rig.table.row, view="batch")
    expire_once(rig.stores, rig.table.row, rig.claim(Stage.EXPIRE))
    assert rig.stores.upkeep.dead_branches(rig.table.row, view="batch") == []
    assert broken(rig) == {}


# -- reconcile ----------------------------------------------------------------------------------------------


def settled(rig: TableRig) -> ReconcileReport:
    return settle(rig.stores, rig.table.row, look(rig.stores, rig.table.row))


def goes_on(rig: TableRig) -> None:
    """More records come, are merged, and nothing is amiss."""
    take(rig, 10)
    merge(rig)
    rig.assert_exact()
    assert_sound(rig)
    # A relayout that would not have been better leaves its branch to expire.
    assert [v for v in look(rig.stores, rig.table.row).acts if v.kind != "branch"] == []


@pytest.mark.long
def test_a_restored_backup_goes_on_with_its_batch_view_while_all_of_it_is_there(place: Scratch):
    rig = merged(place)
    backup = place.dump()
    merge(rig)
    lost = max(m["move_id"] for m in rig.stores.ledger.moves(rig.table.row))
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert (report.lake.way, report.lake.batch) == (Way.KAFKA, None)
    assert max(m.move_id for m in report.lake.forgotten) == lost, "a move of otree alone tells that the ledger is older"
    assert settled(rig).settled
    goes_on(rig)


@pytest.mark.long
def test_a_restored_backup_begins_the_batch_view_anew_where_files_of_it_are_gone(place: Scratch):
    rig = merged(place)
    backup = place.dump()
    before = head(rig)
    merge(rig)
    take(rig, 5)
    merge(rig)  # reaches further than the backup's stream view
    for file in listed(batch_files(before)[0].rpartition("/")[0]):
        remove(file.path)
    place.restore(backup, rig)
    rows = place.rows()
    report = look(rig.stores, rig.table.row)
    assert place.rows() == rows
    assert report.lake.batch is not None
    assert report.lake.batch.view is None
    assert settled(rig).settled
    now = head(rig)
    assert now.batch is not None and before.batch is not None
    assert now.batch.metadata.rsplit("/", 2)[0] != before.batch.metadata.rsplit("/", 2)[0]
    assert [(b.batch_hi, b.stream_hi) for b in now.bounds.values()] == [(0, 35), (0, 35)]
    assert now.layout is None
    goes_on(rig)


@pytest.mark.long
def test_a_restored_backup_adopts_both_views_when_kafka_has_dropped_the_records(place: Scratch):
    rig = merged(place)
    backup = place.dump()
    merge(rig)
    take(rig, 10)
    truth = rig.read()
    forget(rig)
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert report.lake.way is Way.ADOPT
    assert report.lake.batch is not None
    assert dict(report.lake.batch.batch_hi) == {0: 35, 1: 35}
    assert settled(rig).settled
    assert rig.read() == truth
    assert [(b.batch_hi, b.stream_hi) for b in head(rig).bounds.values()] == [(35, 45), (35, 45)]
    goes_on(rig)


@pytest.mark.long
@pytest.mark.parametrize("whole", [True, False], ids=["its files are there", "a file of it is gone"])
def test_a_lost_database_takes_the_batch_view_over_or_begins_it_anew(place: Scratch, whole: bool):
    rig = merged(place)
    if not whole:
        for file in batch_files(head(rig)):
            remove(file)
    place.lose()
    rebuild(place.harness.stores, plan_rebuild(place.harness.stores, rig.table.spec), take_over=True)
    place.resume(rig)
    reached = 30 if whole else 0
    assert [(b.batch_hi, b.stream_hi) for b in head(rig).bounds.values()] == [(reached, 35), (reached, 35)]
    assert head(rig).layout is None
    found = layout_of(rig.stores, rig.table.row, head(rig))
    if whole:  # the files tell what the ledger has lost
        assert found is not None
        assert set(found.clustered) <= set(found.tree.paths())
        asked = plan_recluster(rig.stores, rig.table.row, rebuild=True)
        assert sum(len(part.files) for part in asked.parts) == len(batch_files(head(rig)))
    else:
        assert found is None
    rig.assert_exact()
    goes_on(rig)
    assert head(rig).layout is not None, "it is kept from the next merge on"
