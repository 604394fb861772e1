"""The judges of the bench of many tables."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from harness_pipelines_tests.bench.scaling.producer import _due
from harness_pipelines_tests.bench.scaling.watching import Positions, taken
from harness_pipelines_tests.bench.steady import Produced


def produced(acked_at: list[float], *, first: int = 0) -> Produced:
    count = len(acked_at)
    return Produced(
        offsets=np.arange(first, first + count), ids=np.arange(count), acked_at=np.array(acked_at, np.float64)
    )


def test_a_record_can_be_read_once_the_position_is_above_its_offset():
    seen = Positions("", {}, seen={"a": [(10.0, 1), (12.0, 3)], "b": [(10.0, 0), (11.0, 1)]})
    log = {"a": produced([9.0, 9.5, 12.5]), "b": produced([10.5])}
    assert sorted(seen.ages(log, skip_s=0.0)) == [0.0, 0.5, 1.0, 2.5]
    assert sorted(seen.ages(log, skip_s=1.0)) == [0.0, 0.5]
    assert seen.reached({"a": 3, "b": 1})
    assert not seen.reached({"a": 4, "b": 1})
    assert not seen.reached({"c": 1})


def test_a_record_that_was_never_seen_is_no_figure():
    seen = Positions("", {}, seen={"a": [(10.0, 1)]})
    with pytest.raises(AssertionError, match="a: not all records became readable"):
        seen.ages({"a": produced([9.0, 9.5])}, skip_s=0.0)


def test_topics_take_turns_and_none_gets_more_than_all_of_its_records():
    began = time.monotonic() - 1000.0  # so that a machine that is late changes nothing
    dues = [_due(began, 0.01, number, 4, total=77) for number in range(4)]
    assert dues == sorted(dues, reverse=True)
    assert _due(began, 10.0, 0, 4, total=77) == 77


def test_what_this_process_takes():
    found = taken(os.getpid())
    assert found.threads >= 1
    assert found.rss_bytes > 2**20
    assert found.cpu_s > 0.0
