"""What fsck asks of cuts: each check finds its fault, and nothing in a cut that is as it should be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness_pipelines.protocol.cut_checks import (
    FRESH,
    MERGED,
    Finding,
    ListedCut,
    ListedData,
    ListedDeletes,
    check_deletes,
    check_freshness,
    check_rows,
)

CUT = ListedCut(
    snapshot_id=7,
    sequence=9,
    version=5,
    bounds={0: (0, 10, 20, 30)},
    freshness=FRESH,
    data=(
        ListedData(path="batch", rows=10, sequence=3),
        ListedData(path="straddling", rows=15, sequence=4),
        ListedData(path="chunk", rows=10, sequence=9),
    ),
    deletes=(ListedDeletes(path="deletes", sequence=9, hidden={"straddling": 5}),),
)
OLDER = replace(CUT.deletes[0], sequence=3)


def all_checks(cut: ListedCut) -> list[Finding]:
    return [
        *check_rows(cut, rows=30),
        *check_deletes(cut),
        *check_freshness(cut, buffer_hi={0: 25}),
    ]


def test_a_cut_as_it_should_be_is_found_so():
    assert all_checks(CUT) == []


@pytest.mark.parametrize(
    ("wrong", "invariant", "detail"),
    [
        (lambda: replace(CUT, deletes=()), "F1", "35 rows, 0 hidden, its bounds have 30"),
        (lambda: replace(CUT, data=CUT.data[:2]), "F1", "25 rows, 5 hidden"),
        (lambda: replace(CUT, deletes=(OLDER,)), "F4", "sequence 3 hides nothing of straddling of sequence 4"),
        (lambda: replace(CUT, data=CUT.data[::2]), "F4", "hides rows of straddling, which cut"),
        (lambda: with_hidden(16), "F4", "deletes hides 16 of the 15 rows of straddling"),
        (lambda: with_bounds(0, 10, 20, 24), "F9", "behind in partition 0 and calls itself fresh"),
        (lambda: with_bounds(0, 10, 20, 15), "F9", "behind in partition 0 and calls itself fresh"),
        (lambda: replace(CUT, freshness=""), "F9", "does not say how fresh it is: ''"),
    ],
)
def test_each_fault_is_found_by_its_number(wrong: Callable[[], ListedCut], invariant: str, detail: str):
    assert any(detail in one.detail for one in all_checks(wrong()) if one.invariant == invariant)


def test_a_merged_state_that_says_so_may_be_behind():
    cut = replace(with_bounds(0, 10, 10, 10), freshness=MERGED)
    assert list(check_freshness(cut, buffer_hi={0: 25})) == []


def with_bounds(start: int, batch_hi: int, stream_hi: int, high: int) -> ListedCut:
    return replace(CUT, bounds={0: (start, batch_hi, stream_hi, high)})


def with_hidden(rows: int) -> ListedCut:
    return replace(CUT, deletes=(replace(CUT.deletes[0], hidden={"straddling": rows}),))
