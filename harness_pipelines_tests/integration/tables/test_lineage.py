"""`Table.lineage`: files, moves and records of real tables, judged by what the files themselves hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.compaction import FILES_MIN
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.read.report.lineage import (
    FileLineage,
    FileUnknown,
    MoveLineage,
    MoveUnknown,
    OffsetUnknown,
    RecordLineage,
)
from harness_pipelines.stages.compact import compact_once
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.keyed import KeyedRig, row
from harness_pipelines_tests.lake_files import parquet
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

PER_ROUND = 20
BOTH = {"views": "both", "layout": {"columns": ["n"], "regions": 2, "sample": 0}}
AT_ONCE = {"versions": "1s", "grace": "1s", "snapshots": 1}


def head(rig: TableRig) -> Version:
    return rig.stores.ledger.head(rig.table.row)


def tier(rig: TableRig, times: int = 1) -> list[Version]:
    """So many moves of tier, each of `PER_ROUND` records per partition, and the versions that they made."""
    made = []
    for _ in range(times):
        rig.produce(PER_ROUND)
        rig.ingest()
        rig.tier()
        made.append(head(rig))
    return made


def once(rig: TableRig, stage: Stage) -> Version:
    step = {Stage.OTREE: otree_once, Stage.COMPACT: compact_once}[stage]
    claim = rig.claim(stage)
    made = step(rig.stores, rig.table.row, claim, trigger="test")
    rig.stores.ledger.release(claim)
    assert made is not None
    return made


def paths(version: Version, view: ViewName = "stream") -> set[str]:
    """Of the data files and the delete files."""
    files = pinned(version.views[view].metadata).files
    return {f.path for f in files} | {f.deletes.path for f in files if f.deletes}


def holding(version: Version, record: tuple[int, int], view: ViewName = "batch") -> set[str]:
    """The data files with a row of the record, hidden or not."""
    found = (f.path for f in pinned(version.views[view].metadata).files)
    return {path for path in found if record in coordinates(path)}


def coordinates(path: str) -> set[tuple[int, int]]:
    """Of the rows of a file, hidden ones too."""
    rows = parquet(path, COORDINATES)
    return set(zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True))


def of_file(rig: TableRig, path: str) -> FileLineage:
    found = rig.table.lineage(path)
    assert isinstance(found, FileLineage)
    return found


def of_move(rig: TableRig, move_id: int | None) -> MoveLineage:
    assert move_id is not None
    found = rig.table.lineage(move_id)
    assert isinstance(found, MoveLineage)
    return found


def of_record(rig: TableRig, partition: int, offset: int) -> RecordLineage:
    found = rig.table.lineage((partition, offset))
    assert isinstance(found, RecordLineage)
    return found


def stages(found: RecordLineage) -> list[str]:
    return [move.stage for move in found.moves]


def of_view(found: RecordLineage, view: ViewName) -> set[str]:
    return {file.entry.path for file in found.files if file.view == view}


def assert_told(rig: TableRig, version: Version, before: Version, view: ViewName) -> MoveLineage:
    """The move of *version* is told with the files that it changed, and each of what it added leads back to it."""
    found = of_move(rig, version.move_id)
    assert found.complete
    assert found.removed is not None
    assert {f.entry.path for f in found.added} == paths(version, view) - paths(before, view)
    assert {f.entry.path for f in found.removed} == paths(before, view) - paths(version, view)
    assert found.move.version == version.version
    for file in found.added:
        back = of_file(rig, file.entry.path)
        assert (back.file.view, back.first, back.file.origin.told_by) == (view, version.version, "snapshot")
        assert back.file.origin.move == found.move
        if file.entry.is_data:
            held = coordinates(file.entry.path)
            assert file.entry.rows == len(held)
            offsets = [offset for _, offset in held]
            assert (file.entry.low, file.entry.high) == (min(offsets), max(offsets) + 1)
    return found


@pytest.mark.long
def test_files_moves_and_records_of_both_views_lead_to_each_other(make_rig: MakeRig):
    rig = make_rig(**BOTH)
    versions = [head(rig), *tier(rig, 2)]
    versions += [once(rig, Stage.OTREE), *tier(rig)]
    merged = once(rig, Stage.OTREE)
    [relaid] = [rig.relayout()]

    for before, version in pairwise(versions[:3]):
        moved = assert_told(rig, version, before, "stream")
        assert (moved.move.stage, moved.move.rows, moved.removed) == ("tier", 2 * PER_ROUND, ())
        assert {f.entry.partition for f in moved.added} == {0, 1}
    first = assert_told(rig, versions[3], versions[2], "batch")
    assert [(r.partition, r.low, r.high) for r in first.move.ranges] == [(0, 0, 40), (1, 0, 40)]
    assert_told(rig, merged, versions[4], "batch")
    rewritten = assert_told(rig, relaid, merged, "batch")
    assert rewritten.removed
    assert rewritten.move.ranges == ()

    gone = of_file(rig, rewritten.removed[0].entry.path)
    assert (gone.last, gone.head, gone.to_json()["versions"]["live"]) == (merged.version, relaid.version, False)
    found = of_record(rig, 0, 5)
    assert (found.place, found.record, stages(found)) == ("batch", True, ["ingest", "tier", "otree"])
    assert [m.version for m in found.moves if m.stage == "otree"] == [first.move.version]
    assert of_view(found, "stream") == holding(relaid, (0, 5), "stream")
    assert holding(relaid, (0, 5)) <= of_view(found, "batch")


def test_files_of_later_merges_are_no_place_for_a_record_of_an_earlier_one(make_rig: MakeRig):
    rig = make_rig(**BOTH)
    for partition in (0, 1):
        rig.kafka.produce(rig.topic, partition, rig.values(PER_ROUND))
        rig.ingest()
        rig.tier()
        last = once(rig, Stage.OTREE)

    for record in ((0, 5), (1, 5)):
        found = of_view(of_record(rig, *record), "batch")
        assert found == holding(last, record), "the hulls of both merges have the offset"


def test_each_tier_is_told_that_has_a_record_and_what_no_log_holds(make_rig: MakeRig):
    rig = make_rig(**BOTH)
    tier(rig)
    once(rig, Stage.OTREE)
    tier(rig)
    rig.produce(PER_ROUND)
    misfit = rig.produce_misfit(b"{")
    transaction = rig.kafka.begin()
    transaction.produce(rig.topic, 1, rig.values(1))
    transaction.commit()
    rig.kafka.produce(rig.topic, 1, rig.values(1))
    rig.ingest()
    rig.produce(1)

    places = {offset: of_record(rig, 0, offset).place for offset in (0, 20, 40, misfit, misfit + 1)}
    assert list(places.values()) == ["batch", "stream", "buffer", "quarantine", "kafka"]
    buffered = of_record(rig, 0, 40)
    assert (buffered.record, stages(buffered), buffered.files) == (True, ["ingest"], ())
    assert set(buffered.segments) == {s.name for s in rig.stores.segments.all(rig.table.row)}
    refused = of_record(rig, 0, misfit).to_json()
    assert (refused["record"], refused["quarantine"]["reason"], refused["quarantine"]["state"]) == (
        None,
        "malformed",
        "held",
    )
    assert of_record(rig, 0, misfit + 1).record is None
    mark = of_record(rig, 1, 61)
    assert (mark.place, mark.record, mark.segments) == ("buffer", False, ())
    rig.tier()
    assert (of_record(rig, 1, 61).record, of_record(rig, 1, 60).record) == (False, True)


def test_what_compaction_wrote_anew_leads_to_it_and_what_it_replaced_to_tier(make_rig: MakeRig):
    rig = make_rig(layout={"target_file_mb": 1})
    small = tier(rig, FILES_MIN)
    compacted = once(rig, Stage.COMPACT)

    found = assert_told(rig, compacted, small[-1], "stream")
    assert found.removed is not None
    assert (found.move.stage, len(found.added), len(found.removed)) == ("compact", 2, 2 * FILES_MIN)
    for version in small:
        moved = of_move(rig, version.move_id)
        assert len(moved.added) == 2
        old = of_file(rig, moved.added[0].entry.path)
        assert (old.first, old.last) == (version.version, small[-1].version)
    record = of_record(rig, 1, 5)
    assert [f.origin.move and f.origin.move.stage for f in record.files] == ["compact"]
    assert stages(record) == ["ingest", "tier"]


@pytest.mark.long
def test_of_a_keyed_table_hidden_rows_and_the_files_that_hide_them_are_told(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    rig.put(*(row(i, n=i) for i in range(200)))
    rig.to_stream()
    rig.merge()
    before = head(rig)
    rig.put(row(7, n=7))
    rig.delete((9, "eu"))
    rig.to_stream()
    stream = head(rig)
    after = rig.merge()
    assert after is not None

    found = assert_told(rig, after, stream, "batch")
    hiding = [f for f in found.added if not f.entry.is_data]
    assert hiding
    for file in hiding:
        assert file.entry.hides_in in paths(before, "batch")
        assert file.to_json()["content"] == "position deletes"
        hidden = of_file(rig, str(file.entry.hides_in))
        assert hidden.hidden is not None
        assert (hidden.hidden.path, hidden.hidden.rows, hidden.first) == (
            file.entry.path,
            file.entry.rows,
            before.version,
        )
    at = {key: (partition, offset) for partition, offset, key, _ in rig.records}
    newest = of_record(rig, *at[7, "eu"])
    assert (newest.place, newest.keyed, newest.record) == ("batch", True, True)
    assert holding(after, at[7, "eu"]) <= of_view(newest, "batch")
    assert not of_view(newest, "batch") & paths(before, "batch"), "what is older than its merge does not have it"


def test_a_recalled_row_lies_in_the_table_of_recalled_rows(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    rig.put(*(row(i, n=i) for i in range(20)))
    rig.merge_all()
    rig.recall("id = 7")

    at = {key: (partition, offset) for partition, offset, key, _ in rig.records}
    assert of_record(rig, *at[7, "eu"]).recalled == tuple(one.segment for one in head(rig).overlays)
    assert of_record(rig, *at[8, "eu"]).recalled == ()


def test_a_revert_takes_files_and_moves_back_and_the_record_is_moved_again(make_rig: MakeRig):
    rig = make_rig()
    kept, undone = tier(rig, 2)
    lost = paths(undone) - paths(kept)
    made = revert_table(rig.stores, rig.table.row, to=kept.version)

    for path in lost:
        assert (of_file(rig, path).first, of_file(rig, path).last) == (undone.version, undone.version)
    back = of_move(rig, made.move_id)
    assert back.removed is not None
    assert (back.move.stage, back.added, {f.entry.path for f in back.removed}) == ("revert", (), lost)
    assert of_move(rig, undone.move_id).move.undone_by == made.move_id
    record = of_record(rig, 0, PER_ROUND)
    assert (record.place, stages(record)) == ("buffer", ["ingest", "tier", "revert"])
    rig.tier()
    again = of_record(rig, 0, PER_ROUND)
    assert (again.place, stages(again)) == ("stream", ["ingest", "tier", "revert", "tier"])
    assert [m.undone_by for m in again.moves] == [None, made.move_id, None, None]

    revert_table(rig.stores, rig.table.row, to=undone.version)
    for path in lost:
        assert (of_file(rig, path).first, of_file(rig, path).last) == (undone.version, head(rig).version)


@contextmanager
def snapshot(rig: TableRig) -> Iterator[None]:
    name = f"s{uuid.uuid4().hex[:12]}"
    rig.harness.snapshot(name, [rig.name])
    yield
    rig.harness.drop_snapshot(name)


def test_when_the_snapshot_is_expired_the_ledger_tells_the_move(make_rig: MakeRig):
    rig = make_rig(retention={"snapshots": 1})
    first, second = tier(rig, 2)
    once_more = tier(rig)[0]

    for path in paths(first):
        found = of_file(rig, path)
        assert found.file.origin.move is not None
        assert (found.first, found.last) == (first.version, once_more.version)
        assert found.file.origin.move.move_id == first.move_id
    assert of_move(rig, second.move_id).complete, "the versions around it are kept, each with its own metadata"


def test_of_a_ledger_that_was_made_anew_the_snapshots_tell_what_the_versions_do_not(make_rig: MakeRig):
    rig = make_rig()
    before, [version] = head(rig), tier(rig)
    with psycopg.connect(rig.stores.dsn) as owner:  # a worker may not change a version
        owner.execute("UPDATE harness.versions SET move_id = NULL WHERE move_id = %s", [version.move_id])

    found = of_move(rig, version.move_id)
    assert (found.move.version, found.complete, found.removed) == (None, True, ())
    assert {f.entry.path for f in found.added} == paths(version) - paths(before)

    with psycopg.connect(rig.stores.dsn) as owner:
        owner.execute("DELETE FROM harness.moves WHERE move_id = %s", [version.move_id])
    for path in paths(version):
        origin = of_file(rig, path).file.origin
        assert (origin.move_id, origin.told_by, origin.move) == (version.move_id, "snapshot", None)


@pytest.mark.long
def test_what_expire_has_forgotten_is_said_and_the_ledger_goes_on_telling(make_rig: MakeRig):
    rig = make_rig(layout={"target_file_mb": 1}, retention=AT_ONCE)
    first = tier(rig)[0]
    with snapshot(rig):
        small = tier(rig, FILES_MIN - 1)
        compacted = once(rig, Stage.COMPACT)
        written = paths(compacted)  # its metadata goes with its version
        later = tier(rig, 2)[-1]
        claim = rig.claim(Stage.EXPIRE)
        wait_until(
            lambda: expire_once(rig.stores, rig.table.row, claim).retained_from == later.version,
            "the newest version alone can be read",
        )
        rig.stores.ledger.release(claim)
        [name] = {Path(p).name for p in paths(first) if "_kafka_partition=0" in p}
        found = of_file(rig, name)
        assert (found.first, found.last, found.oldest) == (first.version, first.version, first.version)

    for path in written:
        found = of_file(rig, path)
        assert (found.first, found.last, found.file.origin.version) == (
            later.version,
            later.version,
            compacted.version,
        )
        assert (found.file.origin.told_by, found.file.origin.operation) == ("ledger", None)
        assert found.file.origin.move is not None
        assert found.file.origin.move.move_id == compacted.move_id
    told = of_move(rig, compacted.move_id)
    assert {f.entry.path for f in told.added} == written
    assert (told.removed, told.complete) == (None, False)
    assert of_move(rig, small[0].move_id).to_json()["files"] == {"added": [], "removed": None, "complete": False}
    with pytest.raises(FileUnknown, match=f"{name}.*stream view.*{later.version} to {later.version}.*harness audit"):
        rig.table.lineage(name)
    assert stages(of_record(rig, 0, 5)) == ["ingest", "tier"]


def test_without_a_stream_view_files_and_records_lead_to_tier_and_to_what_wrote_them_anew(make_rig: MakeRig):
    rig = make_rig(views="batch", layout={"columns": ["n"], "regions": 2})
    before = head(rig)
    [tiered] = tier(rig)
    assert_told(rig, tiered, before, "batch")
    relaid = rig.relayout()
    assert_told(rig, relaid, tiered, "batch")

    found = of_record(rig, 1, 3)
    assert (found.place, found.record, stages(found)) == ("batch", None, ["ingest", "tier"])
    assert holding(relaid, (1, 3)) <= of_view(found, "batch")


@pytest.mark.long
def test_without_a_buffer_what_is_not_in_the_lake_is_in_kafka(make_rig: MakeRig):
    rig = make_rig(buffer="none")
    rig.produce(PER_ROUND)
    assert of_record(rig, 0, 5).place == "kafka"
    rig.tier()
    assert (of_record(rig, 0, 5).place, stages(of_record(rig, 0, 5))) == ("stream", ["tier"])


def test_what_is_not_there_is_said_by_name(make_rig: MakeRig):
    rig, other = make_rig(), make_rig()
    [version] = tier(rig)
    tier(other)
    with pytest.raises(FileUnknown, match=r"no file '00.parquet' in its stream view, in versions 1 to 2"):
        rig.table.lineage("00.parquet")
    with pytest.raises(MoveUnknown, match=f"no move {10**15}.*harness events"):
        rig.table.lineage(10**15)
    with pytest.raises(MoveUnknown, match="over all tables"):
        other.table.lineage(version.move_id or 0)
    with pytest.raises(OffsetUnknown, match="no partition 7.*it has 0, 1"):
        rig.table.lineage((7, 0))
    with pytest.raises(OffsetUnknown, match=f"ends at {PER_ROUND}"):
        rig.table.lineage(f"0:{PER_ROUND}")
    with pytest.raises(UsageError, match="PARTITION:OFFSET"):
        rig.table.lineage("0-5")
    with rig.stores.readers.session() as connection:
        assert not connection.execute(
            "SELECT FROM harness.leases WHERE table_id = %s", [rig.table.row.table_id]
        ).fetchall(), "the lease of a look is given back"


def test_offsets_below_the_start_never_belonged_to_the_table(rig: TableRig, make_rig: MakeRig):
    rig.produce(3)
    late = rig.harness.apply(
        hp.TableSpec.model_validate(
            {**rig.table.spec.model_dump(mode="json"), "table": f"{rig.name}l", "start": "latest"}
        )
    )
    with pytest.raises(OffsetUnknown, match="begins at offset 3 of partition 0"):
        late.lineage("0:2")
