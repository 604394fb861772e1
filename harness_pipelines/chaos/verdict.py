"""The verdict over a chaos run: what the tables hold in the end, against the producer's own log."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.chaos.content import COORDINATES, LATER, MAIN
from harness_pipelines.chaos.damage import files_of
from harness_pipelines.chaos.promotion import promotions_of
from harness_pipelines.chaos.reader import ENGINES, LEASES, Cut
from harness_pipelines.chaos.result import Result
from harness_pipelines.chaos.schedule import Part
from harness_pipelines.chaos.truth import Truth
from harness_pipelines.chaos.world import World
from harness_pipelines.protocol.lake.history import HISTORY_LOST, PROMOTED

ANSWER_S = 60.0  #: for a record of Kafka
Find = Callable[[str], None]


def judge(world: World, truths: Mapping[str, Truth], result: Result, find: Find) -> None:
    """Compare everything with the producer's log, by each engine that runs; audit and fsck must agree."""
    for name, truth in truths.items():
        table = world.harness.table(name)
        _Judge(table, truth, result, lambda what, name=name: find(f"{name}: {what}")).judge()  # type: ignore[misc]
    report = fsck(world.harness.stores, list(truths)).to_json()
    if not report["ok"]:
        find(f"fsck found faults: {str(report)[:2000]}")


class _Judge:
    """Of one table."""

    def __init__(self, table: hp.Table, truth: Truth, result: Result, find: Find) -> None:
        self._table, self._truth, self._result, self._find = table, truth, result, find

    def judge(self) -> None:
        truth, result = self._truth, self._result
        rows, *_ = [self._read(one) for one in ENGINES if one != "spark" or result.options.has_spark]
        for gap in truth.gaps():
            self._find(f"the broker: {gap}")
        self._repeated()
        self._held(rows)
        if truth.subject is MAIN:
            self._evolved()
        self._told_of_promotions()
        report = self._table.audit(full=True).to_json()
        if not report["ok"]:
            self._find(f"the audit found faults: {str(report)[:2000]}")
        result.files.update(self._engines())
        result.produced += truth.acked
        result.moves += sum(one.event == "published" for one in self._table.events())

    def _engines(self) -> Iterator[str]:
        """Which engine wrote each file of the newest version; Arrow's have its name in theirs."""
        plan = self._table.plan()
        try:
            for path in files_of(plan, Part.DATA):
                yield "arrow" if path.endswith("-arrow.parquet") else "spark"
        finally:
            self._table.release(plan)

    def _read(self, engine: str) -> pa.Table:
        result, truth = self._result, self._truth
        plan = self._table.plan(lease=LEASES.get(engine))
        try:
            rows = ENGINES[engine](self._table, plan)
        finally:
            self._table.release(plan)
        verdict, ends = truth.judge(rows, truth.highs), Cut.of(plan).buffer
        result.reads += 1
        result.lost, result.doubled = max(result.lost, verdict.lost), max(result.doubled, verdict.doubled)
        if not verdict.ok:
            result.wrong_reads += 1
            self._find(f"the last read, by {engine}: {verdict}")
        if any(ends.get(p) != high for p, high in truth.highs.items()):
            self._find(f"it ends at {ends}, the producer's log at {truth.highs}")
        return rows

    def _held(self, rows: pa.Table) -> None:
        """Check that a record that cannot be a row is quarantined, and that any other one is a row or quarantined."""
        with self._table.harness.stores.database.session() as connection:
            found = connection.execute(
                "SELECT partition, \"offset\" FROM harness.quarantine WHERE table_id = %s AND state = 'held'",
                [self._table.row.table_id],
            ).fetchall()
        held = {(row["partition"], row["offset"]) for row in found}
        shown = set(zip(*(rows.column(name).to_pylist() for name in COORDINATES), strict=True))
        misfits, early = self._truth.misfits, self._truth.early
        self._result.quarantined += len(held)
        for what, odd in (
            ("misfits that are not held", misfits - held),
            ("held records that are no misfits", held - misfits - early),
            ("held records that are rows too", held & shown),
            ("records that are neither held nor rows", early - held - shown),
        ):
            if odd:
                self._find(f"{len(odd)} {what}, such as {sorted(odd)[:5]}")

    def _repeated(self) -> None:
        """Check that Kafka itself has each first copy that its producer did not hear of."""
        for (partition, offset), number in self._truth.repeated.items():
            wanted = self._truth.subject.value(number if number >= 0 else -1 - number)
            with self._table.harness.stores.log.reader(self._truth.subject.topic, {partition: offset}) as reader:
                [batch] = reader.poll(1, ANSWER_S)
            if (batch.offsets[0], batch.values[0]) != (offset, wanted):
                self._find(f"partition {partition}, offset {offset}: {batch.values[0]!r} was never sent")
        self._result.repeated += len(self._truth.repeated)

    def _told_of_promotions(self) -> None:
        """Each promotion has its own event, whether or not commits were lost with it."""
        told = [one.event for one in self._table.events() if one.event in (HISTORY_LOST, PROMOTED)]
        self._result.history_lost += told.count(HISTORY_LOST)
        if len(told) != (wanted := promotions_of(self._truth.path.parent)):
            self._find(f"there were {wanted} promotions, its events tell of {told}")

    def _evolved(self) -> None:
        """A column that was added has the records' values from one offset of each partition on."""
        there = [name for name in LATER if name in [column.name for column in self._table.spec.columns]]
        rows = self._table.read(columns=["id", *COORDINATES, *there]).sort_by(
            [(name, "ascending") for name in COORDINATES]
        )
        partition, ids = rows.column(COORDINATES[0]).to_pylist(), rows.column("id").to_pylist()
        for name in there:
            begun: set[int] = set()
            for p, number, value in zip(partition, ids, rows.column(name).to_pylist(), strict=True):
                if value is None and p not in begun:
                    continue
                begun.add(p)
                if value != number:
                    self._find(f"record {number} of partition {p} has {value!r} in the added column {name}")
                    return
