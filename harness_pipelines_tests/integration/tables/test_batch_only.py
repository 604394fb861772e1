"""`views: batch`: one copy of the rows, which tier writes and otree clusters. Judged by the producer's log."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.foreign import ForeignRefused, find_foreign
from harness_pipelines.audit.repair.rebuild import plan_rebuild
from harness_pipelines.layout.files import classify
from harness_pipelines.ports.errors import LakeHistoryMissing
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.clustering import layout_of
from harness_pipelines.spec.wording import SpecError
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.run.due import due_upkeep
from harness_pipelines.stages.run.moving import make_branch
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.integration.tables.test_otree import BY_VALUE, head, merged, taken
from harness_pipelines_tests.integration.tables.test_revert import append_with_pyiceberg
from harness_pipelines_tests.rig import COORDINATES, OTREE, TIER, TableRig


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    return make_rig(views="batch", layout=BY_VALUE)


def by_spark(rig: TableRig) -> Counter[Any]:
    found = rig.table.to_spark(rig.stores.spark(), columns=["id", *COORDINATES])
    return Counter((r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in found.collect())


def assert_sound(rig: TableRig) -> None:
    report = audit_table(rig.stores, rig.table.row, full=True, processes=1)
    assert report.ok, report.to_json()
    checked = fsck(rig.stores, [rig.name])
    assert checked.ok, checked.to_json()


def test_tier_moves_both_bounds_and_publishes_the_only_view(rig: TableRig):
    taken(rig, 300)
    assert list(head(rig).views) == ["batch"]
    assert {p.partition: (p.bounds.batch_hi, p.bounds.stream_hi) for p in rig.table.positions()} == {
        0: (300, 300),
        1: (300, 300),
    }
    rig.produce(50)
    rig.ingest()
    plan = rig.table.plan()
    assert [(p.view, p.low, p.high) for p in plan.lake] == [("batch", {0: 0, 1: 0}, {0: 300, 1: 300})]
    rig.assert_exact()
    assert by_spark(rig) == rig.truth
    assert_sound(rig)


def test_otree_makes_the_tree_of_what_tier_wrote_and_each_file_lies_in_its_region(rig: TableRig):
    taken(rig, 2000)
    made = merged(rig)
    assert made is not None
    assert made.stream == made.batch == head(rig).batch
    layout = layout_of(rig.stores, rig.table.row, made)
    assert layout is not None
    found = rig.stores.lake.region_files(rig.table.row, made.stream.metadata)
    assert len(layout.tree) == 8 + 1, "the sample layer"
    assert sorted(filter(None, classify(layout.tree, found))) == sorted(layout.tree.paths())
    assert merged(rig) is None, "nothing is left to do"
    rig.assert_exact()
    assert by_spark(rig) == rig.truth
    assert_sound(rig)


def test_rows_that_tier_adds_during_a_rewrite_stay_and_still_wait(rig: TableRig):
    taken(rig, 1000)
    row, stores = rig.table.row, rig.stores
    claim = rig.claim(Stage.OTREE)
    move = otree.plan(stores, row, claim, trigger="test", run_id=None)
    assert move is not None
    attempt = otree.stage(stores, row, move)
    taken(rig, 500)
    made = otree.publish(stores, row, claim, move, attempt)
    stores.ledger.release(claim)
    rig.assert_exact()
    layout = layout_of(stores, row, made)
    assert layout is not None
    found = stores.lake.region_files(row, made.stream.metadata)
    settled = max(layout.clustered.values())
    assert sum(f.rows for f in found if f.sequence <= settled) == 2000, "what was written anew counts as of its base"
    assert sum(f.rows for f in found if f.sequence > settled) == 1000, "what tier added meanwhile waits"
    rig.worker(OTREE, until_idle=True).run()
    rig.assert_exact()
    assert_sound(rig)


def test_a_rewrite_whose_files_are_gone_meanwhile_is_rejected(rig: TableRig):
    taken(rig, 300)
    taken(rig, 300)
    row, stores, before = rig.table.row, rig.stores, head(rig).version
    claim = rig.claim(Stage.OTREE)
    move = otree.plan(stores, row, claim, trigger="test", run_id=None)
    assert move is not None
    otree.stage(stores, row, move)
    stores.ledger.release(claim)
    revert_table(stores, row, to=before - 1)
    rig.worker(OTREE, until_idle=True).run()
    rig.assert_exact()
    assert_sound(rig)


def test_an_old_version_takes_what_it_had_buffered_from_a_later_state_of_the_same_view(rig: TableRig):
    taken(rig, 200)
    rig.produce(100)
    rig.ingest()
    old = merged(rig)
    assert old is not None
    assert (old.stream_hi, old.buffer_hi) == ({0: 200, 1: 200}, {0: 300, 1: 300})
    at_old = rig.truth
    rig.tier()
    taken(rig, 100)
    rig.relayout()
    plan = rig.table.plan(at=old.version)
    assert [(p.view, p.low, p.high) for p in plan.lake] == [
        ("batch", {0: 0, 1: 0}, {0: 200, 1: 200}),
        ("batch", {0: 200, 1: 200}, {0: 300, 1: 300}),
    ]
    rig.table.release(plan)
    assert rig.read(at=old.version) == at_old
    rig.assert_exact()


@pytest.mark.long
def test_a_revert_takes_both_bounds_back_and_the_rows_come_again(rig: TableRig):
    taken(rig, 200)
    first = head(rig).version
    taken(rig, 200)
    merged(rig)
    made = revert_table(rig.stores, rig.table.row, to=first)
    assert {p.bounds.batch_hi for p in rig.table.positions()} == {200}
    assert rig.stores.ledger.head(rig.table.row).version >= made.version
    rig.worker(TIER | OTREE, until_idle=True).run()
    rig.assert_exact()
    assert {p.bounds.batch_hi for p in rig.table.positions()} == {400}
    assert_sound(rig)


def test_there_is_nothing_to_compact_and_otree_is_due(rig: TableRig):
    taken(rig, 200)
    [work] = rig.stores.watch.work([rig.name])
    due = due_upkeep(rig.stores, rig.table.row, work)
    assert Stage.OTREE in due
    assert Stage.COMPACT not in due
    assert Stage.COMPACT not in rig.table.row.effects
    with pytest.raises(KeyError):
        rig.table.row.views["stream"]


@pytest.mark.long
def test_without_a_buffer_spark_reads_the_log_into_the_batch_view(make_rig: MakeRig):
    rig = make_rig(views="batch", layout=BY_VALUE, buffer="none")
    rig.produce(500)
    misfit = rig.produce_misfit(b"no json")
    rig.worker(TIER | OTREE, until_idle=True).run()
    rig.assert_exact()
    assert (0, misfit) in rig.quarantine()
    assert_sound(rig)


@pytest.mark.long
def test_a_sample_reads_the_sample_layer_of_rows_that_are_clustered(make_rig: MakeRig):
    rig = make_rig(views="batch", layout={"columns": ["n", "id"], "regions": 40})
    taken(rig, 20_000)
    merged(rig)
    drawn, fewer = rig.table.sample(0.01, columns=["id"]), rig.table.sample(0.001, columns=["id"])
    assert 250 <= drawn.num_rows <= 550
    assert set(fewer.column("id").to_pylist()) <= set(drawn.column("id").to_pylist())


@pytest.mark.long
def test_expire_keeps_what_the_only_view_needs(make_rig: MakeRig):
    rig = make_rig(views="batch", layout=BY_VALUE, retention={"versions": "1s", "grace": "1s"})
    taken(rig, 300)
    merged(rig)
    taken(rig, 300)
    rig.relayout()
    claim = rig.claim(Stage.EXPIRE)
    expire_once(rig.stores, rig.table.row, claim)
    rig.stores.ledger.release(claim)
    rig.assert_exact()
    assert_sound(rig)


@pytest.mark.filterwarnings("ignore:Parquet writer option")  # of the other writer, which is PyIceberg
def test_rows_of_another_writer_stop_the_table_and_a_revert_brings_it_back(rig: TableRig):
    taken(rig, 50)
    append_with_pyiceberg(rig)
    with pytest.raises(ForeignRefused, match="`views: batch` has none"):
        find_foreign(rig.stores, rig.table.row)
    assert not audit_table(rig.stores, rig.table.row, processes=1).ok
    revert_table(rig.stores, rig.table.row, to=None)
    taken(rig, 50)
    rig.assert_exact()
    assert_sound(rig)


def test_a_lost_ledger_of_such_a_table_is_refused_by_name(rig: TableRig):
    taken(rig, 50)
    with pytest.raises(LakeHistoryMissing, match="`views: batch`.*not rebuilt from the lake yet"):
        plan_rebuild(rig.stores, rig.table.spec)


def test_changes_between_two_versions_are_read_from_the_only_view(rig: TableRig):
    taken(rig, 20)
    since = head(rig).version
    taken(rig, 10)
    merged(rig)
    found = rig.table.changes(since).select(list(COORDINATES))
    assert sorted(zip(*(c.to_pylist() for c in found.columns), strict=True)) == [
        (p, o) for p in (0, 1) for o in range(20, 30)
    ]


def test_a_branch_of_an_attempt_is_made_in_the_only_view(rig: TableRig):
    taken(rig, 50)
    claim = rig.claim(Stage.OTREE)
    move = otree.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    assert not move.ranges
    make_branch(rig.stores, rig.table.row, move)
    assert move.branch in rig.stores.lake.current(rig.table.row, "batch").metadata.refs


def test_a_keyed_table_needs_its_changelog():
    wanted = {
        "table": "a.b",
        "columns": [{"name": "id", "type": "long", "required": True}],
        "key": ["id"],
        "views": "batch",
    }
    with pytest.raises(SpecError, match="a keyed table needs the stream view, its changelog"):
        hp.TableSpec.model_validate(wanted)
