"""What the documentation says is there: its links, the commands and options that it shows, its table specs."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest

from harness_pipelines.cli.main import cli
from harness_pipelines.spec.load import load_spec_text
from harness_pipelines.spec.object_stores import NAMES as S3_NAMES
from harness_pipelines_tests.pages import commands

ROOT = Path(__file__).parents[3]
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


def called(text: str) -> Iterator[list[str]]:
    """The arguments of every command line of ours in a text of a shell, up to a pipe or a redirection."""
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        for start in re.finditer(r"(?:^|[\s$(])(?:harness|deploy/run)(?= [a-z])", line):
            reader = shlex.shlex(line[start.end() :], posix=True, punctuation_chars="|&;()<>")
            reader.whitespace_split = True
            words: list[str] = []
            try:
                for word in iter(reader.get_token, None):
                    if set(word) <= set("|&;()<>"):
                        break
                    words.append(word)
            except ValueError:
                continue  # a quotation around the command ends behind it
            if words[0] not in BY_SCRIPT:
                yield words


def misused(words: list[str]) -> str | None:
    """What click says about a whole command line, without running it."""
    command: click.Command = cli
    context, left = click.Context(cli), list(words)
    while isinstance(command, click.Group):
        if command.invoke_without_command and (not left or left[0].startswith("-")):
            break  # it does something itself
        if not left:
            return f"{command.name} is a group"
        name = left.pop(0)
        if (found := command.get_command(context, name)) is None:
            return f"command {name}"
        command, context = found, click.Context(found, parent=context)
    try:
        command.parse_args(context, left)
    except click.ClickException as error:
        return None if "does not exist" in error.message else error.format_message()  # a file that the reader has
    return None


EXAMPLES = {
    **{
        str(page.relative_to(ROOT)): "".join(block for kind, block in _BLOCK.findall(page.read_text()) if kind == "sh")
        for page in PAGES
    },
    **{path: (command.help or "").partition("Example")[2] for path, command in commands()},
}


@pytest.mark.parametrize("where", [where for where, text in EXAMPLES.items() if any(called(text))])
def test_the_command_lines_of_pages_and_of_help_parse(where: str) -> None:
    assert [(words, wrong) for words in called(EXAMPLES[where]) if (wrong := misused(words))] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("harness audit", "Missing argument 'TABLE'."),
        ("harness read shop.orders --limit many | head", "'many' is not a valid integer range"),
        ('harness read shop.orders --where "amount > 10" > file', None),
        ("harness table", "table is a group"),
    ],
)
def test_a_command_line_that_does_not_parse_is_found(line: str, wrong: str | None) -> None:
    [found] = [misused(words) for words in called(line)]
    assert found is None if wrong is None else wrong in str(found)


def anchors(page: Path) -> set[str]:
    """The names by which the headings of *page* are linked."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.*)$", _BLOCK.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.append(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", _BLOCK.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not link.startswith("http") and (not target.exists() or (anchor and anchor not in anchors(target))):
            broken.append(link)
    assert broken == []


def test_a_message_that_names_a_page_names_one_that_is_there() -> None:
    text = "".join(path.read_text() for path in (ROOT / "harness_pipelines").rglob("*.py"))
    named = set(re.findall(r"docs/[a-z-]+/[a-z0-9-]+\.md", text))
    assert named
    assert [name for name in sorted(named) if not (ROOT / name).is_file()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_parses_and_imports_what_is_there(page: Path) -> None:
    known, used = set(dir(builtins)), set[str]()
    for kind, block in _BLOCK.findall(page.read_text()):
        for node in ast.walk(ast.parse(block)) if kind == "python" else ():
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    known |= {one.name for one in names}
                    if module.startswith("harness_pipelines"):
                        assert [one.name for one in names if not hasattr(import_module(module), one.name)] == []
                case ast.Attribute(value=ast.Name(id="hp"), attr=name):
                    assert hasattr(import_module("harness_pipelines"), name)
                case ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                    known.add(name)
                case ast.Name(id=name) if name[0].isupper():
                    used.add(name)
    assert used <= known, "a class that is not imported"


#: Variables that the page of settings leaves out: of the shell's completion, of processes of the harness, of the tests.
_OURS = {"HARNESS_COMPLETE", "HARNESS_SERVICE_OF", "HARNESS_TEST_HOME"}


def test_the_page_of_settings_has_every_variable_that_is_read() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    named = re.findall(r"`(HARNESS_\w+|_[A-Z_]+)`", page.replace("<NAME>", ""))
    assert "HARNESS_S3_ENDPOINT" in named  # the variables after it are named by their ends
    on_page = {f"HARNESS_S3{name}" if name.startswith("_") else name for name in named}
    code = "".join(path.read_text() for path in (ROOT / "harness_pipelines").rglob("*.py"))
    read = set(re.findall(r"\bHARNESS_[A-Z0-9]+(?:_[A-Z0-9]+)*_?\b", code)) - _OURS
    families = ("HARNESS_KAFKA_", "HARNESS_REGISTRY_", "HARNESS_S3_")
    assert {name for name in read if not name.startswith(families)} == {
        name for name in on_page if not name.startswith(families)
    }
    assert {name for name in on_page if name.startswith(families[2])} == {f"HARNESS_S3_{name}" for name in S3_NAMES}


def test_the_page_of_extras_has_each() -> None:
    page = (ROOT / "docs/how-to/install.md").read_text()
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {*re.findall(r"^\| `([a-z0-9-]+)` \|", page, re.MULTILINE), "all", "test"} == extras


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
