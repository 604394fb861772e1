"""`harness table init`: propose a table's spec from the records of its topic."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import opened, split_names
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.stages.table.proposed import ProposedSpec

RECORDS_MAX = 100_000


@click.command("init")
@click.argument("topic", required=False)
@click.option("--table", "name", metavar="NAME", help="Name of the table.  [default: made of the topic's]")
@click.option("--key", callback=split_names, metavar="COLUMNS", help="Columns of the table's key, such as order_id.")
@click.option(
    "--records",
    type=click.IntRange(1, RECORDS_MAX),
    default=500,
    show_default=True,
    help="How many records are read, the oldest and the newest.",
)
@click.option("--all", "pattern", metavar="PATTERN", help="Of all topics that match, such as 'shop.*', with --into.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER", help="Write the files there."
)
@json_option
@click.pass_obj
def init_command(
    settings: Settings,
    topic: str | None,
    name: str | None,
    key: list[str] | None,
    *,
    records: int,
    pattern: str | None,
    into: Path | None,
    json_target: str | None,
) -> None:
    """Propose the spec of a table from the records of TOPIC, and print it as a file for `harness table apply`.

    Reads the oldest and newest records and nothing else, and changes nothing. Types are those that the decoders take:
    ISO 8601 text, numbers that count time since 1970, amounts, nested fields. Records that name a schema in the
    registry are read by it; Debezium's events are recognized.

    \b
    Examples:
      harness table init orders > orders.yaml
      harness table init orders --table shop.orders --key order_id > orders.yaml
      harness table init --all 'shop.*' --into specs
    """
    _check(topic, pattern, into, name, key)
    with opened(settings) as harness:
        if topic is not None:
            from harness_pipelines.stages.table.proposed import propose_spec

            made = propose_spec(harness.stores, topic, table=name, key=key or (), records=records)
            _show(made, json_target)
        else:
            assert pattern is not None and into is not None, "checked"
            done = _write_all(harness, pattern, into, records)
            emit({"specs": done}, json_target, lambda: _told(done, into))


def _check(topic: str | None, pattern: str | None, into: Path | None, name: str | None, key: list[str] | None) -> None:
    """Raises: UsageError."""
    if (topic is None) == (pattern is None):
        raise UsageError("name one topic, or several by --all PATTERN; `harness topics` lists them")
    if (pattern is None) != (into is None):
        raise UsageError("--all and --into go together: --all 'shop.*' --into specs")
    if pattern is not None and (name or key):
        raise UsageError("--table and --key are words about one topic; with --all correct the files instead")


def _show(made: ProposedSpec, json_target: str | None) -> None:
    from harness_pipelines.show.spec_file import spec_text

    text = spec_text(made, file=f"{made.spec.name}.yaml")
    emit(_to_json(made), json_target, lambda: click.echo(text, nl=False))
    if json_target is None:
        note(f"harness: {made.sampled.summary()}")
        for one in made.notes:
            note(f"harness: {one}")


def _to_json(made: ProposedSpec) -> dict[str, Any]:
    return {
        "spec": dict(made.words),
        "seen": {one.column.name: one.note for one in made.proposal.fields.columns},
        "left_out": dict(made.proposal.fields.left_out),
        "key_of_records": list(made.proposal.key),
        "sample": made.sampled.to_json(),
        "notes": list(made.notes),
    }


def _write_all(harness: Harness, pattern: str, into: Path, records: int) -> list[dict[str, Any]]:
    """A file for each topic that matches *pattern* and has no table and no file yet; what became of each."""
    from fnmatch import fnmatchcase

    from harness_pipelines.protocol.topics import topics_of
    from harness_pipelines.show.output import replacing
    from harness_pipelines.show.spec_file import spec_text
    from harness_pipelines.stages.table.proposed import propose_spec, table_of

    topics = [topic for topic in harness.stores.log.topics() if fnmatchcase(topic, pattern)]
    if not topics:
        raise UsageError(f"no topic matches {pattern!r}; `harness topics` lists them")
    read = {one: table.name for table in harness.tables() for one in topics_of(table.spec.topic)}
    into.mkdir(parents=True, exist_ok=True)
    done: list[dict[str, Any]] = []
    for topic in topics:
        file = into / f"{table_of(topic)}.yaml"
        if topic in read:
            done.append({"topic": topic, "file": None, "why": f"table {read[topic]} reads it"})
            continue
        if file.exists():
            done.append({"topic": topic, "file": None, "why": f"{file} is there already"})
            continue
        try:
            made = propose_spec(harness.stores, topic, records=records)
        except TryAgain:  # what concerns all of them; files that are written stay
            raise
        except HarnessError as why:
            done.append({"topic": topic, "file": None, "why": str(why)})
        else:
            with replacing(file) as sink:
                sink.write(spec_text(made, file=str(file)).encode())
            done.append({"topic": topic, "file": str(file), "why": made.sampled.summary()})
    return done


def _told(done: list[dict[str, Any]], into: Path) -> None:
    for one in done:
        click.echo(f"{one['topic']}  {one['file'] or 'no file'}: {one['why']}")
    if any(one["file"] for one in done):
        click.echo(f"next: read them through, then: harness table apply {into}")
