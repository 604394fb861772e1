"""Small files of the stream view become fewer; readers, tier, otree and a revert do not notice.

Judged by the producer's log. A round is one move of tier, so one small file per partition.
"""

from __future__ import annotations

import os
import random
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.ledgers.postgres import retention
from harness_pipelines.ports.errors import LakeFileMissing
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.compaction import FILES_MIN, CompactedWrong, StreamFile
from harness_pipelines.protocol.moves import MoveState, MoveStuck
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import local_path, normal
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.run.moving import FAILURES_MAX
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.lake_files import content, exists, name_of, parquet, put, remove
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

PER_ROUND = 20


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    """A table of two partitions, each with four small files."""
    made = make_rig(layout={"target_file_mb": 1})
    rounds(made, FILES_MIN)
    return made


def rounds(rig: TableRig, count: int) -> None:
    """So many moves of tier, each of as many records."""
    stores, row = rig.stores, rig.table.row
    rig.produce(count * PER_ROUND)
    rig.ingest()
    with claimed(rig, Stage.TIER) as claim:
        for _ in range(count):
            below = {p: at + PER_ROUND for p, at in head(rig).stream_hi.items()}
            move = tier.plan(stores, row, claim, trigger="test", run_id=None, below=below)
            assert move is not None
            tier.publish(stores, row, claim, move, tier.stage(stores, row, move))


def head(rig: TableRig) -> Version:
    return rig.stores.ledger.head(rig.table.row)


def files(rig: TableRig, version: Version | None = None) -> list[StreamFile]:
    found = compact.stream_files(rig.stores.lake_reads, rig.table.row, (version or head(rig)).stream.metadata)
    return sorted(found, key=lambda f: (f.partition, f.low))


def hulls(rig: TableRig) -> list[tuple[int, int, int]]:
    return [(f.partition, f.low, f.high) for f in files(rig)]


@contextmanager
def claimed(rig: TableRig, stage: Stage = Stage.COMPACT) -> Iterator[Claim]:
    claim = rig.claim(stage)
    yield claim
    rig.stores.ledger.release(claim)


def compacted(rig: TableRig) -> Version | None:
    with claimed(rig) as claim:
        return compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")


def states(rig: TableRig) -> list[tuple[str, int]]:
    """(state, attempt) of the compactions, oldest first."""
    return [(m["state"], m["attempt"]) for m in rig.stores.ledger.moves(rig.table.row, stage=Stage.COMPACT)][::-1]


def in_spark(rig: TableRig, view: str) -> Counter[tuple[int, ...]]:
    spark = rig.stores.spark()
    found = spark.table(view).select(*COORDINATES, "id").toArrow()
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


def view_name(rig: TableRig) -> str:
    row = rig.table.row
    return f"{rig.stores.settings.catalog_name}.{row.spec.namespace}.{row.tiered_view}"


# -- what it does -------------------------------------------------------------------------------------------


def test_small_files_become_one_per_partition_in_offset_order_and_no_bound_moves(rig: TableRig) -> None:
    before = head(rig)
    end = FILES_MIN * PER_ROUND

    after = compacted(rig)

    assert after is not None
    assert (after.version, after.bounds) == (before.version + 1, before.bounds)
    assert hulls(rig) == [(0, 0, end), (1, 0, end)]
    for file in files(rig):
        assert parquet(file.path)["_kafka_offset"].to_pylist() == list(range(end))
    rig.assert_exact()
    assert compacted(rig) is None
    assert states(rig) == [(MoveState.COMMITTED, 1)]


def test_every_other_reader_of_the_view_sees_the_same_rows_and_a_replace(rig: TableRig) -> None:
    after = compacted(rig)

    assert after is not None
    assert in_spark(rig, view_name(rig)) == rig.truth
    view = rig.stores.lake.load(rig.table.row, after.stream.metadata)
    summary = view.metadata.snapshot_by_id(after.stream.snapshot).summary  # type: ignore[union-attr]  # it is there
    assert summary is not None
    assert (summary.operation.value, summary["deleted-data-files"], summary["added-data-files"]) == (
        "replace",
        "8",
        "2",
    )
    assert summary["added-records"] == summary["deleted-records"]
    assert not [name for name in view.metadata.refs if name.startswith("move_")]


def test_an_audit_and_fsck_find_nothing(rig: TableRig) -> None:
    compacted(rig)
    rounds(rig, 1)

    report = audit_table(rig.stores, rig.table.row, processes=1)
    checked = fsck(rig.stores, [rig.name])

    assert report.ok, report.to_json()
    assert checked.ok, checked.to_json()


@pytest.mark.long
def test_large_files_are_left_alone_and_many_become_several_without_overlap(make_rig: MakeRig) -> None:
    rig = make_rig(layout={"target_file_mb": 1}, columns={"id": {"type": "long", "required": True}, "s": "string"})
    noise = random.Random(5)
    for first in range(0, 24_000, 3_000):
        values = [b'{"id":%d,"s":"%s"}' % (i, noise.randbytes(128).hex().encode()) for i in range(first, first + 3_000)]
        rig.kafka.produce(rig.topic, 0, values)
        rig.ingest()
        rig.tier()
    assert all(f.bytes < 2**19 for f in files(rig))
    assert sum(f.bytes for f in files(rig)) > 2 * 2**20, "several targets"

    compacted(rig)

    found = files(rig)
    assert 2 <= len(found) < 8
    assert all(one.high == following.low for one, following in pairwise(found))
    assert all(f.bytes >= 2**19 for f in found)
    assert compacted(rig) is None, "what is large is left alone"
    rig.assert_exact()


def test_a_worker_compacts_by_itself_and_then_is_idle(rig: TableRig) -> None:
    rig.worker(frozenset({Stage.COMPACT}), until_idle=True).run()

    assert len(files(rig)) == 2
    rig.assert_exact()


# -- beside others ------------------------------------------------------------------------------------------


def test_what_tier_publishes_meanwhile_stays(rig: TableRig) -> None:
    stores, row = rig.stores, rig.table.row
    with claimed(rig) as claim:
        move = compact.plan(stores, row, claim, trigger="test", run_id=None)
        assert move is not None
        attempt = compact.stage(stores, row, move)
        rounds(rig, 2)

        compact.publish(stores, row, claim, move, attempt)

    assert hulls(rig) == [(p, low, high) for p in (0, 1) for low, high in [(0, 80), (80, 100), (100, 120)]]
    rig.assert_exact()
    rounds(rig, 1)
    rig.assert_exact()


def test_the_next_attempt_takes_the_files_of_the_first_whatever_came_since(rig: TableRig) -> None:
    with claimed(rig) as claim:
        faults.arm_from({"HARNESS_FAULT": "compact.after_files=raise"})
        with pytest.raises(faults.FaultInjected):
            compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")
    rounds(rig, 1)

    compacted(rig)

    assert states(rig) == [(MoveState.COMMITTED, 2)]
    assert hulls(rig) == [(0, 0, 80), (0, 80, 100), (1, 0, 80), (1, 80, 100)]
    rig.assert_exact()


def test_files_that_somebody_else_replaced_are_planned_anew(rig: TableRig) -> None:
    stores, row = rig.stores, rig.table.row
    with claimed(rig) as claim:
        move = compact.plan(stores, row, claim, trigger="test", run_id=None)
        assert move is not None
        other = stores.ledger.claim(row, Stage.COMPACT, shard=1, holder=str(uuid.uuid4()), lease=timedelta(minutes=1))
        assert other is not None
        assert compact.compact_once(stores, row, other, trigger="test") is not None

        assert compact.compact_once(stores, row, claim, trigger="test") is None

    assert states(rig) == [(MoveState.ABANDONED, 2), (MoveState.COMMITTED, 1)]
    assert len(files(rig)) == 2
    rig.assert_exact()


def test_the_batch_view_merges_from_compacted_files(make_rig: MakeRig) -> None:
    rig = make_rig(views="both", layout={"columns": ["n", "id"], "target_file_mb": 1})
    rounds(rig, FILES_MIN)
    with claimed(rig, Stage.OTREE) as claim:
        otree.otree_once(rig.stores, rig.table.row, claim, trigger="test")
        rounds(rig, 1)
        compacted(rig)
        otree.otree_once(rig.stores, rig.table.row, claim, trigger="test")

    assert all(b.batch_hi == b.stream_hi == 100 for b in head(rig).bounds.values())
    rig.assert_exact()


def test_a_revert_behind_a_compaction_brings_the_small_files_back(rig: TableRig) -> None:
    before = head(rig)
    compacted(rig)
    rounds(rig, 1)

    revert_table(rig.stores, rig.table.row, to=before.version)

    assert hulls(rig) == [(f.partition, f.low, f.high) for f in files(rig, before)]
    rig.assert_exact()
    rounds(rig, 1)
    compacted(rig)
    rig.assert_exact()


# -- readers ------------------------------------------------------------------------------------------------


def test_old_versions_and_readers_under_way_read_on(rig: TableRig) -> None:
    before, truth = head(rig), rig.truth
    lazy = rig.table.to_spark(rig.stores.spark(), columns=["id", *COORDINATES])
    with rig.table.reader(columns=["id", *COORDINATES]) as under_way:
        compacted(rig)
        rounds(rig, 1)

        late = under_way.read_all()
    found = lazy.toArrow()

    for table in (late, found):
        assert Counter(zip(*(table.column(c).to_pylist() for c in (*COORDINATES, "id")), strict=True)) == truth
    assert rig.read(at=before.version) == truth


def test_small_files_are_kept_for_a_lease_and_condemned_when_it_ends(make_rig: MakeRig) -> None:
    rig = make_rig(layout={"target_file_mb": 1}, retention={"versions": "1s", "grace": "1s", "snapshots": 1})
    rounds(rig, FILES_MIN)
    truth, small, leased = rig.truth, {normal(f.path) for f in files(rig)}, head(rig).version
    plan = rig.table.plan()
    lazy = rig.table.to_spark(rig.stores.spark(), columns=["id", *COORDINATES], plan=plan)
    compacted(rig)
    condemned: set[str] = set()

    with claimed(rig, Stage.EXPIRE) as claim:

        def expired() -> int:
            """The oldest version that can still be read."""
            done = expire_once(rig.stores, rig.table.row, claim)
            condemned.update(done.condemned)
            return done.retained_from

        wait_until(lambda: expired() > leased, "the leased version is kept for its lease alone")
        expired()
        assert not condemned & small
        found = lazy.toArrow()
        assert Counter(zip(*(found.column(c).to_pylist() for c in (*COORDINATES, "id")), strict=True)) == truth

        rig.table.release(plan)
        wait_until(lambda: bool(expired()) and small <= condemned, "nothing needs the small files")
    rig.assert_exact()


@pytest.mark.long
def test_expire_does_not_remove_most_of_a_table_without_a_persons_word(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "GUARD_FREE_BYTES", 0)
    monkeypatch.setattr(retention, "SHARE_MAX", 0.01)
    rig = make_rig(layout={"target_file_mb": 1}, retention={"versions": "1s", "grace": "1s", "snapshots": 1})
    rounds(rig, FILES_MIN)
    small = {normal(f.path) for f in files(rig)}
    compacted(rig)

    with claimed(rig, Stage.EXPIRE) as claim:

        def refused() -> str:
            try:
                expire_once(rig.stores, rig.table.row, claim)
            except retention.SizeGuard as error:
                return str(error)
            return ""

        wait_until(lambda: "--remove-large" in refused(), "the files are ripe, and too many")
        assert all(map(exists, small))

        def removed() -> bool:
            expire_once(rig.stores, rig.table.row, claim, remove_large=True)
            return not any(map(exists, small))

        wait_until(removed, "they are gone")
    rig.assert_exact()


@pytest.mark.folder("the times of files are set; `stores/test_clocks.py` does it to a store")
def test_expire_with_a_storage_an_hour_behind_removes_no_file_that_an_open_move_writes(make_rig: MakeRig) -> None:
    rig = make_rig(retention={"grace": "1s"})
    rounds(rig, 1)
    rig.produce(PER_ROUND)
    rig.ingest()
    stores, row = rig.stores, rig.table.row
    with claimed(rig, Stage.TIER) as claim, claimed(rig, Stage.EXPIRE) as cleaner:
        move = tier.plan(stores, row, claim, trigger="test", run_id=None)
        assert move is not None
        folder = normal(files(rig)[0].path).rpartition("/")[0]
        written = f"{folder}/{uuid.uuid4()}.parquet"  # not in any branch yet
        put(written, b"rows")
        path = local_path(written)
        assert path is not None
        behind = Path(path).stat().st_mtime - 3600
        os.utime(path, (behind, behind))
        assert written in expire_once(stores, row, cleaner).condemned

        def grace_has_ended() -> bool:
            query = "SELECT max(since) < clock_timestamp() - interval '1 s' AS ended FROM harness.condemned_files"
            with stores.database.session() as connection:
                found = connection.execute(query + " WHERE table_id = %s", [row.table_id]).fetchone()
            return bool(found and found["ended"])

        wait_until(grace_has_ended, "the file is condemned for longer than the grace")
        expire_once(stores, row, cleaner)
        assert exists(written)

        stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="test")
        assert written in expire_once(stores, row, cleaner).deleted
        assert not exists(written)
    rig.assert_exact()


@pytest.mark.long
def test_a_spark_stream_that_follows_the_view_sees_no_row_twice(rig: TableRig, tmp_path: Path) -> None:
    def streamed() -> Counter[tuple[int, ...]]:
        """All that the stream has written so far, after it took what was there."""
        rows = rig.stores.spark().readStream.format("iceberg").load(view_name(rig)).select(*COORDINATES, "id")
        sink, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
        query = rows.writeStream.format("parquet").option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start(sink).awaitTermination()
        found = pq.read_table(sink)
        return Counter(zip(*(found.column(c).to_pylist() for c in (*COORDINATES, "id")), strict=True))

    assert streamed() == rig.truth
    compacted(rig)
    assert streamed() == rig.truth
    rounds(rig, 1)
    assert streamed() == rig.truth
    rounds(rig, FILES_MIN)
    compacted(rig)
    rounds(rig, 1)
    assert streamed() == rig.truth


# -- trouble ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_spark")
def test_what_was_written_wrongly_is_never_published_and_holds_the_stage_by_name(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_pipelines.engines.spark import view as spark_view

    before = head(rig)

    def unsorted(spark, metadata, runs, pins):
        return spark_view._rows(spark, metadata, runs, pins).repartition(3)

    with claimed(rig) as claim:
        with monkeypatch.context() as patched:
            patched.setattr(spark_view, "rows_in_pieces", unsorted)
            for _ in range(FAILURES_MAX):
                with pytest.raises(CompactedWrong, match="nothing was published"):
                    compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")
        with pytest.raises(MoveStuck, match="compact move .* of small files failed in every attempt"):
            compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")

    assert head(rig) == before
    rounds(rig, 1)
    rig.assert_exact()


def test_a_small_file_that_is_gone_is_named_and_nothing_is_published(rig: TableRig) -> None:
    before, victim = head(rig), files(rig)[0].path
    kept = content(victim)
    remove(victim)

    with claimed(rig) as claim, pytest.raises(LakeFileMissing, match=f"{name_of(victim)} is gone"):
        compact.compact_once(rig.stores, rig.table.row, claim, trigger="test")
    assert head(rig) == before

    put(victim, kept)
    compacted(rig)
    rig.assert_exact()


def test_a_table_without_small_files_plans_no_move(make_rig: MakeRig) -> None:
    rig = make_rig()
    assert compact.trigger(rig.stores, rig.table.row) is None
    assert compacted(rig) is None
    rounds(rig, FILES_MIN - 1)

    assert compact.trigger(rig.stores, rig.table.row) is None
    assert compacted(rig) is None
    assert states(rig) == []
    rounds(rig, 1)
    assert compact.trigger(rig.stores, rig.table.row) == "files"
    assert compact.trigger(rig.stores, rig.table.row, judged=head(rig).stream.metadata) is None
