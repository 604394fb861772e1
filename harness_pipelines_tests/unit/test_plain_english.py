"""Phrases that made the texts hard to read stay away from help, messages, docstrings and pages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest

from harness_pipelines.cli.main import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MODULES = sorted(ROOT.glob("harness_pipelines/**/*.py"))
#: The phrase, and the plain one in its place.
BANNED = {
    r"\b(written|decoded|planned|made|created|begun|begin|begins|plan|plans|decide|decides) anew\b": "again, re-",
    r"\bof (its|their|your|our|one's) own(?! \w)": "its own X, a separate X",
    r"\bsuch a share\b": "share of",
    r"\bat most so many\b": "at most N",
    r"\b(may|can|must) be told\b(?! apart| together| of)": "report, record",
    r"\bset aside\b": "quarantined",
    r"\bno (duration|moment|pair|regular expression|table name|topic name)\b": "not a ...",
    r"\b(it|which|who) (goes|go) on (from|with|at|behind)\b": "continues",
    r"(?:^|[.*] )Who (may|has|can|was|reads|writes|judges|cancels|compares) ": "a reader, a login, a process that ...",
}
#: The same, of docstrings and comments: processes are "it", and a sentence names its actor.
BANNED_IN_CODE = {
    r"\banew\b": "again, re-",
    r"\b(he|she|himself|herself)\b": "it",
    r"\bfor (those )?who\b": "for observers, for a reader that ...",
    r"\bso many\b": "this many, N",
    r"\b(is|are|was|were) told (of|to|by)\b": "recorded, reported, shown by",
}

#: Of docstrings and comments of tests.
BANNED_IN_TESTS = {r"\banew\b": "again, re-", r"\bset aside\b": "quarantined"}


def phrases(text: str, banned: Mapping[str, str] = BANNED) -> list[str]:
    """The banned phrases in *text*, also over a line's end."""
    plain = " ".join(text.split())
    return [
        f"{found[0]!r}: write {better}" for bad, better in banned.items() for found in re.finditer(bad, plain, re.I)
    ]


def prose(source: str) -> Iterator[str]:
    """The docstrings and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def helps(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    """The help of a command, of its options and of its sub-commands."""
    context = click.Context(command)
    yield path, command.help or ""
    for param in command.params:
        yield f"{path} {'/'.join(param.opts)}", getattr(param, "help", None) or ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield from helps(found, f"{path} {name}")


def test_help_is_plain_english() -> None:
    assert {where: found for where, text in helps(cli, "harness") if (found := phrases(text))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_plain_english(page: Path) -> None:
    assert phrases(page.read_text()) == []


def test_messages_docstrings_and_comments_are_plain_english() -> None:
    found = {str(path.relative_to(ROOT)): phrases(path.read_text()) for path in MODULES}
    assert {path: which for path, which in found.items() if which} == {}


def test_docstrings_and_comments_name_the_actor() -> None:
    found = {
        str(path.relative_to(ROOT)): [
            phrase for text in prose(path.read_text()) for phrase in phrases(text, BANNED_IN_CODE)
        ]
        for path in MODULES
    }
    assert {path: which for path, which in found.items() if which} == {}


def test_docstrings_and_comments_of_tests_are_plain_english() -> None:
    found = {
        str(path.relative_to(ROOT)): [one for text in prose(path.read_text()) for one in phrases(text, BANNED_IN_TESTS)]
        for path in ROOT.glob("harness_pipelines_tests/**/*.py")
        if path != Path(__file__)
    }
    assert {path: which for path, which in found.items() if which} == {}


@pytest.mark.parametrize("text", ["files are written\n anew", "in a table of its own.", "At most so many rows."])
def test_a_banned_phrase_is_found(text: str) -> None:
    assert phrases(text)
