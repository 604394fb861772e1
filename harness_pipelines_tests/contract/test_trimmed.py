"""What expire keeps beside segments and files: layouts of versions in reach, and moves that somebody works on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.contract.stores_rig import HOUR, MINUTE, RealRig

VERSIONS = """
INSERT INTO harness.versions
SELECT (jsonb_populate_record(v, jsonb_build_object(
    'version', n, 'layout', CASE WHEN n = 8 THEN 6 ELSE n END, 'committed_at', now() - (9 - n) * interval '2 hours'
))).* FROM harness.versions v, generate_series(2, 8) AS n WHERE v.table_id = %(t)s AND v.version = 1
"""
LAYOUTS = """
INSERT INTO harness.layouts (table_id, version, tree, digest, clustered)
SELECT %(t)s, n, '{}', concat(%(name)s::text, n), '{}' FROM generate_series(1, 8) AS n
"""
MOVE = """
INSERT INTO harness.moves
    (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, trigger, planned_at)
VALUES (%(t)s, %(stage)s, %(shard)s, '{}', '{}', %(base)s, 1, %(state)s, 1, 'rows', clock_timestamp() - %(ago)s)
"""


@pytest.fixture
def table(real: RealRig) -> TableRow:
    return real.table(partitions=1, retention={"versions": "1h"})


def trim(real: RealRig, table: TableRow) -> None:
    claim = real.claim(table, Stage.EXPIRE)
    real.upkeep.trim(real.again(table), claim)
    real.ledger.release(claim)


def move(
    real: RealRig, table: TableRow, shard: int, *, state: str = "PLANNED", base: int = 1, minutes: int = 0
) -> None:
    key = {"t": table.table_id, "shard": shard, "stage": "tier", "state": state, "base": base}
    real.ask(MOVE, {**key, "ago": minutes * MINUTE})


def test_layouts_that_a_version_in_reach_names_are_kept(real: RealRig, table: TableRow):
    """The head has that of version 6; 2 is leased, 3 is named, on 4 a move builds. Another table has one called 5."""
    other, key = real.table(partitions=1), {"t": table.table_id}
    real.ask(
        'INSERT INTO harness.versions SELECT (jsonb_populate_record(v, \'{"version": 9, "layout": 5}\')).* '
        "FROM harness.versions v WHERE v.table_id = %s AND v.version = 1",
        [other.table_id],
    )
    real.ask("UPDATE harness.versions SET layout = 1 WHERE table_id = %(t)s", key)  # of version 1, as another's lease
    real.ask(LAYOUTS, {"t": other.table_id, "name": "of another table "})
    real.ask(VERSIONS, key)
    real.ask(LAYOUTS, {**key, "name": "of version "})
    real.ask(
        "INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born) VALUES "
        "(gen_random_uuid(), %(t)s, 2, '{}', 'me', clock_timestamp() + interval '1 hour', clock_timestamp())",
        key,
    )
    name = f"s{uuid.uuid4().hex[:12]}"
    real.ask("INSERT INTO harness.snapshots (name) VALUES (%s)", [name])
    real.ask(
        "INSERT INTO harness.snapshot_tables (name, table_id, version, bounds) VALUES (%s, %s, 3, "
        '\'{"0": {"start": 0, "batch_hi": 0, "stream_hi": 0, "buffer_hi": 0}}\')',
        [name, table.table_id],
    )
    move(real, table, 0, base=4)
    move(real, table, 1, base=7, state="ABANDONED")

    trim(real, table)

    found = real.ask("SELECT version FROM harness.layouts WHERE table_id = %s ORDER BY version", [table.table_id])
    assert real.again(table).retained_from == 8
    assert [row["version"] for row in found] == [2, 3, 4, 6]
    layout = real.ledger.layout(table, real.ledger.head(table))
    assert layout is not None and layout.digest == "of version 6"
    real.ask("DELETE FROM harness.snapshots WHERE name = %s", [name])


def test_orphaned_moves_that_nobody_works_on_for_an_hour_are_abandoned(real: RealRig, table: TableRow):
    """(shard, state, minutes since it was planned, minutes until its claim ends, if there is one, state afterwards)."""
    cases: list[tuple[int, str, int, int | None, str]] = [
        (0, "PLANNED", 61, None, "ABANDONED"),
        (1, "PLANNED", 59, None, "PLANNED"),
        (2, "PLANNED", 61, 9, "PLANNED"),
        (3, "PLANNED", 61, -59, "PLANNED"),
        (4, "PLANNED", 61, -61, "ABANDONED"),
        (5, "QUARANTINED", 61, None, "QUARANTINED"),
        (6, "COMMITTED", 61, None, "COMMITTED"),
    ]
    claim = (
        "INSERT INTO harness.claims (table_id, stage, shard, holder, epoch, lease_until) "
        "VALUES (%s, %s, %s, gen_random_uuid(), 1, clock_timestamp() + %s)"
    )
    for shard, state, minutes, until, _ in cases:
        move(real, table, shard, state=state, minutes=minutes)
        real.ask(claim, [table.table_id, "compact", shard, HOUR])  # of another stage
        if until is not None:
            real.ask(claim, [table.table_id, "tier", shard, until * MINUTE])

    other = real.table(partitions=1)
    move(real, other, 0, minutes=61)

    trim(real, table)

    assert states(real, table) == {shard: after for shard, *_, after in cases}
    assert states(real, other) == {0: "PLANNED"}


def states(real: RealRig, table: TableRow) -> Mapping[int, str]:
    found = real.ask("SELECT shard, state FROM harness.moves WHERE table_id = %s", [table.table_id])
    return {row["shard"]: row["state"] for row in found}
