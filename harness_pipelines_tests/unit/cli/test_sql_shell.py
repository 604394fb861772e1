"""The shell of `harness sql`: lines until a semicolon, commands with a dot, errors that end nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from harness_pipelines.cli.reads.sql_shell import Shell, _session
from harness_pipelines.engines.duckdb.database import Limits
from harness_pipelines.engines.duckdb.session import Session
from harness_pipelines.engines.duckdb.statements import ends, keywords
from harness_pipelines.spec.settings import Settings


class Engine:
    """Queries without tables."""

    def __init__(self) -> None:
        self.session = Session(Limits(threads=1))
        self.interrupted = False

    @contextmanager
    def run(self, text: str, *, at: object) -> Iterator[pa.RecordBatchReader]:
        if self.interrupted:
            raise KeyboardInterrupt
        with self.session.run(self.session.read(text)) as found:
            yield found

    def names(self) -> list[str]:
        return ["shop.orders", "shop.people"]


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.session.close()


@pytest.fixture
def shell(engine: Engine) -> Shell:
    return Shell(cast(Any, None), cast(Any, engine), at=None, limit=3)


class Typing:
    """A person who types *lines* and leaves by Ctrl-D."""

    def __init__(self, *lines: str | BaseException) -> None:
        self._left = iter([*lines, EOFError()])
        self.prompts: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        line = next(self._left)
        if isinstance(line, BaseException):
            raise line
        return line


def test_a_statement_has_lines_until_its_semicolon(shell, capsys):
    ask = Typing("SELECT 1 AS a,", "  ';' AS b -- one;", ";", "SELECT 2 AS c; SELECT 3 AS d;")
    shell.run(ask)
    assert ask.prompts == ["harness> ", "    ...> ", "    ...> ", "harness> ", "harness> "]
    said = capsys.readouterr()
    assert said.out.splitlines() == ["a  b", "-  -", "1  ;", "c", "-", "2", "d", "-", "3"]
    assert said.err.splitlines() == ["1 row"] * 3


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        ("SELECT 1;", True),
        ("SELECT 1; -- and more", True),
        ("SELECT 'ü';", True),
        ("SELECT 1", False),
        ("SELECT 'a;", False),
        ("SELECT 1 -- x;", False),
        ("SELECT /* ;", False),
        ("SELECT $$a;", False),
        ("", False),
    ],
)
def test_a_semicolon_in_a_string_or_a_comment_ends_nothing(text, is_whole):
    assert ends(text) is is_whole


def test_every_mode_shows_the_same_rows(shell, capsys):
    sql = "SELECT i AS n, 'x' || i AS \"long name\" FROM range(2) t(i) ORDER BY i;"
    shell.run(Typing(".mode csv", sql, ".mode json", sql, ".mode line", sql, ".mode xml"))
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        '"n","long name"',
        '0,"x0"',
        '1,"x1"',
        '{"n": 0, "long name": "x0"}',
        '{"n": 1, "long name": "x1"}',
        "        n = 0",
        "long name = x0",
        "",
        "        n = 1",
        "long name = x1",
    ]
    assert "modes: table, csv, json, line" in said.err


def test_an_error_or_ctrl_c_ends_a_statement_and_not_the_shell(shell, engine, capsys):
    shell.run(Typing("SELECT nme;", "DROP TABLE x;", ".nothing", "SELECT 1,", KeyboardInterrupt(), "SELECT 4 AS a;"))
    said = capsys.readouterr()
    assert said.out.splitlines() == ["a", "-", "4"]
    assert [word in said.err for word in ("nme", "not DROP", ".help lists them")] == [True] * 3
    engine.interrupted = True
    shell.run(Typing("SELECT 1;", ".tables"))
    said = capsys.readouterr()
    assert (said.err, said.out) == ("the query was ended\n", "shop.orders\nshop.people\n")


def test_the_limit_the_timer_a_file_and_the_end(shell, capsys, tmp_path):
    file = tmp_path / "report.sql"
    file.write_text("SELECT * FROM range(9);")
    shell.run(Typing(".timer on", f".read {file}", ".read /nothing", ".quit", "SELECT 'not run';"))
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 2 + 3
    assert "first 3 rows; more: start the shell with --limit N in 0." in said.err
    assert "/nothing cannot be read" in said.err
    assert "not run" not in said.out


def test_history_is_kept_for_its_owner_alone_and_words_are_completed(tmp_path: Path):
    from prompt_toolkit.application import create_app_session
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        session = _session(Settings(home=tmp_path / "home"), lambda: ["shop.orders", "order_id", *keywords()])
        keys.send_text("SELECT 1;\r")
        assert session.prompt() == "SELECT 1;"
        assert session.completer is not None
        found = session.completer.get_completions(Document("SELECT * FROM shop.o"), CompleteEvent())
        assert [one.text for one in found] == ["shop.orders"]
        assert [one.text for one in session.completer.get_completions(Document("sele"), CompleteEvent())] == ["SELECT"]
    history = tmp_path / "home" / "sql_history"
    assert "SELECT 1;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
