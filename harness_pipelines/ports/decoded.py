"""A decoded batch of records: rows with coordinates, and refused records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.base import Decoded
from harness_pipelines.formats.columns.times import kafka_times
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.ports.source import PartitionBatch
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.spec.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Violations:
    """The number of records of a range that break a check of the contract: quarantined, or accepted with a warning."""

    check: str
    severity: Literal["quarantine", "warn"]
    records: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedRange:
    """Rows and refused records of ``[low, high)`` of one partition, ready to be committed."""

    partition: int
    low: int
    high: int
    rows: pa.Table  #: coordinates and user columns, in offset order
    refused: Sequence[RefusedRecord]
    leader_epoch: int | None
    violations: Sequence[Violations] = ()
    filtered: int = 0  #: records that the transform's filter did not take
    digest: int | None = None  #: sum of the digests of the rows as they will be in the lake; kept for audits


class RowsUnfit(HarnessError):
    """Postgres cannot store a row; nothing was written."""

    way_on = "`harness quarantine list TABLE`: ingest quarantines such rows one by one"

    def __init__(self, table: str, *, said: str, is_too_large: bool) -> None:
        self.said, self.is_too_large = said, is_too_large
        super().__init__(f"{table}: Postgres cannot store a row: {said}; nothing was written")


def with_coordinates(
    rows_: pa.Table, *, partition: int, offsets: pa.Array, timestamps_ms: pa.Array, columns: Sequence[Column]
) -> pa.Table:
    """Put the stored coordinate columns before the decoded user columns; for a keyed table with `_op` between them.

    *offsets* and *timestamps_ms* are int64 of the same length; an invalid time (-1 means none) becomes NULL.
    """
    length = rows_.num_rows
    coordinates = {
        "_kafka_partition": pa.repeat(pa.scalar(partition, pa.int32()), length),
        "_kafka_offset": offsets,
        "_kafka_timestamp": kafka_times(timestamps_ms),
    }
    operation = {OPERATION: rows_.column(OPERATION)} if rows_.schema.get_field_index(OPERATION) >= 0 else {}
    return pa.table({**coordinates, **operation, **{c.name: rows_.column(c.name) for c in columns}})


class RecordRefused(HarnessError):
    """A record does not fit, and `on_error` or a check of the contract stops the table there."""

    way_on = "repair the producer, or set `on_error: quarantine` and run `harness table apply`"


def decode_batch(table: TableRow, codec: RecordCodec, batch: PartitionBatch) -> DecodedRange:
    """Decode one batch into rows with coordinates and refused records.

    Raises: RecordRefused for a record that does not fit if the spec has ``on_error: stop`` or its contract stops the
    table.
    """
    decoded = codec.decode(batch.values, batch.keys, batch.headers)
    refused = [
        RefusedRecord(
            partition=batch.partition,
            offset=int(batch.offsets[bad.index]),
            reason=bad.reason,
            detail=bad.detail,
            key=batch.keys[bad.index],
            value=batch.values[bad.index],
            headers=batch.headers[bad.index] or (),
            check=bad.check,
            kafka_ms=int(batch.timestamps_ms[bad.index]),
        )
        for bad in decoded.refused
    ]
    for bad, record in zip(decoded.refused, refused, strict=True):
        if bad.stops or table.spec.on_error == "stop":
            raise stopped(table, record, by_check=bad.stops)
    rows = with_coordinates(
        decoded.rows,
        partition=batch.partition,
        offsets=pa.array(batch.offsets[decoded.accepted]),
        timestamps_ms=pa.array(batch.timestamps_ms[decoded.accepted]),
        columns=table.spec.columns,
    )
    return DecodedRange(
        partition=batch.partition,
        low=batch.low,
        high=batch.high,
        rows=rows,
        refused=refused,
        leader_epoch=batch.leader_epoch,
        violations=_violations(decoded),
        filtered=decoded.filtered,
    )


def stopped(table: TableRow, record: RefusedRecord, *, by_check: bool) -> RecordRefused:
    """The error that stops *table* at *record*; *by_check*: a check of its contract does, not `on_error`."""
    says, way_on = "the table has `on_error: stop`", "set `on_error: quarantine`"
    if by_check:
        says, way_on = "its contract says `stop`", f"set the check's severity (`severities: {{{record.check}: warn}}`)"
    return RecordRefused(
        f"{table.name}: partition {record.partition}, offset {record.offset}: {record.reason}: {record.detail}; "
        f"{says}, nothing from this offset on was ingested. Repair the producer or {way_on} and apply the spec"
    )


def _violations(decoded: Decoded) -> list[Violations]:
    if not decoded.refused and not decoded.warned:  # most batches
        return []
    apart = Counter(one.check for one in decoded.refused if one.check is not None)
    found = [Violations(check=check, severity="quarantine", records=records) for check, records in apart.items()]
    return found + [Violations(check=c, severity="warn", records=records) for c, records in decoded.warned.items()]
