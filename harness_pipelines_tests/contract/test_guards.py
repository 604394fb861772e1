"""Each guard of moves, claims and condemned files by itself: where two back each other, each stops what it is for."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from harness_pipelines.drivers.files import SameFile
from harness_pipelines.drivers.postgres import Connection, LedgerPromoted
from harness_pipelines.ledgers.postgres.boundary import check_kept
from harness_pipelines.ports.errors import BuiltGone
from harness_pipelines.ports.ledger import PointerMoved, Swap, TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines.protocol.lake.history import PROMOTED, NamedMove
from harness_pipelines.protocol.moves import Move, MoveClosed, MoveState
from harness_pipelines.protocol.schema.evolution import ColumnChanges, evolved
from harness_pipelines.protocol.schema.schemas import SchemaMoved
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.types import Primitive
from harness_pipelines.stages.guard import WarehouseGuard
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig, fresh_view
from harness_pipelines_tests.contract.test_expire import orphan_of
from harness_pipelines_tests.contract.test_lake import moved
from harness_pipelines_tests.contract.test_locks import waits


def guard_of(real: RealRig) -> WarehouseGuard:
    return real.guard


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=1, views="stream")
    real.ingest(made, {0: (0, 20)})
    return made


def row_of(real: RealRig, move: Move) -> dict[str, Any]:
    [found] = real.ask("SELECT * FROM harness.moves WHERE move_id = %s", [move.move_id])
    return found


def publish(real: RealRig, table: TableRow, claim: Claim, move: Move) -> None:
    real.publish(table, claim, move)


def give_up(real: RealRig, _table: TableRow, claim: Claim, move: Move) -> None:
    real.ledger.close_move(claim, move, state=MoveState.ABANDONED, error="enough")


def hold(real: RealRig, _table: TableRow, claim: Claim, move: Move) -> None:
    real.ledger.close_move(claim, move, state=MoveState.QUARANTINED, error="every attempt failed")


# -- moves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", [publish, give_up, hold])
def test_a_move_that_is_over_gets_no_attempt_and_no_failure(real: RealRig, table: TableRow, end: Callable[..., None]):
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    end(real, table, claim, move)
    was = row_of(real, move)
    with pytest.raises(MoveClosed, match=f"move {move.move_id} is not open in attempt 1 any more"):
        real.ledger.take_attempt(claim, move, run_id="late")
    real.ledger.note_failure(move, error="late", counts=True)
    assert row_of(real, move) == was


def test_an_attempt_follows_the_one_that_is_named(real: RealRig, table: TableRow):
    claim = real.claim(table)
    first = real.plan(table, claim, {0: 0}, {0: 10})
    second = real.ledger.take_attempt(claim, first, run_id="second")
    was = row_of(real, first)
    with pytest.raises(MoveClosed):
        real.ledger.take_attempt(claim, first, run_id="late")
    real.ledger.note_failure(first, error="late", counts=True)
    assert row_of(real, first) == was
    assert real.ledger.note_failure(second, error="a bug", counts=True) == 1


def test_attempts_failures_and_ends_are_of_their_move_alone(real: RealRig, table: TableRow):
    other = real.table(partitions=1, views="stream")
    real.ingest(other, {0: (0, 20)})
    kept = real.plan(other, real.claim(other), {0: 0}, {0: 10})
    was = row_of(real, kept)
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    move = real.ledger.take_attempt(claim, move, run_id="second")
    real.ledger.note_failure(move, error="a bug", counts=True)
    give_up(real, table, claim, move)
    assert row_of(real, kept) == was


def test_a_move_that_took_effect_is_not_given_up_afterwards(real: RealRig, table: TableRow):
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    publish(real, table, claim, move)
    was = row_of(real, move)
    for late in (give_up, hold):
        late(real, table, claim, move)
        assert row_of(real, move) == was


@pytest.mark.parametrize("first", [give_up, hold])
def test_a_move_that_was_given_up_stays_so(real: RealRig, table: TableRow, first: Callable[..., None]):
    claim = real.claim(table)
    move = real.plan(table, claim, {0: 0}, {0: 10})
    first(real, table, claim, move)
    give_up(real, table, claim, move)
    assert row_of(real, move)["state"] == "ABANDONED"
    was = row_of(real, move)
    hold(real, table, claim, move)
    assert row_of(real, move) == was


# -- claims -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [{"holder": str(uuid.uuid4())}, {"epoch": 0}], ids=lambda wrong: next(iter(wrong)))
def test_a_claim_is_renewed_and_released_by_its_holder_in_its_epoch(
    real: RealRig, table: TableRow, wrong: dict[str, Any]
):
    claim = real.claim(table, lease=MINUTE)
    late = replace(claim, **wrong)

    def row() -> dict[str, Any]:
        return real.ask("SELECT * FROM harness.claims WHERE table_id = %s AND stage = 'tier'", [table.table_id])[0]

    was = row()
    with pytest.raises(FencedOut):
        real.ledger.renew(late, lease=HOUR)
    assert row() == was
    real.ledger.release(late)
    assert row() == was
    real.ledger.release(real.ledger.renew(claim, lease=HOUR))
    real.claim(table)


def test_a_claim_that_is_over_is_not_renewed_though_nobody_took_it(real: RealRig, table: TableRow):
    claim = real.claim(table, lease=MINUTE)
    real.pass_time(2 * MINUTE)
    with pytest.raises(FencedOut):
        real.ledger.renew(claim, lease=HOUR)
    assert real.claim(table).epoch == claim.epoch + 1


def test_a_holder_of_claims_of_two_tables_renews_and_releases_each_alone(real: RealRig, table: TableRow):
    other, holder = real.table(partitions=1), str(uuid.uuid4())
    mine, theirs = (real.ledger.claim(one, Stage.TIER, shard=0, holder=holder, lease=MINUTE) for one in (table, other))
    assert mine is not None and theirs is not None
    until = "SELECT lease_until FROM harness.claims WHERE table_id = %s AND stage = 'tier'"
    was = real.ask(until, [other.table_id])
    real.ledger.release(real.ledger.renew(mine, lease=HOUR))
    assert real.ask(until, [other.table_id]) == was


# -- acts that people ask for -------------------------------------------------------------------------------


def renamed(view: Any, base: str, head: Any, _target: Any, _move_id: int) -> Swap:
    """A view of which only the name counts."""
    return Swap(view=view, old=base, base_snapshot=head.views[view].snapshot, new=fresh_view())


def test_a_change_of_columns_whose_move_is_over_writes_nothing(real: RealRig, table: TableRow):
    changes = ColumnChanges(add=(Column(name="more", type=Primitive("string")),))
    found = evolved(table.spec, table.history[-1].fields, changes, next_id=1000)
    head = real.ledger.head(table)

    def build(pointers: Any, move_id: int) -> Any:
        real.ask("UPDATE harness.moves SET state = 'COMMITTED' WHERE move_id = %s", [move_id])
        base = head.stream.snapshot
        return {v: Swap(view=v, old=old, base_snapshot=base, new=fresh_view()) for v, old in pointers.items()}

    with pytest.raises(SchemaMoved, match="is over already; nothing was written"):
        real.evolutions(table).publish(found, build, by="me")
    assert real.ledger.head(table) == head
    assert real.again(table).spec == table.spec


def test_a_view_that_came_back_while_a_revert_put_it_back_stays(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """A row that is not there cannot be locked."""
    monkeypatch.setattr("harness_pipelines.ledgers.postgres.boundary.OPTIMISTIC_BUILDS", 0)
    head = real.ledger.head(table)
    real.drop_view(table, "stream")

    def build(view: Any, base: str, head: Any, target: Any, move_id: int) -> Swap:
        key = {"catalog": CATALOG, "namespace": table.spec.namespace, "view": table.views[view]}
        assert real.database.run("ledger/insert_pointer", {**key, "new": base}) == 1
        return renamed(view, base, head, target, move_id)

    with pytest.raises(PointerMoved, match="is in the catalog again; nothing was written"):
        real.ledger.revert(table, to=None, log_from={}, build=build)
    assert real.ledger.head(table) == head
    assert real.ledger.pointer(table, "stream") == head.stream.metadata


def test_a_revert_takes_back_no_move_of_another_table_and_no_revert(real: RealRig, table: TableRow):
    """Versions of tables have the same numbers."""
    other = real.table(partitions=1, views="stream")
    real.ingest(other, {0: (0, 20)})
    for one, moves in ((table, 2), (other, 3)):
        for low in range(moves):
            real.move(one, {0: low}, {0: low + 1})
    was = undone(real, other)
    real.ledger.revert(table, to=2, log_from={}, build=renamed)
    real.ledger.revert(table, to=1, log_from={}, build=renamed)
    assert undone(real, other) == was == {"tier": [False] * 3}
    assert undone(real, table) == {"tier": [True, True], "revert": [False, False]}


def undone(real: RealRig, table: TableRow) -> dict[str, list[bool]]:
    """{stage: whether each of its moves was taken back}, but for ingest."""
    found: dict[str, list[bool]] = {}
    rows = real.ask("SELECT * FROM harness.moves WHERE table_id = %s ORDER BY move_id", [table.table_id])
    for row in (row for row in rows if row["stage"] != "ingest"):
        found.setdefault(row["stage"], []).append(row["undone_by"] is not None)
    return found


def test_who_a_revert_would_fence_is_named_in_the_order_of_stages(real: RealRig, table: TableRow):
    wanted = [(Stage.COMPACT, 0), (Stage.TIER, 0), (Stage.TIER, 1), (Stage.TIER, 2)]
    for stage, shard in reversed(wanted):
        assert real.ledger.claim(table, stage, shard=shard, holder=str(uuid.uuid4()), lease=HOUR)
    planned = real.ledger.plan_revert(table, to=None, log_from={})
    assert [(one.stage, one.shard) for one in planned.claims] == wanted


# -- condemned files ----------------------------------------------------------------------------------------


@pytest.fixture
def condemned(real: RealRig) -> Callable[..., str]:
    """Makes tables with a file that nothing reaches, condemned some time ago; gives the file's path."""

    def make(table: TableRow, ago: timedelta, *, name: str = "orphan.avro") -> str:
        path = orphan_of(real, table, name).as_uri()
        real.ask(
            "INSERT INTO harness.condemned_files (table_id, path, bytes, since) "
            "VALUES (%s, %s, 10, clock_timestamp() - %s)",
            [table.table_id, path, ago],
        )
        return path

    return make


@pytest.fixture
def files(real: RealRig) -> TableRow:
    return real.table(partitions=1, files=True, views="stream")


def deleted(real: RealRig, table: TableRow) -> list[str]:
    upkeep: Any = real.upkeep
    claim = real.claim(table, Stage.EXPIRE)
    try:
        return list(upkeep.delete_ripe(table, claim))
    finally:
        real.ledger.release(claim)


def act(real: RealRig, table: TableRow, *, state: str, epoch: int, ago: timedelta, base: int | None = None) -> None:
    real.ask(
        "INSERT INTO harness.moves (table_id, stage, shard, lo, hi, base_version, schema_version, state, epoch, "
        "trigger, planned_at) VALUES (%s, 'tier', 0, '{}', '{}', %s, 1, %s, %s, 'rows', clock_timestamp() - %s)",
        [table.table_id, base, state, epoch, ago],
    )


UNDER_WAY = [
    ("PLANNED", 3, 40, False),
    ("PLANNED", 3, 20, True),
    ("ABANDONED", 0, 40, False),
    ("ABANDONED", 0, 20, True),
    ("ABANDONED", 0, 90, True),  # for an hour
    ("ABANDONED", 3, 40, True),  # its claim has ended it, not its act
    ("COMMITTED", 0, 40, True),
]


def test_a_file_that_was_condemned_before_what_is_under_way_was_planned_goes(
    real: RealRig, files: TableRow, condemned: Callable[..., str]
):
    """Half an hour ago; the grace is ten minutes. What is under way with another table does not matter."""
    act(real, real.table(partitions=1), state="ABANDONED", epoch=0, ago=timedelta(minutes=40))
    for number, (state, epoch, ago, goes) in enumerate(UNDER_WAY):
        path = condemned(files, timedelta(minutes=30), name=f"{number}.avro")
        act(real, files, state=state, epoch=epoch, ago=timedelta(minutes=ago))
        assert deleted(real, files) == [path] * goes, (state, epoch, ago)
        real.ask("DELETE FROM harness.moves WHERE table_id = %s", [files.table_id])
        real.ask("DELETE FROM harness.condemned_files WHERE table_id = %s", [files.table_id])


def test_a_file_that_is_younger_than_the_oldest_open_move_is_not_condemned(real: RealRig, files: TableRow):
    """It was written three quarters of an hour ago."""
    upkeep: Any = real.upkeep
    file, then = orphan_of(real, files, "orphan.avro"), time.time() - 45 * 60
    os.utime(file, (then, then))
    act(real, real.table(partitions=1), state="ABANDONED", epoch=0, ago=timedelta(minutes=40))

    def condemned() -> bool:
        found = file.name in {one.path.rsplit("/", 1)[-1] for one in upkeep.condemn(files)}
        real.ask("DELETE FROM harness.condemned_files WHERE table_id = %s", [files.table_id])
        return found

    for state, epoch, ago, goes in UNDER_WAY:
        act(real, files, state=state, epoch=epoch, ago=timedelta(minutes=ago))
        assert condemned() is goes, (state, epoch, ago)
        real.ask("DELETE FROM harness.moves WHERE table_id = %s", [files.table_id])
    act(real, files, state="ABANDONED", epoch=0, ago=timedelta(minutes=40))
    act(real, files, state="PLANNED", epoch=1, ago=timedelta(minutes=20))
    assert not condemned()


def test_what_is_condemned_stays_so_from_then_on_and_what_is_gone_is_pardoned(real: RealRig, files: TableRow):
    upkeep: Any = real.upkeep
    file = orphan_of(real, files, "orphan.avro")
    for _ in range(2):
        upkeep.condemn(files)
        real.ask(
            "UPDATE harness.condemned_files SET since = '2001-01-01' WHERE table_id = %s AND since > '2001-01-01'",
            [files.table_id],
        )
        real.ask(
            "INSERT INTO harness.condemned_files (table_id, path, bytes) VALUES (%s, 'file:///nowhere/x.avro', 1)",
            [files.table_id],
        )
    upkeep.condemn(files)
    found = real.ask(
        "SELECT path, since = '2001-01-01' AS kept FROM harness.condemned_files WHERE table_id = %s", [files.table_id]
    )
    assert [(row["path"].rsplit("/", 1)[-1], row["kept"]) for row in found] == [(file.name, True)]


def test_the_base_of_an_open_move_is_kept_and_that_of_a_closed_one_is_not(real: RealRig):
    table = real.table(partitions=1, files=True, views="stream", retention={"versions": "1h"})
    real.ingest(table, {0: (0, 10)})
    claim, upkeep = real.claim(table), real.upkeep
    first, old = real.ledger.head(table), moved(real, table, claim, 0, 5)
    moved(real, table, claim, 5, 10)
    real.pass_time(2 * HOUR)
    expire = real.claim(table, Stage.EXPIRE)
    upkeep.trim(real.again(table), expire)
    for path in orphan_of(real, table, "orphan.avro").parent.iterdir():
        os.utime(path, (0, 0))

    def condemned() -> set[str]:
        retention: Any = upkeep
        return {one.path.rsplit("/", 1)[-1] for one in retention.condemn(real.again(table), dry_run=True)}

    versions = {version.stream.metadata.rsplit("/", 1)[-1] for version in (first, old)}
    act(real, table, state="ABANDONED", epoch=1, ago=MINUTE, base=old.version)
    assert versions <= condemned()
    act(real, table, state="PLANNED", epoch=1, ago=MINUTE, base=old.version)
    assert versions & condemned() == {first.stream.metadata.rsplit("/", 1)[-1]}


def test_a_file_of_a_commit_is_looked_for_among_those_that_its_table_condemned(
    real: RealRig, files: TableRow, condemned: Callable[..., str]
):
    other = real.table(partitions=1, files=True, views="stream")
    mine = [orphan_of(real, files, f"{name}.avro").as_uri() for name in ("a", "b", "c")]
    for path in reversed(mine):
        note = "INSERT INTO harness.condemned_files (table_id, path, bytes) VALUES (%s, %s, 1)"
        real.ask(note, [other.table_id, path])
    condemned(files, MINUTE)
    with real.owner.transaction() as connection:
        check_kept(connection, files, mine)
    for path in reversed(mine[1:]):
        real.ask(note, [files.table_id, path])
    with pytest.raises(BuiltGone, match=f"{mine[1]} was written"), real.owner.transaction() as connection:
        check_kept(connection, files, mine)


def test_the_oldest_of_all_that_is_under_way_counts(real: RealRig, files: TableRow, condemned: Callable[..., str]):
    path = condemned(files, timedelta(minutes=30))
    act(real, files, state="ABANDONED", epoch=0, ago=timedelta(minutes=40))
    act(real, files, state="PLANNED", epoch=1, ago=timedelta(minutes=20))
    assert deleted(real, files) == []
    real.ask("UPDATE harness.moves SET epoch = 1 WHERE table_id = %s AND state = 'ABANDONED'", [files.table_id])
    assert deleted(real, files) == [path]


def test_the_folders_that_are_looked_through_are_those_of_the_views_of_the_table(real: RealRig, files: TableRow):
    """A table without a batch view has none of it; another engine's row of the catalog may name no file.

    What is its own may lie below a folder of it.
    """
    upkeep: Any = real.upkeep
    folder, nameless = orphan_of(real, files, "orphan.avro").parents[1].as_uri(), f"nameless_{files.table_id}"
    for name, location in ((nameless, None), (files.quarantine, f"{folder}/aside/metadata/1.json")):
        real.ask(
            "INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, "
            "iceberg_type) VALUES (%s, %s, %s, %s, 'TABLE')",
            [CATALOG, files.spec.namespace, name, location],
        )
    assert upkeep._folders(files, SameFile(), upkeep._place(files)) == ([folder], [])
    real.ask("DELETE FROM public.iceberg_tables WHERE table_name = ANY(%s)", [[nameless, files.quarantine]])


def test_files_go_after_the_grace_oldest_first_and_expire_forgets_those_of_its_table_alone(
    real: RealRig, files: TableRow, condemned: Callable[..., str]
):
    other = real.table(partitions=1, files=True, views="stream")
    elsewhere = condemned(other, timedelta(days=1))
    young = condemned(files, timedelta(minutes=5), name="young.avro")
    first = condemned(files, timedelta(minutes=50), name="z.avro")
    second = condemned(files, timedelta(minutes=40), name="a.avro")
    note = "INSERT INTO harness.condemned_files (table_id, path, bytes) VALUES (%s, %s, 1)"
    real.ask(note, [other.table_id, first])
    digest = (
        "INSERT INTO harness.file_digests (path, bytes, tail, digest) VALUES (%s, 1, 1, 'd') ON CONFLICT DO NOTHING"
    )
    for path in (first, elsewhere):
        real.ask(digest, [path])
    assert deleted(real, files) == [first, second]
    left = real.ask("SELECT table_id, path FROM harness.condemned_files WHERE path = ANY(%s)", [[first, second, young]])
    assert {(row["table_id"], row["path"]) for row in left} == {(other.table_id, first), (files.table_id, young)}
    known = real.ask("SELECT path FROM harness.file_digests WHERE path = ANY(%s)", [[first, elsewhere]])
    assert [row["path"] for row in known] == [elsewhere]
    assert deleted(real, other) == [elsewhere]


# -- what the lake names ------------------------------------------------------------------------------------


def test_a_move_that_the_lake_names_is_known_of_its_own_table_alone(real: RealRig, table: TableRow):
    """Another table's move may have the number and the nonce, as in a copy of its files."""
    claim = real.claim(table)
    own = row_of(real, real.plan(table, claim, {0: 0}, {0: 10}))
    other = real.table(partitions=1, views="stream")
    strange = row_of(real, real.plan(other, real.claim(other), {0: 0}, {0: 0}))
    guard = guard_of(real)
    mine, foreign = (NamedMove(move_id=one["move_id"], nonce=str(one["nonce"])) for one in (own, strange))
    assert guard._unknown(table, {"a metadata file": {mine, foreign}}) == [foreign]
    for owner, expected in ((other, [foreign]), (table, [])):
        real.ask(
            "INSERT INTO harness.lost_moves (table_id, move_id, nonce) VALUES (%s, %s, %s)",
            [owner.table_id, foreign.move_id, foreign.nonce],
        )
        assert guard._unknown(table, {"a metadata file": {mine, foreign}}) == expected


def history_of(real: RealRig, table: TableRow) -> str:
    return str(real.ask("SELECT history FROM harness.tables WHERE table_id = %s", [table.table_id])[0]["history"])


@pytest.mark.parametrize("events", [0, 2**50])
def test_after_a_promotion_each_table_begins_its_own_history_and_gives_no_number_twice(
    real: RealRig, table: TableRow, events: int
):
    """Whichever of numbers of versions and of events is ahead."""
    guard = guard_of(real)
    other = real.table(partitions=1, views="stream")
    guard._admit(table)
    ours, before = history_of(real, table), real.ledger.head(table)
    assert real.ledger.head(table) == before, "nothing was promoted"
    for one in (table, other):
        real.ask(
            "UPDATE harness.tables SET history = 'gone', outbox_seq = greatest(outbox_seq, %s) WHERE table_id = %s",
            [events, one.table_id],
        )
    claim = real.claim(table)
    with pytest.raises(LedgerPromoted):
        real.plan(table, claim, {0: 0}, {0: 10})
    guard._admit(table)
    assert (history_of(real, table), history_of(real, other)) == (ours, "gone")
    head = real.ledger.head(table)
    [*_, (number, event)] = real.outbox(table)
    assert (event, number) == (PROMOTED, max(events + 1, head.version))
    assert head.version > before.version + 1
    with pytest.raises(FencedOut):
        real.ledger.renew(claim, lease=HOUR)
    guard._admit(table)
    assert real.ledger.head(table) == head
    guard._admit(other)
    assert history_of(real, other) == ours


def test_of_two_workers_that_find_a_promotion_one_begins_the_history(real: RealRig, table: TableRow):
    guard = guard_of(real)
    head = real.ledger.head(table)
    real.ask("UPDATE harness.tables SET history = 'gone' WHERE table_id = %s", [table.table_id])

    def begins(connection: Connection) -> None:
        connection.execute(
            "UPDATE harness.tables SET history = harness.history() WHERE table_id = %s", [table.table_id]
        )

    assert waits(real, lambda: guard._admit(table), hold=begins) == []
    assert real.ledger.head(table) == head
