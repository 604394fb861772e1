"""Named snapshots: a cut of several tables that stays exact through moves, rewrites and expire. Judged by the log."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.ledgers.postgres.named_snapshots import SnapshotExists, SnapshotInUse, SnapshotUnknown
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.integration.tables.test_otree import taken
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.lake_files import exists
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.rig import ALL, COORDINATES, TableRig

AT_ONCE = {"versions": "1s", "grace": "1s", "snapshots": 2}
MORE_THAN_A_GRACE_S = 1.5


@pytest.fixture
def named(rig: TableRig) -> Iterator[str]:
    name = f"s{uuid.uuid4().hex[:12]}"
    yield name
    for one in rig.harness.snapshots():
        if one.name.startswith(name):
            rig.harness.drop_snapshot(one.name)


def expire_all(rig: TableRig) -> None:
    """Run expire until it has nothing left to remove: a run after more than a grace of rest finds nothing either."""
    claim = rig.claim(Stage.EXPIRE)
    rests_since = time.monotonic()

    def nothing_left() -> bool:
        nonlocal rests_since
        began = time.monotonic()
        done = expire_once(rig.stores, rig.table.row, claim)
        if done.condemned or done.deleted or done.dropped or done.retired:
            rests_since = time.monotonic()
        return began > rests_since + MORE_THAN_A_GRACE_S

    wait_until(nothing_left, "expire has removed what nothing needs")
    rig.stores.ledger.release(claim)


def known_layouts(rig: TableRig) -> set[int]:
    with rig.stores.database.session() as connection:
        query = "SELECT version FROM harness.layouts WHERE table_id = %s"
        return {row["version"] for row in connection.execute(query, [rig.table.row.table_id]).fetchall()}


@pytest.mark.long
def test_a_snapshot_shows_what_was_buffered_then_before_and_after_its_segments_and_versions_are_gone(
    make_rig: MakeRig, named: str
):
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 2}, retention=AT_ONCE)
    taken(rig, 50)
    rig.produce(30)
    rig.ingest()
    rig.harness.snapshot(named, [rig.name])
    then = rig.truth
    assert rig.read(at=named) == then
    version = rig.harness.snapshots()[-1].tables[0].version
    for _ in range(3):
        rig.produce(20)
        assert rig.read(at=named) == then
        rig.worker(ALL, until_idle=True).run()
        rig.stores.segments.rotate(rig.table.row)
        rig.relayout()
        expire_all(rig)
    assert rig.stores.tables.table(rig.name).retained_from > version
    *before, _ = rig.stores.segments.all(rig.table.row)
    assert {segment.state for segment in before} == {"retired"}, "nothing reads the segments of then"
    assert rig.read(at=named) == then
    retained = rig.harness.table(rig.name).versions()
    assert known_layouts(rig) == {v.layout for v in retained}, "layouts go with their versions"
    plan = rig.table.plan(at=named)
    spark = rig.table.to_spark(rig.stores.spark(), columns=["id", *COORDINATES], plan=plan)
    assert Counter((r["_kafka_partition"], r["_kafka_offset"], r["id"]) for r in spark.collect()) == then
    rig.table.release(plan)
    with pytest.raises(VersionGone):
        rig.read(at=version)
    rig.assert_exact()
    checked = fsck(rig.stores, [rig.name])
    assert checked.ok, checked.to_json()


@pytest.mark.long
def test_what_only_a_snapshot_needed_goes_after_it_is_dropped(make_rig: MakeRig, named: str):
    rig = make_rig(retention=AT_ONCE)
    taken(rig, 50)
    rig.harness.snapshot(named, [rig.name])
    before = rig.harness.snapshots()[-1].tables[0].version
    metadata = next(v for v in rig.table.versions() if v.version == before).stream.metadata
    for _ in range(3):
        taken(rig, 20)
    expire_all(rig)
    assert exists(metadata)
    rig.harness.drop_snapshot(named)
    expire_all(rig)
    with pytest.raises(SnapshotUnknown, match=rf"{rig.name} is in no snapshot {named}"):
        rig.read(at=named)
    assert not exists(metadata)


def test_tables_of_one_snapshot_are_one_cut_while_all_of_them_move(make_rig: MakeRig, named: str):
    """Each record is in the second table's topic only after it can be read in the first: no cut may turn that round."""
    first, second = make_rig(partitions=1), make_rig(partitions=1)
    over = threading.Event()

    def produce() -> None:
        while not over.is_set():
            first.produce(1)
            first.table.wait_for(0, len(first.kafka.acked(first.topic)[0]) - 1, timeout_s=DEADLINE_S)
            second.produce(1)

    with first.working(), second.working():
        writer = threading.Thread(target=produce)
        writer.start()
        try:  # a row may be there before its producer has noted it: what is right is judged at the end
            wait_until(lambda: second.read().total() >= 5, "five records have come through both")
            for number in range(10):
                first.harness.snapshot(f"{named}-{number}", [second.name, first.name])
        finally:
            over.set()
            writer.join()
        for rig in (first, second):
            rig.await_rows(rig.truth.total())
    for number in range(10):
        one, two = first.read(at=f"{named}-{number}"), second.read(at=f"{named}-{number}")
        assert one.total() >= two.total() >= 5


@pytest.mark.long
def test_a_snapshot_of_a_keyed_table_shows_the_newest_row_of_each_key_then(rig: TableRig, kafka: KafkaRig, named: str):
    keyed = KeyedRig(rig.harness, kafka, retention=AT_ONCE)
    keyed.produce(40)
    keyed.merge_all()
    keyed.produce(20)
    keyed.ingest()
    ends = {p: len(records) for p, records in kafka.acked(keyed.topic).items()}
    rig.harness.snapshot(named, [keyed.name])
    expected = sorted(row[0] for row in keyed.state(ends).values())
    for _ in range(2):
        keyed.produce(20)
        keyed.merge_all()
        expire_all(keyed)
    assert sorted(keyed.table.read(columns=["id"], at=named).column("id").to_pylist()) == expected
    for key, row in keyed.state(ends).items():
        assert keyed.table.get(key, at=named) == dict(zip(["id", "region", "n", "s"], row[:4], strict=True))


def test_a_moment_is_the_version_that_was_the_newest_then(rig: TableRig):
    before = datetime.now(UTC) - timedelta(days=1)
    taken(rig, 10)
    then, at_then = rig.table.versions()[-1].committed_at, rig.truth
    taken(rig, 10)
    assert rig.read(at=then) == at_then
    assert rig.read(at=datetime.now(UTC)) == rig.truth
    with pytest.raises(VersionGone, match="had no version yet"):
        rig.read(at=before)


def test_a_snapshot_is_not_dropped_under_its_reader_nor_made_twice(rig: TableRig, named: str):
    taken(rig, 10)
    rig.harness.snapshot(named, [rig.name])
    with pytest.raises(SnapshotExists, match=named):
        rig.harness.snapshot(named, [rig.name])
    plan = rig.table.plan(at=named)
    with pytest.raises(SnapshotInUse, match=f"as of snapshot {named}"):
        rig.harness.drop_snapshot(named)
    rig.table.release(plan)
    rig.harness.drop_snapshot(named)
    with pytest.raises(SnapshotUnknown, match=f"there is no snapshot {named}"):
        rig.harness.drop_snapshot(named)


@pytest.mark.parametrize("name", ["", "2026", "Month", "a b", "a" * 64])
def test_a_name_that_could_be_something_else_is_refused(rig: TableRig, name: str):
    with pytest.raises(ValueError, match="names no snapshot"):
        rig.harness.snapshot(name, [rig.name])


def test_a_dropped_table_leaves_the_others_of_its_snapshots(make_rig: MakeRig, named: str):
    kept, gone = make_rig(), make_rig()
    taken(kept, 10)
    kept.harness.snapshot(named, [kept.name, gone.name])
    kept.stores.ledger.drop_table(gone.table.row)
    [found] = [one for one in kept.harness.snapshots() if one.name == named]
    assert [pinned.table for pinned in found.tables] == [kept.name]
    assert kept.read(at=named) == kept.truth
