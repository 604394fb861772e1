"""Ages of records: quantiles of the last minutes, late ones, and what waits for the lake."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.stages.ingest.ages import MARKS_FINE, WINDOW_S, Ages, Waiting, quantile

NOW = 1_000_000.0


def counted(ages: list[float], *, goal_s: float = 5.0, now_s: float = NOW) -> Ages:
    found = Ages()
    found.add(np.array(ages), goal_s=goal_s, now_s=now_s)
    return found


@given(ages=st.lists(st.floats(0.002, 1e6), min_size=1, max_size=200), share=st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_at_most_an_eighth_above_the_true_one(ages: list[float], share: float):
    true = float(np.quantile(ages, share, method="inverted_cdf"))
    found = quantile(counted(ages).slots(NOW), share)
    assert found is not None
    assert true * 0.999 <= found <= true * 1.125


def test_records_that_are_older_than_the_objective_are_late():
    found = counted([0.1, 4.9, 5.1, 900.0])
    assert (found.total, found.late) == (4, 2)
    found.add(np.array([7.0]), goal_s=5.0, now_s=NOW, weight=10)
    assert (found.total, found.late) == (14, 12)


def test_a_record_of_the_future_is_new():
    found = counted([-3.0])
    assert found.late == 0
    assert quantile(found.slots(NOW), 0.5) == pytest.approx(0.001)


def test_quantiles_forget_what_is_minutes_old_and_counts_do_not():
    found = counted([100.0] * 10)
    found.add(np.array([1.0] * 10), goal_s=5.0, now_s=NOW + WINDOW_S)
    assert quantile(found.slots(NOW + WINDOW_S), 0.99) == pytest.approx(1.0, rel=0.13)
    assert quantile(found.slots(NOW + 3 * WINDOW_S), 0.5) is None
    assert (found.total, found.late) == (20, 10)


def test_what_waits_is_taken_once_the_lake_has_all_of_it():
    waiting = Waiting()
    waiting.add(10, np.array([1_000, 1_500]))
    waiting.add(12, np.array([1_800]))
    waiting.add(20, np.array([9_000, 9_001]))
    assert waiting.below(11) == [], "the lake has a part of what was taken together"
    assert waiting.below(12) == [(1_000, 3)]
    assert waiting.below(100) == [(9_000, 2)]
    assert waiting.below(100) == []


def test_marks_are_few_however_long_the_lake_is_away():
    waiting = Waiting()
    for second in range(20_000):
        waiting.add(second + 1, np.array([second * 1_000]))
    assert len(waiting.marks) < MARKS_FINE + 20_000 / 59
    assert sum(records for _, records in waiting.below(20_000)) == 20_000
