"""A ledger that ends: old history is folded, and every sum, seam and proof comes out as before."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from psycopg.types.json import Jsonb

from harness_pipelines import faults
from harness_pipelines.audit.fsck import batch_view, buffer, ledger
from harness_pipelines.audit.fsck.rule import RULES, Look
from harness_pipelines.drivers.postgres import sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.events import EventsFolded, Outbox
from harness_pipelines.ledgers.postgres.history.fold import HistoryFold, HistoryNeeded
from harness_pipelines.ledgers.postgres.history.numbers import TableHistories
from harness_pipelines.ledgers.postgres.notify import News
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ledgers.postgres.views.lineage import Lineage
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import Folded
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.lineage import RecordAsked
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.planted import plant

WITH_RULES = (batch_view, buffer, ledger)  #: whose import registers the rules
HOURLY = timedelta(hours=1)
LEASE = (
    "INSERT INTO harness.leases (lease_id, table_id, version, bounds, holder, until, born) "
    "SELECT gen_random_uuid(), %s, 500, '{}', 'r', clock_timestamp() + interval '1 hour', clock_timestamp()"
)
STEPS = 2_000  #: 83 days, of which 30 are kept


def planted(real: RealRig, steps: int = STEPS, **words: Any) -> TableRow:
    table = real.table(partitions=2)
    with real.owner.transaction() as connection:
        plant(connection, table.table_id, steps=steps, gap=HOURLY, **words)
    return table


def fold(real: RealRig, table: TableRow, **words: Any) -> Folded:
    claim = real.claim(table, Stage.EXPIRE)
    whole = Folded()
    try:
        while (done := HistoryFold(real.database, **words).fold(table, claim)).moves:
            whole = whole.plus(done)
    finally:
        real.ledger.release(claim)
    return whole


def answers(real: RealRig, table: TableRow) -> dict[str, Any]:
    """What audits, fsck and status ask of the ledger's history."""
    key = {"table_id": table.table_id, "tables": [table.table_id], "limit": 20}
    taken = real.ask(sql("audit/taken"), {**key, "stage": "ingest"})
    digests: dict[str, int] = {}
    for row in taken:
        for partition, digest in row["digests"].items():
            digests[partition] = (digests.get(partition, 0) + int(digest)) % 2**64
    return {
        "seams": real.ask(sql("checks/seams"), key),
        "moved": real.ask(sql("checks/moved_rows"), key),
        "counts": real.ask(sql("overview/counts"), key),
        "rows": sum(row["rows"] for row in taken),
        "from": min(int(row["lo"]["0"]) for row in taken),
        "to": max(int(row["hi"]["1"]) for row in taken),
        "digests": digests,
        "gaps": real.ask(sql("fsck/outbox_gaps"), key),
        "last": real.ask(sql("fsck/outbox"), key)[0]["last"],
        "folders": real.ask(sql("upkeep/folders"), key),
        "last move": real.ask(sql("checks/last_committed"), {**key, "stage": "tier"}),
    }


def test_a_folded_ledger_answers_as_the_unfolded_one(real: RealRig):
    table = planted(real)
    before = answers(real, table)

    done = fold(real, table)

    assert answers(real, table) == before
    assert done.versions > 1_000
    # All of the last 30 days are there, at a step an hour.
    assert kept(real, table) == {1, *range(STEPS - 30 * 24 + 2, STEPS + 2)}
    left = real.ask("SELECT stage FROM harness.moves WHERE table_id = %s", [table.table_id])
    assert Counter(row["stage"] for row in left) == {"ingest": 30 * 24, "tier": 30 * 24}
    assert real.ask("SELECT min(seq) AS n FROM harness.outbox WHERE table_id = %s", [table.table_id]) == [
        {"n": STEPS - 30 * 24 + 2}
    ]
    assert fold(real, table, at_least=0) == Folded()
    checkpoints = real.ask("SELECT * FROM harness.checkpoints WHERE table_id = %s", [table.table_id])
    assert {(one["stage"], one["kind"]) for one in checkpoints} == {("ingest", "in effect"), ("tier", "in effect")}
    assert len(checkpoints) == 2


def objections(real: RealRig, table: TableRow) -> list[str]:
    """What fsck's rules about the ledger alone object to."""
    look = Look(books=TableStates(real.readers, CATALOG).books(table.name), surveys=None, log=None)
    rules = [rule for rule in RULES if not rule.needs]
    return [f"{rule.invariant} {one.detail}" for rule in rules for one in rule.check(look) if not one.hint]


def test_fsck_finds_no_fault_in_a_folded_ledger(real: RealRig):
    table = planted(real)
    before = objections(real, table)
    fold(real, table)

    assert objections(real, table) == before


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE harness.checkpoints SET hi = '{\"0\": 7, \"1\": 7}' WHERE table_id = %s AND stage = 'tier'", "S6"),
        ("UPDATE harness.checkpoints SET rows = rows + 1 WHERE table_id = %s AND stage = 'ingest'", "S13"),
        ("DELETE FROM harness.checkpoints WHERE table_id = %s AND stage = 'ingest'", "S6"),
        ("UPDATE harness.folds SET versions = versions - 1 WHERE table_id = %s", "S39"),
        ("UPDATE harness.folds SET event = event - 1 WHERE table_id = %s", "S33"),
    ],
)
def test_fsck_names_a_checkpoint_that_was_changed_by_hand(real: RealRig, statement: str, found: str):
    table = planted(real)
    fold(real, table)
    before = objections(real, table)
    real.ask(statement, [table.table_id])

    assert any(one.startswith(found) for one in objections(real, table) if one not in before)


def test_a_history_that_is_planted_as_folded_is_what_expire_leaves(real: RealRig):
    whole = planted(real)
    done = fold(real, whole)
    as_folded = planted(real, folded=done.versions)

    def left(table: TableRow) -> list[Any]:
        numbers = "c.first_move - min(m.move_id) AS first, c.last_move - min(m.move_id) AS last"
        asked = (
            f"SELECT c.stage, c.kind, c.lo, c.hi, c.rows, c.digest, c.moves, {numbers} FROM harness.checkpoints c "
            "JOIN harness.moves m USING (table_id) WHERE c.table_id = %(t)s GROUP BY c.checkpoint ORDER BY c.stage",
            "SELECT version, versions, event, events, stream_hi FROM harness.folds WHERE table_id = %(t)s",
            "SELECT count(*) AS n, min(version), max(version) FROM harness.versions WHERE table_id = %(t)s",
            "SELECT count(*) AS n, min(seq), max(seq) FROM harness.outbox WHERE table_id = %(t)s",
            "SELECT stage, count(*) AS n FROM harness.moves WHERE table_id = %(t)s GROUP BY 1 ORDER BY 1",
        )
        return [real.ask(one, {"t": table.table_id}) for one in asked]

    assert left(as_folded) == left(whole)
    assert objections(real, as_folded) == objections(real, whole)


# -- what is kept -------------------------------------------------------------------------------------------


def kept(real: RealRig, table: TableRow) -> set[int]:
    return {
        row["version"] for row in real.ask("SELECT version FROM harness.versions WHERE table_id = %s", [table.table_id])
    }


def checkpoints(real: RealRig, table: TableRow, stage: str) -> list[dict[str, Any]]:
    asked = "SELECT * FROM harness.checkpoints WHERE table_id = %s AND stage = %s ORDER BY first_move"
    return real.ask(asked, [table.table_id, stage])


def test_a_pinned_version_stays_with_its_move_until_nothing_pins_it(real: RealRig):
    table = planted(real)
    before = answers(real, table)
    pin = "INSERT INTO harness.snapshot_tables (name, table_id, version, bounds) SELECT %s, table_id, version, bounds "
    real.ask("INSERT INTO harness.snapshots (name) VALUES (%s)", [table.name])
    real.ask(pin + "FROM harness.versions WHERE table_id = %s AND version = 500", [table.name, table.table_id])

    fold(real, table)

    assert {1, 500} == {version for version in kept(real, table) if version < 600}
    assert len(checkpoints(real, table, "tier")) == 2
    assert answers(real, table) == before

    real.ask("DELETE FROM harness.snapshots WHERE name = %s", [table.name])
    fold(real, table, at_least=0)

    assert 500 not in kept(real, table)
    assert len(checkpoints(real, table, "tier")) == 1
    assert answers(real, table) == before


@pytest.mark.parametrize(
    "statement",
    [
        LEASE,
        "INSERT INTO harness.mirrors (table_id, catalog, holds) VALUES (%s, 'c', '{500}')",
        "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, "
        "trigger) VALUES (%s, 'otree', 0, '{}', '{}', 500, 1, 'PLANNED', 1, 'age')",
        "UPDATE harness.versions SET revert_of = 20 WHERE version = 500 AND table_id = %s",
        "UPDATE harness.moves SET trigger = 'accept-loss' WHERE table_id = %s AND move_id = ("
        "SELECT move_id FROM harness.versions v WHERE v.table_id = moves.table_id AND v.version = 500)",
    ],
    ids=["leased", "mirrored", "a base", "a revert", "of people"],
)
def test_a_version_that_something_names_stays(real: RealRig, statement: str):
    table = planted(real)
    real.ask(statement, [table.table_id])
    fold(real, table)

    assert {version for version in kept(real, table) if version < 600} == {1, 500}


def test_nothing_is_folded_below_which_a_revert_has_reached(real: RealRig):
    table = planted(real)
    newest = max(kept(real, table))
    real.ask(
        "UPDATE harness.versions SET revert_of = 300 WHERE table_id = %s AND version = %s", [table.table_id, newest]
    )
    fold(real, table)

    assert kept(real, table) >= set(range(301, newest + 1))
    assert 299 not in kept(real, table)


def test_a_younger_history_and_a_short_one_are_left_alone(real: RealRig):
    table = planted(real, steps=750)  # 31 days: 30 rows are old, which is not worth a transaction

    assert fold(real, table) == Folded()
    assert len(kept(real, table)) == 751


def test_old_moves_of_ingest_are_folded_without_any_old_version(real: RealRig):
    table = real.table(partitions=1)
    insert = (
        "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows, "
        "committed_at) SELECT %s, 'ingest', 0, '{}', '{}', 1, 'COMMITTED', 0, 'log', 0, "
        "clock_timestamp() - interval '40 days' FROM generate_series(1, 200)"
    )
    real.ask(insert, [table.table_id])

    assert fold(real, table).moves == 150  # the newest 50 stay
    [one] = checkpoints(real, table, "ingest")
    assert (one["moves"], one["rows"], one["lo"]) == (150, 0, {})


def test_moves_of_ingest_whose_rows_the_buffer_has_to_hold_stay(real: RealRig):
    table = planted(real)
    real.ask("UPDATE harness.lake_positions SET trim_floor = 3000 WHERE table_id = %s", [table.table_id])
    fold(real, table)

    [one] = checkpoints(real, table, "ingest")
    assert one["hi"] == {"0": 3000, "1": 3000}


@pytest.mark.parametrize("version", [1, 1_990])
def test_the_ledger_itself_refuses_to_fold_what_is_needed(real: RealRig, version: int):
    table = planted(real)

    with real.database.transaction() as connection, pytest.raises(Exception, match="are needed, or are gone"):
        key = {"table_id": table.table_id, "before": 0, "through": 1_995, "versions": [version]}
        connection.execute(sql("fold/fold_versions"), key)


def test_a_crash_in_the_middle_of_a_fold_loses_and_doubles_nothing(real: RealRig):
    table = planted(real)
    before, rows = answers(real, table), kept(real, table)

    class Killed(BaseException):
        pass

    def killed() -> None:
        raise Killed

    faults.arm("expire.in_fold", killed)
    with pytest.raises(Killed):
        fold(real, table)
    faults.disarm()

    assert (answers(real, table), kept(real, table)) == (before, rows)
    real.pass_time(2 * HOURLY)  # until the claim of the one that died is over
    fold(real, table)
    assert {**answers(real, table), "last move": before["last move"]} == before


def test_a_fold_whose_claim_was_taken_over_is_refused(real: RealRig):
    table = planted(real)
    before = kept(real, table)
    asleep, _ = real.taken_over(table, Stage.EXPIRE)

    with pytest.raises(HarnessError, match="epoch"):
        HistoryFold(real.database).fold(table, asleep)
    assert kept(real, table) == before


def test_a_fold_that_the_ledger_refuses_is_tried_again(real: RealRig, monkeypatch: pytest.MonkeyPatch):
    table = planted(real)
    real.ask(LEASE, [table.table_id])
    with monkeypatch.context() as blind:
        blind.setattr(HistoryFold, "_needed", lambda *_, **__: frozenset({1}))
        with pytest.raises(HistoryNeeded, match="1 of .* are needed"):
            fold(real, table)
    assert 500 in kept(real, table)


# -- readers of history -------------------------------------------------------------------------------------


def test_events_that_are_folded_are_named_and_never_left_out_silently(real: RealRig):
    table = planted(real)
    outbox = Outbox(real.readers, News(real.dsn))
    whole = list(outbox.events(table, after=0, follow=False))
    fold(real, table)

    first, *rest = outbox.events(table, after=0, follow=False)

    assert (first.event, first.seq, first.payload["events"]) == ("folded", rest[0].seq - 1, len(whole) - len(rest))
    assert rest == whole[-len(rest) :]
    with pytest.raises(EventsFolded, match=r"events 6-\d+ were folded"):
        next(outbox.events(table, after=5, follow=False))


def test_what_a_subscriber_waits_for_is_not_folded(real: RealRig):
    table = planted(real)
    commit = "INSERT INTO harness.state_commits VALUES (%s, 1, 1, '700', %s, 'null', '{}', clock_timestamp())"
    name = table.name.replace(".", "-")
    real.ask(
        "INSERT INTO harness.states (name, holder, epoch, lease_until) VALUES (%s, gen_random_uuid(), 1, now())", [name]
    )
    real.ask(commit, [name, Jsonb({"events_of": table.name, "table_id": table.table_id})])

    fold(real, table)

    left = real.ask("SELECT min(seq) AS seq FROM harness.outbox WHERE table_id = %s", [table.table_id])[0]["seq"]
    assert left <= 701
    assert kept(real, table) >= set(range(705, 2_001))
    assert 600 not in kept(real, table)


def test_a_move_and_a_record_of_folded_history_are_told_by_their_checkpoint(real: RealRig):
    table = planted(real)
    book = Lineage(real.readers, table)
    [old] = book.carried(RecordAsked(partition=0, offset=15))[-1:]
    fold(real, table)

    assert book.moves([old["move_id"]]) == {}
    told = {row["stage"]: row for row in book.folded(record=RecordAsked(partition=0, offset=15))}
    assert told.keys() == {"ingest", "tier"}
    assert told["tier"]["first_move"] <= old["move_id"] <= told["tier"]["last_move"]
    assert {row["stage"] for row in book.folded(move_id=old["move_id"])} == {"ingest", "tier"}
    assert TableHistories(real.readers).known(table, [old["move_id"]]) == {old["move_id"]: {""}}


# -- counters -----------------------------------------------------------------------------------------------


def test_counters_are_the_sums_that_they_stand_for(real: RealRig):
    table = real.table(partitions=1)

    def move(state: str, rows: int | None, stage: str = "tier") -> int:
        made = real.ask(
            "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, schema_version, state, epoch, trigger, rows) "
            "VALUES (%s, %s, 0, '{}', '{}', 1, %s, 1, 'age', %s) RETURNING move_id",
            [table.table_id, stage, state, rows],
        )
        return int(made[0]["move_id"])

    def counted() -> tuple[int, int]:
        summed = (
            "SELECT coalesce(sum(rows), 0)::bigint AS n FROM harness.moves WHERE table_id = %s AND stage <> 'ingest' "
        )
        in_effect = "AND state = 'COMMITTED' AND undone_by IS NULL"
        [row] = real.ask(summed + in_effect, [table.table_id])
        return real.ask(sql("overview/counts"), {"tables": [table.table_id]})[0]["lake_rows"], row["n"]

    first, opened, _ = move("COMMITTED", 7), move("PLANNED", None), move("COMMITTED", 90, "ingest")
    assert counted() == (7, 7)
    real.ask("UPDATE harness.moves SET state = 'COMMITTED', rows = 5 WHERE move_id = %s", [opened])
    replay = move("COMMITTED", 2, "replay")
    assert counted() == (14, 14)
    real.ask("UPDATE harness.moves SET undone_by = %s WHERE move_id = ANY(%s)", [replay, [first, opened]])
    assert counted() == (2, 2)
    real.ask("UPDATE harness.moves SET undone_by = NULL WHERE move_id = %s", [first])
    assert counted() == (9, 9)


def test_the_folders_of_views_are_noted_when_a_version_names_them(real: RealRig):
    table = real.table(partitions=1)
    versions = "SELECT stream_metadata, batch_metadata FROM harness.versions WHERE table_id = %s"
    named = {
        path.rsplit("/metadata/", 1)[0] for row in real.ask(versions, [table.table_id]) for path in row.values() if path
    }

    assert {row["folder"] for row in real.ask(sql("upkeep/folders"), {"table_id": table.table_id})} == named
