"""Who waits for whom: what is judged under a lock is judged under that lock, and who is late is fenced."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pytest

from harness_pipelines.drivers.postgres import Connection, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.acts.drop import TableInUse
from harness_pipelines.ledgers.postgres.acts.reconcile import Losses
from harness_pipelines.ledgers.postgres.acts.revert import Reverts
from harness_pipelines.ledgers.postgres.boundary import BoundaryFrame
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
from harness_pipelines.ledgers.postgres.requests.recall import Recalls
from harness_pipelines.ports.ledger import MoveDraft, Swap, TableRow
from harness_pipelines.protocol.bounds import BoundaryGap
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest as Asked
from harness_pipelines.protocol.moves import MoveClosed
from harness_pipelines.protocol.schema.schemas import SchemaMoved, SpecMoved
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, RealRig, decoded, fresh_view
from harness_pipelines_tests.contract.test_lock_order import accept_foreign, adopt
from harness_pipelines_tests.contract.test_lock_order import reconcile as go_on
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

OverlayRequest = Callable[[], object]
HELD_UP = "SELECT count(*) AS held_up FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Records 0 to 9 of one partition, of which the second was quarantined."""
    made = real.table(partitions=1)
    real.ingest(made, {0: (0, 10)})
    real.move(made, {0: 0}, {0: 10})
    real.ask(
        'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail) VALUES (%s, 0, 1, %s, %s)',
        [made.table_id, "malformed", "no JSON"],
    )
    return made


def waits(
    real: RealRig,
    act: OverlayRequest,
    *,
    hold: Callable[[Connection], object],
    meanwhile: Callable[[], object] = lambda: None,
) -> list[HarnessError]:
    """*act* is held up by what *hold* holds, and goes on when that is over; returns what it raised.

    While it waits, *meanwhile* is done, in a session of somebody else.
    """
    raised: list[HarnessError] = []

    def run() -> None:
        try:
            act()
        except HarnessError as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with real.owner.transaction() as connection:
        hold(connection)
        pid = connection.info.backend_pid

        thread.start()
        wait_until(lambda: _held_up(real, pid) or not thread.is_alive(), "it waits or is over")
        assert thread.is_alive(), "it did not wait"
        meanwhile()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    return raised


def _held_up(real: RealRig, pid: int) -> bool:
    with real.database.session() as connection:
        found = connection.execute(HELD_UP, [pid]).fetchone()
    return bool(found and found["held_up"])


def locked(statement: str, key: Mapping[str, Any]) -> Callable[[Connection], object]:
    return lambda connection: connection.execute(sql(statement), key)


def look(real: RealRig, table: TableRow) -> OverlayRequest:
    corrections = real.corrections(table)
    return lambda: corrections.look([(0, 1)])


def plan(real: RealRig, table: TableRow) -> OverlayRequest:
    return lambda: Reverts(real.database, table, catalog=CATALOG, log_from={}).plan(1)


def test_a_snapshot_waits_for_who_decides_what_is_removed(real: RealRig, table: TableRow):
    """Else expire removes what a snapshot that it did not see has pinned."""
    name = f"s_{table.table_id}"
    hold = locked("reads/take_trim_lock", {"table_id": table.table_id})
    assert waits(real, lambda: Snapshots(real.database).create(name, [table]), hold=hold) == []
    Snapshots(real.database).drop(name)


@pytest.mark.parametrize("lock", ["ledger/lock_table", "ledger/lock_row"])
def test_a_read_of_a_moment_waits_for_who_may_have_taken_the_time_of_a_version(
    real: RealRig, table: TableRow, lock: str
):
    """Else the version is of before the moment, and the next read of this moment has it."""
    [row] = real.ask("SELECT clock_timestamp() AS now")

    def read() -> None:
        state = Leases(real.readers).look(table, holder="me", lease=HOUR, at=row["now"])
        real.leases.end(state.lease_id)

    assert waits(real, read, hold=locked(lock, {"table_id": table.table_id})) == []


@pytest.mark.parametrize("act", [look, plan])
def test_a_replay_and_a_revert_wait_for_readers_that_are_looking(
    real: RealRig, table: TableRow, act: Callable[[RealRig, TableRow], OverlayRequest]
):
    """Else a lease that is being taken is not among those that may read an old version."""
    key = {"table_id": table.table_id}
    assert waits(real, act(real, table), hold=locked("reads/share_trim_lock", key)) == []


def test_a_revert_does_not_wait_for_ingest(real: RealRig, table: TableRow):
    """Its commits hold the row of their claim and that of their move until they end, one after the other."""
    real.claim(table, Stage.INGEST)

    def build(view: Any, base: str, head: Any, _target: Any, _move_id: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    with real.owner.transaction() as connection:
        for what, how in (("claims", "KEY SHARE"), ("moves", "NO KEY UPDATE")):
            held = f"SELECT FROM harness.{what} WHERE table_id = %s AND stage = 'ingest' FOR {how}"
            connection.execute(held.encode(), [table.table_id])
        thread = threading.Thread(target=lambda: real.ledger.revert(table, to=None, log_from={}, build=build))
        pid = connection.info.backend_pid
        thread.start()
        wait_until(lambda: _held_up(real, pid) or not thread.is_alive(), "it waits or is over")
        assert not _held_up(real, pid)
    thread.join(DEADLINE_S)
    assert real.ledger.head(table).revert_of is not None


def test_what_quarantine_says_is_read_when_who_changes_it_is_done(real: RealRig, table: TableRow):
    def settle(connection: Connection) -> None:
        connection.execute("UPDATE harness.quarantine SET state = 'dropped' WHERE table_id = %s", [table.table_id])

    seen: list[Mapping[tuple[int, int], str]] = []
    corrections = real.corrections(table)
    assert waits(real, lambda: seen.append(corrections.look([(0, 1)]).states), hold=settle) == []
    assert seen == [{(0, 1): "dropped"}]


@pytest.mark.parametrize("make", [go_on, adopt, accept_foreign])
def test_who_claims_while_reconcile_is_about_to_commit_is_fenced(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch, make: Callable[[RealRig, TableRow], OverlayRequest]
):
    """It saw the table as it was before."""
    act, made, end = make(real, table), [], BoundaryFrame._end_claims

    def _end_claims(frame: BoundaryFrame) -> None:  # a claim is taken first
        made.append(real.claim(table))
        end(frame)

    monkeypatch.setattr(BoundaryFrame, "_end_claims", _end_claims)
    act()
    [late] = made
    with pytest.raises(FencedOut):
        real.ledger.renew(late, lease=HOUR)
    with pytest.raises(FencedOut):
        real.plan(table, late, {0: 0}, {0: 10})
    assert real.claim(table).epoch > late.epoch + 1


def test_a_loss_is_accepted_after_a_schema_change_or_before_it(real: RealRig, table: TableRow):
    """The move that stands for the loss has the schema of then."""
    claim = real.claim(table, Stage.INGEST)
    losses = Losses(real.database)
    before = real.contents(table)["moves"]

    def evolve(connection: Connection) -> None:
        connection.execute(sql("evolve/hold_ingest"), {"table_id": table.table_id})

    def held(connection: Connection) -> None:
        evolve(connection)
        connection.execute(sql("evolve/set_schema"), {"table_id": table.table_id, "schema_version": 2})

    [error] = waits(real, lambda: losses.accept(table, claim, partition=0, low=10, high=20), hold=held)
    assert isinstance(error, SchemaMoved)
    assert real.contents(table)["moves"] == before
    real.ask("UPDATE harness.ingest_positions SET schema_version = 1 WHERE table_id = %s", [table.table_id])
    assert waits(real, lambda: losses.accept(table, claim, partition=0, low=10, high=20), hold=evolve) == []
    assert len(real.contents(table)["moves"]) == len(before) + 1
    with pytest.raises(BoundaryGap):
        losses.accept(table, claim, partition=0, low=10, high=20)
    assert len(real.contents(table)["moves"]) == len(before) + 1


def test_who_accepts_a_loss_waits_for_who_takes_its_claim_over(real: RealRig, table: TableRow):
    claim = real.claim(table, Stage.INGEST)
    real.ledger.add_partitions(claim, {1: 10})
    losses = Losses(real.database)

    def hold(connection: Connection) -> None:
        connection.execute("SELECT FROM harness.claims WHERE table_id = %s FOR UPDATE", [table.table_id])

    assert waits(real, lambda: losses.accept(table, claim, partition=0, low=10, high=20), hold=hold) == []
    assert {p: at.buffer_hi for p, at in real.segments.positions(table).items()} == {0: 20, 1: 10}


def test_of_two_who_claim_for_the_first_time_one_has_it(real: RealRig, table: TableRow):
    found: list[Any] = []

    def hold(connection: Connection) -> None:
        connection.execute(
            "INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until) "
            "VALUES (%s, 'compact', 0, gen_random_uuid(), 1, clock_timestamp() + interval '1 hour')",
            [table.table_id],
        )

    def claim() -> None:
        found.append(real.ledger.claim(table, Stage.COMPACT, shard=0, holder=str(uuid.uuid4()), lease=HOUR))

    assert waits(real, claim, hold=hold) == []
    assert found == [None]


def test_who_claims_the_log_for_the_first_time_keeps_the_way_that_it_is_decoded(real: RealRig, table: TableRow):
    """There is no row of a claim to lock yet."""
    other = table.spec.model_copy(update={"key_format": "text"})
    mine = {"table_id": table.table_id, "holder": str(uuid4())}
    real.ask("DELETE FROM harness.claims WHERE table_id = %s", [table.table_id])

    def claim(connection: Connection) -> None:
        connection.execute(
            "INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until) "
            "VALUES (%(table_id)s, 'ingest', 0, %(holder)s, 1, now() + interval '1 minute')",
            mine,
        )

    [error] = waits(real, lambda: real.ledger.update_spec(table, other, decoding=True), hold=claim)
    assert isinstance(error, TableInUse)
    assert real.again(table).spec == table.spec


def test_a_commit_of_ingest_that_sleeps_before_its_end_keeps_the_way_that_it_was_decoded(real: RealRig):
    """Its lease has ended since it looked at its claim. What it took before were records without a row."""
    table = real.table(partitions=1)
    claim = real.claim(table, Stage.INGEST)
    writer = real.writer(table, claim)
    writer.commit(real.segments.open_segment(table), [decoded(table, 0, 0, 1, refused=[0])], confirm=lambda: None)
    writer.close()
    [move] = real.ledger.moves(table)
    real.ledger.release(claim)
    other = table.spec.model_copy(update={"key_format": "text"})
    ranges = '[{"partition": 0, "low": 1, "high": 2}]'

    def commit(connection: Connection) -> None:
        connection.execute(
            "SELECT * FROM harness.advance_ingest(%s, 0, %s, 1, %s, %s, NULL, 1)",
            [table.table_id, ranges, move["move_id"], claim.epoch],
        )

    [error] = waits(real, lambda: real.ledger.update_spec(table, other, decoding=True), hold=commit)
    assert isinstance(error, SpecMoved)
    assert real.again(table).spec == table.spec


def asked_for(real: RealRig) -> tuple[Recalls, TableRow, MoveDraft]:
    """A request to recall rows, and the move that is to answer it."""
    table = real.table(key=["id"], delete="tombstone", views="both")
    recalls = Recalls(real.database)
    draft = MoveDraft(
        stage=Stage.OTREE,
        shard=0,
        lo={},
        hi={},
        base_version=1,
        schema_version=1,
        trigger="request",
        recall=recalls.ask(table, Asked.RECALL, where="id > 3", by="t").recall_id,
    )
    return recalls, table, draft


def test_the_next_attempt_waits_for_one_that_ends_its_request(real: RealRig):
    """Else it finds the request open, which is refused a moment later, and publishes."""
    recalls, table, draft = asked_for(real)
    claim = real.claim(table, Stage.OTREE)
    move = real.ledger.plan_move(claim, draft)

    hold = locked(
        "recalls/end_without_effect", {"move_id": move.move_id, "attempt": 1, "state": "done", "detail": None}
    )
    assert waits(real, lambda: real.ledger.take_attempt(claim, move, run_id=None), hold=hold) == []
    assert recalls.open(table) == []


def test_who_ends_a_request_waits_for_the_next_attempt(real: RealRig):
    """Else it says that nothing is done while the attempt after it publishes."""
    recalls, table, draft = asked_for(real)
    claim = real.claim(table, Stage.OTREE)
    move = real.ledger.plan_move(claim, draft)

    hold = locked("ledger/take_attempt", {"move_id": move.move_id, "attempt": 1, "epoch": claim.epoch, "run_id": None})
    assert waits(real, lambda: recalls.refuse(move, detail="too many"), hold=hold) == []
    assert [one.recall_id for one in recalls.open(table)] == [draft.recall]


def test_a_request_that_is_ended_now_is_not_taken_up(real: RealRig):
    """Else a move answers a request of which its user was told that nobody does."""
    _, table, draft = asked_for(real)
    claim = real.claim(table, Stage.OTREE)
    ended = "UPDATE harness.recalls SET state = 'cancelled', ended_at = clock_timestamp() WHERE recall = %s"

    [refused] = waits(
        real,
        lambda: real.ledger.plan_move(claim, draft),
        hold=lambda connection: connection.execute(ended, [draft.recall]),
    )
    assert isinstance(refused, MoveClosed)
    assert real.ledger.open_move(table, Stage.OTREE, shard=0) is None
