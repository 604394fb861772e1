"""`harness replay`: decode the records of an offset range again."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings


@click.command()
@click.argument("table")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Kafka partition.")
@click.option("--from", "low", type=click.IntRange(min=0), required=True, help="First offset to replay.")
@click.option(
    "--to", "high", type=click.IntRange(min=1), required=True, help="End of the range: one above the last offset."
)
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False),
    help="Decode with this spec, for this run only. It has the table's columns and another value encoding.",
)
@wish_options("Count the rows that would change and show some of them; change nothing.")
@json_option
@click.pass_obj
def replay(
    settings: Settings,
    /,
    table: str,
    *,
    decoder: str | None,
    dry_run: bool,
    yes: bool,
    json_target: str | None,
    **wanted: int,
) -> None:
    """Decode the records of [FROM, TO) of a partition again and replace the rows that differ.

    The current table spec decodes them. Records come from Kafka, or from the column `from: raw_value` where Kafka
    has dropped them. Equal rows stay untouched. Rows that differ are replaced in both views in one commit. A row whose
    record no longer fits goes to quarantine. A quarantined record that fits becomes a row. Earlier versions do not
    change, and `harness revert` to one of them undoes the replay.

    \b
    Examples:
      harness replay shop.orders --partition 3 --from 10000 --to 12000 --dry-run
      harness replay shop.orders --partition 3 --from 10000 --to 12000 --yes
      harness replay shop.orders --partition 0 --from 0 --to 500 --decoder orders-in-cents.yaml --yes
    """
    from harness_pipelines.protocol.bounds import OffsetRange
    from harness_pipelines.spec.load import load_spec
    from harness_pipelines.stages.replay.ranges import replay_range

    check_wish(dry_run=dry_run, yes=yes)
    partition, low, high = wanted["partition"], wanted["low"], wanted["high"]
    if low >= high:
        raise UsageError(f"--from {low} is not below --to {high}")
    with opened(settings) as harness:
        done = replay_range(
            harness.stores,
            harness.table(table).row,
            OffsetRange(partition=partition, low=low, high=high),
            decoder=None if decoder is None else load_spec(decoder),
            dry_run=not yes,
        )
    told = done.to_json()

    def human() -> None:
        click.echo(
            f"{told['records']:,} records of partition {partition} [{low:,}, {high:,}): {told['equal']:,} equal, "
            f"{told['changed']:,} changed, {told['added']:,} added, {told['removed']:,} removed"
        )
        if told["refused"]:
            click.echo(f"{told['refused']:,} records do not fit and are now in quarantine")
        if told["kept"]:
            click.echo(f"{told['kept']:,} rows stay: Kafka no longer has their records")
        if told["dropped"]:
            click.echo(f"{told['dropped']:,} dropped records stay dropped")
        for one in told["sample"]:
            click.echo(f"  {one['offset']}  {one['kind']}: {_difference(one)}")
        if told["waiting"]:
            click.echo(f"the replay would have to wait: {told['waiting']}")
        if told["version"] is not None:
            click.echo(f"published as version {told['version']}")
        elif yes:
            click.echo("nothing changed: no version was published")

    emit(told, json_target, human)
    if not (yes or dry_run):
        raise not_asked("replace the rows")


def _difference(one: dict[str, object]) -> str:
    if "reason" in one:
        return f"{one['reason']}: {one['detail']}"
    was, now = one.get("was"), one["now"]
    return f"{was} -> {now}" if was is not None else f"{now}"
