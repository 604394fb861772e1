"""The shell of `harness sql`: statements until a semicolon, commands that begin with a dot, history and completion."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness_pipelines.cli.common import opened
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.extras import needs
from harness_pipelines.secret import redact
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.wording import quantity

if TYPE_CHECKING:
    import pyarrow as pa
    from prompt_toolkit import PromptSession

    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.sql import Sql
    from harness_pipelines.engines.duckdb.database import Limits
    from harness_pipelines.protocol.reading.reads import At

PROMPT, MORE = "harness> ", "    ...> "
HISTORY = "sql_history"
MODES = ("table", "csv", "json", "line")
ROWS_MAX = 1000
HELP = """\
SELECT ... ;          a query ends with a semicolon and may have several lines; Ctrl-C drops the lines or ends the query
.tables               the tables
.schema TABLE         the columns of a table
.mode MODE            how rows are shown: table, csv, json, line
.timer on|off         show how long each query took
.read FILE            run the statements of a file
.help                 this text
.quit                 leave, as Ctrl-D does"""


class Shell:
    """Reads lines and runs what they say. *write* gets each line of output."""

    def __init__(self, harness: Harness, engine: Sql, *, at: At | None, limit: int | None) -> None:
        self._harness, self._engine, self._at = harness, engine, at
        self._limit = ROWS_MAX if limit is None else limit
        self.mode, self.timer = "table", False
        self._commands: Mapping[str, Callable[[str], None]] = {
            ".tables": self._show_tables,
            ".schema": self._show_schema,
            ".mode": self._set_mode,
            ".timer": self._set_timer,
            ".read": self._read,
            ".help": lambda _: click.echo(HELP),
        }

    def run(self, ask: Callable[[str], str]) -> None:
        """Run what *ask*, which is given the prompt, returns, until `.quit` or the end of the input."""
        text = ""
        while True:
            try:
                line = ask(MORE if text else PROMPT)
            except KeyboardInterrupt:
                text = ""
                continue
            except EOFError:
                return
            if not text and line.strip() in (".quit", ".exit"):
                return
            text = self.take(text, line)

    def take(self, text: str, line: str) -> str:
        """Run *line*, which comes after *text*; return what waits for its semicolon. Errors are shown."""
        try:
            if not text and line.lstrip().startswith("."):
                self._command(line.strip().rstrip(";"))
                return ""
            text = f"{text}\n{line}" if text else line
            if not text.strip():
                return ""
            from harness_pipelines.engines.duckdb.statements import ends

            if not ends(text):
                return text
            self.execute(text)
        except KeyboardInterrupt:
            click.echo("the query was ended", err=True)
        except (HarnessError, click.ClickException) as error:
            click.echo(
                redact(error.format_message() if isinstance(error, click.ClickException) else str(error)), err=True
            )
        return ""

    def execute(self, text: str) -> None:
        """Run all statements of *text* and show their rows."""
        from harness_pipelines.cli.reads.sql import first_rows

        for statement in self._engine.session.split(text):
            began = time.monotonic()
            rows, is_all = first_rows(self._engine, statement, self._at, self._limit)
            took_s = time.monotonic() - began
            for line in _lines(rows, self.mode):
                click.echo(line)
            count = quantity(rows.num_rows, "row")
            told = count if is_all else f"first {count}; more: start the shell with --limit N"
            click.echo(f"{told} in {took_s:.3f} s" if self.timer else told, err=True)

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        if name not in self._commands:
            raise UsageError(f"there is no command {name}; .help lists them")
        self._commands[name](rest.strip())

    def _show_tables(self, _: str) -> None:
        for name in self._engine.names():
            click.echo(name)

    def _show_schema(self, table: str) -> None:
        if not table:
            raise UsageError("name a table: .schema shop.orders")
        for column in self._harness.table(table).spec.columns:
            click.echo(f"{column.name}  {column.type}{'  not null' if column.required else ''}")

    def _set_mode(self, mode: str) -> None:
        if mode not in MODES:
            raise UsageError(f"{mode!r} is no mode; modes: {', '.join(MODES)}")
        self.mode = mode

    def _set_timer(self, word: str) -> None:
        if word not in ("on", "off"):
            raise UsageError("write .timer on or .timer off")
        self.timer = word == "on"

    def _read(self, file: str) -> None:
        if not file:
            raise UsageError("name a file: .read report.sql")
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # a name with NUL, or bytes that are no UTF-8
            raise UsageError(f"{file} cannot be read: {error}") from error
        self.execute(text)


def run_shell(settings: Settings, *, limits: Limits, at: At | None, limit: int | None) -> None:
    """Talk to a person until they leave. Raises: ExtraMissing."""
    with needs("sql", "the shell of `harness sql`"):
        import prompt_toolkit  # noqa: F401
    from harness_pipelines.app.sql import Sql

    with opened(settings) as harness, Sql(harness.stores, limits) as engine:
        shell = Shell(harness, engine, at=at, limit=limit)
        ask = _session(settings, lambda: words(harness))
        click.echo("SQL over the tables, read-only; .help shows the commands, Ctrl-D leaves", err=True)
        shell.run(lambda prompt: str(ask.prompt(prompt)))


def words(harness: Harness) -> list[str]:
    """What a person may want completed: keywords, tables and columns."""
    from harness_pipelines.engines.duckdb.statements import keywords

    tables = harness.tables()
    columns = {column.name for table in tables for column in table.spec.columns}
    dotted = [".tables", ".schema", ".mode", ".timer", ".read", ".help", ".quit"]
    return [*sorted(table.name for table in tables), *sorted(columns), *keywords(), *dotted]


def _session(settings: Settings, known: Callable[[], list[str]]) -> PromptSession[str]:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.history import FileHistory

    settings.home.mkdir(parents=True, exist_ok=True)
    history = settings.home / HISTORY
    history.touch(mode=0o600)
    return PromptSession(
        history=FileHistory(str(history)),
        completer=WordCompleter(known(), ignore_case=True, pattern=re.compile(r"[\w.]+")),
        complete_while_typing=False,
        enable_history_search=True,
    )


def _lines(rows: pa.Table, mode: str) -> Iterable[str]:
    from harness_pipelines.show.rows import json_rows, table_lines

    match mode:
        case "table":
            return table_lines(rows)
        case "line":
            return _records(rows)
        case "csv":
            return _csv(rows)
    from harness_pipelines.cli.reads.sql import check_names
    from harness_pipelines.show.output import to_json

    check_names(rows.schema.names)
    return [to_json(row) for row in json_rows(rows)]


def _records(rows: pa.Table) -> Iterator[str]:
    """One line for each value, and an empty one between rows."""
    from harness_pipelines.show.output import printable
    from harness_pipelines.show.rows import json_values

    width = max(map(len, rows.schema.names), default=0)
    columns = [json_values(column) for column in rows.columns]
    for number, values in enumerate(zip(*columns, strict=True)):
        if number:
            yield ""
        for name, value in zip(rows.schema.names, values, strict=True):
            yield f"{name:>{width}} = {'NULL' if value is None else printable(str(value))}"


def _csv(rows: pa.Table) -> list[str]:
    from harness_pipelines.show.rows import write

    sink = io.BytesIO()
    write(rows.to_reader(), "csv", sink)
    return sink.getvalue().decode().splitlines()
