"""`harness events`: the events of a table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import AGAIN_S, opened
from harness_pipelines.errors import TryAgain, UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.pauses import Pauses
from harness_pipelines.secret import redact
from harness_pipelines.show.output import note, to_json
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.ports.events import Event
    from harness_pipelines.sinks.deliveries import Delivery


@click.command()
@click.argument("table")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="SEQ",
    help="Only events after this number.",
)
@click.option("--follow", is_flag=True, help="Wait for new events.")
@click.option(
    "--subscriber", metavar="NAME", help="Start after the last event that NAME acknowledged, and keep its position."
)
@click.option(
    "--webhook",
    metavar="URL",
    help="POST each event to this URL instead of printing it. `env:NAME` or `file:PATH` reads the URL from there, "
    "because every user of the machine can read a command line.",
)
@click.option("--topic", metavar="TOPIC", help="Produce each event to this Kafka topic instead of printing it.")
@click.option("--openlineage", is_flag=True, help="Emit a run for each move to the server in OPENLINEAGE_URL.")
@click.pass_obj
def events(
    settings: Settings,
    /,
    *,
    table: str,
    after: int,
    follow: bool,
    subscriber: str | None,
    webhook: str | None,
    topic: str | None,
    openlineage: bool,
) -> None:
    """Print the events of a table, one JSON object per line: versions published, reverted, reconciled.

    Each event was recorded in the transaction that it describes, so no event is missing and none is false. `seq` has
    no gaps; a program can keep the last one and continue with --after. With --subscriber the ledger keeps the
    position. Each event is delivered at least once, in order, by one process at a time; a failed delivery is retried.

    \b
    Examples:
      harness events shop.orders | tail -n 3
      harness events shop.orders --after 41 --follow
      harness events shop.orders --follow --subscriber billing --webhook https://billing.example/tables
      harness events shop.orders --follow --subscriber chat --webhook env:CHAT_WEBHOOK
      harness events shop.orders --follow --subscriber mirror --topic table-events
      OPENLINEAGE_URL=http://marquez:5000 harness events shop.orders --follow --subscriber lineage --openlineage
    """
    if (webhook or topic or openlineage) and subscriber is None:
        raise UsageError("a delivery needs --subscriber NAME, whose position is kept")
    if sum(map(bool, (webhook, topic, openlineage))) > 1:
        raise UsageError("--webhook, --topic and --openlineage exclude each other: run one subscriber for each")
    with opened(settings) as harness:
        found = harness.table(table)
        if subscriber is None:
            for event in found.events(after=after, follow=follow):
                _print(table, event)
            return
        with _delivery(harness, found, webhook, topic, openlineage=openlineage) as deliver:
            _deliver(found, deliver, subscriber, after=after, follow=follow)


@contextmanager
def _delivery(
    harness: Harness, table: Table, webhook: str | None, topic: str | None, *, openlineage: bool
) -> Iterator[Delivery]:
    from harness_pipelines.sinks import deliveries

    if webhook:
        with deliveries.webhook(_kept(webhook)) as deliver:
            yield deliver
    elif topic:
        harness.stores.log.describe(topic)  # a topic that is not there is said at once
        with deliveries.kafka_topic(lambda: harness.stores.producer(topic)) as deliver:
            yield deliver
    elif openlineage:

        def tell(_table: str, event: Event) -> Iterable[object]:
            from harness_pipelines.read.report.openlineage import run_events  # with the client, which is an extra

            return run_events(harness.stores, table.row, event)

        with deliveries.openlineage(tell) as deliver:
            yield deliver
    else:
        yield _print


def _kept(webhook: str) -> str:
    """Return the URL from the variable or the file that *webhook* names. Raises: UsageError."""
    kind, _, name = webhook.partition(":")
    if kind == "env":
        found = os.environ.get(name, "")
    elif kind == "file":
        try:
            found = read_text(name, SECRET_BYTES_MAX)
        except Unreadable as error:
            raise UsageError(f"--webhook {webhook}: the file {error}") from error
    else:
        return webhook
    if not found.strip():
        raise UsageError(f"--webhook {webhook}: it holds no URL")
    return found.strip()


def _deliver(table: Table, deliver: Delivery, subscriber: str, *, after: int, follow: bool) -> None:
    """Pass each event to *deliver* until it arrives. Without *follow* the first failed delivery ends the command."""
    pauses = Pauses(AGAIN_S / 5, AGAIN_S * 12)
    while True:
        try:
            with table.subscription(subscriber, after=after, follow=follow) as events:
                for event in events:
                    with _kept_in_ledger(table, subscriber):
                        deliver(table.name, event)
                    pauses.worked()
        except TryAgain as error:
            if not follow:
                raise
            pause_s = pauses.next_s()
            note(f"harness: {error}. Next attempt in {pause_s:.0f} s")
            time.sleep(pause_s)
        else:
            return


@contextmanager
def _kept_in_ledger(table: Table, subscriber: str) -> Iterator[None]:
    """Record a failed delivery, so that `harness status` and the metrics show it too."""
    try:
        yield
    except TryAgain as error:
        with suppress(TryAgain):  # a ledger that is away says so itself, at the next event
            table.harness.states.failed(subscriber, redact(str(error)))
        raise


def _print(_table: str, event: Event) -> None:
    click.echo(to_json(event.to_json()))
    sys.stdout.flush()
