"""The status of tables in words and bars, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness_pipelines.show.output import note
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from rich.console import Console

    from harness_pipelines.ports.ledger import SickTable
    from harness_pipelines.show.status import TableSeen

ERROR_CHARS_MAX = 160


def show_tables(seen: Sequence[TableSeen], sick: Sequence[SickTable], out: Console | None = None) -> None:
    """Print all tables, or how to make the first one."""
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = out or bars.console()
    for one_sick in sick:
        out.print(f"[bold]{one_sick.name}[/]  [red]cannot be read[/]: {escape(one_sick.why)}")
    for one in seen:
        show_table(one, out)
    if seen:
        out.print(bars.legend(spans for one in seen for spans in one.spans))
    elif not sick:
        note("no table yet: `harness table apply FILE` creates one")


def show_table(one: TableSeen, out: Console) -> None:
    """Print one table."""
    from rich.markup import escape

    from harness_pipelines.show import bars

    age = bars.ago((one.at - one.head.committed_at).total_seconds())
    tail = "?" if one.lag["tail"] is None else f"{one.lag['tail']:,}"
    rows = quantity(one.counts.lake_rows, "row")
    out.print(f"[bold]{one.table}[/]  version {one.head.version}, {age} old, {rows} in the lake")
    for line in bars.bars(one.spans, topic=one.topic):
        out.print(line)
    merge = f", {one.lag['stream']:,} not in the batch view yet" if one.has_batch else ""
    refused = f" ({one.refused_in_buffer:,} refused)" if one.refused_in_buffer else ""
    out.print(f"  lag: {tail} offsets only in Kafka, {one.lag['buffer']:,} only in the buffer{refused}{merge}")
    _show_recalled(one, out)
    for mirror in one.mirrors:
        out.print(f"  catalog {escape(str(mirror))}", style="red" if mirror.trouble else "")
    workers: dict[str, list[Mapping[str, Any]]] = {}
    for claim in one.claims:
        if claim["alive"]:
            workers.setdefault(claim["holder"], []).append(claim)
    for holder, claims in workers.items():
        left = bars.ago(min((claim["lease_until"] - one.at).total_seconds() for claim in claims))
        stages = ", ".join(claim["stage"] for claim in claims)
        out.print(f"  worker {escape(holder)}: {stages} (lease ends in {left})")
    if not workers:
        out.print(f"  no worker runs it: `harness run {one.table}`", style="dim")
    if one.counts.readers:
        oldest_for = bars.ago(one.counts.oldest_lease_s or 0.0)
        out.print(f"  {quantity(one.counts.readers, 'running read')}, the oldest for {oldest_for}")
    if one.pins:
        oldest = one.pins[0]
        out.print(
            f"  {len(one.pins)} versions are pinned, the oldest ({escape(oldest.name)}, version {oldest.version}) "
            f"since {oldest.since:%Y-%m-%d %H:%M:%S} UTC, "
            f"{quantity(oldest.behind, 'version')} before the oldest that is retained"
        )
    if one.refuses_much:
        out.print(f"  [bold yellow]refusing[/]: {one.refusing}: `harness quarantine list {one.table}`")
    if one.counts.quarantined:
        many = f"[yellow]{one.counts.quarantined:,} quarantined[/]"
        out.print(f"  {many}, not in the table: `harness quarantine list {one.table}`")
    if one.counts.filtered:
        out.print(f"  {one.counts.filtered:,} records were excluded by the transform's filter")
    for broken in one.violations:
        what = "accepted with a warning" if broken["severity"] == "warn" else "quarantined"
        out.print(f"  contract: {broken['records']:,} records break {escape(broken['check'])}, {what}")
    _show_trouble(one, out)


def _show_recalled(one: TableSeen, out: Console) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    if one.recalled_rows:
        size = bars.size(sum(overlay.bytes for overlay in one.head.overlays))
        out.print(f"  {one.recalled_rows:,} rows of the batch view are recalled to Postgres, {size}")
    for request in one.asked:
        wanted = "to release what is recalled" if request.where is None else f"to recall {escape(request.where)}"
        asked = bars.ago((one.at - request.asked_at).total_seconds())
        out.print(f"  request {request.recall_id} {wanted} waits for {asked}")


def _show_trouble(one: TableSeen, out: Console) -> None:
    from rich.markup import escape

    for move in one.open_moves:
        error = f": {escape(str(move['error'])[:ERROR_CHARS_MAX])}" if move["error"] else ""
        state = "is stuck" if move["state"] == "QUARANTINED" else "is open"
        out.print(f"  {move['stage']} move {move['move_id']} {state}, attempt {move['attempt']}{error}")
    for stalled in one.stalled:
        out.print(f"  [red]{escape(stalled)}[/]")
    for undelivered in one.undelivered:
        out.print(f"  [yellow]events are not delivered[/]: {escape(undelivered)}")
    if one.paused:
        out.print(f"  [red]{escape(one.paused)}[/]")
    if one.filling:
        out.print(f"  [red]{one.filling}[/]")
    for held in one.behind:
        out.print(f"  [yellow]{escape(held)}[/]")
    for ahead in one.ahead:
        out.print(f"  [red]{escape(ahead)}[/]")
    if one.stopped:
        out.print(f"  [red]stopped[/]: {escape(one.stopped)}")
        out.print(f"  {escape(one.way_on)}")
    if one.trouble:
        out.print(f"  [yellow]the end of the log is unknown[/]: {escape(one.trouble)}")
