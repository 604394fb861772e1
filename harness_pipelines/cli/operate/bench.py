"""`harness bench`: measure the documented figures on this machine."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from harness_pipelines.cli.common import opened, split_names
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.secret import redact
from harness_pipelines.show.output import emit, json_option, note
from harness_pipelines.spec.settings import Settings

PACKAGE = "harness_pipelines_tests"
BENCHES = f"{PACKAGE}.bench"
NAMES = "main, proof, layout, keyed, streams, engines, scale, moves, stores, formats, dagster, wheel, mutants"


class NotMeasured(HarnessError):
    """Some figures could not be measured."""


@click.command()
@click.argument("name")
@click.option("--only", callback=split_names, metavar="GROUP,...", help="Measure only this group of figures.")
@click.option(
    "--quick", is_flag=True, help="Use small sizes, about three minutes, as a smoke test; do not quote the figures."
)
@json_option
@click.pass_obj
def bench(settings: Settings, /, name: str, *, only: list[str] | None, quick: bool, json_target: str | None) -> None:
    """Measure the figures of bench NAME and compare them with their goals; needs a checkout.

    NAME is main (from Kafka to readers), proof (models, recovery, fsck, audit), layout (the batch view's clustering),
    keyed (tables with a key), streams (all history, then live), engines (loads, freshness and queries of
    `harness serve`), stores (requests and dollars of a lake on an object store, and how late a foreign catalog is),
    formats (the cost of decoding and validating records), dagster (sensors, runs, hand-overs), scale (many tables in
    one worker, beside their peers; costs that must not grow), moves (both engines), wheel (the disk space of an
    installation) or mutants (breaks each lock, fence, comparison and order of the ledger's SQL in turn and checks
    that a test fails).

    Starts the embedded services if they do not run. Creates its own topics and tables and removes them. Exit code 1
    if a figure could not be measured; a missed goal is shown but is not an error.

    \b
    Examples:
      harness bench main --json bench.json
      harness bench main --only freshness,reads --quick
      harness bench layout --only clustering
      harness bench engines --only loads,keyed
      harness bench mutants --only upkeep,ledger/lock_table
    """
    groups = _groups(name, only)
    settings = _services_up(settings)
    from harness_pipelines_tests.bench.base import Run, machine

    result: dict[str, Any] = {"name": name, "machine": machine(), "quick": quick, "figures": [], "notes": []}
    failed: dict[str, str] = {}
    began = time.monotonic()
    with opened(settings) as harness, _closing(Run(harness=harness, quick=quick, say=_Said(began))) as run:
        harness.init()
        for group, measure in groups.items():
            try:
                figures = measure(run)
            except Exception as error:
                failed[group] = redact(f"{type(error).__name__}: {error}")
                note(f"{group}: could not be measured: {failed[group]}")
                continue
            result["figures"] += [figure.to_json() for figure in figures]
        result["notes"] = [one.to_json() for one in run.notes]
    result["seconds"] = round(time.monotonic() - began, 1)
    emit(result, json_target, lambda: _show(result))
    if failed:
        raise NotMeasured("could not be measured:\n" + "\n".join(f"  {g}: {why}" for g, why in failed.items()))


def _groups(name: str, only: Sequence[str] | None) -> Mapping[str, Any]:
    """Return the groups of bench *name*. Raises: UsageError without a checkout, or for an unknown bench or group."""
    try:
        module = importlib.import_module(f"{BENCHES}.{name}")
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name in {PACKAGE, BENCHES}:
            raise UsageError(
                "bench needs a checkout of the repository: the package does not contain the benches"
            ) from missing
        if missing.name != f"{BENCHES}.{name}":
            raise UsageError(
                f"bench {name} needs the Python package {missing.name}: use `deploy/run bench {name}` of a checkout"
            ) from missing
        raise UsageError(f"there is no bench {name!r}; the benches are {NAMES}") from missing
    groups: Mapping[str, Any] = getattr(module, "FIGURES", {})
    if not groups:
        raise UsageError(f"there is no bench {name!r}; the benches are {NAMES}")
    if unknown := {group for group in only or () if group not in groups}:
        raise UsageError(f"bench {name} has no figures {', '.join(sorted(unknown))}; it has {', '.join(groups)}")
    return {group: groups[group] for group in (groups if only is None else only)}


@contextmanager
def _closing(run: Any) -> Iterator[Any]:
    try:
        yield run
    finally:
        run.say("removing topics and tables")
        try:
            run.close()
        except HarnessError as error:  # what was measured counts all the same
            note(f"left behind: {redact(str(error))}")


class _Said:
    """Prints the current measurement and the time since the start on standard error."""

    def __init__(self, began: float) -> None:
        self._began = began

    def __call__(self, what: str) -> None:
        note(f"{time.monotonic() - self._began:6.1f} s  {what}")


def _services_up(settings: Settings) -> Settings:
    """Return the settings of the running services; Spark has the workers' login, since some benches create tables."""
    from harness_pipelines.services import Services

    services = Services.from_settings(settings)
    found = services.current()
    if not (found.postgres and found.kafka and found.spark):
        note("starting the embedded services; the first start takes about 15 s")
        found = services.up(progress=note)
    return replace(found.fill(settings), spark_dsn=None)


def _show(result: Mapping[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"bench {result['name']}{' (quick)' * result['quick']}: {result['machine']}; {result['seconds']:.0f} s"
    )
    table = Table("figure", box=None, pad_edge=False)
    for column in ("value", "goal"):
        table.add_column(column, justify="right")
    for column in ("unit", "holds"):
        table.add_column(column)
    for one in result["figures"]:
        holds = "[green]yes[/]" if one["holds"] else "[red]no[/]"
        goal = f"{one['sense']} {_number(one['goal'])}"
        table.add_row(one["figure"], _number(one["value"]), goal, one["unit"], holds)
    console.print(table)
    if result["notes"]:
        notes = Table("beside them", box=None, pad_edge=False)
        notes.add_column("value", justify="right")
        notes.add_column("unit")
        for one in result["notes"]:
            notes.add_row(one["note"], _number(one["value"]), one["unit"])
        console.print(notes)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
