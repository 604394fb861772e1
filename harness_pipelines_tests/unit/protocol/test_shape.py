"""What the words `buffer` and `views` mean, and that nobody else compares them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import harness_pipelines
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.shape import VIEW_SETS, intake_of, view_set_of
from harness_pipelines.spec.table import TableSpec

PACKAGE = Path(harness_pipelines.__file__).parent
BOUNDS = Bounds(start=0, batch_hi=10, stream_hi=20, buffer_hi=30)
#: Where the words may be compared: where a spec is checked, and where they become objects.
WORDS = {"spec", "chaos"}


def _spec(**words: str) -> TableSpec:
    return TableSpec.model_validate({"table": "a.b", "topic": "t", "columns": {"id": "long"}, **words})


def test_with_a_buffer_ingest_reads_the_log_from_where_the_buffer_ends():
    intake = intake_of(_spec(buffer="postgres"))
    assert (intake.buffered, intake.reader, intake.hot) == (True, Stage.INGEST, "buffer")
    assert intake.ends({4: BOUNDS}) == {4: 30}
    assert intake.waiting(buffered=5, unread=7) == {Stage.INGEST: 7, Stage.TIER: 5}


def test_without_a_buffer_tier_reads_the_log_from_where_the_lake_ends():
    intake = intake_of(_spec(buffer="none"))
    assert (intake.buffered, intake.reader, intake.hot) == (False, Stage.TIER, "tail")
    assert intake.ends({4: BOUNDS}) == {4: 20}
    assert intake.waiting(buffered=5, unread=7) == {Stage.INGEST: 0, Stage.TIER: 12}


@pytest.mark.parametrize(
    ("word", "names", "tiered", "clustered", "mixed", "merged"),
    [
        ("both", ("stream", "batch"), "stream", True, False, True),
        ("stream", ("stream",), "stream", False, False, False),
        ("batch", ("batch",), "batch", True, True, False),
    ],
)
def test_views_of_a_table(word: str, names: tuple[str, ...], tiered: str, clustered: bool, mixed: bool, merged: bool):
    found = view_set_of(_spec(views=word))
    assert found is VIEW_SETS[word]
    assert (found.word, found.names, found.tiered) == (word, names, tiered)
    assert (found.clustered, found.mixed, found.merged) == (clustered, mixed, merged)


def test_the_words_are_compared_nowhere_else():
    compared = re.compile(r"(spec|self)\.(buffer|views) (==|!=|in|not in) ")
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in WORDS and compared.search(path.read_text(encoding="utf-8"))
    }
    assert found == set()
