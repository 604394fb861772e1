"""fsck against real services: sound tables pass, also at work; the command."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta

import pytest
from click.testing import CliRunner

from harness_pipelines.audit.fsck.run import RULES, FsckReport
from harness_pipelines.audit.fsck.run import fsck as check
from harness_pipelines.cli.main import cli
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Endpoints
from harness_pipelines.stages.run import steps, table_units
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.integration.audit.conftest import (
    ROUND,
    Rig,
    make,
    record,
    records,
)
from harness_pipelines_tests.integration.audit.damage import (
    TABLES,
    broken,
    metadata_of,
    of,
    restored,
)
from harness_pipelines_tests.lake_files import exists
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import running

# -- sound tables -------------------------------------------------------------------------------------------


def test_a_sound_table_passes_every_rule(sound: Rig):
    report = check(sound.harness.stores, [sound.table.name])

    assert report.ok, report.to_json()
    assert report.unchecked == []
    assert {c.invariant for c in report.checked} == {r.invariant for r in RULES}
    assert [f.invariant for f in report.hints] == []


def test_fsck_leaves_no_trace(sound: Rig):
    def rows() -> list[object]:
        key = f"table_id = {sound.table.row.table_id}"
        return [sorted(map(repr, sound.sql(f"SELECT * FROM harness.{name} WHERE {key}"))) for name in TABLES]

    before = rows()
    check(sound.harness.stores, [sound.table.name])

    assert rows() == before


def test_a_table_stays_sound_while_files_and_segments_expire(endpoints: Endpoints):
    rig = make(endpoints, partitions=1, retention={"versions": "1ms", "snapshots": 1, "grace": "1ms"})
    stores = rig.harness.stores
    try:
        for number in range(3):
            rig.kafka.produce(rig.topic, 0, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.INGEST, Stage.TIER}))
            stores.segments.rotate(rig.table.row)
        first = metadata_of(rig, 1)
        claim = stores.ledger.claim(
            rig.table.row, Stage.EXPIRE, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=10)
        )
        assert claim is not None
        dropped: list[str] = []

        def gone() -> bool:
            dropped.extend(expire_once(stores, rig.table.row, claim).dropped)  # nothing, unless it takes half a minute
            assert broken(rig) == {}
            return not exists(first)

        wait_until(gone, "the first version's metadata file is gone")
        assert [*dropped, *stores.upkeep.drop_retired(rig.table.row, retired_for=timedelta(0))]

        assert broken(rig) == {}
        assert rig.table.read().num_rows == 3 * (ROUND - 1)
    finally:
        rig.kafka.close()
        rig.harness.close()


def test_a_table_that_was_reverted_and_moved_on_is_sound(endpoints: Endpoints):
    rig = make(endpoints, partitions=2)
    try:
        for number in range(2):
            rig.kafka.produce(rig.topic, number, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.INGEST, Stage.TIER}))
        revert_table(rig.harness.stores, rig.table.row, to=2)
        assert broken(rig) == {}

        rig.kafka.produce(rig.topic, 1, records(2 * ROUND, ROUND))
        rig.work(frozenset({Stage.INGEST, Stage.TIER}))
        revert_table(rig.harness.stores, rig.table.row, to=None)

        assert broken(rig) == {}
        assert rig.table.read().num_rows == 3 * (ROUND - 1)
    finally:
        rig.kafka.close()
        rig.harness.close()


@pytest.mark.long
def test_a_table_without_buffer_is_sound(endpoints: Endpoints):
    rig = make(endpoints, partitions=2, buffer="none")
    try:
        for number in range(2):
            rig.kafka.produce(rig.topic, number, records(number * ROUND, ROUND))
            rig.work(frozenset({Stage.TIER}))
        rig.kafka.produce(rig.topic, 0, [record(0)])

        assert broken(rig) == {}
    finally:
        rig.kafka.close()
        rig.harness.close()


@pytest.mark.long
def test_a_table_at_work_is_sound_at_every_look(endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(table_units, "EXPIRE_EVERY_S", 0.1)
    monkeypatch.setattr(steps, "SEGMENT_AGE_S_MAX", 0.5)
    rig = make(endpoints, partitions=2, tier={"max_age": "100ms"}, retention={"versions": "1ms", "grace": "1ms"})
    looks = 0

    def moved() -> bool:
        nonlocal looks
        looks += 1
        rig.kafka.produce(rig.topic, looks % 2, records(looks * ROUND, ROUND))
        assert broken(rig) == {}
        return looks > 4 and rig.table.versions()[-1].version >= 5

    try:
        with running(Worker(rig.harness.stores, [rig.table.row], WorkerOptions())):
            wait_until(moved, "four moves were made, and more looks were taken")
    finally:
        rig.kafka.close()
        rig.harness.close()


# -- the command --------------------------------------------------------------------------------------------


def test_the_command_prints_the_fixed_json_and_ends_with_1_when_something_is_broken(sound: Rig):
    home = ["--home", str(sound.harness.settings.home)]
    good = CliRunner().invoke(cli, [*home, "fsck", sound.table.name, "--json"])
    with restored(sound):
        sound.sql(f"DELETE FROM harness.outbox WHERE {of(sound)} AND seq = 2")
        bad = CliRunner().invoke(cli, [*home, "fsck", sound.table.name, "--json"])
        shown = CliRunner().invoke(cli, [*home, "fsck", sound.table.name])

    assert (good.exit_code, json.loads(good.stdout)["ok"], json.loads(good.stdout)["broken"]) == (0, True, [])
    assert {"S3", "S10", "S12"} <= set(json.loads(good.stdout)["checked"])
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["broken"] == [{"invariant": "S33", "table": sound.table.name, "detail": "no event 2"}]
    assert shown.exit_code == 1
    assert "NOT OK" in shown.stdout
    assert "no event 2" in shown.stdout


def test_an_unknown_table_is_refused_by_name(sound: Rig):
    home = ["--home", str(sound.harness.settings.home)]
    result = CliRunner().invoke(cli, [*home, "fsck", "no.such"])

    assert result.exit_code == 1
    assert "no table 'no.such'" in result.output


def test_without_kafka_the_rest_is_checked_and_it_is_said(sound: Rig, monkeypatch: pytest.MonkeyPatch):
    from harness_pipelines.ports.errors import KafkaUnreachable

    def away(_topic: str) -> None:
        raise KafkaUnreachable("nowhere:1", waited_s=1, doing="asking")

    monkeypatch.setattr(sound.harness.stores.log, "describe", away)
    report: FsckReport = check(sound.harness.stores, [sound.table.name])

    assert report.ok
    assert [(c.invariant, "nowhere:1" in str(c.why_not)) for c in report.unchecked] == [("S12", True)]
    assert "S12" not in report.to_json()["checked"]
