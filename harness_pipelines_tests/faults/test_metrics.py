"""A scrape answers whatever has become of Postgres and Kafka, and says what it does not know by leaving it out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

import harness_pipelines as hp
from harness_pipelines.app.metrics import LOOK_S_MAX
from harness_pipelines.ledgers.postgres.views.work import TableState
from harness_pipelines.ports.upkeep import SeenEnds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import INGEST, PostgresProxy, TableRig, running
from harness_pipelines_tests.scrape import scrape, served

LIMIT = timedelta(seconds=30)


@pytest.fixture
def through(
    proxy: PostgresProxy, settings: Settings, harness: hp.Harness, monkeypatch: pytest.MonkeyPatch
) -> Iterator[hp.Harness]:
    """A harness whose every session goes through the proxy."""
    monkeypatch.setattr("harness_pipelines.drivers.postgres.WAIT_S", 2.0)
    with hp.connect(replace(settings, dsn=proxy.dsn)) as opened:
        yield opened


@pytest.fixture
def url(rig: TableRig, through: hp.Harness) -> Iterator[str]:
    """The metrics of a worker that ingests through the proxy."""
    worker = Worker(through.stores, [rig.table.row], WorkerOptions(stages=INGEST, lease=timedelta(seconds=5)))
    rig.produce(20)
    with running(worker), served(worker, through.table(rig.name)) as at:
        yield at


def ingested(rig: TableRig, url: str, count: int) -> None:
    """Wait until a scrape shows *count* records as taken by the worker and as buffered by the ledger."""

    def there() -> bool:
        found = scrape(url)
        taken = found.value("harness_moved_records_total", table=rig.name, stage="ingest")
        return taken == count == found.value("harness_buffer_offsets", table=rig.name)

    wait_until(there, f"{count} records are taken")


@pytest.mark.long
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_while_postgres_is_away_a_scrape_has_the_workers_own_counters(
    rig: TableRig, url: str, proxy: PostgresProxy, how: str
):
    ingested(rig, url, 40)
    if how == "refuses":
        proxy.down()
    else:
        proxy.freeze()
    wait_until(lambda: scrape(url).value("harness_scrape_ok") == 0, "it is noticed")
    with within(LOOK_S_MAX + 2.0, "a scrape without Postgres"):
        found = scrape(url)

    assert found.samples("harness_buffer_offsets") == {}
    assert found.value("harness_moved_records_total", table=rig.name, stage="ingest") == 40
    assert found.value("harness_worker_ready") == 1
    proxy.down()
    rig.produce(5)
    wait_until(lambda: bool(scrape(url).value("harness_stage_trouble", table=rig.name, stage="ingest")), "it is told")
    assert (scrape(url).value("harness_stage_errors_total", table=rig.name, stage="ingest") or 0) >= 1

    proxy.up()
    ingested(rig, url, 50)

    def all_is_known() -> bool:
        found = scrape(url)
        return (found.value("harness_scrape_ok"), found.value("harness_tail_offsets", table=rig.name)) == (1, 0)

    wait_until(all_is_known, "the end of the log is known again, and all below it is taken")


def state(rig: TableRig, *seen: SeenEnds, holder: str | None = None) -> TableState:
    [found] = rig.stores.watch.states([rig.name, "no.such"], seen=seen, holder=holder, limit=LIMIT)
    return found


def test_what_only_kafka_has_is_known_when_every_partition_was_looked_at(rig: TableRig):
    rig.produce(7)
    assert (state(rig).tail, state(rig).log_seen_s) == (None, None)
    half = SeenEnds(table=rig.name, ends={0: 7}, age_s=1.0)
    assert (state(rig, half).tail, state(rig, half).log_seen_s) == (None, None)
    both = SeenEnds(table=rig.name, ends={0: 7, 1: 7}, age_s=1.5)
    assert (state(rig, both).tail, state(rig, both).log_seen_s) == (14, 1.5)


def test_the_newer_look_at_the_log_counts(rig: TableRig):
    rig.produce(7)
    rig.stores.watch.record_ends({rig.table.row.table_id: rig.stores.log.watermarks(rig.topic, [0, 1])})
    assert state(rig).tail == 14
    old = SeenEnds(table=rig.name, ends={0: 3, 1: 3}, age_s=3600.0)
    assert state(rig, old).tail == 14
    new = SeenEnds(table=rig.name, ends={0: 9}, age_s=0.0)
    assert state(rig, new).tail == 16, "of each partition the newest"


def test_ages_are_counted_from_the_last_commit(rig: TableRig):
    made = state(rig)
    rig.produce(3)
    rig.ingest()
    after = state(rig)
    assert after.buffer_commit_s < made.buffer_commit_s + after.tier_s - made.tier_s, "younger than the table"
    assert after.tier_s > made.tier_s, "tier did nothing yet, so the table's own age"


def test_a_move_that_is_open_is_shown_with_its_attempts_and_one_that_is_stuck_as_such(rig: TableRig):
    rig.produce(3)
    rig.ingest()
    claim = rig.claim(Stage.TIER)
    move = tier.plan(rig.stores, rig.table.row, claim, trigger="test", run_id=None)
    assert move is not None
    again = rig.stores.ledger.take_attempt(claim, move, run_id=None)
    rig.stores.ledger.note_failure(again, error="out of memory", counts=True)
    shown = state(rig, holder=claim.holder)
    assert {s: (m.attempt, m.failures, m.stuck) for s, m in shown.moves.items()} == {"tier": (2, 1, False)}
    assert {s: (c.own, 0 < c.lease_s <= 600) for s, c in shown.claims.items() if c.lease_s} == {"tier": (True, True)}
    assert not state(rig, holder="another").claims["tier"].own

    rig.stores.ledger.close_move(claim, again, state=MoveState.QUARANTINED, error="every attempt failed")
    rig.stores.ledger.release(claim)
    shown = state(rig, holder=claim.holder)
    assert shown.moves["tier"].stuck
    assert (shown.claims["tier"].lease_s, shown.claims["tier"].own) == (0, False)


def test_leases_stops_and_quarantined_records_are_counted(rig: TableRig):
    rig.produce(2)
    rig.produce_misfit(b"{")
    rig.ingest()
    read = rig.stores.leases.look(rig.table.row, holder="test", lease=timedelta(minutes=10))
    rig.stores.ledger.stop_table(rig.table.row, "as an example")
    shown = state(rig)
    assert (shown.quarantined, shown.readers, shown.stopped, shown.stream) == (1, 1, True, None)
    assert shown.oldest_lease_s is not None
    rig.stores.leases.end(read.lease_id)
    rig.stores.ledger.stop_table(rig.table.row, None)
    shown = state(rig)
    assert (shown.readers, shown.oldest_lease_s, shown.stopped) == (0, None, False)
