"""Records gather for as long as the objective of their table and the load of the process say, never beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.stages.ingest.pacing import (
    AT_ONCE_S,
    OF_OBJECTIVE_MAX,
    ROOM,
    WINDOW_S,
    ProcessLoad,
    commit_every_s,
)

objectives = st.floats(0.01, 3600)
commits = st.floats(0, 60)
loads = st.floats(0, 1)


@given(objectives, commits, loads)
def test_a_record_waits_for_half_of_the_objective_at_most(visible_s: float, commit_s: float, load: float):
    every_s = commit_every_s(visible_s, commit_s=commit_s, load=load)

    assert every_s >= 0
    assert every_s + commit_s <= max(visible_s * OF_OBJECTIVE_MAX, commit_s) * (1 + 1e-9)


@given(objectives, commits, loads, loads)
def test_more_load_never_means_more_commits(visible_s: float, commit_s: float, one: float, other: float):
    calm, busy = (commit_every_s(visible_s, commit_s=commit_s, load=load) for load in sorted((one, other)))

    assert calm <= busy


@given(objectives, objectives, commits, loads)
def test_a_looser_objective_never_means_more_commits(one: float, other: float, commit_s: float, load: float):
    tight, loose = (commit_every_s(v, commit_s=commit_s, load=load) for v in sorted((one, other)))

    assert tight <= loose * (1 + 1e-9)


@given(objectives, commits)
def test_a_commit_that_is_too_slow_is_followed_at_once(visible_s: float, commit_s: float):
    if commit_s >= visible_s * OF_OBJECTIVE_MAX:
        assert commit_every_s(visible_s, commit_s=commit_s, load=1.0) == 0


@given(st.floats(0.01, AT_ONCE_S), commits, st.floats(0, ROOM))
def test_who_promises_little_time_commits_at_once_while_there_is_room(visible_s: float, commit_s: float, load: float):
    assert commit_every_s(visible_s, commit_s=commit_s, load=load) == 0


@pytest.mark.parametrize(
    ("visible_s", "load", "every_s"),
    [(0.05, 0.1, 0.0), (0.05, 1.0, 0.02), (5.0, 0.1, 0.1), (5.0, 0.85, 1.2975), (5.0, 1.0, 2.495), (60.0, 0.0, 1.2)],
)
def test_some_of_them(visible_s: float, load: float, every_s: float):
    assert commit_every_s(visible_s, commit_s=0.005, load=load) == pytest.approx(every_s, abs=0.01)


def test_load_is_that_of_the_last_window():
    now, used = 10.0, 3.0
    load = ProcessLoad(used_s=lambda: used, now=lambda: now, cores=2)
    now, used = now + WINDOW_S / 2, used + WINDOW_S
    assert load.share() == 0
    now, used = now + WINDOW_S / 2, used + 0
    assert load.share() == 0.5
    now, used = now + 2 * WINDOW_S, used + 9
    assert load.share() == 1
    now += WINDOW_S
    assert load.share() == 0
