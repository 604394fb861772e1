"""Reuse ranges that earlier audits signed off, and sign off complete ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Protocol

from harness_pipelines.audit.proof.accounts import Accounts, torn
from harness_pipelines.audit.proof.contents import QuarantineSide
from harness_pipelines.audit.proof.jobs import AuditJob, Job, PartitionAudit
from harness_pipelines.audit.proof.report import Discrepancy, Kind, RangeAudit, Status, Tier, Witness
from harness_pipelines.ports.access import HasFiles, HasLakeBytes, HasProof, HasSignOffs
from harness_pipelines.ports.errors import LakeUnreadable
from harness_pipelines.ports.files import FileStore
from harness_pipelines.ports.lake import LakeView
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.digest import added, parsed, shown
from harness_pipelines.protocol.lake.signoff import Answering, Entry, Raw, SignOff, StoredSize, evidence, why_again
from harness_pipelines.read.taken import TakenMove
from harness_pipelines.spec.locations import local_path, normal

SIGNED_OFFSETS_MAX = 1_000_000  #: of one range: what has to be read again when one of its files was replaced
#: Object stores tell whole seconds: a file may have been written until the next one began. Such a file is read again.
TICK = timedelta(seconds=1)
SIGNABLE = frozenset({Status.VERIFIED, Status.RETENTION, Status.ACCEPTED})


class Ports(HasFiles, HasLakeBytes, HasProof, HasSignOffs, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedState:
    """What an audit of one partition skips, what it reads again and why, and the reference for the lake's part."""

    answering: Answering
    taken: tuple[SignOff, ...] = ()
    again: Mapping[SignOff, str] = field(default_factory=dict)
    cuts: frozenset[int] = frozenset()  #: where a signed range shall end, so that the next audit can count by moves


def look(
    stores: Ports, table: TableRow, view: LakeView, bounds: Mapping[int, Bounds], *, full: bool
) -> dict[int, SignedState]:
    """Compare what was signed off with what answers now. Raises: LakeUnreadable."""
    signed = stores.sign_offs.all(table)
    stored = stored_files(stores.files, view.folder) if signed and not full else {}
    found = {}
    for p, limits in bounds.items():
        answering = _answering(stores, table, view, p, limits)
        mine = [s for s in signed if s.partition == p and s.lies_in(limits.start, limits.stream_hi)]
        why = {s: "full audit" if full else why_again(s, answering, stored) for s in mine}
        found[p] = SignedState(
            answering=answering,
            taken=tuple(s for s, reason in why.items() if reason is None),
            again={s: reason for s, reason in why.items() if reason is not None},
        )
    return found


def _answering(stores: Ports, table: TableRow, view: LakeView, partition: int, bounds: Bounds) -> Answering:
    held = QuarantineSide(stores.proof, stores.lake_bytes, table, partition).window(bounds.start, bounds.stream_hi)
    return Answering(
        files=[
            Entry(
                path=normal(f.path),
                rows=f.rows,
                bytes=f.bytes,
                low=f.low,
                high=f.high,
            )
            for f in view.files
            if f.partition in (partition, None)
        ],
        held=[Raw(offset=offset, value=h.value, key=h.key) for offset, h in held.items()],
    )


def by_moves(
    states: Mapping[int, SignedState],
    moves: Sequence[TakenMove],
    bounds: Mapping[int, Bounds],
    log_starts: Mapping[int, int],
) -> dict[int, SignedState]:
    """*states*, so that every move whose records Kafka has dropped can be counted as a whole."""
    judged = [move for move in moves if move.ends_below(bounds)]
    reread = torn(judged, {p: s.taken for p, s in states.items()}, log_starts)
    why = "a move continues outside of it, and Kafka has dropped the records"
    return {
        p: SignedState(
            answering=s.answering,
            taken=tuple(one for one in s.taken if one not in reread),
            again={**s.again, **{one: why for one in s.taken if one in reread}},
            cuts=frozenset(m.lo[p] for m in moves if p in m.lo and m.lo[p] < bounds[p].stream_hi <= m.hi[p]),
        )
        for p, s in states.items()
    }


def cut(ranges: Sequence[tuple[Tier, int, int, Status]], state: SignedState) -> list[AuditJob]:
    """*ranges* with the signed ones as they are, and the rest of the lake's cut where signed ranges shall end."""
    again = state.again
    found = [AuditJob(tier=Tier.STREAM, low=s.low, high=s.high, status=Status(s.status), signed=s) for s in state.taken]
    ends = {*state.cuts, *(o for s in again for o in (s.low, s.high))}
    for tier, low, high, status in ranges:
        if tier is not Tier.STREAM:
            found.append(AuditJob(tier=tier, low=low, high=high, status=status))
            continue
        for first, last in _between(low, high, state.taken):
            grid = range(first - first % SIGNED_OFFSETS_MAX + SIGNED_OFFSETS_MAX, last, SIGNED_OFFSETS_MAX)
            edges = sorted({first, last, *grid, *(o for o in ends if first < o < last)})
            for begin, to in pairwise(edges):
                why = next((reason for s, reason in again.items() if s.low <= begin and to <= s.high), None)
                found.append(AuditJob(tier=tier, low=begin, high=to, status=status, again=why))
    return sorted(found, key=lambda piece: piece.low)


def _between(low: int, high: int, taken: Sequence[SignOff]) -> Iterator[tuple[int, int]]:
    """The parts of ``[low, high)`` outside of *taken*."""
    for signed in sorted(taken, key=lambda s: s.low):
        if signed.low > low and low < high:
            yield low, min(signed.low, high)
        low = max(low, signed.high)
    if low < high:
        yield low, high


# -- after judging ------------------------------------------------------------------------------------------


def taken_over(piece: AuditJob, partition: int) -> RangeAudit:
    """The account of a range that is not read."""
    signed = piece.signed
    assert signed is not None
    content = parsed(signed.digest)
    return RangeAudit(
        partition=partition,
        tier=piece.tier,
        low=piece.low,
        high=piece.high,
        status=piece.status,
        records=signed.rows + signed.refused,
        rows=signed.rows,
        quarantined=signed.refused,
        expected=content,
        found=content,
        witness=Witness(signed.witness),
        signed_off=signed.audited_at,
    )


def compare(job: Job, part: PartitionAudit) -> set[SignOff]:
    """Hold what was read again against what was kept; what differs becomes a finding. Returns what is the same."""
    same = set()
    for signed in job.again:
        inside = _inside(part, signed)
        rows, refused, content = 0, 0, 0
        for r in inside:
            rows, refused, content = rows + r.rows, refused + r.quarantined, added(content, r.found)
        if (rows, refused, shown(content)) == (signed.rows, signed.refused, signed.digest):
            same.add(signed)
            if signed.witness != Witness.NOBODY:
                for r in inside:
                    r.witness = Witness.AUDIT if r.status is Status.RETENTION else r.witness
        elif not (all(r.witness is Witness.KAFKA for r in inside) and any(r.faults for r in inside)):
            detail = (
                f"not what was signed off at {signed.audited_at:%Y-%m-%d %H:%M:%S} UTC (version {signed.version}): "
                f"{signed.rows} rows {signed.digest} and {signed.refused} in quarantine then, {rows} rows "
                f"{shown(content)} and {refused} now"
            )
            part.findings.add(
                Discrepancy(
                    kind=Kind.CHANGED,
                    partition=part.partition,
                    offset=signed.low,
                    to=signed.high,
                    tier=Tier.STREAM,
                    detail=detail,
                )
            )
    return same


def _inside(part: PartitionAudit, signed: SignOff) -> list[RangeAudit]:
    return [r for r in part.ranges if r.tier is Tier.STREAM and signed.low <= r.low and r.high <= signed.high]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The state that was checked, and when the audit began."""

    version: int
    audited_at: datetime


def signed_now(
    job: Job,
    part: PartitionAudit,
    state: SignedState,
    *,
    same: set[SignOff],
    accounts: Accounts,
    signature: Signature,
) -> Iterator[SignOff]:
    """Return what this audit signs off of *part*.

    A range that is not what was kept is signed again only if Kafka vouches for all of it; else the kept digest stays,
    and every later audit says so.
    """
    kept: set[int] = set()
    for signed in job.again:
        inside = _inside(part, signed)
        sound = not any(r.faults or accounts.doubts(part.partition, r.low, r.high) for r in inside)
        by_kafka = all(r.witness is Witness.KAFKA for r in inside)
        if signed in same and sound:
            how = (Status.VERIFIED, Witness.KAFKA) if by_kafka else (signed.status, signed.witness)
            yield _sign(state, signature, inside, how=(str(how[0]), str(how[1])))
        if signed in same or not (sound and by_kafka):
            kept |= {id(r) for r in inside}
    for r in part.ranges:
        new = r.tier is Tier.STREAM and r.signed_off is None and id(r) not in kept
        if new and r.status in SIGNABLE and not r.faults and not accounts.doubts(part.partition, r.low, r.high):
            yield _sign(state, signature, [r], how=(str(r.status), str(r.witness)))


def _sign(state: SignedState, signature: Signature, ranges: Sequence[RangeAudit], *, how: tuple[str, str]) -> SignOff:
    low, high, content = ranges[0].low, ranges[-1].high, 0
    for r in ranges:
        content = added(content, r.found)
    return SignOff(
        partition=ranges[0].partition,
        low=low,
        high=high,
        rows=sum(r.rows for r in ranges),
        refused=sum(r.quarantined for r in ranges),
        digest=shown(content),
        evidence=evidence(state.answering.within(low, high)),
        status=how[0],
        witness=how[1],
        version=signature.version,
        audited_at=signature.audited_at,
    )


def stored_files(files: FileStore, location: str) -> Mapping[str, StoredSize]:
    """Size and time of every file below *location* of a view, by its path, from one listing.

    Raises: LakeUnreadable.
    """
    try:
        found = list(files.listed(location, allow_not_found=False))
    except OSError as error:
        raise LakeUnreadable(f"{location} cannot be listed: {error}; nothing was judged") from error
    until = timedelta(0) if local_path(location) is not None else TICK
    latest = datetime.max.replace(tzinfo=UTC) - TICK
    return {file.path: StoredSize(bytes=file.bytes, modified=(file.modified or latest) + until) for file in found}
