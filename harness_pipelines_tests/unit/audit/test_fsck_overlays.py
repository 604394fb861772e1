"""Rules of fsck on recalled rows, on books written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_pipelines.audit.fsck import batch_view, lake, overlays
from harness_pipelines.audit.fsck.rule import Look
from harness_pipelines.ports.table_state import Books, OverlayRow
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.audit.books import file, move
from harness_pipelines_tests.unit.audit.test_fsck_batch import batch_look, two_views

KEYED = TableSpec(table="shop.orders", columns={"id": {"type": "long", "required": True}}, key=["id"])
FIRST = Overlay(segment="ovl_1_16_1", rows=4, bytes=9, schema_version=1, digest="v1:a", move=16)
SECOND = Overlay(segment="ovl_1_17_1", rows=3, bytes=9, schema_version=1, digest="v1:b", move=17)


def recalled(**changes) -> Books:
    """`two_views` with a key, whose version 7 recalls four rows and version 8 makes their next generation of three."""
    made = two_views(spec=KEYED)
    newest = made.versions[-1]
    steps = [
        replace(newest, version=7, move_id=16, overlays=(FIRST,)),
        replace(newest, version=8, move_id=17, overlays=(SECOND,)),
    ]
    moves = [
        move(16, 0, 0, stage="otree", lo={}, hi={}, rows=0),
        move(17, 0, 0, stage="otree", lo={}, hi={}, rows=0),
    ]
    rows = [OverlayRow(name=o.segment, move_id=o.move, retired=False, stored=True) for o in (FIRST, SECOND)]
    made = replace(made, versions=[*made.versions, *steps], moves=[*made.moves, *moves], overlays=rows)
    return replace(made, **changes)


def look_at(books: Books, **recalled_rows: tuple[int, str]) -> Look:
    look: Look = batch_look([file("file:///b/data/a.parquet", partition=None, rows=12, low=0, high=14)], books)
    look.recalled = {"ovl_1_16_1": (4, "v1:a"), "ovl_1_17_1": (3, "v1:b"), **recalled_rows}
    return look


def details(check, books: Books | None = None, **recalled_rows: tuple[int, str]) -> list[str]:
    return [found.detail for found in check(look_at(books or recalled(), **recalled_rows))]


RULES = (
    overlays.overlays_there,
    overlays.overlays_whole,
    overlays.recalled_once,
    overlays.overlays_are_moves,
)


@pytest.mark.parametrize("check", RULES)
def test_a_sound_table_has_nothing_to_say(check):
    assert details(check) == []
    assert details(check, two_views()) == []


def test_a_table_that_is_gone_or_given_up_is_named_with_its_rows():
    gone = [OverlayRow(name=FIRST.segment, move_id=16, retired=False, stored=False)]
    [first, second] = details(overlays.overlays_there, recalled(overlays=gone))
    assert first.startswith(
        "ovl_1_16_1, which version 7 names, is not in Postgres: 4 rows of the batch view are gone; `"
    )
    assert second.startswith("ovl_1_17_1, which version 8 names, is not in Postgres: 3 rows")
    given_up = [OverlayRow(name=o.segment, move_id=o.move, retired=o is SECOND, stored=True) for o in (FIRST, SECOND)]
    assert details(overlays.overlays_there, recalled(overlays=given_up)) == [
        "ovl_1_17_1, which version 8 names, is given up and will be dropped: 3 rows of the batch view"
    ]


def test_what_no_version_in_reach_names_may_be_gone():
    assert details(overlays.overlays_there, recalled(overlays=[], retained_from=99)) == []


def test_other_rows_than_the_version_says_are_named():
    assert details(overlays.overlays_whole, ovl_1_17_1=(2, "v1:b")) == [
        "ovl_1_17_1 has 2 rows with digest v1:b, version 8 says 3 with v1:b"
    ]
    assert len(details(overlays.overlays_whole, ovl_1_16_1=(4, "v1:c"))) == 1


def test_the_snapshot_must_say_which_rows_it_lacks():
    look = look_at(recalled())
    assert {found.subject for found in overlays.told_recalled(look)} == {
        "recalled rows of version 7",
        "recalled rows of version 8",
    }
    assert "version 8 names ovl_1_17_1:3, its snapshot of the batch view none" in [
        found.detail for found in overlays.told_recalled(look)
    ]


def test_a_table_without_a_key_has_no_recalled_rows_and_none_are_named_twice():
    assert len(details(overlays.recalled_once, recalled(spec=two_views().spec))) == 2
    books = recalled()
    twice = replace(books.versions[-1], overlays=(SECOND, SECOND))
    assert details(overlays.recalled_once, replace(books, versions=[*books.versions[:-1], twice])) == [
        "version 8 names ovl_1_17_1 twice"
    ]


def test_recalled_rows_change_by_the_move_that_made_them():
    books = recalled()
    strange = replace(books.versions[-1], move_id=12)
    [found] = details(overlays.overlays_are_moves, replace(books, versions=[*books.versions[:-1], strange]))
    assert found == "version 8 names ovl_1_17_1:3, version 7 ovl_1_16_1:4; its move 12 is none that made them"


def test_a_revert_names_what_the_version_that_it_restores_named():
    books = recalled()
    back = replace(books.versions[-1], version=9, revert_of=7, overlays=(FIRST,))
    assert details(overlays.overlays_are_moves, replace(books, versions=[*books.versions, back])) == []
    wrong = replace(back, overlays=())
    assert details(overlays.overlays_are_moves, replace(books, versions=[*books.versions, wrong])) == [
        "version 9 names no recalled rows, version 7, which it restores, ovl_1_16_1:4"
    ]


def test_recalled_rows_count_as_rows_of_the_batch_view():
    assert details(batch_view.same_rows) == []
    more = replace(recalled().versions[-1], overlays=(replace(SECOND, rows=30),))
    books = recalled()
    [found] = details(batch_view.same_rows, replace(books, versions=[*books.versions[:-1], more]))
    assert "has 12 rows" in found or "42 rows" in found


def test_a_recall_that_hides_nothing_has_too_many_rows():
    """All versions of these books have one metadata file, so the recall has hidden nothing."""
    assert "version 7, otree move 16 has 19 rows in shop.orders, version 6 had 15" in details(lake.rewrites_keep_rows)
