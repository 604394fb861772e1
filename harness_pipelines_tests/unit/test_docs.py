"""What the documentation says is there: its links, the commands and options that it shows, its table specs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from harness_pipelines.cli.main import cli
from harness_pipelines.spec.load import load_spec_text

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BY_SCRIPT = {"check", "test"}  #: commands of deploy/run itself
_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"(?:^|[\s$(/])(?:harness|deploy/run)(?= )([^|&;#)]*)")


def spoken(page: Path) -> Iterator[list[str]]:
    """The words of every command line of ours on *page*, in blocks and in the text."""
    text = page.read_text()
    lines = [line for kind, block in _BLOCK.findall(text) if kind != "python" for line in block.splitlines()]
    spans = [span for span in _SPAN.findall(_BLOCK.sub("", text)) if _COMMAND.match(span)]  # not: messages
    for line in [*lines, *spans]:
        for said in _COMMAND.findall(line):
            words = said.replace("[", " ").replace("]", " ").split()
            if words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
                yield words


def unknown(words: list[str]) -> str | None:
    """What of a command line is not there."""
    command: click.Command = cli
    context = click.Context(cli)
    at = 0
    while isinstance(command, click.Group) and at < len(words) and not words[at].startswith("-"):
        name = words[at]
        if name in BY_SCRIPT:
            return None
        found = command.get_command(context, name)
        if found is None:
            return f"command {name}"
        command, at = found, at + 1
    options = {option for param in command.params for option in param.opts} | {"--help"}
    asked = [word.partition("=")[0] for word in words[at:] if word.startswith("--")]
    return next((f"{command.name} {option}" for option in asked if option not in options), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_that_a_page_shows_are_there(page: Path) -> None:
    assert [(words, missing) for words in spoken(page) if (missing := unknown(words))] == []


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("harness services down --purge", "down --purge"),
        ("deploy/run run shop.orders --ingest-on spark", None),
        ("KAFKA=$(deploy/run services stat --json)", "command stat"),
        ("harness teir", "command teir"),
    ],
)
def test_a_command_that_is_not_there_is_found(tmp_path: Path, line: str, missing: str | None) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"```sh\n{line}\n```\n")
    assert [unknown(words) for words in spoken(page)] == [missing]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", _BLOCK.sub("", page.read_text()))
    local = [link for link in links if not link.startswith("http")]
    assert [link for link in local if not (page.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme_or_a_page_that_is() -> None:
    reached, ahead = set[Path](), [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
        ahead += [(page.parent / link).resolve() for link in links if not link.startswith("http")]
    assert [page for page in PAGES if page not in reached and page.parent.name != "decisions"] == []


def test_a_newcomer_reads_the_readme_in_three_minutes() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 700


def test_what_is_said_to_work_together_has_a_test() -> None:
    page = (ROOT / "docs/reference/compatibility.md").read_text()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    tests = {what: test.strip("`") for _, what, state, test in rows[1:] if state == "tested"}
    assert len(tests) > 15
    assert [what for what, test in tests.items() if not (ROOT / "harness_pipelines_tests" / test).is_file()] == []
    assert [row for row in rows[1:] if row[2] not in {"tested", "planned"} or (row[2] == "planned" and row[3])] == []


SPECS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, (kind, block) in enumerate(_BLOCK.findall(page.read_text()))
    if kind == "yaml" and re.search(r"^table:", block, re.MULTILINE)
]


@pytest.mark.parametrize("text", SPECS)
def test_the_table_specs_that_a_page_shows_are_taken(text: str) -> None:
    assert load_spec_text(text).table
