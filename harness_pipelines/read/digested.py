"""Rows by offset and digest, as audits and checks of movers compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.ports.buffer import BufferReads
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.coordinates import PARTITION
from harness_pipelines.protocol.digest import Words, as_first, row_digests
from harness_pipelines.protocol.reading.plan import BufferPart
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
from harness_pipelines.spec.arrow import arrow_schema

if TYPE_CHECKING:
    pass


BUFFER_OFFSETS_PER_QUERY = 8_000_000


Offsets = NDArray[np.int64]


def of_partition(rows: pa.Table, partition: int) -> pa.Table:
    """Those of *rows* that are of one partition."""
    return rows.filter(pc.equal(rows.column(PARTITION), partition))


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Offsets of rows, ascending, and the digest of each. An offset that is there twice is there twice."""

    offsets: Offsets
    digests: Words

    def __len__(self) -> int:
        return len(self.offsets)

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> Rows:
        """All rows of *parts* in offset order."""
        offsets = np.concatenate([np.empty(0, np.int64), *(part.offsets for part in parts)])
        digests = np.concatenate([np.empty(0, np.uint64), *(part.digests for part in parts)])
        if np.all(offsets[1:] >= offsets[:-1]):
            return cls(offsets, digests)
        order = np.argsort(offsets, kind="stable")
        return cls(offsets[order], digests[order])

    @classmethod
    def from_arrow(cls, table: pa.Table) -> Rows:
        return cls(table.column("_kafka_offset").to_numpy(), row_digests(table))

    def split(self, high: int) -> tuple[Rows, Rows]:
        """The rows below *high* and the others."""
        at = int(np.searchsorted(self.offsets, high))
        return Rows(self.offsets[:at], self.digests[:at]), Rows(self.offsets[at:], self.digests[at:])


class BufferSide:
    """Rows of one partition in the segments that the plan names."""

    def __init__(self, reader: BufferReads, table: TableRow, part: BufferPart | None, partition: int) -> None:
        self._reader, self._table, self._part, self._partition = reader, table, part, partition
        self._schema = arrow_schema(table.spec.stored, coordinates=True)
        self._pending: list[Rows] = []
        self._loaded_to = part.low.get(partition, 0) if part else 0

    def window(self, high: int) -> Rows:
        """The rows of the plan's buffer part below *high* that no earlier call has returned."""
        if self._part is None or self._partition not in self._part.low:
            return Rows.of([])
        end = self._part.high[self._partition]
        while self._loaded_to < min(high, end):
            to = min(self._loaded_to + BUFFER_OFFSETS_PER_QUERY, end)
            self._pending += self._load(self._part, self._loaded_to, to)
            self._loaded_to = to
        below, above = Rows.of(self._pending).split(high)
        self._pending = [above]
        return below

    def _load(self, part: BufferPart, low: int, high: int) -> list[Rows]:
        if not part.segments:
            return []
        query = BufferQuery(
            table=self._table.name,
            segments=part.segments,
            ranges={self._partition: (low, high)},
            schema=self._schema,
            stores_op=bool(self._table.spec.key),
        )
        found = self._reader.batches(query, BufferStats())
        return [Rows.from_arrow(as_first(rows, self._table)) for rows in found]
