"""`harness serve sources`: the served tables as a file of sources for dbt."""

from __future__ import annotations

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.errors import UsageError
from harness_pipelines.ports.serving.tokens import is_named
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

DATABASE = "harness"  #: the name that the blocks of `harness serve` attach the catalog by


@click.command()
@click.option(
    "--tables", "globs", multiple=True, default=("*",), metavar="GLOB",
    help="List only these tables, such as 'shop.*'; may be repeated.",
)  # fmt: skip
@click.option(
    "--database", default=DATABASE, show_default=True, metavar="NAME",
    help="Name by which the engine has attached the catalog.",
)  # fmt: skip
@json_option
@click.pass_obj
def sources(settings: Settings, /, globs: tuple[str, ...], database: str, json_target: str | None) -> None:
    """Print the served tables as a file of sources for dbt.

    dbt reads them through an engine that has attached the catalog, such as DuckDB or Trino. Print the file again when
    tables or columns have changed. Nothing else is on standard output.

    \b
    Examples:
      harness serve sources > models/sources.yml
      harness serve sources --tables 'shop.*' --database lake > models/sources.yml
    """
    import yaml

    from harness_pipelines.serve.sources import dbt_sources, is_served, left_out

    with opened(settings) as harness:
        found, sick = harness.survey()
    rows = [one.row for one in found if is_named(one.name, globs)]
    for why in [*(one.why for one in sick), *left_out(rows)]:
        note(f"harness: left out: {why}")
    if not any(is_served(row) for row in rows):
        raise UsageError(f"no table of {', '.join(globs)} is served; nothing was printed")
    shown = dbt_sources(rows, database=database)
    emit(shown, json_target, lambda: click.echo(yaml.safe_dump(shown, sort_keys=False, allow_unicode=True), nl=False))
