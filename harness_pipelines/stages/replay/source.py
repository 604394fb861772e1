"""Source of a range replay: Kafka, and below its log start the bytes that the table keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.access import HasCorrections, HasLakeReads, HasLog, HasTables
from harness_pipelines.ports.corrections import HeldRecord
from harness_pipelines.ports.errors import RecordsLost
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.ports.source import Headers, PartitionBatch
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import RangeRefused, Wanted
from harness_pipelines.stages.replay.views import stored_rows

if TYPE_CHECKING:
    from harness_pipelines.spec.columns import Column

RECORDS_MAX = 100_000  #: of one replay: they are held in memory, and are one commit
BYTES_MAX = 256 * 2**20  #: of their keys and values
POLL_RECORDS = 16_384
SILENCE_S_MAX = 30.0


class Ports(HasCorrections, HasLakeReads, HasLog, HasTables, Protocol):
    """The ports that it uses."""


class ReplayStalled(TryAgain):
    """Kafka reported records but did not deliver them in time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Records:
    """Records of one partition, by offset; all sequences have the same length."""

    partition: int
    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]  #: -1: the log does not say
    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers | None]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def bytes(self) -> int:
        """Of keys and values."""
        return sum(len(part or b"") for parts in (self.values, self.keys) for part in parts)

    def slice(self, first: int, count: int) -> Records:
        """A number of them, from *first* on."""
        part = slice(first, first + count)
        return Records(
            partition=self.partition,
            offsets=self.offsets[part],
            timestamps_ms=self.timestamps_ms[part],
            values=self.values[part],
            keys=self.keys[part],
            headers=self.headers[part],
        )

    def refused(self, at: int, *, reason: str, detail: str) -> RefusedRecord:
        """One of them, as quarantine holds it."""
        return RefusedRecord(
            partition=self.partition,
            offset=int(self.offsets[at]),
            reason=reason,
            detail=detail,
            key=self.keys[at],
            value=self.values[at],
            headers=self.headers[at] or (),
            kafka_ms=int(self.timestamps_ms[at]),
        )

    @classmethod
    def of(cls, partition: int, parts: Sequence[Records]) -> Records:
        """All of *parts*, which follow each other."""
        none = np.empty(0, np.int64)
        return cls(
            partition=partition,
            offsets=np.concatenate([none, *(part.offsets for part in parts)]),
            timestamps_ms=np.concatenate([none, *(part.timestamps_ms for part in parts)]),
            values=[value for part in parts for value in part.values],
            keys=[key for part in parts for key in part.keys],
            headers=[headers for part in parts for headers in part.headers],
        )


def records_of(stores: Ports, table: TableRow, wanted: OffsetRange) -> Records:
    """The records of *wanted*. Raises: RangeRefused where they cannot be had, or are too many; TryAgain."""
    partition = wanted.partition
    log_start = stores.log.watermarks(table.spec.topic, [partition])[partition].low
    parts: list[Records] = []
    if wanted.low < log_start:
        dropped = OffsetRange(partition=partition, low=wanted.low, high=min(wanted.high, log_start))
        parts.append(_kept(stores, table, dropped))
    if (low := max(wanted.low, log_start)) < wanted.high:
        for part in _from_kafka(stores, table, OffsetRange(partition=partition, low=low, high=wanted.high)):
            parts.append(part)
            _check_few(table, wanted, parts)
    _check_few(table, wanted, parts)
    return Records.of(partition, parts)


def _check_few(table: TableRow, wanted: OffsetRange, parts: Sequence[Records]) -> None:
    """Raises: RangeRefused."""
    count, size = sum(map(len, parts)), sum(part.bytes for part in parts)
    if count <= RECORDS_MAX and size <= BYTES_MAX:
        return
    last = next(int(part.offsets[-1]) for part in reversed(parts) if len(part))
    # The offsets that were read and fill one replay; half of them, since others may be larger.
    span = last + 1 - wanted.low
    share = min(RECORDS_MAX / count, BYTES_MAX / max(size, 1))
    high = wanted.low + max(1, int(span * share / 2))
    raise RangeRefused(
        f"{table.name}: [{wanted.low}, {wanted.high}) of partition {wanted.partition} is too much for one replay: it "
        f"holds at most {RECORDS_MAX:,} records and {BYTES_MAX // 2**20} MB; nothing was changed. Cut it: `harness "
        f"replay {table.name} --partition {wanted.partition} --from {wanted.low} --to {high}` first, "
        f"then from {high} on"
    )


def _from_kafka(stores: Ports, table: TableRow, wanted: OffsetRange) -> Iterator[Records]:
    """Raises: ReplayStalled, RangeRefused when Kafka drops records meanwhile, and what the log raises."""
    partition = wanted.partition
    position, heard = wanted.low, time.monotonic()
    reader = stores.log.reader(table.spec.topic, {partition: position}, identity=table.identity)
    with reader:
        while position < wanted.high:
            try:
                batches = reader.poll(POLL_RECORDS, 0.5)
            except RecordsLost as lost:
                raise RangeRefused(f"{table.name}: {lost}; nothing was changed, repeat this") from lost
            for batch in batches:
                heard, position = time.monotonic(), batch.high
                yield _below(batch, wanted.high)
            if time.monotonic() - heard > SILENCE_S_MAX:
                raise ReplayStalled(
                    f"{table.name}: no record of partition {partition} from offset {position} for {SILENCE_S_MAX:g} s; "
                    "nothing was changed, run the replay again"
                )


def _below(batch: PartitionBatch, high: int) -> Records:
    end = int(np.searchsorted(batch.offsets, high))
    return Records(
        partition=batch.partition,
        offsets=batch.offsets[:end],
        timestamps_ms=batch.timestamps_ms[:end],
        values=batch.values[:end],
        keys=batch.keys[:end],
        headers=batch.headers[:end],
    )


# -- what the table keeps -----------------------------------------------------------------------------------


def _kept(stores: Ports, table: TableRow, wanted: OffsetRange) -> Records:
    """Records that Kafka has dropped: of the column with their bytes, and of quarantine. Raises: RangeRefused."""
    columns: dict[str, Column] = {c.source: c for c in table.spec.columns if c.source is not None}
    why = None
    if "raw_value" not in columns:
        why = "the table has no column `from: raw_value` that keeps their bytes"
    elif table.spec.key:
        why = "the table has a key, and the bytes of a deleted row are not kept"
    if why is not None:
        raise RangeRefused(
            f"{table.name}: Kafka has dropped the records of partition {wanted.partition} below {wanted.high}, and "
            f"{why}; nothing was changed. What is left can be replayed: --from {wanted.high}"
        )
    view = stores.tables.head(table).views
    rows = stored_rows(stores.lake_reads, table, view["stream" if "stream" in view else "batch"].metadata, wanted)
    if rows.num_rows > RECORDS_MAX:  # before they become Python's
        rows = rows.slice(0, RECORDS_MAX + 1)
    values = _bytes(rows[columns["raw_value"].name])
    keys = _bytes(rows[columns["raw_key"].name]) if "raw_key" in columns else [None] * rows.num_rows
    told = rows[columns["headers"].name].to_pylist() if "headers" in columns else [None] * rows.num_rows
    stamps = rows["_kafka_timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    known = [
        (offset, -1 if stamp is None else stamp, value, key, headers and [(h["key"], h["value"]) for h in headers])
        for offset, stamp, value, key, headers in zip(
            rows["_kafka_offset"].to_pylist(), stamps.to_pylist(), values, keys, told, strict=True
        )
    ]
    known += [
        (one.record.offset, one.kafka_ms, one.record.value, one.record.key, list(one.record.headers) or None)
        for one in _held(stores, table, wanted)
    ]
    known.sort(key=lambda record: record[0])
    return Records(
        partition=wanted.partition,
        offsets=np.array([record[0] for record in known], np.int64),
        timestamps_ms=np.array([record[1] for record in known], np.int64),
        values=[record[2] for record in known],
        keys=[record[3] for record in known],
        headers=[record[4] for record in known],
    )


def _held(stores: Ports, table: TableRow, wanted: OffsetRange) -> list[HeldRecord]:
    """Raises: RangeRefused."""
    corrections, found, size = stores.corrections(table), list[HeldRecord](), 0
    asked, after, below = (
        Wanted(partition=wanted.partition),
        (wanted.partition, wanted.low - 1),
        (wanted.partition, wanted.high),
    )
    while len(found) <= RECORDS_MAX and size <= BYTES_MAX:  # with more it is refused
        part = corrections.held(asked, after=after, below=below, limit=RECORDS_MAX)
        if not part:
            break
        found, after = found + part, part[-1].at
        size += sum(len(one.record.key or b"") + len(one.record.value or b"") for one in part)
    for one in found:
        if not one.whole:
            at = one.record.offset
            raise RangeRefused(
                f"{table.name}: of the quarantined record at offset {at} of partition {wanted.partition} only the "
                f"first bytes are kept, and Kafka has dropped it; nothing was changed. Replay what is before it (--to "
                f"{at}) and behind it (--from {at + 1})"
            )
    return found


def _bytes(column: pa.ChunkedArray) -> list[bytes | None]:
    return [value.encode() if isinstance(value, str) else value for value in column.to_pylist()]
