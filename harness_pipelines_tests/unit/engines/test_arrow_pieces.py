"""Rows that Arrow deals out to files: none is lost, each file is in order, whatever waits on the disk."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.engines.arrow.attempts import Attempts, EngineInterrupted
from harness_pipelines.engines.arrow.engine import _part_of
from harness_pipelines.engines.arrow.pieces import NoRoomForRows, Pieces
from harness_pipelines.engines.arrow.sources import gathered
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import FencedOut
from harness_pipelines.protocol.lake.wide import split_evenly

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 10**6)), min_size=0, max_size=60)


def table(rows: list[tuple[int, int, int]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    return pa.table(
        {
            "a": pa.array(columns[1], pa.int32()),
            "b": pa.array(columns[2], pa.int64()),
            "text": pa.array([f"{row}" * 5 for row in rows], pa.string()),
            "nested": pa.array([[{"x": b}] for b in columns[2]], pa.list_(pa.struct([("x", pa.int64())]))),
        }
    )


@given(batches=st.lists(ROWS, max_size=8), held=st.sampled_from([0, 500, 2**20]))
def test_each_piece_has_its_rows_in_order(batches: list[list[tuple[int, int, int]]], held: int):
    with Pieces(5, by=("a", "b"), held_max=held) as pieces:
        for rows in batches:
            pieces.add(table(rows), np.array([piece for piece, _, _ in rows], np.int64))
        found = {number: [row for part in pieces.sorted(number) for row in part.to_pylist()] for number in range(5)}
    for number, rows in found.items():
        mine = [one for batch in batches for one in batch if one[0] == number]
        assert rows == sorted(table(mine).to_pylist(), key=lambda row: (row["a"], row["b"]))


def test_what_waits_on_the_disk_goes_with_the_move(tmp_path: Path):
    with patch("tempfile.tempdir", str(tmp_path)), Pieces(2, by=("b",), held_max=0) as pieces:
        pieces.add(table([(0, 0, 5), (1, 0, 4), (0, 0, 3)]), np.array([0, 1, 0]))
        assert len(list(tmp_path.rglob("*.arrow"))) == 1
        assert [part.column("b").to_pylist() for part in pieces.sorted(0)] == [[3, 5]]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named():
    full = OSError(errno.ENOSPC, "No space left on device")
    with (
        Pieces(1, by=("b",), held_max=0) as pieces,
        patch("pyarrow.OSFile", side_effect=full),
        pytest.raises(NoRoomForRows, match="No space left on device; nothing was published"),
    ):
        pieces.add(table([(0, 0, 1)]), 0)


@given(places=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 29)), max_size=40), count=st.integers(1, 20))
def test_a_row_goes_to_the_part_that_has_its_offset(places: list[tuple[int, int]], count: int):
    ranges = [OffsetRange(partition=p, low=0, high=30) for p in range(4)]
    parts = split_evenly(ranges, count)
    rows = pa.table(
        {
            "_kafka_partition": pa.array([p for p, _ in places], pa.int32()),
            "_kafka_offset": pa.array([o for _, o in places], pa.int64()),
        }
    )
    for (partition, offset), number in zip(places, _part_of(rows, parts), strict=True):
        assert any(r.partition == partition and r.low <= offset < r.high for r in parts[number])


def test_many_small_runs_come_together_and_stay_in_order():
    small = [pa.table({"n": pa.array([2 * i, 2 * i + 1])}) for i in range(50)]
    other = pa.table({"n": pa.array([100], pa.int32())})
    with patch("harness_pipelines.engines.arrow.sources.GATHERED_ROWS", 20):
        found = list(gathered([*small, other]))
    assert [rows.num_rows for rows in found] == [20, 20, 20, 20, 20, 1]
    assert [n for rows in found for n in rows.column("n").to_pylist()] == list(range(101))


def test_work_whose_claim_is_lost_ends_between_two_batches():
    attempts = Attempts()
    with pytest.raises(FencedOut), attempts.working("a") as work, attempts.working("b") as other:
        seen = []
        for number in work.each(range(10)):
            seen.append(number)
            if number == 3:
                attempts.give_up("a")
                assert list(other.each([1, 2])) == [1, 2]
    assert seen == [0, 1, 2, 3]
    with attempts.working("a") as work:
        assert list(work.each([1])) == [1], "the next attempt is another one"


def test_an_attempt_that_was_given_up_at_its_end_is_not_committed():
    attempts = Attempts()
    with pytest.raises(FencedOut), attempts.working("a"):
        attempts.give_up("a")


def test_a_process_that_ends_begins_nothing_more():
    attempts = Attempts()
    with pytest.raises(EngineInterrupted), attempts.working("a") as work:
        attempts.interrupt()
        work.check()
    with pytest.raises(EngineInterrupted), attempts.working("a"):
        raise AssertionError("begun")
