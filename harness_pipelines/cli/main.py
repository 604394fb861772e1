"""The command `harness`: global options, lazily imported sub-commands, and the mapping of errors to exit codes."""

from __future__ import annotations

import difflib
import errno
import faulthandler
import gc
import importlib
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import click

from harness_pipelines.cli.commands import COMMANDS, SECTIONS
from harness_pipelines.cli.ending import end_in_time, forget_interrupt
from harness_pipelines.errors import HarnessError
from harness_pipelines.secret import redact
from harness_pipelines.spec.profiles import with_profile
from harness_pipelines.spec.settings import Settings

INTERRUPTED = 130
#: New objects between two looks for garbage in circles. A worker's look at 1,000 tables makes some thousands, and with
#: Python's 700 each second one of these looks had all objects of the process visited: half of its CPU.
OBJECTS_UNSEEN = 20_000
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
QUERY_CANCELED = "57014"  #: SQLSTATE of a statement that timed out or was canceled


class Failed(click.ClickException):
    """A HarnessError as click reports it: its message on standard error and its exit code."""

    def __init__(self, error: HarnessError) -> None:
        super().__init__(redact(str(error)))
        self.error = error

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click's is a constant of the class
        """Return the exit code of the error."""
        return self.error.exit_code

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"harness: {self.format_message()}", file=file, err=file is None)


class LazyGroup(click.Group):
    """A group whose sub-commands are modules that are imported on first use.

    So each imports what is slow (pyspark, dagster, pyiceberg, confluent_kafka) inside of its functions.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all sub-commands."""
        return sorted({*super().list_commands(ctx), *COMMANDS})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the sub-command *cmd_name*."""
        if cmd_name not in COMMANDS:
            return super().get_command(ctx, cmd_name)
        found = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(found.module), found.name)
        if not isinstance(command, click.Command):
            raise TypeError(f"{found.at} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the sub-commands by what they are for."""
        widest = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), one.about) for name, one in commands.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the sub-command, or suggest the nearest name (click knows only those already loaded)."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"{error.message}{hint}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the sub-command and turn its errors into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except HarnessError as error:
            if not _is_interrupt(error):
                raise Failed(error) from error
        except (KeyboardInterrupt, click.Abort):
            pass
        click.echo("\nharness: interrupted", err=True)
        ctx.exit(INTERRUPTED)


def _let_go_of_output() -> None:
    """Let what the output did not take go nowhere, or Python tries again when it ends, and complains."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether a Ctrl-C caused *error*.

    While one of its calls blocks, ADBC handles the signal itself: it cancels the statement and raises the server's
    answer.
    """
    if error is None or isinstance(error, KeyboardInterrupt):
        return error is not None
    if (getattr(error, "sqlstate", None) or "").startswith(QUERY_CANCELED) and "timeout" not in str(error):
        return True
    return _is_interrupt(error.__cause__ or error.__context__)


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version  # costs as much as the rest of a short command

        click.echo(f"harness {version('harness-pipelines')}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the embedded services.  [default: $HARNESS_HOME, else .harness here or above]",
)
@click.option("--profile", metavar="NAME", help="Profile of harness.toml.  [default: $HARNESS_PROFILE, else its own]")
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_show_version, help="Show the version."
)
@click.pass_context
def cli(ctx: click.Context, home: Path | None, profile: str | None) -> None:
    """Exactly-once tables over Kafka, Postgres and Iceberg.

    Exit codes: 0 done, 1 failed (audit, fsck: a fault was found; get: no row), 2 wrong usage, 75 try again,
    76 outcome unknown, 130 interrupted, 143 ended by SIGTERM.
    """
    os.environ.update(with_profile(os.environ, profile=profile))  # for what is read elsewhere, and for children
    ctx.obj = Settings.from_env(home=home)


def _show_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error as Python does, with secrets redacted: libraries quote their arguments."""
    click.echo(redact("".join(traceback.format_exception(kind, error, trace))), err=True, nl=False)


def main() -> None:
    """Run the command line (the entry point `harness`)."""
    gc.set_threshold(OBJECTS_UNSEEN, *gc.get_threshold()[1:])
    end_in_time()
    sys.excepthook = _show_defect
    faulthandler.enable()  # what a library in C ends tells where it was called
    try:
        cli(prog_name="harness")
    except KeyboardInterrupt:  # before or after the command itself
        click.echo("\nharness: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _let_go_of_output()
        click.echo(f"harness: there is no room for what was to be written: {error}", err=True)
        sys.exit(1)
    finally:
        forget_interrupt()


if __name__ == "__main__":
    main()
