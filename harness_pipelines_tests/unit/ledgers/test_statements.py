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
