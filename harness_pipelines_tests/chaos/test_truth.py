"""The judge of a chaos run finds every kind of wrong read: a run without findings says nothing otherwise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from harness_pipelines.chaos.content import (
    CROWD_SHARE,
    GROWING,
    KEYED,
    KEYS,
    MAIN,
    PARTITIONS,
    SUBJECTS,
    Subject,
    is_delete,
    is_early,
    is_misfit,
    key_of,
    subjects_of,
)
from harness_pipelines.chaos.producer import Journal
from harness_pipelines.chaos.reader import Cut, fingerprint
from harness_pipelines.chaos.truth import Truth, Verdict

RECORDS = 600
HIGHS = {0: 200, 1: 150, 2: 200}


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    journal = Journal(tmp_path / "journal")
    for number in range(RECORDS):
        journal.add(number % PARTITIONS, number // PARTITIONS, number)
    journal.write()
    found = Truth(tmp_path / "journal")
    found.refresh()
    return found


def rows(highs: Mapping[int, int] = HIGHS) -> pa.Table:
    """The right answer to a read at *highs*, in no order."""
    numbers = [n for n in range(RECORDS) if n // PARTITIONS < highs[n % PARTITIONS] and not is_misfit(n)]
    order = np.random.default_rng(0).permutation(len(numbers))
    ids = pa.array(numbers, pa.int64()).take(pa.array(order))
    as_numpy = ids.to_numpy()
    return pa.table(
        {
            "id": ids,
            "n": pa.array(as_numpy % 1000, pa.int32()),
            "s": pa.array([f"row {n}" for n in as_numpy]),
            "_kafka_partition": pa.array(as_numpy % PARTITIONS, pa.int32()),
            "_kafka_offset": pa.array(as_numpy // PARTITIONS, pa.int64()),
        }
    )


def without(found: pa.Table, number: int) -> pa.Table:
    return found.filter(pc.not_equal(found.column("id"), number))


def changed(found: pa.Table, column: str, number: int, to: object) -> pa.Table:
    values = found.column(column).to_pylist()
    values[found.column("id").to_pylist().index(number)] = to
    place = found.schema.get_field_index(column)
    return found.set_column(place, found.schema.field(place), pa.array(values, found.schema.field(place).type))


def counts(verdict: Verdict) -> tuple[int, int, int, int]:
    return verdict.lost, verdict.doubled, verdict.foreign, verdict.altered


def test_a_crowd_of_tables_is_beside_those_that_faults_aim_at():
    found = subjects_of(46)
    assert tuple(found[:4]) == SUBJECTS == tuple(subjects_of(0))
    assert len({one.suffix for one in found}) == len({one.topic for one in found}) == 50
    assert sum(one.share for one in found[4:]) == pytest.approx(CROWD_SHARE)


def test_a_read_of_exactly_the_records_below_its_bounds_is_right(truth: Truth):
    assert truth.judge(rows(), HIGHS) == Verdict()
    assert truth.acked == RECORDS
    assert truth.gaps() == []


def test_each_kind_of_wrong_read_is_found_and_named(truth: Truth):
    right = rows()
    again = pa.concat_tables([right, right.slice(3, 1)])
    assert counts(truth.judge(without(right, 300), HIGHS)) == (1, 0, 0, 0)
    assert "partition 0 below 200: lost [100, 101)" in str(truth.judge(without(right, 300), HIGHS))
    assert counts(truth.judge(again, HIGHS)) == (0, 1, 0, 0)
    assert counts(truth.judge(right, {**HIGHS, 0: 199})) == (0, 0, 1, 0)  # a row above the bound
    assert counts(truth.judge(changed(right, "s", 300, "row 301"), HIGHS)) == (0, 0, 0, 1)
    assert counts(truth.judge(changed(right, "n", 300, None), HIGHS)) == (0, 0, 0, 1)
    assert truth.judge(changed(right, "id", 300, 303), HIGHS).altered == 1  # the row of another offset
    assert truth.judge(changed(right, "_kafka_partition", 300, 7), HIGHS).foreign == 1
    assert not truth.judge(rows().slice(0, 0), HIGHS).ok


def test_a_misfit_in_a_read_is_foreign(truth: Truth):
    misfit = next(n for n in range(RECORDS) if is_misfit(n))
    place = {"_kafka_partition": misfit % PARTITIONS, "_kafka_offset": misfit // PARTITIONS}
    row = pa.Table.from_pylist([{"id": misfit, "n": misfit % 1000, "s": f"row {misfit}", **place}], rows().schema)
    assert counts(truth.judge(pa.concat_tables([rows(), row]), HIGHS)) == (0, 0, 1, 0)
    assert (misfit % PARTITIONS, misfit // PARTITIONS) in truth.misfits
    assert b"not a number" in MAIN.value(misfit)


def test_a_cut_is_judged_only_once_the_producer_heard_of_all_its_records(truth: Truth):
    assert truth.covers({0: 200, 1: 200, 2: 200})
    assert not truth.covers({0: 201})
    assert not truth.covers({9: 1})


def test_half_an_entry_of_the_journal_waits_for_its_other_half(tmp_path: Path, truth: Truth):
    whole = (tmp_path / "journal").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-5])
    found = Truth(tmp_path / "cut")
    found.refresh()
    assert found.acked == RECORDS - 1
    (tmp_path / "cut").write_bytes(whole)
    found.refresh()
    assert found.acked == RECORDS
    assert found.highs == truth.highs


def test_an_offset_that_the_broker_left_out_is_told(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    for offset in (0, 1, 4):
        journal.add(0, offset, offset)
    journal.write()
    found = Truth(tmp_path / "journal")
    found.refresh()
    assert len(found.gaps()) == 1
    assert not found.covers({0: 3})
    assert found.acked == 2


@pytest.mark.parametrize("at_once", [True, False])
def test_a_batch_that_a_killed_broker_has_twice_is_there_twice(tmp_path: Path, at_once: bool):
    journal, found = Journal(tmp_path / "journal"), Truth(tmp_path / "journal")
    acked = [(0, 10), (1, 11), (4, 12), (5, 13), (6, 14)]  # 12 and 13 were written at offsets 2 and 3 before
    (tmp_path / "journal").touch()
    for offset, number in acked:
        journal.add(0, offset, number)
        if not at_once:
            journal.write()
            found.refresh()
    journal.write()
    found.refresh()
    assert found.gaps() == []
    assert found.numbers(0).tolist() == [10, 11, 12, 13, 12, 13, 14]
    assert found.offsets(0).tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert found.repeated == {(0, 2): 12, (0, 3): 13}
    assert found.covers({0: 7})


def test_offsets_that_fall_are_told(tmp_path: Path):
    journal = Journal(tmp_path / "journal")
    for offset in (0, 1, 1):
        journal.add(0, offset, offset)
    journal.write()
    found = Truth(tmp_path / "journal")
    found.refresh()
    assert len(found.gaps()) == 1


def test_any_bound_that_falls_makes_a_state_older():
    before = Cut(version=3, stream={0: 5, 1: 5}, buffer={0: 9, 1: 9})
    assert not before.older_than(before)
    assert not Cut(version=4, stream={0: 6, 1: 5}, buffer={0: 9, 1: 10}).older_than(before)
    assert Cut(version=2, stream={0: 6, 1: 6}, buffer={0: 9, 1: 10}).older_than(before)
    assert Cut(version=3, stream={0: 5, 1: 5}, buffer={0: 9, 1: 8}).older_than(before)
    assert Cut(version=3, stream={0: 5, 1: 4}, buffer={0: 9, 1: 9}).older_than(before)
    assert not Cut(version=4, stream={0: 0, 1: 0}, buffer={0: 9, 1: 9}).older_than(before)  # a revert
    assert Cut(version=3, stream={0: 5}, buffer={0: 9}).older_than(before)  # a partition went missing


def recorded(tmp_path: Path, subject: Subject, count: int) -> Truth:
    """A log of the first *count* records, all in one partition."""
    journal = Journal(tmp_path / f"journal{subject.suffix}")
    for number in range(count):
        journal.add(0, number, number)
    journal.write()
    found = Truth(tmp_path / f"journal{subject.suffix}", subject)
    found.refresh()
    return found


def shown(numbers: Sequence[int]) -> pa.Table:
    """Rows of these records, each at the offset of its number."""
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "n": pa.array([n % 1000 for n in numbers], pa.int32()),
            "s": pa.array([f"row {n}" for n in numbers]),
            "_kafka_partition": pa.array([0] * len(numbers), pa.int32()),
            "_kafka_offset": pa.array(numbers, pa.int64()),
        }
    )


def test_of_a_key_the_newest_record_below_the_bounds_is_the_row(tmp_path: Path):
    truth = recorded(tmp_path, KEYED, 1000)
    newest: dict[int, int] = {}
    for number in range(900):
        if not is_misfit(number):
            newest[key_of(number)] = number
    living = [number for number in newest.values() if not is_delete(number)]
    assert truth.judge(shown(living), {0: 900}) == Verdict()
    assert counts(truth.judge(shown(living[1:]), {0: 900})) == (1, 0, 0, 0)
    assert truth.judge(shown([*living, living[0] - KEYS]), {0: 900}).foreign == 1  # one that was replaced
    assert not truth.judge(shown(living), {0: 1000}).ok


def test_a_record_that_fits_at_times_is_right_with_and_without_its_row(tmp_path: Path):
    truth = recorded(tmp_path, GROWING, 200)
    fitting = [number for number in range(200) if not is_misfit(number)]
    assert truth.judge(shown(fitting), {0: 200}) == Verdict()
    assert truth.judge(shown([n for n in fitting if not is_early(n)]), {0: 200}) == Verdict()
    assert truth.early == {(0, n) for n in fitting if is_early(n)}
    early = next(n for n in fitting if is_early(n))
    assert counts(truth.judge(shown([*fitting, early]), {0: 200})) == (0, 1, 0, 0)
    assert not recorded(tmp_path, MAIN, 10).early


def test_the_fingerprint_of_a_read_follows_from_its_rows_alone():
    right = rows()
    assert fingerprint(right) == fingerprint(right.take(pa.array(range(right.num_rows - 1, -1, -1))))
    assert fingerprint(right) != fingerprint(without(right, 300))
    assert fingerprint(right) != fingerprint(pa.concat_tables([right, right.slice(3, 1)]))
