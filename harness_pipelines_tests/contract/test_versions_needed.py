"""Expire decides the same by the versions that it needs as by all of them, and needs few however old a pin is."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import sql
from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots
from harness_pipelines.ledgers.postgres.reach import KeptReach
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions, older_needed, pin_of
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.history import PROMOTED
from harness_pipelines.protocol.versions import Version, kept_versions, reached_versions, unanswered
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig

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
    known = KnownVersions(table_id=table_id)
    for _ in range(20):
        leased, bases = ({rng.randrange(1, VERSIONS) for _ in range(rng.randrange(3))} for _ in range(2))
        named = []
        for old in rng.sample(every, rng.randrange(4)):
            at = old.bounds[0]
            cut = replace(at, buffer_hi=rng.randrange(at.stream_hi, at.buffer_hi + 40))
            named.append(replace(old, bounds={0: cut}))
        with real.database.session() as connection:
            known.catch_up(connection, retained_from=RETAINED_FROM)
            needed = older_needed(connection, known, retained_from=RETAINED_FROM, numbers=leased | bases, named=named)
            answers = known.answers(connection, named)
        assert len(needed) <= 2 * (len(leased) + len(bases) + len(named))
        reached = reached_versions(every, retained_from=RETAINED_FROM, leased=leased, bases=bases, snapshots=named)
        assert {v.version for v in reached if v.version < RETAINED_FROM} == needed
        waiting = [*known.waiting, *(v for v in named if answers[pin_of(v)] is None)]
        assert {pin_of(v) for v in waiting} == {pin_of(v) for v in unanswered([*recent, *named], every)}


def test_versions_are_read_once(real: RealRig):
    every = history(real, 3)
    known = KnownVersions(table_id=every[0].table_id)
    with real.database.session() as connection:
        assert len(known.catch_up(connection, retained_from=RETAINED_FROM)) == VERSIONS - RETAINED_FROM + 1
        assert known.catch_up(connection, retained_from=RETAINED_FROM + 10) == []
    assert [v for v in known.waiting if v.version < RETAINED_FROM + 10] == []


@pytest.mark.parametrize("first", [0, 1, 2_950, VERSIONS])
@pytest.mark.parametrize("minutes", [0, 1, 5, 40, 10_000])
def test_what_is_kept_is_found_where_it_begins(real: RealRig, first: int, minutes: int):
    every = history(real, 4)
    key = {"table_id": every[0].table_id, "first": first, "now": NOW, "retention": timedelta(minutes=minutes)}

    found = real.database.rows("upkeep/kept_from", key)

    kept = kept_versions(every[max(first - 1, 0) :], retention=timedelta(minutes=minutes), now=NOW)
    assert found[0]["version"] == kept[0].version


def test_a_run_reads_no_version_that_an_earlier_run_has_read(real: RealRig, monkeypatch: pytest.MonkeyPatch):
    """However many are retained: so the trim lock is held as short with thousands as with a few."""
    every = history(real, 5)
    table = real.again(real.made[-1])
    claim = real.claim(table, Stage.EXPIRE)
    decided = real.upkeep.trim(table, claim, dry_run=True)
    read, given = list[int](), rows.version

    def counting(row: rows.Row) -> Version:
        read.append(row["version"])
        return given(row)

    monkeypatch.setattr(rows, "version", counting)

    assert real.upkeep.trim(table, claim, dry_run=True) == decided
    assert read == [every[-1].version]  # of the versions that were the head lately


def lose_the_head(real: RealRig, table: TableRow) -> None:
    """As when a stand-by was promoted that lacked the last version; a process that knew it goes on."""
    head, key = real.ledger.head(table), {"t": table.table_id}
    before = real.ledger.version(table, head.version - 1)
    assert before is not None
    real.ask("DELETE FROM harness.versions WHERE table_id = %(t)s AND version = %(v)s", {**key, "v": head.version})
    real.ask(
        "UPDATE harness.lake_positions SET stream_hi = %(at)s WHERE table_id = %(t)s",
        {**key, "at": before.stream_hi[0]},
    )
    pointer = {**key, "metadata": before.stream.metadata, "view": table.views["stream"]}
    real.ask("UPDATE public.iceberg_tables SET metadata_location = %(metadata)s WHERE table_name = %(view)s", pointer)
    real.ask("UPDATE harness.tables SET history = 'gone', retained_from = 1 WHERE table_id = %(t)s", key)
    assert TableHistories(real.database).begin(table, event=PROMOTED) is not None


def test_what_a_version_answered_for_that_was_lost_waits_again(real: RealRig):
    """The buffer answers for what a snapshot pins until the stream view that there is has it."""
    table, name = real.table(partitions=1, views="stream", retention={"versions": "1h", "grace": "1s"}), "lost_answer"
    reach = KeptReach(real.database, real.catalog)
    real.ingest(table, {0: (0, 5)})
    first = real.segments.open_segment(table)
    real.segments.rotate(table)
    real.ingest(table, {0: (5, 10)})
    Snapshots(real.database).create(name, [table])
    try:
        real.move(table, {0: 0}, {0: 10})
        claim = real.claim(table, Stage.EXPIRE)
        real.upkeep.trim(real.again(table), claim, dry_run=True)
        real.ask("UPDATE harness.tables SET retained_from = 2 WHERE table_id = %s", [table.table_id])  # lost, too
        assert reach.in_reach(real.again(table)).pinned == {1}, "version 2 answers, and is retained"

        lose_the_head(real, table)
        real.move(table, {0: 0}, {0: 5})
        real.pass_time(HOUR)
        claim = real.claim(table, Stage.EXPIRE)
        decision = real.upkeep.trim(real.again(table), claim, dry_run=True)
        assert decision.floor == {0: 0}
        assert first.name not in {one.name for one in decision.retire}

        answers = real.move(table, {0: 5}, {0: 10})
        real.ingest(table, {0: (10, 20)})
        real.move(table, {0: 10}, {0: 20})
        real.pass_time(2 * HOUR)
        real.upkeep.trim(real.again(table), real.claim(table, Stage.EXPIRE))
        after = real.again(table)
        assert after.retained_from > answers.version
        assert reach.in_reach(after).pinned == {1, answers.version}
    finally:
        Snapshots(real.database).drop(name)
