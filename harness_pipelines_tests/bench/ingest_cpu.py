"""Where ingest's time goes: one thread over a backlog, each step's wall and CPU time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any
from unittest.mock import patch

from adbc_driver_manager.dbapi import Cursor

from harness_pipelines.buffers.postgres import writer
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.sources.kafka.reader import KafkaReader
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.ingest.ingest import IngestLoop
from harness_pipelines_tests.bench.base import Run
from harness_pipelines_tests.bench.records import PARTITIONS

#: What is timed: owner, name of the function, name of the step. Steps inside others are subtracted from them.
_STEPS: tuple[tuple[Any, str, str], ...] = (
    (KafkaReader, "poll", "poll"),
    (ingest, "decode_batch", "decode"),
    (writer, "to_copy", "to_copy"),
    (Cursor, "adbc_ingest", "copy"),
    (writer.SegmentWriter, "_commit", "commit"),
)


def breakdown(run: Run, topic: str, *, rows: int) -> dict[str, float]:
    """Seconds per million rows of each step: wall, CPU of the thread, and CPU of librdkafka's threads."""
    table = run.table(topic)
    stores = run.harness.stores
    claim = stores.ledger.claim(
        table.row, Stage.INGEST, shard=0, holder="00000000-0000-0000-0000-00000000bec1", lease=timedelta(minutes=5)
    )
    assert claim is not None
    writer = stores.buffer_writer(table.row, lambda: claim)
    loop = IngestLoop(table.row, stores.log, segments=stores.segments, writer=writer)
    spent: Counter[str] = Counter()
    patches = [patch.object(owner, name, _timed(getattr(owner, name), step, spent)) for owner, name, step in _STEPS]
    try:
        loop.start(range(PARTITIONS))
        for one in patches:
            one.start()
        wall, thread, process, done = time.perf_counter(), time.thread_time(), time.process_time(), 0
        while done < rows:
            done += loop.step()
        spent["all.wall"] = time.perf_counter() - wall  # type: ignore[assignment]  # Counter holds seconds here
        spent["all.cpu"] = time.thread_time() - thread  # type: ignore[assignment]
        spent["librdkafka.cpu"] = time.process_time() - process - spent["all.cpu"]  # type: ignore[assignment]
    finally:
        for one in patches:
            one.stop()
        loop.close()
        stores.ledger.release(claim)
    return {name: seconds / done * 1e6 for name, seconds in sorted(spent.items())}


def _timed(function: Callable[..., Any], step: str, spent: Counter[str]) -> Callable[..., Any]:
    @wraps(function)
    def timed(*arguments: Any, **named: Any) -> Any:
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return function(*arguments, **named)
        finally:
            spent[f"{step}.wall"] += time.perf_counter() - wall  # type: ignore[assignment]
            spent[f"{step}.cpu"] += time.thread_time() - cpu  # type: ignore[assignment]

    return timed
