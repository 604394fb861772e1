"""What is told of files by their names: is what a change replaces, or hides rows of, still as it was seen?"""

from __future__ import annotations

import pytest

from harness_pipelines.errors import Recovery
from harness_pipelines.protocol.lake.files import FilesGone, check_merged_into, check_untouched

LIVE = {"a": None, "b": "b-deletes-2", "c": None}


@pytest.mark.parametrize("seen", [{}, {"a": None}, {"a": None, "b": "b-deletes-2"}, LIVE])
def test_what_is_live_as_it_was_seen_may_be_replaced(seen: dict[str, str | None]):
    check_untouched(seen, LIVE)


def test_a_file_that_is_not_live_any_more_is_not_replaced():
    with pytest.raises(FilesGone, match="x and 1 more are not live any more; nothing was replaced") as gone:
        check_untouched({"a": None, "y": None, "x": None}, LIVE)
    assert gone.value.recovery is Recovery.REFRESH


@pytest.mark.parametrize("known", [None, "b-deletes-1"], ids=["no row was hidden", "fewer rows were hidden"])
def test_a_file_of_which_rows_were_hidden_since_is_not_replaced(known: str | None):
    with pytest.raises(FilesGone, match=rf"b has been deleted from \(b-deletes-2, not {known}\)"):
        check_untouched({"a": None, "b": known}, LIVE)


def test_a_file_whose_delete_file_went_since_is_not_replaced():
    with pytest.raises(FilesGone, match=r"a has been deleted from \(None, not a-deletes-1\)"):
        check_untouched({"a": "a-deletes-1"}, LIVE)


@pytest.mark.parametrize("snapshot", [7, None])
def test_a_merge_fits_the_snapshot_that_it_was_merged_into(snapshot: int | None):
    check_merged_into(snapshot, 7, table="shop.orders", move_id=3)


def test_a_merge_fits_no_other_snapshot():
    with pytest.raises(FilesGone, match="shop.orders: the batch view is not the one that move 3 was merged into"):
        check_merged_into(6, 7, table="shop.orders", move_id=3)
