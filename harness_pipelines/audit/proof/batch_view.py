"""Check that the batch view has the rows of the stream view below batch_hi: by count, on request by digest.

A file of the batch view mixes partitions and offsets, so it cannot be walked beside the others window by window: its
files are read once each, and of every partition only the count and the digest are kept. Where these differ the rows of
that partition are read again and compared one by one.

The batch view of a keyed table, with the rows of it that were recalled to Postgres, holds what the stream view folds
to: the newest put of each key below batch_hi, unless a delete is newer. The stream view is read once more for that, and
no two of these rows may have one key (S17).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from harness_pipelines.audit.proof.contents import LakeSide, judged_view
from harness_pipelines.audit.proof.folding import Versions, folded, key_digests, met_again
from harness_pipelines.audit.proof.jobs import PartitionAudit
from harness_pipelines.audit.proof.report import BatchAudit, Discrepancy, Findings, Kind, Tier, TwoViews
from harness_pipelines.audit.proof.verdicts import among, distinct
from harness_pipelines.ports.lake import LakeReads, LakeView, judged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.digest import Words, added, row_digests, total_digest
from harness_pipelines.protocol.lake.files import rows_below
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.read.digested import Offsets, Rows, of_partition

NAMED_ROWS_MAX = 20_000_000  #: of one partition that are held at once, 16 bytes each, to name what differs


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What is compared: two metadata files, below batch_hi of *bounds*."""

    lake: LakeReads
    table: TableRow
    bounds: Mapping[int, Bounds]
    batch: str
    stream: str
    foreign: str | None  #: what another writer did to the batch view
    overlays: tuple[Overlay, ...] = ()  #: rows of the batch view that lie in Postgres
    recalled: Callable[[], pa.Table] | None = None  #: reads these


def judge_batch(
    job: BatchJob, done: Sequence[PartitionAudit] | None, findings: Findings, *, step: Callable[[int], None]
) -> BatchAudit:
    """Count the batch view's rows, and compare their digests where *done* tells those of the whole stream view.

    *findings* learn which rows differ; *step* is called for each file.
    Raises: LakeFileMissing, LakeUnreadable.
    """
    batch, stream = (judged_view(job.lake, job.table, metadata) for metadata in (job.batch, job.stream))
    runs = _runs(stream)
    counts = [rows_below(runs.get(p, []), b.batch_hi) for p, b in job.bounds.items()]
    keyed = bool(job.table.spec.key)
    parts = None if done is None else tuple(_compared(job, batch, done, findings, step))
    least, most = 0 if keyed else sum(least for least, _ in counts), sum(most for _, most in counts)
    if keyed and parts is not None:
        least = most = sum(part.stream_rows for part in parts)
    return BatchAudit(
        rows=sum(file.rows for file in batch.files) + sum(one.rows for one in job.overlays),
        least=least,
        most=most,
        keyed=keyed,
        parts=parts,
        foreign=job.foreign,
        files_read=0 if done is None else len(batch.files),
        bytes_read=0 if done is None else sum(file.bytes for file in batch.files),
    )


def _compared(
    job: BatchJob, batch: LakeView, done: Sequence[PartitionAudit], findings: Findings, step: Callable[[int], None]
) -> Iterator[TwoViews]:
    found = dict.fromkeys(job.bounds, (0, 0))
    keys: list[_Keys] = []
    for held in _all_rows(job, batch, step):
        partition, inside = held.partition, _inside(job, held.partition, held.rows)
        for offset in held.rows.offsets[~inside].tolist():
            detail = "a row in a file of the batch view, outside of what the batch view answers for"
            _note(findings, Kind.UNEXPLAINED, partition, offset, detail)
        if job.table.spec.key:
            keys.append(_Keys(partition, held.rows.offsets, held.keys))
        if partition in found:
            count, digest = found[partition]
            found[partition] = count + int(inside.sum()), added(digest, total_digest(held.rows.digests[inside]))
    for part in done:
        bounds = job.bounds[part.partition]
        rows, digest = found[part.partition]
        stream_rows, expected = _expected(job, part)
        two = TwoViews(
            partition=part.partition,
            low=bounds.start,
            high=bounds.batch_hi,
            rows=rows,
            found=digest,
            stream_rows=stream_rows,
            expected=expected,
        )
        if not two.ok:
            _name(job, batch, two, findings, step)
        yield two
    _one_row_per_key(keys, findings)


def _expected(job: BatchJob, part: PartitionAudit) -> tuple[int, int]:
    """Number and digest of the rows that the batch view should have of one partition."""
    bounds = job.bounds[part.partition]
    if job.table.spec.key:
        newest = _stream_rows(job, part.partition)
        return len(newest), total_digest(newest.digests)
    stream = [r for r in part.ranges if r.tier is Tier.STREAM and r.high <= bounds.batch_hi]
    expected = 0
    for r in stream:
        expected = added(expected, r.found)
    return sum(r.rows for r in stream), expected


@dataclass(frozen=True, slots=True, eq=False)
class _Held:
    """Rows of one partition in a file of the batch view."""

    partition: int
    rows: Rows
    keys: Words  #: digests of their keys; empty in an append table


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """Where keys were met."""

    partition: int
    offsets: Offsets
    keys: Words


def _all_rows(job: BatchJob, batch: LakeView, step: Callable[[int], None]) -> Iterator[_Held]:
    """The rows of all files and those that were recalled, by partition, a batch at a time; in no order."""
    table = job.table
    key = table.spec.key
    for file in batch.files:
        with judged(table, file):
            for rows in batch.rows(table, file):
                yield from _by_partition(rows, key)
        step(0)
    if job.recalled is not None:
        yield from _by_partition(job.recalled(), key)


def _by_partition(rows: pa.Table, key: Sequence[str]) -> Iterator[_Held]:
    partitions = rows.column("_kafka_partition").to_numpy()
    offsets, digests = rows.column("_kafka_offset").to_numpy(), row_digests(rows)
    keys = key_digests(rows, key) if key else None
    for partition in np.unique(partitions).tolist():
        chosen = partitions == partition
        told = np.empty(0, np.uint64) if keys is None else keys[chosen]
        yield _Held(int(partition), Rows(offsets[chosen], digests[chosen]), told)


def _one_row_per_key(held: Sequence[_Keys], findings: Findings) -> None:
    """S17: by their digests, so the rows of all partitions at once."""
    again = met_again(np.concatenate([np.empty(0, np.uint64), *(one.keys for one in held)]))
    first = np.cumsum([0, *(len(one.keys) for one in held)])
    for place in again.tolist():
        at = int(np.searchsorted(first, place, side="right")) - 1
        offset = int(held[at].offsets[place - first[at]])
        detail = "another row of the batch view has the same key"
        _note(findings, Kind.DUPLICATED, held[at].partition, offset, detail)


def _runs(stream: LakeView) -> Mapping[int, list[tuple[int, int, int]]]:
    """By partition the rows, the first and the last offset that each file of the stream view has of it."""
    found: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for file in stream.files:
        if file.extents is None and file.partition is not None:
            found[file.partition].append((file.rows, file.low, file.high - 1))
        hidden = file.stored - file.rows
        for one in file.extents or ():  # which of its rows are hidden is not known by partition
            less = min(hidden, one.rows)
            hidden -= less
            found[one.partition].append((one.rows - less, one.low, one.high - 1))
    return found


def _stream_rows(job: BatchJob, partition: int) -> Rows:
    """What the batch view should have of one partition, from the stream view."""
    low, high = job.bounds[partition].start, job.bounds[partition].batch_hi
    view = judged_view(job.lake, job.table, job.stream)
    if key := job.table.spec.key:
        files = [f for f in view.files if (run := f.run_of(partition)) is not None and run[0] < high]

        def versions() -> Iterator[Versions]:
            for file in files:
                with judged(job.table, file):
                    for rows in view.rows(job.table, file):
                        mine = rows if file.partition is not None else of_partition(rows, partition)
                        yield Versions.from_arrow(mine, key).within(low, high)

        return folded(versions())
    side = LakeSide(job.table, view, partition)
    try:
        return side.below(high).split(low)[1]
    finally:
        side.close()


def _inside(job: BatchJob, partition: int, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    bounds = job.bounds.get(partition)
    if bounds is None:
        return np.zeros(len(rows), np.bool_)
    return (rows.offsets >= bounds.start) & (rows.offsets < bounds.batch_hi)


def _name(job: BatchJob, batch: LakeView, two: TwoViews, findings: Findings, step: Callable[[int], None]) -> None:
    """Name the rows of one partition in which the views differ."""
    partition = two.partition
    if max(two.rows, two.stream_rows) > NAMED_ROWS_MAX:
        detail = f"the views differ; not compared row by row: more than {NAMED_ROWS_MAX:,} rows"
        _note(findings, Kind.CHANGED, partition, two.low, detail, to=two.high)
        return
    ours = _stream_rows(job, partition)
    theirs = Rows.of([held.rows for held in _all_rows(job, batch, step) if held.partition == partition])
    theirs = theirs.split(two.high)[0].split(two.low)[1]
    for kind, offsets, detail in differences(ours, theirs):
        for offset in offsets:
            _note(findings, kind, partition, offset, detail)


def differences(stream: Rows, batch: Rows) -> Iterator[tuple[Kind, list[int], str]]:
    """Return the differences of *batch* from *stream*: kind, offsets and a sentence."""
    (ours, our_counts), (theirs, their_counts) = distinct(stream.offsets), distinct(batch.offsets)
    yield Kind.MISSING, ours[~among(ours, theirs)].tolist(), "the stream view has the row, the batch view has not"
    yield Kind.UNEXPLAINED, theirs[~among(theirs, ours)].tolist(), "the batch view has a row, the stream view has not"
    both = theirs[among(theirs, ours)]
    at_ours, at_theirs = np.searchsorted(ours, both), np.searchsorted(theirs, both)
    more = their_counts[at_theirs] > our_counts[at_ours]
    yield Kind.DUPLICATED, both[more].tolist(), "more copies in the batch view than in the stream view"
    fewer = their_counts[at_theirs] < our_counts[at_ours]
    yield Kind.MISSING, both[fewer].tolist(), "fewer copies in the batch view than in the stream view"
    first_ours, first_theirs = np.searchsorted(stream.offsets, both), np.searchsorted(batch.offsets, both)
    differs = stream.digests[first_ours] != batch.digests[first_theirs]
    yield Kind.CHANGED, both[differs].tolist(), "the row is not the same in the batch view and in the stream view"


def _note(findings: Findings, kind: Kind, partition: int, offset: int, detail: str, *, to: int | None = None) -> None:
    findings.add(Discrepancy(kind=kind, partition=partition, offset=offset, to=to, tier=Tier.BATCH, detail=detail))
