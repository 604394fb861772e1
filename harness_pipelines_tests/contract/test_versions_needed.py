"""Expire decides the same by the versions that it needs as by all of them, and needs few however old a pin is."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres.views.versions_needed import versions_needed
from harness_pipelines.ports import rows
from harness_pipelines.protocol.versions import Version, reached_versions, trim_floor
from harness_pipelines_tests.contract.stores_rig import RealRig

VERSIONS, RETAINED_FROM = 3_000, 2_950
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def history(real: RealRig, seed: int) -> list[Version]:
    """A table of many versions: the stream view comes long after the buffer, and falls back now and then."""
    table, rng = real.table(partitions=1), random.Random(seed)
    buffer_hi, stream_hi, given = 0, 0, []
    for number in range(1, VERSIONS + 1):
        buffer_hi += rng.randrange(0, 5)
        if rng.random() < 0.01:
            stream_hi = buffer_hi
        elif rng.random() < 0.002:
            stream_hi = max(stream_hi - 50, 0)  # a revert
        bounds = {"0": {"start": 0, "batch_hi": 0, "stream_hi": stream_hi, "buffer_hi": buffer_hi}}
        given.append((table.table_id, number, Jsonb(bounds), NOW - timedelta(minutes=VERSIONS - number)))
    with real.database.transaction() as connection, connection.cursor() as cursor:
        cursor.execute("SET LOCAL ROLE NONE")  # history is given once: only the owner may plant another one
        cursor.execute("DELETE FROM harness.versions WHERE table_id = %s", [table.table_id])
        cursor.executemany(
            "INSERT INTO harness.versions (table_id, version, stream_metadata, stream_snapshot, schema_version, "
            "bounds, committed_at) VALUES (%s, %s, 'm', 1, 1, %s, %s)",
            given,
        )
        found = cursor.execute(sql("ledger/versions"), {"table_id": table.table_id, "first": 0}).fetchall()
    return [rows.version(row) for row in found]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_decision_by_what_is_needed_is_that_by_all(real: RealRig, seed: int):
    every, rng = history(real, seed), random.Random(seed)
    table_id, recent = every[0].table_id, [v for v in every if v.version >= RETAINED_FROM]
    for _ in range(20):
        leased, bases = ({rng.randrange(1, VERSIONS) for _ in range(rng.randrange(3))} for _ in range(2))
        named = []
        for old in rng.sample(every, rng.randrange(4)):
            at = old.bounds[0]
            cut = replace(at, buffer_hi=rng.randrange(at.stream_hi, at.buffer_hi + 40))
            named.append(replace(old, bounds={0: cut}))
        with real.database.session() as connection:
            known = versions_needed(
                connection, table_id, retained_from=RETAINED_FROM, numbers=leased | bases, named=named
            )
        assert len(known) <= len(recent) + 2 * (len(leased) + len(bases) + len(named))
        reached = [
            reached_versions(some, retained_from=RETAINED_FROM, leased=leased, bases=bases, snapshots=named)
            for some in (every, known)
        ]
        assert reached[0] == reached[1]
        held = [v for v in every if v.version in leased]
        floors = [
            trim_floor(some, held, retained=[*recent, *named], grace=timedelta(minutes=10), now=NOW, answers=answers)
            for some, answers in ((every, None), (recent, known))
        ]
        assert floors[0] == floors[1]
