"""The producer's log, a file of acknowledged records, and the check of a read against it.

A broker that is killed after it has written a batch, and before it has answered, may not know the batch when it is
back. The producer then sends it once more, as another producer's (KIP-360), and hears of the second copy alone. Kafka
has both, and so must the table. The offsets of the first copy are missing among the acknowledged ones, just before
those of the second. They count as records like these; in the end the log itself is asked whether they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.chaos.content import COORDINATES, MAIN, Ints, Subject, altered

#: One acknowledged record; `number` is below 0 (-1 - number) for one that must end in quarantine.
ENTRY = np.dtype([("partition", "<i8"), ("offset", "<i8"), ("number", "<i8")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The errors of a read that claims to be the cut at some bounds; counts of records and rows."""

    lost: int = 0  #: acknowledged below the bounds, not returned
    doubled: int = 0  #: rows too many of an offset
    foreign: int = 0  #: rows that no acknowledged record below the bounds explains
    altered: int = 0  #: rows whose values differ from their record's
    examples: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not (self.lost or self.doubled or self.foreign or self.altered)

    def __str__(self) -> str:
        counts = f"{self.lost} lost, {self.doubled} doubled, {self.foreign} foreign, {self.altered} altered"
        return "; ".join((counts, *self.examples))


@dataclass(slots=True)
class Truth:
    """What was acknowledged so far for one table, per partition in the order of offsets."""

    path: Path
    subject: Subject = MAIN
    repeated: dict[tuple[int, int], int] = field(default_factory=dict)  #: {(partition, offset): number} of first copies
    _read: int = 0
    _offsets: dict[int, Ints] = field(default_factory=dict)
    _numbers: dict[int, Ints] = field(default_factory=dict)
    _early: dict[int, NDArray[np.void]] = field(default_factory=dict)  #: entries whose first copies are not known yet

    def refresh(self) -> None:
        """Take what the producer wrote since the last call."""
        with self.path.open("rb") as journal:
            journal.seek(self._read)
            data = journal.read()
        data = data[: len(data) - len(data) % ENTRY.itemsize]  # the producer may be in the middle of an entry
        self._read += len(data)
        entries = np.frombuffer(data, ENTRY)
        for partition in np.unique(entries["partition"]):
            p = int(partition)
            mine = np.concatenate([self._early.pop(p, entries[:0]), entries[entries["partition"] == partition]])
            offsets, numbers, taken = self._with_repeats(p, mine["offset"], mine["number"])
            if taken < len(mine):
                self._early[p] = mine[taken:]
            self._offsets[p] = np.concatenate([self.offsets(p), offsets])
            self._numbers[p] = np.concatenate([self.numbers(p), numbers])

    def _with_repeats(self, partition: int, offsets: Ints, numbers: Ints) -> tuple[Ints, Ints, int]:
        """New entries, with the first copies in gaps, and how many of them: up to a gap that nothing explains yet."""
        known = self.offsets(partition)
        ends = int(known[-1]) + 1 if len(known) else 0
        found_at, found = [offsets[:0]], [numbers[:0]]
        at = 0
        while at < len(offsets):
            if missing := int(offsets[at]) - ends:
                copies = slice(at, at + missing)
                if missing < 0 or not np.array_equal(offsets[copies], ends + missing + np.arange(missing)):
                    break
                found_at.append(ends + np.arange(missing))
                found.append(numbers[copies])
                self.repeated |= {(partition, ends + i): int(n) for i, n in enumerate(numbers[copies])}
            run = 1 + int(np.argmin(np.append(np.diff(offsets[at:]) == 1, False)))
            found_at.append(offsets[at : at + run])
            found.append(numbers[at : at + run])
            at, ends = at + run, int(offsets[at + run - 1]) + 1
        return np.concatenate(found_at), np.concatenate(found), at

    def offsets(self, partition: int) -> Ints:
        return self._offsets.get(partition, np.empty(0, np.int64))

    def numbers(self, partition: int) -> Ints:
        return self._numbers.get(partition, np.empty(0, np.int64))

    @property
    def acked(self) -> int:
        return sum(len(one) for one in self._offsets.values())

    @property
    def highs(self) -> dict[int, int]:
        """Per partition the offset after the last acknowledged record."""
        known = sorted({*range(self.subject.partitions), *self._offsets})
        return {p: int(self.offsets(p)[-1]) + 1 if len(self.offsets(p)) else 0 for p in known}

    @property
    def misfits(self) -> set[tuple[int, int]]:
        """(partition, offset) of the records that must be in quarantine."""
        return {(p, int(o)) for p in self._offsets for o in self.offsets(p)[self.numbers(p) < 0]}

    @property
    def early(self) -> set[tuple[int, int]]:
        """(partition, offset) of the records that are rows or in quarantine, whichever they are."""
        may = self.subject.may_be_held
        return {(p, int(o)) for p in self._offsets for o in self.offsets(p)[may(self.numbers(p))]}

    def gaps(self) -> list[str]:
        """Offsets that Kafka gave out twice, out of order or not at all; the producer uses no transactions."""
        return [
            f"partition {p}: the acknowledged offset {early['offset'][0]} does not follow on {len(self.offsets(p)) - 1}"
            for p, early in self._early.items()
        ]

    def covers(self, highs: Mapping[int, int]) -> bool:
        """Return whether every record below *highs* is known to be acknowledged, so that a cut there can be checked."""
        known = self.highs
        return all(known.get(p, 0) >= high for p, high in highs.items())

    def judge(self, rows: pa.Table, highs: Mapping[int, int]) -> Verdict:
        """*rows* must be exactly what the acknowledged records below *highs* leave, each once and unaltered."""
        partition, offset = (rows.column(name).to_numpy() for name in COORDINATES)
        number = rows.column("id").to_numpy()
        lost = doubled = foreign = swapped = 0
        examples: list[str] = []
        for p in sorted({*highs, *map(int, np.unique(partition))}):
            mine = partition == p
            found, first, times = np.unique(offset[mine], return_index=True, return_counts=True)
            known, numbers = self.offsets(p), self.numbers(p)
            below = known < highs.get(p, 0)
            known, numbers = known[below], numbers[below]
            wanted, may = self.subject.rows_of(numbers), self.subject.may_be_held(numbers)
            missing, extra = np.setdiff1d(known[wanted & ~may], found), np.setdiff1d(found, known[wanted])
            _, at, place = np.intersect1d(found, known[wanted], return_indices=True)
            unequal = number[mine][first][at] != numbers[wanted][place]
            lost += len(missing)
            doubled += int((times - 1).sum())
            foreign += len(extra)
            swapped += int(unequal.sum())
            wrong = {"lost": missing, "doubled": found[times > 1], "foreign": extra, "altered": found[at][unequal]}
            examples += [
                f"partition {p} below {highs.get(p, 0)}: {what} {_runs(offsets)}"
                for what, offsets in wrong.items()
                if len(offsets)
            ]
        return Verdict(
            lost=lost, doubled=doubled, foreign=foreign, altered=max(swapped, altered(rows)), examples=tuple(examples)
        )


def _runs(offsets: Ints, shown: int = 5) -> str:
    """Offsets as half-open runs."""
    runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
    text = ", ".join(f"[{run[0]}, {run[-1] + 1})" for run in runs[:shown])
    return text + (f" and {len(runs) - shown} more" if len(runs) > shown else "")
