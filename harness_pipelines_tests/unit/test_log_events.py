"""Log events: a constant name of who acts and what happened, the table as a field, and a page for those that warn."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import harness_pipelines
from harness_pipelines.stages.ingest.refusing import _NOTICES

PACKAGE = Path(harness_pipelines.__file__).parent
PAGE = PACKAGE.parent / "docs/how-to/operate.md"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NOTICES = "formats/culprits.py"  #: its caller names the event
#: Events of what serves several tables, or none.
OF_NO_TABLE = {
    "adbc", "claims", "doctor", "expire.bucket_keeps_versions", "expire.segment_busy", "health", "kafka", "looks",
    "metrics", "notify", "store", "watch", "worker.not_left", "worker.shares",
}  # fmt: skip


def events() -> Iterator[tuple[str, str, str | None, set[str]]]:
    """Module, level, name (None: it is no constant) and fields of each event."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="log"), attr=level), args=[first, *_]):
                    if level in LEVELS:
                        name = str(first.value) if isinstance(first, ast.Constant) else None
                        fields = {word.arg or "**" for word in node.keywords}
                        yield str(path.relative_to(PACKAGE)), level, name, fields


def test_an_event_is_named_by_who_acts_and_what_happened():
    found = list(events())
    assert len(found) > 40
    wrong = [
        (module, name)
        for module, _, name, _ in found
        if module != NOTICES and (name is None or not re.fullmatch(r"[a-z]+\.[a-z]+(_[a-z]+)*", name))
    ]
    assert wrong == []


def test_an_event_has_its_table_as_a_field():
    missing = [
        (module, name)
        for module, _, name, fields in events()
        if name and not OF_NO_TABLE & {name, name.partition(".")[0]} and not {"table", "**"} & fields
    ]
    assert missing == []


def test_every_warning_is_on_the_page_for_operators_and_nothing_else_is():
    text = PAGE.read_text(encoding="utf-8")
    section = text[text.index("## Warnings in the log") :].partition("\n## ")[0]
    named = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z._]+)`", line.split("|")[1])
    }
    warns = {name for _, level, name, _ in events() if name and level not in ("debug", "info")}
    assert named == warns | {_NOTICES._event}
