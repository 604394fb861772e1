"""A table that is dropped takes all of its own with it, and nothing of anybody else's."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness_pipelines.drivers import files
from harness_pipelines.drivers.object_stores.deletion import delete
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.acts import drop
from harness_pipelines.ledgers.postgres.acts.drop import (
    Droppable,
    FolderPurged,
    TableInUse,
    drop_table,
    purge_noted,
    to_purge,
)
from harness_pipelines.ledgers.postgres.migrations import ledger_database
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.files import FolderShared
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig, fresh_view
from harness_pipelines_tests.contract.test_locks import waits

_OF_TABLES = """
SELECT table_name FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = 'harness' AND column_name = 'table_id' AND table_type = 'BASE TABLE'
"""
_POINTER = """
INSERT INTO public.iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)
VALUES (%s, %s, %s, %s, 'TABLE')
"""


@pytest.fixture
def table(real: RealRig) -> TableRow:
    """Something of everything that is dropped."""
    made = real.table(partitions=1)
    real.ingest(made, {0: (0, 10)})
    for _ in range(2):
        real.segments.rotate(made)
    real.move(made, {0: 0}, {0: 10})
    real.leases.look(made, holder="over", lease=MINUTE)
    real.pass_time(2 * MINUTE)
    real.leases.look(made, holder="reading", lease=HOUR)
    for name, more, values in (
        ("quarantine", '"offset", reason, detail', "3, 'malformed', 'no JSON'"),
        ("contract_violations", "check_name, severity, records", "'positive', 'warn', 1"),
        ("filtered", "records", "1"),
    ):
        real.ask(f"INSERT INTO harness.{name} (table_id, partition, {more}) VALUES (%s, 0, {values})", [made.table_id])
    real.ask(
        "INSERT INTO harness.overlays (segment, table_id, move_id, attempt, schema_version) "
        "SELECT %s, table_id, max(move_id), 1, 1 FROM harness.moves WHERE table_id = %s GROUP BY table_id",
        [f"ovl_{made.table_id}_1_1", made.table_id],
    )
    return made


def left(real: RealRig, table: TableRow) -> set[str]:
    """The ledger's tables that have rows of *table*, and the segments that are there."""
    names = [str(row["table_name"]) for row in real.ask(_OF_TABLES)]
    found = {
        name
        for name in names
        if real.ask(f"SELECT 1 AS n FROM harness.{name} WHERE table_id = %s LIMIT 1", [table.table_id])
    }
    segments = real.ask(
        "SELECT relname FROM pg_class WHERE relname LIKE %s AND relkind = 'r'", [f"seg_{table.table_id}\\_%"]
    )
    pointers = real.ask(
        "SELECT table_name FROM public.iceberg_tables WHERE catalog_name = %s AND table_namespace = %s "
        "AND table_name = ANY(%s)",
        [CATALOG, table.spec.namespace, list(table.views.values())],
    )
    return found | {str(one["relname"]) for one in segments} | {str(one["table_name"]) for one in pointers}


def test_all_of_a_table_goes_and_is_counted_before(real: RealRig, table: TableRow):
    beside = real.table()
    its_views = left(real, beside)
    before, segments = left(real, table), [one.name for one in real.segments.all(table)]
    told = drop_table(real.database, table, catalog=CATALOG, dry_run=True)
    assert left(real, table) == before >= {"overlays", "filtered", *segments, *table.views.values()}
    [moves] = real.ask("SELECT count(*) AS n FROM harness.moves WHERE table_id = %s", [table.table_id])
    assert (told.versions, told.moves, told.quarantined, told.readers) == (2, moves["n"], 1, 1)
    assert [one.name for one in told.segments] == [*segments, f"ovl_{table.table_id}_1_1"]
    assert sorted(told.views) == sorted(f"{table.spec.namespace}.{name}" for name in table.views.values())

    assert drop_table(real.database, table, catalog=CATALOG) == told
    assert left(real, table) == set()
    assert left(real, beside) == its_views >= {*beside.views.values()}
    with pytest.raises(TableUnknown, match="nothing was dropped"):
        drop_table(real.database, table, catalog=CATALOG)


def test_a_table_that_somebody_works_on_is_not_dropped(real: RealRig, table: TableRow):
    over = real.claim(table, Stage.INGEST, lease=MINUTE)
    real.pass_time(2 * MINUTE)
    claim = real.claim(table)
    before = left(real, table)
    with pytest.raises(TableInUse, match=f"tier by {claim.holder} until") as held:
        drop_table(real.database, table, catalog=CATALOG)
    assert over.holder not in str(held.value)
    assert left(real, table) == before
    real.ledger.release(claim)
    drop_table(real.database, table, catalog=CATALOG)
    assert left(real, table) == set()


def test_who_works_on_it_is_named_in_the_order_of_stages(real: RealRig, table: TableRow):
    for stage in (Stage.TIER, Stage.COMPACT, Stage.INGEST):
        real.claim(table, stage)
    for shard in (2, 1):
        assert real.ledger.claim(table, Stage.TIER, shard=shard, holder=str(uuid.uuid4()), lease=HOUR)
    with pytest.raises(TableInUse, match=r"compact by [^,]*, ingest by [^,]*, tier by"):
        drop_table(real.database, table, catalog=CATALOG)


def test_files_of_dropped_tables_go_by_the_name_in_the_order_in_which_they_were_asked_for(
    real: RealRig, tmp_path: Path
):
    folders = {one: (tmp_path / one).as_uri() for one in ("z", "a", "back", "other")}
    for one in folders:
        (tmp_path / one / "data").mkdir(parents=True)
        (tmp_path / one / "data" / "f.parquet").touch()
    (tmp_path / "z" / "letter.txt").touch()
    name = f"contract.t_{uuid.uuid4().hex[:12]}"
    for asked in (["z"], ["z", "a", "back"]):  # the first time it was cut off
        one_called_so = replace(Droppable.of(real.table(views="stream")), name=name)
        drop_table(real.database, one_called_so, catalog=CATALOG, purge=[folders[one] for one in asked])
    elsewhere = real.table(views="stream")
    drop_table(real.database, elsewhere, catalog=CATALOG, purge=[folders["other"]])
    rebuilt = real.table(views="stream")
    real.ask(
        "UPDATE public.iceberg_tables SET metadata_location = %s WHERE catalog_name = %s AND table_namespace = %s "
        "AND table_name = %s",
        # As Spark writes it, which makes the branches of moves.
        [
            f"{folders['back'].replace('file:///', 'file:/')}/metadata/1.json",
            CATALOG,
            rebuilt.spec.namespace,
            rebuilt.tiered_view,
        ],
    )

    assert to_purge(real.owner, name) == [folders["z"], folders["a"]]
    purge_noted(real.owner, name)
    assert to_purge(real.owner, name) == []
    assert [one for one in sorted(folders) if (tmp_path / one / "data" / "f.parquet").exists()] == ["back", "other"]
    assert [path.name for path in (tmp_path / "z").iterdir()] == ["letter.txt"]  # no table wrote it
    assert not (tmp_path / "a").exists()
    assert to_purge(real.owner, elsewhere.name) == [folders["other"]]


@pytest.mark.parametrize("spelling", ["file:///", "file:/", "file://localhost/"])
@pytest.mark.parametrize("part", ["", "/data"])
def test_files_of_another_table_are_not_purged_with_a_view_that_somebody_put_there(
    real: RealRig, tmp_path: Path, spelling: str, part: str
):
    other, table = real.table(views="stream"), real.table(views="stream")
    theirs = (tmp_path / "theirs").as_uri()
    real.ask(
        "UPDATE public.iceberg_tables SET metadata_location = %s WHERE catalog_name = %s AND table_name = %s",
        [f"{theirs.replace('file:///', spelling)}/metadata/1.json", CATALOG, other.tiered_view],
    )
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    before = left(real, table)
    for shared in (f"{theirs}{part}", tmp_path.as_uri(), f"{(tmp_path / 'link').as_uri()}{part}"):
        with pytest.raises(FolderShared, match="another table"):
            drop_table(real.database, table, catalog=CATALOG, purge=[shared])
    assert left(real, table) == before
    drop_table(real.database, table, catalog=CATALOG)


def _dropped(real: RealRig, folder: Path) -> str:
    """The name of a dropped table that leaves a file to be deleted in *folder*."""
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "f.parquet").touch()
    one = real.table(views="stream")
    drop_table(real.database, one, catalog=CATALOG, purge=[folder.as_uri()])
    return one.name


def _made_of(real: RealRig, folder: Path) -> TableRow:
    """A table whose view is in *folder*, as a rebuild makes it."""
    view = replace(fresh_view(), metadata=f"{folder.as_uri()}/metadata/1.json")
    spec = real.spec(views="stream")
    identity = TopicIdentity(cluster_id="c", topic="t", topic_id="i", partitions=(0,))
    return real.ledger.create_table(
        spec, identity, starts={0: 0}, fields=iceberg_fields(spec.columns), views={"stream": view}
    )


def _restored(real: RealRig, folder: Path) -> Path:
    """A file that a backup brings back into *folder*, of which a table is made."""
    path = folder / "data" / "restored.parquet"
    path.parent.mkdir(parents=True)
    path.touch()
    _made_of(real, folder)
    return path


def test_no_table_is_made_of_files_that_are_being_deleted(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The drop sleeps before its first file goes, and somebody rebuilds the table."""
    folder, refused = tmp_path / "taken", []
    name = _dropped(real, folder)

    def sleeping(paths: Sequence[str]) -> None:
        with pytest.raises(FolderPurged, match=f"{name} --purge` deletes the files in {folder.as_uri()}"):
            _made_of(real, folder)
        refused.append(paths)
        delete(paths)

    monkeypatch.setattr(drop, "delete", sleeping)
    purge_noted(real.owner, name)

    assert refused and not folder.exists()
    assert _made_of(real, folder).views  # nothing is deleted there any more


def test_a_table_is_made_of_files_whose_turn_has_not_come(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two folders: while the files of one go, somebody rebuilds the table from the other."""
    first, second = tmp_path / "first", tmp_path / "second"
    name, purged = _dropped(real, first), list[str]()
    one_called_so = replace(Droppable.of(real.table(views="stream")), name=name)
    (second / "data").mkdir(parents=True)
    (second / "data" / "f.parquet").touch()
    drop_table(real.database, one_called_so, catalog=CATALOG, purge=[second.as_uri()])

    def sleeping(paths: Sequence[str]) -> None:
        if not purged:
            _made_of(real, second)
        purged.extend(paths)
        delete(paths)

    monkeypatch.setattr(drop, "delete", sleeping)
    purge_noted(real.owner, name)

    assert purged == [f"{first.as_uri()}/data/f.parquet"]
    assert (second / "data" / "f.parquet").exists()


def test_a_purge_waits_for_who_makes_a_table_and_leaves_its_files(real: RealRig, tmp_path: Path):
    """Else it looks before the other's COMMIT, and both go on."""
    name, folder = _dropped(real, tmp_path / "made"), (tmp_path / "made").as_uri()
    purging = ledger_database(real.dsn, role=None, size=1)

    def make(connection: Connection) -> None:
        connection.execute(sql("drop/lock_purges"))
        pointer = (CATALOG, f"made_{uuid.uuid4().hex}", "t", f"{folder}/metadata/1.json")
        connection.execute(_POINTER, pointer)

    assert waits(real, lambda: purge_noted(purging, name), hold=make) == []
    purging.close()
    assert (tmp_path / "made" / "data" / "f.parquet").exists()


def test_who_makes_a_table_waits_for_a_purge_that_begins_and_is_refused(real: RealRig, tmp_path: Path):
    _dropped(real, tmp_path / "taken")

    def begin(connection: Connection) -> None:
        connection.execute(sql("drop/lock_purges"))
        connection.execute(sql("drop/begin_purge"), {"folder": (tmp_path / "taken").as_uri()})

    [refused] = waits(real, lambda: _made_of(real, tmp_path / "taken"), hold=begin)
    assert isinstance(refused, FolderPurged)


def test_a_pointer_to_nothing_is_no_place_of_a_table(real: RealRig, tmp_path: Path):
    """As another program may leave one in the catalog."""
    name, namespace = _dropped(real, tmp_path / "gone"), f"empty_{uuid.uuid4().hex}"
    real.ask(_POINTER, (CATALOG, namespace, "t", None))
    try:
        purge_noted(real.owner, name)
    finally:
        real.ask("DELETE FROM public.iceberg_tables WHERE table_namespace = %s", [namespace])
    assert not (tmp_path / "gone").exists()


def test_a_table_that_is_made_between_the_look_and_the_first_file_keeps_its_files(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The drop sleeps after it has looked which folders are still nobody's."""
    folder = tmp_path / "rebuilt"
    name, look = _dropped(real, folder), drop.to_purge

    def sleeping(database: Database, wanted: str) -> list[str]:
        found = look(database, wanted)
        _made_of(real, folder)
        return found

    monkeypatch.setattr(drop, "to_purge", sleeping)
    purge_noted(real.owner, name)

    assert (folder / "data" / "f.parquet").exists()


def test_a_purge_that_sleeps_between_two_requests_leaves_the_files_of_a_later_table(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another one ends its work meanwhile; the files come back from a backup, and a table is made of them."""
    folder, restored = tmp_path / "restored", list[Path]()
    name = _dropped(real, folder)

    def sleeping(paths: Sequence[str]) -> None:
        delete(paths)
        monkeypatch.setattr(drop, "delete", delete)
        purge_noted(real.owner, name)
        restored.append(_restored(real, folder))

    monkeypatch.setattr(drop, "delete", sleeping)
    purge_noted(real.owner, name)

    assert [path.exists() for path in restored] == [True]


def test_a_purge_that_sleeps_after_its_last_look_leaves_the_files_of_a_later_table(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, restored, remove = tmp_path / "late", list[Path](), files.remove_folders
    name = _dropped(real, folder)

    def sleeping(place: str) -> None:
        monkeypatch.setattr(drop, "remove_folders", remove)
        purge_noted(real.owner, name)
        restored.append(_restored(real, folder))
        remove(place)

    monkeypatch.setattr(drop, "remove_folders", sleeping)
    purge_noted(real.owner, name)

    assert [path.exists() for path in restored] == [True]


def test_a_purge_forgets_no_note_with_which_another_one_has_begun(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else a table could be made of a file that the other one has listed."""
    folder, remove = tmp_path / "twice", files.remove_empty
    name = _dropped(real, folder)

    def sleeping(place: str) -> None:
        remove(place)
        with real.owner.transaction() as other:
            other.execute(sql("drop/as_owner"))
            other.execute(sql("drop/begin_purge"), {"folder": place})

    monkeypatch.setattr(drop, "remove_empty", sleeping)
    purge_noted(real.owner, name)

    with pytest.raises(FolderPurged):
        _made_of(real, folder)
