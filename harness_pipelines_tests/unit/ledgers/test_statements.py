"""The files of SQL: no statement hides another one."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files

import pytest

FILES = sorted(
    path.name for path in (files("harness_pipelines.ledgers.postgres") / "sql").iterdir() if path.name.endswith(".sql")
)


@pytest.mark.parametrize("name", FILES)
def test_statements_of_a_file_have_different_names(name: str):
    text = (files("harness_pipelines.ledgers.postgres") / "sql" / name).read_text(encoding="utf-8")
    names = Counter(re.findall(r"^-- name: (\w+)$", text, flags=re.MULTILINE))
    assert [one for one, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", FILES)
def test_no_statement_tells_changes_by_the_hash_of_a_jsonb(name: str):
    """It stays the same when two values that lie 32 apart change alike; a row that holds one is hashed by it."""
    text = (files("harness_pipelines.ledgers.postgres") / "sql" / name).read_text(encoding="utf-8")
    assert re.findall(r"\b(?:jsonb_hash|hash_record|hash_array)\w*\(", text) == []
