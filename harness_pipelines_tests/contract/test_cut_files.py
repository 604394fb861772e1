"""Expire keeps the files of cuts while their time lasts, and removes them in two runs. Other tables pay nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from harness_pipelines.audit.fsck import cuts
from harness_pipelines.audit.fsck.rule import RULES, Look
from harness_pipelines.drivers import files
from harness_pipelines.drivers.files import ListedFile
from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ledgers.postgres import retention
from harness_pipelines.ledgers.postgres.acts import drop
from harness_pipelines.ledgers.postgres.table_state import TableStates
from harness_pipelines.ports.ledger import TableRow, TableUnknown
from harness_pipelines.ports.serving.cuts import CutOvertaken
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.cut_checks import ListedCut
from harness_pipelines.protocol.cut_rows import CutRow, CutsSeen
from harness_pipelines.protocol.cuts import CONDEMNED_FROM
from harness_pipelines.spec.locations import normal
from harness_pipelines_tests.contract.cut_drafts import Server, server_of
from harness_pipelines_tests.contract.stores_rig import CATALOG, HOUR, MINUTE, RealRig
from harness_pipelines_tests.contract.test_expire import Store, expire
from harness_pipelines_tests.contract.test_lake import moved

RETENTION = {"versions": "1h"}


@pytest.fixture
def table(real: RealRig) -> TableRow:
    made = real.table(partitions=1, files=True, retention=RETENTION)
    real.ingest(made, {0: (0, 15)})
    claim = real.claim(made)
    moved(real, made, claim, 0, 5)
    real.ledger.release(claim)
    return made


@pytest.fixture
def server(real: RealRig, table: TableRow) -> Server:
    return server_of(real, table)


@pytest.fixture
def store(real: RealRig, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    monkeypatch.setattr(real.upkeep, "files", made)
    return made


def path(location: str) -> Path:
    return Path(urlsplit(location).path)


def aged(locations: Iterable[str]) -> None:
    """Let files look as if they had been written long ago."""
    for location in locations:
        os.utime(path(location), (0, 0))


def there(locations: Iterable[str]) -> list[bool]:
    return [path(location).exists() for location in locations]


def over(real: RealRig, table: TableRow) -> None:
    """Let the time of all cuts of *table* end."""
    real.ask("UPDATE harness.cuts SET until = served_at WHERE table_id = %s", [table.table_id])


def ripe(real: RealRig, table: TableRow) -> None:
    """Let the grace of what is condemned pass."""
    real.ask(
        "UPDATE harness.condemned_files SET since = since - interval '1 day' WHERE table_id = %s", [table.table_id]
    )


def condemned(real: RealRig, table: TableRow) -> set[str]:
    return {
        row["path"]
        for row in real.ask("SELECT path FROM harness.condemned_files WHERE table_id = %s", [table.table_id])
    }


def test_the_files_of_a_cut_stay_while_its_time_lasts_and_go_in_two_runs(real: RealRig, server: Server):
    draft = server.look().written()
    server.publish(draft, keep=HOUR)
    aged(draft.files)
    for _ in range(2):
        assert not {*expire(real, server.table).condemned} & {*draft.files}
        ripe(real, server.table)

    over(real, server.table)
    assert {*expire(real, server.table).condemned} >= {*draft.files}
    assert there(draft.files) == [True, True], "what is decided in a run is done in a later one"
    ripe(real, server.table)
    assert {*expire(real, server.table).deleted} >= {*draft.files}
    assert there(draft.files) == [False, False]


def test_a_chunk_stays_for_the_later_cut_that_names_it_again(real: RealRig, server: Server):
    draft = server.look().written()
    first = server.publish(draft, keep=HOUR)
    [chunk] = first.chunks
    again = server.look().written()
    server.publish(
        server.written(server.draft(chunks=(chunk,), files=(again.metadata, chunk.path), metadata=again.metadata)),
        keep=HOUR,
    )
    aged((*draft.files, *again.files))
    real.ask(
        "UPDATE harness.cuts SET until = served_at WHERE table_id = %s AND sequence = %s",
        [server.table.table_id, first.sequence],
    )
    expire(real, server.table)
    found = condemned(real, server.table)
    assert first.metadata in found and not {chunk.path, again.metadata} & found


def test_what_a_server_wrote_and_never_published_is_an_orphan(real: RealRig, server: Server):
    draft = server.look().written()
    refused = f"{server.folder}/refused/data/x.parquet"
    path(refused).parent.mkdir(parents=True)
    path(refused).write_bytes(b"x")
    expire(real, server.table)
    assert not condemned(real, server.table) & {*draft.files, refused}, "a server may be about to publish them"
    aged((*draft.files, refused))
    assert {*expire(real, server.table).condemned} >= {*draft.files, refused}
    ripe(real, server.table)
    assert {*expire(real, server.table).deleted} >= {*draft.files, refused}


def test_whatever_the_grace_is_a_server_has_as_long_as_it_may_go_on_from_what_it_wrote(real: RealRig):
    made = real.table(partitions=1, files=True, retention={**RETENTION, "grace": "1s"})
    server = server_of(real, made)
    draft = server.look().written()
    young = time.time() - CONDEMNED_FROM.total_seconds() + 60
    for location in draft.files:
        os.utime(path(location), (young, young))
    expire(real, made)
    assert not condemned(real, made) & {*draft.files}
    aged(draft.files)  # as the clock of a storage that is behind has it
    expire(real, made)
    assert condemned(real, made) >= {*draft.files}
    real.ask(
        "UPDATE harness.condemned_files SET since = since - %s WHERE table_id = %s",
        [CONDEMNED_FROM - MINUTE, made.table_id],
    )
    server.publish(draft)
    assert expire(real, made).deleted == []
    ripe(real, made)
    expire(real, made)
    assert there(draft.files) == [True, True]
    assert not condemned(real, made) & {*draft.files}, "they are reached again"


def test_the_version_of_a_cut_is_reached_and_holds_no_row_of_the_buffer(real: RealRig, server: Server):
    old = server.look().state.version  # type: ignore[union-attr]
    server.publish(server.written(), keep=24 * HOUR)
    claim = real.claim(server.table)
    moved(real, server.table, claim, 5, 15)
    real.ledger.release(claim)
    real.pass_time(2 * HOUR)
    for folder in (path(old.stream.metadata).parent, path(old.stream.metadata).parent.parent / "data"):
        aged(f"file://{file}" for file in folder.rglob("*") if file.is_file())

    done = expire(real, server.table)

    assert done.retained_from > old.version
    assert done.floor == {0: 15}, "a cut holds no trim floor"
    assert old.stream.metadata not in condemned(real, server.table)
    over(real, server.table)
    expire(real, server.table)
    assert old.stream.metadata in condemned(real, server.table)


def test_a_cut_that_names_what_is_not_there_holds_nothing_up(real: RealRig, server: Server):
    """A reader's login decides what it names."""
    folder = path(real.ledger.pointer(server.table, "stream")).parent
    (folder / "orphan.avro").write_bytes(b"x")
    aged([(folder / "orphan.avro").as_uri()])
    draft = server.look().draft()
    server.publish(replace(draft, files=(*draft.files, f"{server.folder}/metadata/orphan.avro")))
    assert expire(real, server.table).condemned == [(folder / "orphan.avro").as_uri()]


def test_a_cut_keeps_no_file_beside_its_folder(real: RealRig, server: Server):
    """Nor does a row that was written by hand let expire look elsewhere."""
    orphan = path(real.ledger.pointer(server.table, "stream")).parent / "orphan.avro"
    orphan.write_bytes(b"x")
    beside = orphan.parents[2] / "others" / "x.parquet"
    beside.parent.mkdir(exist_ok=True)
    beside.write_bytes(b"x")
    aged([orphan.as_uri(), beside.as_uri()])
    server.look().publish(server.written())
    assert orphan.as_uri() in expire(real, server.table).condemned
    ripe(real, server.table)
    expire(real, server.table)
    assert there([orphan.as_uri(), beside.as_uri()]) == [False, True]


def test_the_size_guard_is_for_the_files_of_the_views(real: RealRig, server: Server, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retention, "GUARD_FREE_BYTES", 0)
    draft = server.look().written(bytes_each=1_000_000)
    server.publish(draft)
    over(real, server.table)
    aged(draft.files)
    expire(real, server.table)
    ripe(real, server.table)
    assert {*expire(real, server.table).deleted} >= {*draft.files}

    big = server.look().written(bytes_each=1_000_000)
    folder = path(real.ledger.pointer(server.table, "stream")).parent.parent / "data"
    (folder / "lost.parquet").write_bytes(bytes(900_000))
    aged([(folder / "lost.parquet").as_uri()])
    expire(real, server.table)
    ripe(real, server.table)
    with pytest.raises(retention.SizeGuard):
        expire(real, server.table)
    assert there(big.files) == [True, True]


def test_metadata_files_of_cuts_go_though_the_table_is_mirrored(real: RealRig, server: Server):
    """Beside the views such a file may be a foreign catalog's."""
    draft = server.look().written()
    real.ask("INSERT INTO harness.mirrors (table_id, catalog) VALUES (%s, 'there')", [server.table.table_id])
    aged(draft.files)
    assert {*expire(real, server.table).condemned} >= {*draft.files}


@pytest.mark.parametrize(
    ("own", "fresh", "taken"), [(30, 30, (10, 10)), (30, 4, (16, 4)), (3, 30, (3, 17)), (5, 5, (5, 5))]
)
def test_files_of_cuts_and_those_of_the_views_wait_for_none_of_the_other(
    real: RealRig, server: Server, monkeypatch: pytest.MonkeyPatch, own: int, fresh: int, taken: tuple[int, int]
):
    """A run deletes a bounded number; those of cuts are many, and were condemned before."""
    monkeypatch.setattr(retention, "FILES_PER_RUN_MAX", 20)
    server.look()
    folder = path(real.ledger.pointer(server.table, "stream")).parent
    places = {"own": [folder / f"orphan-{n}.avro" for n in range(own)]}
    places["fresh"] = [path(f"{server.folder}/data/orphan-{n}.parquet") for n in range(fresh)]
    for file in (*places["own"], *places["fresh"]):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x")
    aged(file.as_uri() for file in (*places["own"], *places["fresh"]))
    expire(real, server.table)
    ripe(real, server.table)
    of_cuts = "UPDATE harness.condemned_files SET since = since - interval '1 day' WHERE path LIKE %s AND table_id = %s"
    real.ask(of_cuts, ["%/data/%", server.table.table_id])
    expire(real, server.table)
    left = [sum(file.exists() for file in files) for files in places.values()]
    assert left == [own - taken[0], fresh - taken[1]]


# -- what it costs ------------------------------------------------------------------------------------------


def statements(monkeypatch: pytest.MonkeyPatch, real: RealRig, table: TableRow) -> list[str]:
    """The names of the statements that are run from now on, but those of transactions and of other tables."""
    seen: list[str] = []

    def noting(ask: Any) -> Any:
        def noted(self: Database, name: str, *given: Any, **words: Any) -> Any:
            parameters = given[0] if given and isinstance(given[0], dict) else {}
            if self in mine and parameters.get("table_id", table.table_id) == table.table_id:
                seen.append(name)
            return ask(self, name, *given, **words)

        return noted

    # An installation that another test has open is asked too: for digests of files that no ledger is known for.
    mine = {real.database, real.readers, real.owner}
    for word in ("rows", "streamed"):
        monkeypatch.setattr(Database, word, noting(getattr(Database, word)))
    return seen


def test_a_table_that_no_server_served_costs_no_statement_and_no_listing_for_cuts(
    real: RealRig, server: Server, store: Store, monkeypatch: pytest.MonkeyPatch
):
    expire(real, server.table)
    assert store.listings == len(server.table.views)
    asked = statements(monkeypatch, real, server.table)
    expire(real, server.table)
    assert not [name for name in asked if name.startswith("cuts/")]
    server.look().publish(server.written())
    asked.clear()
    store.listings = 0
    expire(real, server.table)
    assert store.listings == len(server.table.views) + 1
    assert sorted(name for name in asked if name.startswith("cuts/")) == ["cuts/reached_files", "cuts/reached_versions"]


def test_nine_thousand_live_cuts_cost_as_many_statements_as_one(
    real: RealRig, server: Server, monkeypatch: pytest.MonkeyPatch
):
    server.look().publish(server.written(), keep=24 * HOUR)
    fill = (
        "INSERT INTO harness.cuts (table_id, sequence, snapshot_id, timestamp_ms, version, schema_version, bounds,"
        " metadata, chunks, parts, files, number, served_at, until)"
        " SELECT table_id, sequence + n, snapshot_id + n, timestamp_ms + n, version, 1, bounds, metadata, '[]', '{}',"
        " ARRAY(SELECT split_part(metadata, '/metadata/', 1) || '/data/' || n || '-' || m"
        " FROM generate_series(1, 3) m),"
        " number + n, served_at, until FROM harness.cuts, generate_series(1, 9000) n WHERE table_id = %s"
    )
    real.ask(fill, [server.table.table_id])
    folder = server.folder
    names = [f"{folder}/data/{n}-{m}" for n in range(1, 9001) for m in (1, 2, 3)]
    lost = [f"{folder}/data/lost-{n}" for n in range(9000)]
    listed = real.upkeep.files.listed  # type: ignore[attr-defined]

    class Many(Store):
        def listed(self, of: str, *, allow_not_found: bool = True, sizes: bool = True) -> Any:
            if normal(of) != normal(folder):
                return listed(of, allow_not_found=allow_not_found, sizes=sizes)
            old = timedelta(days=9)
            now = real.ask("SELECT clock_timestamp() AS now")[0]["now"]
            return iter([ListedFile(path=normal(one), bytes=1, modified=now - old) for one in (*names, *lost)])

    monkeypatch.setattr(real.upkeep, "files", Many())
    claim = real.claim(server.table, Stage.EXPIRE)
    times: dict[str, float] = {}

    def timed(name: str, act: Any) -> Any:
        began = time.monotonic()
        try:
            return act()
        finally:
            times[name] = time.monotonic() - began

    upkeep: Any = real.upkeep
    timed("trim", lambda: upkeep.trim(real.again(server.table), claim))
    found = timed("condemn", lambda: upkeep.condemn(server.table))
    assert {file.path for file in found} == {normal(one) for one in lost} | {
        file.path for file in found if "lost-" not in file.path and "__fresh-" not in file.path
    }
    asked = statements(monkeypatch, real, server.table)
    upkeep.condemn(server.table)
    assert sorted(name for name in asked if name.startswith("cuts/")) == ["cuts/reached_files", "cuts/reached_versions"]
    assert len(asked) < 20, " ".join(asked)  # the report cuts a long list short
    over(real, server.table)
    timed("trim of all", lambda: upkeep.trim(real.again(server.table), claim))
    assert real.ask("SELECT count(*) AS n FROM harness.cuts WHERE table_id = %s", [server.table.table_id]) == [{"n": 1}]
    print({name: round(s, 2) for name, s in times.items()})
    assert max(times.values()) < 60, times


# -- what fsck sees -----------------------------------------------------------------------------------------


def said_by(row: CutRow | None) -> ListedCut:
    """What metadata says that is as the ledger's row. That of real cuts is read in `test_cut_damage.py`."""
    assert row is not None
    return ListedCut(
        snapshot_id=row.snapshot_id,
        sequence=row.sequence,
        version=row.version,
        bounds={p: (0, 0, 0, high) for p, high in row.high.items()},
        freshness="fresh",
    )


def found_by_fsck(real: RealRig, table: TableRow) -> dict[str, list[str]]:
    books = TableStates(real.database, CATALOG).books(table.name)
    stores: Any = SimpleNamespace(
        files=files,
        table_states=TableStates(real.database, CATALOG),
        cut_files=SimpleNamespace(listed=lambda metadata: said_by(books.cuts.newest)),
    )
    look = Look(books=books, surveys=None, log=None, cut_files=cuts.seen_in(books, stores))
    named = [rule for rule in RULES if rule.invariant.startswith("F") and not rule.missing(look)]
    return {rule.invariant: found for rule in named if (found := [one.detail for one in rule.check(look)])}


def test_fsck_finds_cuts_that_were_changed_by_hand_and_files_that_are_gone(real: RealRig, server: Server):
    for _ in range(3):
        server.look().publish(server.written(bytes_each=100), keep=HOUR)
    assert found_by_fsck(real, server.table) == {}
    newest, *_ = server.cuts.newest(server.table)
    assert newest is not None
    path(newest.files[1]).unlink()
    key = [server.table.table_id, newest.sequence]
    for change in ("timestamp_ms = 1", "bounds = '{\"0\": [0, 0, 5, 6]}'", "version = 99", "bounds = '{\"0\": 7}'"):
        real.ask(f"UPDATE harness.cuts SET {change} WHERE table_id = %s AND sequence = %s", key)
    found = found_by_fsck(real, server.table)
    assert sorted(found) == ["F2", "F3", "F5"]
    assert found["F3"] == [
        f"cut {newest.sequence} is of version 99, which is gone",
        f"{newest.files[1]} is not there; a cut names it, of which queries fail; {cuts.WAY_ON}",
    ]
    over(real, server.table)
    assert "F3" not in found_by_fsck(real, server.table), "its time has ended"


def test_fsck_names_a_chunk_that_was_cut_off_and_nothing_of_a_retired_cut(real: RealRig, server: Server):
    draft = server.look().written(bytes_each=100)
    cut = server.publish(draft, keep=HOUR)
    assert found_by_fsck(real, server.table) == {}
    path(draft.chunks[0].path).write_bytes(b"x")
    path(draft.metadata).unlink()
    [lost, cut_off] = sorted(found_by_fsck(real, server.table)["F3"], key=lambda said: "chunk" in said)
    assert lost.startswith(f"{draft.metadata} is not there") and "has another size" in cut_off
    server.cuts.retire(cut)
    assert found_by_fsck(real, server.table) == {}, "it is known, and no server shows it"


def test_fsck_asks_for_nothing_more_where_no_server_served(real: RealRig, server: Server):
    books = TableStates(real.database, CATALOG).books(server.table.name)
    assert (books.cuts, books.cut_folders, books.buffered_bytes) == (CutsSeen(), (), 0)
    server.look()
    books = TableStates(real.database, CATALOG).books(server.table.name)
    assert [*books.cut_folders] == [server.folder] and books.buffered_bytes > 0


# -- the end of a table -------------------------------------------------------------------------------------


def test_a_purge_takes_the_folder_of_cuts_too(real: RealRig, server: Server):
    draft = server.look().written()
    refused = f"{server.folder}/refused/x.parquet"
    path(refused).parent.mkdir(parents=True)
    path(refused).write_bytes(b"x")
    cut = server.publish(draft)
    seen = drop.drop_table(real.owner, server.table, catalog=CATALOG, dry_run=True)
    folders = [drop.location_of(place) for place in seen.metadata]
    drop.drop_table(real.owner, server.table, catalog=CATALOG, purge=[*folders, *seen.fresh])
    real.made.remove(server.table)
    assert drop.purge_noted(real.owner, server.table.name) == [server.folder]
    assert there([*draft.files, refused]) == [False, False, False]
    with pytest.raises(CutOvertaken):
        server.cuts.serve(cut, keep=MINUTE)


def test_a_purge_ends_when_no_server_can_write_any_more(real: RealRig, server: Server):
    """One that was making a cut when the table was dropped writes after the listing."""
    draft = server.look().written()
    seen = drop.drop_table(real.owner, server.table, catalog=CATALOG, dry_run=True)
    drop.drop_table(real.owner, server.table, catalog=CATALOG, purge=seen.fresh)
    real.made.remove(server.table)
    for _ in range(2):
        assert drop.purge_noted(real.owner, server.table.name) == [server.folder]
        assert there(draft.files) == [False, False]
        server.written(draft)
        with pytest.raises(TableUnknown, match="is not there any more"):
            server.publish(draft)
    real.ask(
        "UPDATE harness.purges SET asked_at = asked_at - interval '5 minutes' WHERE name = %s", [server.table.name]
    )
    assert drop.purge_noted(real.owner, server.table.name) == []
    assert there(draft.files) == [False, False] and not path(server.folder).exists()
    assert drop.to_purge(real.owner, server.table.name) == []
