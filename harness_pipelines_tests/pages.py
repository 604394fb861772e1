"""Tables of the documentation that are made from the code: `python -m harness_pipelines_tests.pages` writes them.

Each stands between two comments, ``<!-- made: NAME -->`` and ``<!-- end -->``; a test compares the pages with the code.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import click
import yaml

import harness_pipelines
from harness_pipelines.cli.main import cli
from harness_pipelines.errors import HarnessError

ROOT = Path(__file__).parents[1]
DOCS, ALERTS = ROOT / "docs", ROOT / "deploy" / "prometheus" / "alerts.yaml"
_MADE = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def errors() -> list[type[HarnessError]]:
    """Every error that the harness raises on purpose, by exit code and name."""
    for module in pkgutil.walk_packages(harness_pipelines.__path__, f"{harness_pipelines.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: set[type[HarnessError]] = {HarnessError, *_below(HarnessError)}
    ours = [one for one in found if one.__module__.startswith(f"{harness_pipelines.__name__}.")]
    return sorted(ours, key=lambda one: (one.exit_code, one.__name__))


def _below(kind: type[HarnessError]) -> Iterator[type[HarnessError]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _errors() -> Iterable[tuple[str, ...]]:
    for one in errors():
        meaning = " ".join((one.__doc__ or "").split()).replace("``", "`").replace("|", "/")
        yield f"`{one.__name__}`", str(one.exit_code), meaning, one.todo()


def _alerts() -> Iterable[tuple[str, ...]]:
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]:
        says, todo = (plain(rule["annotations"][of]) for of in ("summary", "description"))
        yield f"`{rule['alert']}`", rule["labels"]["severity"], says, todo


def _options() -> Iterable[tuple[str, ...]]:
    for path, command in commands():
        context = click.Context(command)
        if not isinstance(command, click.Group):
            arguments = (word for word in command.collect_usage_pieces(context) if word != "[OPTIONS]")
            usage = " ".join((path, *arguments)).replace("|", " or ")
            yield f"`{usage}`", "", command.get_short_help_str(limit=200).replace("|", "/")
        for param in command.params:
            if isinstance(param, click.Option) and not param.hidden:
                names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
                default = param.get_help_extra(context).get("default")
                meaning = f"{param.help or ''} {f'[default: {default}]' if default else ''}"
                yield f"`{path}`", names, " ".join(meaning.split()).replace("|", "/")


def commands(command: click.Command = cli, path: str = "harness") -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name, those of a group after it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (found := command.get_command(context, name)) is not None:
                yield from commands(found, f"{path} {name}")


def plain(text: str) -> str:
    """An annotation as the page has it: labels in capitals, values as N."""
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda label: label[1].upper(), re.sub(r"{{ \$value[^}]*}}", "N", text))


HEADS: Mapping[str, tuple[tuple[str, ...], Callable[[], Iterable[tuple[str, ...]]]]] = {
    "errors": (("error", "exit code", "means", "way on"), _errors),
    "options": (("command", "option", "meaning"), _options),
    "alerts": (("alert", "severity", "says", "what to do"), _alerts),
}


def table(name: str) -> str:
    """One table as the page has it."""
    head, rows = HEADS[name]
    body = "".join(f"| {' | '.join(cells)} |\n" for cells in rows())
    return f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n{body}"


def made(text: str) -> str:
    """*text* with its tables as the code has them."""
    return _MADE.sub(lambda found: f"{found[1]}\n{table(found[2])}\n{found[3]}", text)


def pages() -> list[Path]:
    """Those that have such a table."""
    return [page for page in sorted(DOCS.rglob("*.md")) if _MADE.search(page.read_text())]


if __name__ == "__main__":
    for page in pages():
        page.write_text(made(page.read_text()))
