"""The batch view of a keyed table: one row per live key. Judged by a replay of the producer's own log."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.engines.arrow import engine
from harness_pipelines.lakes.iceberg.read.scan import pinned
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree import otree
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import EVERYTHING, Key, KeyedRig, assert_sound, row
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import OTREE

KEYS: list[Key] = list(product([None, -1, 0, 1, 2, 3, 2**40], [None, "", "eu", "ü" * 30]))
POINTS = ("after_plan", "during_files", "after_files", "before_lock", "in_transaction", "after_commit")


@pytest.fixture
def rig(harness: hp.Harness, kafka: KafkaRig) -> KeyedRig:
    return KeyedRig(harness, kafka)


def random_changes(rig: KeyedRig, rng: random.Random, count: int) -> None:
    """Puts of few keys and of many, deletes by the rule and by tombstones, of unknown keys too."""
    keys = [rng.choice(KEYS) for _ in range(count)] + [(1000 + rng.randrange(500), "us") for _ in range(count)]
    rig.send([(key, None if rng.random() < 0.3 else row(*key, n=rng.randrange(100))) for key in keys])
    for key in rng.sample(KEYS, 2):
        rig.tombstone(key)


def read_keys(rig: KeyedRig) -> set[Key]:
    """The keys that a read of the table shows, each once."""
    rig.ingest()
    found = rig.table.read(columns=["id", "region"])
    keys = list(zip(found.column("id").to_pylist(), found.column("region").to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)
    return set(keys)


@pytest.mark.long
def test_the_batch_view_is_the_replay_of_the_log_in_every_version_whatever_is_put_and_deleted(rig: KeyedRig):
    rng = random.Random(6)
    versions: list[Version] = []
    for _ in range(3):
        random_changes(rig, rng, 60)
        rig.to_stream()
        assert rig.merge() is not None
        versions.append(rig.head)
        rig.assert_merged()
    versions.append(rig.relayout())
    rig.assert_merged()
    assert_sound(rig)
    for version in versions:
        rig.assert_merged(version)

    revert_table(rig.stores, rig.table.row, to=versions[0].version)
    rig.assert_merged()
    random_changes(rig, rng, 20)
    assert read_keys(rig) == set(rig.state(EVERYTHING)), "changes of the stream view hide rows of the batch view"
    rig.merge_all()
    assert read_keys(rig) == set(rig.state(EVERYTHING))
    assert all(b.batch_hi == b.stream_hi for b in rig.head.bounds.values())
    rig.assert_merged()
    assert_sound(rig)


@pytest.mark.long
def test_deletes_alone_only_remove_files_and_what_was_deleted_may_come_again(rig: KeyedRig):
    rig.delete((404, "nowhere"))
    rig.to_stream()
    rig.merge()
    assert rig.batch_rows().num_rows == 0
    rig.put(*(row(i, n=i) for i in range(20)))
    rig.send([((7, "eu"), row(7, n=n)) for n in range(3000)])
    rig.to_stream()
    rig.merge()
    rig.assert_merged()
    rig.delete((5, "eu"), (404, "nowhere"))
    rig.to_stream()
    rig.merge()
    rig.assert_merged()
    rig.delete(*((i, "eu") for i in range(20)))
    rig.to_stream()
    gone = rig.merge()
    rig.assert_merged()
    assert gone is not None
    assert gone.batch is not None
    assert len(pinned(gone.batch.metadata).files) == 0
    rig.put(row(7, n=3), row(5, n=5))
    rig.to_stream()
    rig.merge()
    rig.assert_merged()
    assert rig.batch_rows().num_rows == 2
    assert_sound(rig)


def test_files_without_a_changed_key_stay_and_the_snapshot_is_an_overwrite(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka, key=["id"], columns={"id": "uuid", "n": "int"},
                   layout={"columns": ["id"], "regions": 4, "sample": 0})  # fmt: skip
    ids = [f"{i:02x}000000-0000-4000-8000-000000000000" for i in range(256)]
    rig.put(*({"id": id_, "n": 1} for id_ in ids))
    rig.to_stream()
    rig.merge()
    before = {f.path for f in pinned(rig.head.views["batch"].metadata).files}
    rig.put(*({"id": id_, "n": 2} for id_ in ids[:20]))
    rig.delete(*((id_,) for id_ in ids[20:30]))
    rig.to_stream()
    rig.merge()
    view = pinned(rig.head.views["batch"].metadata)
    after = {f.path for f in view.files}
    assert (len(before), len(before - after), len(after - before)) == (4, 1, 1)
    snapshot = view.metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert str(snapshot.summary.operation.value) == "overwrite"
    rig.assert_merged()
    assert otree.trigger(rig.stores, rig.table.row) is None, "what a merge writes anew is clustered as before"


@pytest.mark.long
def test_a_merge_that_dies_anywhere_is_finished_by_the_next(rig: KeyedRig):
    rng = random.Random(7)
    for _ in range(len(POINTS) + 1):
        random_changes(rig, rng, 25)
    rig.to_stream()
    assert rig.merge() is not None
    stores, table = rig.stores, rig.table.row
    random_changes(rig, rng, 50)
    rig.to_stream()
    reached = {p: b.batch_hi for p, b in rig.head.bounds.items()}
    steps = {p: (b.stream_hi - b.batch_hi) // len(POINTS) for p, b in rig.head.bounds.items()}
    for point in POINTS:
        reached = {p: high + steps[p] for p, high in reached.items()}
        claim = rig.claim(Stage.OTREE)
        move = otree.plan(stores, table, claim, trigger="test", run_id=None, below=reached)
        assert move is not None
        faults.arm_from({"HARNESS_FAULT": f"otree.{point}=raise"})
        with pytest.raises(faults.FaultInjected):
            otree.otree_once(stores, table, claim, trigger="test")
        faults.disarm()
        rig.assert_merged()
        if point != "after_commit":
            otree.otree_once(stores, table, claim, trigger="test")
        stores.ledger.release(claim)
        assert {p: b.batch_hi for p, b in rig.head.bounds.items()} == reached
        rig.assert_merged()


def test_a_merge_is_published_only_on_the_view_that_it_was_merged_into(rig: KeyedRig):
    """A file that came after may hold one of its keys: that the files it replaces are still there is not enough."""
    stores, table = rig.stores, rig.table.row
    for n in range(2):
        rig.put(row(1, n=n), row(2, n=n))
        rig.to_stream()
        claim = rig.claim(Stage.OTREE)
        move = otree.plan(stores, table, claim, trigger="test", run_id=None)
        assert move is not None
        staged = otree.stage(stores, table, move)
        with pytest.raises(FilesGone, match=f"not the one that move {move.move_id} was merged into"):
            otree.publish(stores, table, claim, move, replace(staged, on=1))
        otree.publish(stores, table, claim, move, staged)
        stores.ledger.release(claim)
        rig.assert_merged()


@pytest.mark.parametrize("apart", [False, True], ids=["in one move", "with a row of the batch view"])
def test_a_key_in_two_partitions_stops_the_merge_by_name(rig: KeyedRig, apart: bool):
    rig.put(row(1), row(2))
    key, home = (1, "eu"), rig.home_of((1, "eu"))
    if apart:
        rig.to_stream()
        assert rig.merge() is not None
    rig.send([(key, row(1, n=5))], partition=1 - home)
    rig.to_stream()
    version = rig.head.version
    with pytest.raises(KeyInTwoPartitions, match=r"key id=1, region='eu' is in partition [01] \(offset \d\) and in"):
        rig.merge()
    assert rig.head.version == version


TYPES: dict[str, list[Any]] = {
    "boolean": [None, False, True],
    "int": [None, -(2**31), 7],
    "long": [None, -(2**63), 2**63 - 1],
    "decimal(12,2)": [None, "-1.50", "99.25"],
    "decimal(38,5)": [None, "-123456789012345678901234567890.12345", "0.00001"],
    "date": [None, "1950-01-01", "2100-12-31"],
    "timestamp": [None, "1950-01-01T00:00:00.000001", "2100-01-01T00:00:00"],
    "timestamptz": [None, "1950-01-01T00:00:00.000001Z", "2100-01-01T00:00:00+00:00"],
    "string": [None, "", "\U0001f600" * 40],
    "uuid": [None, "00000000-0000-4000-8000-000000000000", "f0000000-0000-4000-8000-000000000000"],
    "binary": [None, "", "AAEC/w=="],
}


@pytest.mark.long
def test_a_key_of_any_types_is_found_again(harness: hp.Harness, kafka: KafkaRig):
    named = {f"k{i}": type_ for i, type_ in enumerate(TYPES)}
    rig = KeyedRig(harness, kafka, key=[*named], columns={**named, "n": "int"}, layout={"columns": ["n"], "regions": 3})
    one_at_a_time = [
        tuple(values[at] if i == j else other[2 - at] for j, other in enumerate(TYPES.values()))
        for i, values in enumerate(TYPES.values())
        for at in range(2)
    ]
    keys = [*(tuple(values[at] for values in TYPES.values()) for at in range(3)), *one_at_a_time]
    rig.send([(key, {**dict(zip(named, key, strict=True)), "n": n}) for n, key in enumerate(keys)])
    rig.to_stream()
    rig.merge()
    rig.send([(key, None if n % 3 == 0 else {**dict(zip(named, key, strict=True)), "n": -n})
              for n, key in enumerate(keys) if n % 2])  # fmt: skip
    rig.to_stream()
    rig.merge()
    rows, names = rig.batch_rows(), ("n", "_kafka_partition", "_kafka_offset")
    found = sorted(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    assert found == sorted(row[-3:] for row in rig.state({0: 10**9, 1: 10**9}).values())
    assert not rig.quarantine()
    assert_sound(rig)


def test_a_merge_that_was_planned_for_spark_is_planned_again_within_what_arrow_takes_at_once(
    harness: hp.Harness, kafka: KafkaRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine, "MERGE_OFFSETS_MAX", 50)
    rig = KeyedRig(harness, kafka, engine="arrow")
    rig.produce(60)
    rig.to_stream()
    moved_by(rig, "spark")
    claim = rig.claim(Stage.OTREE)
    planned = otree.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert planned is not None and sum(r.span for r in planned.ranges) == 120
    rig.stores.ledger.release(claim)

    moved_by(rig, "arrow")
    rig.worker(OTREE, until_idle=True).run()

    moves = {move["move_id"]: move for move in rig.stores.ledger.moves(rig.table.row, stage=Stage.OTREE)}
    assert moves[planned.move_id]["state"] == "ABANDONED"
    assert "planned for 120 offsets" in moves[planned.move_id]["error"]
    taken = [sum(m["hi"].values()) - sum(m["lo"].values()) for m in moves.values() if m["state"] == "COMMITTED"]
    assert sum(taken) == 120 and max(taken) <= 50, taken
    rig.assert_merged()
    assert_sound(rig)


def moved_by(rig: KeyedRig, word: str) -> None:
    """Apply the spec of *rig* with another engine."""
    spec = rig.table.spec.model_dump(mode="json", by_alias=True)
    rig.table = rig.harness.apply(hp.TableSpec.model_validate({**spec, "engine": word}))
