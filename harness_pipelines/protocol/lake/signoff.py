"""When a range that an audit signed off need not be read again: the same immutable files still answer for it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SignOff:
    """What an audit found in ``[low, high)`` of one partition of the stream view, and kept."""

    partition: int
    low: int
    high: int
    rows: int
    refused: int  #: records in quarantine
    digest: str  #: of the rows in any order, in the text form that names its definition
    evidence: str  #: of the files and quarantined records that answered for the range, see `evidence`
    status: str  #: how much of it could be checked then
    witness: str  #: the reference for the content then
    version: int  #: that was checked
    audited_at: datetime  #: the ledger's clock before anything was looked at

    def overlaps(self, low: int, high: int) -> bool:
        return self.low < high and low < self.high

    def lies_in(self, low: int, high: int) -> bool:
        return low <= self.low and self.high <= high


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A live data file as the manifests describe it, with its run of offsets ``[low, high)``."""

    path: str
    rows: int
    bytes: int
    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSize:
    """A file as the storage lists it."""

    bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """A quarantined record: its offset and what identifies its raw bytes."""

    offset: int
    value: bytes | None
    key: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """All that answers for the offsets of one partition of the lake now."""

    files: Sequence[Entry]
    held: Sequence[Raw]

    def within(self, low: int, high: int) -> Answering:
        """The part that can hold offsets of ``[low, high)``."""
        return Answering(
            files=[f for f in self.files if f.low < high and low < f.high],
            held=[raw for raw in self.held if low <= raw.offset < high],
        )


def evidence(answering: Answering) -> str:
    """A digest of what answers for a range: other when a file or a quarantined record comes, goes or is doubled."""
    seen = hashlib.sha256()
    for file in sorted(answering.files, key=lambda f: f.path):
        seen.update(f"file {file.path} {file.rows} {file.bytes}\n".encode())
    for raw in sorted(answering.held, key=lambda r: r.offset):
        seen.update(f"held {raw.offset} {_hex(raw.value)} {_hex(raw.key)}\n".encode())
    return seen.hexdigest()


def _hex(value: bytes | None) -> str:
    return "null" if value is None else value.hex()


def why_again(signed: SignOff, answering: Answering, stored: Mapping[str, StoredSize]) -> str | None:
    """Why the range of *signed* must be read again, or None when it stands.

    Files of the lake are immutable: the same paths, counts and sizes are the same rows, as long as the storage still
    has them unwritten since. A file whose bytes were replaced without a trace in its size and time is not seen here.
    """
    within = answering.within(signed.low, signed.high)
    if evidence(within) != signed.evidence:
        return "other files or quarantined records answer for it"
    for file in within.files:
        found, name = stored.get(file.path), file.path.rsplit("/", 1)[-1]
        if found is None:
            return f"{name} is gone"
        if found.bytes != file.bytes:
            return f"{name} has {found.bytes} bytes, not {file.bytes}"
        if found.modified > signed.audited_at:
            return f"{name} was written again"
    return None


def covered(low: int, high: int, ranges: Iterable[SignOff]) -> bool:
    """True if every offset of ``[low, high)`` lies in one of *ranges*."""
    for signed in sorted(ranges, key=lambda s: s.low):
        if signed.low <= low < signed.high:
            low = signed.high
    return low >= high
