"""`harness quarantine`: records that do not fit their table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import LONG_MAX, Function, MomentType, check_wish, not_asked, opened, wish_options
from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.base import Reason
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.show.output import emit, json_option, note, printable
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

LIST_MAX = 20
STATES = ("held", "replayed", "dropped")


class NotQuarantined(HarnessError):
    """The quarantine has no such record."""


_REASON = click.option(
    "--reason", "reasons", multiple=True, type=click.Choice([str(reason) for reason in Reason]),
    help="Only records with this reason; may be repeated.",
)  # fmt: skip
_PARTITION = click.option("--partition", type=click.IntRange(0, 2**31 - 1), help="Only records of this partition.")
_OFFSET = click.option(
    "--offset", type=click.IntRange(0, LONG_MAX), help="Only the record at this offset of --partition."
)
_SINCE = click.option("--since", type=MomentType(), help="Only records with this Kafka timestamp or a later one.")
_UNTIL = click.option("--until", type=MomentType(), help="Only records with an earlier Kafka timestamp.")
_ASIDE_SINCE = click.option(
    "--set-aside-since", type=MomentType(), help="Only records quarantined at this time or later."
)
_ASIDE_UNTIL = click.option("--set-aside-until", type=MomentType(), help="Only records quarantined before this time.")
_SCHEMA_ID = click.option(
    "--schema-id", type=click.IntRange(0, 2**31 - 1), help="Only records whose value names this registry schema."
)
_DETAIL = click.option("--detail", metavar="TEXT", help="Only records whose detail contains this text.")


def _which(function: Function) -> Function:
    """Add the options that select records; they produce a `Wanted`."""
    for option in (_DETAIL, _SCHEMA_ID, _ASIDE_UNTIL, _ASIDE_SINCE, _UNTIL, _SINCE, _OFFSET, _PARTITION, _REASON):
        function = option(function)
    return function


@click.group()
def quarantine() -> None:
    """List, show, replay or drop records that do not fit their table's columns."""


@quarantine.command("list")
@click.argument("table")
@_which
@click.option(
    "--state", type=click.Choice(STATES), default="held", show_default=True, help="Only records in this state."
)
@click.option(
    "--limit", type=click.IntRange(1, LONG_MAX), default=LIST_MAX, show_default=True, help="List at most N records."
)
@json_option
@click.pass_obj
def list_command(
    settings: Settings, /, table: str, *, state: str, limit: int, json_target: str | None, **which: Any
) -> None:
    """Count the quarantined records of a table by state and reason, and list the first ones.

    A record stays in quarantine until it is replayed or dropped. The options that select records also apply to replay
    and drop, so list first what they select. Times are UTC unless they name a zone.

    \b
    Examples:
      harness quarantine list shop.orders --reason wrong_type
      harness quarantine list shop.orders --since 2026-11-22T10:00 --until 2026-11-22T11:00
      harness quarantine list shop.orders --schema-id 17 --detail '`amount`'
      harness quarantine list shop.orders --state replayed
    """
    from harness_pipelines.ledgers.postgres.views.quarantine import counts_set_aside, set_aside
    from harness_pipelines.stages.replay.asked import check_wanted

    wanted = Wanted(**which)
    with opened(settings) as harness:
        row, readers = harness.table(table).row, harness.stores.readers
        check_wanted(row, wanted)
        reasons = counts_set_aside(readers, row, wanted)
        records = set_aside(readers, row, wanted, state=state, limit=limit)
    shown = {"table": table, "reasons": [dict(r) for r in reasons], "records": [_listed(r, row.spec) for r in records]}

    def human() -> None:
        for one in reasons:
            where = f"partition {one['partition']}, offsets {one['first_offset']:,} to {one['last_offset']:,}"
            state = "" if one["state"] == "held" else f", {one['state']}"
            click.echo(f"{one['records']:,} {one['reason']}{state}: {where}")
        for record in records:
            lies = " (bytes in the lake)" if record["in_lake"] else ""
            lies += "" if record["whole"] else f" (only the first of {_bytes(record):,} bytes are kept)"
            click.echo(f"  {record['partition']}:{record['offset']}  {record['reason']}: {record['detail']}{lies}")
        if not reasons:
            click.echo("nothing is quarantined")

    emit(shown, json_target, human)


@quarantine.command("show")
@click.argument("table")
@click.argument("partition", type=click.IntRange(0, 2**31 - 1))
@click.argument("offset", type=click.IntRange(0, LONG_MAX))
@json_option
@click.pass_obj
def show_command(settings: Settings, /, table: str, partition: int, offset: int, *, json_target: str | None) -> None:
    """Show one quarantined record with its raw bytes.

    \b
    Example:
      harness quarantine show shop.orders 0 5000
    """
    from harness_pipelines.ledgers.postgres.views.quarantine import set_aside, with_bytes

    with opened(settings) as harness:
        row, stores = harness.table(table).row, harness.stores
        listed = set_aside(stores.readers, row, Wanted(partition=partition, offset=offset), limit=1)
        found = with_bytes(stores.readers, row, listed, in_lake=stores.quarantined_in_lake)
    if not found:
        raise NotQuarantined(
            f"{table}: no quarantined record at partition {partition}, offset {offset}; "
            f"`harness quarantine list {table}` lists them"
        )
    [record] = found
    shown = _shown(record, row.spec)

    def human() -> None:
        click.echo(f"{table}, partition {partition}, offset {offset}, quarantined at {shown['recorded_at']:%F %T} UTC")
        if shown["state"] != "held":
            click.echo(f"{shown['state']} by {shown['settled_by']} at {shown['settled_at']:%F %T} UTC")
        click.echo(f"{shown['reason']}: {shown['detail']}")
        if shown["schema_id"] is not None:
            click.echo(f"schema: {shown['schema_id']} of the registry")
        if shown["kafka_time"] is not None:
            click.echo(f"time:   {shown['kafka_time']:%F %T} UTC in Kafka")
        for part in ("key", "value"):
            lines = _text(record[part]).split("\n")  # indented, so that none of them looks like one of ours
            click.echo(f"{part}:   " + "\n         ".join(map(printable, lines)))
            if not record["whole"] and (size := record[f"{part}_bytes"]) is not None:
                click.echo(f"        only the first of its {size:,} bytes are kept")
        for name, value in shown["headers"]:
            click.echo(f"header {printable(name)}: {value}")

    emit(shown, json_target, human)


@quarantine.command("replay")
@click.argument("table")
@_which
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False),
    help="Decode with this spec, for this run only. It has the table's columns and another value encoding.",
)
@click.option("--dry-run", is_flag=True, help="Show which records fit now; change nothing.")
@json_option
@click.pass_obj
def replay_command(
    settings: Settings, /, table: str, *, decoder: str | None, dry_run: bool, json_target: str | None, **which: Any
) -> None:
    """Decode quarantined records again and add those that now fit to the table.

    Each record becomes a row at its own partition and offset, exactly once, in both views in one commit. Earlier
    versions do not change. The current table spec decodes the records. Records at offsets that the lake has not
    reached wait: run the table until it is idle and repeat the command. `harness revert` to an older version returns
    the records to quarantine.

    \b
    Examples:
      harness quarantine replay shop.orders --dry-run
      harness quarantine replay shop.orders --reason unknown_field
      harness quarantine replay shop.orders --schema-id 17 --since 2026-11-22T10:00
      harness quarantine replay shop.orders --decoder orders-with-epoch-times.yaml
    """
    from harness_pipelines.spec.load import load_spec
    from harness_pipelines.stages.replay.quarantine import replay

    wanted = Wanted(**which)
    with opened(settings) as harness:
        spec = None if decoder is None else load_spec(decoder)
        row = harness.table(table).row
        done = replay(
            harness.stores, row, wanted, decoder=spec, dry_run=dry_run,
            progress=lambda done: note(f"{quantity(done.records, 'record')} decoded, {done.replayed:,} replayed"),
        )  # fmt: skip

    def human() -> None:
        verb = "would be replayed" if dry_run else "replayed"
        made = f" in version {', '.join(map(str, done.versions))}" if done.versions else ""
        click.echo(f"{quantity(done.records, 'record')} decoded: {done.replayed:,} {verb}{made}")
        for reason, count in done.refused.items():
            click.echo(f"{count:,} still refused: {reason}")
        for one in done.shown:
            click.echo(f"  {one['partition']}:{one['offset']}  {one['reason']}: {one['detail']}")
        if done.filtered:
            click.echo(f"{done.filtered:,} fit but the transform's filter excludes them: `harness quarantine drop`")
        for why, count in done.waiting.items():
            click.echo(f"{count:,} wait: {why}; `{done.way_on}`, then repeat this command")

    emit(done.to_json(), json_target, human)


@quarantine.command("drop")
@click.argument("table")
@_which
@wish_options("Count the records; change nothing.")
@json_option
@click.pass_obj
def drop_command(
    settings: Settings, /, table: str, *, dry_run: bool, yes: bool, json_target: str | None, **which: Any
) -> None:
    """Drop quarantined records: they are never replayed, but their bytes and their count are kept.

    \b
    Example:
      harness quarantine drop shop.orders --reason malformed --yes
    """
    from harness_pipelines.stages.replay.quarantine import drop

    check_wish(dry_run=dry_run, yes=yes)
    wanted = Wanted(**which)
    with opened(settings) as harness:
        count = drop(harness.stores, harness.table(table).row, wanted, dry_run=not yes)

    def human() -> None:
        click.echo(f"{quantity(count, 'record')} {'dropped' if yes else 'would be dropped'}")

    emit({"table": table, "dry_run": not yes, "records": count}, json_target, human)
    if not (yes or dry_run):
        raise not_asked("drop them")


def _listed(record: Mapping[str, Any], spec: TableSpec) -> dict[str, Any]:
    """Return a record for JSON, without its bytes."""
    from harness_pipelines.formats.columns.times import kafka_time
    from harness_pipelines.formats.schema.wire import schema_id_of
    from harness_pipelines.spec.sections.formats import names_schema

    begins = record["value_begins"]
    named = schema_id_of(bytes(begins)) if names_schema(spec) and begins else record["schema_id"]
    more = {"kafka_time": kafka_time(record["kafka_ms"]), "schema_id": named}
    ours = {"kafka_ms", "value_begins", "kept_bytes"}  # what reading it costs depends on where it lies
    return {name: value for name, value in record.items() if name not in ours} | more


def _shown(record: Mapping[str, Any], spec: TableSpec) -> dict[str, Any]:
    """Return a record for JSON with its bytes: as hex, and also as text if they are text."""
    raw = {part: None if record[part] is None else bytes(record[part]) for part in ("key", "value")}
    texts = {f"{part}_text": _decoded(value) for part, value in raw.items()}
    return _listed(record, spec) | raw | texts


def _bytes(record: Mapping[str, Any]) -> int:
    """Return the original size of key and value together."""
    return (record["key_bytes"] or 0) + (record["value_bytes"] or 0)


def _decoded(value: bytes | None) -> str | None:
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _text(value: bytes | None) -> str:
    if value is None:
        return "null"
    text = _decoded(bytes(value))
    return bytes(value).hex() if text is None else text
