"""Other programs that write many topics to as many Iceberg tables, with the records and rates of the busy tables.

Each brings records to the lake every minute, as a worker does by default. Readers of the harness see its buffer too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.connect import ConnectSink
from harness_pipelines_tests.bench.peer import CATALOG, NAMESPACE, Peer, PeerTable
from harness_pipelines_tests.bench.scaling.costs import Cost, Spent
from harness_pipelines_tests.bench.scaling.producer import ManyProducer
from harness_pipelines_tests.bench.scaling.tables import RATE, busy_cost, many

EVERY_S, QUICK_EVERY_S = 60, 10
QUERIES = 20  #: of Spark, each of one topic; more do not fit beside the other peers
WRITES_AT_ONCE = 4


def measure(run: Run) -> Sequence[Figure]:
    """CPU per million records and memory of each peer, to those of the harness in the same run."""
    ours = busy_cost(run)
    ours.note(run, "peers.ours")
    count, _ = many(run)
    found = {
        "connect": _of_connect(run, count),
        "spark": _of_spark(run, count),
        "spark_queries": _of_queries(run, min(count, QUERIES)),
    }
    figures = []
    for name, cost in found.items():
        cost.note(run, f"peers.{name}")
        for what, value in (("cpu", cost.cpu_s / ours.cpu_s), ("rss", cost.rss_bytes / ours.rss_bytes)):
            figures.append(Figure(figure=f"peers.{name}_{what}_to_ours", value=value, unit="x", goal=1.0, sense=">="))
    return figures


class ForEachBatch(Peer):
    """One streaming query of Spark over all topics, which writes the rows of each batch topic by topic."""

    def _start_to_tables(self, rows: Any) -> Any:
        tables = {t: f"{CATALOG}.{NAMESPACE}.{name}" for t, name in zip(self.topics, self._names, strict=True)}
        return self._writer(rows).foreachBatch(_writing(tables, WRITES_AT_ONCE)).start()


def _writing(tables: Mapping[str, str], at_once: int) -> Any:
    """The function of each batch, which runs in a process of Spark: it names nothing of this module."""

    def write(batch: Any, _number: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        batch.persist()
        topics = [row["topic"] for row in batch.select("topic").distinct().collect()]

        def append(topic: str) -> None:
            batch.where(batch["topic"] == topic).drop("topic").writeTo(tables[topic]).append()

        with ThreadPoolExecutor(at_once) as threads:
            list(threads.map(append, topics))
        batch.unpersist()

    return write


def _of_connect(run: Run, count: int) -> Cost:
    topics = _topics(run, count)
    run.say(f"peers: Kafka Connect's sink, {count} topics")
    with ConnectSink(run, *topics, commit_s=run.size(EVERY_S, QUICK_EVERY_S)) as sink:
        sink.begin()
        sink.await_running()
        return _cost(run, [sink], topics, Spent(run, sink.pid, by_spark=False))


def _of_spark(run: Run, count: int) -> Cost:
    topics = _topics(run, count)
    run.say(f"peers: one query of Spark for {count} topics")
    every_s = run.size(EVERY_S, QUICK_EVERY_S)
    with ForEachBatch(run.harness, *topics, trigger_s=every_s, start=None) as query:
        query.begin()
        query.await_running()
        return _cost(run, [query], topics, Spent(run))


def _of_queries(run: Run, count: int) -> Cost:
    topics = _topics(run, count)
    run.say(f"peers: {count} queries of Spark, each of one topic")
    every_s = run.size(EVERY_S, QUICK_EVERY_S)
    with ExitStack() as opened:
        queries = [opened.enter_context(Peer(run.harness, topic, trigger_s=every_s, start=None)) for topic in topics]
        for query in queries:
            query.begin()
        for query in queries:
            query.await_running()
        return _cost(run, queries, topics, Spent(run))


def _cost(run: Run, peers: Sequence[PeerTable], topics: Sequence[str], spent: Spent) -> Cost:
    """What *peers* spend until all records of *topics* are in their tables."""
    _, seconds = many(run)
    began = time.monotonic()
    with ManyProducer(run.harness.settings, dict.fromkeys(topics, float(RATE)), seconds=seconds) as producer:
        log = producer.log()
    produced_s = time.monotonic() - began
    rows = {topic: len(one.offsets) for topic, one in log.items()}
    for peer in peers:
        peer.await_rows(sum(rows[topic] for topic in peer.topics))
    run.say(f"peers: all is written {time.monotonic() - began - produced_s:.0f} s after the last record")
    return spent.until_now(sum(rows.values()))


def _topics(run: Run, count: int) -> Sequence[str]:
    """New ones that are named as tables are: the sink finds the table of a record by its topic."""
    return [run.topic_of_table(NAMESPACE) for _ in range(count)]
