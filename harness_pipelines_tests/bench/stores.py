"""The bench of object stores: what each act asks of a store, request by request, and what that costs.

A proxy between all clients and the store counts. Requests are exact, so they are the same on a busy machine.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.drivers.files import opened
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Services
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.bench import mirror
from harness_pipelines_tests.bench.base import Figure, Group, Run
from harness_pipelines_tests.bench.connect import ConnectSink
from harness_pipelines_tests.bench.freshness import RATE, of_table
from harness_pipelines_tests.bench.peer import Peer, PeerTable
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog
from harness_pipelines_tests.bench.steady import SteadyProducer
from harness_pipelines_tests.bench.throughput import published, warm_up
from harness_pipelines_tests.hastened import hastened, whole_periods
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ALL, INGEST, OTREE, TIER, running
from harness_pipelines_tests.store_proxy import WHOLE, Request, StoreProxy, read_twice

#: Dollars per request: S3 Standard in us-east-1, 2026. Deletes are free.
PRICES: Mapping[str, float] = {
    **dict.fromkeys(("PUT", "CREATE", "REPLACE", "POST", "LIST", "UPLOADS"), 0.005 / 1000),
    **dict.fromkeys(("GET", "HEAD", "VERSIONING"), 0.0004 / 1000),
    **dict.fromkeys(("DELETE", "BULK"), 0.0),
}
WRITES, DELETES = ("PUT", "CREATE", "REPLACE", "POST"), ("BULK", "DELETE")
MONTH_S = 30 * 86_400.0
EXPIRE, SHORT_S = frozenset({Stage.EXPIRE}), 20.0
HASTE = 60.0  #: how many times faster the clock of the idle worker runs
BATCH, TIERS_TO_COMPACT, ORPHANS = 400, 4, 1_000
#: Nothing outlives its use, so that expire finds what it removes within a minute.
SHORT = {"versions": "1s", "snapshots": 1, "grace": "1s", "lease": "5s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """The requests of one act."""

    requests: tuple[Request, ...]

    def count(self, *kinds: str) -> int:
        return sum(one.kind in kinds for one in self.requests)

    @property
    def dollars(self) -> float:
        return sum(PRICES[one.kind] for one in self.requests)

    @property
    def for_data(self) -> int:
        """Requests to change or look at files that are no metadata."""
        return sum(one.kind in (*WRITES, *DELETES, "HEAD") and not WHOLE.search(one.path) for one in self.requests)

    @property
    def read_twice(self) -> list[str]:
        """Metadata that one process read more than once."""
        return read_twice(self.requests)


class Counted:
    """Acts of one run, by name."""

    def __init__(self, run: Run, proxy: StoreProxy) -> None:
        self._run, self._proxy = run, proxy
        self.acts: dict[str, Act] = {}

    def act(self, name: str, work: Callable[[], object]) -> Act:
        """Do *work* and note what it asked of the store."""
        self._run.say(f"requests: {name}")
        first = len(self._proxy.seen)
        work()
        return self.note(name, self._proxy.made()[first:])

    def note(self, name: str, requests: Sequence[Request]) -> Act:
        made = self.acts[name] = Act(requests=tuple(requests))
        for kind, count in sorted(Counter(one.kind for one in made.requests).items()):
            self._run.note(f"requests.{name}.{kind}", count, "requests")
        self._run.note(f"requests.{name}.dollars", made.dollars * 1000, "$ for 1,000 times")
        for path in made.read_twice[:5]:
            self._run.say(f"requests: {name} read twice: {path}")
        return made


@contextmanager
def store_of(run: Run) -> Iterator[S3Settings]:
    """The embedded object store of the bench, started if it does not run."""
    settings = run.harness.settings
    services = Services(settings.home / "bench-store", jars=settings.jars)
    try:
        found = services.up(only=["s3"]).s3
        assert found is not None
        yield found
    finally:
        services.down()


@contextmanager
def over(run: Run, warehouse: str, s3: S3Settings) -> Iterator[Run]:
    """The same run over another warehouse; its tables are dropped at the end."""
    with hp.connect(replace(run.harness.settings, warehouse=warehouse, s3=s3)) as harness:
        there = Run(harness=harness, quick=run.quick, say=run.say, notes=run.notes)
        try:
            yield there
        finally:
            there.close()


def requests(run: Run) -> Sequence[Figure]:
    """Exact requests of each act on a table of both views, and what they cost."""
    with store_of(run) as s3, StoreProxy(s3) as proxy, over(run, _bucket(), proxy.settings) as there:
        counted, topic = Counted(run, proxy), there.topic()
        table = there.table(topic, views="both", retention=SHORT)
        feed = _Feed(there, topic, table)
        for _ in range(2):  # what a process reads once
            feed.more()
            there.work(table, ALL - {Stage.EXPIRE})
        feed.more()
        tier = counted.act("tier", lambda: there.work(table, TIER))
        counted.act("otree", lambda: there.work(table, OTREE))
        counted.act("read", table.read)
        for _ in range(TIERS_TO_COMPACT):
            feed.more()
            there.work(table, TIER)
        counted.act("compact", lambda: there.work(table, frozenset({Stage.COMPACT})))
        there.work(table, OTREE)
        counted.act("audit", table.audit)
        counted.act("fsck", lambda: fsck(there.harness.stores, [table.name]))
        counted.act("expire", lambda: _run_for(table, SHORT_S, stages=EXPIRE))
        _orphans(table)
        expire = counted.act("expire_of_1000", lambda: _run_for(table, SHORT_S, stages=EXPIRE))
        quiet = there.table(topic, views="both")  # at default retention: the other one looks for garbage every second
        there.work(quiet, ALL)
        proxy.forget()
        with hastened(HASTE) as clock, running(Worker(there.harness.stores, [quiet.row], WorkerOptions())):
            asked, minutes = whole_periods(proxy, clock, run.size(6, 3))
        idle = counted.note("idle", asked)
        moves = MONTH_S / table.spec.tier.max_age
        run.note("requests.month.tier", tier.dollars * moves, "$ per table")
        run.note("requests.month.otree", counted.acts["otree"].dollars * moves, "$ per table, after each tier")
        run.note("requests.month.idle", idle.dollars * MONTH_S / (minutes * 60), "$ per table")
        return [
            _figure("tier.puts", tier.count(*WRITES), "requests", PARTITIONS + 5),
            _figure("tier.lists", tier.count("LIST"), "requests", 1),
            *(_figure(f"{name}.read_twice", len(act.read_twice), "files", 0) for name, act in counted.acts.items()),
            _figure("expire.per_1000_deletes", expire.for_data, "requests", 3),
            _figure("idle.per_minute", len(asked) / minutes, "requests", 1),
        ]


def peers(run: Run) -> Sequence[Figure]:
    """Requests per million rows, beside Spark Structured Streaming and Kafka Connect's sink: as fresh in the lake, and
    as fresh for readers.

    Readers of the harness see the buffer too, those of the peers the lake alone. The checkpoint of the one lies on the
    local disk, the control topic of the other in Kafka: they cost no request here.
    """
    seconds = run.size(120, 65)
    with store_of(run) as s3, StoreProxy(s3) as proxy, over(run, _bucket(), proxy.settings) as there:
        warm_up(there)
        asked = {
            "ours_10s": _ours(there, proxy, max_age="10s", seconds=seconds),
            "ours_60s": _ours(there, proxy, max_age="60s", seconds=seconds),
            "spark_10s": _of_spark(there, proxy, every_s=10, seconds=seconds),
            "spark_1s": _of_spark(there, proxy, every_s=1, seconds=seconds),
            "connect_10s": _of_connect(there, proxy, every_s=10, seconds=seconds),
            "connect_1s": _of_connect(there, proxy, every_s=1, seconds=seconds),
        }
    for name, act in asked.items():
        for kind, times in sorted(Counter(one.kind for one in act.requests).items()):
            run.note(f"peers.{name}.{kind}", times / seconds / RATE * 1e6, "requests per million rows")
        run.note(f"peers.{name}.dollars", act.dollars / seconds / RATE * 1e9, "$ per 1,000 million rows")
    many = {name: len(act.requests) for name, act in asked.items()}
    return [
        figure
        for peer in ("spark", "connect")
        for figure in (
            _figure(f"peers.{peer}.as_fresh_in_the_lake", many["ours_10s"] / many[f"{peer}_10s"], "x", 0.5),
            _figure(f"peers.{peer}.as_fresh_for_readers", many["ours_60s"] / many[f"{peer}_1s"], "x", 0.5),
        )
    ]


def _ours(run: Run, proxy: StoreProxy, *, max_age: str, seconds: int) -> Act:
    """What ingest and tier ask of the store for records at `RATE`, until all are in the lake."""
    run.say(f"peers: {RATE:,} records/s for {seconds} s, to the lake every {max_age}")
    topic = run.topic()
    table = run.table(topic, tier={"max_age": max_age})
    worker = Worker(run.harness.stores, [table.row], WorkerOptions(stages=INGEST | TIER))
    with running(worker), SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds) as producer:
        first = len(proxy.seen)
        rows = _produced(producer, seconds)
        wait_until(lambda: _in_lake(table) == rows, "all rows are in the lake", deadline_s=180)
        return Act(requests=tuple(proxy.seen[first:]))


def _of_spark(run: Run, proxy: StoreProxy, *, every_s: int, seconds: int) -> Act:
    """What Spark Structured Streaming asks of it for as many."""
    run.say(f"peers: Spark Structured Streaming, trigger {every_s} s")
    topic = run.topic()
    return _of_peer(run, proxy, topic, Peer(run.harness, topic, trigger_s=every_s, start=None), seconds=seconds)


def _of_connect(run: Run, proxy: StoreProxy, *, every_s: int, seconds: int) -> Act:
    """What Kafka Connect's sink asks of it for as many."""
    run.say(f"peers: Kafka Connect's sink, a commit every {every_s} s")
    topic = run.topic()
    return _of_peer(run, proxy, topic, ConnectSink(run, topic, commit_s=every_s), seconds=seconds)


def _of_peer(run: Run, proxy: StoreProxy, topic: str, peer: PeerTable, *, seconds: int) -> Act:
    with peer:
        peer.begin()
        peer.await_running()
        with SteadyProducer(run.harness.settings, topic, rate=RATE, seconds=seconds) as producer:
            first = len(proxy.seen)
            peer.await_rows(_produced(producer, seconds))
            made = proxy.seen[first:]
    return Act(requests=tuple(one for one in made if "java" in one.agent.lower()))  # not those of this bench


def folder(run: Run) -> Sequence[Figure]:
    """Freshness and throughput with the lake on a store that stands beside, and on the local folder."""
    rows = run.size(1_000_000, 300_000)
    with store_of(run) as s3, over(run, _bucket(), s3) as there:
        fresh, rates = {}, {}
        for name, place in (("folder", run), ("store", there)):
            run.say(f"{name}: freshness and a backlog of {rows:,} records")
            warm_up(place)
            ages, _ = of_table(place, place.topic())
            fresh[name] = float(np.percentile(ages, 50))
            topic = place.topic()
            produce_backlog(place.harness.settings, topic, count=rows)
            rates[name] = max(published(place, rows, place.table(topic), f"{name}.backlog") for _ in range(2))
            run.note(f"{name}.freshness_p50", fresh[name], "s")
            run.note(f"{name}.backlog", rates[name], "rows/s")
    backlog = rates["store"] / rates["folder"]
    return [
        _figure("freshness_p50_to_folder", fresh["store"] / fresh["folder"], "x", 1.2),
        Figure(figure="stores.backlog_to_folder", value=backlog, unit="x", goal=0.8, sense=">="),
    ]


def _produced(producer: SteadyProducer, seconds: float) -> int:
    """How many records were acknowledged, once all are."""
    wait_until(lambda: not producer.running, "all is produced", deadline_s=2 * seconds + 60)
    return sum(len(part.offsets) for part in producer.stop().values())


def _in_lake(table: hp.Table) -> int:
    return sum(p.bounds.stream_hi for p in table.positions())


def _bucket() -> str:
    return f"s3://harness/bench-{uuid.uuid4().hex[:8]}"


def _figure(name: str, value: float, unit: str, goal: float) -> Figure:
    return Figure(figure=f"stores.{name}", value=value, unit=unit, goal=goal, sense="<=")


class _Feed:
    """More records for a table, ingested."""

    def __init__(self, run: Run, topic: str, table: hp.Table) -> None:
        self._run, self._topic, self._table = run, topic, table
        self._sent = 0

    def more(self) -> None:
        produce_backlog(self._run.harness.settings, self._topic, count=BATCH, first=self._sent)
        self._sent += BATCH
        self._run.work(self._table, INGEST)


def _orphans(table: hp.Table) -> None:
    """Files that nothing reaches, as writers leave them that were killed."""
    folder = table.harness.stores.tables.head(table.row).stream.metadata.rsplit("/metadata/", 1)[0]
    for number in range(ORPHANS):
        system, path = opened(f"{folder}/data/orphan-{number:04}.parquet")
        with system.open_output_stream(path) as stream:
            stream.write(b"x")


def _run_for(table: hp.Table, for_s: float, *, stages: frozenset[Stage] = ALL) -> None:
    """Run a worker that long, as `harness run` does, whether there is work or not."""
    Worker(table.harness.stores, [table.row], WorkerOptions(stages=stages, for_s=for_s)).run()


FIGURES: Mapping[str, Group] = {"requests": requests, "peers": peers, "folder": folder, "mirror": mirror.measure}
