"""`harness status`: where the records of each table are, and who works on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.cli.output import emit, json_option, note
from harness_pipelines.errors import HarnessError
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.cli.render import Spans
    from harness_pipelines.client import Harness
    from harness_pipelines.protocol.versions import Version
    from harness_pipelines.stores.kafka import KafkaLog
    from harness_pipelines.stores.overview import Counts
    from harness_pipelines.stores.ports import PartitionStatus
    from harness_pipelines.stores.recalls import RecallRequest
    from harness_pipelines.table import Table

KAFKA_WAIT_S = 5.0
ERROR_CHARS_MAX = 160


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@json_option
@click.pass_obj
def status(settings: Settings, tables: tuple[str, ...], json_target: str | None) -> None:
    """Show where the records are (batch and stream view, buffer, Kafka tail), how far each stage lags, who works on it.

    Shows what the ledger knows also while Kafka does not answer.

    \b
    Examples:
      harness status
      harness status shop.orders --json | jq '.tables[0].lag'
    """
    with opened(settings) as harness:
        kafka = _Ends(harness)
        names = tables or tuple(t.name for t in harness.tables())
        seen = [_look(harness, harness.table(name), kafka) for name in dict.fromkeys(names)]
    shown = {"tables": [one.to_json() for one in seen], "kafka": kafka.trouble}
    emit(shown, json_target, lambda: _show(seen))
    if kafka.trouble:
        note(f"harness: without Kafka: {kafka.trouble}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSeen:
    """One table at one moment."""

    table: str
    topic: str
    head: Version
    since_tier_s: float
    positions: list[PartitionStatus]
    ends: Mapping[int, int]
    claims: list[Mapping[str, Any]]
    open_moves: list[Mapping[str, Any]]
    counts: Counts
    asked: list[RecallRequest]  #: to recall or to release rows, and not done yet
    stopped: str | None
    trouble: str | None  #: why the log's ends are not known
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    @property
    def lag(self) -> dict[str, int | None]:
        """Offsets that only Kafka has (None: unknown), that only the buffer has, and, with a batch view, those of
        the lake that it lacks."""
        known = all(p.partition in self.ends for p in self.positions)
        tail = sum(max(self.ends[p.partition] - p.bounds.buffer_hi, 0) for p in self.positions) if known else None
        found = {"tail": tail, "buffer": sum(p.bounds.buffer_hi - p.bounds.stream_hi for p in self.positions)}
        if self.has_batch:
            found["stream"] = sum(p.bounds.stream_hi - p.bounds.batch_hi for p in self.positions)
        return found

    @property
    def has_batch(self) -> bool:
        return self.head.batch is not None

    @property
    def recalled_rows(self) -> int:
        """Rows of the batch view that lie in Postgres."""
        return sum(one.rows for one in self.head.overlays)

    @property
    def spans(self) -> list[Spans]:
        from harness_pipelines.cli import render

        return render.spans_of(self.positions, self.ends, batch=self.has_batch)

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "version": self.head.version,
            "views": sorted(self.head.views),
            "partitions": [
                {"partition": p.partition, **_bounds(p), "end": self.ends.get(p.partition)} for p in self.positions
            ],
            "lag": self.lag,
            "topic": self.topic,
            "committed_at": self.head.committed_at,
            "since_tier_s": round(self.since_tier_s, 3),
            "claims": [dict(claim) for claim in self.claims],
            "open_moves": [dict(move) for move in self.open_moves],
            "stopped": self.stopped,
            "trouble": self.trouble,
            "quarantined": self.counts.quarantined,
            "readers": self.counts.readers,
            "lake_rows": self.counts.lake_rows,
            "recalled": {
                "rows": self.recalled_rows,
                "bytes": sum(one.bytes for one in self.head.overlays),
                "segments": [one.segment for one in self.head.overlays],
                "requests": [request.to_json() for request in self.asked],
            },
        }


def _bounds(seen: PartitionStatus) -> dict[str, int]:
    b = seen.bounds
    return {"start": b.start, "buffer_hi": b.buffer_hi, "stream_hi": b.stream_hi, "batch_hi": b.batch_hi}


class _Ends:
    """Ends of the topics' partitions; asked with a short limit, and not again once Kafka is away."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._log: KafkaLog | None = None
        self.trouble: str | None = None

    def of(self, table: Table, positions: list[PartitionStatus]) -> tuple[dict[int, int], str | None]:
        """Ends by partition; empty, with the reason, where they cannot be had."""
        from harness_pipelines.stores.errors import KafkaUnreachable

        if self.trouble:
            return {}, self.trouble
        try:
            marks = self._opened().watermarks(table.spec.topic, [p.partition for p in positions])
        except HarnessError as error:
            if isinstance(error, KafkaUnreachable) or self._log is None:
                self.trouble = str(error)
            return {}, str(error)
        return {partition: mark.end for partition, mark in marks.items()}, None

    def _opened(self) -> KafkaLog:
        from harness_pipelines.errors import UsageError
        from harness_pipelines.stores.kafka import KafkaLog
        from harness_pipelines.stores.kafka_client import KafkaTimeouts

        if self._log is None:
            if self._harness.settings.kafka is None:
                raise UsageError("no Kafka runs, and HARNESS_KAFKA is not set")
            self._log = KafkaLog.from_settings(self._harness.settings, timeouts=KafkaTimeouts(request_s=KAFKA_WAIT_S))
        return self._log


def _look(harness: Harness, table: Table, kafka: _Ends) -> TableSeen:
    from harness_pipelines.stores.overview import Overview
    from harness_pipelines.stores.recalls import Recalls

    books = Overview(harness.stores.readers)
    positions = table.positions()
    ends, trouble = kafka.of(table, positions)
    return TableSeen(
        table=table.name,
        topic=table.spec.topic,
        head=harness.stores.tables.head(table.row),
        since_tier_s=harness.stores.tables.since_tier_s(table.row),
        positions=positions,
        ends=ends,
        claims=books.claims(table.row),
        open_moves=books.open_moves(table.row),
        counts=books.counts(table.row),
        asked=Recalls(harness.stores.readers).open(table.row),
        stopped=table.row.stopped,
        trouble=trouble,
    )


def _show(seen: list[TableSeen]) -> None:
    from harness_pipelines.cli import render

    out = render.console()
    for one in seen:
        _show_table(one)
    if seen:
        out.print(render.legend(spans for one in seen for spans in one.spans))
    else:
        note("no table yet: `harness table apply FILE` creates one")


def _show_table(one: TableSeen) -> None:
    from harness_pipelines.cli import render

    out = render.console()
    age = render.ago((one.at - one.head.committed_at).total_seconds())
    tail = "?" if one.lag["tail"] is None else f"{one.lag['tail']:,}"
    out.print(f"[bold]{one.table}[/]  version {one.head.version}, {age} old, {one.counts.lake_rows:,} rows in the lake")
    for line in render.bars(one.spans):
        out.print(line)
    merge = f", {one.lag['stream']:,} not in the batch view yet" if one.has_batch else ""
    out.print(f"  lag: {tail} offsets only in Kafka, {one.lag['buffer']:,} only in the buffer{merge}")
    _show_recalled(one)
    for claim in one.claims:
        if claim["alive"]:
            left = render.ago((claim["lease_until"] - one.at).total_seconds())
            out.print(f"  {claim['stage']} runs: {claim['holder']} (epoch {claim['epoch']}, lease ends in {left})")
    if not any(claim["alive"] for claim in one.claims):
        out.print(f"  nobody works on it: `harness run {one.table}`", style="dim")
    if one.counts.readers:
        out.print(f"  {one.counts.readers} reads under way")
    if one.counts.quarantined:
        out.print(f"  [yellow]{one.counts.quarantined:,} quarantined[/]: `harness quarantine list {one.table}`")
    _show_trouble(one)


def _show_recalled(one: TableSeen) -> None:
    from rich.markup import escape

    from harness_pipelines.cli import render

    out = render.console()
    if one.recalled_rows:
        size = render.size(sum(overlay.bytes for overlay in one.head.overlays))
        out.print(f"  {one.recalled_rows:,} rows of the batch view are recalled to Postgres, {size}")
    for request in one.asked:
        wanted = "to release what is recalled" if request.where is None else f"to recall {escape(request.where)}"
        asked = render.ago((one.at - request.asked_at).total_seconds())
        out.print(f"  request {request.recall_id} {wanted} waits for {asked}")


def _show_trouble(one: TableSeen) -> None:
    from rich.markup import escape

    from harness_pipelines.cli import render

    out = render.console()
    for move in one.open_moves:
        error = f": {escape(str(move['error'])[:ERROR_CHARS_MAX])}" if move["error"] else ""
        state = "is stuck" if move["state"] == "QUARANTINED" else "is open"
        out.print(f"  {move['stage']} move {move['move_id']} {state}, attempt {move['attempt']}{error}")
    if one.stopped:
        out.print(f"  [red]stopped[/]: {escape(one.stopped)}")
        out.print(f"  a worker (`harness run {one.table}`) goes on once the cause is gone; reads go on all the time")
    if one.trouble:
        out.print(f"  [yellow]the log's end is not known[/]: {escape(one.trouble)}")
