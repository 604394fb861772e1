"""The batch view holds the same rows as the stream view below batch_hi: counted, and on demand compared by digest.

A file of the batch view mixes partitions and offsets, so it cannot be walked beside the others window by window: its
files are read once each, and of every partition only the count and the digest are kept. Where these differ the rows of
that partition are read again and compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness_pipelines.audit.digest import added, row_digests, total_digest
from harness_pipelines.audit.jobs import PartitionAudit
from harness_pipelines.audit.judge import among, distinct
from harness_pipelines.audit.report import BatchAudit, Finding, Findings, Kind, Tier, TwoViews
from harness_pipelines.audit.sides import LakeSide, Rows, field_ids, file_tables, judged, lake_schema
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.files import rows_below
from harness_pipelines.stores.lake_scan import PinnedView, pinned
from harness_pipelines.stores.ports import TableRow

NAMED_ROWS_MAX = 20_000_000  #: of one partition that are held at once, 16 bytes each, to name what differs


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchJob:
    """What is compared: two metadata files, below batch_hi of *bounds*."""

    table: TableRow
    bounds: Mapping[int, Bounds]
    batch: str
    stream: str
    foreign: str | None  #: what another writer did to the batch view


def judge_batch(
    job: BatchJob, done: Sequence[PartitionAudit] | None, findings: Findings, *, step: Callable[[int], None]
) -> BatchAudit:
    """Count the batch view's rows, and compare their digests where *done* tells those of the whole stream view.

    *findings* learn which rows differ; *step* is called for each file.
    Raises: LakeFileMissing, LakeUnreadable.
    """
    batch, stream = pinned(job.batch), pinned(job.stream)
    counts = [
        rows_below([(f.data.record_count, f.low, f.high - 1) for f in stream.files if f.partition == p], b.batch_hi)
        for p, b in job.bounds.items()
    ]
    return BatchAudit(
        rows=sum(file.data.record_count for file in batch.files),
        least=sum(least for least, _ in counts),
        most=sum(most for _, most in counts),
        parts=None if done is None else tuple(_compared(job, batch, done, findings, step)),
        foreign=job.foreign,
        files_read=0 if done is None else len(batch.files),
        bytes_read=0 if done is None else sum(file.data.file_size_in_bytes for file in batch.files),
    )


def _compared(
    job: BatchJob, batch: PinnedView, done: Sequence[PartitionAudit], findings: Findings, step: Callable[[int], None]
) -> Iterator[TwoViews]:
    found = dict.fromkeys(job.bounds, (0, 0))
    for partition, held in _rows(job.table, batch, step):
        inside = _inside(job, partition, held)
        for offset in held.offsets[~inside].tolist():
            detail = "a row in a file of the batch view, outside of what the batch view answers for"
            _note(findings, Kind.UNEXPLAINED, partition, offset, detail)
        if partition in found:
            count, digest = found[partition]
            found[partition] = count + int(inside.sum()), added(digest, total_digest(held.digests[inside]))
    for part in done:
        bounds = job.bounds[part.partition]
        stream = [r for r in part.ranges if r.tier is Tier.STREAM and r.high <= bounds.batch_hi]
        expected = 0
        for r in stream:
            expected = added(expected, r.found)
        rows, digest = found[part.partition]
        two = TwoViews(
            partition=part.partition,
            low=bounds.start,
            high=bounds.batch_hi,
            rows=rows,
            found=digest,
            stream_rows=sum(r.rows for r in stream),
            expected=expected,
        )
        if not two.ok:
            _name(job, batch, two, findings, step)
        yield two


def _rows(table: TableRow, batch: PinnedView, step: Callable[[int], None]) -> Iterator[tuple[int, Rows]]:
    """The rows of all files, by partition, a batch at a time; in no order."""
    schema, ids = lake_schema(table), field_ids(table, batch)
    for file in batch.files:
        with judged(table, file):
            for rows in file_tables(batch, file, schema, ids):
                partitions = rows.column("_kafka_partition").to_numpy()
                offsets, digests = rows.column("_kafka_offset").to_numpy(), row_digests(rows)
                for partition in np.unique(partitions).tolist():
                    chosen = partitions == partition
                    yield int(partition), Rows(offsets[chosen], digests[chosen])
        step(0)


def _inside(job: BatchJob, partition: int, rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    bounds = job.bounds.get(partition)
    if bounds is None:
        return np.zeros(len(rows), np.bool_)
    return (rows.offsets >= bounds.start) & (rows.offsets < bounds.batch_hi)


def _name(job: BatchJob, batch: PinnedView, two: TwoViews, findings: Findings, step: Callable[[int], None]) -> None:
    """Name the rows of one partition in which the views differ."""
    partition = two.partition
    if max(two.rows, two.stream_rows) > NAMED_ROWS_MAX:
        detail = f"the views differ; not compared row by row: more than {NAMED_ROWS_MAX:,} rows"
        _note(findings, Kind.CHANGED, partition, two.low, detail, to=two.high)
        return
    side = LakeSide(job.table, pinned(job.stream), partition, schema=lake_schema(job.table))
    try:
        ours = side.below(two.high).split(two.low)[1]
    finally:
        side.close()
    theirs = Rows.of([rows for p, rows in _rows(job.table, batch, step) if p == partition])
    theirs = theirs.split(two.high)[0].split(two.low)[1]
    for kind, offsets, detail in differences(ours, theirs):
        for offset in offsets:
            _note(findings, kind, partition, offset, detail)


def differences(stream: Rows, batch: Rows) -> Iterator[tuple[Kind, list[int], str]]:
    """What *batch* has otherwise than *stream*: kind, offsets, in words."""
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
    findings.add(Finding(kind=kind, partition=partition, offset=offset, to=to, tier=Tier.BATCH, detail=detail))
