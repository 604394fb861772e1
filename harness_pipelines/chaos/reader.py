"""The reader, a separate process: it reads every table again and again and checks each read against the producer's log.

After each one it reads an explicit version, the head or one before it: the rows must be the same for ever. Sends the
parent one line per round: what it saw, what was wrong with it, or why there was none.
"""

from __future__ import annotations

import hashlib
import random
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.chaos.content import COORDINATES, READ, subjects_of
from harness_pipelines.chaos.processes import stop_with_parent, tell
from harness_pipelines.chaos.producer import journal_of
from harness_pipelines.chaos.promotion import promotions_of
from harness_pipelines.chaos.truth import Truth
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.protocol.reading.plan import ReadPlan, TailPart
from harness_pipelines.protocol.versions import VersionGone
from harness_pipelines.read.tail import read_tail
from harness_pipelines.read.union import read_arrow
from harness_pipelines.show.logs import configure_logging

REST_S = {"arrow": 0.4, "spark": 6.0, "served": 0.6}
LEASES = {"spark": timedelta(minutes=10)}  #: it is not renewed while Spark reads
REST_SHARE = 2.0  #: a reader rests twice as long as its read took: the machine has other work
AWAY_S = 0.3
COVER_S = 600.0  #: a record may be readable long before the producer hears that it is
REMEMBERED_MAX = 4  #: versions of a table that are read again


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """One read state: version, and per partition `stream_hi` and the end of what is read."""

    version: int
    stream: Mapping[int, int]
    buffer: Mapping[int, int]  #: of a table without a buffer: the end of its tail

    @classmethod
    def of(cls, plan: ReadPlan) -> Cut:
        ends = {p: b.buffer_hi for p, b in plan.bounds.items()}
        if plan.tail is not None:
            ends |= plan.tail.high
        return cls(version=plan.version, stream={p: b.stream_hi for p, b in plan.bounds.items()}, buffer=ends)

    def older_than(self, other: Cut) -> bool:
        """Return whether this state is behind *other*. The end of a read never falls; `stream_hi` falls in a revert."""
        behind = [self.version < other.version]
        behind += [self.buffer.get(p, -1) < high for p, high in other.buffer.items()]
        if self.version == other.version:
            behind += [self.stream.get(p, -1) < high for p, high in other.stream.items()]
        return any(behind)


def read_by_arrow(table: hp.Table, plan: ReadPlan, *, lease: timedelta | None = None) -> pa.Table:
    stores = table.harness.stores

    def check_lease() -> None:
        stores.leases.renew(plan.lease_id, lease=lease or timedelta(seconds=table.spec.retention.lease))

    def tail_rows(part: TailPart) -> pa.Table:
        return read_tail(stores, table.row, part)

    return read_arrow(plan, stores, columns=READ, check_lease=check_lease, tail_rows=tail_rows).rows


def read_by_spark(table: hp.Table, plan: ReadPlan) -> pa.Table:
    """Raises: what Spark raises, also when its server is away; the next read opens another session."""
    session = table.harness.stores.spark()
    try:
        return table.to_spark(session, columns=READ, plan=plan).toArrow()
    except Exception:  # whatever it was, it is raised again
        table.harness.stores.spark_sessions.forget(session)
        raise


ENGINES = {"arrow": read_by_arrow, "spark": read_by_spark}


def fingerprint(rows: pa.Table) -> str:
    """The same for the same rows, in whatever order they come."""
    columns = [np.asarray(rows.column(name).to_numpy(), np.int64) for name in (*COORDINATES, "id")]
    order = np.lexsort(columns[::-1])
    return hashlib.blake2b(b"".join(column[order].tobytes() for column in columns)).hexdigest()


@dataclass(slots=True, kw_only=True)
class Watched:
    """A table as one reader has seen it so far."""

    name: str
    truth: Truth
    newest: Cut | None = None
    promotions: int = 0  #: before *newest* was read
    remembered: dict[int, str] = field(default_factory=dict)  #: {version: fingerprint of its rows, once it was read}


class Reader:
    """Reads of one engine; every one must be exactly its cut, and none may be older than the one before."""

    def __init__(
        self,
        harness: hp.Harness,
        watched: Iterable[Watched],
        *,
        engine: str,
        stopping: threading.Event,
        behind_s: float = 0.0,
    ) -> None:
        """*behind_s*: a read shows what was there so long before it began."""
        self._harness, self._watched, self._engine = harness, list(watched), engine
        self._stopping, self._behind_s = stopping, behind_s
        self._dice = random.Random(engine)

    def run(self) -> None:
        while not self._stopping.is_set():
            for one in self._watched:
                began = time.monotonic()
                told = self._told(one)
                tell({"table": one.name, "began": began - self._behind_s, "ended": time.monotonic(), **told})
                took = time.monotonic() - began
                self._stopping.wait(max(REST_S[self._engine], REST_SHARE * took) if "highs" in told else AWAY_S)
                if self._stopping.is_set():
                    return

    def _told(self, one: Watched) -> dict[str, Any]:
        try:
            return self._once(one)
        except HarnessError as error:
            kind = "defect" if error.recovery is Recovery.NEVER else "unavailable"
            return {kind: f"{type(error).__name__}: {error}"}
        except Exception as error:  # an error without a name is a finding
            return {"unnamed": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}

    def _once(self, one: Watched) -> dict[str, Any]:
        table = self._harness.table(one.name)
        cut, rows = self._head(table)
        seen_at = time.monotonic()
        if not self._await_cover(one.truth, cut):
            return {"unavailable": "the run ended before the producer heard of all records of this read"}
        verdict = one.truth.judge(rows, cut.buffer)
        if (promotions := promotions_of(one.truth.path.parent)) > one.promotions:  # the ledger may have forgotten it
            one.promotions, one.newest = promotions, None
        wrong = [] if verdict.ok else [f"version {cut.version}: {verdict}"]
        if one.newest is not None and cut.older_than(one.newest):
            wrong.append(f"an older state than before: {cut}, before it {one.newest}")
        one.newest = cut
        changed = self._again(table, one, head=cut.version)
        told: dict[str, Any] = {"seen_at": seen_at, "rows": rows.num_rows}
        told["highs"] = {str(p): offset for p, offset in cut.buffer.items()}
        told["lake"] = {str(p): offset for p, offset in cut.stream.items()}
        return told | ({"wrong": wrong} if wrong else {}) | ({"unrepeatable": changed} if changed else {})

    def _head(self, table: hp.Table) -> tuple[Cut, pa.Table]:
        """What a read shows now."""
        return self._read(table, at=None)

    def _read(self, table: hp.Table, *, at: int | None) -> tuple[Cut, pa.Table]:
        plan = table.plan(at=at, lease=LEASES.get(self._engine))
        try:
            return Cut.of(plan), ENGINES[self._engine](table, plan)
        finally:
            table.release(plan)

    def _again(self, table: hp.Table, one: Watched, *, head: int) -> str | None:
        """Read one explicit version, the head or one that was it before; says what has changed since it was last read.

        Of the head too: an explicit version has its own bounds, whatever is in the buffer by now.
        """
        one.remembered.setdefault(head, "")
        version = self._dice.choice(list(one.remembered))
        try:
            cut, rows = self._read(table, at=version)
        except VersionGone:
            one.remembered.pop(version, None)
            return None
        found, before = fingerprint(rows), one.remembered[version]
        one.remembered[version] = found
        while len(one.remembered) > REMEMBERED_MAX:
            one.remembered.pop(next(iter(one.remembered)))
        if before in ("", found):
            return None
        return f"version {version} has other rows than before: {rows.num_rows} now, below {dict(cut.buffer)}"

    def _await_cover(self, truth: Truth, cut: Cut) -> bool:
        """Wait until the producer's log reaches the cut. A record that it never hears of is foreign."""
        deadline = time.monotonic() + COVER_S
        truth.refresh()
        while not truth.covers(cut.buffer) and time.monotonic() < deadline:
            if self._stopping.wait(0.02):
                return False
            truth.refresh()
        return True


def watched_in(folder: Path, first: str, crowd: int) -> list[Watched]:
    """The tables of a run whose producer writes its journals to *folder*."""
    return [Watched(name=s.name(first), truth=Truth(journal_of(folder, s), s)) for s in subjects_of(crowd)]


def main() -> None:
    engine, first, folder, crowd = sys.argv[1:]
    stopping = stop_with_parent()
    configure_logging()
    with hp.connect() as harness:
        Reader(harness, watched_in(Path(folder), first, int(crowd)), engine=engine, stopping=stopping).run()


if __name__ == "__main__":
    main()
