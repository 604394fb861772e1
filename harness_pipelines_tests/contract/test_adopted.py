"""What a ledger takes over from its lake: each move once and as the lake names it, bounds upwards, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from harness_pipelines.ledgers.postgres.acts.reconcile import Reconciler
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import AdoptedMove, Adoption, NewBatch
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.history import HistoryBroken, NamedMove
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_lake import moved

OTHER_NONCE = str(uuid.uuid4())


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Two partitions; [0, 10) of the first is in the lake, the buffer has it to 10 and the second one to 20."""
    made = real.table(partitions=2, files=True)
    real.ingest(made, {0: (0, 10), 1: (0, 20)})
    claim = real.claim(made)
    moved(real, made, claim, 0, 10)
    real.ledger.release(claim)
    return made


@pytest.fixture
def reconciler(real: RealRig) -> Reconciler:
    return real.reconciler


def planned(real: RealRig, table: TableRow) -> AdoptedMove:
    """An open move of [10, 20) of partition 0, as the lake names it."""
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 10}, {0: 20})
    real.ledger.release(claim)
    nonce = str(row_of(real, move.move_id)["nonce"])
    return AdoptedMove(move_id=move.move_id, stage="tier", lo={0: 10}, hi={0: 20}, rows=3, bytes=30, nonce=nonce)


def row_of(real: RealRig, move_id: int) -> dict[str, Any]:
    return real.ask("SELECT * FROM harness.moves WHERE move_id = %s", [move_id])[0]


def states(real: RealRig, table: TableRow) -> Mapping[int, str]:
    found = real.ask("SELECT move_id, state FROM harness.moves WHERE table_id = %s", [table.table_id])
    return {row["move_id"]: row["state"] for row in found}


def take_over(real: RealRig, table: TableRow, move: AdoptedMove) -> int:
    with real.owner.transaction() as connection:
        return Reconciler._insert_move(connection, table, move, base=1)


# -- moves --------------------------------------------------------------------------------------------------

SAME: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "as it is": ("state = state", {}),
    "made before there were nonces": ("nonce = NULL", {}),
    "named before there were nonces": ("state = state", {"nonce": ""}),
    "rows of another writer that were not accepted yet": ("state = 'ABANDONED', trigger = 'accept-foreign'", {}),
}
ANOTHER: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "of another stage": ("state = state", {"stage": "otree"}),
    "that begins elsewhere": ("state = state", {"lo": {0: 11}}),
    "that ends elsewhere": ("state = state", {"hi": {0: 21}}),
    "that took effect": ("state = 'COMMITTED', committed_at = planned_at", {}),
    "that was given up": ("state = 'ABANDONED'", {}),
}


@pytest.mark.parametrize("case", SAME)
def test_an_open_move_that_the_lake_names_took_effect(real: RealRig, table: TableRow, case: str):
    change, named = SAME[case]
    move = planned(real, table)
    assert move.move_id is not None
    real.ask(f"UPDATE harness.moves SET {change} WHERE move_id = %s", [move.move_id])
    assert take_over(real, table, replace(move, **named)) == move.move_id
    row = row_of(real, move.move_id)
    assert (row["state"], row["rows"], row["bytes"], row["error"]) == ("COMMITTED", 3, 30, None)


@pytest.mark.parametrize("case", ANOTHER)
def test_a_number_that_the_ledger_has_used_otherwise_stops_it(real: RealRig, table: TableRow, case: str):
    change, named = ANOTHER[case]
    move = planned(real, table)
    assert move.move_id is not None
    real.ask(f"UPDATE harness.moves SET {change} WHERE move_id = %s", [move.move_id])
    was = row_of(real, move.move_id)
    with pytest.raises(HistoryBroken, match=f"has another move by that number|names move {move.move_id}"):
        take_over(real, table, replace(move, **named))
    assert row_of(real, move.move_id) == was


def test_a_number_that_another_table_has_used_stops_it(real: RealRig, table: TableRow):
    move, other = planned(real, table), real.table(partitions=1)
    assert move.move_id is not None
    was = row_of(real, move.move_id)
    with pytest.raises(HistoryBroken):
        take_over(real, other, move)
    assert row_of(real, move.move_id) == was


def test_a_move_whose_number_was_given_again_gets_another_one(real: RealRig, table: TableRow):
    move = planned(real, table)
    assert move.move_id is not None
    was = row_of(real, move.move_id)
    given = take_over(real, table, replace(move, nonce=OTHER_NONCE))
    assert given > move.move_id
    assert (str(row_of(real, given)["nonce"]), row_of(real, move.move_id)) == (OTHER_NONCE, was)


# -- bounds -------------------------------------------------------------------------------------------------


def test_bounds_go_up_to_what_the_lake_has_and_what_the_buffer_never_had_is_not_reverted_to_it(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    head, was = real.ledger.head(table), states(real, table)
    open_move = planned(real, table).move_id
    assert open_move is not None
    adoption = Adoption(
        pointer=real.ledger.pointer(table, "stream"),
        head=head.stream,
        starts={0: 0, 1: 0},
        stream_hi={0: 30, 1: 5},
        buffer_hi={0: 40, 1: 20},
    )
    made = reconciler.adopt(table, adoption, lost=(), retained_from=1)
    positions = real.ask(
        "SELECT stream_hi, trim_floor, buffer_hi FROM harness.lake_positions JOIN harness.ingest_positions "
        "USING (table_id, partition) WHERE table_id = %s ORDER BY partition",
        [table.table_id],
    )
    assert [tuple(row.values()) for row in positions] == [(30, 30, 40), (5, 0, 20)]
    assert (made.version, made.stream_hi, made.buffer_hi) == (head.version + 1, {0: 30, 1: 5}, {0: 40, 1: 20})
    assert states(real, table) == {**was, open_move: "ABANDONED"}
    assert real.outbox(table)[-1][1] == "reconciled"


def test_the_batch_view_that_is_taken_over_says_how_far_it_reaches_in_each_partition(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    head = real.ledger.head(table)
    assert head.batch is not None
    pointer = real.ledger.pointer(table, "batch")
    for reaches in ({0: 10, 1: 0}, {0: 7, 1: 0}):
        batch = NewBatch(pointer=pointer, view=head.batch, batch_hi=reaches, keeps_layout=False)
        reconciler.go_on(table, lost=(), retained_from=0, batch=batch)
        assert {p.partition: p.bounds.batch_hi for p in real.ledger.positions(table)} == reaches
    assert real.ledger.pointer(table, "batch") == pointer


# -- what is over -------------------------------------------------------------------------------------------


def test_moves_that_are_lost_are_noted_once_however_often_they_are_found(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    lost = [NamedMove(move_id=10**6, nonce=OTHER_NONCE)]
    for _ in range(2):
        reconciler.go_on(table, lost=lost, retained_from=0)
    found = real.ask("SELECT move_id, nonce FROM harness.lost_moves WHERE table_id = %s", [table.table_id])
    assert [tuple(row.values()) for row in found] == [(10**6, OTHER_NONCE)]


def test_leases_that_are_over_or_too_far_ahead_go_and_those_that_live_stay(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    kept, *over = (str(uuid.uuid4()) for _ in range(3))
    for lease, born, until in ((kept, "-1", "1"), (over[0], "-3", "-2"), (over[1], "24", "47")):
        real.ask(
            "INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born) VALUES (%s, %s, 1, "
            "'{}', 'me', clock_timestamp() + %s * interval '1 hour', clock_timestamp() + %s * interval '1 hour')",
            [lease, table.table_id, until, born],
        )
    found = reconciler.leases_over(table)
    assert [(row["lease_id"], row["ahead"]) for row in found] == [(over[0], False), (over[1], True)]
    assert reconciler.end_leases(table) == 2
    left = real.ask("SELECT lease_id::text AS lease_id FROM harness.leases WHERE table_id = %s", [table.table_id])
    assert [row["lease_id"] for row in left] == [kept]


def test_claims_that_a_clock_ahead_has_given_end_and_others_go_on(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    real.claim(table, lease=HOUR)
    kept = real.claim(table, Stage.EXPIRE, lease=MINUTE)
    assert reconciler.end_claims_ahead(table) == 1
    real.claim(table)
    real.ledger.renew(kept, lease=MINUTE)


def test_what_was_accepted_of_other_writers_is_listed_by_its_place(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    other = real.table(partitions=1)
    for owner, low, state, trigger in (
        (table, 5, "COMMITTED", "accept-foreign"),
        (table, 0, "COMMITTED", "accept-foreign"),
        (table, 9, "ABANDONED", "accept-foreign"),
        (table, 9, "COMMITTED", "rows"),
        (other, 3, "COMMITTED", "accept-foreign"),
    ):
        key = str(FOREIGN_PARTITION)
        real.ask(
            "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows) "
            "VALUES (%s, 'tier', 0, jsonb_build_object(%s::text, %s::int), jsonb_build_object(%s::text, %s::int), 1, "
            "%s, 0, %s, 1)",
            [owner.table_id, key, low, key, low + 1, state, trigger],
        )
    assert [(row["low"], row["high"]) for row in reconciler.accepted(table)] == [(0, 1), (5, 6)]
