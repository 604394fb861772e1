"""Decode the records that are only in Kafka, for a union read."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.base import UNSETTLED
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasLeases, HasLog, HasSchemas, HasTables
from harness_pipelines.ports.decoded import DecodedRange, decode_batch
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import PartitionBatch, below, check_topic
from harness_pipelines.protocol.reading.plan import TailPart
from harness_pipelines.read.plan import with_schema
from harness_pipelines.spec.arrow import arrow_schema

POLL_RECORDS = 65_536
POLL_BYTES = 16 * 2**20  #: of values
SILENCE_S_MAX = 30.0


class Ports(HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


class TailSilent(TryAgain):
    """Kafka reported records but did not deliver them in time."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TailBatch:
    """The next records of one partition, decoded: all below *high*."""

    partition: int
    high: int
    rows: pa.Table  #: user's columns and all coordinates, in offset order
    unsettled: tuple[int, ...]  #: offsets of records that are no rows now, and may be rows later
    leader_epoch: int | None  #: of the last record; None: there is none, or the log has no epochs


def read_tail(stores: Ports, table: TableRow, part: TailPart) -> pa.Table:
    """Rows of the user's columns and all coordinates for ``[low, high)`` of each partition of *part*.

    Records that do not fit are left out: ingest will set them aside. Raises: as `tail_batches`.
    """
    schema = arrow_schema(with_schema(stores, table, part.schema_version).spec.stored, coordinates=True)
    return pa.concat_tables([schema.empty_table(), *(one.rows for one in tail_batches(stores, table, part))])


def tail_batches(stores: Ports, table: TableRow, part: TailPart) -> Iterator[TailBatch]:
    """The same bit by bit, partitions among each other in no order; some `POLL_BYTES` of values at a time.

    Only when it has ended is it known that all were records of the table's topic.
    Raises: TailSilent, TopicRecreated, RecordRefused, and what the log and the registry raise.
    """
    table = with_schema(stores, table, part.schema_version)
    schema = arrow_schema(table.spec.stored, coordinates=True)
    codec, left = RecordCodec(table.spec, stores.schemas), dict(part.high)
    heard = time.monotonic()
    with stores.log.reader(part.topic, part.low, identity=table.identity) as reader:
        while left:
            # Records beyond a partition's end are not waited for, and do not show that others are missing.
            found = reader.poll(POLL_RECORDS, 0.5, max_bytes=POLL_BYTES)
            batches = [batch for batch in found if batch.partition in left]
            if not batches and time.monotonic() - heard > SILENCE_S_MAX:
                raise TailSilent(f"{table.name}: no record of {part.topic} for {SILENCE_S_MAX:g} s, waiting for {left}")
            for batch in batches:
                wanted = below(batch, part.high[batch.partition])
                yield _decoded(table, codec, wanted, schema)
                if wanted.high >= part.high[batch.partition]:
                    del left[batch.partition]
                    reader.pause(batch.partition)
            if batches:
                heard = time.monotonic()  # when the caller is done with them
    check_topic(
        table, lambda: stores.log.describe(part.topic)
    )  # as it is after the last poll, so all of them were its records


def _decoded(table: TableRow, codec: RecordCodec, batch: PartitionBatch, schema: pa.Schema) -> TailBatch:
    decoded = decode_batch(table, codec, batch)
    return TailBatch(
        partition=batch.partition,
        high=batch.high,
        rows=_rows(table, decoded).select(schema.names).cast(schema),
        unsettled=tuple(one.offset for one in decoded.refused if one.reason in UNSETTLED),
        leader_epoch=batch.leader_epoch if len(batch) else None,
    )


def decoded_rows(table: TableRow, codec: RecordCodec, batch: PartitionBatch) -> pa.Table:
    """The records of *batch* that fit, with all coordinates, in offset order. Raises: RecordRefused."""
    return _rows(table, decode_batch(table, codec, batch))


def _rows(table: TableRow, decoded: DecodedRange) -> pa.Table:
    rows = decoded.rows
    if "_op" not in rows.column_names:
        rows = rows.append_column("_op", pa.repeat(pa.scalar("put"), rows.num_rows))
    return rows.append_column("_schema_version", pa.repeat(pa.scalar(table.schema_version, pa.int32()), rows.num_rows))
