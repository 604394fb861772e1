"""The producer's log: acknowledged records, and the expected sums of any cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.demo.scenario import PARTITIONS, Ints, Log

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table

CENTS = 100


@dataclass(slots=True)
class PartitionTruth:
    """One partition in the order in which its records were sent."""

    sums: Mapping[str, Ints]  #: column -> sum of the rows that k records leave, at k; shape (records + 1,); in cents
    ends: Ints  #: place of the record that ends the row of the k-th one; k itself: it has no row
    offsets: Ints  #: offset of the k-th record; filled as acknowledgements come
    acked_at: NDArray[np.float64]  #: monotonic seconds
    acked: int = 0  #: how many are filled

    def take(self, offset: int, at: float) -> None:
        """Note the acknowledgement of the next record (they come in order)."""
        self.offsets[self.acked], self.acked_at[self.acked] = offset, at
        self.acked += 1

    def covers(self, high: int) -> bool:
        """True once every record below offset *high* is known to be acknowledged."""
        return (
            high <= 0
            or self.acked == len(self.offsets)
            or (self.acked > 0 and self.offsets[self.acked - 1] >= high - 1)
        )

    def below(self, high: int) -> int:
        """Number of acknowledged records below offset *high*."""
        return int(np.searchsorted(self.offsets[: self.acked], high))

    def live(self, count: int) -> Ints:
        """Offsets of the rows that the first *count* records leave: those of puts that none of them ended."""
        return self.offsets[:count][self.ends[:count] >= count]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPartition:
    """What a read returned of one partition."""

    offsets: Ints
    sums: Mapping[str, int]


@dataclass(slots=True)
class Truth:
    """All partitions. The producer's thread writes it, the checks read it."""

    partitions: dict[int, PartitionTruth] = field(default_factory=dict)

    @classmethod
    def of(cls, log: Log, checked: Sequence[str]) -> Truth:
        """The truth about *log* before it is sent; *checked* are the columns whose sums every read is checked by."""
        found = {}
        for p in range(PARTITIONS):
            mine = np.flatnonzero(log.partitions == p)
            count, ends = len(mine), np.searchsorted(mine, log.ends[mine])
            sums = {name: _running_sums(whole_numbers(log.rows.column(name))[mine], ends) for name in checked}
            found[p] = PartitionTruth(sums, ends, np.full(count, -1, np.int64), np.zeros(count))
        return cls(found)

    @property
    def acked(self) -> int:
        return sum(p.acked for p in self.partitions.values())

    @property
    def live(self) -> int:
        """Number of rows that what is acknowledged leaves."""
        return sum(len(p.live(p.acked)) for p in self.partitions.values())

    def is_merged(self, table: Table) -> bool:
        """All that is acknowledged is in both views of *table*."""
        bounds = {p.partition: p.bounds.batch_hi for p in table.positions()}
        return all(bounds[p] > t.offsets[t.acked - 1] for p, t in self.partitions.items() if t.acked)

    def coordinates(self, log: Log, records: Sequence[int]) -> dict[str, Ints]:
        """Partition and offset of acknowledged *records* of *log*, by the names of the columns."""
        partitions, places = log.partitions[records], log.places[records]
        offsets = np.empty(len(places), np.int64)
        for p, truth in self.partitions.items():
            mine = partitions == p
            offsets[mine] = truth.offsets[places[mine]]
        return {"_kafka_partition": partitions, "_kafka_offset": offsets}

    def covers(self, bounds: Mapping[int, int]) -> bool:
        """True once a cut at *bounds* (partition -> offset) can be checked."""
        return all(self.partitions[p].covers(high) for p, high in bounds.items())

    def faults(self, bounds: Mapping[int, int], seen: Mapping[int, SeenPartition]) -> list[str]:
        """Return the errors of a read that claims to be the cut at *bounds*; empty if it is exactly that."""
        found = []
        for p, high in sorted(bounds.items()):
            truth, got = self.partitions[p], seen.get(p)
            count = truth.below(high)
            offsets = got.offsets if got else np.empty(0, np.int64)
            live = truth.live(count)
            if not np.array_equal(np.sort(offsets), live):
                left = "" if len(live) == count else f", which leave {len(live)} rows"
                other = f", not that at {np.setdiff1d(live, offsets)[0]}" if len(offsets) == len(live) else ""
                found.append(
                    f"partition {p} below {high}: {count} records were sent{left}, {len(offsets)} rows were read{other}"
                )
                continue
            for name, sums in truth.sums.items():
                value = got.sums[name] if got else 0
                if value != sums[count]:
                    found.append(f"partition {p} below {high}: sum of {name} is {value}, sent were {sums[count]}")
        return found + [f"partition {p} is not in the plan" for p in sorted(set(seen) - set(bounds))]


def whole_numbers(column: pa.ChunkedArray) -> Ints:
    """An integer column, or a decimal(_,2) column in cents, as int64; NULL, which a wrong read may have, is 0."""
    if pa.types.is_decimal(column.type):
        column = pc.multiply(column, pa.scalar(CENTS, pa.decimal128(3, 0))).cast(pa.int64())
    found: Ints = column.cast(pa.int64()).fill_null(0).to_numpy()
    return found


def _running_sums(values: Ints, ends: Ints) -> Ints:
    """At k the sum of the rows that the first k records leave; a record adds its value and takes that of another."""
    rows, count = np.arange(len(values)), len(values)
    put = ends > rows
    effect = np.where(put, values, 0)
    ended = rows[put & (ends < count)]
    effect[ends[ended]] -= values[ended]  # a record ends one row at most
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(effect)])


def split(rows: pa.Table, checked: Sequence[str]) -> dict[int, SeenPartition]:
    """Split a read (with coordinates and the *checked* columns) by partition."""
    partition = rows.column("_kafka_partition").to_numpy()
    offsets = rows.column("_kafka_offset").to_numpy()
    values = {name: whole_numbers(rows.column(name)) for name in checked}
    found = {}
    for p in np.unique(partition):
        mine = partition == p
        found[int(p)] = SeenPartition(
            offsets=offsets[mine], sums={name: int(v[mine].sum()) for name, v in values.items()}
        )
    return found
