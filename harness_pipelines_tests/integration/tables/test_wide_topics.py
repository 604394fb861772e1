"""A topic of many partitions: few files for each move, and everything that reads or rewrites them stays exact.

Judged by the producer's log.
"""

from __future__ import annotations

from collections import defaultdict

import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake import wide
from harness_pipelines.protocol.lake.compaction import FILES_MIN, StreamFile
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stages import compact
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.replay.ranges import replay_range
from harness_pipelines.stages.run.own_mover import OwnMove
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.lake_files import parquet
from harness_pipelines_tests.rig import TableRig


@pytest.fixture(params=[7, pytest.param(wide.NARROW_MAX, marks=pytest.mark.long)])
def partitions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a topic that is wide by one."""
    monkeypatch.setattr(wide, "NARROW_MAX", request.param)
    return int(request.param) + 1


def files(rig: TableRig) -> list[StreamFile]:
    head = rig.stores.ledger.head(rig.table.row)
    return compact.stream_files(rig.stores.lake_reads, rig.table.row, head.stream.metadata)


def moved(rig: TableRig, rounds: int, *, records: int = 2) -> None:
    for _ in range(rounds):
        rig.produce(records)
        if rig.table.spec.buffer != "none":
            rig.ingest()
        rig.tier()


def assert_whole(rig: TableRig) -> None:
    """Reads, audit and fsck agree with the log, and a stream is in offset order."""
    rig.assert_exact()
    report = audit_table(rig.stores, rig.table.row, processes=1)
    assert report.ok, report.to_json()
    checked = fsck(rig.stores, [rig.name])
    assert checked.ok, checked.to_json()
    assert_streamed(rig)


def assert_streamed(rig: TableRig) -> None:
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for batch in rig.table.stream(columns=["id"], follow=False):
        for place in batch.rows.select(["_kafka_partition", "_kafka_offset"]).to_pylist():
            seen[place["_kafka_partition"]].append(place["_kafka_offset"])
    assert all(offsets == sorted(set(offsets)) for offsets in seen.values())
    assert sum(map(len, seen.values())) == rig.truth.total()


@pytest.mark.parametrize(("buffer", "engine"), [("postgres", "spark"), ("none", "arrow")])
def test_each_move_of_a_wide_topic_is_one_file(make_rig: MakeRig, buffer: str, engine: str, partitions: int) -> None:
    """That both engines write the same files is judged by `test_engines_agree.py`."""
    rig = make_rig(partitions=partitions, buffer=buffer, engine=engine, tier={"max_rows": 1}, views="both")
    if buffer == "none":
        rig.produce_misfit(b"{", partition=3)

    moved(rig, FILES_MIN)

    assert len(files(rig)) == FILES_MIN
    for file in files(rig):
        places = parquet(file.path).select(["_kafka_partition", "_kafka_offset"]).to_pylist()
        assert [tuple(place.values()) for place in places] == sorted(tuple(place.values()) for place in places)
    assert_whole(rig)

    claim = rig.claim(Stage.COMPACT)
    assert compact.compact_once(rig.stores, rig.table.row, claim, trigger="test") is not None
    rig.stores.ledger.release(claim)

    [one] = files(rig)
    assert one.rows == rig.truth.total()
    assert len(one.ranges) == partitions
    assert_whole(rig)

    claim = rig.claim(Stage.OTREE)
    assert otree_once(rig.stores, rig.table.row, claim, trigger="test") is not None
    rig.stores.ledger.release(claim)
    moved(rig, 1)
    assert_whole(rig)


@pytest.mark.long
def test_a_thousand_partitions_are_one_file_for_each_move(make_rig: MakeRig) -> None:
    rig = make_rig(partitions=1_000)

    def written(move: OwnMove) -> hp.Moved:
        move.append(pa.concat_tables(move.batches()))
        return hp.Moved(ranges=move.ranges, rows=move.rows)

    for _ in range(2):
        rig.produce(1)
        rig.ingest()
        with rig.table.mover() as mover:
            assert mover.move(written) is not None

    assert [file.rows for file in files(rig)] == [1_000, 1_000]
    rig.assert_exact()
    assert_streamed(rig)
    checked = fsck(rig.stores, [rig.name])
    assert checked.ok, checked.to_json()


def test_a_wide_table_is_reverted_and_replayed(make_rig: MakeRig, partitions: int) -> None:
    columns = {"id": {"type": "long", "required": True}, "seen": {"type": "timestamptz", "from": "epoch_ms"}}
    rig = make_rig(partitions=partitions, tier={"max_rows": 1}, columns=columns)
    for partition in range(partitions):
        rig.kafka.produce(rig.topic, partition, [b'{"id": %d, "seen": %d}' % (i, 1_000 * i) for i in range(5)])
    rig.ingest()
    empty = rig.stores.ledger.head(rig.table.row)
    rig.tier()
    revert_table(rig.stores, rig.table.row, to=empty.version)
    rig.tier()
    assert_whole(rig)

    micros = {**columns, "seen": {"type": "timestamptz", "from": "epoch_us"}}
    made = {"table": rig.name, "topic": rig.topic, "columns": micros, "views": "stream", "tier": {"max_rows": 1}}
    wanted = OffsetRange(partition=5, low=1, high=3)
    replayed = replay_range(rig.stores, rig.table.row, wanted, decoder=TableSpec.model_validate(made))

    assert sum(replayed.changes.values()) == 2
    found = rig.harness.table(rig.name).read(columns=["_kafka_partition", "_kafka_offset", "seen"]).to_pylist()
    micros_at = {
        (row["_kafka_partition"], row["_kafka_offset"]) for row in found if row["seen"].timestamp() * 1e6 < 5_000
    }
    assert micros_at == {(5, 1), (5, 2)} | {(p, 0) for p in range(partitions)}
    assert_whole(rig)
