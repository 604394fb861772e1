"""Prove a table complete: every record in Kafka is in exactly one tier, with its content.

plan: lease one read state, note what of it Kafka can still vouch for, and take over what earlier audits signed off.
judge: each partition by itself, window by window, in their own processes when there is much to do. report:
findings, counts and digests per range; what was found whole in the lake is signed off.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from harness_pipelines.audit.proof.accounts import ACCEPT_LOSS, Accounts, settle
from harness_pipelines.audit.proof.batch_view import BatchJob, judge_batch
from harness_pipelines.audit.proof.contents import (
    KafkaSide,
    LakeSide,
    LogContents,
    QuarantineSide,
    check_pages_of,
    judged_view,
)
from harness_pipelines.audit.proof.jobs import Job, PartitionAudit, RowTally
from harness_pipelines.audit.proof.report import (
    AuditReport,
    Discrepancy,
    Findings,
    Kind,
    RangeAudit,
    Status,
    Tier,
    Witness,
    joined,
)
from harness_pipelines.audit.proof.signing import (
    Signature,
    SignedState,
    by_moves,
    compare,
    cut,
    look,
    signed_now,
    taken_over,
)
from harness_pipelines.audit.proof.verdicts import Window, judge
from harness_pipelines.drivers.postgres import MissingRole
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasClose,
    HasCorrections,
    HasFiles,
    HasLakeBytes,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasOverlayRows,
    HasProof,
    HasReaders,
    HasSchemas,
    HasSignOffs,
    HasTables,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.source import check_source
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.digest import as_first
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.protocol.lake.signoff import SignOff, covered
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import ViewName
from harness_pipelines.read.digested import BufferSide, Offsets, Rows
from harness_pipelines.read.plan import leased, with_schema
from harness_pipelines.read.taken import TakenMove, corrections_of, taken_moves

if TYPE_CHECKING:
    from harness_pipelines.ports.source import Watermark

WINDOW_OFFSETS = 200_000
PARALLEL_OFFSETS_MIN = 3_000_000  #: below that, starting a second process costs more than it brings
LEASE = timedelta(minutes=10)
HOLES_MAX = 20

Progress = Callable[[int, int], None]  #: offsets judged, offsets in all


class Ports(
    HasBufferReader,
    HasClose,
    HasCorrections,
    HasFiles,
    HasLakeBytes,
    HasLakeReads,
    HasLeases,
    HasLog,
    HasOverlayRows,
    HasProof,
    HasReaders,
    HasSchemas,
    HasSignOffs,
    HasTables,
    Protocol,
):
    """The ports that it uses."""

    def opener(self, *, elsewhere: bool = False) -> Callable[[], Ports]:
        """Opens the same in another process; *elsewhere*: on another machine."""
        ...


def audit_table(
    stores: Ports,
    table: TableRow,
    *,
    full: bool = False,
    progress: Progress | None = None,
    processes: int | None = None,
) -> AuditReport:
    """Judge one leased read state of *table* against Kafka, and sign off what is whole in the lake.

    *full*: read what was signed off too, and compare it with what was kept; and read the batch view, which is only
    counted otherwise. *processes*: how many work at once; by
    default one per processor when there is much to do.
    Raises: TopicMissing, TopicRecreated, PartitionsGrown, LogTruncated, LakeFileMissing, SegmentMissing, LeaseEnded,
    TryAgain.
    """
    began = time.monotonic()
    with _leased(stores, table) as (plan, check):
        table = with_schema(stores, table, plan.schema_version)
        signature = Signature(version=plan.version, audited_at=stores.sign_offs.now())
        marks = stores.log.watermarks(table.spec.topic, plan.bounds)
        # A log that starts above the buffer is a finding here, not an error.
        check_source(table, stores.log, {p: max(b.buffer_hi, marks[p].low) for p, b in plan.bounds.items()})
        metadata, foreign = _judged_head(stores, table, plan, table.effects[Stage.TIER].view)
        moves, corrections = taken_moves(stores, table), corrections_of(stores, table)
        states = look(stores, table, judged_view(stores.lake_reads, table, metadata), plan.bounds, full=full)
        states = by_moves(states, moves, plan.bounds, {p: mark.low for p, mark in marks.items()})
        if full:  # the views are compared up to there
            states = {p: replace(s, cuts=s.cuts | {plan.bounds[p].batch_hi}) for p, s in states.items()}
        jobs = [
            replace(
                _job(table, plan, metadata, mark=marks[p], moves=moves, partition=p, state=states[p]),
                corrected={o: one.digest for o, one in corrections.get(p, {}).items()},
            )
            for p in sorted(plan.bounds)
        ]
        _check_unread(stores, table, metadata, jobs, step=_Beat(check, lambda *_: None, 0).step)
        done = _run(stores, jobs, check=check, progress=progress or (lambda *_: None), processes=processes)
        accounts = settle(moves, {job.partition: (job, part) for job, part in zip(jobs, done, strict=True)})
        signed = _signed(jobs, done, states, accounts=accounts, signature=signature)
        findings = Findings()
        for part in done:
            findings.merge(part.findings)
        _strangers(stores, table, plan, metadata, findings)
        batch = None
        if table.view_set.merged:
            judged, strange = _judged_head(stores, table, plan, "batch")
            both = BatchJob(
                lake=stores.lake_reads,
                table=table,
                bounds=plan.bounds,
                batch=judged,
                foreign=strange,
                stream=metadata,
                overlays=_overlays(stores, table, plan),
                recalled=_recalled(stores, table, plan) if plan.overlay else None,
            )
            step = _Beat(check, lambda *_: None, 0).step
            if not full:
                view = judged_view(stores.lake_reads, table, judged)
                check_pages_of(table, view, view.files, step=step)
            batch = judge_batch(both, done if full else None, findings, step=step)
        check()
    return AuditReport(
        table=table.name,
        version=plan.version,
        ranges=joined(r for part in done for r in part.ranges),
        findings=tuple(findings.named),
        counts=findings.counts,
        accounts=accounts.wrong,
        foreign=foreign,
        seconds=time.monotonic() - began,
        files_read=sum(part.files_read for part in done),
        bytes_read=sum(part.bytes_read for part in done),
        batch=batch,
        unsigned=foreign or _keep(stores, table, signed),
    )


def _check_unread(
    stores: Ports, table: TableRow, metadata: str, jobs: Sequence[Job], *, step: Callable[[int], None]
) -> None:
    """Files of rows that were signed off are not read as rows: their bytes are compared all the same.

    Raises: LakeFileBroken, LakeFileMissing, LakeUnreadable.
    """
    view = judged_view(stores.lake_reads, table, metadata)
    signed = {job.partition: job.signed for job in jobs}
    unread = [
        file
        for file in view.files
        if all(covered(*run, found) for p, found in signed.items() if (run := file.run_of(p)) is not None)
    ]
    check_pages_of(table, view, unread, step=step)


@contextmanager
def _leased(stores: Ports, table: TableRow) -> Iterator[tuple[ReadPlan, Callable[[], None]]]:
    """A plan and a function that renews its lease when a third of it has passed, and says so when it ended."""
    holder = f"audit {socket.gethostname()}:{os.getpid()}"
    with leased(stores, table, tail=True, holder=holder, lease=LEASE) as plan:

        def check() -> None:
            stores.leases.renew(plan.lease_id, lease=LEASE)

        yield plan, check


# -- plan ---------------------------------------------------------------------------------------------------


def _judged_head(stores: Ports, table: TableRow, plan: ReadPlan, view: ViewName) -> tuple[str, str | None]:
    """The metadata to check: the version's, or the catalog's if a foreign writer moved the pointer.

    Other engines read the catalog's head, and the next move builds on it.
    """
    pointer = stores.tables.pointer(table, view)
    versions = {v.version: v.views[view] for v in stores.tables.versions(table) if view in v.views}
    snapshot = judged_view(stores.lake_reads, table, pointer).snapshot
    if snapshot in {pins.snapshot for pins in versions.values()}:
        return versions[plan.version].metadata, None
    return pointer, (
        f"the catalog's {table.views[view]} is at snapshot {snapshot}, which no version of the ledger names: another "
        "writer committed to it; its head was judged"
    )


def _overlays(stores: Ports, table: TableRow, plan: ReadPlan) -> tuple[Overlay, ...]:
    """Return what the checked version records about the rows of its batch view that are in Postgres."""
    return next((v.overlays for v in stores.tables.versions(table) if v.version == plan.version), ())


def _recalled(stores: Ports, table: TableRow, plan: ReadPlan) -> Callable[[], pa.Table]:
    assert plan.overlay is not None
    segments = plan.overlay.segments
    return lambda: as_first(stores.overlay_rows(table.spec, segments, plan.bounds), table)


def _job(
    table: TableRow,
    plan: ReadPlan,
    metadata: str,
    *,
    partition: int,
    mark: Watermark,
    moves: Sequence[TakenMove],
    state: SignedState,
) -> Job:
    losses = [(m.lo[partition], m.hi[partition]) for m in moves if m.trigger == ACCEPT_LOSS and partition in m.lo]
    end = plan.tail.high.get(partition) if plan.tail else None
    bounds = plan.bounds[partition]
    inside = [m for m in moves if partition in m.lo and m.hi[partition] <= bounds.buffer_hi]
    edges = {o for m in inside for o in (m.lo[partition], m.hi[partition])}
    edges |= {o for s in state.taken for o in (s.low, s.high)}
    return Job(
        table=table,
        plan=plan,
        metadata=metadata,
        partition=partition,
        pieces=tuple(cut(split(bounds, end=end or bounds.buffer_hi, log_start=mark.low, losses=losses), state)),
        again=tuple(state.again),
        edges=tuple(sorted(edges)),
        log_start=mark.low,
    )


def split(
    bounds: Bounds, *, end: int, log_start: int, losses: Sequence[tuple[int, int]]
) -> list[tuple[Tier, int, int, Status]]:
    """Cut ``[start, end)`` where another tier answers and where another status begins."""
    cuts = {bounds.start, bounds.stream_hi, bounds.buffer_hi, end, log_start, *(o for loss in losses for o in loss)}
    inside = sorted(o for o in cuts if bounds.start <= o <= end)
    found = []
    for low, high in pairwise(inside):
        tier = Tier.STREAM if low < bounds.stream_hi else Tier.BUFFER if low < bounds.buffer_hi else Tier.TAIL
        status = Status.VERIFIED
        if any(lo <= low < hi for lo, hi in losses):
            status = Status.ACCEPTED
        elif low < log_start:
            status = Status.LOST if tier is Tier.TAIL else Status.RETENTION
        found.append((tier, low, high, status))
    return found


# -- judge --------------------------------------------------------------------------------------------------


def _run(
    stores: Ports, jobs: Sequence[Job], *, check: Callable[[], None], progress: Progress, processes: int | None
) -> list[PartitionAudit]:
    total = sum(job.offsets for job in jobs)
    at_once = min(processes or _processes(total), len(jobs))
    beat = _Beat(check, progress, total)
    if at_once <= 1:
        return [judge_partition(stores, job, step=beat.step) for job in jobs]
    # Spawned, not forked: the parent has threads and connections.
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn")) as pool:
        largest_first = sorted(jobs, key=lambda job: -job.offsets)
        running = {pool.submit(_judge_alone, stores.opener(), job): job for job in largest_first}
        left: set[Future[PartitionAudit]] = set(running)
        try:
            while left:
                finished, left = wait(left, timeout=LEASE.total_seconds() / 3, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
                    beat.step(running[future].offsets)
                beat.step(0)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return sorted((future.result() for future in running), key=lambda part: part.partition)


def _processes(total: int) -> int:
    return (os.cpu_count() or 1) if total >= PARALLEL_OFFSETS_MIN else 1


class _Beat:
    """Renews the lease and shows progress as work is done."""

    def __init__(self, check: Callable[[], None], progress: Progress, total: int) -> None:
        self._check, self._progress, self._total = check, progress, total
        self._done, self._renewed = 0, time.monotonic()

    def step(self, offsets: int) -> None:
        self._done += offsets
        self._progress(self._done, self._total)
        if time.monotonic() - self._renewed > LEASE.total_seconds() / 4:
            self._check()
            self._renewed = time.monotonic()


def _judge_alone(opener: Callable[[], Ports], job: Job) -> PartitionAudit:
    """`judge_partition` in its own process."""
    stores = opener()
    try:
        return judge_partition(stores, job, step=lambda _: None)
    finally:
        stores.close()


def judge_partition(stores: Ports, job: Job, *, step: Callable[[int], None]) -> PartitionAudit:
    """Check all ranges of one partition; *step* receives the number of offsets of each window that was read."""
    table, partition, bounds = job.table, job.partition, job.bounds
    held = QuarantineSide(stores.proof, stores.lake_bytes, table, partition)
    first = max(bounds.start, job.log_start)
    kafka = KafkaSide(
        log=stores.log, table=table, quarantine=held, partition=partition, position=first, schemas=stores.schemas
    )
    lake = LakeSide(table, judged_view(stores.lake_reads, table, job.metadata), partition, signed=job.signed)
    buffer = BufferSide(stores.buffer_reader, table, job.plan.buffer, partition)
    result = PartitionAudit(partition=partition, tally=RowTally(job.edges))
    result.files_read = len(lake.needed)
    result.bytes_read = sum(file.bytes for file in lake.needed)
    try:
        _hidden(result, lake.below(bounds.start), f"below the table's start {bounds.start}")
        for piece in job.pieces:
            if piece.signed is not None:
                part = taken_over(piece, partition)
                result.tally.add_signed(piece.low, rows=part.rows, digest=part.found)
                lake.below(piece.high)  # of a file that also holds offsets to check
            else:
                part = RangeAudit(
                    partition=partition,
                    tier=piece.tier,
                    low=piece.low,
                    high=piece.high,
                    status=piece.status,
                    again=piece.again,
                )
                known = sum(result.findings.counts.values())
                sides = _Sides(kafka=kafka, lake=lake, buffer=buffer, held=held, corrected=job.corrected)
                _judge_range(result, part, sides, step)
                part.faults = sum(result.findings.counts.values()) - known
                part.witness = Witness.KAFKA if part.status is Status.VERIFIED else Witness.NOBODY
            result.ranges.append(part)
        _hidden(result, lake.rest(), f"at or above stream_hi {bounds.stream_hi}")
    finally:
        kafka.close()
        lake.close()
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sides:
    kafka: KafkaSide
    lake: LakeSide
    buffer: BufferSide
    held: QuarantineSide
    corrected: Mapping[int, int | None]

    def records(self, low: int, high: int) -> LogContents:
        """Return what Kafka has, and what replays made of it."""
        return self.kafka.window(low, high).corrected(self.corrected, below=high)


def _judge_range(result: PartitionAudit, part: RangeAudit, sides: _Sides, step: Callable[[int], None]) -> None:
    if part.status is Status.LOST:
        _lost(result, part)
        return
    from_kafka = part.status is Status.VERIFIED  # it may turn out on the way that Kafka drops some of it
    for begin in range(part.low, part.high, WINDOW_OFFSETS):
        to = min(begin + WINDOW_OFFSETS, part.high)
        window = Window(
            low=begin,
            high=to,
            records=sides.records(begin, to) if from_kafka else None,
            rows=_rows(part.tier, to, sides.lake, sides.buffer),
            held=sides.held.read(begin, to) if part.tier is not Tier.TAIL else {},
        )
        if part.tier is Tier.TAIL:
            _count_tail(part, window)
        else:
            names = sides.lake.names if part.tier is Tier.STREAM else _no_names
            _count(result, judge(part, window, result.findings, names=names), window)
        step(to - begin)


def _rows(tier: Tier, high: int, lake: LakeSide, buffer: BufferSide) -> Rows:
    match tier:
        case Tier.STREAM:
            return lake.below(high)
        case Tier.BUFFER:
            return buffer.window(high)
        case _:
            return Rows.of([])


def _no_names(_offset: int) -> list[str]:
    return []


def _hidden(result: PartitionAudit, rows: Rows, where: str) -> None:
    """Rows in files of the head that no bounds of the table answer for (S37)."""
    for offset in np.unique(rows.offsets).tolist():
        detail = f"a row in a file of the stream view {where}: hidden from the table's reads, not from other engines"
        result.findings.add(
            Discrepancy(
                kind=Kind.UNEXPLAINED, partition=result.partition, offset=offset, tier=Tier.STREAM, detail=detail
            )
        )


def _lost(result: PartitionAudit, part: RangeAudit) -> None:
    result.findings.add(
        Discrepancy(
            kind=Kind.MISSING,
            partition=part.partition,
            offset=part.low,
            to=part.high,
            tier=Tier.TAIL,
            detail=f"Kafka dropped [{part.low}, {part.high}) before it was read: see `harness accept-loss`",
        )
    )


def _count_tail(part: RangeAudit, window: Window) -> None:
    """Records that only Kafka has are where they belong; there is nothing to compare them with."""
    records = window.records
    assert records is not None, "a tail range is read or lost"
    if records.known_from > window.low:
        part.status = Status.PARTLY
    judge_free = records.rows.split(records.known_from)[1]
    part.records += len(judge_free) + sum(o >= records.known_from for o in records.refused)
    part.rows += len(judge_free)
    total = int(judge_free.digests.sum(dtype=np.uint64))
    part.found = part.expected = (part.found + total) % 2**64


def _count(result: PartitionAudit, found: Offsets, window: Window) -> None:
    """Count the rows, each offset once, and keep the first holes where only counts can tell."""
    first = np.searchsorted(window.rows.offsets, found)
    result.tally.add(found, window.rows.digests[first])
    if window.records is None and len(result.holes) < HOLES_MAX:
        present = np.union1d(found, np.fromiter(window.held, np.int64))
        around = np.concatenate([[window.low - 1], present, [window.high]])
        for at in np.flatnonzero(np.diff(around) > 1)[: HOLES_MAX - len(result.holes)].tolist():
            result.holes.append((int(around[at]) + 1, int(around[at + 1])))


# -- report -------------------------------------------------------------------------------------------------


def _strangers(stores: Ports, table: TableRow, plan: ReadPlan, metadata: str, findings: Findings) -> None:
    """Rows of partitions that the table does not have, and quarantined records outside of it."""
    foreign = stores.proof.accepted(table)
    accepted = {FOREIGN_PARTITION: max((row["high"] for row in foreign), default=0)}
    for file in judged_view(stores.lake_reads, table, metadata).files:
        for run in file.runs or ():
            if run.partition not in plan.bounds and run.high > accepted.get(run.partition, 0):
                detail = f"{run.rows} rows of a partition that the table does not have: {file.path}"
                findings.add(
                    Discrepancy(
                        kind=Kind.UNEXPLAINED, partition=run.partition, offset=run.low, tier=Tier.STREAM, detail=detail
                    )
                )
    for row in stores.proof.quarantined_outside(table):
        findings.add(
            Discrepancy(
                kind=Kind.UNEXPLAINED,
                partition=row["partition"],
                offset=row["offset"],
                tier=Tier.QUARANTINE,
                detail="in quarantine, but outside of the table",
            )
        )


def _signed(
    jobs: Sequence[Job],
    done: Sequence[PartitionAudit],
    states: Mapping[int, SignedState],
    *,
    accounts: Accounts,
    signature: Signature,
) -> list[SignOff]:
    """Use the recorded digests where Kafka has no records, and report what is signed off."""
    found: list[SignOff] = []
    for job, part in zip(jobs, done, strict=True):
        for r in part.ranges:
            silent = r.status is Status.RETENTION and r.signed_off is None and not r.faults
            if silent and accounts.vouch_for(r.partition, r.low, r.high):
                r.witness = Witness.INGEST
        same = compare(job, part)
        found += signed_now(job, part, states[part.partition], same=same, accounts=accounts, signature=signature)
    return found


def _keep(stores: Ports, table: TableRow, signed: Sequence[SignOff]) -> str | None:
    """Sign off; returns why that was not possible."""
    try:
        stores.sign_offs.keep(table, signed)
    except MissingRole as missing:  # a login that may only read can audit all the same
        return str(missing)
    return None
