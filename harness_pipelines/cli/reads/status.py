"""`harness status`: the place of each table's records, and its workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.show.status import KafkaEnds, TableSeen, look_at_all
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import SickTable

ERROR_CHARS_MAX = 160


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@json_option
@click.pass_obj
def status(settings: Settings, tables: tuple[str, ...], *, json_target: str | None) -> None:
    """Show where the records are (batch and stream view, buffer, Kafka tail), the lag of each stage, and the workers.

    If Kafka does not answer, the command still shows the state in the ledger. `harness serve` shows the same in a
    browser, as of now.

    \b
    Examples:
      harness status
      harness status shop.orders --json | jq '.tables[0].lag'
    """
    from harness_pipelines.app.health import Health

    with opened(settings) as harness:
        health, kafka = Health(harness.settings), KafkaEnds(harness)
        health.begin()
        found, sick = harness.survey(tables or None)
        for name in set(tables) - {one.name for one in found} - {one.name for one in sick}:
            harness.table(name)  # which says that there is none, with the most similar names
        if tables:
            found.sort(key=lambda one: tables.index(one.name))
        seen, unread = look_at_all(harness, found, kafka)
        sick += unread
        silent = {name: why for name, why in health.look().items() if why is not None}
    seen.sort(key=lambda one: one.state is None)  # what is wrong comes first
    told = [{"table": one.name, "why": one.why} for one in sick]
    shown = {"tables": [one.to_json() for one in seen], "sick": told, "kafka": kafka.trouble, "silent": silent}
    emit(shown, json_target, lambda: _show(seen, sick))
    for name, why in silent.items():
        note(f"harness: {name} does not answer: {why}")
    if kafka.trouble:
        note(f"harness: without Kafka: {kafka.trouble}")


def _show(seen: list[TableSeen], sick: list[SickTable]) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = bars.console()
    for one_sick in sick:
        out.print(f"[bold]{one_sick.name}[/]  [red]cannot be read[/]: {escape(one_sick.why)}")
    for one in seen:
        _show_table(one)
    if seen:
        out.print(bars.legend(spans for one in seen for spans in one.spans))
    elif not sick:
        note("no table yet: `harness table apply FILE` creates one")


def _show_table(one: TableSeen) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = bars.console()
    age = bars.ago((one.at - one.head.committed_at).total_seconds())
    tail = "?" if one.lag["tail"] is None else f"{one.lag['tail']:,}"
    rows = quantity(one.counts.lake_rows, "row")
    out.print(f"[bold]{one.table}[/]  version {one.head.version}, {age} old, {rows} in the lake")
    for line in bars.bars(one.spans, topic=one.topic):
        out.print(line)
    merge = f", {one.lag['stream']:,} not in the batch view yet" if one.has_batch else ""
    refused = f" ({one.refused_in_buffer:,} refused)" if one.refused_in_buffer else ""
    out.print(f"  lag: {tail} offsets only in Kafka, {one.lag['buffer']:,} only in the buffer{refused}{merge}")
    _show_recalled(one)
    for mirror in one.mirrors:
        out.print(f"  catalog {escape(str(mirror))}", style="red" if mirror.trouble else "")
    for claim in one.claims:
        if claim["alive"]:
            left = bars.ago((claim["lease_until"] - one.at).total_seconds())
            out.print(f"  {claim['stage']} runs: {claim['holder']} (epoch {claim['epoch']}, lease ends in {left})")
    if not any(claim["alive"] for claim in one.claims):
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
    _show_trouble(one)


def _show_recalled(one: TableSeen) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = bars.console()
    if one.recalled_rows:
        size = bars.size(sum(overlay.bytes for overlay in one.head.overlays))
        out.print(f"  {one.recalled_rows:,} rows of the batch view are recalled to Postgres, {size}")
    for request in one.asked:
        wanted = "to release what is recalled" if request.where is None else f"to recall {escape(request.where)}"
        asked = bars.ago((one.at - request.asked_at).total_seconds())
        out.print(f"  request {request.recall_id} {wanted} waits for {asked}")


def _show_trouble(one: TableSeen) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = bars.console()
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
