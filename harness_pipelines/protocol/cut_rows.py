"""The ledger's rows of cuts, one after the other: what does not follow on the one before.

A table may have ten thousand of them, each with an offset for every partition. So they are looked through in one pass,
and no more than two are in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

WRONG_MAX = 20  #: findings that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class CutRow:
    """A cut that servers show or showed."""

    sequence: int
    number: int  #: how many there were, with this one
    snapshot_id: int
    timestamp_ms: int
    version: int
    high: Mapping[int, int]  #: by partition; -1 where the row has none
    merged: frozenset[int]  #: partitions that end at `batch_hi`
    history: str  #: of the ledger, that it was published in
    alive: bool  #: its time has not ended
    retired: bool = False  #: a server found a file of it lost
    metadata: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)  #: of the last cut: bytes of its chunks by path


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedCutRow:
    """A cut of a named snapshot that servers show."""

    sequence: int
    snapshot_id: int
    version: int
    high: Mapping[int, int]
    metadata: str


class WrongCut(NamedTuple):
    """What a row of a cut breaks; *subject* names it without a number that changes."""

    invariant: str
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutsSeen:
    """All cuts of a table."""

    count: int = 0
    newest: CutRow | None = None
    versions: Mapping[int, int] = field(default_factory=dict)  #: of those that are alive, with a sequence for each
    wrong: tuple[WrongCut, ...] = ()  #: the first of them


def seen_of(rows: Iterable[CutRow]) -> CutsSeen:
    """What there is to say of *rows*, which are by sequence."""
    versions, ids, wrong = dict[int, int](), Counter[int](), list[WrongCut]()
    before: CutRow | None = None
    count = 0
    for row in rows:
        count += 1
        ids[row.snapshot_id] += not row.retired  # the cut after a retired one may be of the same state
        if row.alive:
            versions.setdefault(row.version, row.sequence)
        if before is not None:
            wrong += islice(_unordered(before, row), max(0, WRONG_MAX - len(wrong)))
        before = row
    twice = [(snapshot_id, many) for snapshot_id, many in ids.items() if many > 1]
    found = (WrongCut("F2", f"snapshot {i}", f"{many} cuts have the snapshot id {i}") for i, many in twice)
    return CutsSeen(count=count, newest=before, versions=versions, wrong=(*islice(found, WRONG_MAX), *wrong))


def _unordered(before: CutRow, after: CutRow) -> Iterator[WrongCut]:
    for word in ("sequence", "number", "timestamp_ms"):
        was, now = getattr(before, word), getattr(after, word)
        if now <= was:
            said = f"cut {after.sequence} has the {word} {now}, cut {before.sequence} before it {was}"
            yield WrongCut("F2", f"cut {after.sequence}, {word}", said)
    if before.history != after.history:
        return
    if after.version < before.version:
        said = f"cut {after.sequence} is of version {after.version}, cut {before.sequence} was of {before.version}"
        yield WrongCut("F5", f"cut {after.sequence}, version", said)
    else:
        yield from _fallen(before, after)


def _fallen(before: CutRow, after: CutRow) -> Iterator[WrongCut]:
    """The merged state of a keyed table ends at `batch_hi`, which a new version may lower."""
    for partition, was in before.high.items():
        may_fall = after.version > before.version and {partition} <= before.merged & after.merged
        if (now := after.high.get(partition, -1)) < was and not may_fall:
            said = f"partition {partition} ends at offset {now} in cut {after.sequence}, at {was} in {before.sequence}"
            yield WrongCut("F5", f"cut {after.sequence}, partition {partition}", said)
