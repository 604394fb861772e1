"""Which moves of ingest can be compared with what the buffer holds."""

from __future__ import annotations

from dataclasses import replace

from harness_pipelines.ports.table_state import MoveRow, kept_from
from harness_pipelines_tests.unit.audit.books import move, position

POSITIONS = {p: replace(position(), partition=p, trim_floor=10) for p in (0, 1)}


def ingest(number: int, **ranges: tuple[int, int]) -> MoveRow:
    named = {int(p[1:]): r for p, r in ranges.items()}
    lo, hi = {p: r[0] for p, r in named.items()}, {p: r[1] for p, r in named.items()}
    made: MoveRow = move(number, 0, 0, stage="ingest", lo=lo, hi=hi, rows=1)
    return made


def test_moves_above_the_floor_count_and_one_across_it_does_not():
    moves = [ingest(1, p0=(0, 10)), ingest(2, p0=(5, 12)), ingest(3, p0=(12, 20)), ingest(4, p1=(10, 11))]
    kept, low = kept_from(POSITIONS, moves)
    assert [m.move_id for m in kept] == [3, 4]
    assert low == {0: 12, 1: 10}


def test_a_move_that_is_left_out_leaves_out_what_it_brought_to_other_partitions():
    moves = [
        ingest(1, p0=(8, 15), p1=(10, 20)),
        ingest(2, p0=(15, 20), p1=(15, 25)),  # [10, 20) of partition 1 is not to be counted, so neither is this
        ingest(3, p0=(20, 30), p1=(25, 30)),
    ]
    kept, low = kept_from(POSITIONS, moves)
    assert [m.move_id for m in kept] == [3]
    assert low == {0: 20, 1: 25}


def test_moves_of_others_and_those_that_did_not_take_effect_do_not_count():
    moves = [move(1, 10, 20), replace(ingest(2, p0=(10, 20)), state="ABANDONED")]
    assert kept_from(POSITIONS, moves) == ([], {0: 10, 1: 10})
