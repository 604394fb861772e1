"""Tables of recalled rows and the requests for them, in Postgres: written, named by versions, expired, dropped."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from harness_pipelines.buffers.postgres.overlays import Overlays
from harness_pipelines.buffers.postgres.reader import BufferReader
from harness_pipelines.drivers.postgres import SegmentMissing
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ledgers.postgres.requests.recall import Recalls
from harness_pipelines.ledgers.postgres.views.proof import Proof
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.changes.reverts import RevertRefused
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.digest import row_digests, shown, total_digest
from harness_pipelines.protocol.lake.overlays import (
    Overlay,
    OverlayChange,
    OverlayMissing,
    OverlayRequest,
    OverlaysMoved,
    next_generation,
    recalled,
)
from harness_pipelines.protocol.moves import Move, MoveClosed, MoveState
from harness_pipelines.protocol.reading.queries import schema_of
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig, fresh_view

KEYED: dict[str, Any] = {"key": ["id"], "delete": "tombstone", "views": "both"}
QUICK = {"versions": "1m", "grace": "1m"}


@pytest.fixture
def reader(ledger_dsn: str) -> Iterator[BufferReader]:
    made = BufferReader(ledger_dsn)
    yield made
    made.close()


@pytest.fixture
def overlays(real: RealRig, reader: BufferReader) -> Overlays:
    return Overlays(real.database, real.sessions, reader)


@pytest.fixture
def recalls(real: RealRig) -> Recalls:
    return Recalls(real.database)


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table(**KEYED, retention=QUICK)


@pytest.fixture
def claim(real: RealRig, table: TableRow) -> Claim:
    return real.claim(table, Stage.OTREE)


def rows(table: TableRow, *ids: int) -> pa.Table:
    columns = {
        "id": pa.array(ids, pa.int64()),
        "s": pa.array([f"row {i}" if i % 2 else None for i in ids], pa.string()),
        "_kafka_partition": pa.array([i % 2 for i in ids], pa.int32()),
        "_kafka_offset": pa.array(ids, pa.int64()),
        "_kafka_timestamp": pa.array([None] * len(ids), pa.timestamp("us", "UTC")),
        "_op": pa.array(["put"] * len(ids), pa.string()),
        "_schema_version": pa.array([1] * len(ids), pa.int32()),
    }
    return pa.table(columns, schema=schema_of(table.spec))


def plan(real: RealRig, table: TableRow, claim: Claim, *, recall: int | None = None) -> Move:
    head = real.ledger.head(table).version
    draft = MoveDraft(
        stage=Stage.OTREE, shard=0, lo={}, hi={}, base_version=head, schema_version=1, trigger="request", recall=recall
    )
    return real.ledger.plan_move(claim, draft)


def make(overlays: Overlays, table: TableRow, move: Move, *ids: int) -> Overlay:
    found = rows(table, *ids)
    written = overlays.write(table, move, found)
    digest = shown(total_digest(row_digests(found)))
    return Overlay(
        segment=written.segment,
        rows=found.num_rows,
        bytes=written.bytes,
        schema_version=1,
        digest=digest,
        move=move.move_id,
    )


def publish(real: RealRig, table: TableRow, claim: Claim, move: Move, change: OverlayChange | None) -> Version:
    def build(base: str) -> Swap:
        head = real.ledger.head(table)
        assert head.batch is not None
        return Swap(view="batch", old=base, base_snapshot=head.batch.snapshot, new=fresh_view())

    return real.ledger.publish(table, Boundary(claim=claim, move=move, rows=3, bytes=30, overlays=change), build)


def recall(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim, *ids: int) -> Overlay:
    move = plan(real, table, claim)
    made = make(overlays, table, move, *ids)
    publish(real, table, claim, move, recalled(real.ledger.head(table).overlays, made))
    return made


def release(real: RealRig, table: TableRow, claim: Claim) -> Version:
    return publish(
        real, table, claim, plan(real, table, claim), next_generation(real.ledger.head(table).overlays, None)
    )


def restore(real: RealRig, table: TableRow, to: int) -> Version:
    def build(view: ViewName, base: str, head: Version, _target: Version, _move: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    return real.ledger.revert(table, to=to, log_from={}, build=build)


def expire(real: RealRig, table: TableRow) -> tuple[list[str], list[str]]:
    """One run: (dropped, retired)."""
    table = real.again(table)
    claim = real.claim(table, Stage.EXPIRE)
    dropped = real.upkeep.drop_retired(table, retired_for=timedelta(0))
    decision = real.upkeep.trim(table, claim)
    real.ledger.release(claim)
    return dropped, list(decision.overlays)


def stored(real: RealRig, table: TableRow) -> set[str]:
    found = real.ask(
        "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind = 'r'", [f"ovl_{table.table_id}_%"]
    )
    return {row["relname"] for row in found}


def test_what_is_recalled_is_read_back_as_it_was(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    first, second = recall(real, overlays, table, claim, 1, 2, 3), recall(real, overlays, table, claim, 6)

    assert real.ledger.head(table).overlays == (first, second)
    assert overlays.read(table, [first]).sort_by("id") == rows(table, 1, 2, 3)
    found = overlays.read(table, real.ledger.head(table).overlays)
    assert shown(total_digest(row_digests(found))) == shown(total_digest(row_digests(rows(table, 1, 2, 3, 6))))
    assert overlays.read(table, []).num_rows == 0
    assert Proof(real.database).overlay_tables(table) == {first.segment, second.segment}


def test_older_versions_name_what_they_named(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    made = recall(real, overlays, table, claim, 1)
    release(real, table, claim)

    named = {v.version: v.overlays for v in real.ledger.versions(table)}
    assert named == {1: (), 2: (made,), 3: ()}
    assert real.leases.look(table, holder="t", lease=HOUR, at=2).version.overlays == (made,)


def test_what_was_built_on_other_recalled_rows_is_not_published(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    recall(real, overlays, table, claim, 1)
    move = plan(real, table, claim)
    made = make(overlays, table, move, 2)

    with pytest.raises(OverlaysMoved, match="the move was built on no recalled rows; nothing was written"):
        publish(real, table, claim, move, recalled((), made))
    assert real.ledger.head(table).version == 2


def test_a_version_names_no_table_that_is_not_there(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    move = plan(real, table, claim)
    made = make(overlays, table, move, 2)
    real.ask(f"DROP TABLE harness_buffer.{made.segment}")

    with pytest.raises(OverlayMissing, match=f"{made.segment}, a table of recalled rows, is not there; nothing was"):
        publish(real, table, claim, move, recalled((), made))
    assert real.ledger.head(table).version == 1
    with pytest.raises(SegmentMissing, match=made.segment):
        overlays.read(table, [made])


def test_a_late_attempt_writes_to_a_table_of_its_own_and_publishes_nothing(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    first = plan(real, table, claim)
    late = make(overlays, table, first, 1)
    second = real.ledger.take_attempt(claim, first, run_id=None)
    made = make(overlays, table, second, 1)
    publish(real, table, claim, second, recalled((), made))

    with pytest.raises(MoveClosed):
        publish(real, table, claim, first, recalled((), late))
    assert real.ledger.head(table).overlays == (made,)
    assert late.segment != made.segment
    assert expire(real, table) == ([], [late.segment])
    assert expire(real, table) == ([late.segment], [])
    assert stored(real, table) == {made.segment}


def test_an_overlay_stays_while_a_readable_version_names_it_and_goes_in_a_later_run(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    made = recall(real, overlays, table, claim, 1)
    release(real, table, claim)

    assert expire(real, table) == ([], [])
    real.pass_time(2 * MINUTE)
    assert expire(real, table) == ([], [made.segment])
    assert stored(real, table) == {made.segment}
    assert Proof(real.database).overlay_tables(table) == set(), "no version may name it any more"
    claim = real.claim(table, Stage.EXPIRE)
    assert real.upkeep.trim(table, claim).overlays == (), "it retires once"
    real.ledger.release(claim)
    assert expire(real, table) == ([made.segment], [])
    assert stored(real, table) == set()


def test_tables_of_recalled_rows_are_shown_by_name_and_dropped_oldest_first(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    made = [recall(real, overlays, table, claim, n).segment for n in (1, 2)]
    release(real, table, claim)
    real.ledger.release(claim)
    shown_first, *_ = shown_names = sorted(made)
    newer = "UPDATE harness.overlays SET created_at = created_at + interval '1 day' WHERE segment = %s"
    real.ask(newer, [shown_first])
    ledger = PostgresLedger(real.database, catalog=CATALOG)
    assert [s.name for s in ledger.drop_table(table, dry_run=True).segments] == shown_names
    real.pass_time(2 * MINUTE)
    assert expire(real, table) == ([], shown_names)
    assert expire(real, table) == (shown_names[::-1], [])


def test_the_head_and_a_lease_and_a_snapshot_keep_an_overlay(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots

    first = recall(real, overlays, table, claim, 1)
    real.pass_time(2 * MINUTE)
    assert expire(real, table) == ([], [])  # the head names it, however old it is

    state = real.leases.look(table, holder="t", lease=10 * HOUR)
    second = recall(real, overlays, table, claim, 2)
    snapshots, name = Snapshots(real.database), f"kept_{uuid.uuid4().hex[:8]}"
    snapshots.create(name, [table])
    release(real, table, claim)
    real.pass_time(2 * MINUTE)
    assert expire(real, table) == ([], [])

    snapshots.drop(name)
    assert expire(real, table) == ([], [second.segment])
    real.leases.end(state.lease_id)
    assert expire(real, table) == ([second.segment], [first.segment])


def test_what_an_open_move_has_made_stays_until_it_is_closed(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    move = plan(real, table, claim)
    made = make(overlays, table, move, 1)
    assert expire(real, table) == ([], [])

    real.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="test")
    assert expire(real, table) == ([], [made.segment])


def test_a_revert_names_the_old_generation_again(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    made = recall(real, overlays, table, claim, 1)
    release(real, table, claim)

    assert restore(real, table, 2).overlays == (made,)
    assert restore(real, table, 1).overlays == ()


def test_a_revert_to_rows_that_are_gone_is_refused_by_name(
    real: RealRig, overlays: Overlays, table: TableRow, claim: Claim
):
    made = recall(real, overlays, table, claim, 1)
    release(real, table, claim)
    real.ask(f"DROP TABLE harness_buffer.{made.segment}")

    with pytest.raises(RevertRefused, match=f"the buffer limits it: its recalled rows were in {made.segment}, which"):
        restore(real, table, 2)


def test_a_reader_cannot_change_what_is_recalled(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    made = recall(real, overlays, table, claim, 1)

    with real.readers.session() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(f"DELETE FROM harness_buffer.{made.segment}".encode())


def test_dropping_a_table_drops_its_recalled_rows(real: RealRig, overlays: Overlays, table: TableRow, claim: Claim):
    made = recall(real, overlays, table, claim, 1)
    real.ledger.release(claim)

    ledger = PostgresLedger(real.database, catalog=CATALOG)
    assert made.segment in {s.name for s in ledger.drop_table(table, dry_run=True).segments}
    ledger.drop_table(table)
    assert stored(real, table) == set()
    assert real.ask("SELECT * FROM harness.overlays WHERE table_id = %s", [table.table_id]) == []


# -- requests -----------------------------------------------------------------------------------------------


def test_a_request_is_asked_once_and_done_by_the_boundary_commit(
    real: RealRig, overlays: Overlays, recalls: Recalls, table: TableRow, claim: Claim
):
    asked = recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="t")
    assert recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="somebody else") == asked
    other = recalls.ask(table, OverlayRequest.RECALL, where="id > 4", by="t")
    assert [r.recall_id for r in recalls.open(table)] == [asked.recall_id, other.recall_id]

    move = plan(real, table, claim, recall=asked.recall_id)
    publish(real, table, claim, move, recalled((), make(overlays, table, move, 4)))
    done = recalls.find(table, asked.recall_id)
    [made] = real.ledger.head(table).overlays
    assert (done.state, done.move_id, done.rows, done.bytes) == ("done", move.move_id, 1, made.bytes)
    assert [r.recall_id for r in recalls.open(table)] == [other.recall_id]


def test_a_request_that_a_move_has_taken_up_is_not_cancelled(
    real: RealRig, recalls: Recalls, table: TableRow, claim: Claim
):
    taken = recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="t")
    waiting = recalls.ask(table, OverlayRequest.RELEASE, where=None, by="t")
    move = plan(real, table, claim, recall=taken.recall_id)

    other = real.table(**KEYED)
    elsewhere = recalls.ask(other, OverlayRequest.RECALL, where="id > 3", by="t")
    assert recalls.cancel(table) == [waiting.recall_id]
    assert recalls.cancel(table) == [], "it was given up once"
    assert recalls.open(other) == [elsewhere]
    assert recalls.find(table, waiting.recall_id).state == "cancelled"
    assert recalls.find(table, taken.recall_id).is_open
    recalls.refuse(move, detail="too many")
    recalls.nothing_to_do(move)  # it has ended already
    assert (recalls.find(table, taken.recall_id).state, recalls.find(table, taken.recall_id).detail) == (
        "refused",
        "too many",
    )


def test_a_request_whose_move_was_given_up_may_be_given_up_too(
    real: RealRig, recalls: Recalls, table: TableRow, claim: Claim
):
    asked = recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="t")
    move = plan(real, table, claim, recall=asked.recall_id)
    real.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="test")

    recalls.refuse(move, detail="who was at it does not know yet")
    assert recalls.cancel(table) == [asked.recall_id]


def test_an_attempt_that_a_later_one_replaced_does_not_end_the_request(
    real: RealRig, overlays: Overlays, recalls: Recalls, table: TableRow, claim: Claim
):
    asked = recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="t")
    asleep = plan(real, table, claim, recall=asked.recall_id)
    move = real.ledger.take_attempt(claim, asleep, run_id=None)

    recalls.refuse(asleep, detail="too many")
    recalls.nothing_to_do(asleep)
    assert recalls.find(table, asked.recall_id).is_open

    publish(real, table, claim, move, recalled((), make(overlays, table, move, 4)))
    recalls.refuse(move, detail="it is over")
    done = recalls.find(table, asked.recall_id)
    assert (done.state, done.rows, done.detail) == ("done", 1, None)


def test_a_request_that_was_given_up_is_not_taken_up(real: RealRig, recalls: Recalls, table: TableRow, claim: Claim):
    asked = recalls.ask(table, OverlayRequest.RECALL, where="id > 3", by="t")
    recalls.cancel(table)

    with pytest.raises(MoveClosed, match=f"request {asked.recall_id} was given up or is done; nothing was planned"):
        plan(real, table, claim, recall=asked.recall_id)
    assert real.ledger.open_move(table, Stage.OTREE, shard=0) is None


def test_a_move_keeps_its_request_over_its_attempts(real: RealRig, recalls: Recalls, table: TableRow, claim: Claim):
    asked = recalls.ask(table, OverlayRequest.RELEASE, where=None, by="t")
    move = plan(real, table, claim, recall=asked.recall_id)

    assert real.ledger.take_attempt(claim, move, run_id=None) == replace(move, attempt=2)
