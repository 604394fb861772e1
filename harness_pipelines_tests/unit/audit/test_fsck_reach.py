"""Rules of fsck for the reach that the ledger keeps, on books written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.audit.fsck.reach import kept_reach_has_no_more, kept_reach_is_whole
from harness_pipelines_tests.unit.audit.books import books, details, file, surveyed

METADATA, LIST, MANIFEST, DATA = (
    "file:///t/metadata/3.json",
    "file:///t/list",
    "file:///t/m",
    "file:///t/data/a.parquet",
)
SOUND: dict[str, Any] = {path: [(3, None)] for path in (METADATA, LIST, MANIFEST, DATA)}


def found(check: Any, reach: dict[str, Any]) -> list[str]:
    seen: list[str] = details(check, books(reach={"stream": reach}, retained_from=3), survey=surveyed((file(),)))
    return seen


def test_a_reach_that_is_what_the_metadata_says_breaks_no_rule():
    assert found(kept_reach_is_whole, SOUND) == found(kept_reach_has_no_more, SOUND) == []


def test_versions_that_were_not_read_yet_are_not_compared():
    assert found(kept_reach_is_whole, {}) == found(kept_reach_has_no_more, {}) == []


@pytest.mark.parametrize("path", [LIST, MANIFEST, DATA])
@pytest.mark.parametrize("spans", [[], [(1, 2)], [(4, None)]], ids=["none", "ended before", "begins after"])
def test_a_file_that_the_reach_lacks_is_named_with_the_versions_that_have_it(path: str, spans: Any):
    [text] = found(kept_reach_is_whole, {**SOUND, path: spans})

    assert text.startswith(f"{path}: version 3 of shop.orders__stream has it, and the reach that the ledger keeps does")


def test_a_file_that_began_again_is_in_reach_by_its_later_span():
    assert found(kept_reach_is_whole, {**SOUND, DATA: [(1, 1), (3, None)]}) == []


def test_a_file_that_the_newest_version_does_not_have_any_more_is_named():
    [text] = found(kept_reach_has_no_more, {**SOUND, "file:///t/data/b.parquet": [(2, None)]})

    assert text.startswith("file:///t/data/b.parquet: the reach")


def test_a_span_that_ended_is_no_fault():
    assert found(kept_reach_has_no_more, {**SOUND, "file:///t/data/b.parquet": [(1, 2)]}) == []
