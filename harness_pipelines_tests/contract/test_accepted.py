"""Rows of another writer that were accepted stay accepted after the ledger was lost, or restored from a backup.

Real Iceberg files, and a copy of the database as the backup; Kafka no longer has what the ledger lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import Jsonb

from harness_pipelines.app.installation import Stores
from harness_pipelines.audit.fsck.run import RULES, _Looks
from harness_pipelines.audit.proof.complete import _strangers
from harness_pipelines.audit.proof.report import Findings
from harness_pipelines.audit.repair.foreign import accept_foreign, find_foreign
from harness_pipelines.audit.repair.lake import NothingToAdopt, Way, apply_plan, plan_lake
from harness_pipelines.audit.repair.rebuild import plan_rebuild, rebuild
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import LakeState
from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.contract.test_lake import moved

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")  # of the views, which Spark knows
TOPIC = TopicIdentity(cluster_id="c", topic="t", topic_id="i", partitions=(0,))


class Place:
    """A table of one partition, the warehouse that it is alone in, and its database."""

    def __init__(self, make_database: Callable[[], str], *, empty: str, folder: Path) -> None:
        self._make_database, self._empty, self._folder = make_database, empty, folder
        self._backup = empty
        self._open(self._copy(empty))
        self.row = self.rig.table(partitions=1, files=True)
        self.kafka = Watermark(low=0, end=100)

    def _open(self, dsn: str) -> None:
        self.rig = RealRig(dsn, self._folder)
        warehouse = self._folder.as_uri()
        settings = Settings(home=self._folder, dsn=dsn, warehouse=warehouse, catalog_name=CATALOG)
        self.stores = Stores(settings)
        log = SimpleNamespace(
            describe=lambda topic: TOPIC,
            watermarks=lambda topic, partitions: dict.fromkeys(partitions, self.kafka),
            close=lambda: None,
        )
        vars(self.stores)["log"] = log

    def close(self) -> None:
        self.stores.close()
        self.rig.close()

    # -- what goes on -------------------------------------------------------------------------------------

    def tier(self, low: int, high: int, *, keep: int = 50) -> Version:
        """Tier [low, high), and ingest what the buffer lacks of it."""
        if (buffered := self.stores.ledger.positions(self.row)[0].bounds.buffer_hi) < high:
            self.rig.ingest(self.row, {0: (buffered, high)})
        claim = self.rig.claim(self.row)
        made = moved(self.rig, self.row, claim, low, high, keep=keep)
        self.rig.ledger.release(claim)
        return made

    def append(self, *offsets: int) -> None:
        """As another writer does."""
        self.rig.stage_files(self.row, "main", {0: offsets}, move=None)

    def accept(self, *offsets: int) -> int:
        """Append rows as another writer and accept them; the move that did."""
        self.append(*offsets)
        taken = accept_foreign(self.stores, self.row, find_foreign(self.stores, self.row))
        assert taken.move_id is not None
        return taken.move_id

    def revert(self, to: int) -> Version:
        return revert_table(self.stores, self.row, to=to)

    # -- what is lost -------------------------------------------------------------------------------------

    def backup(self) -> None:
        self.close()
        self._backup = self._copy(self.rig.dsn)
        self._open(self.rig.dsn)

    def restore(self) -> None:
        """The database is the one of the backup again; Kafka has only what no move brought to the lake."""
        self.kafka = Watermark(low=self.head.stream_hi[0], end=100)
        self.close()
        self._open(self._copy(self._backup))
        self.stores.ownership.take_over()

    def lose(self) -> None:
        """The database is gone, and an empty one is there."""
        self.close()
        self._open(self._copy(self._empty))

    def _copy(self, dsn: str) -> str:
        """A copy of a database that no session is in."""
        copy = make_conninfo(dsn, dbname=conninfo_to_dict(self._make_database())["dbname"])
        new, old = (sql.Identifier(str(conninfo_to_dict(one)["dbname"])) for one in (copy, dsn))
        with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(new))
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(new, old))
        return copy

    # -- what is there ------------------------------------------------------------------------------------

    def adopt(self) -> Version:
        """The lake's newest state is adopted, and nothing of it is lost."""
        plan = plan_lake(self.stores, self.row)
        assert (plan.way, plan.lost) == (Way.ADOPT, ())
        apply_plan(self.stores, self.row, plan)
        return self.head

    def rebuild(self) -> TableRow:
        self.row = rebuild(self.stores, plan_rebuild(self.stores, self.row.spec), take_over=True)
        return self.row

    @property
    def head(self) -> Version:
        return self.stores.ledger.head(self.row)

    def newest(self) -> LakeState:
        pointer = self.stores.ledger.pointer(self.row, "stream")
        return self.stores.lake_histories.of(self.row, pointer, view="stream").newest()

    def accepted(self) -> list[tuple[int, int, int]]:
        """(low, high, rows) of what the ledger says was accepted."""
        return [(row["low"], row["high"], row["rows"]) for row in self.stores.reconciler.accepted(self.row)]

    def live(self) -> list[tuple[int, int, int]]:
        """(partition, lowest, highest offset) of the files of the head."""
        return sorted(self.rig.live(self.row, self.head.stream.metadata).elements())

    def undone(self, move_id: int) -> bool:
        [found] = self.rig.ask("SELECT undone_by FROM harness.moves WHERE move_id = %s", [move_id])
        return found["undone_by"] is not None

    def assert_sound(self) -> None:
        """fsck and audit find nothing, no bound is of the pseudo-partition, and each row is counted once."""
        look = _Looks(self.stores, None, data=True).look(self.row.name)
        found = [o.detail for rule in RULES if "log" not in rule.needs for o in rule.check(look) if not o.hint]
        assert found == []
        findings, head = Findings(), self.head
        plan = SimpleNamespace(bounds=head.bounds)
        _strangers(self.stores, self.row, plan, head.stream.metadata, findings)  # type: ignore[arg-type]
        assert findings.named == []
        assert set(head.bounds) == {0}
        for name in ("ingest_positions", "lake_positions"):
            rows = self.rig.ask(f"SELECT partition FROM harness.{name} WHERE table_id = %s", [self.row.table_id])
            assert [row["partition"] for row in rows] == [0], name
        tiered = self.stores.proof.conserved(self.row).tiered
        assert tiered == sum(high - low + 1 for partition, low, high in self.live() if partition >= 0)


@pytest.fixture(scope="module")
def empty(make_database: Callable[[], str]) -> str:
    """A database with a ledger that has no tables; no session is in it."""
    dsn = make_database()
    migrate(dsn)
    return dsn


@pytest.fixture
def untiered(make_database: Callable[[], str], empty: str, tmp_path: Path) -> Iterator[Place]:
    made = Place(make_database, empty=empty, folder=tmp_path)
    yield made
    made.close()


@pytest.fixture
def place(untiered: Place) -> Place:
    """Its first ten records are in the lake."""
    untiered.tier(0, 10)
    return untiered


def foreign(*ranges: tuple[int, int]) -> list[tuple[int, int, int]]:
    """Files of the pseudo-partition."""
    return [(FOREIGN_PARTITION, low, high - 1) for low, high in ranges]


# -- what the lake says -------------------------------------------------------------------------------------


def test_no_file_of_another_writer_is_left_once_its_rows_were_accepted(place: Place):
    before = place.rig.paths(place.row, place.head.stream.metadata)
    for offset in (100, 200):
        place.append(offset)
    theirs = place.rig.paths(place.row, place.stores.ledger.pointer(place.row, "stream")) - before
    assert len(theirs) == 2
    place.accept(300)
    left = place.rig.paths(place.row, place.head.stream.metadata)
    assert before < left and not theirs & left
    assert place.live() == [*foreign((0, 3)), (0, 0, 9)]


def test_a_lake_whose_foreign_rows_were_accepted_is_sound_however_often_they_were(place: Place):
    for number in range(3):
        place.append(100 + number)  # two appends are accepted at once
        place.accept(200 + number)
        assert (place.newest().head, place.newest().strangers) == (place.head.stream, ())
    place.tier(10, 20)
    assert (place.newest().head, place.newest().strangers) == (place.head.stream, ())


def test_rows_that_were_not_accepted_count_as_foreign_whatever_was_accepted_before(place: Place):
    place.accept(100)
    last = place.tier(10, 20)
    place.append(101)
    pointer = place.stores.ledger.pointer(place.row, "stream")
    found = place.stores.lake_histories.of(place.row, pointer, view="stream").at(pointer)
    assert (len(found.strangers), found.is_sound) == (1, False)
    assert place.newest().head == last.stream


def test_a_main_that_was_set_back_to_the_other_writers_snapshot_is_foreign_again(place: Place):
    place.append(100)
    theirs = place.stores.lake.current(place.row, "stream").metadata.current_snapshot()
    assert theirs is not None
    place.accept(101)
    view = place.stores.lake.current(place.row, "stream")
    view.manage_snapshots().set_current_snapshot(theirs.snapshot_id).commit()
    history = place.stores.lake_histories.of(place.row, view.metadata_location, view="stream")
    assert theirs.snapshot_id in history.at(view.metadata_location).strangers


# -- a ledger that was restored -----------------------------------------------------------------------------


def test_a_restored_ledger_adopts_what_came_after_rows_were_accepted(place: Place):
    place.backup()
    move = place.accept(100, 101)
    last = place.tier(10, 20)
    place.restore()
    made = place.adopt()
    assert (made.stream, made.stream_hi) == (last.stream, {0: 20})
    assert [row["move_id"] for row in place.stores.reconciler.accepted(place.row)] == [move]
    assert place.accepted() == [(0, 2, 2)]
    assert place.live() == [*foreign((0, 2)), (0, 0, 9), (0, 10, 19)]
    place.assert_sound()
    assert plan_lake(place.stores, place.row).way is Way.NONE


def test_rows_that_are_accepted_next_lie_behind_those_that_a_restored_ledger_adopted(place: Place):
    place.backup()
    place.accept(100, 101)
    place.tier(10, 20)
    place.accept(102)
    place.restore()
    place.adopt()
    assert place.accepted() == [(0, 2, 2), (2, 3, 1)]
    place.accept(103)
    assert place.accepted() == [(0, 2, 2), (2, 3, 1), (3, 4, 1)]
    assert place.live() == [*foreign((0, 2), (2, 3), (3, 4)), (0, 0, 9), (0, 10, 19)]
    place.assert_sound()


def test_rows_that_were_not_accepted_are_left_out_and_all_before_them_is_adopted(place: Place):
    place.backup()
    place.accept(100, 101)
    last = place.tier(10, 20)
    place.append(102)
    place.restore()
    made = place.adopt()
    assert (made.stream, made.stream_hi) == (last.stream, {0: 20})
    assert place.accepted() == [(0, 2, 2)]
    place.assert_sound()


def test_accepted_rows_that_a_revert_took_back_are_gone_for_a_restored_ledger_too(place: Place):
    place.backup()
    before = place.head
    place.accept(100, 101)
    place.revert(before.version)
    place.tier(10, 20)
    place.restore()
    place.adopt()
    assert place.accepted() == []
    assert place.live() == [(0, 0, 9), (0, 10, 19)]
    place.assert_sound()
    place.accept(102)
    assert place.live() == [*foreign((0, 1)), (0, 0, 9), (0, 10, 19)]
    place.assert_sound()


def test_accepted_rows_that_a_second_revert_brought_back_are_adopted(place: Place):
    place.backup()
    before = place.head
    place.accept(100, 101)
    accepted = place.head
    place.revert(before.version)
    place.revert(accepted.version)
    place.tier(10, 20)
    place.restore()
    place.adopt()
    assert place.accepted() == [(0, 2, 2)]
    assert place.live() == [*foreign((0, 2)), (0, 0, 9), (0, 10, 19)]
    place.assert_sound()


def test_a_ledger_that_knows_of_accepted_rows_adopts_the_later_ones_alone(place: Place):
    known = place.accept(100, 101)
    place.backup()
    place.tier(10, 20)
    later = place.accept(102)
    place.restore()
    place.adopt()
    assert [row["move_id"] for row in place.stores.reconciler.accepted(place.row)] == [known, later]
    assert place.accepted() == [(0, 2, 2), (2, 3, 1)]
    place.assert_sound()


def test_accepted_rows_are_adopted_where_the_lake_has_nothing_else_that_is_newer(place: Place):
    place.backup()
    place.accept(100, 101)
    place.restore()
    place.kafka = Watermark(low=11, end=100)
    plan = plan_lake(place.stores, place.row)
    assert [(r.low, r.high) for r in plan.lost] == [(10, 11)]
    apply_plan(place.stores, place.row, plan)
    assert place.accepted() == [(0, 2, 2)]
    place.assert_sound()


def test_a_lake_with_nothing_newer_than_accepted_rows_that_the_ledger_knows_gives_nothing(place: Place):
    place.accept(100, 101)
    place.backup()
    accepted = place.head
    place.tier(10, 20)
    place.revert(accepted.version)
    place.restore()
    place.kafka = Watermark(low=11, end=100)
    with pytest.raises(NothingToAdopt):
        plan_lake(place.stores, place.row)


@pytest.mark.parametrize("between", [False, True])
def test_accepted_rows_whose_snapshot_was_expired_are_adopted_by_their_files(place: Place, between: bool):
    place.backup()
    place.accept(100, 101)
    place.tier(10, 20)
    if between:
        place.accept(102)
    place.tier(20, 30, keep=2 if between else 1)
    place.restore()
    place.adopt()
    assert place.accepted() == [(0, 2, 2), *([(2, 3, 1)] if between else [])]
    place.assert_sound()
    place.accept(103)
    place.assert_sound()


def test_an_accept_that_the_backup_was_made_in_the_middle_of_keeps_its_move(place: Place):
    """The move is reserved before a file names it, and counts as abandoned until it is accepted."""
    place.backup()
    move = place.accept(100, 101)
    place.tier(10, 20)
    reserved = place.rig.ask("SELECT to_jsonb(m) AS row FROM harness.moves m WHERE move_id = %s", [move])[0]["row"]
    place.restore()
    reserved |= {"state": "ABANDONED", "error": "not taken over", "rows": None, "bytes": None, "committed_at": None}
    place.rig.ask(
        "INSERT INTO harness.moves OVERRIDING SYSTEM VALUE "
        "SELECT * FROM jsonb_populate_record(NULL::harness.moves, %s)",
        [Jsonb(reserved)],
    )
    place.adopt()
    assert [row["move_id"] for row in place.stores.reconciler.accepted(place.row)] == [move]
    place.assert_sound()


def test_a_revert_takes_adopted_rows_of_other_writers_back_and_brings_them_again(place: Place):
    """Each of the moves that accepted them, though the version names the last one alone."""
    before = place.head
    place.backup()
    moves = [place.accept(100, 101), place.accept(102)]
    place.restore()
    place.kafka = Watermark(low=11, end=100)
    apply_plan(place.stores, place.row, plan_lake(place.stores, place.row))
    made = place.head
    for to, undone in ((before, True), (made, False)):
        place.revert(to.version)
        assert [place.undone(move) for move in moves] == [undone, undone]
        place.assert_sound()


# -- a ledger that is gone ----------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [50, 1], ids=["with its snapshot", "by its files"])
def test_a_ledger_that_is_rebuilt_knows_of_the_accepted_rows(place: Place, keep: int):
    place.accept(100, 101)
    place.tier(10, 20)
    place.accept(102)
    last = place.tier(20, 30, keep=keep)
    place.lose()
    place.rebuild()
    assert (place.head.stream, place.head.stream_hi) == (last.stream, {0: 30})
    ranges: Sequence[tuple[int, int, int]] = [(0, 2, 2), (2, 3, 1)] if keep > 1 else [(0, 3, 3)]
    assert place.accepted() == ranges
    place.assert_sound()
    place.accept(103)
    assert place.accepted() == [*ranges, (3, 4, 1)]
    place.assert_sound()


def test_a_ledger_that_is_rebuilt_knows_of_accepted_rows_where_the_lake_has_no_others(untiered: Place):
    place = untiered
    place.accept(100, 101)
    place.lose()
    place.rebuild()
    assert place.accepted() == [(0, 2, 2)]
    assert place.live() == foreign((0, 2))
    place.assert_sound()


def test_a_rebuild_leaves_out_what_was_not_accepted_and_all_that_came_before_it_stays(place: Place):
    place.accept(100)
    last = place.tier(10, 20)
    place.append(101)
    place.lose()
    place.rebuild()
    assert (place.head.stream, place.head.stream_hi) == (last.stream, {0: 20})
    assert place.accepted() == [(0, 1, 1)]
    place.assert_sound()
