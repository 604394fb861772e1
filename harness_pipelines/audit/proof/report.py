"""The report of an audit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from harness_pipelines.protocol import digest

FINDINGS_MAX = 10_000  #: of each kind are named; all are counted


class Kind(StrEnum):
    """What can be wrong with an offset."""

    MISSING = "missing"  #: Kafka has a record that no tier holds
    DUPLICATED = "duplicated"  #: more than one copy, in one tier or over two
    CHANGED = "changed"  #: the content is not what Kafka's bytes decode to
    UNEXPLAINED = "unexplained"  #: a row or a quarantined record that no record of Kafka explains


class Tier(StrEnum):
    """Where a range is answered from."""

    BATCH = "batch"  #: over the same offsets as a part of the stream view: the two are compared
    STREAM = "stream"
    BUFFER = "buffer"
    TAIL = "tail"
    QUARANTINE = "quarantine"


class Status(StrEnum):
    """How much of a range's content could be compared with Kafka."""

    VERIFIED = "verified"
    PARTLY = "verified in part: retention"  #: Kafka dropped some of it while the audit read
    RETENTION = "unverifiable: retention"  #: below Kafka's log start: others may vouch for it, see `Witness`
    ACCEPTED = "accepted loss"
    LOST = "lost"  #: Kafka dropped it before it was read, and the loss is not accepted yet


class Witness(StrEnum):
    """The reference for the content of a range."""

    KAFKA = "kafka"  #: each record was compared
    INGEST = "ingest"  #: the digest that ingest recorded when it took the records
    AUDIT = "audit"  #: the digest that an earlier audit kept
    NOBODY = "nobody"  #: only counts and duplicates were checked


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """One thing that is wrong, at one offset or, for lost ranges, at ``[offset, to)``."""

    kind: Kind
    partition: int
    offset: int
    tier: str
    detail: str
    to: int | None = None

    def to_json(self) -> dict[str, Any]:
        named = {"partition": self.partition, "offset": self.offset, "tier": self.tier, "detail": self.detail}
        return named if self.to is None else {**named, "to": self.to}


@dataclass(slots=True, kw_only=True)
class RangeAudit:
    """Counts and digests of ``[low, high)`` of one partition in one tier."""

    partition: int
    tier: Tier
    low: int
    high: int
    status: Status
    records: int = 0  #: that Kafka has
    rows: int = 0  #: that the tier has
    quarantined: int = 0
    expected: int = 0  #: digest of the rows that Kafka's records decode to, without the quarantined ones
    found: int = 0  #: digest of the tier's rows
    faults: int = 0  #: findings in it
    witness: Witness = Witness.NOBODY
    signed_off: datetime | None = None  #: it was not read: an audit of that time had found it whole
    again: str | None = None  #: why a range that was signed off was read again

    @property
    def judged(self) -> str:
        """The status in words, with the reference that was used where Kafka had no records."""
        if self.status is Status.RETENTION and self.witness is not Witness.NOBODY:
            return f"verified by {self.witness}'s digest: retention"
        return str(self.status)

    def follows(self, before: RangeAudit) -> bool:
        """True if the two are one range to a reader of the report."""
        return before.high == self.low and all(
            getattr(before, name) == getattr(self, name)
            for name in ("partition", "tier", "status", "witness", "signed_off", "again")
        )

    def joined(self, after: RangeAudit) -> RangeAudit:
        """Both as one range; see `follows`."""
        return replace(
            self,
            high=after.high,
            records=self.records + after.records,
            rows=self.rows + after.rows,
            quarantined=self.quarantined + after.quarantined,
            expected=digest.added(self.expected, after.expected),
            found=digest.added(self.found, after.found),
            faults=self.faults + after.faults,
        )

    def to_json(self) -> dict[str, Any]:
        known = self.status is not Status.RETENTION
        return {
            "partition": self.partition,
            "tier": str(self.tier),
            "low": self.low,
            "high": self.high,
            "status": str(self.status),
            "witness": str(self.witness),
            "read": "now" if self.signed_off is None else "signed off",
            "signed_off": self.signed_off and self.signed_off.isoformat(),
            "again": self.again,
            "records": self.records if known else None,
            "rows": self.rows,
            "quarantined": self.quarantined,
            "digest": digest.shown(self.found),
            "kafka_digest": digest.shown(self.expected) if known else None,
        }


@dataclass(slots=True)
class Findings:
    """Findings as they come up: all counted, the first of each kind named."""

    named: list[Discrepancy] = field(default_factory=list)
    counts: dict[Kind, int] = field(default_factory=lambda: dict.fromkeys(Kind, 0))

    def add(self, finding: Discrepancy) -> None:
        self.counts[finding.kind] += 1
        if self.counts[finding.kind] <= FINDINGS_MAX:
            self.named.append(finding)

    def merge(self, other: Findings) -> None:
        for finding in other.named:
            if self.counts[finding.kind] < FINDINGS_MAX:
                self.named.append(finding)
            self.counts[finding.kind] += 1
        for kind, count in other.counts.items():
            self.counts[kind] += count - sum(f.kind is kind for f in other.named)


def joined(ranges: Iterable[RangeAudit]) -> tuple[RangeAudit, ...]:
    """*ranges*, in order, with neighbours of one kind as one."""
    found: list[RangeAudit] = []
    for part in ranges:
        if found and part.follows(found[-1]):
            found[-1] = found[-1].joined(part)
        else:
            found.append(part)
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A move whose rows differ from those that the tiers hold in its ranges."""

    move_id: int
    stage: str
    rows: int  #: as the ledger recorded them
    found: int
    lo: dict[int, int]
    hi: dict[int, int]
    holes: Sequence[tuple[int, int, int]]  #: (partition, low, high): offsets without a row or a quarantined record
    changed: Sequence[int] = ()  #: partitions whose rows differ from the digest that ingest recorded
    title: str = ""  #: its words in a finding; of a checkpoint, that they are the moves up to the last of them

    def to_json(self) -> dict[str, Any]:
        return {
            "move": self.move_id,
            "title": self.title,
            "stage": self.stage,
            "rows": self.rows,
            "found": self.found,
            "ranges": {str(p): [self.lo[p], self.hi[p]] for p in sorted(self.lo)},
            "changed": list(self.changed),
            "holes": [{"partition": p, "low": low, "high": high} for p, low, high in self.holes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoViews:
    """``[low, high)`` of one partition in the batch view and in the stream view: rows, and their digests."""

    partition: int
    low: int
    high: int
    rows: int
    found: int
    stream_rows: int
    expected: int

    @property
    def ok(self) -> bool:
        return (self.rows, self.found) == (self.stream_rows, self.expected)

    def to_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "low": self.low,
            "high": self.high,
            "rows": self.rows,
            "digest": digest.shown(self.found),
            "stream_rows": self.stream_rows,
            "stream_digest": digest.shown(self.expected),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAudit:
    """The batch view against the stream view over ``[start, batch_hi)`` (S19)."""

    rows: int  #: that its files count
    least: int  #: that the files of the stream view count there: fewer cannot be, nor more than *most*
    most: int
    parts: tuple[TwoViews, ...] | None  #: None: only counted, its files were not opened
    foreign: str | None  #: what another writer did to it
    keyed: bool = False  #: it has the newest put of each key only: counts of the stream view say but *most*
    files_read: int = 0
    bytes_read: int = 0

    @property
    def ok(self) -> bool:
        agree = self.least <= self.rows <= self.most and all(part.ok for part in self.parts or ())
        return agree and self.foreign is None

    @property
    def said(self) -> str:
        """The verdict in words."""
        if self.foreign is not None:
            return self.foreign
        expected = f"{self.least:,}" if self.least == self.most else f"{self.least:,} to {self.most:,}"
        if not self.ok:
            differ = ", ".join(str(part.partition) for part in self.parts or () if not part.ok)
            where = f"; partitions {differ} differ" if differ else ""
            return f"the batch view has {self.rows:,} rows, the stream view {expected} below batch_hi{where}"
        counted = "no more than" if self.keyed else "as many as in"
        how = "rows and digests agree with" if self.parts is not None else f"only counted (--full reads it); {counted}"
        what = "the newest of each key in " if self.keyed and self.parts is not None else ""
        return f"the batch view has {self.rows:,} rows: {how} {what}the stream view"

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "read": self.parts is not None,
            "rows": self.rows,
            "stream_rows": [self.least, self.most],
            "partitions": [part.to_json() for part in self.parts or ()],
            "foreign": self.foreign,
            "files_read": self.files_read,
            "bytes_read": self.bytes_read,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The verdict on one read state of one table."""

    table: str
    version: int
    ranges: tuple[RangeAudit, ...]
    findings: tuple[Discrepancy, ...]
    counts: dict[Kind, int]
    accounts: tuple[Account, ...]
    foreign: str | None  #: what another writer did to the catalog's head
    seconds: float
    files_read: int = 0  #: data files of the lake that were opened
    bytes_read: int = 0  #: their sizes
    batch: BatchAudit | None = None  #: None: the table has no batch view
    unsigned: str | None = None  #: why what was found whole could not be signed off

    @property
    def ok(self) -> bool:
        sound = not any(self.counts.values()) and not self.accounts and self.foreign is None
        return sound and (self.batch is None or self.batch.ok)

    @property
    def records(self) -> int:
        """Records of Kafka that were checked, now or by the earlier audits that are trusted."""
        return sum(r.records for r in self.ranges)

    @property
    def taken_over(self) -> int:
        """Those of `records` that an earlier audit checked."""
        return sum(r.records for r in self.ranges if r.signed_off is not None)

    @property
    def rows(self) -> int:
        return sum(r.rows for r in self.ranges)

    def of(self, kind: Kind) -> list[Discrepancy]:
        """The named findings of one kind, by partition and offset."""
        return sorted((f for f in self.findings if f.kind is kind), key=lambda f: (f.partition, f.offset))

    def to_json(self) -> dict[str, Any]:
        """The fixed form of ``harness audit --json``."""
        return {
            "ok": self.ok,
            "table": self.table,
            "version": self.version,
            **{str(kind): [f.to_json() for f in self.of(kind)] for kind in Kind},
            "accounting": [account.to_json() for account in self.accounts],
            "foreign": self.foreign,
            "ranges": [r.to_json() for r in self.ranges],
            "batch": self.batch and self.batch.to_json(),
            "counts": {str(kind): count for kind, count in self.counts.items()},
            "records": self.records,
            "rows": self.rows,
            "quarantined": sum(r.quarantined for r in self.ranges),
            "digest": digest.VERSION,
            "files_read": self.files_read,
            "bytes_read": self.bytes_read,
            "unsigned": self.unsigned,
            "seconds": round(self.seconds, 3),
        }
