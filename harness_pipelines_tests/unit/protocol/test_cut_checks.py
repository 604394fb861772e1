"""What fsck asks of cuts: each check finds its fault, and nothing in a cut that is as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from harness_pipelines.protocol.cut_checks import (
    BYTES_PER_BUFFERED,
    FRESH,
    MERGED,
    Finding,
    ListedCut,
    ListedData,
    ListedDeletes,
    check_bytes,
    check_deletes,
    check_freshness,
    check_identity,
    check_order,
    check_rows,
)
from harness_pipelines.protocol.cuts import snapshot_id, table_uuid

WAREHOUSE = "s3://lake"
BOUNDS = {0: (0, 10, 20, 30)}
MAKERS = ("schema 1",)
CUT = ListedCut(
    table="a.b",
    table_id=1,
    uuid=str(table_uuid(WAREHOUSE, 1)),
    snapshot_id=snapshot_id(1, 5, BOUNDS, sequence=9, makers=MAKERS),
    sequence=9,
    version=5,
    bounds=BOUNDS,
    makers=MAKERS,
    freshness=FRESH,
    data=(
        ListedData(path="batch", rows=10, sequence=3),
        ListedData(path="straddling", rows=15, sequence=4),
        ListedData(path="chunk", rows=10, sequence=9),
    ),
    deletes=(ListedDeletes(path="deletes", sequence=9, hidden={"straddling": 5}),),
)
BEFORE = replace(CUT, sequence=8, snapshot_id=1, bounds={0: (0, 10, 20, 29)})
OLDER = replace(CUT.deletes[0], sequence=3)


def all_checks(cut: ListedCut) -> list[Finding]:
    return [
        *check_rows(cut, rows=30),
        *check_identity(cut, warehouse=WAREHOUSE, before=BEFORE),
        *check_deletes(cut),
        *check_order(BEFORE, cut, reverted=False),
        *check_freshness(cut, buffer_hi={0: 25}),
    ]


def test_a_cut_as_it_should_be_is_found_so():
    assert all_checks(CUT) == []


def test_the_first_cut_has_none_before_it():
    assert list(check_identity(CUT, warehouse=WAREHOUSE, before=None)) == []


@pytest.mark.parametrize(
    ("wrong", "invariant", "detail"),
    [
        (lambda: replace(CUT, deletes=()), "F1", "35 rows, 0 hidden, its bounds have 30"),
        (lambda: replace(CUT, data=CUT.data[:2]), "F1", "25 rows, 5 hidden"),
        (lambda: replace(CUT, snapshot_id=7), "F2", "cut 7: its version, bounds and sequence give"),
        (lambda: replace(CUT, makers=("schema 2",)), "F2", "its version, bounds and sequence give"),
        (lambda: replace(CUT, uuid="other"), "F2", "has the uuid other"),
        (lambda: replace(CUT, sequence=8), "F2", "has sequence 8, the one before 8"),
        (lambda: replace(CUT, deletes=(OLDER,)), "F4", "sequence 3 hides nothing of straddling of sequence 4"),
        (lambda: replace(CUT, data=CUT.data[::2]), "F4", "hides rows of straddling, which cut"),
        (lambda: with_hidden(16), "F4", "deletes hides 16 of the 15 rows of straddling"),
        (lambda: with_bounds(0, 10, 20, 28), "F5", "ends at offset 28, that of the cut before at 29"),
        (lambda: with_bounds(0, 10, 19, 30), "F5", "stream_hi of partition 0 fell from 20 to 19 without a revert"),
        (lambda: with_bounds(0, 9, 20, 30), "F5", "batch_hi of partition 0 fell from 10 to 9 without a revert"),
        (lambda: replace(CUT, version=4), "F5", "a cut of version 4 cannot follow one of version 5"),
        (lambda: with_bounds(0, 10, 20, 24), "F9", "behind in partition 0 and calls itself fresh"),
        (lambda: with_bounds(0, 10, 20, 15), "F9", "behind in partition 0 and calls itself fresh"),
        (lambda: replace(CUT, freshness=""), "F9", "does not say how fresh it is: ''"),
    ],
)
def test_each_fault_is_found_by_its_number(wrong: Callable[[], ListedCut], invariant: str, detail: str):
    assert any(detail in one.detail for one in all_checks(wrong()) if one.invariant == invariant)


def test_a_revert_explains_lower_bounds_of_the_lake():
    cut = replace(with_bounds(0, 5, 6, 30), version=6)
    assert list(check_order(BEFORE, cut, reverted=True)) == []


def test_a_merged_state_that_says_so_may_be_behind():
    cut = replace(with_bounds(0, 10, 10, 10), freshness=MERGED)
    assert list(check_freshness(cut, buffer_hi={0: 25})) == []


def test_the_folder_may_have_a_multiple_of_what_is_buffered_and_what_is_served():
    allowed = BYTES_PER_BUFFERED * 100 + 7
    assert_none(check_bytes("a.b", found=allowed, served=7, buffered=100))
    [finding] = check_bytes("a.b", found=allowed + 1, served=7, buffered=100)
    assert finding == ("F7", f"the fresh folder of a.b has {allowed + 1} bytes; {allowed} are allowed")


def with_bounds(start: int, batch_hi: int, stream_hi: int, high: int) -> ListedCut:
    return replace(CUT, bounds={0: (start, batch_hi, stream_hi, high)})


def with_hidden(rows: int) -> ListedCut:
    return replace(CUT, deletes=(replace(CUT.deletes[0], hidden={"straddling": rows}),))


def assert_none(found: Iterable[Finding]) -> None:
    assert list(found) == []
