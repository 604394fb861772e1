"""A consumer's state is committed by its holder alone, and the cut that agrees with it can be read."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.named_snapshots import SnapshotUnknown
from harness_pipelines.ledgers.postgres.states import StateHeld, StateUnknown
from harness_pipelines.ports.ledger import NotInTime, TableUnknown
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.keyed import NumbersRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import INGEST, Row, TableRig

MakeRig = Callable[..., TableRig]


@pytest.fixture
def name() -> str:
    return f"s-{uuid.uuid4().hex[:10]}"


def below(rig: TableRig, offsets: dict[int, int]) -> Counter[Row]:
    return Counter(row for row in rig.truth.elements() if row[1] < offsets[row[0]])


def assert_agrees(rig: TableRig, name: str, offsets: dict[int, int]) -> None:
    """A read at the state has the producer's records below its offsets."""
    assert rig.read(at=f"state:{name}") == below(rig, offsets)


def end_lease(rig: TableRig, name: str) -> None:
    """Its time is over, as of now."""
    with psycopg.connect(rig.stores.dsn) as owner:
        owner.execute("UPDATE harness.states SET lease_until = clock_timestamp() WHERE name = %s", [name])
    assert rig.harness.states.status(name).held_until is None


@pytest.mark.parametrize("views", ["stream", "both", "batch"])
def test_a_read_at_a_state_has_what_the_state_has_wherever_the_records_go(make_rig: MakeRig, name: str, views: str):
    rig = make_rig(views=views, retention={"versions": "1s", "grace": "1s"})
    offsets = {0: 15, 1: 4}
    rig.produce(20)
    rig.ingest()
    with rig.harness.states.hold(name) as held:
        assert held.commit({rig.name: offsets}, checkpoint="c1", payload={"n": 1}, sink={"snapshot": 7}) == 1
    assert_agrees(rig, name, offsets)
    for _ in range(2):
        rig.produce(10)
        rig.worker(until_idle=True).run()
        assert_agrees(rig, name, offsets)
    with rig.harness.states.hold(name) as held:  # an append table can be cut below what is merged
        assert held.commit({rig.name: {0: 16, 1: 5}}, checkpoint="c2") == 2
    assert_agrees(rig, name, {0: 16, 1: 5})
    rig.worker(until_idle=True).run()
    assert_agrees(rig, name, {0: 16, 1: 5})
    assert fsck(rig.stores, [rig.name]).ok
    commits = rig.harness.states.commits(name)
    assert [(c.seq, c.checkpoint, c.sources[rig.name]) for c in commits] == [
        (2, "c2", {0: 16, 1: 5}),
        (1, "c1", offsets),
    ]
    assert (commits[1].payload, commits[1].sink) == ({"n": 1}, {"snapshot": 7})


def test_a_consumer_goes_on_behind_its_state_and_commits_ahead_of_ingest(rig: TableRig, name: str):
    rig.produce(10)
    rig.ingest()
    rig.produce(10)
    states = rig.harness.states
    [*_, last] = rig.table.stream(follow=False)
    with states.hold(name) as held:
        with pytest.raises(NotInTime, match="is ingested up to offset 10, not yet up to 20"):
            held.commit({rig.name: last.token}, checkpoint="c", timeout_s=0)
        with rig.working(INGEST):
            held.commit({rig.name: last.token}, checkpoint="c")
    assert rig.read(at=f"state:{name}") == rig.truth
    rig.produce(3)
    committed = states.last(name)
    assert committed is not None
    rest = [batch.rows.num_rows for batch in rig.table.stream(committed.sources[rig.name], follow=False)]
    assert sum(rest) == 6


def test_one_holds_a_state_and_who_lost_it_commits_nothing(rig: TableRig, name: str):
    rig.produce(2)
    rig.ingest()
    states = rig.harness.states
    zombie = states.hold(name).take()
    with pytest.raises(StateHeld, match="is held by another one until"):
        states.hold(name).take()
    end_lease(rig, name)
    with pytest.raises(FencedOut, match="is over; nothing was written"):  # its time is over, though nobody took it
        zombie.commit({rig.name: {0: 1, 1: 1}}, checkpoint="late")
    with states.hold(name) as held:
        for late in (zombie.renew, zombie.release, lambda: zombie.commit({rig.name: {0: 1, 1: 1}}, checkpoint="z")):
            with pytest.raises(FencedOut):
                late()
        held.commit({rig.name: {0: 2, 1: 2}}, checkpoint="c")
        held.renew()
        with pytest.raises(StateHeld):
            states.drop(name)
    assert [c.checkpoint for c in states.commits(name)] == ["c"]
    states.drop(name)
    with pytest.raises(StateUnknown):
        states.commits(name)
    with pytest.raises(SnapshotUnknown, match="nor in the last commit of a state"):
        rig.read(at=f"state:{name}")


def test_of_two_that_hold_a_state_at_once_one_does(rig: TableRig, name: str):
    at_once = threading.Barrier(8)
    found: list[bool] = []

    def hold() -> None:
        at_once.wait()
        try:
            rig.harness.states.hold(name).take()
        except StateHeld:
            found.append(False)
        else:
            found.append(True)

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False] * 7 + [True]


def test_a_commit_over_two_tables_is_one_cut_and_what_does_not_fit_commits_nothing(make_rig: MakeRig, name: str):
    one, two = make_rig(), make_rig()
    for rig in (one, two):
        rig.produce(5)
        rig.ingest()
    with one.harness.states.hold(name) as held:
        held.commit({one.name: {0: 1, 1: 2}, two.name: {0: 3, 1: 4}}, checkpoint="c")
        for wrong, message in (
            ({two.name: {0: 5, 1: 5}, "no.table": {0: 1}}, "there is no table no.table"),
            ({two.name: {0: 5, 7: 1}}, "has no partition 7"),
            ({two.name: {0: -1}}, "has no partition 0, or none that begins at or below offset -1"),
        ):
            with pytest.raises(TableUnknown, match=message):
                held.commit(wrong, checkpoint="wrong")
    assert_agrees(one, name, {0: 1, 1: 2})
    assert_agrees(two, name, {0: 3, 1: 4})
    with pytest.raises(UsageError, match="names no state"):
        one.harness.states.hold("No Name")


def test_a_consumer_that_went_back_to_an_older_checkpoint_commits_that(rig: TableRig, name: str):
    rig.produce(6)
    rig.ingest()
    with rig.harness.states.hold(name) as held:
        held.commit({rig.name: {0: 6, 1: 6}}, checkpoint="2")
        held.commit({rig.name: {0: 3, 1: 3}}, checkpoint="1")
    assert_agrees(rig, name, {0: 3, 1: 3})
    assert sum(b.rows.num_rows for b in rig.table.stream({0: 3, 1: 3}, follow=False)) == 6


@pytest.mark.long
def test_a_state_of_a_keyed_table_shows_the_rows_of_its_offsets_until_that_is_merged_beyond(
    harness: hp.Harness, kafka: KafkaRig, name: str
):
    rig = NumbersRig(
        harness, kafka, views="both", layout={"columns": ["n"]}, retention={"versions": "1s", "grace": "1s"}
    )

    def found() -> list[tuple[int, int]]:
        rows = rig.table.read(columns=["id", "n"], at=f"state:{name}").to_pylist()
        return sorted((row["id"], row["n"]) for row in rows)

    rig.put_numbers({i: i for i in range(6)})
    rig.ingest()
    offsets = {0: 2, 1: 1}
    with harness.states.hold(name) as held:
        held.commit({rig.name: offsets}, checkpoint="c")
    expected = sorted((c.id, c.n) for c in rig.newest(below=offsets))
    assert found() == expected
    rig.put_numbers({i: 100 + i for i in range(6)})
    rig.worker(until_idle=True).run()
    rig.delete_numbers(0, 1)
    rig.worker(until_idle=True).run()
    assert found() == expected

    def expired() -> bool:
        claim = rig.claim(Stage.EXPIRE)
        expire_once(rig.stores, harness.table(rig.name).row, claim)
        rig.stores.ledger.release(claim)
        return harness.table(rig.name).versions()[0].bounds[0].batch_hi > 3

    wait_until(expired, "older versions are gone")
    assert found() == expected  # what it needs was kept
    with harness.states.hold(name) as held, pytest.raises(VersionGone, match="they are merged beyond them"):
        held.commit({rig.name: {0: 3, 1: 3}}, checkpoint="late")
    assert found() == expected


def test_a_reader_of_the_commit_before_is_not_disturbed_and_older_pins_go(rig: TableRig, name: str):
    rig.produce(10)
    rig.ingest()
    with rig.harness.states.hold(name) as held:
        held.commit({rig.name: {0: 1, 1: 1}}, checkpoint="1")
        with rig.table.reader(at=f"state:{name}") as batches:
            for i in range(2, 6):
                held.commit({rig.name: {0: i, 1: i}}, checkpoint=str(i))
            assert sum(batch.num_rows for batch in batches) == 2
        held.commit({rig.name: {0: 9, 1: 9}}, checkpoint="6")
    with rig.stores.database.session() as connection:
        pins = {row["name"] for row in connection.execute("SELECT name FROM harness.snapshots").fetchall()}
    assert {pin for pin in pins if pin.startswith(f"state:{name}:")} == {f"state:{name}:5", f"state:{name}:6"}
    assert not [one for one in rig.harness.snapshots() if one.name.startswith("state:")]
