"""A reader, a process of its own: whole union reads again and again, each judged by the producer's log.

Sends the parent one line per read: what it saw, what was wrong with it, or why there was none.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.cli.logs import configure_logging
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.plan import ReadPlan
from harness_pipelines.read.arrow import read_arrow
from harness_pipelines_tests.chaos.child import stop_with_parent, tell
from harness_pipelines_tests.chaos.content import READ
from harness_pipelines_tests.chaos.truth import Truth

REST_S = {"arrow": 0.1, "spark": 8.0}
LEASES = {"spark": timedelta(minutes=10)}  #: nobody renews it while Spark reads
REST_SHARE = 1.0  #: a reader rests as long as its read took: the machine has other work
AWAY_S = 0.3
COVER_S = 600.0  #: a record may be readable long before the producer hears that it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One read state: version, and per partition `stream_hi` and `buffer_hi`."""

    version: int
    stream: Mapping[int, int]
    buffer: Mapping[int, int]

    @classmethod
    def of(cls, plan: ReadPlan) -> Cut:
        return cls(
            version=plan.version,
            stream={p: b.stream_hi for p, b in plan.bounds.items()},
            buffer={p: b.buffer_hi for p, b in plan.bounds.items()},
        )

    def older_than(self, other: Cut) -> bool:
        """Whether any part of this state is behind *other* (no revert happens in a chaos run)."""
        behind = [self.version < other.version]
        for mine, theirs in ((self.stream, other.stream), (self.buffer, other.buffer)):
            behind += [mine.get(p, -1) < high for p, high in theirs.items()]
        return any(behind)


def read_by_arrow(table: hp.Table, plan: ReadPlan) -> pa.Table:
    def check_lease() -> None:
        table.harness.stores.leases.renew(plan.lease_id, lease=timedelta(seconds=table.spec.retention.lease))

    return read_arrow(plan, table.harness.stores, columns=READ, check_lease=check_lease).rows


def read_by_spark(table: hp.Table, plan: ReadPlan) -> pa.Table:
    """Raises: what Spark raises, also when its server is away; the next read opens a session of its own."""
    session = table.harness.stores.spark()
    try:
        return table.to_spark(session, columns=READ, plan=plan).toArrow()
    except Exception:  # whatever it was, it is raised again
        table.harness.stores.spark_sessions.forget(session)
        raise


ENGINES = {"arrow": read_by_arrow, "spark": read_by_spark}


class Reader:
    """Reads of one engine; every one must be exactly its cut, and none may be older than the one before."""

    def __init__(self, harness: hp.Harness, name: str, *, engine: str, truth: Truth, stopping: threading.Event) -> None:
        self._harness, self._name, self._engine = harness, name, engine
        self._truth, self._stopping = truth, stopping
        self._table: hp.Table | None = None
        self._newest: Cut | None = None

    def run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            rest_s = AWAY_S
            try:
                told = self._once()
                rest_s = max(REST_S[self._engine], REST_SHARE * (time.monotonic() - began))
            except HarnessError as error:
                kind = "defect" if error.recovery is Recovery.NEVER else "unavailable"
                told = {kind: f"{type(error).__name__}: {error}"}
            except Exception as error:  # told to the judge, to whom an error without a name is a finding
                told = {"unnamed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            tell({"began": began, "ended": time.monotonic(), **told})
            self._stopping.wait(rest_s)

    def _once(self) -> dict[str, Any]:
        table = self._table = self._table or self._harness.table(self._name)
        plan = table.plan(lease=LEASES.get(self._engine))
        try:
            rows = ENGINES[self._engine](table, plan)
            seen_at = time.monotonic()
        finally:
            table.release(plan)
        cut, before = Cut.of(plan), self._newest
        if not self._await_cover(cut):
            return {"unavailable": "the run ended before the producer heard of all records of this read"}
        verdict = self._truth.judge(rows, cut.buffer)
        wrong = [] if verdict.ok else [f"version {cut.version}: {verdict}"]
        if before is not None and cut.older_than(before):
            wrong.append(f"an older state than before: {cut}, before it {before}")
        self._newest = cut
        return {"seen_at": seen_at, "rows": rows.num_rows, "highs": {str(p): o for p, o in cut.buffer.items()}} | (
            {"wrong": wrong} if wrong else {}
        )

    def _await_cover(self, cut: Cut) -> bool:
        """Wait until the producer's log reaches the cut. A record that it never hears of is foreign."""
        deadline = time.monotonic() + COVER_S
        self._truth.refresh()
        while not self._truth.covers(cut.buffer) and time.monotonic() < deadline:
            if self._stopping.wait(0.02):
                return False
            self._truth.refresh()
        return True


def main() -> None:
    engine, name, journal = sys.argv[1:]
    stopping = stop_with_parent()
    configure_logging()
    with hp.connect() as harness:
        Reader(harness, name, engine=engine, truth=Truth(Path(journal)), stopping=stopping).run()


if __name__ == "__main__":
    main()
