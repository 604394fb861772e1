"""`harness quarantine`: records that did not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from harness_pipelines.cli.common import Function, MomentType, check_wish, not_asked, opened, wish_options
from harness_pipelines.cli.show.output import emit, json_option, note
from harness_pipelines.errors import HarnessError
from harness_pipelines.formats.base import Reason
from harness_pipelines.protocol.changes.corrections import Wanted
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

LIST_MAX = 20
STATES = ("held", "replayed", "dropped")


class NotQuarantined(HarnessError):
    """No such record was set aside."""


_REASON = click.option(
    "--reason", "reasons", multiple=True, type=click.Choice([str(reason) for reason in Reason]),
    help="Only these; may be repeated.",
)  # fmt: skip
_PARTITION = click.option("--partition", type=click.IntRange(min=0), help="Only this partition.")
_OFFSET = click.option("--offset", type=click.IntRange(min=0), help="Only this offset, of --partition.")
_SINCE = click.option("--since", type=MomentType(), help="Only those of that time in Kafka or later.")
_UNTIL = click.option("--until", type=MomentType(), help="Only those from before that time in Kafka.")
_ASIDE_SINCE = click.option("--set-aside-since", type=MomentType(), help="Only those set aside then or later.")
_ASIDE_UNTIL = click.option("--set-aside-until", type=MomentType(), help="Only those set aside before.")
_SCHEMA_ID = click.option(
    "--schema-id", type=click.IntRange(0, 2**31 - 1), help="Only those whose value names this schema of the registry."
)
_DETAIL = click.option("--detail", metavar="TEXT", help="Only those whose detail contains this text.")


def _which(function: Function) -> Function:
    """The options that choose records; what they give is a `Wanted`."""
    for option in (_DETAIL, _SCHEMA_ID, _ASIDE_UNTIL, _ASIDE_SINCE, _UNTIL, _SINCE, _OFFSET, _PARTITION, _REASON):
        function = option(function)
    return function


@click.group()
def quarantine() -> None:
    """Look at records that did not fit their table's columns, put them back, or give them up."""


@quarantine.command("list")
@click.argument("table")
@_which
@click.option("--state", type=click.Choice(STATES), default="held", show_default=True, help="Those, of what is listed.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=LIST_MAX, show_default=True, help="At most so many records."
)
@json_option
@click.pass_obj
def list_command(
    settings: Settings, /, table: str, *, state: str, limit: int, json_target: str | None, **which: Any
) -> None:
    """Count the records of a table that were set aside, by state and reason, and list the first ones.

    A record is held until it is put back (replayed) or given up (dropped). The options that choose records are those of
    replay and drop, and hold for what is counted too: look first what they choose. Times are UTC unless they name a
    zone.

    \b
    Examples:
      harness quarantine list shop.orders --reason wrong_type
      harness quarantine list shop.orders --since 2026-11-22T10:00 --until 2026-11-22T11:00
      harness quarantine list shop.orders --schema-id 17 --detail '`amount`'
      harness quarantine list shop.orders --state replayed
    """
    from harness_pipelines.ledgers.postgres.views.quarantine import counts_set_aside, set_aside
    from harness_pipelines.stages.replay.quarantine import check_wanted

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
            lies += "" if record["whole"] else f" (the first of {_bytes(record):,} bytes are kept)"
            click.echo(f"  {record['partition']}:{record['offset']}  {record['reason']}: {record['detail']}{lies}")
        if not reasons:
            click.echo("nothing is quarantined")

    emit(shown, json_target, human)


@quarantine.command("show")
@click.argument("table")
@click.argument("partition", type=int)
@click.argument("offset", type=int)
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
        row, readers = harness.table(table).row, harness.stores.readers
        found = with_bytes(readers, row, set_aside(readers, row, Wanted(partition=partition, offset=offset), limit=1))
    if not found:
        raise NotQuarantined(
            f"{table}: no quarantined record at partition {partition}, offset {offset}; "
            f"`harness quarantine list {table}` lists them"
        )
    [record] = found
    shown = _shown(record, row.spec)

    def human() -> None:
        click.echo(f"{table}, partition {partition}, offset {offset}, set aside at {shown['recorded_at']:%F %T} UTC")
        if shown["state"] != "held":
            click.echo(f"{shown['state']} by {shown['settled_by']} at {shown['settled_at']:%F %T} UTC")
        click.echo(f"{shown['reason']}: {shown['detail']}")
        if shown["schema_id"] is not None:
            click.echo(f"schema: {shown['schema_id']} of the registry")
        if shown["kafka_time"] is not None:
            click.echo(f"time:   {shown['kafka_time']:%F %T} UTC in Kafka")
        for part in ("key", "value"):
            click.echo(f"{part}:   {_text(record[part])}")
            if not record["whole"] and (size := record[f"{part}_bytes"]) is not None:
                click.echo(f"        of its {size:,} bytes the first are kept")
        for name, value in shown["headers"]:
            click.echo(f"header {name}: {value}")

    emit(shown, json_target, human)


@quarantine.command("replay")
@click.argument("table")
@_which
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False),
    help="A spec with the table's columns that says otherwise how values are written; for this time only.",
)
@click.option("--dry-run", is_flag=True, help="Only show which records fit now.")
@json_option
@click.pass_obj
def replay_command(
    settings: Settings, /, table: str, *, decoder: str | None, dry_run: bool, json_target: str | None, **which: Any
) -> None:
    """Decode quarantined records again, and put those that fit now back into the table.

    Each becomes a row at its own partition and offset, in both views at once and only once; versions from before do not
    change. The table's spec decodes them as it is today. Records that the lake has not passed yet wait: run the table
    until it is idle, and repeat the command. `harness revert` to an older version takes them back to quarantine.

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
            progress=lambda done: note(f"{done.records:,} records looked at, {done.replayed:,} put back"),
        )  # fmt: skip

    def human() -> None:
        verb = "would be put back" if dry_run else "put back"
        made = f" in version {', '.join(map(str, done.versions))}" if done.versions else ""
        click.echo(f"{done.records:,} records looked at: {done.replayed:,} {verb}{made}")
        for reason, count in done.refused.items():
            click.echo(f"{count:,} still refused: {reason}")
        for one in done.shown:
            click.echo(f"  {one['partition']}:{one['offset']}  {one['reason']}: {one['detail']}")
        if done.filtered:
            click.echo(f"{done.filtered:,} fit, and the transform's filter leaves them out: `harness quarantine drop`")
        for why, count in done.waiting.items():
            click.echo(f"{count:,} wait: {why}; `{done.way_on}`, then repeat this")

    emit(done.to_json(), json_target, human)


@quarantine.command("drop")
@click.argument("table")
@_which
@wish_options("Only count the records.")
@json_option
@click.pass_obj
def drop_command(
    settings: Settings, /, table: str, *, dry_run: bool, yes: bool, json_target: str | None, **which: Any
) -> None:
    """Give quarantined records up: they are never put back, and stay accounted for with their bytes.

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
        click.echo(f"{count:,} records {'given up' if yes else 'would be given up'}")

    emit({"table": table, "dry_run": not yes, "records": count}, json_target, human)
    if not (yes or dry_run):
        raise not_asked("give them up")


def _listed(record: Mapping[str, Any], spec: TableSpec) -> dict[str, Any]:
    """A record for JSON, without its bytes."""
    from harness_pipelines.formats.columns.times import kafka_time
    from harness_pipelines.formats.schema.wire import schema_id_of
    from harness_pipelines.spec.formats import names_schema

    begins = record["value_begins"]
    named = schema_id_of(bytes(begins)) if names_schema(spec) and begins else record["schema_id"]
    more = {"kafka_time": kafka_time(record["kafka_ms"]), "schema_id": named}
    ours = {"kafka_ms", "value_begins", "kept_bytes"}  # what reading it costs depends on where it lies
    return {name: value for name, value in record.items() if name not in ours} | more


def _shown(record: Mapping[str, Any], spec: TableSpec) -> dict[str, Any]:
    """The same with its bytes: as text where they are text, and as hex always."""
    raw = {part: None if record[part] is None else bytes(record[part]) for part in ("key", "value")}
    texts = {f"{part}_text": _decoded(value) for part, value in raw.items()}
    return _listed(record, spec) | raw | texts


def _bytes(record: Mapping[str, Any]) -> int:
    """Of key and value, as they were."""
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
