"""The code of pages of the documentation, as their readers copy it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ENGINES = ROOT / "docs" / "how-to" / "engines"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"--[^\n]*")


def blocks(page: Path, language: str) -> Sequence[str]:
    """The blocks of *page* in *language*, in their order."""
    return [text for kind, text in _BLOCK.findall(page.read_text()) if kind == language]


def languages(page: Path) -> set[str]:
    """Those that *page* has blocks in."""
    return {kind for kind, _ in _BLOCK.findall(page.read_text())}


def statements(sql: str) -> Iterator[str]:
    """The statements of *sql*, which has no semicolon and no ``--`` in a text."""
    for one in _COMMENT.sub("", sql).split(";"):
        if one.strip():
            yield one.strip()
