"""What a replay writes beside its version: of the records that it corrects, and of no others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ledgers.postgres.boundary import OPTIMISTIC_BUILDS
from harness_pipelines.ports.corrections import Correction
from harness_pipelines.ports.ledger import Swap, TableRow
from harness_pipelines.protocol.changes.corrections import Change, CorrectionsMoved, Kind
from harness_pipelines.protocol.versions import Version, VersionGone
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig, fresh_view
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import with_session

AT = (0, 5)  #: the record that is put back
HELD = {AT: "held"}
BESIDE = [(0, 4), (0, 6), (1, 5)]  #: records that are held as well
SIGNED = [(0, 0, 5), (0, 5, 6), (0, 6, 10), (1, 0, 10)]  #: what audits have signed off
OF_VIEW = "WHERE table_name = %s AND table_namespace = 'contract'"
KEPT = [one for one in SIGNED if one != (0, 5, 6)]


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(views="stream")
    real.ingest(made, {0: (0, 10), 1: (0, 10)})
    real.move(made, {0: 0, 1: 0}, {0: 10, 1: 10})
    real.ask("UPDATE harness.tables SET retained_from = 2 WHERE table_id = %s", [made.table_id])
    for partition, offset in [AT, *BESIDE]:
        real.ask(
            'INSERT INTO harness.quarantine (table_id, partition, "offset", reason, detail, value, headers, kafka_ms) '
            "VALUES (%s, %s, %s, 'malformed', 'no JSON', '{', '[]', 0)",
            [made.table_id, partition, offset],
        )
    sign(real, made)
    return made


def put_back(
    real: RealRig,
    table: TableRow,
    *,
    at: tuple[int, int] = AT,
    states: Mapping[tuple[int, int], str] = HELD,
    meanwhile: Callable[[int], object] = lambda _: None,
) -> Version:
    def build(head: Any, pointers: Any, move_id: int) -> Any:
        meanwhile(move_id)
        base = head.stream.snapshot
        return {v: Swap(view=v, old=old, base_snapshot=base, new=fresh_view()) for v, old in pointers.items()}

    correction = Correction(changes={at: Change(kind=Kind.ADDED, digest="0")}, states=states, bytes=1, decoder=None)
    return real.corrections(table).publish(correction, build, by="me", run_id=None)


def revert(real: RealRig, table: TableRow, to: int) -> Version:
    def build(view: Any, base: str, head: Any, _target: Any, _move_id: int) -> Swap:
        return Swap(view=view, old=base, base_snapshot=head.stream.snapshot, new=fresh_view())

    return real.ledger.revert(table, to=to, log_from={}, build=build)


def states(real: RealRig, table: TableRow) -> Mapping[tuple[int, int], str]:
    found = real.ask('SELECT partition, "offset", state FROM harness.quarantine WHERE table_id = %s', [table.table_id])
    return {(row["partition"], row["offset"]): row["state"] for row in found}


def sign(real: RealRig, table: TableRow) -> None:
    for partition, low, high in SIGNED:
        real.ask(
            "INSERT INTO harness.audits (table_id, partition, low, high, rows, refused, digest, evidence, status, "
            "witness, version, audited_at) VALUES (%s, %s, %s, %s, 1, 0, 'd', 'e', 'agrees', 'kafka', 1, now()) "
            "ON CONFLICT DO NOTHING",
            [table.table_id, partition, low, high],
        )


def signed(real: RealRig, table: TableRow) -> list[tuple[int, int, int]]:
    found = real.ask("SELECT partition, low, high FROM harness.audits WHERE table_id = %s", [table.table_id])
    return sorted((row["partition"], row["low"], row["high"]) for row in found)


def test_a_replay_settles_its_records_and_has_audits_read_their_ranges_again(real: RealRig, table: TableRow):
    put_back(real, table)
    assert states(real, table) == {AT: "replayed", **dict.fromkeys(BESIDE, "held")}
    assert signed(real, table) == KEPT
    assert [(one.partition, one.offset) for one in real.corrections(table).in_effect()] == [AT]


def test_a_revert_holds_the_records_again_and_has_audits_read_their_ranges_again(real: RealRig, table: TableRow):
    before = real.ledger.head(table).version
    put_back(real, table)
    sign(real, table)
    revert(real, table, before)
    assert states(real, table) == {AT: "held", **dict.fromkeys(BESIDE, "held")}
    assert signed(real, table) == KEPT
    assert real.corrections(table).in_effect() == []


def test_a_revert_takes_back_what_came_after_its_version_and_nothing_before(real: RealRig, table: TableRow):
    for before in ((1, 5), (0, 4)):
        kept = put_back(real, table, at=before, states={before: "held"}).version
    put_back(real, table)
    row = 'SELECT xmin::text AS written_by FROM harness.quarantine WHERE table_id = %s AND "offset" = 6'
    was = real.ask(row, [table.table_id])
    revert(real, table, kept)
    assert states(real, table) == {AT: "held", (0, 6): "held", (1, 5): "replayed", (0, 4): "replayed"}
    assert real.ask(row, [table.table_id]) == was, "there may be millions of them"


def test_what_became_of_a_record_between_two_versions_is_known_of_each_pair(real: RealRig, table: TableRow):
    before = real.ledger.head(table).version
    added = put_back(real, table).version
    moved = real.ledger.head(table).version
    taken = revert(real, table, before).version
    between = real.corrections(table).between
    assert between(before, added) == {AT: Kind.ADDED}
    assert between(added, taken) == {AT: Kind.REMOVED}
    assert between(before, taken) == between(1, before) == between(added, moved) == {}
    with pytest.raises(VersionGone, match="has no version 1000"):  # another table has one
        between(1000, taken)


def test_a_revert_of_a_revert_brings_a_correction_back(real: RealRig, table: TableRow):
    before = real.ledger.head(table).version
    added = put_back(real, table).version
    revert(real, table, before)
    revert(real, table, added)
    assert states(real, table)[AT] == "replayed"
    assert [(one.partition, one.offset) for one in real.corrections(table).in_effect()] == [AT]


def test_what_another_table_has_set_aside_at_the_same_place_does_not_matter(real: RealRig, table: TableRow):
    other = (0, 7)
    assert real.ask('SELECT 1 AS n FROM harness.quarantine WHERE partition = 0 AND "offset" = 7')
    assert real.corrections(table).look([other]).states == {}
    put_back(real, table, at=other, states={})
    put_back(real, table)
    assert [(one.partition, one.offset) for one in real.corrections(table).in_effect()] == [AT, other]


def test_a_replay_whose_move_is_over_writes_nothing(real: RealRig, table: TableRow):
    def over(move_id: int) -> None:
        real.ask("UPDATE harness.moves SET state = 'COMMITTED' WHERE move_id = %s", [move_id])

    was = real.ledger.head(table)
    with pytest.raises(CorrectionsMoved, match="is over already"):
        put_back(real, table, meanwhile=over)
    assert real.ledger.head(table) == was
    assert states(real, table)[AT] == "held"


def test_a_record_that_was_put_back_is_not_given_up(real: RealRig, table: TableRow):
    put_back(real, table)
    assert real.corrections(table).drop([AT], by="me") == 0
    assert real.corrections(table).drop([(1, 5)], by="me") == 1
    assert states(real, table) == {AT: "replayed", (0, 4): "held", (0, 6): "held", (1, 5): "dropped"}


def test_reads_begin_while_a_replay_builds_under_its_locks(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """As it does where others have published under three builds: that may take long, and looks share the trim lock."""
    monkeypatch.setattr("harness_pipelines.ledgers.postgres.boundary.OPTIMISTIC_BUILDS", 0)
    begun: list[int] = []

    def look(_: int) -> None:
        begun.append(real.leases.look(table, holder="reader", lease=HOUR).version.version)

    put_back(real, table, meanwhile=look)

    assert begun == [real.ledger.head(table).version - 1]
    assert states(real, table)[AT] == "replayed"


def test_a_replay_that_others_overtake_builds_under_its_locks_for_longer_than_a_session_may_be_idle(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """Or a long range of a table that moves often would never be replayed."""
    impatient = Database(with_session(real.dsn, idle_in_transaction_session_timeout="3s"))
    monkeypatch.setattr(real, "database", impatient)
    builds: list[int] = []

    def long(move_id: int) -> None:
        builds.append(move_id)
        if len(builds) <= OPTIMISTIC_BUILDS:  # somebody publishes meanwhile
            real.ask("UPDATE public.iceberg_tables SET metadata_location = metadata_location || '+' " + OF_VIEW, [view])
        else:
            since = now()
            wait_until(lambda: now() > since + timedelta(seconds=4), "a session that is asked nothing is ended")

    def now() -> datetime:
        found: datetime = real.ask("SELECT clock_timestamp() AS now")[0]["now"]
        return found

    view = table.views["stream"]
    try:
        put_back(real, table, meanwhile=long)
    finally:
        impatient.close()

    assert len(builds) == OPTIMISTIC_BUILDS + 1
    assert states(real, table)[AT] == "replayed"


def test_a_record_that_others_settled_is_seen_before_anything_is_built(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("harness_pipelines.ledgers.postgres.boundary.OPTIMISTIC_BUILDS", 0)
    real.ask("UPDATE harness.quarantine SET state = 'dropped' WHERE table_id = %s", [table.table_id])
    built: list[int] = []
    with pytest.raises(CorrectionsMoved, match="1 of 1 records were settled by others"):
        put_back(real, table, meanwhile=built.append)
    assert built == []
