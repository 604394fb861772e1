"""`harness replay`: records of a range are decoded anew."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import check_wish, not_asked, opened, wish_options
from harness_pipelines.cli.show.output import emit, json_option
from harness_pipelines.errors import UsageError
from harness_pipelines.spec.settings import Settings


@click.command()
@click.argument("table")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="The Kafka partition.")
@click.option("--from", "low", type=click.IntRange(min=0), required=True, help="The first offset.")
@click.option("--to", "high", type=click.IntRange(min=1), required=True, help="One above the last offset.")
@click.option(
    "--decoder",
    type=click.Path(exists=True, dir_okay=False),
    help="A spec with the table's columns that says otherwise how values are written; for this time only.",
)
@wish_options("Only count what would change, and show some of it.")
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
    """Decode the records of [FROM, TO) of a partition anew, and replace the rows that come out otherwise.

    The table's spec decodes them as it is today, from Kafka, or from the column `from: raw_value` where Kafka has
    dropped them. Rows that come out equal are left alone; the others are replaced in both views at once. A row whose
    record does not fit any more goes to quarantine; a record in quarantine that fits becomes a row. Versions from
    before do not change, and `harness revert` to one of them takes the replay back.

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
            click.echo(f"{told['refused']:,} are no rows, and are held in quarantine from now on")
        if told["kept"]:
            click.echo(f"{told['kept']:,} rows stay: Kafka has no record of them any more")
        if told["dropped"]:
            click.echo(f"{told['dropped']:,} were given up, and stay so")
        for one in told["sample"]:
            click.echo(f"  {one['offset']}  {one['kind']}: {_difference(one)}")
        if told["waiting"]:
            click.echo(f"it would have to wait: {told['waiting']}")
        if told["version"] is not None:
            click.echo(f"published as version {told['version']}")
        elif yes:
            click.echo("nothing had to be changed: nothing was published")

    emit(told, json_target, human)
    if not (yes or dry_run):
        raise not_asked("replace the rows")


def _difference(one: dict[str, object]) -> str:
    if "reason" in one:
        return f"{one['reason']}: {one['detail']}"
    was, now = one.get("was"), one["now"]
    return f"{was} -> {now}" if was is not None else f"{now}"
