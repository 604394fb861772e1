"""A stream gives each record of the producer's log once, in order, wherever it lies when the reader comes to it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from structlog.testing import capture_logs

import harness_pipelines as hp
from harness_pipelines.errors import UsageError
from harness_pipelines.lakes.iceberg.read.in_order import NotInOrder
from harness_pipelines.ports.errors import LogTruncated, RecordsLost, TopicRecreated
from harness_pipelines.ports.ledger import LeaseEnded
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.reading.streams import StreamToken, TokenUnfit
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.read.stream.stream import StreamBatch
from harness_pipelines.spec.arrow import COORDINATES
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.compact import compact_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import Change, NumbersRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import INGEST, Row, TableRig, good

MakeRig = Callable[..., TableRig]


def rows_of(batch: StreamBatch) -> list[Row]:
    """(partition, offset, id) of each row, in order."""
    names = ("_kafka_partition", "_kafka_offset", "id")
    return list(zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True))


def collected(batches: Iterable[StreamBatch]) -> list[Row]:
    return [row for batch in batches for row in rows_of(batch)]


def assert_in_order(rows: list[Row]) -> None:
    """Strictly ascending offsets in every partition."""
    offsets: dict[int, list[int]] = defaultdict(list)
    for partition, offset, _ in rows:
        offsets[partition].append(offset)
    assert all(found == sorted(set(found)) for found in offsets.values())


def assert_is_log(rows: list[Row], rig: TableRig) -> None:
    assert_in_order(rows)
    found = Counter(rows)
    assert found == rig.truth, f"lost {sorted(rig.truth - found)[:5]}, too many {sorted(found - rig.truth)[:5]}"


def taken(batches: Iterator[StreamBatch], count: int) -> list[Row]:
    """Read on until *count* rows came."""
    rows: list[Row] = []
    while len(rows) < count:
        rows += rows_of(next(batches))
    return rows


def three_tiers(rig: TableRig, count: int = 40) -> None:
    """Records in two files per partition, in the buffer, and in Kafka alone."""
    for step in (rig.tier, rig.tier, None):
        rig.produce(count)
        rig.ingest()
        if step is not None:
            step()
    rig.produce(count)


@pytest.mark.parametrize(
    "spec",
    [pytest.param({}, marks=pytest.mark.long), {"views": "both"}, {"buffer": "none"}],
    ids=["stream", "both", "no buffer"],
)
def test_history_buffer_and_log_come_as_one_sequence_and_every_token_goes_on_behind_its_batch(
    make_rig: MakeRig, spec: dict[str, Any]
):
    rig = make_rig(**spec)
    if spec.get("buffer") == "none":
        rig.produce(80)
        rig.tier()
        rig.produce(80)
    else:
        three_tiers(rig)
    batches = list(rig.table.stream(follow=False))
    assert_is_log(collected(batches), rig)
    for i, batch in enumerate(batches):
        assert_is_log(collected(batches[: i + 1]) + collected(rig.table.stream(batch.token, follow=False)), rig)


@pytest.mark.long
def test_a_live_reader_gets_what_is_produced_while_it_waits_and_partitions_that_join(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness_pipelines.read.stream.stream.LOOK_EVERY_S", 0.2)
    three_tiers(rig)
    with rig.working(INGEST):
        batches = iter(rig.table.stream())
        rows = taken(batches, rig.truth.total())
        rig.produce(5)
        rows += taken(batches, rig.truth.total() - len(rows))
        rig.kafka.add_partitions(rig.topic, 4)
        rig.kafka.produce(rig.topic, 3, rig.values(7))
        rows += taken(batches, rig.truth.total() - len(rows))
    assert_is_log(rows, rig)


@pytest.mark.long
def test_stages_that_move_the_records_under_a_reader_leave_its_sequence_as_it_is(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness_pipelines.read.stream.stream.NEAR_OFFSETS", 10)
    rig = make_rig(views="both", retention={"versions": "1s", "grace": "1s", "lease": "60s"})
    for _ in range(6):
        rig.produce(20)
        rig.ingest()
        rig.tier()
    three_tiers(rig)
    before = rig.stores.ledger.head(rig.table.row).version
    batches = iter(rig.table.stream())
    rows = rows_of(next(batches))
    claim = rig.claim(Stage.COMPACT)
    assert compact_once(rig.stores, rig.table.row, claim, trigger="files") is not None
    rig.stores.ledger.release(claim)
    rig.ingest()
    rig.tier()
    rows += rows_of(next(batches))
    revert_table(rig.stores, rig.table.row, to=before)
    rows += rows_of(next(batches))
    rig.produce(30)
    rig.worker(until_idle=True).run()
    rig.relayout()
    rows += taken(batches, rig.truth.total() - len(rows))
    assert_is_log(rows, rig)


def test_a_reader_that_was_away_for_longer_than_its_lease_goes_on_without_a_gap(rig: TableRig):
    three_tiers(rig)
    batches = iter(rig.table.stream(follow=False))
    rows = rows_of(next(batches))
    with psycopg.connect(rig.stores.dsn) as owner:  # a lease belongs to the login that took it
        owner.execute("UPDATE harness.leases SET until = clock_timestamp() - interval '1 s'")
    rig.worker(until_idle=True).run()  # what the lease held may go
    assert_is_log(rows + collected(batches), rig)


def test_a_lease_that_ends_before_anything_was_read_ends_the_stream(rig: TableRig, monkeypatch: pytest.MonkeyPatch):
    three_tiers(rig)
    stream = rig.table.stream(follow=False)

    def ended(*_: object, **__: object) -> datetime:
        raise LeaseEnded("it has ended")

    with monkeypatch.context() as patched:
        patched.setattr(rig.stores.leases, "renew", ended)
        with pytest.raises(LeaseEnded):
            list(stream)
    assert_is_log(collected(stream), rig)  # it can be iterated over again


def test_what_kafka_drops_before_a_live_reader_comes_to_it_comes_from_the_table(settings: Settings, kafka: KafkaRig):
    limits = {"queued.min.messages": "1", "queued.max.messages.kbytes": "1"}
    few_ahead = replace(settings, kafka_properties={**settings.kafka_properties, **limits})
    with hp.connect(few_ahead) as harness:
        rig = TableRig(harness, kafka, partitions=1)
        rig.produce(10)
        batches = iter(rig.table.stream())
        rows = taken(batches, 10)  # it is live now
        for first in range(100, 16_100, 2_000):  # 16 MB: the client fetches a few ahead, whatever it is told
            wide = [b'{"id":%d,"n":1,"s":"%b"}' % (i, b"x" * 1_000) for i in range(first, first + 2_000)]
            kafka.produce(rig.topic, 0, wide)
        truth = rig.truth
        rig.ingest()
        rig.kafka.delete_records(rig.topic, 0, 16_000)
        with capture_logs() as logs:
            rows += taken(batches, truth.total() - len(rows))
        assert "stream.behind_kafka" in [line["event"] for line in logs]
        assert_in_order(rows)
        assert Counter(rows) == truth


def test_records_that_neither_kafka_nor_the_table_has_end_the_stream_before_its_first_row(rig: TableRig):
    rig.produce(20)
    rig.ingest()
    rig.produce(20)
    rig.kafka.delete_records(rig.topic, 0, 30)
    with pytest.raises(RecordsLost, match="partition 0 starts at offset 30"):
        rig.table.stream()
    assert len(collected(rig.table.stream(partitions=[1], follow=False))) == 40  # the others go on


@pytest.mark.parametrize("is_taken", [True, False], ids=["ingested in time", "lost"])
def test_what_kafka_drops_while_history_is_read_comes_from_the_table_or_ends_the_stream(rig: TableRig, is_taken: bool):
    three_tiers(rig)
    batches = iter(rig.table.stream(follow=False))
    rows = rows_of(next(batches))
    truth = rig.truth
    if is_taken:
        rig.ingest()
    rig.produce(5)
    rig.kafka.delete_records(rig.topic, 1, 160)  # all but the last five
    if is_taken:
        rows += [row for batch in batches for row in rows_of(batch)]
        assert_in_order(rows)
        assert Counter(row for row in rows if row in truth) == truth
        return
    with pytest.raises(RecordsLost, match="partition 1") as lost:
        for batch in batches:
            rows += rows_of(batch)
    assert (lost.value.partition, lost.value.expected) == (1, 120)
    assert_in_order(rows)  # all that the table has had come before
    assert {row for row in truth if row[0] == 1 and row[1] < 120} <= set(rows)


def test_aborted_and_open_transactions_do_not_show_and_misfits_are_left_out(rig: TableRig):
    rig.produce(5)
    aborted = rig.kafka.begin()
    aborted.produce(rig.topic, 0, [good(900), good(901)])
    aborted.abort()
    rig.ingest()
    rig.produce(5)
    rig.produce_misfit(b"no json", partition=1)
    rig.produce(5)
    still_open = rig.kafka.begin()
    still_open.produce(rig.topic, 1, [good(902)])
    with rig.working(INGEST):  # which sets the misfit aside: until then the stream waits there
        assert_is_log(collected(rig.table.stream(follow=False)), rig)
        still_open.commit()
        assert_is_log(collected(rig.table.stream(follow=False)), rig)


@pytest.mark.parametrize("moved", ["kafka", "buffer", "lake"])
def test_a_stream_begins_where_it_is_told_to(rig: TableRig, moved: str):
    rig.produce(10)
    rig.ingest()
    rig.tier()
    version = rig.stores.ledger.head(rig.table.row).version
    had = {(p, o) for p, o, _ in rig.truth}
    then = datetime.now(UTC)
    wait_until(lambda: datetime.now(UTC) - then > timedelta(milliseconds=5), "the clock went on")
    rig.produce(10)
    if moved != "kafka":
        rig.ingest()
    if moved == "lake":
        rig.tier()
    later = sorted(row for row in rig.truth if row[:2] not in had)
    for from_ in (version, then, {0: 10, 1: 10}):
        assert sorted(collected(rig.table.stream(from_, follow=False))) == later, from_
    assert collected(rig.table.stream("latest", follow=False)) == []
    rig.harness.snapshot(f"s_{rig.topic}", [rig.name])
    rig.produce(1)
    found = collected(rig.table.stream(f"s_{rig.topic}", follow=False))
    assert len(found) == (22 if moved == "kafka" else 2)
    rig.harness.drop_snapshot(f"s_{rig.topic}")


def test_columns_and_a_filter_hold_in_every_tier(rig: TableRig):
    three_tiers(rig)
    batches = list(rig.table.stream(columns=["n"], where="n < 30", follow=False))
    assert {tuple(batch.rows.column_names) for batch in batches} == {("n", *COORDINATES.names)}
    found = Counter(
        row
        for batch in batches
        for row in zip(*(batch.rows.column(c).to_pylist() for c in ("_kafka_partition", "_kafka_offset")), strict=True)
    )
    assert found == Counter((p, o) for p, o, id_ in rig.truth if id_ % 100 < 30)
    assert StreamToken.parse(batches[-1].token).offsets == {0: 160, 1: 160}


def test_several_readers_share_the_partitions(rig: TableRig):
    three_tiers(rig)
    parts = [collected(rig.table.stream(partitions=[p], follow=False)) for p in (0, 1)]
    assert [{row[0] for row in rows} for rows in parts] == [{0}, {1}]
    assert_is_log(parts[0] + parts[1], rig)


def test_wrong_beginnings_are_refused_by_name(rig: TableRig, make_rig: MakeRig):
    rig.produce(3)
    other = make_rig()
    token = rig.table.stream(follow=False).token
    with pytest.raises(TokenUnfit, match="offsets are other records"):
        other.table.stream(token)
    with pytest.raises(TokenUnfit, match="is not a token"):
        rig.table.stream("{}")
    with pytest.raises(UsageError, match="has no partition 7"):
        rig.table.stream({7: 0})
    with pytest.raises(UsageError, match="has no partition 9"):
        rig.table.stream(partitions=[9])
    with pytest.raises(UsageError, match="ends at offset 3"):
        rig.table.stream({0: 4})
    with pytest.raises(UsageError, match="needs a time zone"):
        rig.table.stream(datetime(2026, 1, 1))
    with pytest.raises(UsageError, match="has no key"):
        rig.table.stream(state_first=True)
    with pytest.raises(VersionGone):
        rig.table.stream(99)
    beyond = StreamToken(topic_id=rig.table.row.identity.topic_id, offsets={0: 9})
    with pytest.raises(LogTruncated):
        rig.table.stream(beyond.text())


def test_a_topic_created_again_ends_a_stream_of_the_old_one(rig: TableRig):
    rig.produce(3)
    batches = iter(rig.table.stream())
    assert len(taken(batches, 6)) == 6
    rig.kafka.delete(rig.topic)
    rig.kafka.create(2, topic=rig.topic)
    rig.kafka.produce(rig.topic, 0, [good(i) for i in range(9)])
    with pytest.raises(TopicRecreated):
        taken(batches, 1)


def test_the_batch_view_alone_has_no_offset_order_and_says_so(make_rig: MakeRig):
    rig = make_rig(views="batch")
    rig.produce(5)
    rig.ingest()
    assert_is_log(collected(rig.table.stream(follow=False)), rig)
    rig.tier()
    with pytest.raises(NotInOrder, match="`views: both`"):
        list(rig.table.stream(follow=False))


class TestKeyed:
    @pytest.fixture
    def keyed(self, harness: hp.Harness, kafka: KafkaRig) -> NumbersRig:
        rig = NumbersRig(harness, kafka, views="both", layout={"columns": ["n"]})
        for turn in range(3):
            rig.put_numbers({i: 10 * turn + i for i in range(6)})
            rig.delete_numbers(turn)
            if turn < 2:
                rig.ingest()
            if turn < 1:
                rig.worker(until_idle=True).run()
        return rig

    def changes_of(self, batches: Iterable[StreamBatch]) -> list[Change]:
        return [
            Change(r["_kafka_partition"], r["_kafka_offset"], r["id"], r["n"])
            for batch in batches
            for r in batch.rows.to_pylist()
        ]

    def test_every_put_and_delete_comes(self, keyed: NumbersRig):
        assert sorted(self.changes_of(keyed.table.stream(follow=False))) == sorted(keyed.changes)

    def test_the_state_and_the_changes_behind_it_fold_to_the_newest_rows(self, keyed: NumbersRig):
        batches = list(keyed.table.stream(state_first=True, follow=False))
        states = [batch for batch in batches if batch.is_state]
        assert batches[: len(states)] == states
        assert states[-1].rows.num_rows == 0
        folded = {c.id: c for c in self.changes_of(states)}
        switch = StreamToken.parse(states[-1].token).offsets
        assert sorted(folded.values()) == keyed.newest(below=switch)
        for change in self.changes_of(batches[len(states) :]):
            assert change.offset >= switch[change.partition]
            folded[change.id] = change
        assert sorted(c for c in folded.values() if c.n is not None) == keyed.newest()

    def test_a_reader_that_has_not_all_of_the_state_gets_it_again(self, keyed: NumbersRig):
        first, *_ = keyed.table.stream(state_first=True, follow=False)
        again = list(keyed.table.stream(first.token, state_first=True, follow=False))
        assert again[0].is_state
        assert Counter(self.changes_of([first])) <= Counter(self.changes_of(b for b in again if b.is_state))
        [last] = [batch for batch in again if batch.is_state and not batch.rows.num_rows]
        assert not any(batch.is_state for batch in keyed.table.stream(last.token, state_first=True, follow=False))

    def test_a_key_that_was_deleted_between_two_states_is_forgotten_by_who_begins_anew(self, keyed: NumbersRig):
        copy: dict[int, int | None] = {}
        token = "earliest"

        def take(batch: StreamBatch) -> None:
            nonlocal token
            if batch.begins_state:
                copy.clear()
            copy.update({change.id: change.n for change in self.changes_of([batch])})
            token = batch.token

        take(next(iter(keyed.table.stream(token, state_first=True, follow=False))))
        assert copy
        keyed.delete_numbers(*range(6))
        keyed.put_numbers({7: 70})
        keyed.ingest()
        batches = list(keyed.table.stream(token, state_first=True, follow=False))
        assert [batch.begins_state for batch in batches] == [True, *([False] * (len(batches) - 1))]
        for batch in batches:
            take(batch)
        assert {key: n for key, n in copy.items() if n is not None} == {7: 70}

    def test_an_empty_state_begins_too(self, harness: hp.Harness, kafka: KafkaRig):
        rig = NumbersRig(harness, kafka, views="both")
        [batch] = rig.table.stream(state_first=True, follow=False)
        assert (batch.is_state, batch.begins_state, batch.rows.num_rows) == (True, True, 0)

    def test_what_would_leave_a_state_stale_is_refused(self, keyed: NumbersRig):
        assert list(keyed.table.stream(state_first=True, where="id = 3", follow=False))
        with pytest.raises(UsageError, match="may ask for the key alone"):
            keyed.table.stream(state_first=True, where="n > 3")
        with pytest.raises(UsageError, match="give no other beginning"):
            keyed.table.stream("latest", state_first=True)
