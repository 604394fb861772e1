"""Rows of a keyed table go to Postgres and back: judged by a replay of the producer's log, in Arrow and in Spark."""

from __future__ import annotations

import random
from datetime import timedelta

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import NotRecallable, OverlayRequest, OverlayWrong
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import Key, KeyedRig, assert_sound, row
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import TableRig

POINTS = ("after_plan", "during_files", "after_files", "before_lock", "in_transaction", "after_commit")
ALL_TYPES = {
    "id": "long",
    "b": "boolean",
    "f": "float",
    "d": "decimal(30,4)",
    "e": "decimal(9,2)",
    "day": "date",
    "t": "time",
    "ts": "timestamp",
    "tz": "timestamptz",
    "u": "uuid",
    "l": "list<struct<a: int, b: string>>",
    "m": "map<string, decimal(10,2)>",
}


@pytest.fixture
def rig(harness: hp.Harness, kafka: KafkaRig) -> KeyedRig:
    """Ids 0 .. 99 of one region are in the batch view."""
    made = KeyedRig(harness, kafka)
    made.put(*(row(i, n=i) for i in range(100)))
    made.merge_all()
    return made


def keys_in(rows) -> set[int]:
    return set(rows.column("id").to_pylist())


def arrow(rig: KeyedRig, version: int | None = None) -> list[str]:
    names = [*(c.name for c in rig.table.spec.columns), "_kafka_partition", "_kafka_offset"]
    found = rig.table.read(columns=names, at=version)
    return sorted(map(repr, zip(*(found.column(name).to_pylist() for name in names), strict=True)))


def spark(rig: KeyedRig, version: int | None = None) -> list[str]:
    names = [*(c.name for c in rig.table.spec.columns), "_kafka_partition", "_kafka_offset"]
    found = rig.table.to_spark(rig.stores.spark(), columns=names, at=version).toArrow()
    return sorted(map(repr, zip(*(found.column(name).to_pylist() for name in names), strict=True)))


def expected(rig: KeyedRig, version: Version) -> list[str]:
    return sorted(map(repr, rig.state(version.buffer_hi).values()))


@pytest.mark.long
def test_a_recall_a_burst_of_updates_and_a_release_are_exact_in_every_version_in_both_engines(rig: KeyedRig):
    assert rig.recall("id >= 20 and id < 40").rows == 20
    assert keys_in(rig.recalled_rows()) == set(range(20, 40))
    assert not keys_in(rig.batch_rows()) & set(range(20, 40))
    rng = random.Random(8)
    for round_ in range(3):
        keys: list[Key] = [(rng.randrange(15, 45), "eu") for _ in range(60)] + [(200 + round_, "eu")]
        rig.send([(key, None if rng.random() < 0.2 else row(*key, n=round_ * 1000 + i)) for i, key in enumerate(keys)])
        rig.to_stream()
        assert arrow(rig) == spark(rig) == expected(rig, rig.head)
        assert rig.merge() is not None
        rig.assert_merged()
        assert keys_in(rig.recalled_rows()) <= set(range(20, 40)), "new keys go to the lake"
        assert_sound(rig)
    done = rig.table.release_recalled()
    assert (done.state, rig.head.overlays) == ("done", ())
    rig.assert_merged()
    rig.relayout()
    assert_sound(rig)
    for version in rig.table.versions():
        assert arrow(rig, version.version) == spark(rig, version.version) == expected(rig, version)
        rig.assert_merged(version)


def test_the_lake_is_not_touched_for_recalled_keys(rig: KeyedRig):
    rig.recall("id < 30")
    before = rig.batch_rows().sort_by("id")
    rig.put(*(row(i, n=5000 + i) for i in range(30)))
    rig.delete((3, "eu"))
    rig.to_stream()
    rig.merge()

    assert rig.batch_rows().sort_by("id") == before
    assert keys_in(rig.recalled_rows()) == set(range(30)) - {3}
    rig.assert_merged()
    assert_sound(rig)


def test_a_deleted_recalled_key_comes_again_in_the_lake(rig: KeyedRig):
    rig.recall("id = 7")
    rig.delete((7, "eu"))
    rig.to_stream()
    rig.merge()
    assert rig.head.overlays == ()
    rig.put(row(7, n=1))
    rig.to_stream()
    rig.merge()

    assert 7 in keys_in(rig.batch_rows())
    rig.assert_merged()
    assert_sound(rig)


@pytest.mark.long
def test_keys_with_nulls_are_recalled_and_met_like_any_other(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka)
    keys: list[Key] = [(None, None), (None, "eu"), (1, None), (1, ""), (2, "ü")]
    rig.put(*(row(*key, n=1) for key in keys))
    rig.merge_all()
    assert rig.recall("id is null or id = 1").rows == 4
    rig.put(*(row(*key, n=2) for key in keys))
    rig.to_stream()
    rig.merge()

    assert rig.recalled_rows().num_rows == 4
    rig.assert_merged()
    assert_sound(rig)
    rig.table.release_recalled()
    rig.assert_merged()
    assert_sound(rig)


def test_every_type_comes_back_from_postgres_as_it_was(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka, columns=ALL_TYPES, key=["id"], layout={"columns": ["id"], "sample": 0.1})
    full = {
        "b": True,
        "f": 0.25,
        "d": "-12345678901234567890.1234",
        "e": "1234567.89",
        "day": "1500-02-28",
        "t": "12:30:00.000001",
        "ts": "2026-03-01T12:00:00.123456",
        "tz": "2026-03-01T12:00:00.123456Z",
        "u": "f81d4fae-7dec-11d0-a765-00a0c91e6bf6",
        "l": [{"a": 1, "b": "x"}, {"a": None, "b": None}],
        "m": {"k": "1.50"},
    }
    rig.put(*({"id": i, **(full if i % 2 else {})} for i in range(20)))
    rig.merge_all()
    before = rig.table.read().sort_by("id")
    rig.recall("id < 12")
    assert rig.table.read().sort_by("id") == before
    rig.table.release_recalled()
    assert rig.table.read().sort_by("id") == before
    assert_sound(rig)


@pytest.mark.long
@pytest.mark.parametrize("act", list(OverlayRequest))
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_dies_in_a_recall_or_a_release_is_followed_without_harm(
    rig: KeyedRig, act: OverlayRequest, point: str
):
    if act is OverlayRequest.RELEASE:
        rig.recall("id < 50")
    rig.put(*(row(i, n=9000 + i) for i in range(40, 60)))
    rig.to_stream()
    rig.stores.recalls.ask(rig.table.row, act, where="id < 50" if act is OverlayRequest.RECALL else None, by="test")
    claim = rig.claim(Stage.OTREE)
    faults.arm_from({"HARNESS_FAULT": f"otree.{point}=raise"})
    try:
        with pytest.raises(faults.FaultInjected):
            otree_once(rig.stores, rig.table.row, claim, trigger="test")
    finally:
        faults.disarm()
        rig.stores.ledger.release(claim)
    rig.assert_exact()

    rig.merge_all()
    rig.merge()
    assert rig.stores.recalls.open(rig.table.row) == []
    assert bool(rig.head.overlays) == (act is OverlayRequest.RECALL)
    rig.assert_merged()
    rig.assert_exact()
    assert_sound(rig)


def test_a_revert_over_generations_is_exact_while_they_are_kept(rig: KeyedRig):
    rig.recall("id < 20")
    first = rig.head
    for n in (1000, 2000):
        rig.put(*(row(i, n=n + i) for i in range(10)))
        rig.to_stream()
        rig.merge()
    second = rig.head
    assert [one.segment for one in first.overlays] != [one.segment for one in second.overlays]

    for target in (first, second):
        revert_table(rig.stores, rig.table.row, to=target.version)
        assert rig.head.overlays == target.overlays
        rig.assert_merged()
        rig.assert_exact()
    rig.merge_all()
    rig.assert_merged()
    assert_sound(rig)


def test_old_generations_go_when_nothing_names_them_and_the_newest_never(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka, retention={"versions": "1s", "grace": "1s"})
    rig.put(*(row(i, n=i) for i in range(30)))
    rig.merge_all()
    rig.recall("id < 20")
    [old] = rig.head.overlays
    rig.put(row(3, n=77))
    rig.to_stream()
    rig.merge()
    [new] = rig.head.overlays

    claim = rig.claim(Stage.EXPIRE)
    wait_until(
        lambda: old.segment in expire_once(rig.stores, rig.table.row, claim).retired, "the old generation retired"
    )
    dropped = rig.stores.upkeep.drop_retired(rig.table.row, retired_for=timedelta(0))
    assert old.segment in dropped and new.segment not in dropped
    rig.stores.ledger.release(claim)
    rig.assert_exact()
    assert_sound(rig)


def test_point_reads_samples_and_changes_see_recalled_rows(rig: KeyedRig):
    begin = rig.head.version
    whole = rig.table.sample(0.5, columns=["id"]).sort_by("id")
    rig.recall("id < 60")

    assert rig.table.sample(0.5, columns=["id"]).sort_by("id") == whole
    in_spark = rig.table.sample_to_spark(rig.stores.spark(), 0.5, columns=["id"]).toArrow()
    assert keys_in(in_spark) == keys_in(whole)
    found = rig.table.get((5, "eu"))
    assert found is not None and found["n"] == 5
    assert keys_in(rig.table.scan((5,))) == {5}
    rig.put(row(5, n=500))
    rig.to_stream()
    changed = rig.table.changes(begin, pre_images=True).to_pylist()
    assert [(c["_change_type"], c["n"]) for c in changed] == [("-U", 5), ("+U", 500)]


def test_what_goes_back_is_compared_with_what_was_recalled(rig: KeyedRig):
    rig.recall("id < 10")
    [overlay] = rig.head.overlays
    assert rig.harness.settings.dsn is not None
    with psycopg.connect(rig.harness.settings.dsn, autocommit=True) as owner:
        owner.execute(f"UPDATE harness_buffer.{overlay.segment} SET n = -1 WHERE id = 3".encode())
    rig.stores.recalls.ask(rig.table.row, OverlayRequest.RELEASE, where=None, by="test")
    claim = rig.claim(Stage.OTREE)

    with pytest.raises(OverlayWrong, match="rows that go back to the lake: expected 10 rows .* nothing was published"):
        otree_once(rig.stores, rig.table.row, claim, trigger="test")
    rig.stores.ledger.release(claim)
    assert rig.head.overlays == (overlay,)


def test_tables_of_another_kind_are_refused_by_name(harness: hp.Harness, kafka: KafkaRig):
    rig = TableRig(harness, kafka)
    with pytest.raises(NotRecallable, match=f"{rig.name} has no key"):
        rig.table.recall("id = 1")
    keyed = KeyedRig(harness, kafka, views="stream", layout={})
    with pytest.raises(NotRecallable, match=f"{keyed.name}: .* its spec says `views: stream`"):
        keyed.table.release_recalled()


def test_a_replay_agrees_after_all_of_it(rig: KeyedRig):
    rig.recall("id < 100")
    assert rig.batch_rows().num_rows == 0
    rig.put(*(row(i, n=-i) for i in range(0, 120, 2)))
    rig.merge_all()
    rig.table.release_recalled()
    rig.merge_all()
    rig.assert_merged()
    rig.assert_exact()
    assert_sound(rig)


@pytest.mark.long
def test_a_table_without_a_buffer_recalls_too(harness: hp.Harness, kafka: KafkaRig):
    rig = KeyedRig(harness, kafka, buffer="none")
    rig.put(*(row(i, n=i) for i in range(20)))
    rig.worker(until_idle=True).run()
    assert rig.recall("id < 8").rows == 8
    rig.put(*(row(i, n=100 + i) for i in range(4, 12)))
    rig.delete((1, "eu"))
    rig.worker(until_idle=True).run()

    assert keys_in(rig.recalled_rows()) == {0, 2, 3, 4, 5, 6, 7}
    rig.assert_merged()
    assert_sound(rig)
    rig.table.release_recalled()
    rig.assert_merged()
    assert_sound(rig)


@pytest.mark.long
def test_rows_of_several_schemas_are_recalled_changed_and_released(rig: KeyedRig):
    renamed = ColumnChanges(rename=(("s", "text"),), add=(Column(name="more", type=Primitive("int")),))
    rig.table.evolve(renamed)
    rig.table = rig.harness.table(rig.name)
    rig.put(*({"id": i, "region": "eu", "n": i, "text": "new", "more": i} for i in range(30, 50)))
    rig.merge_all()

    def schemas() -> set[tuple[int, int]]:
        found = rig.table.read(columns=["id", "_schema_version"], where="id >= 20 and id < 40")
        return set(zip(*(found.column(name).to_pylist() for name in ("id", "_schema_version")), strict=True))

    written = schemas()
    assert {schema for _, schema in written} == {1, 2}
    assert rig.recall("id >= 20 and id < 40").rows == 20
    assert schemas() == written, "each row keeps the schema that it was decoded with"
    assert_sound(rig)
    rig.put({"id": 20, "region": "eu", "n": 7, "text": "newer", "more": 7})
    rig.merge_all()
    assert rig.table.release_recalled().rows == 20
    assert schemas() == written - {(20, 1)} | {(20, 2)}
    assert_sound(rig)
