"""`harness mirror`: foreign catalogs that follow the published versions of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import check_wish, chosen_tables, not_asked, opened, wish_options
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.table import Table
    from harness_pipelines.spec.sections.catalogs import CatalogSpec

_SAID = {
    "is_usable": "it can be used",
    "follows": "a commit makes it show the snapshot that was sent",
    "asserts": "it refuses a commit on another snapshot than main's",
    "keeps_properties": "it keeps properties",
    "transactions": "it takes both views in one request",
    "keeps_metadata": "after a registration it names our own metadata file",
    "keeps_snapshots": "it keeps older snapshots after a commit",
    "keeps_refs": "it keeps branches beside main",
    "elsewhere": "it writes its metadata where write.metadata.path says",
}


@click.group()
def mirror() -> None:
    """Show, probe and drop the mirrors of tables in foreign catalogs (`catalogs` of the spec)."""


@mirror.command()
@click.argument("tables", nargs=-1)
@json_option
@click.pass_obj
def status(settings: Settings, /, tables: tuple[str, ...], json_target: str | None) -> None:
    """Show how far each mirror is, and what holds it up. Exit code 1 if one is in trouble.

    \b
    Examples:
      harness mirror status
      harness mirror status shop.orders --json
    """
    with opened(settings) as harness:
        names = [table.name for table in chosen_tables(harness, tables)]
        found = harness.stores.mirrors.lags(names)

    def human() -> None:
        for one in found:
            click.echo(f"{one.table}: {one}")
        if not found:
            click.echo("no mirrors: `catalogs` of a table's spec names them")

    emit({"mirrors": [{"table": one.table, **one.to_json()} for one in found]}, json_target, human)
    if any(one.trouble for one in found):
        raise click.exceptions.Exit(1)


@mirror.command()
@click.argument("table")
@click.option("--catalog", help="Name of the catalog in the spec; default: the only one.")
@json_option
@click.pass_obj
def probe(settings: Settings, /, table: str, catalog: str | None, json_target: str | None) -> None:
    """Ask a catalog's server what it does to tables: two scratch tables are registered, changed and dropped.

    Exit code 1 if it cannot be used.

    \b
    Example:
      harness mirror probe shop.orders --catalog lakehouse
    """
    with opened(settings) as harness:
        one = harness.table(table)
        chosen = _chosen(one, catalog)
        found = harness.stores.foreign_catalog(one.row, chosen).probe()
    told = {name: bool(getattr(found, name)) for name in _SAID}

    def human() -> None:
        click.echo(f"{chosen.name} ({chosen.uri or chosen.type}):")
        for name, said in _SAID.items():
            click.echo(f"  {'yes' if told[name] else 'no ':3} {said}")

    emit({"table": table, "catalog": chosen.name, **told}, json_target, human)
    if not found.is_usable:
        raise click.exceptions.Exit(1)


@mirror.command()
@click.argument("table")
@click.option("--catalog", help="Name of the catalog in the spec; default: the only one.")
@click.option("--forget", is_flag=True, help="Do not ask the server: it is gone for good.")
@wish_options("Show what would be dropped; change nothing.")
@json_option
@click.pass_obj
def drop(
    settings: Settings,
    /,
    table: str,
    *,
    catalog: str | None,
    forget: bool,
    dry_run: bool,
    yes: bool,
    json_target: str | None,
) -> None:
    """Take a table out of a foreign catalog and forget the mirror. Files stay; expire no longer keeps any for it.

    A worker whose spec still names the catalog registers the views again: this is how a mirror starts over after
    another writer changed it. To end a mirror, stop the worker, drop it, and take it out of the spec.

    \b
    Examples:
      harness mirror drop shop.orders --catalog lakehouse --dry-run
      harness mirror drop shop.orders --catalog lakehouse --yes
    """
    check_wish(dry_run=dry_run, yes=yes)
    from harness_pipelines.stages.mirror import drop_mirror

    with opened(settings) as harness:
        one = harness.table(table)
        chosen = _chosen(one, catalog)
        views = drop_mirror(harness.stores, one.row, chosen, really=yes, forget=forget)

    def human() -> None:
        there = ", ".join(views) or "none"
        click.echo(f"{chosen.name}: views there: {there}; {'dropped' if yes else 'nothing was changed'}")

    emit({"table": table, "catalog": chosen.name, "views": list(views), "dropped": yes}, json_target, human)
    if not (yes or dry_run):
        raise not_asked("drop the mirror")


def _chosen(table: Table, name: str | None) -> CatalogSpec:
    """The catalog called *name*, or the only one. Raises: UsageError."""
    known = {one.name: one for one in table.spec.catalogs}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name is None or name not in known:
        asked = "name one with --catalog" if name is None else f"there is no catalog {name!r}"
        raise UsageError(f"{table.name}: {asked}; its spec has: {', '.join(known) or 'no catalogs'}")
    return known[name]
