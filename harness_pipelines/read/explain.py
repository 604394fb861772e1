"""What a read would open, and why not the rest: plain values and plain lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.plan import ReadPlan
from harness_pipelines.read.arrow import ReadStats
from harness_pipelines.read.selection import Selection, StreamWork, Work, work_of
from harness_pipelines.stores.lake_scan import LakeColumn, LakeQuery, forecast

BAR_WIDTH = 48
LAKE_MARK, BUFFER_MARK = "=", "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTier:
    """One part of the union. Offsets are counted, not rows: logs have gaps."""

    tier: str  #: stream, buffer or tail
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
            edges = f"{bounds.start} .. {bounds.stream_hi} .. {bounds.buffer_hi}"
            yield f"  {partition:>4} {bar(bounds, widest=widest)} {edges}"
        yield f"       {LAKE_MARK} lake  {BUFFER_MARK} buffer"


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

    lake, buffer = marks(bounds.start, bounds.stream_hi), marks(bounds.stream_hi, bounds.buffer_hi)
    return ("[" + LAKE_MARK * lake + BUFFER_MARK * buffer + ")").ljust(width + 3)


def explain(plan: ReadPlan, selection: Selection | None = None) -> Explanation:
    """Say what a read of *plan* opens; reads manifests, no data.

    Raises: UnknownColumn, WhereError, LakeFileMissing.
    """
    selection = selection or Selection()
    work = work_of(plan, selection)
    tiers = [_stream(work, part) for part in work.stream]
    before, after = work.pruned.get("stream", (0, 0))
    if plan.stream and not tiers:
        tiers.append(ExplainedTier(tier="stream", source=plan.stream[0].metadata, offsets=before, offsets_left=after))
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


def _stream(work: Work, part: StreamWork) -> ExplainedTier:
    query = LakeQuery(
        table=work.table,
        version=work.version,
        ranges=part.ranges,
        columns=[LakeColumn(name=c.name, field_id=c.field_id) for c in work.needed],
        where=work.where,
    )
    found = forecast(part.metadata, query)
    before, _ = work.pruned["stream"]
    return ExplainedTier(
        tier="stream",
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
    lake, buffer = stats.lake, stats.buffer
    yield (
        f"stream  {lake.files_opened} of {lake.files} files opened, "
        f"{lake.rows_read} of {lake.rows_in_opened} rows taken, {lake.bytes_read} bytes of column chunks"
    )
    yield f"buffer  {buffer.segments} segments, {buffer.rows_read} rows, {buffer.bytes_read} bytes"
    yield f"tail    {stats.tail_rows} rows"
    yield f"result  {stats.rows} rows"
