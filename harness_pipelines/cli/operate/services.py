"""`harness services`: the embedded PostgreSQL, Kafka and Spark Connect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import click

from harness_pipelines.errors import UsageError
from harness_pipelines.services import SERVICE_NAMES, Endpoints, ServiceName, Services
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

only_option = click.option(
    "--only", multiple=True, type=click.Choice(SERVICE_NAMES), help="Only this service; may be repeated."
)


@click.group()
def services() -> None:
    """Start, show and stop the embedded services."""


@services.command()
@only_option
@click.option("--s3", is_flag=True, help="Keep the warehouse on an embedded object store, from now on.")
@click.option("--no-spark", is_flag=True, help="Start all but Spark, for tables that Arrow moves.")
@json_option
@click.pass_obj
def up(settings: Settings, only: tuple[str, ...], s3: bool, no_spark: bool, json_target: str | None) -> None:
    """Start the services that do not run; return when all of them answer.

    \b
    Examples:
      harness services up
      harness services up --s3
      HARNESS_ENGINE=arrow harness services up --no-spark
      harness services up --only postgres --only kafka
    """
    if no_spark and only:
        raise UsageError("--no-spark and --only both say what starts: write one of them")
    found = Services.from_settings(settings)
    names = found.without_spark(note) if no_spark else _names(only)
    endpoints = found.up(only=names, s3=s3, progress=note)
    if no_spark and settings.engine != "arrow":
        note("spark: not started; set HARNESS_ENGINE=arrow, or write `engine: arrow` in the specs of tables")
    emit(endpoints.to_json(), json_target, lambda: _show(found, endpoints))


@services.command()
@only_option
@click.pass_obj
def down(settings: Settings, only: tuple[str, ...]) -> None:
    """Stop the services; their data stays in the home folder.

    \b
    Examples:
      harness services down
      harness services down --only spark
    """
    Services.from_settings(settings).down(only=_names(only), progress=note)


@services.command()
@json_option
@click.pass_obj
def status(settings: Settings, json_target: str | None) -> None:
    """Show the state and address of each service.

    Only --json shows the password of PostgreSQL; `harness services kafka` shows Kafka's.

    \b
    Example:
      harness services status --json | jq -r .kafka
    """
    found = Services.from_settings(settings)
    endpoints = found.current()
    emit(endpoints.to_json(), json_target, lambda: _show(found, endpoints))


@services.command()
@click.option(
    "--java", is_flag=True, help="Print properties for Java clients; the default is librdkafka (kcat, Python, Go)."
)
@json_option
@click.pass_obj
def kafka(settings: Settings, java: bool, json_target: str | None) -> None:
    """Print client properties for the embedded Kafka, including the password.

    \b
    Examples:
      kcat -F <(harness services kafka) -L
      kafka-topics.sh --bootstrap-server "$(harness services status --json | jq -r .kafka)" \\
        --command-config <(harness services kafka --java) --list
    """
    found = Services.from_settings(settings).current()
    if settings.kafka is not None:
        raise UsageError("HARNESS_KAFKA names your own Kafka; set its login with HARNESS_KAFKA_*")
    if found.kafka is None:
        raise UsageError("the embedded Kafka does not run; `harness services up` starts it")
    properties: Mapping[str, str] = found.kafka_login
    if java:
        from harness_pipelines.engines.spark.kafka import java_properties

        properties = java_properties(properties)
    shown = {"bootstrap.servers": found.kafka, **properties}
    emit(shown, json_target, lambda: click.echo("\n".join(f"{name}={value}" for name, value in shown.items())))


def _names(only: tuple[str, ...]) -> tuple[ServiceName, ...] | None:
    return cast("tuple[ServiceName, ...]", only) or None


def _show(found: Services, endpoints: Endpoints) -> None:
    from rich.console import Console
    from rich.table import Table

    if found.takes_anybody():
        note(
            "kafka: it accepts every local user, because an older harness started it without a login; "
            "`harness services up` adds one"
        )

    colours = {"running": "green", "external": "cyan", "starting": "yellow", "died": "red", "stopped": "dim"}
    table = Table("service", "state", "pid", box=None, pad_edge=False)
    table.add_column("address", overflow="fold")
    for one in found.status():
        state = f"[{colours[one.state]}]{one.state}[/]"
        table.add_row(one.name, state, str(one.pid or ""), one.shown_address)
    console = Console(soft_wrap=True)
    console.print(table)
    console.print(
        f"warehouse {endpoints.warehouse}\nhome      {endpoints.home}\nlogs      {endpoints.home}/logs", highlight=False
    )
