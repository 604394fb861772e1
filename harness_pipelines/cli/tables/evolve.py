"""`harness evolve`: change the columns of a table in every tier at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.protocol.schema.evolution import ColumnChanges
    from harness_pipelines.spec.table import TableSpec
    from harness_pipelines.stages.table.evolve import EvolvePlan

T = TypeVar("T")
#: A type and a default behind it. What has <> has no default, and may have a field so called.
_DEFAULT = re.compile(r"([^<>]*?)\s+default\s+(.+)", re.DOTALL)


@click.command()
@click.argument("table")
@click.option(
    "--add",
    multiple=True,
    metavar='"NAME TYPE [default VALUE]"',
    help="Add an optional column; it is NULL in older rows, even if it has a default.",
)
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Rename a column; later records may use either name.")
@click.option("--drop", multiple=True, metavar="NAME", help="Drop a column; older versions keep it.")
@click.option(
    "--widen",
    multiple=True,
    metavar="NAME=TYPE",
    help="Widen a type: int to long, float to double, or more digits for a decimal.",
)
@click.option("--optional", multiple=True, metavar="NAME", help="Make a column optional: later records may lack it.")
@click.option(
    "--default",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set the value for later records that lack the field; null removes it. Existing rows do not change.",
)
@click.option(
    "--describe",
    multiple=True,
    metavar="NAME=TEXT",
    help="Set the description of a column, which engines and catalogs show; an empty text removes it.",
)
@click.option("--order", metavar="NAME,...", help="Put these columns first, in this order; the others follow.")
@click.option(
    "--to",
    "target",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Take the target columns from this spec; a column with the old name in its `aliases` is a rename.",
)
@click.option("--dry-run", is_flag=True, help="Check the change and show the resulting columns; change nothing.")
@json_option
@click.pass_obj
def evolve(settings: Settings, /, table: str, *, json_target: str | None, **o: Any) -> None:
    """Change the columns of TABLE in decoding, buffer and both views with one commit.

    Earlier reads and retained old versions have the old columns. Later reads have the new columns, with the rows of
    all tiers. No file is rewritten and no row moves. Running workers and readers continue. A change that older rows
    cannot follow is refused, and the message names an accepted alternative. With `evolution: compatible` in the spec,
    a new registry schema changes the columns automatically.

    Name a struct field by its path, also through lists and maps: customer.phone, items.element.price,
    prices.value.net. Such a field can be added, dropped, widened and reordered, but not renamed.

    \b
    Examples:
      harness evolve shop.orders --add "note string" --dry-run
      harness evolve shop.orders --add "note string" --rename amount=total
      harness evolve shop.orders --widen quantity=long --optional customer_id
      harness evolve shop.orders --add "customer.phone string" --drop items.element.code
      harness evolve shop.orders --add "state string default new" --default priority=0
      harness evolve shop.orders --describe "amount=Net, in euros"
      harness evolve shop.orders --to orders.yaml
    """
    from harness_pipelines.ports.ledger import TableUnknown
    from harness_pipelines.protocol.schema.evolution import changes_between
    from harness_pipelines.stages.table.evolve import plan

    with opened(settings) as harness:
        one = harness.table(table)
        given = _changes(o)
        if (target := o["target"]) is not None:
            if given:
                raise UsageError("--to describes all target columns and cannot be combined with a single change")
            wanted = _spec(target)
            if wanted.table != one.name:
                raise TableUnknown(f"{target} describes {wanted.table}, not {one.name}; nothing was changed")
            given = changes_between(one.spec, wanted)
        told, _ = plan(harness.stores, one.row, given)
        if o["dry_run"]:
            emit({**told.to_json(), "done": False}, json_target, lambda: _show(told, "would have"))
            return
        published = one.evolve(given)
        shown = {**told.to_json(), "version": published.version, "done": True}
        emit(shown, json_target, lambda: _show(told, f"has from version {published.version} on"))
        note(f"`harness table show {one.name}` prints the current spec for your file")


def _spec(target: Path) -> TableSpec:
    from harness_pipelines.spec.load import load_spec

    return load_spec(target)


def _changes(o: dict[str, Any]) -> ColumnChanges:
    """Raises: UsageError for a change with the wrong syntax."""
    from harness_pipelines.protocol.schema.evolution import ColumnChanges
    from harness_pipelines.spec.columns import Column
    from harness_pipelines.spec.sections.about import described
    from harness_pipelines.spec.types import parse_type

    def add(text: str) -> Column:
        name, _, rest = text.strip().partition(" ")
        type_, default = rest, None
        if found := _DEFAULT.fullmatch(rest):
            type_, default = found.group(1), _value(found.group(2))
        return Column(name=name, type=parse_type(type_.strip()), default=default)

    def pair(text: str) -> tuple[str, str]:
        name, sign, value = text.partition("=")
        if not (sign and name.strip() and value.strip()):
            raise UsageError(f"{text!r} is not a pair; write NAME=VALUE")
        return name.strip(), value.strip()

    def describe(text: str) -> tuple[str, str | None]:
        name, sign, value = text.partition("=")
        if not (sign and name.strip()):
            raise UsageError(f"{text!r} describes no column; write NAME=TEXT")
        try:
            return name.strip(), described(value)
        except ValueError as error:
            raise UsageError(f"--describe {name.strip()}: {error}") from error

    return ColumnChanges(
        rename=_each(o["rename"], pair),
        drop=tuple(o["drop"]),
        widen=tuple((name, parse_type(type_)) for name, type_ in _each(o["widen"], pair)),
        optional=tuple(o["optional"]),
        default=tuple((name, _value(value)) for name, value in _each(o["default"], pair)),
        describe=_each(o["describe"], describe),
        add=_each(o["add"], add),
        order=tuple(name.strip() for name in (o["order"] or "").split(",") if name.strip()),
    )


def _value(text: str) -> Any:
    from harness_pipelines.spec.load import load_value

    return load_value(text)


def _each(given: Sequence[str], read: Callable[[str], T]) -> tuple[T, ...]:
    return tuple(read(text) for text in given)


def _show(told: EvolvePlan, has: str) -> None:
    from harness_pipelines.spec.types import type_from_json

    for line in told.changes:
        click.echo(f"  {line}")
    click.echo(f"{told.table} {has} schema {told.schema_version}:")
    width = max(len(c["name"]) for c in told.columns)
    for column in told.columns:
        required = "  required" if column["required"] else ""
        type_ = type_from_json(column["type"])
        click.echo(f"  {column['name']:{width}}  {type_}{required}")
