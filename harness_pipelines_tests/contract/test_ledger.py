"""The rules of the ledger port: claims, moves and the boundary commit, over the reference and over Postgres."""

from __future__ import annotations

import re
import threading
import uuid
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.app.checks import is_fresh
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import Boundary, MoveDraft, RefusedRecord, Stopped, Swap, TableExists, TableUnknown
from harness_pipelines.protocol.bounds import BoundaryGap, Bounds
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.moves import MoveClosed, MoveState
from harness_pipelines.protocol.schema.schemas import SpecDisagrees, SpecMoved
from harness_pipelines.protocol.versions import ForeignCommit, Version
from harness_pipelines.stages.tier import tier
from harness_pipelines_tests.contract.stores_rig import COLUMNS, HOUR, MINUTE, RealRig, StoresRig, fresh_view
from harness_pipelines_tests.producer import DEADLINE_S


@pytest.fixture
def table(stores: StoresRig):
    """Two partitions with [0, 10) and [0, 20) in the buffer."""
    made = stores.table()
    stores.ingest(made, {0: (0, 10), 1: (0, 20)})
    return made


# -- tables -------------------------------------------------------------------------------------------------


def test_a_table_is_created_once(stores: StoresRig):
    table = stores.table()
    before = stores.contents(table)

    with pytest.raises(TableExists, match=f"{table.name} exists already; nothing was changed"):
        stores.ledger.create_table(table.spec, table.identity, starts={}, fields=(), views={"stream": fresh_view()})
    assert stores.contents(table) == before


def test_a_new_table_begins_with_version_1_at_its_starts(stores: StoresRig):
    table = stores.table(partitions=2, start=5)

    head = stores.ledger.head(table)
    assert (head.version, head.bounds, head.move_id) == (1, {0: Bounds.at(5), 1: Bounds.at(5)}, None)
    assert stores.ledger.pointer(table, "stream") == head.stream.metadata
    assert stores.again(table) == table


def test_an_unknown_table_is_named_with_those_that_are_most_like_it(stores: StoresRig):
    table = stores.table()

    with pytest.raises(TableUnknown, match=f"no table '{table.name}x'; tables: .*{table.name}"):
        stores.ledger.table(f"{table.name}x")


def test_partitions_join_once_and_keep_what_they_have(stores: StoresRig):
    table = stores.table(partitions=1)
    stores.join(table, {1: 7})
    stores.ingest(table, {1: (7, 9)})

    stores.join(table, {0: 99, 1: 99})

    found = {p.partition: p.bounds for p in stores.ledger.positions(table)}
    assert found == {0: Bounds.at(0), 1: Bounds(start=7, batch_hi=7, stream_hi=7, buffer_hi=9)}


def test_a_partition_that_joins_is_decoded_with_the_schema_in_force_whatever_the_holder_knows(stores: StoresRig):
    table = stores.table(partitions=1)
    stores.evolve(table)

    stores.join(table, {1: 7})

    assert {p.schema_version for p in stores.segments.positions(table).values()} == {2}


def test_partitions_join_with_the_claim_alone(stores: StoresRig):
    table = stores.table(partitions=1)
    asleep, _ = stores.taken_over(table, Stage.INGEST)
    before = stores.contents(table)

    with pytest.raises(FencedOut):
        stores.ledger.add_partitions(asleep, {1: 7})

    assert stores.contents(table) == before


def test_a_partition_that_joined_is_moved_from_its_own_start(stores: StoresRig):
    table = stores.table(partitions=1)
    stores.join(table, {1: 7})
    stores.ingest(table, {1: (7, 9)})

    published = stores.move(table, {1: 7}, {1: 9})

    assert published.bounds == {0: Bounds.at(0), 1: Bounds(start=7, batch_hi=7, stream_hi=9, buffer_hi=9)}


# -- claims -------------------------------------------------------------------------------------------------


def test_a_claim_has_one_holder_while_its_lease_lives(stores: StoresRig, table):
    stores.claim(table)

    assert stores.ledger.claim(table, Stage.TIER, shard=0, holder=str(uuid.uuid4()), lease=HOUR) is None
    assert stores.ledger.claim(table, Stage.INGEST, shard=0, holder=str(uuid.uuid4()), lease=HOUR) is not None


def test_the_epoch_grows_with_every_claim_even_after_a_release(stores: StoresRig, table):
    first = stores.claim(table)
    stores.ledger.release(first)
    second = stores.claim(table, lease=MINUTE)
    stores.pass_time(2 * MINUTE)
    third = stores.claim(table)

    assert first.epoch < second.epoch < third.epoch


def test_a_claim_ends_by_the_clock_of_the_store(stores: StoresRig, table):
    claim = stores.claim(table, lease=MINUTE)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    stores.pass_time(2 * MINUTE)
    before = stores.contents(table)

    with pytest.raises(FencedOut, match=f"lease of epoch {claim.epoch} ended at .*; nothing was written"):
        stores.publish(table, claim, move)
    assert stores.contents(table) == before


def test_a_renewed_claim_lives_longer_under_the_same_epoch(stores: StoresRig, table):
    claim = stores.claim(table, lease=MINUTE)
    renewed = stores.ledger.renew(claim, lease=HOUR)
    stores.pass_time(2 * MINUTE)

    assert renewed.epoch == claim.epoch
    assert stores.publish(table, claim, stores.plan(table, claim, {0: 0}, {0: 10})).version == 2


def test_an_ended_claim_cannot_be_renewed(stores: StoresRig, table):
    claim = stores.claim(table, lease=MINUTE)
    stores.pass_time(2 * MINUTE)

    with pytest.raises(FencedOut, match=r"the lease of epoch 1 ended"):
        stores.ledger.renew(claim, lease=HOUR)


def test_the_one_who_was_robbed_can_neither_renew_nor_release(stores: StoresRig, table):
    asleep, awake = stores.taken_over(table)

    with pytest.raises(FencedOut, match="epoch 1 was taken over, current is epoch 2"):
        stores.ledger.renew(asleep, lease=HOUR)
    stores.ledger.release(asleep)
    assert stores.ledger.renew(awake, lease=HOUR).epoch == awake.epoch


# -- moves --------------------------------------------------------------------------------------------------


def test_a_stage_has_one_open_move(stores: StoresRig, table):
    claim = stores.claim(table)
    first = stores.plan(table, claim, {0: 0}, {0: 5})

    with pytest.raises(MoveClosed, match="tier of table .* has an open move of another holder; nothing was planned"):
        stores.plan(table, claim, {1: 0}, {1: 5})
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) == first


def test_a_writer_that_slept_through_a_takeover_cannot_publish(stores: StoresRig, table):
    asleep = stores.claim(table, lease=MINUTE)
    move = stores.plan(table, asleep, {0: 0}, {0: 10})
    stores.pass_time(2 * MINUTE)
    stores.claim(table)
    before = stores.contents(table)

    with pytest.raises(FencedOut, match="claim epoch 1 was taken over, current is epoch 2; nothing was written"):
        stores.publish(table, asleep, move)
    assert stores.contents(table) == before


@pytest.mark.parametrize("act", ["plan_move", "take_attempt", "close_move"])
def test_a_writer_that_slept_through_a_takeover_cannot_touch_moves(stores: StoresRig, table, act: str):
    asleep = stores.claim(table, lease=MINUTE)
    move = stores.plan(table, asleep, {0: 0}, {0: 10}) if act != "plan_move" else None
    stores.pass_time(2 * MINUTE)
    stores.claim(table)
    before = stores.contents(table)

    with pytest.raises(FencedOut, match="nothing was written"):
        if move is None:
            stores.plan(table, asleep, {0: 0}, {0: 10})
        elif act == "take_attempt":
            stores.ledger.take_attempt(asleep, move, run_id=None)
        else:
            stores.ledger.close_move(asleep, move, state=MoveState.ABANDONED, error="late")
    assert stores.contents(table) == before


def test_an_attempt_repeats_range_base_and_schema(stores: StoresRig, table):
    first = stores.claim(table)
    move = stores.plan(table, first, {0: 0}, {0: 10})
    stores.ledger.release(first)
    second = stores.claim(table)

    again = stores.ledger.take_attempt(second, move, run_id="r2")

    assert (again.attempt, again.epoch, again.branch) == (2, second.epoch, f"move_{move.move_id}_2")
    same = ("move_id", "lo", "hi", "base_version", "schema_version")
    assert [getattr(again, name) for name in same] == [getattr(move, name) for name in same]


def test_an_attempt_that_a_later_one_replaced_cannot_publish(stores: StoresRig, table):
    claim = stores.claim(table)
    late = stores.plan(table, claim, {0: 0}, {0: 10})
    again = stores.ledger.take_attempt(claim, late, run_id=None)

    with pytest.raises(MoveClosed, match=r"attempt 1 \(epoch 1\) was superseded by attempt 2 .*nothing was written"):
        stores.publish(table, claim, late)
    assert stores.publish(table, claim, again).version == 2


def test_a_move_takes_effect_once(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    stores.publish(table, claim, move)
    before = stores.contents(table)

    with pytest.raises(MoveClosed, match=f"move {move.move_id} is COMMITTED already; nothing was written"):
        stores.publish(table, claim, move)
    assert stores.contents(table) == before


def test_a_move_that_was_given_up_cannot_publish(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="enough")

    with pytest.raises(MoveClosed, match="is ABANDONED already"):
        stores.publish(table, claim, move)
    assert stores.ledger.open_move(table, Stage.TIER, shard=0) is None


def test_a_quarantined_move_holds_its_stage(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 1})
    stores.ledger.close_move(claim, move, state=MoveState.QUARANTINED, error="every attempt failed")

    held = stores.ledger.open_move(table, Stage.TIER, shard=0)
    assert held is not None
    assert (held.move_id, held.state) == (move.move_id, MoveState.QUARANTINED)


def test_failures_count_for_the_open_attempt_alone_and_outages_not_at_all(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})

    assert stores.ledger.note_failure(move, error="a bug", counts=True) == 1
    assert stores.ledger.note_failure(move, error="an outage", counts=False) == 1
    stores.ledger.take_attempt(claim, move, run_id=None)
    assert stores.ledger.note_failure(move, error="too late", counts=True) == 1
    assert stores.ledger.moves(table, stage=Stage.TIER)[0]["error"] == "an outage"


# -- when tier is due ---------------------------------------------------------------------------------------


def another_stage(stores: StoresRig, table) -> Version:
    """A version that moves nothing out of the buffer, as compactions and relayouts publish them."""
    claim = stores.claim(table, Stage.COMPACT)
    base = stores.ledger.head(table).version
    draft = MoveDraft(stage=Stage.COMPACT, shard=0, lo={}, hi={}, base_version=base, schema_version=1, trigger="files")
    published = stores.publish(table, claim, stores.ledger.plan_move(claim, draft))
    stores.ledger.release(claim)
    return published


def test_the_age_of_tier_is_that_of_its_own_last_move(stores: StoresRig, table):
    stores.pass_time(HOUR)
    assert stores.ledger.since_tier_s(table) == pytest.approx(3600, abs=60), "since the table was made"

    stores.move(table, {0: 0}, {0: 5})
    assert stores.ledger.since_tier_s(table) == pytest.approx(0, abs=60)

    stores.pass_time(HOUR)
    claim = stores.claim(table)
    given_up = stores.plan(table, claim, {0: 5}, {0: 10})
    stores.ledger.close_move(claim, given_up, state=MoveState.ABANDONED, error="enough")
    another_stage(stores, table)
    assert stores.ledger.since_tier_s(table) == pytest.approx(3600, abs=60)


def test_versions_of_other_stages_do_not_put_tier_off(stores: StoresRig, table):
    """L8: while relayouts follow each other, tier still moves once per `max_age`."""
    opened: Any = SimpleNamespace(
        tables=stores.ledger, ledger=stores.ledger, segments=SimpleNamespace(sizes=lambda _table: [])
    )
    stores.move(table, {0: 0}, {0: 5})
    another_stage(stores, table)
    assert tier.trigger(opened, table) is None

    stores.pass_time(2 * MINUTE)
    another_stage(stores, table)
    assert tier.trigger(opened, table) == "age"


def test_a_table_whose_tier_stands_still_is_not_fresh_however_young_its_head_is(real: RealRig):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    marks = {0: SimpleNamespace(end=10), 1: SimpleNamespace(end=0)}
    log = SimpleNamespace(watermarks=lambda _topic, _partitions: marks, held=lambda _topic, _partitions: {})
    opened: Any = SimpleNamespace(tables=real.ledger, readers=real.readers, log=log)
    real.pass_time(HOUR)
    another_stage(real, table)

    found = is_fresh(opened, table)
    assert not found.passed
    assert re.fullmatch(r"10 offsets wait in the buffer, no move of tier for 36\d\d s", found.description)

    real.move(table, {0: 0}, {0: 10})
    assert is_fresh(opened, table).passed


def test_what_is_buffered_is_moved_at_once_when_ingest_has_nothing_left(stores: StoresRig, table):
    opened: Any = SimpleNamespace(
        tables=stores.ledger, ledger=stores.ledger, segments=SimpleNamespace(sizes=lambda _table: [])
    )
    assert tier.trigger(opened, table, idle=lambda _bounds: False) is None
    assert tier.trigger(opened, table, idle=lambda _bounds: True) == "idle"

    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0, 1: 0}, {0: 10, 1: 20})
    assert tier.trigger(opened, table, idle=lambda _bounds: True) == "recovery"
    stores.publish(table, claim, move)
    assert tier.trigger(opened, table, idle=lambda _bounds: True) is None


# -- the boundary commit ------------------------------------------------------------------------------------


def test_a_publish_changes_pointer_bounds_version_move_and_outbox_together(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0, 1: 0}, {0: 10, 1: 15})

    published = stores.publish(table, claim, move)

    assert stores.ledger.head(table) == published
    assert stores.ledger.pointer(table, "stream") == published.stream.metadata
    assert published.bounds == {
        0: Bounds(start=0, batch_hi=0, stream_hi=10, buffer_hi=10),
        1: Bounds(start=0, batch_hi=0, stream_hi=15, buffer_hi=20),
    }
    assert {p.partition: p.bounds for p in stores.ledger.positions(table)} == published.bounds
    row = stores.ledger.moves(table, stage=Stage.TIER)[0]
    assert (row["state"], row["rows"], row["bytes"], published.move_id) == ("COMMITTED", 7, 70, move.move_id)
    assert stores.outbox(table) == [(1, "created"), (2, "published")]


def test_versions_and_outbox_count_without_gaps_over_failed_publishes(stores: StoresRig, table):
    claim = stores.claim(table)
    for i in range(3):
        move = stores.plan(table, claim, {1: 5 * i}, {1: 5 * i + 5})
        with pytest.raises(FencedOut):
            stores.publish(table, stores.ledger.renew(claim, lease=-HOUR), move)
        claim = stores.claim(table)
        stores.publish(table, claim, stores.ledger.take_attempt(claim, move, run_id=None))

    assert [v.version for v in stores.ledger.versions(table)] == [1, 2, 3, 4]
    assert [seq for seq, _ in stores.outbox(table)] == [1, 2, 3, 4]


@pytest.mark.parametrize(("low", "verb"), [(4, "repeat"), (6, "skip")])
def test_a_move_must_begin_where_the_stream_view_ends(stores: StoresRig, table, low: int, verb: str):
    stores.move(table, {1: 0}, {1: 5})
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0, 1: low}, {0: 10, 1: 9})
    before = stores.contents(table)

    with pytest.raises(
        BoundaryGap, match=f"would {verb} records of partition 1: it starts at offset {low}, the stream view ends at 5"
    ) as gap:
        stores.publish(table, claim, move)
    assert (gap.value.partition, gap.value.expected_low, gap.value.got_low) == (1, 5, low)
    assert stores.contents(table) == before  # partition 0 fitted, but a vector moves all or nothing


def test_a_move_without_rows_still_moves_the_bounds(stores: StoresRig, table):
    claim = stores.claim(table)

    published = stores.publish(table, claim, stores.plan(table, claim, {0: 0}, {0: 10}), rows=0, bytes=0)

    assert published.stream_hi == {0: 10, 1: 0}


def test_a_pointer_that_moved_is_built_on_again(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    build, bases = stores.build(table), []

    def behind_once(base: str) -> Swap:
        bases.append(base)
        return build("some/older.metadata.json" if len(bases) == 1 else base)

    published = stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=1, bytes=1), behind_once)

    assert len(bases) == 2
    assert published.stream.metadata == stores.ledger.pointer(table, "stream")


def test_a_publish_that_always_comes_late_is_built_under_the_lock_at_last(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    build, calls = stores.build(table), 0

    def late(base: str) -> Swap:
        nonlocal calls
        calls += 1
        return build("some/older.metadata.json" if calls <= 3 else base)

    assert stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=1, bytes=1), late).version == 2
    assert calls == 4


def test_what_another_writer_committed_is_never_built_on(stores: StoresRig, table):
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    before = stores.contents(table)

    def foreign(base: str) -> Swap:
        return Swap(view=table.tiered_view, old=base, base_snapshot=42, new=fresh_view())

    with pytest.raises(ForeignCommit, match="the stream view is at snapshot 42, version 1 published"):
        stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=1, bytes=1), foreign)
    assert stores.contents(table) == before


def test_two_publishers_at_once_publish_one_after_the_other(stores: StoresRig, table):
    """Two attempts of one move race: exactly one takes effect, the other is told so."""
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 0}, {0: 10})
    both = threading.Barrier(2, timeout=DEADLINE_S)
    ends: list[Version | HarnessError] = []

    def attempt() -> None:
        build, first = stores.build(table), True

        def together(base: str) -> Swap:
            nonlocal first
            if first:
                first = False
                both.wait()
            return build(base)

        try:
            ends.append(stores.ledger.publish(table, Boundary(claim=claim, move=move, rows=1, bytes=1), together))
        except HarnessError as error:
            ends.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)

    assert {type(end) for end in ends} == {MoveClosed, Version}
    assert len(ends) == 2
    assert [v.version for v in stores.ledger.versions(table)] == [1, 2]


def test_without_a_buffer_the_move_is_the_ingest_and_brings_its_refused_records(stores: StoresRig):
    table = stores.table(buffer="none")
    claim = stores.claim(table)
    bad = RefusedRecord(partition=1, offset=3, reason="malformed", detail="no JSON", key=None, value=b"{")
    move = stores.plan(table, claim, {0: 0, 1: 0}, {0: 10, 1: 20})

    published = stores.publish(table, claim, move, refused=(bad,), ingest_to={0: 10, 1: 20})

    assert (published.stream_hi, published.buffer_hi) == ({0: 10, 1: 20}, {0: 10, 1: 20})
    assert stores.refused(table) == {(1, 3)}


def test_without_a_buffer_a_move_must_begin_where_ingest_ends(stores: StoresRig):
    table = stores.table(buffer="none")
    claim = stores.claim(table)
    move = stores.plan(table, claim, {0: 3}, {0: 10})
    before = stores.contents(table)

    with pytest.raises(BoundaryGap, match="partition 0: it starts at offset 3, the buffer ends at"):
        stores.publish(table, claim, move, ingest_to={0: 10})
    assert stores.contents(table) == before


def test_a_stopped_table_says_why_until_it_is_started(stores: StoresRig, table):
    stores.ledger.stop_table(table, "offsets are gone")
    assert stores.again(table).stopped == "offsets are gone"

    stores.ledger.stop_table(table, None)
    assert stores.again(table).stopped is None


def test_a_table_starts_again_where_what_stopped_it_is_what_is_over(stores: StoresRig, table):
    stores.ledger.stop_table(table, "offsets are gone", stage="ingest")
    assert stores.ledger.stopped(table) == Stopped("offsets are gone", "ingest")

    assert not stores.ledger.start_table(table, "a move is stuck")
    assert stores.again(table).stopped == "offsets are gone"
    assert stores.ledger.start_table(table, "offsets are gone")
    assert stores.ledger.stopped(table) is None
    assert not stores.ledger.start_table(table, "offsets are gone")


def test_new_settings_leave_everything_else_alone(stores: StoresRig, table):
    wanted = table.spec.model_copy(update={"on_error": "stop"})

    changed = stores.ledger.update_spec(table, wanted)

    assert changed.spec == wanted
    assert stores.ledger.head(changed).version == 1
    assert timedelta(seconds=changed.spec.retention.grace) == timedelta(minutes=10)


def test_settings_are_changed_from_those_that_were_read_alone(stores: StoresRig, table):
    stores.ledger.update_spec(table, table.spec.model_copy(update={"on_error": "stop"}))
    before = stores.contents(table)

    with pytest.raises(SpecMoved, match="on_error differ.*nothing was written"):
        stores.ledger.update_spec(table, table.spec.model_copy(update={"unknown_fields": "quarantine"}))

    assert stores.contents(table) == before
    assert stores.again(table).spec.on_error == "stop"


def test_settings_bring_no_columns(stores: StoresRig, table):
    more = stores.spec(table=table.name, columns={**COLUMNS, "more": "string"})
    with pytest.raises(SpecDisagrees, match="only the spec has more string, only the schema has none"):
        stores.ledger.update_spec(table, more)
    assert stores.again(table).spec == table.spec
