"""What a ledger takes over from its lake: each move once and as the lake names it, bounds upwards, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.lakes.iceberg.inspect.history import IcebergHistories
from harness_pipelines.lakes.iceberg.write.commits import check_whole
from harness_pipelines.ledgers.postgres.acts.reconcile import Reconciler
from harness_pipelines.ledgers.postgres.views.proof import Proof
from harness_pipelines.ports.ledger import PointerMoved, TableRow
from harness_pipelines.ports.repair import AdoptedMove, Adoption, NewBatch
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.history import HistoryBroken, NamedMove, continue_from
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_lake import moved
from harness_pipelines_tests.contract.test_locks import waits
from harness_pipelines_tests.contract.test_revert import revert

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


# -- an ingest that came between, and a revert after it --------------------------------------------------------


def between_looks(real: RealRig, table: TableRow) -> Adoption:
    """The lake has 20 of each partition, as it was looked at now; the buffer has 10 of the first one."""
    return Adoption(
        pointer=real.ledger.pointer(table, "stream"),
        head=real.ledger.head(table).stream,
        starts={0: 0, 1: 0},
        stream_hi={0: 20, 1: 20},
        buffer_hi={0: 20, 1: 20},
        moves=[
            AdoptedMove(move_id=None, stage="tier", lo={0: 10, 1: 0}, hi={0: 20, 1: 20}, rows=30),
            AdoptedMove(move_id=None, stage="ingest", lo={0: 10}, hi={0: 20}, rows=10),
        ],
    )


def ingested(real: RealRig, table: TableRow) -> int:
    found = real.ask(
        "SELECT sum(rows)::int AS n FROM harness.moves "
        "WHERE table_id = %s AND stage = 'ingest' AND state = 'COMMITTED'",
        [table.table_id],
    )
    count: int = found[0]["n"]
    return count


def test_records_that_ingest_took_after_the_look_are_not_counted_twice(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    looked_at, before = between_looks(real, table), real.ledger.head(table)
    real.ingest(table, {0: (10, 14)})
    with pytest.raises(PointerMoved, match=r"ingest is at offset 14 of partition 0, not at 10; nothing was written"):
        reconciler.adopt(table, looked_at, lost=(), retained_from=1)
    assert (real.ledger.head(table), ingested(real, table)) == (before, 34)

    *tier, missed = looked_at.moves
    again = replace(looked_at, moves=[*tier, replace(missed, lo={0: 14}, rows=6)])
    reconciler.adopt(table, again, lost=(), retained_from=1)
    assert ingested(real, table) == 40
    assert Proof(real.database).seams(table) == []


def test_an_adoption_waits_for_a_commit_of_ingest_and_compares_then(real: RealRig, table: TableRow):
    looked_at, before = between_looks(real, table), states(real, table)
    owner = Database(real.dsn, role=None, size=1)
    reconciler = Reconciler(owner, catalog=CATALOG, check_whole=check_whole)

    def ingest(connection: Connection) -> None:
        key = {"table_id": table.table_id, "partition": 0, "lo": 10, "hi": 14}
        connection.execute(sql("ledger/advance_ingest"), key)

    def adopt() -> None:
        reconciler.adopt(table, looked_at, lost=(), retained_from=1)

    [refused] = waits(real, adopt, hold=ingest)
    owner.close()
    assert isinstance(refused, PointerMoved)
    assert states(real, table) == before


def test_what_ingest_took_after_the_look_of_another_partition_keeps_nothing_back(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    """It had all of it that the lake has, so nothing is counted for it."""
    looked_at = between_looks(real, table)
    real.ingest(table, {1: (20, 25)})
    reconciler.adopt(table, looked_at, lost=(), retained_from=1)
    assert {p.partition: p.bounds.buffer_hi for p in real.ledger.positions(table)} == {0: 20, 1: 25}
    assert ingested(real, table) == 45


def undone(real: RealRig, moves: Sequence[int]) -> list[bool]:
    return [row_of(real, move_id)["undone_by"] is not None for move_id in moves]


def test_a_revert_takes_back_each_move_of_a_version_that_took_several_over(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    """One of them was open, and the lake says that it took effect."""
    claim = real.claim(table)
    was_open = real.plan(table, claim, {1: 0}, {1: 5})
    real.ledger.release(claim)
    before, own = real.ledger.head(table), [m for m in states(real, table) if m < was_open.move_id]
    nonce = str(row_of(real, was_open.move_id)["nonce"])
    adoption = Adoption(
        pointer=real.ledger.pointer(table, "stream"),
        head=before.stream,
        starts={0: 0, 1: 0},
        stream_hi={0: 10, 1: 20},
        buffer_hi={0: 10, 1: 20},
        moves=[
            AdoptedMove(move_id=was_open.move_id, stage="tier", lo={1: 0}, hi={1: 5}, rows=5, nonce=nonce),
            *(AdoptedMove(move_id=None, stage="tier", lo={1: n}, hi={1: n + 5}, rows=5) for n in (5, 10, 15)),
        ],
    )
    made = reconciler.adopt(table, adoption, lost=(), retained_from=1)
    adopted = [m for m in sorted(states(real, table)) if m >= was_open.move_id]
    assert len(adopted) == 4

    revert(real, table, before.version)
    assert undone(real, adopted) == [True, True, True, True]
    again = real.move(table, {1: 0}, {1: 20})
    assert Proof(real.database).seams(table) == []

    revert(real, table, made.version)
    assert again.move_id is not None
    assert undone(real, [*own, *adopted]) == [False] * (len(own) + 4)
    assert undone(real, [again.move_id]) == [True]
    assert Proof(real.database).seams(table) == []


def test_neither_ledger_nor_lake_has_a_bound_of_the_pseudo_partition_where_rows_of_another_writer_were_accepted(
    real: RealRig, table: TableRow, reconciler: Reconciler
):
    """So no read of an older version asks for one, nor does a ledger that takes the lake over."""
    real.stage_files(table, "main", {0: [100, 101]}, move=None)
    head, pointer = real.ledger.head(table), real.ledger.pointer(table, "stream")
    found = real._lake.foreign_files(table, pointer=pointer, published=head.stream.metadata)
    assert found is not None
    move = AdoptedMove(move_id=None, stage="tier", rows=2, lo={FOREIGN_PARTITION: 0}, hi={FOREIGN_PARTITION: 2})
    number = reconciler.reserve(table, move, on=head)
    view = found.replaced(move_id=number, nonce=reconciler.nonce_of(number), first=0, schema_version=1)
    made = reconciler.accept(table, pointer=pointer, stream=view, on=head, move=replace(move, move_id=number))

    assert real.live(table, made.stream.metadata)[FOREIGN_PARTITION, 0, 1] == 1
    assert made.bounds == head.bounds
    for name in ("ingest_positions", "lake_positions"):
        rows = real.ask(f"SELECT partition FROM harness.{name} WHERE table_id = %s", [table.table_id])
        assert {row["partition"] for row in rows} == {0, 1}, name
    histories = IcebergHistories(real.catalog, warehouse=real._warehouse)
    state = histories.of(table, made.stream.metadata, view="stream").at(made.stream.metadata)
    after = continue_from({0: 0, 1: 0}, state.moves, state.extents)
    assert (set(state.extents), after.stream_hi) == ({0}, {0: 10, 1: 0})


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
