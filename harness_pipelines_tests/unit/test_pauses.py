"""Pauses between tries."""

from __future__ import annotations

from harness_pipelines.pauses import JITTER, Pauses


def test_pauses_grow_up_to_a_limit_and_begin_again_after_a_success():
    pauses = Pauses(1.0, 5.0)
    for expected_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        assert expected_s * (1 - JITTER) <= pauses.next_s() <= expected_s * (1 + JITTER)
    pauses.worked()
    assert pauses.next_s() <= 1.0 * (1 + JITTER)


def test_two_that_failed_together_do_not_come_back_together():
    assert len({Pauses(1.0, 5.0).next_s() for _ in range(10)}) > 1
