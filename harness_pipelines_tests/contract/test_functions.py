"""The functions of the database, rule by rule: the end of an ingest commit, and the lease of a lazy reader."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig, agrees, decoded
from harness_pipelines_tests.contract.test_locks import waits

EPOCH = 7
ADVANCE = (
    "SELECT * FROM harness.advance_ingest(%(table)s, %(shard)s, %(ranges)s, %(schema)s, %(move)s, %(epoch)s, 'r', 4)"
)


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table()


def advance(real: RealRig, table: TableRow, *ranges: tuple[int, int, int], **words: Any) -> dict[str, Any]:
    told = Jsonb([{"partition": p, "low": low, "high": high, "digest": high} for p, low, high in ranges])
    key = {"table": table.table_id, "shard": 0, "ranges": told, "schema": 1, "move": -1, "epoch": EPOCH}
    return real.ask(ADVANCE, {**key, **words})[0]


def move(real: RealRig, table: TableRow, **words: Any) -> int:
    """An accounting row of partition 0 up to offset 5."""
    made = {"table_id": table.table_id, "stage": "ingest", "shard": 0, "epoch": EPOCH, **words}
    found = real.ask(
        "INSERT INTO harness.moves "
        "(table_id, stage, shard, epoch, lo, hi, schema_version, state, trigger, rows, digest) VALUES ("
        "%(table_id)s, %(stage)s, %(shard)s, %(epoch)s, '{\"0\": 0}', '{\"0\": 5}', 1, 'COMMITTED', 'log', 5, "
        "'{\"0\": 3}') RETURNING move_id",
        made,
    )
    return int(found[0]["move_id"])


def moves(real: RealRig, table: TableRow) -> dict[int, tuple[Any, ...]]:
    found = real.ask("SELECT * FROM harness.moves WHERE table_id = %s", [table.table_id])
    return {one["move_id"]: (one["lo"], one["hi"], one["rows"], one["digest"]) for one in found}


def positions(real: RealRig, table: TableRow) -> dict[int, int]:
    return {partition: at.buffer_hi for partition, at in real.segments.positions(table).items()}


# -- bounds -------------------------------------------------------------------------------------------------


def test_a_bound_advances_where_the_partition_is_and_ends_where_the_range_begins(real: RealRig, table: TableRow):
    assert advance(real, table, (0, 0, 5))["moved"] == "0"
    assert positions(real, table) == {0: 5, 1: 0}
    assert advance(real, table, (0, 0, 7))["moved"] == advance(real, table, (0, 6, 7))["moved"] == ""
    assert advance(real, table, (2, 0, 5))["moved"] == ""
    assert advance(real, table, (0, 5, 7), schema=2)["moved"] == ""
    assert positions(real, table) == {0: 5, 1: 0}
    assert set(advance(real, table, (0, 5, 7), (1, 0, 3))["moved"].split(",")) == {"0", "1"}
    assert positions(real, table) == {0: 7, 1: 3}


# -- the accounting row -------------------------------------------------------------------------------------


def test_what_a_holder_has_begun_it_goes_on_with(real: RealRig, table: TableRow):
    older, begun = move(real, table), move(real, table)
    was = moves(real, table)[older]
    assert advance(real, table, (0, 0, 9), (1, 0, 3), move=begun)["move_id"] == begun
    found = moves(real, table)
    assert found == {older: was, begun: ({"0": 0, "1": 0}, {"0": 9, "1": 3}, 9, '{"0": 12, "1": 3}')}


def test_what_others_have_begun_is_left_alone(real: RealRig, table: TableRow):
    """After a ledger was set back a number may be another move's."""
    other = real.table()
    wrong: list[dict[str, Any]] = [{"stage": "tier"}, {"shard": 1}, {"epoch": EPOCH - 1}, {"table_id": other.table_id}]
    for number, words in enumerate(wrong):
        begun = move(real, table, **words)
        was = moves(real, table) | moves(real, other)
        made = advance(real, table, (0, number, number + 1), move=begun)["move_id"]
        added = {made: ({"0": number}, {"0": number + 1}, 4, f'{{"0": {number + 1}}}')}
        assert moves(real, table) | moves(real, other) == was | added, words


# -- the claim ----------------------------------------------------------------------------------------------


def test_the_claim_that_is_compared_is_that_of_ingest_in_the_shard(real: RealRig, table: TableRow):
    for stage, shard in ((Stage.COMPACT, 1), (Stage.TIER, 1), (Stage.INGEST, 0), (Stage.INGEST, 1)):
        claim = real.ledger.claim(table, stage, shard=shard, holder=str(uuid.uuid4()), lease=HOUR)
    assert claim is not None
    found = advance(real, table, (0, 0, 5), shard=1)
    assert (found["holder"], found["epoch"], found["lease_until"]) == (claim.holder, claim.epoch, claim.lease_until)
    assert real.ask("SELECT shard FROM harness.moves WHERE move_id = %s", [found["move_id"]])[0]["shard"] == 1


def test_an_ingest_commit_waits_for_who_takes_its_claim_over(real: RealRig, table: TableRow):
    """Else both commit."""
    claim = real.claim(table, Stage.INGEST)

    def take(connection: Connection) -> None:
        connection.execute("SELECT FROM harness.claims WHERE table_id = %s FOR UPDATE", [table.table_id])

    assert waits(real, lambda: real.ingest(table, {0: (0, 5)}, claim=claim), hold=take) == []
    assert positions(real, table)[0] == 5


def test_an_ingest_commit_waits_for_a_schema_change_and_sees_it(real: RealRig, table: TableRow):
    claim = real.claim(table, Stage.INGEST)
    writer = real.writer(table, claim)
    segment = real.segments.open_segment(table)

    def evolve(connection: Connection) -> None:
        connection.execute("SELECT pg_advisory_xact_lock(1752330868, %s)", [table.table_id])

    def evolved(connection: Connection) -> None:
        evolve(connection)
        connection.execute(
            "UPDATE harness.ingest_positions SET schema_version = 2 WHERE table_id = %s", [table.table_id]
        )

    def commit() -> None:
        writer.commit(segment, [decoded(table, 0, 0, 5)], confirm=agrees)

    [refused] = waits(real, commit, hold=evolved)
    assert isinstance(refused, SchemaMoved)
    assert positions(real, table)[0] == 0
    real.ask("UPDATE harness.ingest_positions SET schema_version = 1 WHERE table_id = %s", [table.table_id])
    assert waits(real, commit, hold=evolve) == [], "whatever it changes, it is waited for"
    assert positions(real, table)[0] == 5
    writer.close()


# -- the lease of a lazy reader -----------------------------------------------------------------------------


def test_a_lazy_reader_asks_for_its_own_lease_in_every_statement(real: RealRig, table: TableRow):
    ended, alive = (real.leases.look(table, holder="me", lease=lease).lease_id for lease in (MINUTE, HOUR))
    require = "SELECT harness.require_lease(%s) AS alive"
    for one in (ended, alive):
        assert real.ask(require, [one]) == [{"alive": True}]
    real.pass_time(2 * MINUTE)
    assert real.ask(require, [alive]) == [{"alive": True}]
    for one, message in ((ended, "of this read ended at"), (str(uuid.uuid4()), "of this read has ended")):
        with pytest.raises(psycopg.Error, match=message) as failed:
            real.ask(require, [one])
        assert failed.value.sqlstate == "HP001"


def test_a_lease_lasts_a_day_at_most_and_is_not_renewed_when_it_is_over(real: RealRig, table: TableRow):
    day = timedelta(hours=24)

    def ends(lease: str) -> timedelta:
        [found] = real.ask("SELECT until - born AS lasts FROM harness.leases WHERE lease_id = %s", [lease])
        lasts: timedelta = found["lasts"]
        return lasts

    short, long = (real.leases.look(table, holder="me", lease=lease).lease_id for lease in (MINUTE, 2 * day))
    lasts = ends(short)  # counted from the statement, and born when its transaction began
    assert MINUTE <= lasts < 2 * MINUTE
    assert ends(long) == day
    renew, end = "SELECT harness.lease_renew(%s, %s) AS until", "SELECT harness.lease_end(%s) AS was_alive"
    assert real.ask(renew, [long, 3 * day])[0]["until"] is not None
    assert (ends(short), ends(long)) == (lasts, day), "each by itself"
    real.pass_time(2 * MINUTE)
    assert real.ask(renew, [short, HOUR]) == [{"until": None}]
    assert ends(short) == lasts
    assert real.ask(end, [short]) == [{"was_alive": False}]
    assert real.ask(end, [short]) == [{"was_alive": None}]
    assert real.ask(end, [long]) == [{"was_alive": True}]
