"""A run can be repeated: its faults follow from the seed alone."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

from harness_pipelines import faults
from harness_pipelines.chaos.content import BY_SUFFIX, SUBJECTS, engines_of, subjects_of
from harness_pipelines.chaos.result import Options
from harness_pipelines.chaos.schedule import (
    ACTS,
    LULL_S,
    OF_A_STORE,
    OF_BOTH_ENGINES,
    OF_DAGSTER,
    OF_SPARK,
    QUIET_S,
    WORKERS,
    Kind,
    schedule,
)

TWO_GRACES_S = 10.0


def test_the_same_seed_gives_the_same_faults_and_another_seed_others():
    assert schedule(7, 300) == schedule(7, 300)
    assert schedule(7, 300) != schedule(8, 300)


def test_a_longer_run_has_every_fault_of_the_shorter_one():
    assert set(schedule(7, 60)) < set(schedule(7, 600))


def test_a_minute_is_not_cut_short_by_a_fault_that_would_last_longer():
    for seed in range(20):
        assert len(schedule(seed, 60)) >= 6


def test_thirty_minutes_break_every_kind_of_thing_and_a_hundred_and_fifty_in_all():
    for seed in range(20):
        found = schedule(seed, 1800)
        assert len(found) >= 150
        wanted = set(Kind) - set(OF_A_STORE) - set(OF_DAGSTER) - set(OF_BOTH_ENGINES)
        assert {fault.kind for fault in found} == wanted


def test_a_store_and_dagster_break_too_where_they_are_part_of_a_run():
    for seed in range(20):
        found = schedule(seed, 1800, s3=True, switches=True)
        assert {fault.kind for fault in found} == set(Kind) - set(OF_DAGSTER)
        found = schedule(seed, 1800, dagster=True, switches=True)
        assert {fault.kind for fault in found} == set(Kind) - set(OF_A_STORE)


def test_of_both_engines_each_has_half_of_the_tables_and_any_table_of_four_has_either():
    found = [engines_of(subjects_of(46), "both", seed=seed) for seed in range(40)]
    for words in found:
        assert len(words) == 50
        for half in (list(words.values())[:4], list(words.values())[4:]):
            assert half.count("arrow") == half.count("spark") == len(half) / 2
    for subject in SUBJECTS:
        assert {words[subject.suffix] for words in found} == {"spark", "arrow"}
    assert set(engines_of(subjects_of(3), "auto", seed=1).values()) == {"auto"}
    assert [len(engines_of(subjects_of(crowd), "both", seed=1)) for crowd in range(4)] == [4, 5, 6, 7]


def test_tables_change_their_engine_only_where_both_have_some_and_no_alert_waits_for_spark(tmp_path: Path):
    def switched(**words: Any) -> bool:
        planned = Options(seed=7, seconds=1800, **words).planned
        return any(fault.kind is Kind.SWITCH for fault in planned)

    assert switched()
    assert not any(switched(engine=word) for word in ("spark", "arrow", "auto"))
    assert not switched(alerts=tmp_path)


def test_where_arrow_moves_all_tables_no_spark_runs_and_none_breaks():
    kinds = {fault.kind for fault in Options(seed=7, seconds=1800, engine="arrow").planned}
    assert kinds == set(Kind) - set(OF_A_STORE) - set(OF_DAGSTER) - set(OF_BOTH_ENGINES) - set(OF_SPARK)


def test_a_worker_dies_at_every_point_between_the_plan_of_a_move_and_its_end():
    died = [fault.point for seed in range(60) for fault in schedule(seed, 1800) if fault.kind is Kind.MOVE_KILL]
    moves = {name for name, one in faults.POINTS.items() if one.stage in {"tier", "otree", "compact"}}
    assert set(died) == {name for name in moves if not name.endswith(("_claim", "_release"))}


def test_a_stand_by_is_promoted_twice_at_most_and_not_in_a_short_run():
    for seed in range(20):
        assert sum(fault.kind is Kind.PROMOTE for fault in schedule(seed, 1800)) in (1, 2)
        assert not any(fault.kind is Kind.PROMOTE for fault in schedule(seed, 90))


def test_what_is_stopped_is_woken_again_before_and_after_a_workers_lease_has_ended():
    for kind in (Kind.WORKER_STOP, Kind.KAFKA_STOP, Kind.SPARK_STOP):
        lasted = [fault.lasts_s for seed in range(20) for fault in schedule(seed, 1800) if fault.kind is kind]
        assert 0 < min(lasted) < 3 < max(lasted)


def test_acts_run_through_or_are_stopped_at_any_point_for_more_than_two_graces():
    found = [fault for seed in range(60) for fault in schedule(seed, 1800) if fault.kind in ACTS]
    assert {fault.subject for fault in found} == set(BY_SUFFIX)
    stopped = [fault for fault in found if fault.point]
    assert 0 < len(stopped) < len(found)
    assert min(fault.lasts_s for fault in stopped) > TWO_GRACES_S
    of_acts = {"replay", "revert", "evolve", "otree", "snapshot"}
    assert {fault.point for fault in stopped} == {name for name, one in faults.POINTS.items() if one.stage in of_acts}


def test_every_fault_begins_and_is_over_while_the_run_lasts():
    for seed in range(50):
        for fault in schedule(seed, 60):
            assert QUIET_S <= fault.at_s <= fault.at_s + fault.lasts_s <= 60 - QUIET_S
            assert fault.worker is None or 0 <= fault.worker < WORKERS
            assert all(count >= 1 for count in fault.cuts)


def test_tables_get_time_to_move_between_two_rounds():
    """A fault every few seconds for half an hour keeps every move from its commit, and tests waiting alone."""
    for seed in range(20):
        found = schedule(seed, 1800)
        gaps_s = [later.at_s - earlier.at_s for earlier, later in pairwise(found)]
        assert sum(gap_s >= LULL_S for gap_s in gaps_s) >= 7
        assert len(found) >= 250
