"""Beats of runs: what stops beating is gone, an outage of whoever looks counts for nothing."""

from pathlib import Path

import pytest
from dagster import DagsterInstance, DagsterRun, RunRecord

from harness_pipelines.defs.liveness import BEAT_TAG, GAP_S_MAX, SILENT_S, Beats, beating
from harness_pipelines_tests.producer import wait_until


def record(instance: DagsterInstance, beat: str, known: str | None = None) -> RunRecord:
    run_id = known or instance.add_run(DagsterRun(job_name="stage")).run_id
    instance.add_run_tags(run_id, {BEAT_TAG: beat})
    found = instance.get_run_record_by_id(run_id)
    assert found is not None
    return found


def ticks(beats: Beats, one: RunRecord, *, first: float, last: float) -> Beats:
    """A tick each five seconds, by way of the cursor that a daemon keeps."""
    now = first
    while now <= last:
        beats.look([one], now)
        beats = Beats.of(beats.cursor())
        now += 5
    return beats


def test_a_run_is_gone_when_it_stops_to_beat_and_not_before(instance: DagsterInstance) -> None:
    one = record(instance, "a")
    run_id = one.dagster_run.run_id
    beats = ticks(Beats(), one, first=1000.0, last=1000.0 + SILENT_S - 5)
    assert not beats.is_gone(run_id)
    beats = ticks(beats, record(instance, "b", run_id), first=1000.0 + SILENT_S, last=1000.0 + 2 * SILENT_S - 5)
    assert not beats.is_gone(run_id)
    beats = ticks(beats, record(instance, "b", run_id), first=1000.0 + 2 * SILENT_S, last=1000.0 + 2 * SILENT_S + 5)
    assert beats.is_gone(run_id)


def test_what_nobody_looked_at_does_not_count_and_neither_does_a_clock_that_is_put_back(
    instance: DagsterInstance,
) -> None:
    one = record(instance, "a")
    beats = Beats()
    for now in (1000.0, 9000.0, 500.0):  # the daemon was away for hours, with the database of both
        beats.look([one], now)
    assert not beats.is_gone(one.dagster_run.run_id)
    assert beats.seen[one.dagster_run.run_id] == ("a", GAP_S_MAX)


@pytest.mark.parametrize("cursor", [None, "{}", '{"0b5c": 1}'])
def test_a_cursor_that_is_lost_or_of_an_older_version_costs_time_only(
    instance: DagsterInstance, cursor: str | None
) -> None:
    one = record(instance, "a")
    beats = Beats.of(cursor)
    beats.look([one], 1000.0)
    assert not beats.is_gone(one.dagster_run.run_id)


def test_beats_come_until_the_work_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DagsterInstance.local_temp(str(tmp_path)) as instance:
        _beats_come_until_the_work_is_over(instance, monkeypatch)


def _beats_come_until_the_work_is_over(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness_pipelines.defs.liveness.BEAT_S", 0.01)
    run = instance.add_run(DagsterRun(job_name="stage", tags={"mine": "kept"}))
    seen: set[str] = set()

    def tags() -> dict[str, str]:
        found = instance.get_run_by_id(run.run_id)
        assert found is not None
        return dict(found.tags)

    def several() -> bool:
        seen.add(tags().get(BEAT_TAG, ""))
        return len(seen) > 3

    with beating(instance, run.run_id):
        wait_until(several, "a few beats")
    last = tags()
    assert last["mine"] == "kept"
    assert tags() == last


def test_work_goes_on_when_its_run_cannot_be_written_to(instance: DagsterInstance) -> None:
    with beating(instance, "no-such-run"):
        pass
