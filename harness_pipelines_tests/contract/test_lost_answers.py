"""Answers of Postgres that are lost: its outcome is asked for, and an interruption is not taken for an outage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import psycopg
import pytest

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import (
    Connection,
    Database,
    PostgresUnreachable,
    RowGone,
)
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.ledgers.postgres import boundary
from harness_pipelines.ledgers.postgres.boundary import OUTCOME_CHECKS, CommitLost
from harness_pipelines.ledgers.postgres.ledger import PostgresLedger
from harness_pipelines.ports.ledger import Boundary, Swap
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig, fresh_view


class AwayDatabase(Database):
    """Away for some transactions after the answer of a publish was lost."""

    away = 0

    @contextmanager
    def transaction(self, *, table: str | None = None) -> Iterator[Any]:
        if self.away:
            self.away -= 1
            raise PostgresUnreachable("Postgres is not answering")
        with super().transaction(table=table) as connection:
            yield connection

    def lose_answer(self, *, kept: bool, away: int) -> None:
        """Of the next COMMIT; it took effect if it is *kept*."""
        commit = Connection.commit

        def once(connection: Connection) -> None:
            armed.stop()
            commit(connection) if kept else connection.rollback()
            self.away = away
            raise psycopg.OperationalError("server closed the connection unexpectedly")

        armed = patch.object(Connection, "commit", once)
        armed.start()


@pytest.fixture
def away(real: RealRig, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwayDatabase]:
    monkeypatch.setattr(boundary, "PAUSE_S", 0.0)
    made = AwayDatabase(real.dsn)
    yield made
    patch.stopall()
    faults.disarm()
    made.close()


@pytest.mark.parametrize("kept", [True, False], ids=["took effect", "was lost"])
def test_postgres_that_goes_away_with_a_commit_is_asked_until_it_is_back(real: RealRig, away: AwayDatabase, kept: bool):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    ledger = PostgresLedger(away, catalog=CATALOG)
    faults.arm("tier.in_transaction", lambda: away.lose_answer(kept=kept, away=OUTCOME_CHECKS - 1))
    boundary = Boundary(claim=claim, move=move, rows=7, bytes=70)

    if kept:
        assert ledger.publish(table, boundary, real.build(table)).version == 2
    else:
        with pytest.raises(CommitLost, match="did not take effect: try again"):
            ledger.publish(table, boundary, real.build(table))
    assert away.away == 0
    assert real.ledger.head(table).version == (2 if kept else 1)


@pytest.mark.parametrize("kept", [True, False], ids=["took effect", "was lost"])
def test_the_outcome_of_a_commit_stays_unknown_while_postgres_stays_away(real: RealRig, away: AwayDatabase, kept: bool):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    real.move(table, {0: 0}, {0: 10})
    ledger = PostgresLedger(away, catalog=CATALOG)
    faults.arm("revert.in_transaction", lambda: away.lose_answer(kept=kept, away=OUTCOME_CHECKS))

    def build(view: ViewName, base: str, head: Version, _target: Version, _move: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    with pytest.raises(OutcomeUnknown, match=f"{table.name}: COMMIT was sent.*harness status {table.name}"):
        ledger.revert(table, to=None, log_from={}, build=build)
    assert real.ledger.head(table).version == (3 if kept else 2)


def test_a_move_that_another_server_gave_the_same_number_is_not_what_was_lost(real: RealRig, away: AwayDatabase):
    """A stand-by was promoted that lacked the act's move, and a worker published there before the act asks."""
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    real.move(table, {0: 0}, {0: 10})
    commit = Connection.commit

    def fail_over(connection: Connection) -> None:
        armed.stop()
        connection.rollback()
        real.ask(
            "UPDATE harness.moves SET stage = 'tier', state = 'COMMITTED', nonce = gen_random_uuid() "
            "WHERE table_id = %s AND stage = 'revert'",
            [table.table_id],
        )
        real.ask(
            "INSERT INTO harness.versions (table_id, version, stream_metadata, stream_snapshot, batch_metadata, "
            "batch_snapshot, schema_version, bounds, move_id, committed_at) "
            "SELECT table_id, version + 1, stream_metadata, stream_snapshot, batch_metadata, batch_snapshot, "
            "schema_version, bounds, (SELECT max(move_id) FROM harness.moves m WHERE m.table_id = v.table_id), now() "
            "FROM harness.versions v WHERE table_id = %s AND version = 2",
            [table.table_id],
        )
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    armed = patch.object(Connection, "commit", fail_over)

    def lose() -> None:
        armed.start()

    faults.arm("revert.in_transaction", lose)

    def build(view: ViewName, base: str, head: Version, _target: Version, _move: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    with pytest.raises(CommitLost, match="did not take effect: try again"):
        PostgresLedger(away, catalog=CATALOG).revert(table, to=None, log_from={}, build=build)
    assert Connection.commit is commit
    assert real.ledger.head(table).revert_of is None


def test_an_act_writes_nothing_where_another_server_gave_its_number_to_another_move(real: RealRig, away: AwayDatabase):
    table = real.table()
    real.ingest(table, {0: (0, 10)})
    real.move(table, {0: 0}, {0: 10})
    given = (
        "UPDATE harness.moves SET stage = 'tier', nonce = gen_random_uuid() WHERE table_id = %s AND stage = 'revert'"
    )

    def fail_over() -> None:
        real.ask(given, [table.table_id])

    faults.arm("revert.before_lock", fail_over)

    def build(view: ViewName, base: str, head: Version, _target: Version, _move: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())

    with pytest.raises(RowGone, match="a stand-by was promoted that lacked it"):
        PostgresLedger(away, catalog=CATALOG).revert(table, to=None, log_from={}, build=build)
    assert real.ledger.head(table).version == 2
    assert real.ledger.moves(table, stage=Stage.TIER)[0]["state"] == "ABANDONED"


def test_a_query_whose_commit_is_lost_has_found_postgres_away(real: RealRig, away: AwayDatabase):
    def now() -> list[Any]:
        with away.reading() as connection:
            return connection.execute("SELECT clock_timestamp()").fetchall()

    assert now()
    away.lose_answer(kept=True, away=0)

    with pytest.raises(PostgresUnreachable, match="its answer was lost.*nothing was written"):
        now()
    assert now()


@pytest.mark.parametrize("use", ["transaction", "at_once"])
def test_a_ctrl_c_between_a_statement_and_its_answer_is_not_taken_for_postgres_being_away(real: RealRig, use: str):
    with pytest.raises(KeyboardInterrupt), getattr(real.database, use)() as connection:
        connection.pgconn.send_query(b"SELECT pg_sleep(30)")
        raise KeyboardInterrupt
    assert real.database.rows("reads/now")


def test_a_session_that_comes_back_in_autocommit_mode_is_used_by_nobody(real: RealRig):
    """Its next transaction would be none: each statement would be there for ever, whatever came after it."""
    database = Database(real.dsn, size=1)
    try:
        with database.session() as connection:
            connection.autocommit = True
        with database.transaction() as another:
            assert another is not connection and not another.autocommit
            assert connection.closed
    finally:
        database.close()
