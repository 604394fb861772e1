"""Files that mix partitions are read in the order of offsets, and small neighbours of that order become fewer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.lake import wide_runs
from harness_pipelines.protocol.lake.compaction import CompactedWrong, StreamFile, check_written, plan_runs
from harness_pipelines.protocol.lake.order import Age, offset_order
from harness_pipelines.protocol.lake.wide import Extent, Extents, split_evenly
from harness_pipelines.protocol.lake.wide_runs import WideRun
from harness_pipelines.protocol.reading.narrowing import Ranges

TARGET, BUDGET = 400, 100_000
NUMBERS = count()


def file_of(ranges: list[OffsetRange], *, size: int | None = None) -> StreamFile:
    """A file with a row at every offset of *ranges*, one byte each if *size* does not say otherwise."""
    found = [Extent(partition=r.partition, low=r.low, high=r.high, rows=r.span) for r in ranges]
    rows = sum(e.rows for e in found)
    return StreamFile(
        path=f"file-{next(NUMBERS):06}",
        partition=found[0].partition,
        low=min(e.low for e in found),
        high=max(e.high for e in found),
        rows=rows,
        bytes=rows if size is None else size,
        extents=Extents.of(found),
    )


@st.composite
def views(draw) -> list[StreamFile]:
    """What moves leave: each takes some offsets of some partitions, in one file or in several."""
    partitions = draw(st.integers(1, 6))
    reached = dict.fromkeys(range(partitions), 0)
    files: list[StreamFile] = []
    for _ in range(draw(st.integers(0, 25))):
        spans = [draw(st.integers(0, 12)) for _ in range(partitions)]
        taken = [
            OffsetRange(partition=p, low=reached[p], high=reached[p] + span) for p, span in enumerate(spans) if span
        ]
        reached |= {r.partition: r.high for r in taken}
        files += [file_of(list(part)) for part in split_evenly(taken, draw(st.integers(1, 3)))]
    return files


def planned(files: list[StreamFile], **changes) -> tuple[WideRun, ...]:
    everything = {p: 10**9 for file in files for p in file.ranges}
    found = plan_runs(files, **{"stream_hi": everything, "target_bytes": TARGET, "budget_bytes": BUDGET, **changes})
    assert all(isinstance(run, WideRun) for run in found)
    return found  # type: ignore[return-value]


def written(run: WideRun) -> list[StreamFile]:
    return [file_of(list(part)) for part in run.parts]


def compacted(files: list[StreamFile], runs: tuple[WideRun, ...]) -> list[StreamFile]:
    gone = {file.path for run in runs for file in run.files}
    return [file for file in files if file.path not in gone] + [new for run in runs for new in written(run)]


def order_of(files: list[StreamFile]) -> list[list[StreamFile]]:
    groups = offset_order([f.ranges for f in files], [(f.low,) for f in files])
    return [[files[number] for number in group] for group in groups]


def is_ascending(files: list[StreamFile]) -> bool:
    """Whether each file is read alone, and offsets of each partition ascend."""
    reached: dict[int, int] = {}
    for group in order_of(files):
        for partition, (low, high) in group[0].ranges.items():
            if len(group) > 1 or low < reached.get(partition, 0):
                return False
            reached[partition] = high
    return True


@given(views())
def test_files_of_moves_are_read_one_by_one_in_offset_order(files):
    assert is_ascending(files)


@given(views(), st.integers(60, TARGET))
def test_it_stays_so_over_all_rewrites_and_comes_to_an_end(files, budget):
    for _ in range(len(files) + 1):
        runs = planned(files, budget_bytes=budget)
        if not runs:
            break
        check_written(runs, [new for run in runs for new in written(run)])
        fewer = compacted(files, runs)
        assert len(fewer) < len(files)
        assert sum(f.rows for f in fewer) == sum(f.rows for f in files)
        assert is_ascending(fewer)
        files = fewer
    assert planned(files, budget_bytes=budget) == ()


@given(views(), st.randoms(use_true_random=False))
def test_the_same_files_in_any_order_give_the_same_plan(files, random):
    shuffled = list(files)
    random.shuffle(shuffled)

    assert planned(shuffled) == planned(files)


def moves_of(moves: int, *, partitions: int = 3, span: int = 2, size: int | None = None) -> list[StreamFile]:
    return [
        file_of([OffsetRange(partition=p, low=m * span, high=(m + 1) * span) for p in range(partitions)], size=size)
        for m in range(moves)
    ]


def test_small_moves_become_one_file():
    [run] = planned(moves_of(10))

    assert len(run.files) == 10
    assert run.parts == (tuple(OffsetRange(partition=p, low=0, high=20) for p in range(3)),)


def test_many_become_as_many_as_the_target_says():
    [run] = planned(moves_of(100, partitions=5, span=2))  # 1,000 bytes

    assert len(run.parts) == round(1_000 / TARGET)


def test_files_above_the_bound_of_a_partition_are_left_alone():
    files = moves_of(10)
    assert planned(files, stream_hi={0: 20, 1: 20}) == ()
    [run] = planned(files, stream_hi={0: 20, 1: 20, 2: 10})
    assert len(run.files) == 5


def test_files_that_overlap_are_read_together():
    files = [*moves_of(3), file_of([OffsetRange(partition=1, low=3, high=4)])]

    groups = order_of(files)

    assert sorted(len(group) for group in groups) == [1, 1, 2]
    assert [f.path for f in groups[1]] == [files[1].path, files[3].path]


def test_files_that_wait_for_each_other_are_read_together():
    one = file_of([OffsetRange(partition=0, low=0, high=5), OffsetRange(partition=1, low=5, high=9)])
    other = file_of([OffsetRange(partition=0, low=5, high=9), OffsetRange(partition=1, low=0, high=5)])

    assert len(order_of([one, other])) == 1


def test_large_files_between_small_ones_part_them():
    files = moves_of(12)
    files[5] = replace(files[5], bytes=TARGET)

    [run] = planned(files)

    assert len(run.files) == 6
    assert all(low >= 12 for f in run.files for low, _ in f.ranges.values())


def test_large_files_below_the_small_ones_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    files = [replace(f, bytes=TARGET) for f in moves_of(50)] + [
        file_of([OffsetRange(partition=p, low=100 + 2 * m, high=102 + 2 * m) for p in range(3)]) for m in range(5)
    ]
    looked: list[int] = []

    def ordered(ranges: Sequence[Ranges], ages: Sequence[Age]) -> list[list[int]]:
        looked.append(len(ranges))
        return offset_order(ranges, ages)

    monkeypatch.setattr(wide_runs, "offset_order", ordered)

    [run] = planned(files)

    assert (looked, len(run.files)) == ([5], 5)


# -- what may not stand for the files -----------------------------------------------------------------------


def refused(run: WideRun, made: list[StreamFile], match: str) -> None:
    with pytest.raises(CompactedWrong, match=match):
        check_written([run], made)


def test_other_rows_are_never_published():
    [run] = planned(moves_of(10))
    [made] = written(run)
    ranges = [OffsetRange(partition=p, low=0, high=20) for p in range(3)]

    refused(run, [replace(made, rows=made.rows - 1)], "rows were to be rewritten")
    refused(run, [file_of([*ranges[:2], OffsetRange(partition=3, low=0, high=20)])], "not those of the files")
    refused(run, [file_of([*ranges[:2], OffsetRange(partition=2, low=1, high=21)])], "not those of the files")
    refused(run, list(run.files), "were to become fewer")
    refused(
        run,
        [file_of([OffsetRange(partition=0, low=0, high=21), ranges[1], OffsetRange(partition=2, low=0, high=19)])],
        "not those of the files",
    )


def test_rows_may_not_wander_between_partitions():
    [run] = planned(moves_of(10))
    [made] = written(run)
    one, two, three = list(made.extents or [])
    moved = Extents.of((replace(one, rows=one.rows + 1), replace(two, rows=two.rows - 1), three))

    refused(run, [replace(made, extents=moved)], "not those of the files")


def test_new_files_may_not_overlap():
    [run] = planned(moves_of(10))
    parts = [[OffsetRange(partition=0, low=0, high=11)], [OffsetRange(partition=0, low=10, high=20)]]
    made = [file_of(part) for part in parts] + [file_of([OffsetRange(partition=p, low=0, high=20) for p in (1, 2)])]
    [whole] = list(made[0].extents or [])
    made[0] = replace(made[0], rows=10, extents=Extents.of([replace(whole, rows=10)]))

    refused(run, made, "overlap")


def test_hidden_rows_may_be_missing_at_the_ends():
    files = moves_of(10)
    files[0] = replace(files[0], rows=5, deletes="d")
    [run] = planned(files)
    ranges = [OffsetRange(partition=0, low=1, high=20), *(OffsetRange(partition=p, low=0, high=20) for p in (1, 2))]

    check_written([run], [file_of(ranges)])
