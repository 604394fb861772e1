"""Which rows the ledger answers with, where there are others beside them: of other stages, shards, names and times."""

from __future__ import annotations

import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.ledgers.postgres.acts.drop import TableInUse
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.schema.evolution import ColumnChanges, evolved
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig, fresh_view


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table(views="stream")


def evolve(real: RealRig, table: TableRow, name: str) -> TableRow:
    found = evolved(
        table.spec,
        table.history[-1].fields,
        ColumnChanges(add=(Column(name=name, type=Primitive("string")),)),
        next_id=1000 + table.schema_version,
    )
    base = real.ledger.head(table).stream.snapshot

    def build(pointers: Any, _move_id: int) -> Any:
        return {v: Swap(view=v, old=old, base_snapshot=base, new=fresh_view()) for v, old in pointers.items()}

    real.evolutions(table).publish(found, build, by="me")
    return real.again(table)


def test_the_newest_schema_is_in_force_and_settings_are_compared_with_it(real: RealRig, table: TableRow):
    later = evolve(real, evolve(real, table, "first"), "second")
    assert [one.schema_version for one in later.history] == [1, 2, 3]
    assert [column.name for column in later.spec.columns][-2:] == ["first", "second"]
    changed = real.ledger.update_spec(later, later.spec.model_copy(update={"quarantine_mb": 65}))
    assert changed.spec.quarantine_mb == 65
    assert real.segments.open_segment(changed).schema_version == 3


def test_who_reads_the_log_keeps_the_way_that_it_is_decoded(real: RealRig, table: TableRow):
    real.claim(table, Stage.EXPIRE)
    other = table.spec.model_copy(update={"key_format": "text"})
    now = real.ledger.update_spec(table, other, decoding=True)
    assert (now.spec, now.history[0].spec["key_format"]) == (other, "text")
    claim = real.claim(table, Stage.INGEST)
    with pytest.raises(TableInUse, match=f"{claim.holder} holds ingest; nothing was changed"):
        real.ledger.update_spec(now, table.spec, decoding=True)
    assert real.again(table).spec == other
    real.ledger.release(claim)
    real.ledger.update_spec(now, table.spec, decoding=True)


def test_tables_are_listed_by_namespace_and_name_and_found_by_both(real: RealRig, table: TableRow):
    name = table.spec.name
    others = [real.table(table=f"{namespace}.{name}", views="stream") for namespace in ("z_last", "a_first")]
    known = [one.name for one in real.ledger.tables()]
    assert known == sorted(known, key=lambda one: one.split("."))
    assert {table.name, *(one.name for one in others)} <= set(known)
    for one in (table, *others):
        assert real.ledger.table(one.name).table_id == one.table_id


def test_an_open_move_is_of_its_stage_and_shard(real: RealRig, table: TableRow):
    move = real.plan(table, real.claim(table), {0: 0}, {0: 0})
    assert real.ledger.open_move(table, Stage.TIER, shard=0) == move
    assert real.ledger.open_move(table, Stage.COMPACT, shard=0) is None
    assert real.ledger.open_move(table, Stage.TIER, shard=1) is None


def test_claims_of_other_stages_and_shards_are_neither_taken_nor_renewed_nor_released(real: RealRig, table: TableRow):
    stages = [(Stage.TIER, 0), (Stage.TIER, 1), (Stage.COMPACT, 0)]

    def rows() -> dict[tuple[str, int], tuple[int, Any]]:
        found = real.ask(
            "SELECT stage, shard, epoch, lease_until FROM harness.claims WHERE table_id = %s", [table.table_id]
        )
        return {(row["stage"], row["shard"]): (row["epoch"], row["lease_until"]) for row in found}

    def take() -> list[Any]:
        holder = "00000000-0000-0000-0000-000000000001"
        return [real.ledger.claim(table, stage, shard=shard, holder=holder, lease=MINUTE) for stage, shard in stages]

    take()
    real.pass_time(2 * MINUTE)
    was = rows()
    found = real.ledger.claim(table, Stage.TIER, shard=0, holder="00000000-0000-0000-0000-000000000001", lease=MINUTE)
    assert found is not None
    assert {key for key, now in rows().items() if now != was[key]} == {("tier", 0)}
    take()
    was = rows()
    renewed = real.ledger.renew(found, lease=HOUR)
    assert {key for key, now in rows().items() if now != was[key]} == {("tier", 0)}
    was = rows()
    real.ledger.release(renewed)
    assert {key for key, now in rows().items() if now != was[key]} == {("tier", 0)}


def test_a_claim_that_is_over_is_taken_and_works_though_others_of_the_table_are_held(real: RealRig, table: TableRow):
    def take(stage: Stage, shard: int, lease: timedelta) -> Claim | None:
        return real.ledger.claim(table, stage, shard=shard, holder=str(uuid.uuid4()), lease=lease)

    for stage, shard, lease in ((Stage.COMPACT, 1, HOUR), (Stage.TIER, 0, HOUR), (Stage.TIER, 1, MINUTE)):
        assert take(stage, shard, lease)
    real.pass_time(2 * MINUTE)
    with real.owner.transaction() as connection:  # they commit
        held = "SELECT FROM harness.claims WHERE table_id = %s AND lease_until > clock_timestamp() FOR KEY SHARE"
        connection.execute(held, [table.table_id])
        taken = take(Stage.TIER, 1, HOUR)
    assert taken is not None
    real.plan(table, taken, {0: 0}, {0: 0})


def test_moves_are_listed_newest_first_of_one_stage_or_of_all(real: RealRig, table: TableRow):
    real.ingest(table, {0: (0, 20)})
    for low in (0, 10):
        real.move(table, {0: low}, {0: low + 10})
    every = real.ledger.moves(table)
    assert [move["stage"] for move in every] == ["tier", "tier", "ingest"]
    assert every == sorted(every, key=lambda move: -move["move_id"])
    assert real.ledger.moves(table, stage=Stage.TIER) == every[:2]
    assert real.ledger.moves(table, limit=1) == every[:1]


def test_the_last_move_of_tier_says_how_long_ago_it_was(real: RealRig, table: TableRow):
    real.ingest(table, {0: (0, 20)})
    real.move(table, {0: 0}, {0: 10})
    real.pass_time(timedelta(days=1))
    real.move(table, {0: 10}, {0: 20})
    assert real.ledger.since_tier_s(table) < HOUR.total_seconds()


def test_a_bound_advances_in_its_partition_alone(real: RealRig, table: TableRow):
    real.ingest(table, {0: (0, 10), 1: (0, 10)})
    real.move(table, {0: 0}, {0: 10})
    assert {p.partition: p.bounds.stream_hi for p in real.ledger.positions(table)} == {0: 10, 1: 0}


def test_a_partition_joins_once_and_stays_where_it_is_then(real: RealRig):
    grown = real.table(partitions=1, views="stream")
    real.join(grown, {1: 7})
    real.ingest(grown, {1: (7, 9)})
    real.join(grown, {1: 7})
    assert [(p.partition, p.bounds.buffer_hi) for p in real.ledger.positions(grown)] == [(0, 0), (1, 9)]


def test_positions_and_versions_are_in_order(real: RealRig):
    many = real.table(partitions=4, views="stream")
    real.ingest(many, {3: (0, 5)})
    real.move(many, {3: 0}, {3: 5})
    assert [p.partition for p in real.ledger.positions(many)] == [0, 1, 2, 3]
    assert [v.version for v in real.ledger.versions(many)] == [1, 2]
    assert [v.version for v in real.ledger.versions(replace(many, retained_from=2))] == [2]


def test_a_stream_position_that_disagrees_with_the_head_stops_the_publish(real: RealRig, table: TableRow):
    real.ingest(table, {0: (0, 10)})
    claim, head = real.claim(table), real.ledger.head(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    real.ask("UPDATE harness.lake_positions SET stream_hi = 3 WHERE table_id = %s AND partition = 0", [table.table_id])

    with pytest.raises(BoundaryGap, match="partition 0: it starts at offset 0, its row in lake_positions ends"):
        real.publish(table, claim, move)
    assert real.ledger.head(table) == head


def test_a_batch_position_that_disagrees_with_the_head_stops_the_publish(real: RealRig):
    """Neither position is ever put right by the way."""
    both = real.table()
    real.ingest(both, {0: (0, 10)})
    real.move(both, {0: 0}, {0: 10})
    claim, head = real.claim(both, Stage.OTREE), real.ledger.head(both)
    draft = MoveDraft(
        stage=Stage.OTREE, shard=0, lo={0: 0}, hi={0: 10}, base_version=head.version, schema_version=1, trigger="rows"
    )
    move = real.ledger.plan_move(claim, draft)
    real.ask("UPDATE harness.lake_positions SET batch_hi = 3 WHERE table_id = %s AND partition = 0", [both.table_id])
    assert head.batch is not None
    base = head.batch.snapshot

    def build(old: str) -> Swap:
        return Swap(view="batch", old=old, base_snapshot=base, new=fresh_view())

    with pytest.raises(BoundaryGap, match="partition 0: it starts at offset 0, its row in lake_positions ends"):
        real.ledger.publish(both, Boundary(claim=claim, move=move, rows=7, bytes=70), build)
    assert real.ledger.head(both) == head


def test_what_stops_a_table_stops_no_other_one(real: RealRig, table: TableRow):
    other = real.table(views="stream")
    real.ledger.stop_table(other, "a test")
    assert real.ledger.stopped(table) is None
    real.ledger.stop_table(table, "a test")
    assert real.ledger.stopped(table) is not None
    assert not real.ledger.start_table(table, "another reason")
    assert real.ledger.start_table(table, "a test")
    assert real.ledger.stopped(table) is None
    assert real.ledger.stopped(other) is not None
