"""Reads of a table by an engine while its data moves, judged by the producer's log: each is a cut, none goes back."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

import harness_pipelines as hp
from harness_pipelines.protocol.changes.reverts import RevertWaits
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

SOON: Mapping[str, Any] = {"tier": {"max_age": "1s"}, "freshness": {"lake": "2s"}}
EVERY_S = 0.2  #: for at most so long a cut is given out after its look: 100 ms, or a 5,000th of `--keep` (15 minutes)
STAGES = frozenset({Stage.INGEST, Stage.TIER, Stage.COMPACT, Stage.OTREE})
Read = Callable[[str], pa.Table]  #: rows of a table by its name, through the catalog
Row = tuple[Any, ...]


def rows_of(found: pa.Table, columns: Sequence[str]) -> Counter[Row]:
    return Counter(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


@contextmanager
def moving(rig: TableRig) -> Iterator[None]:
    """A worker moves the table, and a producer sends until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.2):
            rig.produce(15)

    with rig.working(STAGES):
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            yield
        finally:
            ended.set()
            producer.join()


def ends_of(rig: TableRig) -> Mapping[int, int]:
    """Where the records end, by partition."""
    return {partition: high for partition, (_, high) in rig.status().items()}


def moved(rig: TableRig, before: Mapping[int, int]) -> Mapping[int, int]:
    """Wait until records came after *before*, and return the new ends, which a read that begins now must show."""
    wait_until(lambda: ends_of(rig) != before, f"{rig.name} moves")
    ends, due = ends_of(rig), time.monotonic() + EVERY_S
    wait_until(lambda: time.monotonic() >= due, "no cut from before these ends is given out", every_s=EVERY_S / 10)
    return ends


def reverted(rig: TableRig) -> bool:
    """Take back the last version; False while there is none, or a move runs."""
    head = rig.stores.ledger.head(rig.table.row).version
    if head < 2:
        return False
    try:
        return revert_table(rig.stores, rig.table.row, to=head - 1).version > head
    except RevertWaits:
        return False


def changed(rig: TableRig, number: int, times: int) -> None:
    """What people do to a table meanwhile."""
    if number == times // 3:
        wait_until(lambda: reverted(rig), "a revert finds no move under way", every_s=0.1)
    if number == 2 * times // 3:
        rig.table.evolve(ColumnChanges(add=(Column(name="more", type=parse_type("int")),)))


def collected(
    rig: TableRig, read: Read, columns: Sequence[str], *, times: int
) -> list[tuple[Mapping[int, int], Counter[Row]]]:
    """Read a table that moves; the rows of each read, with the ends of the log that it must show at least."""
    reads, at = list[tuple[Mapping[int, int], Counter[Row]]](), dict[int, int]()
    for number in range(times):
        changed(rig, number, times)
        at = dict(moved(rig, at))
        reads.append((at, rows_of(read(rig.name), columns)))
    return reads


def read_append(harness: hp.Harness, kafka: KafkaRig, read: Read, *, times: int) -> None:
    """Raises: AssertionError for a read that is no cut, or shows less than was there or than the one before it."""
    rig = TableRig(harness, kafka, views="both", layout={"columns": ["n"], "regions": 4}, **SOON)
    columns = (*COORDINATES, "id")
    with moving(rig):
        reads = collected(rig, read, columns, times=times)
        wait_until(lambda: rig.stores.ledger.head(rig.table.row).batch is not None, "something was merged")
        reads.append((reads[-1][0], rows_of(read(rig.name), columns)))
    truth, before = rig.truth, {0: 0, 1: 0}
    for number, (low, found) in enumerate(reads):
        assert not found - truth, f"read {number} has rows that nobody produced, or doubled ones"
        ends = {p: 1 + max((row[1] for row in found if row[0] == p), default=-1) for p in before}
        assert found.total() == sum(ends.values()), f"read {number} has holes: {ends}"
        assert all(ends[p] >= before[p] for p in ends), f"read {number} goes back: {before}, {ends}"
        assert all(ends[p] >= low.get(p, 0) for p in ends), f"read {number} is stale: {low}, {ends}"
        before = ends
    assert len({found.total() for _, found in reads}) > times // 3, "the data did not move"


def read_keyed(harness: hp.Harness, kafka: KafkaRig, read: Read, *, times: int) -> None:
    """Raises: AssertionError for a read that is no state of the log, or of one before what was there or was read."""
    rig = KeyedRig(harness, kafka, **SOON)
    columns = ("id", "region", "n", "s", *COORDINATES)
    rig.produce(30)
    rig.merge_all()
    with moving(rig):
        reads = collected(rig, read, columns, times=times)

    def state(partition: int, end: int) -> set[Row]:
        """Without the column that was added."""
        return {(*row[:4], *row[-2:]) for row in rig.state({partition: end}).values()}

    ends = {p: 1 + max(at) for p, at in rig.kafka.acked(rig.topic).items() if at}
    for partition, end in ends.items():
        before = 0
        for number, (there, found) in enumerate(reads):
            mine = {row for row in found if row[-2] == partition}
            low = max([before, there.get(partition, 0), *(row[-1] + 1 for row in mine)])
            found_at = next((one for one in range(low, end + 1) if state(partition, one) == mine), None)
            assert found_at is not None, f"read {number} is no state of partition {partition} at {low} or later"
            before = found_at
    assert all(found.total() == len(found) for _, found in reads), "a row is there twice"
    assert len({frozenset(found) for _, found in reads}) > times // 3, "the data did not move"
