"""`harness topics` and `harness peek`: what there is in Kafka, before there is a table."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import LONG_MAX, opened
from harness_pipelines.errors import HarnessError
from harness_pipelines.show.output import emit, json_option, note, printable, to_json
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.formats.infer.shown import Shown
    from harness_pipelines.stages.table.peeked import Peeked

VALUE_CHARS = 200  #: of a value on a line
RECORDS_MAX = 10_000


@click.command()
@click.argument("pattern", default="*")
@json_option
@click.pass_obj
def topics(settings: Settings, pattern: str, json_target: str | None) -> None:
    """List the topics that match PATTERN, their partitions and records, and the tables that read them.

    \b
    Examples:
      harness topics
      harness topics 'shop.*' --json | jq -r '.topics[] | select(.tables == []) | .topic'
    """
    with opened(settings) as harness:
        found = _topics(harness, pattern)
    emit({"topics": found}, json_target, lambda: _told(found, pattern))


def _topics(harness: Harness, pattern: str) -> list[dict[str, Any]]:
    log = harness.stores.log
    names = [name for name in log.topics() if fnmatchcase(name, pattern)]
    identities = log.identities(names)
    marks = log.watermarks_of({n: one.partitions for n, one in identities.items() if not isinstance(one, HarnessError)})
    tables = _tables(harness)
    found = []
    for name in names:
        identity, ends = identities[name], marks.get(name)
        trouble = identity if isinstance(identity, HarnessError) else ends if isinstance(ends, HarnessError) else None
        found.append({
            "topic": name,
            "partitions": None if isinstance(identity, HarnessError) else len(identity.partitions),
            "offsets": sum(m.end - m.low for m in ends.values()) if isinstance(ends, dict) else None,
            "tables": tables.get(name, []) if tables is not None else None,
            "trouble": None if trouble is None else str(trouble),
        })  # fmt: skip
    return found


def _tables(harness: Harness) -> dict[str, list[str]] | None:
    """By topic the tables that read it; None: there is no ledger to ask yet."""
    from harness_pipelines.protocol.topics import topics_of

    try:
        every = harness.tables()
    except HarnessError as error:
        note(f"harness: which tables read them is not known: {error}")
        return None
    found: dict[str, list[str]] = {}
    for table in every:
        for topic in topics_of(table.spec.topic):
            found.setdefault(topic, []).append(table.name)
    return found


def _told(found: list[dict[str, Any]], pattern: str) -> None:
    if not found:
        note("there are no topics" if pattern == "*" else f"no topic matches {pattern!r}")
    width = max((len(one["topic"]) for one in found), default=0)
    for one in found:
        if one["trouble"] is not None:
            click.echo(f"{one['topic']:{width}}  {printable(one['trouble'])}")
            continue
        read = "" if one["tables"] is None else f"  {', '.join(one['tables']) or 'no table'}"
        click.echo(f"{one['topic']:{width}}  {one['partitions']:>4} partitions  {one['offsets']:>14,} offsets{read}")
    if any(one["tables"] == [] for one in found):
        note("next: harness peek TOPIC shows records; harness table init TOPIC proposes a table")


@click.command()
@click.argument("topic")
@click.option("-n", "count", type=click.IntRange(1, RECORDS_MAX), default=10, show_default=True, help="Records shown.")
@click.option("--partition", type=click.IntRange(0, LONG_MAX), help="Of this partition only.")
@click.option("--from", "offset", type=click.IntRange(0, LONG_MAX), help="From this offset on, not the newest.")
@json_option
@click.pass_obj
def peek(
    settings: Settings, topic: str, *, count: int, partition: int | None, offset: int | None, json_target: str | None
) -> None:
    """Print the newest records of TOPIC: key, headers, and value as JSON, text or hexadecimal digits.

    Records that name a schema in the registry are decoded by it. Nothing is changed, and no position is kept. Of more
    than 64 partitions with records the first 64 are read; --partition reads any other.

    \b
    Examples:
      harness peek orders -n 3
      harness peek orders --partition 2 --from 1000 --json | jq '.records[].value'
    """
    from harness_pipelines.stages.table.peeked import peek as look

    with opened(settings) as harness:
        found = look(harness.stores, topic, count, partition=partition, offset=offset)
    shown = {"topic": topic, "records": [one.to_json() for one in found]}
    emit(shown, json_target, lambda: _records(found))


def _records(found: list[Peeked]) -> None:
    for one in found:
        at = "no time" if one.time is None else f"{one.time:%Y-%m-%d %H:%M:%S} UTC"
        click.echo(f"partition {one.partition}, offset {one.offset}, {at}")
        if one.key.form != "null":
            click.echo(f"  key    {one.key.form}: {_short(one.key)}")
        for name, data in one.headers:
            text = "null" if data is None else _cut(data.decode(errors="replace"))
            click.echo(f"  header {printable(name)}: {text}")
        click.echo(f"  value  {one.value.form}, {one.value_bytes:,} bytes: {_short(one.value)}")
    if not found:
        note("no record is there")


def _short(shown: Shown) -> str:
    if shown.text is not None:
        return _cut(shown.text)
    return _cut(to_json(shown.value) if isinstance(shown.value, dict) else str(shown.value))


def _cut(text: str) -> str:
    text = printable(text)
    return text if len(text) <= VALUE_CHARS else f"{text[:VALUE_CHARS]}... ({len(text):,} characters)"
