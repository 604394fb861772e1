"""Records gather for as long as the objective of their table and the load of the process say, never beyond it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.stages.ingest.pacing import (
    AT_ONCE_S,
    CROWD,
    OF_OBJECTIVE_MAX,
    ROOM,
    TICK_S,
    WINDOW_S,
    Pace,
    ProcessLoad,
    at_tick,
    commit_every_s,
)

objectives = st.floats(0.01, 3600)
commits = st.floats(0, 60)
loads = st.floats(0, 1)


@given(objectives, commits, loads, st.integers(0, 5_000))
def test_a_record_waits_for_half_of_the_objective_at_most(visible_s: float, commit_s: float, load: float, tables: int):
    every_s = commit_every_s(visible_s, commit_s=commit_s, load=load, tables=tables)

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


@given(objectives, commits, loads, st.integers(0, 5_000), st.integers(0, 5_000))
def test_more_tables_never_mean_more_commits_of_each(
    visible_s: float, commit_s: float, load: float, one: int, other: int
):
    few, many = (commit_every_s(visible_s, commit_s=commit_s, load=load, tables=n) for n in sorted((one, other)))

    assert few <= many


@pytest.mark.parametrize(
    ("tables", "every_s"), [(1, 0.1), (CROWD, 0.1), (50, 0.1), (200, 0.3), (1_000, 1.5), (10_000, 2.495)]
)
def test_how_long_many_tables_gather_by_default(tables: int, every_s: float):
    assert commit_every_s(5.0, commit_s=0.005, load=0.1, tables=tables) == pytest.approx(every_s)


@given(st.floats(0, 1e6), st.floats(0, 10))
def test_a_tick_is_never_later_than_it_may_be(begun: float, every_s: float):
    at = at_tick(begun, every_s)

    assert begun <= at <= begun + every_s + 1e-6
    assert at >= begun + every_s - TICK_S - 1e-6


def test_tables_that_committed_at_different_moments_come_together():
    assert len({round(at_tick(begun, 0.3), 6) for begun in (10.001, 10.02, 10.049)}) == 1


def test_only_tables_that_commit_count():
    now = 10.0
    pace = Pace(ProcessLoad(used_s=lambda: 0.0, now=lambda: now), now=lambda: now)

    def gap_s() -> float:
        return pace.next_at("one", now, visible_s=5.0, commit_s=0.0) - now

    for table in range(200):
        pace.next_at(table, now, visible_s=5.0, commit_s=0.0)
    assert gap_s() == pytest.approx(0.3, abs=TICK_S)
    now += WINDOW_S
    assert gap_s() == pytest.approx(0.3, abs=TICK_S), "those of the window before count as well"
    now += WINDOW_S
    assert gap_s() == pytest.approx(0.1, abs=TICK_S)
