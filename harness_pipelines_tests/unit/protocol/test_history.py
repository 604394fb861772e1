"""How a ledger continues a lake that went on without it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.lake.history import (
    HistoryBroken,
    LiveRows,
    NamedMove,
    PastMove,
    check_not_shorter,
    continue_from,
    floor_after,
    lost_of,
    number_behind,
    parse_ranges,
)


def past(move_id: int, *ranges: tuple[int, int, int]) -> PastMove:
    taken = tuple(OffsetRange(partition=p, low=low, high=high) for p, low, high in ranges)
    return PastMove(move_id=move_id, attempt=1, schema_version=1, ranges=taken, rows=1, bytes=1, snapshot=move_id)


def test_moves_that_the_ledger_counts_already_are_not_taken_again():
    after = continue_from({0: 5, 1: 3}, [past(1, (0, 0, 5), (1, 0, 3)), past(2, (0, 5, 9))], {})
    assert [m.move_id for m in after.moves] == [2]
    assert after.stream_hi == {0: 9, 1: 3}
    assert after.unnamed == {}


def test_ranges_whose_snapshots_were_expired_are_told_apart():
    after = continue_from({0: 5}, [past(7, (0, 8, 10))], {0: LiveRows(rows=9, low=0, high=10)})
    assert after.unnamed == {0: (5, 8)}
    assert after.stream_hi == {0: 10}


def test_a_partition_of_which_no_snapshot_tells_ends_behind_its_last_row():
    after = continue_from({0: 5}, [], {0: LiveRows(rows=7, low=0, high=8), 1: LiveRows(rows=2, low=4, high=6)})
    assert after.stream_hi == {0: 8, 1: 6}
    assert after.unnamed == {0: (5, 8), 1: (4, 6)}


@pytest.mark.parametrize(
    "moves",
    [[past(1, (0, 5, 9)), past(2, (0, 10, 12))], [past(1, (0, 5, 9)), past(2, (0, 8, 12))], [past(1, (0, 3, 9))]],
    ids=["gap", "overlap", "begins-inside"],
)
def test_what_does_not_follow_is_refused(moves: list[PastMove]):
    with pytest.raises(HistoryBroken, match="does not continue this ledger"):
        continue_from({0: 5}, moves, {})


def test_rows_above_the_last_move_are_refused():
    with pytest.raises(HistoryBroken, match="rows up to offset 11, its last move ends at 9"):
        continue_from({0: 5}, [past(1, (0, 5, 9))], {0: LiveRows(rows=12, low=0, high=12)})


def test_a_lake_that_was_set_back_is_no_history_of_the_ledger():
    with pytest.raises(HistoryBroken, match="the lake that was set back"):
        check_not_shorter({0: 9}, [past(1, (0, 0, 5))])
    check_not_shorter({0: 5}, [past(1, (0, 0, 5))])


def test_ranges_are_read_as_summaries_write_them():
    assert parse_ranges("0:5-9,12:0-4") == (
        OffsetRange(partition=0, low=5, high=9),
        OffsetRange(partition=12, low=0, high=4),
    )
    assert parse_ranges("") == ()
    with pytest.raises(HistoryBroken, match="no ranges"):
        parse_ranges("0:5")


@pytest.mark.parametrize(
    ("trim_floor", "buffer_hi", "stream_hi", "floor"), [(3, 10, 30, 30), (3, 30, 30, 3), (3, 40, 30, 3)]
)
def test_a_revert_counts_on_no_row_that_the_buffer_never_held(
    trim_floor: int, buffer_hi: int, stream_hi: int, floor: int
):
    assert floor_after(trim_floor, buffer_hi=buffer_hi, stream_hi=stream_hi) == floor


# -- history that a ledger lost -----------------------------------------------------------------------------


def named(*moves: tuple[int, str]) -> list[NamedMove]:
    return [NamedMove(move_id=move_id, nonce=nonce) for move_id, nonce in moves]


@pytest.mark.parametrize(
    ("lake", "known", "lost"),
    [
        ([(1, "a"), (2, "b")], {1: {"a"}, 2: {"b"}}, []),
        ([(1, "a"), (2, "b")], {1: {"a"}}, [(2, "b")]),
        ([(2, "b")], {2: {"c"}}, [(2, "b")]),  # the number was given again
        ([(2, "b"), (2, "c")], {2: {"b", "c"}}, []),  # what was lost is noted
        ([(2, "b")], {2: {""}}, []),  # the ledger's move is older than nonces
        ([(2, "")], {}, []),  # a number that was given, of a move from before
        ([(9, "")], {}, [(9, "")]),  # one that was not
        ([(9, "")], {9: {"x"}}, []),  # a branch names no nonce
    ],
)
def test_what_the_lake_names_and_the_ledger_never_had_is_lost(lake, known, lost):
    assert lost_of(named(*lake), known, highest=5) == named(*lost)


def test_numbers_go_on_behind_all_that_any_history_gave_out():
    first = number_behind(7, now=datetime(2026, 1, 1, tzinfo=UTC))
    again = number_behind(7, now=datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))  # the same backup, a second later
    assert first == 1_767_225_600_000
    assert again == first + 1000
    assert number_behind(again, now=datetime(2020, 1, 1, tzinfo=UTC)) == again + 1
