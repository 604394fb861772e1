"""Helpers that commands share: opening the harness, and common options."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from harness_pipelines.errors import UsageError
from harness_pipelines.show.output import note
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.protocol.reading.reads import At

LONG_MAX = 2**63 - 1  #: the largest number that offsets, versions and counts have
AGAIN_S = 5.0  #: until the next try, while a service is away
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def opened(settings: Settings, *, log_level: int = logging.WARNING, log_file: Path | None = None) -> Iterator[Harness]:
    """Open the harness of *settings* and close it at the end.

    Log lines of *log_level* and above go to *log_file*, by default to standard error."""
    from harness_pipelines.app.client import connect
    from harness_pipelines.services.logs import rotating
    from harness_pipelines.show.logs import configure_logging

    configure_logging(log_level, log_file)
    with rotating(settings.home / "logs"), connect(settings) as harness:
        yield harness


def chosen_tables(harness: Harness, names: tuple[str, ...]) -> list[Table]:
    """Return the named tables, or all. Raises: TableUnknown; UsageError if there is no table."""
    if names:
        return [harness.table(name) for name in dict.fromkeys(names)]
    found, sick = harness.survey()
    for one in sick:
        note(f"harness: left out: {one.why}")
    if not found and sick:
        raise UsageError(f"this harness can read none of the {quantity(len(sick), 'table')}, see above")
    if not found:
        raise UsageError("there are no tables: `harness table apply FILE` creates one, `harness demo` shows one")
    return found


def wish_options(looks: str) -> Callable[[Function], Function]:
    """Add ``--dry-run`` with the help text *looks*, and ``--yes``; see `check_wish`."""

    def decorate(function: Function) -> Function:
        yes = click.option(
            "--yes",
            is_flag=True,
            help="Carry out the plan. Without --yes the plan is shown, nothing changes, and the exit code is 2.",
        )
        return click.option("--dry-run", is_flag=True, help=looks)(yes(function))

    return decorate


def check_wish(*, dry_run: bool, yes: bool) -> None:
    """Check that at most one of the two is given; `not_asked` handles neither. Raises: UsageError for both."""
    if dry_run and yes:
        raise UsageError("--dry-run and --yes exclude each other")


def not_asked(to: str) -> UsageError:
    """Return the error of a command that showed its plan without ``--yes`` *to* carry it out."""
    return UsageError(f"nothing was changed: add --yes to {to}, or --dry-run to see the plan only")


def split_names(_ctx: click.Context, _option: click.Parameter, value: str | None) -> list[str] | None:
    """Turn ``a, b`` into names (a click callback)."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name at least one column, such as --columns order_id,amount")
    return names


class AtType(click.ParamType):  # type: ignore[type-arg]  # at run time it has none
    """A version, the name of a snapshot, or a time, in UTC unless it names a zone."""

    name = "at"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> At:
        from harness_pipelines.protocol.reading.reads import at_of  # what a spec is comes with it

        try:
            found = at_of(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if isinstance(found, int) and found > LONG_MAX:
            self.fail(f"{value} is no version: the largest number of one is {LONG_MAX}", param, ctx)
        return found


class MomentType(click.ParamType):  # type: ignore[type-arg]  # at run time it has none
    """A time, in UTC unless it names a zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from harness_pipelines.protocol.reading.reads import moment_of

        try:
            return moment_of(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time such as 2026-11-22T10:30:00Z", param, ctx)


def at_option(help_: str) -> Callable[[Function], Function]:
    """Add ``--at``."""
    return click.option("--at", type=AtType(), metavar="VERSION|SNAPSHOT|TIME", help=help_)


def duration(_ctx: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """Turn ``60s``, ``15m``, ``1.5h``, ``7d`` or plain seconds into seconds (a click callback)."""
    if value is None:
        return None
    text = value.strip()
    number, unit = (text[:-2], 0.001) if text.endswith("ms") else (text[:-1], _UNITS.get(text[-1:], 0.0))
    try:
        seconds = float(number) * unit if unit else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 10**9:
        raise click.BadParameter(f"{value!r} is not a duration; write a number above 0 and ms, s, m, h or d (60s, 15m)")
    return seconds


_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

MEMORY_BYTES_MIN = 64 << 20  #: DuckDB does little with less
_SIZES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


def size(_ctx: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Turn ``512MiB``, ``4GB`` or plain bytes into bytes (a click callback)."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?i?)b?", value.strip().lower())
    unit = _SIZES.get(found[2]) if found else None
    if found is None or unit is None or not MEMORY_BYTES_MIN <= float(found[1]) * unit <= 1 << 50:
        raise click.BadParameter(f"{value!r} is no size of at least 64 MiB, such as 512MiB or 4GB")
    return int(float(found[1]) * unit)
