"""The files and segments that a read would open, and why it skips the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from harness_pipelines.ports.lake import LakeReads
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan
from harness_pipelines.protocol.reading.queries import ReadStats
from harness_pipelines.protocol.reading.selection import LakeWork, Selection, Work, work_of

BAR_WIDTH = 48
BATCH_MARK, STREAM_MARK, BUFFER_MARK = "%", "=", "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTier:
    """One part of the union. Offsets are counted, not rows: logs have gaps."""

    tier: str  #: batch, overlay (rows of the batch view in Postgres), stream, buffer or tail
    source: str  #: the metadata file, the segments, or the topic
    offsets: int  #: in the plan
    offsets_left: int  #: that can hold wanted rows
    files: int = 0
    files_left: int = 0
    files_straddling: int = 0
    rows_at_most: int | None = None
    bytes_at_most: int | None = None
    skipped: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A plan and a selection, explained."""

    table: str
    version: int
    columns: tuple[str, ...]
    where: str | None
    lease_id: str
    lease_until: str
    bounds: tuple[tuple[int, Bounds], ...]
    tiers: tuple[ExplainedTier, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON form of ``explain --json``."""
        return {**asdict(self), "bounds": {str(p): b.to_json() for p, b in self.bounds}}

    def lines(self) -> Iterator[str]:
        """Text for people."""
        yield f"{self.table} at version {self.version}, lease {self.lease_id} until {self.lease_until}"
        yield f"columns: {', '.join(self.columns)}" + (f"   where: {self.where}" if self.where else "")
        for tier in self.tiers:
            yield from _tier_lines(tier)
        widest = max((b.buffer_hi - b.start for _, b in self.bounds), default=0)
        for partition, bounds in self.bounds:
            edges = " .. ".join(str(edge) for edge in _edges(bounds))
            yield f"  {partition:>4} {bar(bounds, widest=widest)} {edges}"
        yield f"       {BATCH_MARK} batch view  {STREAM_MARK} stream view  {BUFFER_MARK} buffer"


def _tier_lines(tier: ExplainedTier) -> Iterator[str]:
    if not tier.offsets_left:
        yield f"{tier.tier:<7} not read: none of its {tier.offsets} offsets can match"
        return
    yield f"{tier.tier:<7} {tier.offsets_left} of {tier.offsets} offsets from {tier.source}"
    if tier.files:
        skipped = "".join(f", {count} skipped by {reason}" for reason, count in tier.skipped)
        yield f"        {tier.files_left} of {tier.files} files ({tier.files_straddling} cut by bounds{skipped}), " + (
            f"at most {tier.rows_at_most} rows and {tier.bytes_at_most} bytes"
        )


def bar(bounds: Bounds, *, widest: int, width: int = BAR_WIDTH) -> str:
    """The offsets of one partition as a bar; a tier that holds anything shows at least one mark."""

    def marks(low: int, high: int) -> int:
        return max(round(width * (high - low) / widest), 1) if high > low else 0

    drawn = (
        BATCH_MARK * marks(bounds.start, bounds.batch_hi)
        + STREAM_MARK * marks(bounds.batch_hi, bounds.stream_hi)
        + BUFFER_MARK * marks(bounds.stream_hi, bounds.buffer_hi)
    )
    return f"[{drawn})".ljust(width + 3)


def _edges(bounds: Bounds) -> tuple[int, ...]:
    """Where one tier ends and the next begins; a table without a batch view has no edge of it."""
    batch = (bounds.batch_hi,) if bounds.batch_hi > bounds.start else ()
    return (bounds.start, *batch, bounds.stream_hi, bounds.buffer_hi)


def explain(plan: ReadPlan, lake: LakeReads, selection: Selection | None = None) -> Explanation:
    """Say what a read of *plan* opens; reads manifests, no data.

    Raises: UnknownColumn, WhereError, LakeFileMissing.
    """
    selection = selection or Selection()
    work = work_of(plan, selection)
    left = {part.metadata: part for part in work.lake}
    tiers = [_lake(lake, work, part, left.get(part.metadata)) for part in plan.lake]
    if plan.overlay is not None:
        before, after = work.pruned["overlay"]
        names = ", ".join(segment.name for segment in plan.overlay.segments)
        tiers.append(ExplainedTier(tier="overlay", source=names, offsets=before, offsets_left=after))
    if plan.buffer is not None:
        before, after = work.pruned["buffer"]
        names = ", ".join(segment.name for segment in plan.buffer.segments)
        tiers.append(ExplainedTier(tier="buffer", source=names, offsets=before, offsets_left=after))
    if plan.tail is not None:
        before, after = work.pruned["tail"]
        tiers.append(ExplainedTier(tier="tail", source=plan.tail.topic, offsets=before, offsets_left=after))
    return Explanation(
        table=plan.table,
        version=plan.version,
        columns=tuple(column.name for column in work.columns),
        where=selection.where,
        lease_id=plan.lease_id,
        lease_until=plan.lease_until.isoformat(timespec="seconds"),
        bounds=tuple(sorted(plan.bounds.items())),
        tiers=tuple(tiers),
    )


def _lake(lake: LakeReads, work: Work, planned: LakePart, part: LakeWork | None) -> ExplainedTier:
    before = sum(planned.high[p] - o for p, o in planned.low.items())
    if part is None:
        return ExplainedTier(tier=planned.view, source=planned.metadata, offsets=before, offsets_left=0)
    found = lake.forecast(part.metadata, work.query(part))
    return ExplainedTier(
        tier=part.view,
        source=part.metadata,
        offsets=before,
        offsets_left=sum(high - low for low, high in part.ranges.values()),
        files=found.files,
        files_left=found.files_opened,
        files_straddling=found.files_straddling,
        rows_at_most=found.rows_in_opened,
        bytes_at_most=found.bytes_read,
        skipped=tuple(sorted(found.skipped.items())),
    )


def analyzed(stats: ReadStats) -> Iterator[str]:
    """Lines of ``explain --analyze``: what a read took."""
    lake, overlay, buffer = stats.lake, stats.overlay, stats.buffer
    yield (
        f"lake    {lake.files_opened} of {lake.files} files opened, "
        f"{lake.rows_read} of {lake.rows_in_opened} rows taken, {lake.bytes_read} bytes of column chunks"
    )
    if overlay.segments:
        yield f"overlay {overlay.segments} segments, {overlay.rows_read} rows, {overlay.bytes_read} bytes"
    yield f"buffer  {buffer.segments} segments, {buffer.rows_read} rows, {buffer.bytes_read} bytes"
    yield f"tail    {stats.tail_rows} rows"
    yield f"result  {stats.rows} rows"
