"""`harness status`: the place of each table's records, and its workers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import duration, opened
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.show.status import KafkaEnds, TableSeen, look_at_all
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from rich.console import Console

    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.health import Health
    from harness_pipelines.ports.ledger import SickTable

ERROR_CHARS_MAX = 160


@click.command()
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
@click.option("--watch", is_flag=True, help="Look again and again, until interrupted.")
@click.option(
    "--every", metavar="DURATION", default="2s", show_default=True, callback=duration, help="Pause of --watch."
)
@json_option
@click.pass_obj
def status(settings: Settings, tables: tuple[str, ...], *, watch: bool, every: float, json_target: str | None) -> None:
    """Show where the records are (batch and stream view, buffer, Kafka tail), the lag of each stage, and the workers.

    If Kafka does not answer, the command still shows the state in the ledger. `harness serve` shows the same in a
    browser, as of now.

    \b
    Examples:
      harness status
      harness status shop.orders --json | jq '.tables[0].lag'
      harness status --watch --every 5s
    """
    from harness_pipelines.app.health import Health

    if watch and json_target is not None:
        raise UsageError("--watch shows the state to people; `harness status --json` prints it once")
    with opened(settings) as harness:
        health = Health(harness.settings)
        if watch:
            _watch(harness, health, tables, every_s=every)
        seen = _look(harness, health, tables)
    emit(seen.to_json(), json_target, lambda: _show(seen.tables, seen.sick))
    for trouble in seen.troubles:
        note(trouble)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """One look at the tables."""

    tables: Sequence[TableSeen]
    sick: Sequence[SickTable]
    kafka: str | None  #: why it is not known where the topics end
    silent: dict[str, str]  #: servers that do not answer

    def to_json(self) -> dict[str, Any]:
        sick = [{"table": one.name, "why": one.why} for one in self.sick]
        return {
            "tables": [one.to_json() for one in self.tables],
            "sick": sick,
            "kafka": self.kafka,
            "silent": self.silent,
        }

    @property
    def troubles(self) -> list[str]:
        away = [f"harness: {name} does not answer: {why}" for name, why in self.silent.items()]
        return [*away, *([f"harness: without Kafka: {self.kafka}"] if self.kafka else [])]


def _look(harness: Harness, health: Health, tables: tuple[str, ...]) -> _Seen:
    kafka = KafkaEnds(harness)
    health.begin()
    found, sick = harness.survey(tables or None)
    for name in set(tables) - {one.name for one in found} - {one.name for one in sick}:
        harness.table(name)  # which says that there is none, with the most similar names
    if tables:
        found.sort(key=lambda one: tables.index(one.name))
    seen, unread = look_at_all(harness, found, kafka)
    silent = {name: why for name, why in health.look().items() if why is not None}
    seen.sort(key=lambda one: one.state is None)  # what is wrong comes first
    return _Seen(tables=seen, sick=[*sick, *unread], kafka=kafka.trouble, silent=silent)


def _watch(harness: Harness, health: Health, tables: tuple[str, ...], *, every_s: float) -> None:
    """Show one look after the other: in a terminal on one screen, elsewhere below each other."""
    from rich.live import Live
    from rich.text import Text

    from harness_pipelines.show import bars

    out = bars.console()
    with ExitStack() as closing:
        live = closing.enter_context(Live(console=out, screen=True, auto_refresh=False)) if out.is_terminal else None
        while True:
            seen = _look(harness, health, tables)
            with out.capture() as captured:
                out.print(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC, every {every_s:g} s", style="dim")
                _show(seen.tables, seen.sick, out)
                for trouble in seen.troubles:
                    out.print(trouble, style="red", markup=False)
            if live is not None:
                live.update(Text.from_ansi(captured.get()), refresh=True)
            else:
                click.echo(captured.get())
            time.sleep(every_s)


def _show(seen: Sequence[TableSeen], sick: Sequence[SickTable], out: Console | None = None) -> None:
    from rich.markup import escape

    from harness_pipelines.show import bars

    out = out or bars.console()
    for one_sick in sick:
        out.print(f"[bold]{one_sick.name}[/]  [red]cannot be read[/]: {escape(one_sick.why)}")
    for one in seen:
        _show_table(one, out)
    if seen:
        out.print(bars.legend(spans for one in seen for spans in one.spans))
    elif not sick:
        note("no table yet: `harness table apply FILE` creates one")


def _show_table(one: TableSeen, out: Console) -> None:
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
