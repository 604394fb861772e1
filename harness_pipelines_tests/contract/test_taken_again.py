"""`buffer: none`: a move takes records that were quarantined once: which of them it settles, and who refused them."""

from __future__ import annotations

from typing import Any

import pytest

from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines_tests.contract.stores_rig import RealRig

MOVED = """
INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger)
VALUES (%s, %s, 0, jsonb_build_object('0', %s::int), jsonb_build_object('0', %s::int), 1, %s, 1, 'rows')
RETURNING move_id
"""
ASIDE = """
INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, state, settled_by)
VALUES (%s, %s, %s, 'malformed', 'no JSON', %s, %s)
"""


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """[0, 10) of both partitions was taken by a move."""
    made = real.table(buffer="none")
    take(real, made, {0: 0, 1: 0}, {0: 10, 1: 10})
    return made


def take(real: RealRig, table: TableRow, lo: dict[int, int], hi: dict[int, int], *, refused: Any = ()) -> int:
    claim = real.claim(table)
    move = real.plan(table, claim, lo, hi)
    real.publish(table, claim, move, ingest_to=hi, refused=refused)
    real.ledger.release(claim)
    return move.move_id


def moved(real: RealRig, table: TableRow, low: int, high: int, *, stage: str = "tier", state: str = "COMMITTED") -> int:
    return int(real.ask(MOVED, [table.table_id, stage, low, high, state])[0]["move_id"])


def aside(real: RealRig, table: TableRow) -> dict[tuple[int, int], tuple[str, str | None, list[int] | None]]:
    found = real.ask("SELECT * FROM harness.quarantine WHERE table_id = %s", [table.table_id])
    return {(row["partition"], row["offset"]): (row["state"], row["settled_by"], row["refused_by"]) for row in found}


def test_a_move_settles_what_it_took_and_says_which_moves_had_refused_it(real: RealRig, table: TableRow):
    first, second = moved(real, table, 10, 14), moved(real, table, 15, 20)
    moved(real, table, 0, 100, stage="compact")
    moved(real, table, 0, 100, state="ABANDONED")
    kept = {(0, 9): "held", (0, 12): "replayed", (0, 20): "held", (1, 15): "held"}
    taken = {(0, 10): [first], (0, 13): [first], (0, 14): [], (0, 15): [second], (0, 19): [second]}
    for at, state in {**kept, **dict.fromkeys(taken, "held"), (0, 13): "dropped"}.items():
        real.ask(ASIDE, [table.table_id, *at, state, "me"])
    bad = RefusedRecord(partition=0, offset=16, reason="malformed", detail="no JSON", key=None, value=b"{")

    move = take(real, table, {0: 10}, {0: 20}, refused=[bad])

    assert aside(real, table) == {
        **{at: (state, "me", None) for at, state in kept.items()},
        **{at: ("replayed", "tier", by) for at, by in taken.items()},
        (0, 16): ("held", None, [move]),
    }


def test_what_was_ingested_goes_up_in_the_partitions_of_the_move_alone(real: RealRig, table: TableRow):
    take(real, table, {0: 10}, {0: 30})
    # a revert gave [20, 30) back to the log
    real.ask("UPDATE harness.lake_positions SET stream_hi = 20 WHERE table_id = %s AND partition = 0", [table.table_id])
    real.ask(
        "UPDATE harness.versions SET bounds = jsonb_set(bounds, '{0,stream_hi}', '20') WHERE table_id = %s",
        [table.table_id],
    )
    take(real, table, {0: 20}, {0: 25})
    assert {p: at.buffer_hi for p, at in real.segments.positions(table).items()} == {0: 30, 1: 10}
