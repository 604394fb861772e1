"""Rows that position deletes hide, as reconcile, fsck, the audit and expire see them."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.ports.errors import DeletesBroken, LakeFileMissing
from harness_pipelines.protocol.versions import ForeignCommit
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import BY_VALUE, KeyedRig, row
from harness_pipelines_tests.lake_files import content, name_of, put, remove, rewrite

from .flips import unnoted
from .scratch import Scratch, assert_sound
from .test_two_views import append_foreign


@pytest.fixture
def rig(place: Scratch) -> KeyedRig:
    """A keyed table of whose batch view some rows are hidden."""
    rig = KeyedRig(place.harness, place.kafka, layout={**BY_VALUE, "staged_ratio": 10})  # nothing is due by itself
    rig.put(*(row(i, n=i) for i in range(400)))
    rig.merge_all()
    change(rig, first=0)
    assert delete_files(rig)
    return rig


def change(rig: KeyedRig, *, first: int) -> None:
    """A few rows come again and a few go, and all of it comes to the batch view."""
    rig.put(*(row(i, n=1000 + first) for i in range(first, 400, 40)))
    rig.delete(*((i, "eu") for i in range(first + 1, 400, 80)))
    rig.merge_all()


def delete_files(rig: KeyedRig) -> list[str]:
    assert rig.head.batch is not None
    files = pinned(rig.head.batch.metadata).files
    return [file.deletes.path for file in files if file.deletes is not None]


def goes_on(rig: KeyedRig) -> None:
    """What the log has more is taken again, more records come, and nothing is amiss."""
    change(rig, first=2)
    rig.assert_exact()
    rig.assert_merged()
    assert_sound(rig)


@pytest.mark.long
def test_a_restored_backup_goes_on_with_a_batch_view_of_which_rows_are_hidden(place: Scratch, rig: KeyedRig):
    backup = place.dump()
    change(rig, first=5)
    place.restore(backup, rig)
    report = look(rig.stores, rig.table.row)
    assert report.lake.batch is None, "all of it is there"
    assert settle(rig.stores, rig.table.row, report).settled
    goes_on(rig)


@pytest.mark.parametrize("whole", [True, False], ids=["its files are there", "a delete file is gone"])
def test_a_lost_database_takes_a_batch_view_over_with_what_is_hidden_in_it(place: Scratch, rig: KeyedRig, whole: bool):
    reached = {p: b.batch_hi if whole else 0 for p, b in rig.head.bounds.items()}
    if not whole:
        remove(delete_files(rig)[0])
    place.lose()
    rebuild(place.harness.stores, plan_rebuild(place.harness.stores, rig.table.spec), take_over=True)
    place.resume(rig)
    assert {p: b.batch_hi for p, b in rig.head.bounds.items()} == reached
    goes_on(rig)


def test_a_delete_file_that_is_gone_or_damaged_is_named_and_no_hidden_row_comes_back(rig: KeyedRig):
    file = delete_files(rig)[0]
    whole = content(file)
    merged = rig.head.version

    remove(file)
    with pytest.raises(LakeFileMissing, match=f"{name_of(file)} is gone"):
        rig.table.read()
    with pytest.raises(LakeFileMissing, match=name_of(file)):
        audit_table(rig.stores, rig.table.row, full=True)
    [found] = [b for b in fsck(rig.stores, [rig.name]).broken if b.invariant == "S10"]
    assert found.detail.startswith("delete file ")
    assert f"{name_of(file)}: there is no such file; version {merged} needs it" in found.detail

    hidden = pq.read_table(io.BytesIO(whole), columns=["file_path", "pos"])
    rewrite(file, hidden.slice(1))
    unnoted(file)
    with pytest.raises(DeletesBroken, match=rf"{name_of(file)} does not tell .* expected {hidden.num_rows} rows"):
        rig.table.read()
    with pytest.raises(DeletesBroken, match=name_of(file)):
        audit_table(rig.stores, rig.table.row, full=True)
    assert "S10" in {b.invariant for b in fsck(rig.stores, [rig.name]).broken}

    put(file, whole)
    goes_on(rig)


@pytest.mark.filterwarnings("ignore:Parquet writer option")
def test_a_foreign_commit_stops_merges_of_a_keyed_table_by_name(place: Scratch, rig: KeyedRig):
    append_foreign(place, rig)
    rig.put(row(7, n=8))
    rig.to_stream()
    with pytest.raises(ForeignCommit, match="the batch view is at snapshot"):
        rig.merge()
    revert_table(rig.stores, rig.table.row, to=None)
    goes_on(rig)
