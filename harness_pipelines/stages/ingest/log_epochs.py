"""Check that the log still holds the records that the table has read; offsets alone cannot show it.

An unclean leader election may cut records off, and new ones are then given their offsets: the log ends above the
position again, and nothing looks wrong. But every leader writes its epoch into its records, and a later leader has a
larger one. A log in which the last record below the position has a larger epoch than the table read there was cut below
it. A consumer that runs has librdkafka ask the broker (OffsetsForLeaderEpoch); to one that begins it does not offer
that, so the record itself is read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.errors import LogRewritten
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import Log, LogReader
from harness_pipelines.protocol.bounds import OffsetRange

COMPARE_S = 30.0  #: how long the records may take to come
POLL_S = 0.5


class LogNotCompared(TryAgain):
    """Kafka did not return the record that the table read last."""


def check_epochs(table: TableRow, log: Log, read: Mapping[int, tuple[int, int | None]]) -> None:
    """Compare the log with what was *read* of it: by partition the position, and the leader epoch of the last record.

    Brokers that write no epochs allow no check. Raises: LogRewritten (NEVER); LogNotCompared, and what
    `LogReader.poll` does.
    """
    known = {p: (position, epoch) for p, (position, epoch) in read.items() if epoch is not None}
    if not known:
        return
    topic = table.spec.topic
    marks = log.watermarks(topic, known)
    for partition, (position, epoch) in sorted(known.items()):
        found = _epoch_below(table, log, partition, low=marks[partition].low, high=position)
        if found is not None and epoch is not None and found > epoch:
            raise LogRewritten(topic, partition=partition, position=position, expected=epoch, found=found)


def epochs_of(table: TableRow, log: Log, ranges: Sequence[OffsetRange]) -> dict[int, int]:
    """By partition the epoch of the last record of *ranges*, where there is one. Raises: as `check_epochs`."""
    found = {r.partition: _epoch_below(table, log, r.partition, low=r.low, high=r.high) for r in ranges}
    return {partition: epoch for partition, epoch in found.items() if epoch is not None}


def _epoch_below(table: TableRow, log: Log, partition: int, *, low: int, high: int) -> int | None:
    """The epoch of the last record in ``[low, high)``, if there is any: offsets have gaps, so it is looked for."""
    end, back = high, 1
    while end > low:
        begin = max(low, high - back)
        with log.reader(table.spec.topic, {partition: begin}, identity=table.identity) as reader:
            found = _last_epoch(table, reader, partition, end=end)
        if found is not None:
            return found
        end, back = begin, back * 4
    return None


def _last_epoch(table: TableRow, reader: LogReader, partition: int, *, end: int) -> int | None:
    """The epoch of the last record that *reader* gives below *end*; one by one, a batch tells its last one's alone."""
    epoch: int | None = None
    until = time.monotonic() + COMPARE_S
    while reader.positions[partition] < end:
        if time.monotonic() > until:
            raise LogNotCompared(
                f"{table.name}: partition {partition} gave no record below offset {end} within {COMPARE_S:.0f} s, so "
                "it is not known whether the log is still the one that was read; nothing was written, it is tried again"
            )
        for batch in reader.poll(1, POLL_S):
            if len(batch) and batch.offsets[-1] < end:
                epoch = batch.leader_epoch
    return epoch
