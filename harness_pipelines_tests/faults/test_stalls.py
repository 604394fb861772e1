"""A stage that has work and gets no further is seen by all who watch, whichever stage it is; one that moves is not."""

from __future__ import annotations

import json
import time
import uuid
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from click.testing import CliRunner

from harness_pipelines.app.checks import is_fresh, nothing_is_stuck
from harness_pipelines.cli.main import cli
from harness_pipelines.ledgers.postgres.views.growth import growth
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.compaction import FILES_MIN
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.serve.page.content import Facts, everything
from harness_pipelines.stages import compact
from harness_pipelines.stages.run.looks import Looks
from harness_pipelines.stages.table import expire
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import INGEST, TableRig, environment, running
from harness_pipelines_tests.scrape import scrape_ledger, served

ANY = str(uuid.uuid4())


def looked(rig: TableRig, *, minutes_later: float = 0.0) -> None:
    """One look at the end of the log and at the table, after which so many minutes go by."""
    marks = rig.stores.log.watermarks(rig.topic, [0, 1])
    rig.stores.watch.record_ends({rig.table.row.table_id: marks})
    rig.stores.stalls.note([rig.name])
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.stalls SET since = since - %s WHERE table_id = %s",
            [timedelta(minutes=minutes_later), rig.table.row.table_id],
        )


def alarms(rig: TableRig) -> dict[str, str]:
    """By stage what stalls."""
    return {one.stage: one.what for one in rig.stores.stalls.now([rig.name]) if one.is_alarm}


def whats(rig: TableRig, stage: str) -> set[str]:
    """What *stage* has to do."""
    with rig.stores.database.session() as connection:
        found = connection.execute(
            "SELECT what FROM harness.stage_work WHERE table_id = %s AND stage = %s", [rig.table.row.table_id, stage]
        ).fetchall()
    return {row["what"] for row in found}


def waiting(rig: TableRig) -> dict[str, str]:
    """By stage what waits, an alarm or not yet."""
    return {one.stage: one.what for one in rig.stores.stalls.now([rig.name])}


def planned(rig: TableRig, stage: Stage, *, error: str | None) -> None:
    """A move of *stage* that is open; its claim is given back."""
    claim = rig.claim(stage)
    head = rig.stores.ledger.head(rig.table.row)
    draft = MoveDraft(
        stage=stage,
        shard=0,
        lo={},
        hi={},
        base_version=head.version,
        schema_version=head.schema_version,
        trigger="test",
    )
    move = rig.stores.ledger.plan_move(claim, draft)
    if error is not None:
        rig.stores.ledger.note_failure(move, error=error, counts=False)
    rig.stores.ledger.release(claim)


def test_ingest_that_gets_no_further_stalls_until_it_does(rig: TableRig):
    rig.produce(3)
    looked(rig)
    assert alarms(rig) == {}, "it has had work for a moment only"
    looked(rig, minutes_later=2)
    assert alarms(rig) == {"ingest": "records in the log"}
    looked(rig)
    assert alarms(rig) == {"ingest": "records in the log"}, "another look begins nothing anew"
    rig.ingest()
    assert alarms(rig) == {}, "it moved, whether or not somebody has looked since"
    rig.produce(1)
    looked(rig)
    assert alarms(rig) == {}, "of what came later it is counted from then on"


def test_a_table_without_a_buffer_stalls_at_tier_and_not_while_its_rules_let_it_wait(make_rig: MakeRig):
    rig = make_rig(buffer="none", tier={"max_age": "10m"}, mode="manual")
    rig.produce(3)
    looked(rig, minutes_later=10.5)
    assert alarms(rig) == {}
    looked(rig, minutes_later=1)
    assert alarms(rig) == {"tier": "records in the log"}


def test_tier_stalls_when_the_rules_of_the_spec_are_over(make_rig: MakeRig):
    rig = make_rig(tier={"max_age": "1m"}, freshness={"lake": "10m"}, mode="external_worker")
    rig.produce(3)
    rig.ingest()
    looked(rig, minutes_later=1.5)
    assert alarms(rig) == {}
    looked(rig, minutes_later=1)
    assert alarms(rig) == {"tier": "records in the buffer"}


@pytest.mark.parametrize("stage", [Stage.TIER, Stage.OTREE, Stage.COMPACT])
def test_a_move_whose_attempts_fail_stalls_its_stage(make_rig: MakeRig, stage: Stage):
    rig = make_rig(views="both")
    planned(rig, stage, error="Spark is away")
    looked(rig)
    assert alarms(rig) == {}
    looked(rig, minutes_later=1.1)
    assert alarms(rig) == {stage.value: "an open move"}


def test_an_attempt_without_an_error_may_take_its_time_but_not_for_ever(make_rig: MakeRig):
    rig = make_rig(views="both")
    planned(rig, Stage.OTREE, error=None)
    looked(rig, minutes_later=9)
    assert alarms(rig) == {}
    looked(rig, minutes_later=3)
    assert alarms(rig) == {"otree": "an open move"}


def test_a_long_attempt_that_fails_is_no_stall_yet_and_later_attempts_do_not_begin_a_new_count(make_rig: MakeRig):
    rig = make_rig(views="both")
    planned(rig, Stage.OTREE, error=None)
    looked(rig, minutes_later=9)
    ledger, table = rig.stores.ledger, rig.table.row
    move = ledger.open_move(table, Stage.OTREE, shard=0)
    assert move is not None
    ledger.note_failure(move, error="Spark is away", counts=False)
    assert alarms(rig) == {}, "what it took before it failed is its time"
    looked(rig)
    assert alarms(rig) == {}
    looked(rig, minutes_later=0.9)
    claim = rig.claim(Stage.OTREE)
    ledger.close_move(claim, move, state=MoveState.ABANDONED, error="its base is gone")
    ledger.release(claim)
    planned(rig, Stage.OTREE, error=None)
    looked(rig)
    assert alarms(rig) == {}, "the next move may take its time"
    again = ledger.open_move(table, Stage.OTREE, shard=0)
    assert again is not None
    ledger.note_failure(again, error="Spark is away", counts=False)
    looked(rig, minutes_later=0.2)
    assert alarms(rig) == {"otree": "an open move"}


def test_small_files_that_compact_says_nothing_about_stall_it(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    rig = make_rig(views="stream", tier={"max_age": "1s"}, mode="external_worker")
    for _ in range(FILES_MIN):
        rig.produce(3)
        rig.ingest()
        rig.tier()
    with monkeypatch.context() as broken:
        broken.setattr(compact, "trigger", lambda *_, **__: None)  # the loop lives, and finds nothing to do
        worker = rig.worker(frozenset({Stage.COMPACT}))
        with running(worker):
            wait_until(lambda: "compact" in waiting(rig), "it is noted")
    looked(rig)
    assert alarms(rig) == {}
    looked(rig, minutes_later=1.2)
    assert alarms(rig) == {"compact": "small files"}
    looks = Looks(rig.stores, ANY, worker.stop, lambda: [(rig.table.row, worker.progress[0])])
    worker.stop.clear()
    compact.compact_once(rig.stores, rig.table.row, rig.claim(Stage.COMPACT), trigger=compact.FILES)
    looks.look()
    assert waiting(rig) == {}


def test_an_expire_that_removes_nothing_stalls(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch):
    rig = make_rig(retention={"versions": "1s", "grace": "1s"}, mode="external_worker", tier={"max_age": "1s"})
    for _ in range(2):
        rig.produce(3)
        rig.ingest()
        rig.tier()
    key = {"table_id": rig.table.row.table_id}
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "INSERT INTO harness.condemned_files VALUES (%(table_id)s, '/gone', 1, clock_timestamp() - interval '1h')",
            key,
        )
        connection.execute(
            "INSERT INTO harness.segments (segment, table_id, seq, state, schema_version, retired_at) VALUES "
            "('s' || gen_random_uuid(), %(table_id)s, 900, 'retired', 1, clock_timestamp() - interval '1 hour')",
            key,
        )
    wanted = {"files to remove", "segments to drop", "versions to let go of"}
    wait_until(lambda: whats(rig, "expire") == wanted, "the versions are over")
    with monkeypatch.context() as broken:
        broken.setattr(
            expire, "expire_once", lambda *_, **__: expire.Expired(floor={})
        )  # the loop lives, and does nothing
        with running(rig.worker(frozenset({Stage.EXPIRE}))):
            wait_until(lambda: "expire" in waiting(rig), "it is noted")
    looked(rig, minutes_later=1.5)
    assert alarms(rig) == {}, "it looks once a minute"
    looked(rig, minutes_later=10)
    assert alarms(rig) == {}, "a run that removes thousands of files shows it at its end"
    looked(rig, minutes_later=1)
    assert alarms(rig).keys() == {"expire"}
    with rig.stores.database.transaction() as connection:
        connection.execute("DELETE FROM harness.segments WHERE table_id = %(table_id)s AND seq = 900", key)
    expire.expire_once(rig.stores, rig.table.row, rig.claim(Stage.EXPIRE), remove_large=True)
    assert alarms(rig) == {}


def test_a_move_that_is_open_holds_files_back_and_is_no_stall_of_expire(make_rig: MakeRig):
    rig = make_rig(views="both")
    planned(rig, Stage.OTREE, error=None)
    with rig.stores.database.transaction() as connection:
        for statement in (
            "UPDATE harness.moves SET planned_at = planned_at - interval '2h' WHERE table_id = %s",
            "INSERT INTO harness.condemned_files VALUES (%s, '/gone', 1, clock_timestamp() - interval '1h')",
        ):
            connection.execute(statement, [rig.table.row.table_id])
    assert whats(rig, "expire") == set()


def test_requests_stall_otree(make_rig: MakeRig):
    rig = make_rig(views="both", key=["id"])
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "INSERT INTO harness.recalls (table_id, act, wanted, asked_by) VALUES (%s, 'recall', 'id = 1', 'a person')",
            [rig.table.row.table_id],
        )
    looked(rig, minutes_later=2)
    assert alarms(rig) == {"otree": "a request to recall"}


def test_a_subscriber_that_takes_no_event_stalls_also_when_it_never_took_one(rig: TableRig):
    name = f"s-{uuid.uuid4().hex[:8]}"
    with rig.table.subscription(name) as events:
        next(iter(events))  # and is never asked for the next one: it has not dealt with it
    looked(rig, minutes_later=2)
    assert alarms(rig) == {"events": f"events for {name}"}
    [lag] = rig.stores.stalls.lags([rig.name])
    assert (lag.subscriber, lag.events) == (name, 1)
    with rig.table.subscription(name) as events:
        assert [event.seq for event in events] == [1]
    assert alarms(rig) == {}
    rig.harness.states.drop(name)
    assert rig.stores.stalls.lags([rig.name]) == []


def test_an_error_that_a_stage_meets_again_and_again_is_in_the_ledger_within_ten_seconds(
    rig: TableRig, monkeypatch: pytest.MonkeyPatch
):
    def away(*_: Any, **__: Any) -> None:
        raise LakeAway("the lake is away; nothing was removed")

    def seen() -> dict[str, str | None]:
        return {one.stage: one.error for one in rig.stores.stalls.now([rig.name])}

    with monkeypatch.context() as broken:
        broken.setattr(expire, "expire_once", away)
        with running(rig.worker(frozenset({Stage.EXPIRE}))), within(10, "what is shown to all"):
            wait_until(lambda: "expire" in seen(), "it is shown to all")
    assert "the lake is away" in (seen()["expire"] or "")
    with rig.stores.database.transaction() as connection:
        connection.execute("UPDATE harness.troubles SET since = since - interval '2 minutes'")
    assert alarms(rig) == {"expire": "an error"}
    with rig.stores.database.transaction() as connection:
        connection.execute("UPDATE harness.troubles SET seen_at = seen_at - interval '2 minutes'")
    assert seen() == {}, "a worker that does not speak any more says nothing"


def test_what_a_worker_noted_is_over_when_its_stage_works(rig: TableRig):
    stalls = rig.stores.stalls
    stalls.note_troubles(ANY, {rig.name: {"tier": "it is away", "otree": "so is this"}})
    assert [one.stage for one in stalls.now([rig.name])] == ["otree", "tier"]
    stalls.note_troubles(ANY, {rig.name: {"tier": "it is still away"}})
    assert [(one.stage, one.error) for one in stalls.now([rig.name])] == [("tier", "it is still away")]
    stalls.note_troubles(ANY, {})
    assert stalls.now([rig.name]) == []


def test_all_who_watch_are_shown_a_stall(rig: TableRig):
    rig.produce(3)
    looked(rig, minutes_later=3)
    worker = rig.worker(INGEST)
    with served(worker, rig.table) as url:
        stalled = scrape_ledger(url).value("harness_stage_stalled_seconds", table=rig.name, stage="ingest")
    assert stalled is not None
    assert 180 <= stalled < 400
    command = CliRunner(env=environment(rig.stores.settings))
    said = command.invoke(cli, ["status", rig.name])
    assert "ingest gets no further: records in the log wait since 20" in said.output
    [found] = json.loads(command.invoke(cli, ["status", rig.name, "--json"]).stdout)["tables"]
    assert [(one["stage"], one["what"]) for one in found["stalled"]] == [("ingest", "records in the log")]
    stuck = nothing_is_stuck(rig.stores, rig.table.row)
    assert not stuck.passed
    assert "ingest gets no further" in stuck.description
    facts = Facts(rig.harness)
    try:
        shown = facts.status(rig.name, sees=everything)
    finally:
        facts.close()
    [line] = [one for one in shown["tables"] if one["table"] == rig.name]
    assert line["state"] == "stalled"
    assert any("ingest gets no further" in one["text"] for one in shown["open"]["notices"])


def test_records_behind_a_hanging_transaction_are_shown_with_its_age(rig: TableRig):
    hanging = rig.kafka.begin()
    hanging.produce(rig.topic, 0, rig.values(1))
    rig.produce(20)
    worker = rig.worker(INGEST, until_idle=True)
    worker.run()
    command = CliRunner(env=environment(rig.stores.settings))
    said = command.invoke(cli, ["run", rig.name, "--stage", "ingest", "--until-idle"])
    assert said.exit_code == 0
    assert "not idle: partition 0: 21 offsets from 0 on are held by an open transaction since 20" in said.output
    looks = Looks(rig.stores, worker.holder, worker.stop, lambda: [(rig.table.row, worker.progress[0])])
    worker.stop.clear()  # it has ended, and its look is made by hand
    looks.look()
    with served(worker, rig.table) as url:
        found = scrape_ledger(url)
    assert found.value("harness_held_offsets", table=rig.name) == 21
    assert (found.value("harness_open_transaction_age_seconds", table=rig.name) or 0) > 0
    shown = command.invoke(cli, ["status", rig.name])
    assert "partition 0: 21 offsets from 0 on are held by an open transaction since 20" in shown.output
    [one] = json.loads(command.invoke(cli, ["status", rig.name, "--json"]).stdout)["tables"]
    assert [(h["partition"], h["offset"], h["offsets"]) for h in one["held"]] == [(0, 0, 21)]
    assert is_fresh(rig.stores, rig.table.row).passed, "it has been open for a moment"

    hanging.commit()
    rig.ingest()
    worker.progress[0].ends_at = time.monotonic()
    looks.look()
    assert worker.progress[0].held == {}
    with served(worker, rig.table) as url:
        assert scrape_ledger(url).value("harness_held_offsets", table=rig.name) == 0


def test_when_the_buffers_are_full_is_shown_by_how_fast_they_grow(rig: TableRig, make_rig: MakeRig):
    quiet = make_rig()
    rig.produce(5)
    rig.ingest()
    rig.stores.stalls.note([rig.name, quiet.name])
    before = rig.stores.stalls.growth()
    assert (before[rig.name].per_s, before[rig.name].full_s) == (0.0, inf), "over a moment no pace is known"

    held = before[rig.name].bytes
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.buffer_sizes SET old_bytes = %s, old_at = clock_timestamp() - interval '100 s' "
            "WHERE table_id = %s",
            [held - 10_000, rig.table.row.table_id],
        )
    now = rig.stores.stalls.growth()
    assert now[rig.name].per_s == pytest.approx(100, rel=0.2)
    room = rig.stores.settings.buffer_gb * 1e9 - sum(one.bytes for one in now.values())
    pace = sum(max(one.per_s, 0) for one in now.values())
    assert now[rig.name].full_s == pytest.approx(room / pace, rel=0.2)
    full = growth(rig.stores.readers, room_gb=1e-9)
    assert full[rig.name].full_s == 0, "what is full already is full now"
    shown = json.loads(
        CliRunner().invoke(cli, ["status", rig.name, "--json"], env=environment(rig.stores.settings)).stdout
    )
    assert shown["tables"][0]["buffer"]["growth_bytes_s"] > 0
    assert shown["tables"][0]["buffer"]["full_s"] is not None


def test_the_size_that_growth_is_measured_from_is_minutes_old_and_no_older(rig: TableRig):
    def sizes() -> tuple[float, float]:
        with rig.stores.database.transaction() as connection:
            row = connection.execute(
                "SELECT extract(epoch FROM clock_timestamp() - old_at)::float8 AS old, "
                "extract(epoch FROM clock_timestamp() - new_at)::float8 AS new FROM harness.buffer_sizes "
                "WHERE table_id = %s",
                [rig.table.row.table_id],
            ).fetchone()
        assert row is not None
        return row["old"], row["new"]

    for _ in range(3):
        rig.stores.stalls.note([rig.name])
    for passed in (301.0, 301.0, 100.0):
        with rig.stores.database.transaction() as connection:
            connection.execute(
                "UPDATE harness.buffer_sizes SET old_at = old_at - %s, new_at = new_at - %s WHERE table_id = %s",
                [timedelta(seconds=passed), timedelta(seconds=passed), rig.table.row.table_id],
            )
        rig.stores.stalls.note([rig.name])
    old, new = sizes()
    assert old == pytest.approx(401, abs=30)
    assert new == pytest.approx(100, abs=30)


def test_what_snapshots_and_states_pin_is_shown_with_its_age(rig: TableRig):
    name = f"n{uuid.uuid4().hex[:8]}"
    rig.harness.stores.snapshots.create(name, [rig.table.row])
    with rig.stores.database.transaction() as connection:
        connection.execute("SET LOCAL ROLE NONE")
        connection.execute(
            "UPDATE harness.snapshots SET created_at = created_at - interval '40 days' WHERE name = %s", [name]
        )
        connection.execute("UPDATE harness.tables SET retained_from = 7 WHERE table_id = %s", [rig.table.row.table_id])
    [pin] = rig.stores.stalls.pins([rig.name])
    assert (pin.name, pin.behind, pin.age_s > 40 * 86_400) == (name, 7 - pin.version, True)
    said = CliRunner(env=environment(rig.stores.settings)).invoke(cli, ["status", rig.name])
    assert f"1 versions are pinned, the oldest ({name}, version {pin.version}) since 20" in said.output
    with served(rig.worker(INGEST), rig.table) as url:
        found = scrape_ledger(url)
    assert found.value("harness_pins", table=rig.name) == 1
    assert (found.value("harness_oldest_pin_age_seconds", table=rig.name) or 0) > 40 * 86_400
    assert found.value("harness_oldest_pin_behind_versions", table=rig.name) == pin.behind
