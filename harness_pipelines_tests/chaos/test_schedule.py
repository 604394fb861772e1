"""A run can be repeated: its faults follow from the seed alone."""

from __future__ import annotations

from harness_pipelines_tests.chaos.schedule import QUIET_S, WORKERS, Kind, schedule


def test_the_same_seed_gives_the_same_faults_and_another_seed_others():
    assert schedule(7, 300) == schedule(7, 300)
    assert schedule(7, 300) != schedule(8, 300)


def test_a_longer_run_begins_with_the_shorter_one():
    short = schedule(7, 60)
    assert schedule(7, 600)[: len(short)] == short


def test_thirty_minutes_break_every_kind_of_thing_more_than_a_hundred_times():
    for seed in range(20):
        faults = schedule(seed, 1800)
        assert len(faults) >= 100
        assert {fault.kind for fault in faults} == set(Kind)


def test_what_is_stopped_is_woken_again_before_and_after_a_workers_lease_has_ended():
    for kind in (Kind.WORKER_STOP, Kind.KAFKA_STOP, Kind.SPARK_STOP):
        lasted = [fault.lasts_s for seed in range(20) for fault in schedule(seed, 1800) if fault.kind is kind]
        assert 0 < min(lasted) < 3 < max(lasted)


def test_every_fault_begins_and_is_over_while_the_run_lasts():
    for seed in range(50):
        for fault in schedule(seed, 60):
            assert QUIET_S <= fault.at_s <= fault.at_s + fault.lasts_s <= 60 - QUIET_S
            assert fault.worker is None or 0 <= fault.worker < WORKERS
            assert all(count >= 1 for count in fault.cuts)
