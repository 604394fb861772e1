"""Decode the records that are only in Kafka, for a union read."""

from __future__ import annotations

import time
from typing import Protocol

import pyarrow as pa

from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.access import HasLeases, HasLog, HasSchemas, HasTables
from harness_pipelines.ports.decoded import decode_batch
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import PartitionBatch, below, check_topic
from harness_pipelines.protocol.reading.plan import TailPart
from harness_pipelines.read.plan import with_schema
from harness_pipelines.spec.arrow import arrow_schema

POLL_RECORDS = 65_536
SILENCE_S_MAX = 30.0


class Ports(HasLeases, HasLog, HasSchemas, HasTables, Protocol):
    """The ports that it uses."""


class TailSilent(TryAgain):
    """Kafka reported records but did not deliver them in time."""


def read_tail(stores: Ports, table: TableRow, part: TailPart) -> pa.Table:
    """Rows of the user's columns and all coordinates for ``[low, high)`` of each partition of *part*.

    Records that do not fit are left out: ingest will set them aside. Raises: TailSilent, TopicRecreated and what
    the log raises.
    """
    table = with_schema(stores, table, part.schema_version)
    codec, left = RecordCodec(table.spec, stores.schemas), dict(part.high)
    pieces: list[pa.Table] = []
    heard = time.monotonic()
    with stores.log.reader(part.topic, part.low, identity=table.identity) as reader:
        while left:
            # Records beyond a partition's end are not waited for, and do not show that others are missing.
            batches = [batch for batch in reader.poll(POLL_RECORDS, 0.5) if batch.partition in left]
            if batches:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S_MAX:
                raise TailSilent(f"{table.name}: no record of {part.topic} for {SILENCE_S_MAX:g} s, waiting for {left}")
            for batch in batches:
                high = part.high[batch.partition]
                pieces.append(decoded_rows(table, codec, below(batch, high)))
                if batch.high >= high:
                    del left[batch.partition]
                    reader.pause(batch.partition)
    check_topic(
        table, lambda: stores.log.describe(part.topic)
    )  # as it is after the last poll, so all of them were its records
    schema = arrow_schema(table.spec.stored, coordinates=True)
    return pa.concat_tables([schema.empty_table(), *(piece.select(schema.names).cast(schema) for piece in pieces)])


def decoded_rows(table: TableRow, codec: RecordCodec, batch: PartitionBatch) -> pa.Table:
    """The records of *batch* that fit, with all coordinates, in offset order. Raises: RecordRefused."""
    rows = decode_batch(table, codec, batch).rows
    if "_op" not in rows.column_names:
        rows = rows.append_column("_op", pa.repeat(pa.scalar("put"), rows.num_rows))
    return rows.append_column("_schema_version", pa.repeat(pa.scalar(table.schema_version, pa.int32()), rows.num_rows))
