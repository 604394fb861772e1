"""The oracle of the stateful tests: what a producer and a bystander with a watch know of one table.

It follows the design's text alone: no store is asked, and none of the rules in `protocol` is used. Time is in whole
minutes and goes on in whole hours, every delay ends at half past: no verdict hangs on how long a step takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness_pipelines.protocol.claims import Stage

CLAIM_M, LEASE_AGE_M = 90, 24 * 60
GRACE_M, RETENTION_M, RETIRED_FOR_M, ORPHANED_M = 150, 330, 30, 60
RETENTION = {"versions": f"{RETENTION_M}m", "grace": f"{GRACE_M}m", "snapshots": 3}

Offsets = dict[int, int]  #: partition -> offset
Rows = Counter[tuple[int, int]]  #: (partition, offset) -> how often


@dataclass(slots=True)
class TrueLog:
    """One partition as its producer wrote it."""

    start: int
    kinds: list[str] = field(default_factory=list)  #: good, bad, or gap: an offset that holds no record

    @property
    def end(self) -> int:
        return self.start + len(self.kinds)

    def offsets(self, kind: str, low: int, high: int) -> list[int]:
        """Offsets of one kind in [low, high)."""
        return [o for o in range(max(low, self.start), min(high, self.end)) if self.kinds[o - self.start] == kind]


@dataclass(slots=True, eq=False)
class Held:
    """A claim of somebody; *on* is the claim as each of the stores gave it."""

    stage: Stage
    epoch: int
    until: int
    on: list[Any]


@dataclass(slots=True, eq=False)
class Unit:
    """Records that were polled: [low, high) of some partitions, decoded for a segment that was open then."""

    low: Offsets
    high: Offsets
    segment: int
    on: list[Any]


@dataclass(slots=True, eq=False)
class TrueMove:
    """A tier move as it was planned, and what became of it."""

    lo: Offsets
    hi: Offsets
    planned: int
    state: str = "PLANNED"
    attempts: int = 1


@dataclass(slots=True, eq=False)
class TrueAttempt:
    """One attempt of a move, and what it staged on each of the stores."""

    move: TrueMove
    number: int
    on: list[Any]
    staged: list[Any] | None = None

    @property
    def current(self) -> bool:
        return self.move.state == "PLANNED" and self.move.attempts == self.number


@dataclass(frozen=True, slots=True, eq=False)
class TrueVersion:
    """One published state: its bounds, and when it became the head (minutes)."""

    number: int
    stream_hi: Offsets
    buffer_hi: Offsets
    at: int


@dataclass(slots=True, eq=False)
class TrueLease:
    """A reader's hold: the rows it was promised, those that it takes from the buffer, and until when (minutes)."""

    version: int
    rows: Rows
    buffered: Rows
    born: int
    length: int
    until: int
    on: list[Any]


class Truth:
    """One table."""

    def __init__(self, *, partitions: int, start: int) -> None:
        self.now = 0
        self.log = {p: TrueLog(start) for p in range(partitions)}
        self.stream_hi = self.starts
        self.buffer_hi = self.starts
        self.segments = 0  #: segments made; the last one is open
        self.claims: dict[Stage, list[Held]] = {stage: [] for stage in Stage}
        self.moves: list[TrueMove] = []
        self.versions = [TrueVersion(1, self.starts, self.starts, 0)]
        self.retained_from = 0
        self.leases: list[TrueLease] = []

    @property
    def starts(self) -> Offsets:
        return {p: log.start for p, log in self.log.items()}

    @property
    def ends(self) -> Offsets:
        return {p: log.end for p, log in self.log.items()}

    @property
    def head(self) -> TrueVersion:
        return self.versions[-1]

    @property
    def open_move(self) -> TrueMove | None:
        return next((m for m in self.moves if m.state == "PLANNED"), None)

    def good(self, low: Mapping[int, int], high: Mapping[int, int]) -> Rows:
        """Records with a row in [low, high) per partition of *high*, each once."""
        return Counter((p, o) for p, at in high.items() for o in self.log[p].offsets("good", low[p], at))

    def refused(self) -> set[tuple[int, int]]:
        """Records without a row below ``buffer_hi``."""
        return {(p, o) for p, at in self.buffer_hi.items() for o in self.log[p].offsets("bad", 0, at)}

    # -- claims ---------------------------------------------------------------------------------------------

    def alive(self, held: Held) -> bool:
        """True if *held* is the stage's last claim and its lease lasts."""
        return held is self.claims[held.stage][-1] and held.until > self.now

    def claimed(self, stage: Stage, on: list[Any]) -> Held:
        self.claims[stage].append(Held(stage, len(self.claims[stage]) + 1, self.now + CLAIM_M, on))
        return self.claims[stage][-1]

    # -- what took effect -----------------------------------------------------------------------------------

    def add_partition(self, start: int) -> int:
        partition = len(self.log)
        self.log[partition] = TrueLog(start)
        self.stream_hi[partition] = self.buffer_hi[partition] = start
        return partition

    def published(self, move: TrueMove) -> None:
        move.state = "COMMITTED"
        self.stream_hi.update(move.hi)
        made = TrueVersion(self.head.number + 1, dict(self.stream_hi), dict(self.buffer_hi), self.now)
        self.versions.append(made)

    def trimmed(self) -> None:
        """What a run of expire's decision changes beside the buffer."""
        for old, following in zip(self.versions, self.versions[1:], strict=False):
            if following.at <= self.now - RETENTION_M:  # it stopped being the head so long ago
                self.retained_from = max(self.retained_from, old.number + 1)
        self.retained_from = max(self.retained_from, self.versions[0].number)
        tier = self.claims[Stage.TIER][-1:]
        nobody = all(held.until <= self.now - ORPHANED_M for held in tier)
        for move in self.moves:
            if move.state == "PLANNED" and nobody and move.planned <= self.now - ORPHANED_M:
                move.state = "ABANDONED"

    # -- reading --------------------------------------------------------------------------------------------

    def promised(self, at: int | None) -> Rows | None:
        """The rows that a read must give: of now, or of a version; ``None`` if that is not retained."""
        if at is None:
            return self.good(self.starts, self.buffer_hi)
        if not max(self.retained_from, 1) <= at <= self.head.number:
            return None
        return self.good(self.starts, self.versions[at - 1].buffer_hi)

    def looked(self, at: int | None, *, length: int, on: list[Any]) -> TrueLease:
        rows = self.promised(at)
        assert rows is not None
        version = self.versions[(at or self.head.number) - 1]
        until = self.now + min(length, LEASE_AGE_M)
        high = self.buffer_hi if at is None else version.buffer_hi
        made = TrueLease(version.number, rows, self.buffered(version, high), self.now, length, until, on)
        self.leases.append(made)
        return made

    def lives(self, lease: TrueLease) -> bool:
        return lease.until > self.now and lease.born + LEASE_AGE_M > self.now

    def renewed(self, lease: TrueLease) -> None:
        lease.until = min(self.now + lease.length, lease.born + LEASE_AGE_M)

    def buffered(self, version: TrueVersion, high: Offsets) -> Rows:
        """Rows of *version* below *high* that a reader who comes now takes from the buffer."""
        if all(self.stream_hi[p] >= at for p, at in high.items()):
            return Counter()  # the lake has all of them by now
        return self.good({**self.starts, **version.stream_hi}, high)

    def needed(self) -> Rows:
        """Rows that have to be in the buffer: for readers, for old versions, and for a revert within the grace."""
        settled = [v for v in self.versions if v.at <= self.now - GRACE_M]
        rows = self.good({**self.starts, **settled[-1].stream_hi} if settled else self.starts, self.buffer_hi)
        for version in self.versions[max(self.retained_from, 1) - 1 :]:
            rows |= self.buffered(version, version.buffer_hi)
        for lease in self.leases:
            if self.lives(lease):
                rows |= lease.buffered
        return rows
