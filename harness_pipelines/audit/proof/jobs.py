"""Jobs of an audit per partition, and their results: plain values for other processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness_pipelines.audit.proof.report import Findings, RangeAudit, Status, Tier
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.digest import Words, added
from harness_pipelines.protocol.lake.signoff import SignOff
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.read.digested import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditJob:
    """A range of offsets that one tier answers and one method checks."""

    tier: Tier
    low: int
    high: int
    status: Status
    signed: SignOff | None = None  #: it stands: nothing is read
    again: str | None = None  #: why it is read although an audit signed it off


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One partition of an audit, with everything that another process needs to check it."""

    table: TableRow
    plan: ReadPlan
    metadata: str  #: of the stream view to check
    partition: int
    pieces: tuple[AuditJob, ...]
    again: tuple[SignOff, ...]  #: signed off once, read and compared now
    edges: tuple[int, ...]  #: where moves and signed ranges begin and end: rows are counted between them
    log_start: int
    corrected: Mapping[int, int | None] = field(default_factory=dict)  #: offset -> digest; None: no row

    @property
    def bounds(self) -> Bounds:
        return self.plan.bounds[self.partition]

    @property
    def signed(self) -> list[SignOff]:
        """What is taken over from earlier audits."""
        return [piece.signed for piece in self.pieces if piece.signed is not None]

    @property
    def offsets(self) -> int:
        """How many are read."""
        return sum(piece.high - piece.low for piece in self.pieces if piece.signed is None)


class RowTally:
    """Rows and their digests between neighbouring edges."""

    def __init__(self, edges: Sequence[int]) -> None:
        self.edges = list(edges)
        self._rows = [0] * max(len(self.edges) - 1, 0)
        self._digests = list(self._rows)

    def add(self, offsets: Offsets, digests: Words) -> None:
        """Count rows; *offsets* ascend."""
        if not self._rows:
            return
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(digests, dtype=np.uint64)])
        below = np.searchsorted(offsets, self.edges)
        for at in np.flatnonzero(np.diff(below)).tolist():
            first, last = below[at], below[at + 1]
            self._put(at, int(last - first), (int(sums[last]) - int(sums[first])) % 2**64)

    def add_signed(self, low: int, *, rows: int, digest: int) -> None:
        """Count a whole range that begins at the edge *low*; what lies between edges inside of it is not known."""
        at = bisect_left(self.edges, low)
        if at < len(self._rows):
            self._put(at, rows, digest)

    def within(self, low: int, high: int) -> tuple[int, int]:
        """Number and digest of the rows between two edges."""
        first, last = bisect_left(self.edges, low), bisect_left(self.edges, high)
        digest = 0
        for one in self._digests[first:last]:
            digest = added(digest, one)
        return sum(self._rows[first:last]), digest

    def _put(self, at: int, rows: int, digest: int) -> None:
        self._rows[at] += rows
        self._digests[at] = added(self._digests[at], digest)


@dataclass(slots=True, kw_only=True)
class PartitionAudit:
    """What was found in one partition."""

    partition: int
    tally: RowTally
    ranges: list[RangeAudit] = field(default_factory=list)  #: one for each piece of the job
    findings: Findings = field(default_factory=Findings)
    holes: list[tuple[int, int]] = field(default_factory=list)  #: without a row or a held record, where Kafka is silent
    files_read: int = 0
    bytes_read: int = 0
