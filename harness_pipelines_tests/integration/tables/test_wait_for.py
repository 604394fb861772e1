"""Who waits for a record is told of its commit, by one connection for all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.ledgers.postgres import notify
from harness_pipelines.ports.ledger import NotInTime
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import DEADLINE_S, KafkaRig, wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import INGEST, TableRig

LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query ILIKE 'LISTEN harness%' AND datname = current_database()"


@pytest.fixture
def own(settings: Settings, kafka: KafkaRig) -> Iterator[TableRig]:
    """A table over a harness of its own, so that nobody else waits by it."""
    with hp.connect(settings) as harness:
        yield TableRig(harness, kafka)


def listeners(rig: TableRig) -> set[int]:
    with psycopg.connect(rig.stores.dsn) as connection:
        return {row[0] for row in connection.execute(LISTENERS).fetchall()}


def test_many_waiters_return_when_their_record_is_readable_by_one_connection(
    own: TableRig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notify, "LOOK_EVERY_S", 3600.0)  # nothing but what is told
    others = listeners(own)
    waiting = threading.Barrier(101)
    found: list[bool] = []

    def wait(offset: int) -> None:
        waiting.wait()
        own.table.wait_for(offset % 2, offset // 2, timeout_s=DEADLINE_S)
        found.append(sum(1 for row in own.read() if row[:2] == (offset % 2, offset // 2)) == 1)

    with ThreadPoolExecutor(100) as threads:
        done = [threads.submit(wait, offset) for offset in range(100)]
        waiting.wait()
        wait_until(lambda: len(listeners(own) - others) == 1, "one listens")
        with own.working(INGEST):
            own.produce(50)
            for one in done:
                one.result(DEADLINE_S)
        assert len(listeners(own) - others) == 1
    assert found == [True] * 100


def test_what_was_not_told_is_found_out(own: TableRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness_pipelines.buffers.postgres.writer.SegmentWriter._tell", lambda *_: None)
    with own.working(INGEST):
        own.produce(5)
        own.table.wait_for(1, 4, timeout_s=DEADLINE_S)
    assert own.read() == own.truth


def test_a_connection_that_was_cut_is_made_again(own: TableRig):
    others = listeners(own)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(own.table.wait_for, 0, 3, timeout_s=DEADLINE_S)
        wait_until(lambda: len(listeners(own) - others) == 1, "one listens")
        [pid] = listeners(own) - others
        with psycopg.connect(own.stores.dsn) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 60000)", [pid])
        wait_until(lambda: bool(listeners(own) - others - {pid}), "another one listens")
        own.produce(4)
        own.ingest()
        done.result(DEADLINE_S)


def test_what_does_not_come_in_time_ends_with_its_place(own: TableRig):
    own.produce(2)
    own.ingest()
    with within(5, "two waits of less than a second"):
        with pytest.raises(NotInTime, match="partition 0 is at 2, offset 2 is not readable"):
            own.table.wait_for(0, 2, timeout_s=0.2)
        with pytest.raises(NotInTime, match="partition 7 is at no offset"):
            own.table.wait_for(7, 0, timeout_s=0.01)
    own.table.wait_for(0, 1, timeout_s=0)


def test_a_harness_that_is_closed_leaves_no_listener(settings: Settings, kafka: KafkaRig):
    with hp.connect(settings) as harness:
        rig = TableRig(harness, kafka)
        others = listeners(rig)

        def listens() -> bool:
            with pytest.raises(NotInTime):
                rig.table.wait_for(0, 0, timeout_s=0.3)
            return len(listeners(rig) - others) == 1

        wait_until(listens, "one listens")
        [pid] = listeners(rig) - others
    with hp.connect(settings) as harness:
        wait_until(lambda: pid not in listeners(rig), "it is gone")


def test_events_come_in_order_without_gaps_and_as_they_happen(own: TableRig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("harness_pipelines.ledgers.postgres.events.EVENTS_AT_ONCE", 2)
    monkeypatch.setattr(notify, "LOOK_EVERY_S", 3600.0)  # nothing but what is told
    for _ in range(4):
        own.produce(1)
        own.ingest()
        own.tier()
    assert [(e.seq, e.event) for e in own.table.events()] == [(1, "created"), *((i, "published") for i in range(2, 6))]
    assert [e.payload["version"] for e in own.table.events(after=3)] == [4, 5]
    with ThreadPoolExecutor(1) as thread:
        following = own.table.events(after=5, follow=True)
        done = thread.submit(next, following)
        own.produce(1)
        own.ingest()
        own.tier()
        told = done.result(DEADLINE_S)
    assert (told.seq, told.event, told.payload["version"]) == (6, "published", 6)


def test_a_table_without_a_buffer_tells_of_its_publish(settings: Settings, kafka: KafkaRig):
    with hp.connect(settings) as harness:
        rig = TableRig(harness, kafka, buffer="none")
        rig.produce(3)
        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(rig.table.wait_for, 1, 2, timeout_s=DEADLINE_S)
            rig.tier()
            done.result(DEADLINE_S)
