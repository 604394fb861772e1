"""History is given once: a stand-by is promoted, a backup is restored, and the last commits are gone.

Judged by the producer's log, by what a webhook was sent, and by what readers had read.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import orjson
import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.audit.repair.reconcile import look, settle
from harness_pipelines.chaos.proxy import PostgresProxy
from harness_pipelines.chaos.standby import Server
from harness_pipelines.drivers.postgres import LedgerPromoted
from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain
from harness_pipelines.lakes.owner import MARK
from harness_pipelines.ports.errors import LedgerOlderThanLake, WarehouseTaken
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.services import Endpoints
from harness_pipelines.sinks.deliveries import webhook
from harness_pipelines.stages import guard
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.lake_files import content
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, new_warehouse, settings_for

MOVING = INGEST | TIER
STOPS_S = 180.0  #: a comparison is due every 20 s; the machine may be busy


class Place:
    """A primary behind a proxy, a warehouse, and tables on both."""

    def __init__(self, endpoints: Endpoints, folder: Path, kafka: KafkaRig, **settings: str) -> None:
        self.folder, self.kafka, self._endpoints = folder, kafka, endpoints
        self.warehouse = new_warehouse(endpoints, folder)
        self.primary = Server(folder / "primary")
        self.primary.start(fresh=True)
        if settings:
            self.primary.configure(**settings)
            self.primary.end()
            self.primary.start()
        self.servers = [self.primary]
        self.proxy = PostgresProxy(self.primary.worker_dsn)
        self.harness = self.connect(self.proxy.dsn)
        self.harness.init()

    def connect(self, dsn: str) -> hp.Harness:
        folder = self.folder / "home"
        folder.mkdir(exist_ok=True)
        owner = self.primary.dsn  # who makes the ledger, once
        return hp.connect(settings_for(self._endpoints, folder, dsn=dsn, owner_dsn=owner, warehouse=self.warehouse))

    def rig(self, **spec: Any) -> TableRig:
        return TableRig(self.harness, self.kafka, tier={"max_age": "1s"}, **spec)

    def copy(self, name: str, *, standby: bool) -> Server:
        made = self.primary.copy_to(self.folder / name, standby=standby)
        self.servers.append(made)
        return made

    def lead_to(self, server: Server) -> None:
        """The address of the database leads to *server* from now on."""
        self.proxy.down()
        self.proxy.lead_to("127.0.0.1", server.port)
        self.proxy.up()

    def close(self) -> None:
        self.harness.close()
        self.proxy.close()
        for server in self.servers:
            server.end()


@pytest.fixture
def make_place(endpoints: Endpoints, tmp_path: Path, kafka: KafkaRig) -> Iterator[Callable[..., Place]]:
    made: list[Place] = []

    def make(**settings: str) -> Place:
        made.append(Place(endpoints, tmp_path, kafka, **settings))
        return made[-1]

    yield make
    for place in made:
        place.close()


@pytest.fixture
def place(make_place: Callable[..., Place]) -> Place:
    return make_place()


HISTORY = "SELECT harness.history()"


def work(rig: TableRig) -> None:
    rig.worker(MOVING, until_idle=True).run()


def given_out(rig: TableRig) -> dict[str, dict[int, Any]]:
    """Every number that was given out so far, with what it was given to."""
    row = rig.table.row
    return {
        "versions": {v.version: (v.move_id, v.stream.metadata, v.committed_at) for v in rig.table.versions()},
        "events": {e.seq: (e.event, dict(e.payload)) for e in rig.table.events()},
        "moves": {m["move_id"]: m["nonce"] for m in rig.stores.ledger.moves(row, limit=1000)},
    }


def assert_given_once(before: dict[str, dict[int, Any]], after: dict[str, dict[int, Any]]) -> None:
    for kind, given in before.items():
        twice = {n for n in given.keys() & after[kind].keys() if given[n] != after[kind][n]}
        assert not twice, f"{kind} {sorted(twice)} were given twice"


def assert_sound(rig: TableRig) -> None:
    rig.assert_exact()
    audited = audit_table(rig.stores, rig.table.row, full=True)
    assert audited.ok, audited.to_json()
    broken = fsck(rig.stores, [rig.name]).broken
    assert not broken, broken


def await_history_lost(worker: Worker) -> None:
    """Wait until the worker says of its one table that the ledger lost history."""
    said = worker.progress[0].trouble
    wait_until(lambda: any("history lost" in text for text in list(said.values())), "it stops", deadline_s=STOPS_S)


@contextmanager
def beside(step: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Repeat *step* in a thread while the block lasts; an outage is waited out, and what else ends it is kept."""
    ended, failed = threading.Event(), list[BaseException]()

    def repeat() -> None:
        while not ended.wait(0.02):
            try:
                step()
            except HarnessError as error:
                if error.exit_code not in (TryAgain.exit_code, OutcomeUnknown.exit_code):
                    failed.append(error)
                    return
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield failed
    finally:
        ended.set()
        thread.join(STOPS_S)
    assert not failed, failed


@contextmanager
def hook() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """A webhook, and what came with which idempotency key."""
    taken: list[tuple[str, bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            taken.append((self.headers["Idempotency-Key"], body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", taken
        server.shutdown()


def test_a_promoted_stand_by_that_lacks_commits_stops_its_tables_and_no_number_is_given_again(place: Place):
    rig = place.rig()
    standby = place.copy("standby", standby=True)
    standby.start()
    rig.produce(20)
    work(rig)
    standby.await_caught_up(place.primary)
    assert standby.run(HISTORY) == place.primary.run(HISTORY)
    standby.cut_off()

    subscriber = "hooked"
    streamed: Counter[tuple[int, int]] = Counter()
    promoted, lost_holds = threading.Event(), list[FencedOut]()
    with hook() as (url, sent), webhook(url) as post:

        def deliver() -> None:
            try:
                with rig.table.subscription(subscriber) as events:
                    for event in events:
                        post(rig.name, event)
            except FencedOut as fenced:  # the stand-by may lack the hold that was taken last, and no other one
                if not promoted.is_set() or lost_holds:
                    raise
                lost_holds.append(fenced)

        def read() -> None:
            found = rig.read()
            assert not found - rig.truth, "a row that nobody produced, or twice"

        token = "earliest"

        def follow() -> None:
            nonlocal token
            for batch in rig.table.stream(token, follow=False):
                names = ("_kafka_partition", "_kafka_offset")
                streamed.update(zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True))
                token = batch.token

        with beside(deliver), beside(read), beside(follow):
            with rig.working(MOVING) as worker:
                head = rig.stores.ledger.head(rig.table.row).version
                rig.produce(30)
                wait_until(
                    lambda: (
                        rig.stores.ledger.head(rig.table.row).version > head + 1
                        or rig.status() == {0: (50, 50), 1: (50, 50)}
                    ),
                    "commits that the stand-by lacks",
                    deadline_s=120,
                )
                lost = given_out(rig)
                told_then = [b.token for b in rig.table.stream(follow=False, corrections=True)][-1]
                promoted.set()
                place.primary.end()
                standby.promote()
                place.lead_to(standby)
                rig.produce(10)
                await_history_lost(worker)
            assert "history lost" in (rig.harness.table(rig.name).row.stopped or "")
            assert any("history lost" in found.detail for found in fsck(rig.stores, [rig.name]).broken)
            assert max(given_out(rig)["versions"]) < max(lost["versions"]), "the promoted server went on by itself"
            report = look(rig.stores, rig.table.row)
            assert settle(rig.stores, rig.table.row, report).settled
            work(rig)
        follow()
        events = [orjson.loads(body) for _, body in sent]
        by_key: dict[str, set[bytes]] = {}
        for key, body in sent:
            by_key.setdefault(key, set()).add(body)
        assert all(len(bodies) == 1 for bodies in by_key.values()), "an idempotency key stands for two events"

    assert set(streamed) == {(p, o) for p, o, _ in rig.truth}, "the stream skips nothing"
    assert set(streamed.values()) == {1}, "and repeats nothing"
    after = given_out(rig)
    assert_given_once(lost, after)
    [told] = [payload for event, payload in after["events"].values() if event == "history_lost"]
    assert told["from"] <= max(lost["versions"]) <= told["to"] == told["version"] - 1
    assert min(v for v in after["versions"] if v not in lost["versions"]) == told["version"]
    assert {e["event"] for e in events} >= {"created", "published"}
    assert_sound(rig)
    with pytest.raises(VersionGone):
        rig.table.changes(max(lost["versions"]))
    with pytest.raises(VersionGone):
        list(rig.table.stream(max(lost["versions"]), follow=False))
    with pytest.raises(VersionGone, match="of a history that was lost"):
        list(rig.table.stream(told_then, follow=False, corrections=True))

    place.primary.start()  # the old one comes back
    old = place.connect(place.primary.worker_dsn)
    try:
        with pytest.raises(WarehouseTaken, match="promoted since"):
            old_rig_worker(old, rig)
    finally:
        old.close()


def test_a_worker_that_saw_the_lost_commits_finds_that_they_are_lost(place: Place, monkeypatch: pytest.MonkeyPatch):
    """It compared the lake with the server that had them: what that one knew says nothing of the promoted one."""
    monkeypatch.setattr(guard, "COMPARED_S", 0.0)
    rig = place.rig(partitions=1)
    standby = place.copy("standby", standby=True)
    standby.start()
    rig.produce(10)
    work(rig)
    standby.await_caught_up(place.primary)
    standby.cut_off()
    rig.produce(10)
    work(rig)
    ledger, row = rig.stores.ledger, rig.table.row
    rig.stores.guard.check(row, ledger)
    place.primary.end()
    standby.promote()
    place.lead_to(standby)
    with pytest.raises(LedgerOlderThanLake, match="history lost"):
        again(lambda: rig.stores.guard.check(row, ledger))
    assert settle(rig.stores, row, look(rig.stores, row)).settled
    work(rig)
    assert [e.event for e in rig.table.events()].count("history_lost") == 1
    assert_sound(rig)


def old_rig_worker(harness: hp.Harness, rig: TableRig) -> None:
    Worker(harness.stores, [harness.table(rig.name).row], WorkerOptions(stages=MOVING, until_idle=True)).run()


def test_a_promotion_that_lost_nothing_goes_on_by_itself_behind_numbers_of_its_own(place: Place):
    rig = place.rig(partitions=1)
    standby = place.copy("standby", standby=True)
    standby.start()
    rig.produce(10)
    work(rig)
    old_claim = rig.claim(Stage.TIER, lease_s=60.0)
    standby.await_caught_up(place.primary)
    before = given_out(rig)
    place.primary.end()
    standby.promote()
    place.lead_to(standby)
    ledger, row = rig.stores.ledger, rig.table.row

    draft = MoveDraft(
        stage=Stage.TIER, shard=0, lo={0: 10}, hi={0: 10}, base_version=2, schema_version=1, trigger="test"
    )
    with pytest.raises(LedgerPromoted):
        again(lambda: ledger.plan_move(old_claim, draft))

    rig.produce(10)
    again(lambda: rig.stores.guard.check(row, ledger))
    with pytest.raises(HarnessError, match="claim epoch"):
        ledger.plan_move(old_claim, draft)
    work(rig)
    after = given_out(rig)
    assert_given_once(before, after)
    [told] = [payload for event, payload in after["events"].values() if event == "promoted"]
    assert told["from"] == max(before["versions"]) + 1
    assert rig.claim(Stage.TIER).epoch > 2**32, "epochs of the promoted server lie above all of the one before"
    assert_sound(rig)


def again(step: Callable[[], Any]) -> Any:
    """*step*, over connections that the failover has not cut."""
    for _ in range(20):
        with suppress(TryAgain):
            return step()
    return step()


def test_a_backup_that_is_restored_under_its_worker_stops_the_table_and_reconcile_goes_on(place: Place):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.copy("backup", standby=False)
    rig.produce(10)
    work(rig)
    lost = given_out(rig)
    with rig.working(MOVING) as worker:
        place.primary.end()
        backup.start()
        place.lead_to(backup)
        await_history_lost(worker)
    assert settle(rig.stores, rig.table.row, look(rig.stores, rig.table.row)).settled
    rig.produce(10)
    work(rig)
    after = given_out(rig)
    assert_given_once(lost, after)
    assert [event for event, _ in after["events"].values()].count("history_lost") == 1
    assert_sound(rig)


def test_a_recovery_to_a_point_in_time_takes_the_warehouse_only_by_a_reconcile(place: Place):
    rig = place.rig(partitions=1)
    rig.produce(10)
    work(rig)
    backup = place.copy("backup", standby=False)
    rig.produce(10)
    work(rig)
    lost = given_out(rig)
    place.primary.end()
    (backup.data / "recovery.signal").touch()
    with (backup.data / "postgresql.conf").open("a") as conf:
        conf.write("\nrestore_command = 'false'\nrecovery_target_action = 'promote'\nrecovery_target = 'immediate'\n")
    backup.start()
    wait_until(lambda: backup.run("SELECT pg_is_in_recovery()") == [(False,)], "the recovery ended")
    place.lead_to(backup)
    mark = content(f"{place.warehouse}/{MARK}")
    with pytest.raises(LedgerOlderThanLake, match="history lost"):
        again(lambda: rig.stores.guard.check(rig.table.row, rig.stores.ledger))
    assert content(f"{place.warehouse}/{MARK}") == mark
    assert settle(rig.stores, rig.table.row, look(rig.stores, rig.table.row)).settled
    assert content(f"{place.warehouse}/{MARK}") != mark
    work(rig)
    assert_given_once(lost, given_out(rig))
    assert_sound(rig)


def test_records_that_the_promoted_server_lacks_are_taken_again_though_no_other_one_comes(place: Place):
    """The reader is behind them in the log: what the ledger says of its positions is what counts."""
    rig = place.rig(partitions=1)
    standby = place.copy("standby", standby=True)
    standby.start()
    with rig.working(INGEST):
        rig.produce(5)
        rig.await_exact()
        standby.await_caught_up(place.primary)
        standby.cut_off()
        rig.stores.segments.rotate(rig.table.row)  # it lacks the segment, too
        rig.produce(3)
        rig.await_exact()
        place.primary.end()
        standby.promote()
        place.lead_to(standby)
        wait_until(lambda: again(rig.read).total() == 8, "they are taken again")
    assert_sound(rig)
