"""What expire does where the lake's files are not what the ledger says: the buffer is trimmed all the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from harness_pipelines import faults
from harness_pipelines.drivers import files
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.ledgers.postgres import retention
from harness_pipelines.ledgers.postgres.leases import Leases
from harness_pipelines.ledgers.postgres.named_snapshots import Snapshots, version_named
from harness_pipelines.ports.errors import FilesKept, LakeAway, MetadataMissing
from harness_pipelines.ports.files import FileStore
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.lake.files import LiveFilesUnlisted
from harness_pipelines.protocol.moves import MoveState
from harness_pipelines.stages.table.expire import Expired, expire_once
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig
from harness_pipelines_tests.contract.test_lake import moved

RETENTION = {"versions": "1h"}


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    """Metadata files that a test removes were read before."""
    KEPT.clear()
    yield
    KEPT.clear()


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """One partition with real files; [0, 10) lies in a closed segment, [10, 15) in the open one."""
    return buffered(real, real.table(partitions=1, files=True, retention=RETENTION))


def buffered(real: RealRig, table: TableRow) -> TableRow:
    real.ingest(table, {0: (0, 10)})
    real.segments.rotate(table)
    real.ingest(table, {0: (10, 15)})
    return table


def expire(real: RealRig, table: TableRow, **options: Any) -> Expired:
    stores: Any = real
    claim = real.claim(table, Stage.EXPIRE)
    try:
        return expire_once(stores, real.again(table), claim, **options)
    finally:
        real.ledger.release(claim)


def states(real: RealRig, table: TableRow) -> list[str]:
    return [segment.state for segment in real.segments.all(table)]


def condemned_long_ago(real: RealRig, table: TableRow, path: str = "file:///nowhere/old.parquet") -> None:
    real.ask(
        "INSERT INTO harness.condemned_files (table_id, path, bytes, since) "
        "VALUES (%s, %s, 1000, clock_timestamp() - interval '1 day')",
        [table.table_id, path],
    )


def test_a_version_whose_metadata_file_was_removed_gets_out_of_reach_by_itself(real: RealRig, table: TableRow):
    claim = real.claim(table)
    old, new = moved(real, table, claim, 0, 5), moved(real, table, claim, 5, 15)
    Path(urlsplit(old.stream.metadata).path).unlink()
    KEPT.clear()

    with pytest.raises(MetadataMissing, match=old.stream.metadata.rsplit("/", 1)[-1]):
        expire(real, table)  # it is retained, so somebody has to hear of it

    real.pass_time(2 * HOUR)
    done = expire(real, table)
    assert done.retained_from == new.version
    assert states(real, table) == ["retired", "open"]


@pytest.mark.parametrize("ripe", [True, False], ids=["files to delete", "nothing to delete"])
def test_the_buffer_is_trimmed_though_the_lake_cannot_be_read(real: RealRig, ripe: bool):
    table = buffered(real, real.table(partitions=1, retention=RETENTION))  # a view without any file
    real.move(table, {0: 0}, {0: 15})
    real.pass_time(2 * HOUR)
    if ripe:
        condemned_long_ago(real, table)

    with pytest.raises((LakeAway, MetadataMissing), match="nowhere"):
        expire(real, table)

    assert states(real, table) == ["retired", "open"]
    assert [p.trim_floor for p in real.ledger.positions(table)] == [15]


def test_the_buffer_is_trimmed_though_the_size_guard_holds_the_files(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(retention, "GUARD_FREE_BYTES", 0)
    monkeypatch.setattr(retention, "SHARE_MAX", 0.0)
    moved(real, table, real.claim(table), 0, 15)
    real.pass_time(2 * HOUR)
    orphan = Path(urlsplit(real.ledger.pointer(table, "stream")).path).parent / "orphan.avro"
    orphan.write_bytes(bytes(1000))
    condemned_long_ago(real, table, orphan.as_uri())

    with pytest.raises(retention.SizeGuard, match="nothing was removed"):
        expire(real, table)

    assert states(real, table) == ["retired", "open"]


def test_with_nothing_to_delete_the_lake_is_not_walked(real: RealRig):
    table = real.table(retention=RETENTION)  # a view without any file: to walk it fails

    assert real.upkeep.delete_ripe(table, real.claim(table, Stage.EXPIRE)) == []  # type: ignore[attr-defined]


def test_a_run_that_deletes_files_lists_them_once_and_one_with_nothing_to_delete_never(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    moved(real, table, real.claim(table), 0, 15)
    orphan = orphan_of(real, table, "orphan.avro")
    looks = Counter[str]()
    listed = retention.Upkeep._look

    def counted(upkeep: retention.Upkeep, of: TableRow) -> Any:
        looks[of.name] += 1
        return listed(upkeep, of)

    monkeypatch.setattr(retention.Upkeep, "_look", counted)
    assert orphan.as_uri() in expire(real, table).condemned
    assert looks.total() == 1

    assert not expire(real, table, look=False).looked
    assert looks.total() == 1, "its grace is not over"

    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 day'")
    found = orphan_of(real, table, "found-by-the-way.avro")
    done = expire(real, table, look=False)
    assert (done.looked, done.deleted, orphan.exists()) == (True, [orphan.as_uri()], False)
    assert found.as_uri() in done.condemned
    assert orphan.as_uri() not in done.condemned
    assert looks.total() == 2


# -- files of open moves, holders that sleep ----------------------------------------------------------------


def orphan_of(real: RealRig, table: TableRow, name: str) -> Path:
    """A file beside the view's metadata that looks older than all that there is: the storage's clock is behind."""
    path = Path(urlsplit(real.ledger.pointer(table, "stream")).path).parent / name
    path.write_bytes(bytes(10))
    os.utime(path, (0, 0))
    return path


def test_what_was_condemned_after_an_open_move_was_planned_is_left_to_it(real: RealRig, table: TableRow):
    mover = real.claim(table)
    move = real.plan(table, mover, {0: 0}, {0: 10})
    file = orphan_of(real, table, "of-the-move.avro")
    real.pass_time(timedelta(minutes=30))
    retention: Any = real.upkeep
    assert file.as_uri() in {one.path for one in retention.condemn(table)}
    real.ask("UPDATE harness.condemned_files SET since = since - interval '15 minutes'")
    claim = real.claim(table, Stage.EXPIRE)

    assert retention.delete_ripe(table, claim) == []
    assert file.exists()

    real.ledger.close_move(mover, move, state=MoveState.ABANDONED, error="test")
    assert retention.delete_ripe(table, claim) == [file.as_uri()]


def test_what_a_move_publishes_between_the_listing_and_the_deletion_is_left_to_it(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """What goes is chosen before the lake is looked at: the move is either open then, or the look has its files."""
    mover = real.claim(table)
    move = real.plan(table, mover, {0: 0}, {0: 10})
    file = orphan_of(real, table, "of-the-move.avro")
    real.pass_time(timedelta(minutes=30))
    retention: Any = real.upkeep
    retention.condemn(table)
    real.ask("UPDATE harness.condemned_files SET since = since - interval '15 minutes'")
    look = retention._look

    def published_then(of: TableRow) -> Any:
        seen = look(of)
        real.ledger.close_move(mover, move, state=MoveState.ABANDONED, error="as if it were published")
        return seen

    monkeypatch.setattr(retention, "_look", published_then)
    swept = retention.sweep(table, real.claim(table, Stage.EXPIRE))

    assert swept.deleted == ()
    assert file.exists()


def test_only_what_is_removed_now_is_noted_as_such(real: RealRig, table: TableRow):
    """What is noted cannot be adopted for an hour, so nothing is that still waits for its turn."""
    beside, claim = real.table(partitions=1), real.claim(table, Stage.EXPIRE)
    now, later = "file:///nowhere/now.parquet", "file:///nowhere/later.parquet"
    for of, path in ((table, now), (table, later), (beside, now)):
        condemned_long_ago(real, of, path)

    assert real.upkeep._begin(table, claim, [now]) == {now}  # type: ignore[attr-defined]

    tables = [table.table_id, beside.table_id]
    noted = "SELECT table_id, path FROM harness.condemned_files WHERE removing_since IS NOT NULL AND table_id = ANY(%s)"
    assert real.ask(noted, [tables]) == [{"table_id": table.table_id, "path": now}]


def test_a_holder_that_sleeps_between_two_files_deletes_no_second_one(real: RealRig, table: TableRow):
    files = [orphan_of(real, table, f"{number}.avro") for number in range(2)]
    retention: Any = real.upkeep
    retention.condemn(table)
    real.ask("UPDATE harness.condemned_files SET since = since - interval '1 day'")
    asleep = real.claim(table, Stage.EXPIRE, lease=timedelta(minutes=1))

    def taken_over() -> None:
        real.pass_time(2 * HOUR)
        real.claim(table, Stage.EXPIRE)

    faults.arm("expire.during_trim", taken_over)
    try:
        with pytest.raises(FencedOut):
            retention.delete_ripe(table, asleep)
    finally:
        faults.disarm()

    assert [file.exists() for file in files] == [False, True]


def test_a_read_of_a_pin_keeps_what_answers_for_it_though_the_pin_goes_while_it_is_resolved(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    """The commit after the next one of a state lets go of its pin; it cannot see a lease that is not committed yet."""
    claim = real.claim(table)
    moved(real, table, claim, 0, 5)
    real.ingest(table, {0: (15, 20)})
    Snapshots(real.database).create("pinned", [table])
    moved(real, table, claim, 5, 15)  # answers for the version that is pinned, by its own bounds
    answers = moved(real, table, claim, 15, 20)
    real.ingest(table, {0: (20, 22)})
    moved(real, table, claim, 20, 22)

    def gone_meanwhile(*asked: Any) -> Any:
        found = version_named(*asked)
        real.ask("DELETE FROM harness.snapshots WHERE name = 'pinned'")
        return found

    monkeypatch.setattr("harness_pipelines.ledgers.postgres.leases.version_named", gone_meanwhile)
    state = Leases(real.readers).look(table, holder="reader", lease=24 * HOUR, at="pinned")
    assert state.answered_by is not None and state.answered_by.version == answers.version
    real.pass_time(2 * HOUR)
    for name in os.listdir(folder := Path(urlsplit(answers.stream.metadata).path).parent):
        os.utime(folder / name, (0, 0))

    expire(real, table)

    condemned = {row["path"] for row in real.ask("SELECT path FROM harness.condemned_files")}
    assert condemned and answers.stream.metadata not in condemned


def test_a_listing_asks_for_the_age_of_files_that_nothing_reaches_and_of_no_other(
    real: RealRig, table: TableRow, monkeypatch: pytest.MonkeyPatch
):
    moved(real, table, real.claim(table), 0, 15)
    orphan = orphan_of(real, table, "orphan.avro")
    asked: list[str] = []
    stored = retention._stored

    def noting(found: Any) -> Any:
        asked.append(found.path)
        return stored(found)

    monkeypatch.setattr(retention, "_stored", noting)
    condemned = expire(real, table).condemned
    assert orphan.as_uri() in condemned
    head = real.ledger.head(table)
    needed = {head.stream.metadata, *real.paths(table, head.stream.metadata)}
    assert needed.isdisjoint(asked)


class Store:
    """The files of a folder; what is listed is noted, and the files of *kept* stay."""

    def __init__(self) -> None:
        self.listings = 0
        self.kept: set[str] = set()
        self.late: set[str] = set()  #: files that no listing has yet
        self.uploads_before: list[datetime] = []

    def listed(self, folder: str, *, allow_not_found: bool = True, sizes: bool = True) -> Iterator[Any]:
        self.listings += 1
        found = files.listed(folder, allow_not_found=allow_not_found, sizes=sizes)
        return (file for file in found if file.path not in self.late)

    def size_of(self, location: str) -> int | None:
        return files.size_of(location)

    def batches(self, found: Sequence[Any], paths: Sequence[str]) -> Iterator[Sequence[Any]]:
        return files.batches(found, paths)

    def delete(self, paths: Iterable[str]) -> None:
        asked = list(paths)
        files.delete(path for path in asked if path not in self.kept)
        if left := self.kept.intersection(asked):
            raise files.SomeLeft(f"{min(left)} is locked")

    def abort_uploads(self, folder: str, *, before: datetime) -> int:
        self.uploads_before.append(before)
        return 1

    def keeps_deleted(self, location: str) -> bool | None:
        return True


@pytest.fixture
def store(real: RealRig, monkeypatch: pytest.MonkeyPatch) -> Store:
    made: FileStore = Store()
    monkeypatch.setattr(real.upkeep, "files", made)
    assert isinstance(made, Store)
    return made


def orphans(real: RealRig, table: TableRow, *names: str) -> list[str]:
    """Files that nothing needs, condemned long ago."""
    folder = Path(urlsplit(real.ledger.pointer(table, "stream")).path).parent
    for name in names:
        (folder / name).write_bytes(b"x")
        os.utime(folder / name, (0, 0))
        condemned_long_ago(real, table, (folder / name).as_uri())
    return [(folder / name).as_uri() for name in names]


def test_a_run_that_does_not_look_lists_no_file_and_deletes_what_was_condemned(
    real: RealRig, table: TableRow, store: Store
):
    moved(real, table, real.claim(table), 0, 15)
    assert expire(real, table, look=False).condemned == []
    assert (store.listings, store.uploads_before) == (0, [])
    [orphan] = orphans(real, table, "orphan.avro")
    assert expire(real, table, look=False).deleted == [orphan]
    assert store.listings == len(table.views), "nothing is deleted without a second look, at each view"


def test_a_file_that_the_store_keeps_holds_no_other_up_and_is_asked_for_again(
    real: RealRig, table: TableRow, store: Store
):
    moved(real, table, real.claim(table), 0, 15)
    locked, free = orphans(real, table, "a.avro", "b.avro")
    store.kept = {locked}
    with pytest.raises(FilesKept, match="a.avro is locked"):
        expire(real, table)
    assert [Path(urlsplit(one).path).exists() for one in (locked, free)] == [True, False]
    assert len(store.uploads_before) == len(table.views), "the rest of the run was done"
    store.kept = set()
    assert expire(real, table).deleted == [locked]


def test_a_listing_that_lacks_new_files_holds_expire_up_only_where_they_are_gone(
    real: RealRig, table: TableRow, store: Store
):
    """As of a store that lists what was written a minute late: a busy table always has such files."""
    head = moved(real, table, real.claim(table), 0, 15)
    folder = Path(urlsplit(head.stream.metadata).path).parents[1]
    store.late = {f"file://{path}" for path in folder.rglob("*.parquet")} | {head.stream.metadata}
    [orphan] = orphans(real, table, "orphan.avro")

    with capture_logs() as logs:
        assert expire(real, table).deleted == [orphan]
    assert {one["event"] for one in logs if one["log_level"] == "warning"} >= {"expire.listing_behind"}

    [orphan] = orphans(real, table, "another.avro")
    next(folder.rglob("*.parquet")).unlink()
    with pytest.raises(LiveFilesUnlisted, match="expected to find"):
        expire(real, table)
    assert Path(urlsplit(orphan).path).exists()


def test_uploads_are_aborted_that_are_a_day_older_than_any_open_move(real: RealRig, table: TableRow, store: Store):
    claim = real.claim(table)
    moved(real, table, claim, 0, 5)
    assert expire(real, table).uploads == len(table.views), "one below the folder of each"
    real.plan(table, claim, {0: 5}, {0: 15})
    real.pass_time(timedelta(minutes=30))  # less than what lets a move be orphaned
    expire(real, table)
    first, then = store.uploads_before[0], store.uploads_before[-1]
    assert timedelta(hours=24) < datetime.now(UTC) - first < timedelta(hours=25)
    assert timedelta(minutes=25) < first - then < timedelta(minutes=35)
    assert expire(real, table, dry_run=True).uploads == 0
