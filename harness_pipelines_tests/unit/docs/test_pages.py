"""Tables of the documentation that are made from the code are those of the code, and complete."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness_pipelines.cli.ending import TERMINATED
from harness_pipelines.cli.main import INTERRUPTED, cli
from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines_tests.pages import DOCS, HEADS, ROOT, errors, made, pages, table

ERRORS = DOCS / "reference" / "errors.md"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_its_tables_as_the_code_makes_them(page: Path):
    assert made(page.read_text()) == page.read_text(), "run `python -m harness_pipelines_tests.pages`"


def test_each_table_stands_on_a_page_once():
    found = re.findall(r"<!-- made: (\w+) -->", "".join(page.read_text() for page in pages()))
    assert sorted(found) == sorted(HEADS)


def test_no_error_is_missing_and_each_says_what_it_means_and_what_to_do():
    text = "".join(path.read_text() for path in (ROOT / "harness_pipelines").rglob("*.py"))
    kinds = {one.__name__ for one in errors()}
    written, grown = {"HarnessError"}, True
    while grown:  # by the text of the code: what no import reaches would be missing too
        below = re.findall(r"^class (\w+)\(([\w, ]+)\):", text, re.MULTILINE)
        more = {name for name, bases in below if written & set(bases.split(", "))} - written
        written, grown = written | more, bool(more)
    assert kinds == written
    assert [one.__name__ for one in errors() if not (one.__doc__ or "").strip() or not one.todo().strip()] == []
    assert kinds == set(re.findall(r"^\| `(\w+)` \|", ERRORS.read_text(), re.MULTILINE))


def test_an_error_that_has_no_way_on_has_that_of_its_kind():
    class Odd(HarnessError):
        recovery = Recovery.REFRESH

    assert "makes a new plan" in Odd.todo()
    assert "harness status" in table("errors")


def test_the_page_of_settings_has_every_exit_code():
    section = (DOCS / "reference" / "settings.md").read_text().partition("## Exit codes")[2]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}
    assert codes == {os.EX_OK, INTERRUPTED, TERMINATED, *(kind.exit_code for kind in errors())}
    assert codes == set(map(int, re.findall(r"\b(\d+) [a-z]", str(cli.help).partition("Exit codes:")[2])))
