"""Small neighbours become fewer files, each byte is rewritten few times, and nothing wrong may stand for them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.lake.compaction import (
    FILES_MAX,
    FILES_MIN,
    CompactedWrong,
    Run,
    StreamFile,
    check_written,
    plan_runs,
)

TARGET, BUDGET = 64, 10_000


def files_of(*sizes: int, partition: int = 0, low: int = 0, span: int = 10) -> list[StreamFile]:
    """Neighbours of so many bytes, each with a row at every one of *span* offsets."""
    return [
        StreamFile(
            path=f"{partition}/{low + i * span}-{size}",
            partition=partition,
            low=low + i * span,
            high=low + (i + 1) * span,
            rows=span,
            bytes=size,
        )
        for i, size in enumerate(sizes)
    ]


def planned(files: list[StreamFile], **changes) -> tuple[Run, ...]:
    everything = {f.partition: 10**9 for f in files}
    found = plan_runs(files, **{"stream_hi": everything, "target_bytes": TARGET, "budget_bytes": BUDGET, **changes})
    return tuple(run for run in found if isinstance(run, Run))


def written(run: Run) -> list[StreamFile]:
    """What an engine makes of *run*: a file per piece, bytes as the offsets are shared out."""
    made = []
    for piece in run.pieces:
        shares = [
            max(0, min(f.high, piece.high) - max(f.low, piece.low)) * f.bytes / (f.high - f.low) for f in run.files
        ]
        made.append(
            StreamFile(
                path=f"{piece.partition}/{piece.low}-made",
                partition=piece.partition,
                low=piece.low,
                high=piece.high,
                rows=piece.span,
                bytes=max(1, round(sum(shares))),
            )
        )
    return made


def compacted(files: list[StreamFile], runs: tuple[Run, ...]) -> list[StreamFile]:
    gone = {f for run in runs for f in run.files}
    return [f for f in files if f not in gone] + [f for run in runs for f in written(run)]


sizes = st.one_of(st.integers(1, TARGET // 4), st.integers(1, 3 * TARGET))
tables = st.lists(st.lists(sizes, max_size=30), min_size=1, max_size=3).map(
    lambda columns: [f for p, column in enumerate(columns) for f in files_of(*column, partition=p)]
)


# -- plan ---------------------------------------------------------------------------------------------------


@given(tables, st.randoms(use_true_random=False))
def test_the_same_files_in_any_order_give_the_same_plan(files, random):
    shuffled = list(files)
    random.shuffle(shuffled)

    assert planned(shuffled) == planned(files)


@given(tables, st.integers(1, 400))
def test_a_run_is_of_small_neighbours_and_fits_into_the_budget(files, budget):
    runs = planned(files, budget_bytes=budget)

    taken = [f for run in runs for f in run.files]
    assert len(set(taken)) == len(taken)
    assert all(f.bytes < TARGET / 2 for f in taken)
    assert sum(f.bytes for f in taken) <= max(budget, 2 * TARGET)
    for run in runs:
        assert len(run.files) >= FILES_MIN
        inside = [f for f in files if f.partition == run.hull.partition and run.hull.low <= f.low < run.hull.high]
        assert tuple(sorted(inside, key=lambda f: f.low)) == run.files


@given(tables)
def test_pieces_cover_their_run_and_are_fewer_than_its_files(files):
    for run in planned(files):
        assert (run.pieces[0].low, run.pieces[-1].high) == (run.hull.low, run.hull.high)
        assert all(one.high == following.low for one, following in pairwise(run.pieces))
        assert all(piece.span > 0 and piece.partition == run.hull.partition for piece in run.pieces)
        assert 2 * len(run.pieces) <= len(run.files)


@given(tables)
def test_files_of_a_long_run_come_near_to_the_target(files):
    for run in planned(files):
        if sum(f.bytes for f in run.files) >= TARGET:
            assert all(TARGET / 2 <= f.bytes <= 1.6 * TARGET for f in written(run))


@given(tables)
def test_it_comes_to_an_end(files):
    for _ in range(len(files)):
        runs = planned(files)
        if not runs:
            break
        fewer = compacted(files, runs)
        check_written(runs, [f for run in runs for f in written(run)])
        assert sum(f.rows for f in fewer) == sum(f.rows for f in files)
        assert len(fewer) < len(files)
        files = fewer
    assert planned(files) == ()


def test_nothing_is_worth_it_for_few_files_or_large_ones():
    assert planned([]) == ()
    assert planned(files_of(*[1] * (FILES_MIN - 1))) == ()
    assert planned(files_of(*[TARGET // 2] * 10)) == ()
    assert planned(files_of(1, 1, 1, TARGET, 1, 1, 1)) == ()  # a large file between: no neighbours


def test_a_file_that_holds_most_of_the_bytes_is_not_rewritten_for_the_others():
    [run] = planned(files_of(30, 2, 2, 2, 2))

    assert [f.bytes for f in run.files] == [2, 2, 2, 2]


@pytest.mark.parametrize("moves", [50, 400])
def test_with_one_small_file_after_another_few_are_left_and_a_byte_is_rewritten_seldom(moves: int):
    files: list[StreamFile] = []
    rewritten, most, most_small = 0, 0, 0
    for i in range(moves):
        files += files_of(1, low=i * 10)
        runs = planned(files)
        rewritten += sum(f.bytes for run in runs for f in run.files)
        files = compacted(files, runs)
        small = [f for f in files if f.bytes < TARGET / 2]
        most, most_small = max(most, len(files) - len(small)), max(most_small, len(small))

    assert rewritten <= moves * (math.log2(TARGET) + 1)
    assert most_small <= 3 * math.log2(TARGET)
    assert most <= moves / (TARGET / 2)


def test_what_is_not_below_the_bound_or_of_no_known_partition_is_never_touched():
    files = files_of(*[1] * 8)

    [run] = planned(files, stream_hi={0: 45})
    assert run.hull.high == 40
    assert planned(files, stream_hi={0: 39}) == ()
    assert planned(files_of(*[1] * 8, partition=-1), stream_hi={0: 10**9}) == ()


def test_a_large_backlog_is_taken_in_parts_until_nothing_is_small():
    files = files_of(*[10] * 200)
    moves = 0
    while runs := planned(files, budget_bytes=500):
        assert sum(f.bytes for run in runs for f in run.files) <= 500
        files, moves = compacted(files, runs), moves + 1

    assert moves == math.ceil(200 * 10 / 500)
    assert all(f.bytes >= TARGET / 2 for f in files)


def test_a_target_above_the_budget_is_reached_all_the_same():
    files = files_of(*[TARGET // 3] * 40)
    while runs := planned(files, budget_bytes=1):
        files = compacted(files, runs)

    assert all(f.bytes >= TARGET / 2 for f in files)


def test_a_move_names_so_many_files_at_most():
    runs = planned(files_of(*[1] * 3 * FILES_MAX))

    assert sum(len(run.files) for run in runs) == FILES_MAX


def test_the_run_of_most_files_goes_first():
    few, many = files_of(*[8] * 8, partition=0), files_of(*[8] * 16, partition=1)

    [run] = planned(few + many, budget_bytes=2 * TARGET)

    assert run.hull.partition == 1


def test_a_file_inside_the_offsets_of_another_one_goes_with_it():
    apart = files_of(*[1] * 4)
    within = replace(apart[0], path="replayed", low=13, high=14, rows=1)

    [run] = planned([*apart, within])

    assert within in run.files
    assert run.hull == planned(apart)[0].hull


def test_runs_that_reach_into_each_other_are_not_written_by_one_move():
    left = [replace(f, high=f.high + 15) for f in files_of(*[1] * 4)]  # its last file reaches behind the large one
    large = files_of(TARGET, low=40)
    right = files_of(*[1] * 4, low=50)

    [run] = planned(left + large + right)

    assert run.files == tuple(left)


# -- check --------------------------------------------------------------------------------------------------


@pytest.fixture
def run() -> Run:
    [found] = planned(files_of(*[16] * 8))
    return found


def test_what_holds_the_same_rows_in_fewer_files_may_stand_for_them(run: Run):
    check_written([run], written(run))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda made: [replace(made[0], rows=made[0].rows - 1), *made[1:]], "80 rows.*were to be rewritten.*79 rows"),
        (lambda made: made[:-1], r"80 rows of partition 0 \[0, 80\) were to be rewritten, 40 rows"),
        (lambda made: [], "nothing was written"),
        (lambda made: [replace(f, partition=1) for f in made], "nothing was written"),
        (lambda made: [replace(made[0], low=1), *made[1:]], r"80 rows of partition 0 \[1, 80\) was written"),
        (lambda made: [*made, replace(made[0], partition=1)], "holds rows that were not to be rewritten"),
        (
            lambda made: [*made, replace(made[0], rows=5, low=90, high=95)],
            "holds rows that were not to be rewritten",
        ),
        (lambda made: [replace(made[0], high=made[1].low + 1), *made[1:]], "overlap; nothing was published"),
        (lambda made: [replace(made[0], low=i, rows=10) for i in range(8)], "8 files were to become fewer, 8"),
    ],
    ids=[
        "a row less",
        "a file less",
        "no file",
        "elsewhere",
        "other offsets",
        "partition",
        "offsets",
        "overlap",
        "many",
    ],
)
def test_what_does_not_is_never_published(run: Run, wrong, said: str):
    with pytest.raises(CompactedWrong, match=said):
        check_written([run], wrong(written(run)))


def with_hidden(run: Run, *, first: int) -> Run:
    """*run*, with the first rows of its first file hidden."""
    one, *others = run.files
    return replace(run, files=(replace(one, rows=one.rows - first, deletes="deletes"), *others))


def test_rows_that_are_hidden_are_not_written_and_may_leave_the_ends_free(run: Run):
    hidden = with_hidden(run, first=3)
    one, *others = written(run)
    check_written([hidden], [replace(one, rows=one.rows - 3, low=one.low + 3), *others])
    check_written([hidden], [replace(one, rows=one.rows - 3), *others])
    with pytest.raises(CompactedWrong, match="77 rows.*80 rows"):
        check_written([hidden], [one, *others])
    with pytest.raises(CompactedWrong, match="wrong|not to be rewritten|was written"):
        check_written([hidden], [replace(one, rows=one.rows - 3, low=-1), *others])


def test_a_run_of_which_all_rows_are_hidden_becomes_no_file(run: Run):
    files = tuple(replace(file, rows=0, deletes="deletes") for file in run.files)
    check_written([replace(run, files=files)], [])
