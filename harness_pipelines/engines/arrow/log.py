"""Records of the log in this process: decoded, with what does not fit apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from harness_pipelines.errors import TryAgain
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.ports.decoded import DecodedRange, decode_batch
from harness_pipelines.ports.source import BATCH_RECORDS_MAX, POLL_S, PartitionBatch, below
from harness_pipelines.protocol.coordinates import OPERATION, SCHEMA_VERSION
from harness_pipelines.protocol.keys import PUT

if TYPE_CHECKING:
    from harness_pipelines.formats.schema.registry import Schemas
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.ports.source import Log
    from harness_pipelines.protocol.moves import Move

SILENT_POLLS_MAX = 60


@dataclass(frozen=True, slots=True)
class LogRanges:
    """The ranges of a move in the log of its table."""

    log: Log
    schemas: Schemas
    table: TableRow
    move: Move

    def decoded(self) -> Iterator[DecodedRange]:
        """All their records, some at a time. Raises: RecordRefused, TryAgain on silence, what the log raises."""
        codec = RecordCodec(self.table.spec, self.schemas)
        for batch in self._batches():
            yield decode_batch(self.table, codec, batch)

    def _batches(self) -> Iterator[PartitionBatch]:
        topic, left, silent = self.table.spec.topic, dict(self.move.hi), 0
        with self.log.reader(topic, dict(self.move.lo), identity=self.table.identity) as reader:
            while left and silent < SILENT_POLLS_MAX:
                silent += 1
                for batch in reader.poll(BATCH_RECORDS_MAX, POLL_S):
                    silent = 0
                    if (high := left.get(batch.partition)) is None:
                        continue
                    yield below(batch, high)
                    if batch.high >= high:
                        del left[batch.partition]
                        reader.pause(batch.partition)
        if left:
            partition, high = min(left.items())
            raise TryAgain(
                f"{self.table.name}: partition {partition}: Kafka was silent before offset {high}; it is tried again"
            )


def viewed(table: TableRow, rows: pa.Table) -> pa.Table:
    """Decoded *rows* with all coordinates."""
    if OPERATION not in rows.column_names:
        rows = rows.append_column(OPERATION, pa.repeat(pa.scalar(PUT), rows.num_rows))
    version = pa.scalar(table.schema_version, pa.int32())
    return rows.append_column(SCHEMA_VERSION, pa.repeat(version, rows.num_rows))
