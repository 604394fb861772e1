"""Write a proposed spec as a file that a person reads, changes and applies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from harness_pipelines.show.output import printable
from harness_pipelines.spec.wording import quantity
from harness_pipelines.stages.table.proposed import ProposedSpec

NOTES_AT = 48  #: the column of a line up to which its comment is pushed
NOTE_CHARS = 160


def spec_text(proposed: ProposedSpec, *, file: str) -> str:
    """The spec in YAML, with what was seen of each column beside it. *file*: where it is going to be."""
    return "".join(f"{line}\n" for line in _lines(proposed, file))


def _lines(proposed: ProposedSpec, file: str) -> Iterator[str]:
    found, words = proposed.proposal, proposed.words
    read = f"{quantity(found.records, 'record')} of topic {proposed.spec.topic}"
    yield _comment(
        f"Proposed from {read} ({quantity(proposed.partitions, 'partition')}): {proposed.sampled.summary()}."
    )
    for note in proposed.notes:
        yield _comment(f"Note: {note}.")
    yield _comment(f"Read it through, then: harness table apply {file}")
    for word in words:
        if word != "columns":
            yield f"{word}: {_inline(words[word])}"
    if found.key and not found.is_keyed:
        yield _noted(
            f"# key: {_inline(list(found.key))}", "the record keys; with it the newest record of a key is its row"
        )
        if found.key_format is not None:
            yield f"# key_format: {found.key_format}"
    columns = _inline(list(proposed.spec.indexed))
    yield _noted(f"# layout: {{columns: {columns}}}", "the default; name the columns that are filtered most, first")
    yield "columns:"
    for column in found.fields.columns:
        yield _noted(f"  {_inline(column.column.name)}: {_inline(words['columns'][column.column.name])}", column.note)
    for name, why in found.fields.left_out.items():
        yield _comment(f"left out: {name}: {why}", indent="  ")


def _noted(line: str, note: str) -> str:
    short = note if len(note) <= NOTE_CHARS else f"{note[: NOTE_CHARS - 3]}..."
    return f"{line.ljust(NOTES_AT - 1)} {_comment(short)}" if note else line


def _comment(text: str, *, indent: str = "") -> str:
    """A comment on one line, of what may be anything."""
    return f"{indent}# {' '.join(printable(text).split())}"


def _inline(value: Any) -> str:
    """*value* in YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=2**20)
    return text.removesuffix("\n").removesuffix("\n...").rstrip()
