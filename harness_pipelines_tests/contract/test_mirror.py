"""A foreign catalog follows a table, and shows a published version whatever happens to it, to the worker or between."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType

from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.catalogs import rest
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ledgers.postgres.views.mirrors import MirrorLag
from harness_pipelines.ports.errors import MirrorsLeft
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines.protocol.lake.mirrors import VERSION, MirrorNameTaken
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages import mirror
from harness_pipelines.stages.mirror import Mirroring
from harness_pipelines.stages.run.progress import TableProgress
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.catalog_server import TOKEN, CatalogServer
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.contract.test_lake import moved

NAMESPACE = "contract"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path_factory.mktemp("lakehouse")).running() as server:
        server.catalog.create_namespace(NAMESPACE)
        yield server


@pytest.fixture
def server(started: CatalogServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogServer]:
    monkeypatch.setattr(mirror, "PAUSE_S", 0.0)
    monkeypatch.setattr(rest, "WAIT_S", (2.0, 5.0))
    started.seen.clear()
    yield started
    started.heal()
    faults.disarm()


class Mirrored:
    """A table with [0, 50) in the buffer, its mirror and the worker that follows."""

    def __init__(self, real: RealRig, server: Any, **words: Any) -> None:
        named = {"name": "lakehouse", "type": "rest", "uri": server.uri, **words.pop("catalog", {})}
        self.real, self.server = real, server
        self.table: TableRow = real.table(files=True, catalogs=[named], **words)
        real.ingest(self.table, {0: (0, 50)})
        self.tiers, self.claim = real.claim(self.table), real.claim(self.table, Stage.MIRROR)
        self.progress = TableProgress(name=self.table.name)
        self.worker = self.another()
        self.low = 0

    def another(self) -> Mirroring:
        """A worker that knows nothing yet."""
        stores: Any = self.real
        return Mirroring(stores, look_every_s=0.0)

    def publish(self, *, keep: int = 50) -> Version:
        """The next version, whose metadata keeps *keep* snapshots."""
        self.low += 5
        return moved(self.real, self.table, self.tiers, self.low - 5, self.low, keep=keep)

    def step(self, claim: Claim | None = None) -> str | None:
        """One step; what holds the mirror up."""
        self.worker.step(self.table, claim or self.claim, self.progress)
        return self.progress.trouble.get(Stage.MIRROR)

    @property
    def there(self) -> Table:
        found: Table = self.server.table(f"{NAMESPACE}.{self.table.views['stream']}")
        return found

    def shown(self) -> tuple[int | None, str | None]:
        found = self.there.metadata
        return found.current_snapshot_id, found.properties.get(VERSION)

    @property
    def lag(self) -> MirrorLag:
        [found] = self.real.mirrors.lags([self.table.name])
        return found

    def assert_shows(self, version: Version) -> None:
        """The very rows of *version*, by a client that knows nothing of the harness."""
        assert self.shown() == (version.stream.snapshot, str(version.version))
        assert self.there.scan().to_arrow().num_rows == sum(b.stream_hi for b in version.bounds.values())
        assert (self.lag.version, self.lag.behind, self.lag.trouble) == (version.version, 0, None)

    def assert_follows_when_dropped(self, version: Version) -> None:
        """The way on from another writer: drop the mirror, and a worker registers the view again."""
        stores: Any = self.real
        [catalog] = self.table.spec.catalogs
        assert mirror.drop_mirror(stores, self.table, catalog, really=True) == ("stream",)
        assert self.step() is None
        self.assert_shows(version)


@pytest.fixture
def mirrored(real: RealRig, server: CatalogServer) -> Mirrored:
    return Mirrored(real, server, views="stream")


def test_a_mirror_is_registered_and_follows_each_version(mirrored: Mirrored):
    for _ in range(3):
        version = mirrored.publish()
        assert mirrored.step() is None
        mirrored.assert_shows(version)
    assert mirrored.server.seen["register"] == 1


def test_versions_that_were_missed_are_not_sent_one_by_one(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    for _ in range(3):
        newest = mirrored.publish()
    assert mirrored.lag.behind == 3
    assert mirrored.lag.lag_s > 0
    mirrored.server.seen.clear()
    mirrored.step()
    mirrored.assert_shows(newest)
    assert mirrored.server.seen["commit"] == 1


def test_a_server_with_nothing_new_is_asked_rarely(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    mirrored.server.seen.clear()
    stores: Any = mirrored.real
    rested = Mirroring(stores)
    assert not rested.step(mirrored.table, mirrored.claim, mirrored.progress)
    assert mirrored.server.seen.total() == 0


@pytest.mark.parametrize("names", [True, False], ids=["named", "silent"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
def test_both_views_go_in_one_request_where_the_server_can(real: RealRig, tmp_path: Path, together: bool, names: bool):
    with CatalogServer(tmp_path, together=together, names=names).running() as server:
        server.catalog.create_namespace(NAMESPACE)
        both = Mirrored(real, server, views="both")
        both.publish()
        assert both.step() is None
        assert (server.seen["transaction"], server.seen["commit"]) == ((1, 0) if together else (0, 2))
        for view, name in both.table.views.items():
            head = real.ledger.head(both.table)
            found = server.table(f"{NAMESPACE}.{name}").metadata
            assert found.current_snapshot_id == head.views[view].snapshot
        server.seen.clear()
        version = both.publish()  # which changes the stream view alone
        assert both.step() is None
        both.assert_shows(version)
        assert (server.seen["transaction"], server.seen["commit"]) == (0, 1)


@pytest.mark.parametrize("point", [name for name, one in faults.POINTS.items() if one.stage == "mirror"])
def test_a_worker_that_dies_anywhere_is_followed_by_one_that_asks_the_server(mirrored: Mirrored, point: str):
    mirrored.publish()
    if point != "mirror.during_files":
        mirrored.step()
    version = mirrored.publish()
    faults.arm_from({"HARNESS_FAULT": f"{point}=raise"})
    try:
        mirrored.step()
    except faults.FaultInjected:
        assert mirrored.lag.behind > 0
    faults.disarm()
    mirrored.worker = mirrored.another()
    assert mirrored.step() is None
    mirrored.assert_shows(version)
    assert mirrored.server.seen["register"] == 1


@pytest.mark.parametrize("how", ["409 after", "500 after", "503 after", "lost"])
@pytest.mark.parametrize("kind", ["register", "commit"])
def test_an_answer_that_is_lost_or_wrong_is_resolved_by_a_look(mirrored: Mirrored, kind: str, how: str):
    version = mirrored.publish()
    mirrored.server.fail(kind, how, times=1)
    assert mirrored.step() is None
    mirrored.assert_shows(version)
    assert mirrored.server.seen["register"] == 1
    assert mirrored.server.seen["commit"] == 1


@pytest.mark.parametrize("how", ["500 before", "503 before", "429 before"])
@pytest.mark.parametrize("kind", ["load", "register", "commit"])
def test_a_server_with_errors_of_its_own_is_away_by_name_and_the_table_goes_on(mirrored: Mirrored, kind: str, how: str):
    version = mirrored.publish()
    mirrored.server.fail(kind, how)
    trouble = mirrored.step()
    assert trouble is not None
    assert "gave no answer" in trouble
    assert mirrored.lag.trouble == trouble
    assert mirrored.real.ledger.table(mirrored.table.name).stopped is None
    version = mirrored.publish()
    mirrored.server.heal()
    assert mirrored.step() is None
    mirrored.assert_shows(version)


def test_a_server_that_is_down_is_asked_more_and_more_rarely(mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mirror, "PAUSE_S", 1000.0)
    mirrored.publish()
    mirrored.server.stop()
    mirrored.worker = mirrored.another()
    try:
        assert "gave no answer" in (mirrored.step() or "")
    finally:
        mirrored.server.start()
    assert "gave no answer" in (mirrored.step() or "")  # it rests
    assert mirrored.progress.errors[Stage.MIRROR] == 1


def test_a_server_that_went_back_to_a_backup_follows_again(mirrored: Mirrored):
    old = mirrored.publish()
    mirrored.step()
    backup = mirrored.server.backup()
    for _ in range(2):
        newest = mirrored.publish()
        mirrored.step()
    mirrored.assert_shows(newest)
    mirrored.server.restore(backup)
    assert mirrored.shown() == (old.stream.snapshot, str(old.version))
    assert mirrored.step() is None
    mirrored.assert_shows(newest)


def test_a_server_that_lost_the_table_gets_it_again(mirrored: Mirrored):
    version = mirrored.publish()
    mirrored.step()
    mirrored.server.catalog.drop_table(f"{NAMESPACE}.{mirrored.table.views['stream']}")
    assert mirrored.step() is None
    mirrored.assert_shows(version)


def rows_of_another(table: Table) -> pa.Table:
    schema = table.schema().as_arrow()
    row = {
        "id": 1,
        "s": "not ours",
        "_kafka_partition": 0,
        "_kafka_offset": 99,
        "_kafka_timestamp": None,
        "_op": "put",
        "_schema_version": 1,
    }
    return pa.Table.from_pylist([row], schema=schema)


def test_a_foreign_append_stops_the_mirror_and_not_the_table_until_the_mirror_is_dropped(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    there = mirrored.there
    there.append(rows_of_another(there))
    foreign = mirrored.shown()[0]
    version = mirrored.publish()

    trouble = mirrored.step()

    assert "which no version of the ledger has" in (trouble or "")
    assert mirrored.shown()[0] == foreign
    assert mirrored.real.ledger.table(mirrored.table.name).stopped is None
    assert mirrored.lag.trouble == trouble
    mirrored.assert_follows_when_dropped(version)


def test_a_foreign_rollback_stops_the_mirror(mirrored: Mirrored):
    old = mirrored.publish()
    mirrored.step()
    mirrored.publish()
    mirrored.step()
    mirrored.there.manage_snapshots().rollback_to_snapshot(old.stream.snapshot).commit()

    assert "another writer set it back" in (mirrored.step() or "")
    assert mirrored.shown()[0] == old.stream.snapshot


def test_a_foreign_expiry_takes_nothing_that_the_mirror_shows(mirrored: Mirrored):
    old = mirrored.publish()
    mirrored.step()
    mirrored.publish()
    mirrored.step()
    mirrored.there.maintenance.expire_snapshots().by_id(old.stream.snapshot).commit()
    version = mirrored.publish()

    assert mirrored.step() is None
    mirrored.assert_shows(version)


def test_properties_that_another_writer_sets_are_left_to_it(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    with mirrored.there.transaction() as theirs:
        theirs.set_properties({"owner": "them"})
        theirs.remove_properties(VERSION)
    version = mirrored.publish()

    assert mirrored.step() is None
    mirrored.assert_shows(version)
    assert mirrored.there.properties["owner"] == "them"


def test_a_version_that_another_writer_claims_stops_the_mirror(mirrored: Mirrored):
    old = mirrored.publish()
    mirrored.step()
    mirrored.publish()
    mirrored.step()
    with mirrored.there.transaction() as theirs:
        theirs.set_properties({VERSION: str(old.version)})

    assert f"it says that it shows version {old.version}" in (mirrored.step() or "")


def test_a_schema_that_another_writer_changes_is_put_right_by_the_next_version(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    ours = mirrored.there.schema().fields
    with mirrored.there.update_schema() as theirs:
        theirs.add_column("theirs", LongType())
        theirs.delete_column("s")
    version = mirrored.publish()

    assert mirrored.step() is None
    mirrored.assert_shows(version)
    assert mirrored.there.schema().fields == ours


@pytest.mark.parametrize("how", ["400 before", "500 before", "501 before"])
def test_a_server_that_takes_no_removals_is_followed_without_them(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch, how: str
):
    server = mirrored.server
    server.fail("removal", how)
    for _ in range(4):
        version = mirrored.publish(keep=1)
        assert mirrored.step() is None
        mirrored.assert_shows(version)
    assert len(mirrored.there.snapshots()) > 2
    assert server.seen["commit"] == 5, "it is not tried each time"
    server.heal()
    monkeypatch.setattr(rest, "REMOVE_AGAIN_S", 0.0)
    mirrored.worker = mirrored.another()
    version = mirrored.publish(keep=1)
    assert mirrored.step() is None
    mirrored.assert_shows(version)
    assert len(mirrored.there.snapshots()) <= 2


def test_a_table_that_is_there_already_and_not_ours_is_left_alone(mirrored: Mirrored):
    mirrored.publish()
    name = f"{NAMESPACE}.{mirrored.table.views['stream']}"
    other = mirrored.server.catalog.create_table(name, schema=pa.schema([pa.field("x", pa.int64())]))

    assert "that this ledger never registered" in (mirrored.step() or "")
    assert mirrored.there.metadata.table_uuid == other.metadata.table_uuid
    stores: Any = mirrored.real
    [catalog] = mirrored.table.spec.catalogs
    with pytest.raises(MirrorNameTaken):
        mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
    assert mirrored.there.metadata.table_uuid == other.metadata.table_uuid


def test_a_namespace_that_is_missing_is_named(real: RealRig, server: CatalogServer):
    mirrored = Mirrored(real, server, views="stream", catalog={"namespace": "nowhere"})
    mirrored.publish()
    assert "has no namespace nowhere" in (mirrored.step() or "")


def test_a_login_comes_from_a_file_and_a_wrong_one_is_named(real: RealRig, tmp_path: Path):
    token = tmp_path / "token"
    token.write_text("wrong\n")
    with CatalogServer(tmp_path / "guarded", token=TOKEN).running() as server:
        server.catalog.create_namespace(NAMESPACE)
        mirrored = Mirrored(real, server, views="stream", catalog={"properties": {"token": {"file": str(token)}}})
        version = mirrored.publish()
        trouble = mirrored.step() or ""
        assert "refused the login" in trouble
        assert "wrong" not in trouble
        token.write_text(f"{TOKEN}\n")
        mirrored.worker = mirrored.another()
        assert mirrored.step() is None
        mirrored.assert_shows(version)


def test_a_holder_that_was_replaced_notes_nothing(mirrored: Mirrored):
    mirrored.publish()
    mirrored.real.ledger.release(mirrored.claim)
    thief = mirrored.real.claim(mirrored.table, Stage.MIRROR)
    with pytest.raises(FencedOut):
        mirrored.step()
    assert mirrored.step(thief) is None


def files_of(table: Table) -> set[str]:
    """All that a reader of the server's table opens."""
    head = table.metadata.current_snapshot()
    assert head is not None
    found = {table.metadata_location, head.manifest_list}
    for manifest in head.manifests(table.io):
        found |= {manifest.manifest_path}
        found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found


def expired(mirrored: Mirrored) -> list[str]:
    """Two runs of expire, as if weeks went by between; what was deleted."""
    stores: Any = mirrored.real
    deleted: list[str] = []
    for _ in range(2):
        mirrored.real.pass_time(timedelta(days=2))
        mirrored.real.ask(
            "UPDATE harness.condemned_files SET since = since - interval '2 days' WHERE table_id = %s",
            [mirrored.table.table_id],
        )
        claim = mirrored.real.claim(mirrored.table, Stage.EXPIRE)
        deleted += expire_once(stores, mirrored.real.again(mirrored.table), claim).deleted
        mirrored.real.ledger.release(claim)
    return deleted


def test_expire_keeps_what_the_server_still_names_and_no_more(real: RealRig, server: CatalogServer):
    retention = {"versions": "1s", "snapshots": 1, "grace": "1s"}
    mirrored = Mirrored(real, server, views="stream", retention=retention)
    mirrored.publish()
    mirrored.step()
    there = mirrored.there
    named = files_of(there) | {one.metadata_file for one in there.metadata.metadata_log}
    beside = Path(urlsplit(real.ledger.pointer(mirrored.table, "stream")).path).parent / "00007-abc.metadata.json"
    beside.write_text("{}")  # as a server writes its metadata that does not know `write.metadata.path`
    for _ in range(4):
        newest = mirrored.publish()
    for path in beside.parent.iterdir():
        os.utime(path, (0, 0))

    deleted = expired(mirrored)

    assert all(Path(urlsplit(path).path).exists() for path in named)
    assert beside.exists()
    assert mirrored.there.scan().to_arrow().num_rows == 5
    mirrored.claim = real.claim(mirrored.table, Stage.MIRROR)
    assert mirrored.step() is None
    mirrored.assert_shows(newest)
    assert deleted  # what only versions between had
    assert not set(deleted) & named


@pytest.mark.parametrize("asleep", ["before the note", "before the request"])
def test_what_a_follower_sends_after_the_mirror_was_dropped_is_there(
    real: RealRig, server: CatalogServer, monkeypatch: pytest.MonkeyPatch, asleep: str
):
    retention = {"versions": "1s", "snapshots": 1, "grace": "1s"}
    mirrored, stores = Mirrored(real, server, views="stream", retention=retention), cast(Any, real)
    mirrored.publish()
    [catalog] = mirrored.table.spec.catalogs
    folder = Path(urlsplit(real.ledger.pointer(mirrored.table, "stream")).path).parent

    def dropped() -> None:
        mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
        for _ in range(4):
            mirrored.publish()
        for path in folder.iterdir():
            os.utime(path, (0, 0))
        assert expired(mirrored)  # while the follower's lease lives
        later = "UPDATE harness.claims SET lease_until = clock_timestamp() + interval '1 minute' WHERE table_id = %s"
        real.ask(later, [mirrored.table.table_id])

    register = real.mirrors.register

    def noted(*where: Any, **what: Any) -> bool:
        found = register(*where, **what)
        if mirrored.low == 5:
            dropped()
        return found

    if asleep == "before the note":
        faults.arm("mirror.after_plan", dropped)
    else:
        monkeypatch.setattr(real.mirrors, "register", noted)
    mirrored.step()
    if asleep == "before the note":
        assert not server.catalog.table_exists(f"{NAMESPACE}.{mirrored.table.views['stream']}")
    else:
        assert all(Path(urlsplit(path).path).exists() for path in files_of(mirrored.there))
    faults.disarm()
    assert mirrored.step() is None
    mirrored.assert_shows(real.ledger.head(mirrored.table))


@pytest.mark.parametrize("asleep", ["before it intends", "before the note"])
def test_a_server_that_a_worker_reaches_between_its_drop_and_the_ledger_is_followed_or_left_alone(
    real: RealRig, server: CatalogServer, monkeypatch: pytest.MonkeyPatch, asleep: str
):
    retention = {"versions": "1s", "snapshots": 1, "grace": "1s"}
    mirrored, stores = Mirrored(real, server, views="stream", retention=retention), cast(Any, real)
    mirrored.publish()
    mirrored.step()
    mirrored.publish()
    [catalog] = mirrored.table.spec.catalogs
    name = f"{NAMESPACE}.{mirrored.table.views['stream']}"
    at_server, end, drop = threading.Event(), threading.Event(), rest.RestMirror.drop

    def slow(catalog: Any, view: Any) -> bool:
        found = drop(catalog, view)
        at_server.set()
        assert end.wait(60)
        return found

    def begin() -> None:
        operator.start()
        assert at_server.wait(60)

    monkeypatch.setattr(rest.RestMirror, "drop", slow)
    arguments = (stores, mirrored.table, catalog)
    operator = threading.Thread(target=mirror.drop_mirror, args=arguments, kwargs={"really": True}, daemon=True)
    if asleep == "before it intends":
        begin()
    else:
        faults.arm("mirror.after_plan", begin)
    mirrored.step()
    faults.disarm()
    end.set()
    operator.join(60)
    assert server.catalog.table_exists(name) == (asleep == "before it intends")  # it was found without the table

    real.ask(
        "UPDATE harness.mirrors SET dropped_at = dropped_at - interval '61 minutes' WHERE table_id = %s",
        [mirrored.table.table_id],
    )
    for _ in range(4):
        mirrored.publish(keep=1)
    for path in Path(urlsplit(real.ledger.pointer(mirrored.table, "stream")).path).parent.iterdir():
        os.utime(path, (0, 0))
    real.ledger.release(mirrored.claim)
    assert expired(mirrored)
    if server.catalog.table_exists(name):
        assert all(Path(urlsplit(path).path).exists() for path in files_of(mirrored.there))
    else:
        assert not real.mirrors.lags([mirrored.table.name])[0].version


def test_a_drop_that_was_cut_off_is_shown_and_keeps_its_files_until_it_is_finished(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
):
    real, stores, table = mirrored.real, cast(Any, mirrored.real), mirrored.table
    version = mirrored.publish()
    mirrored.step()
    [catalog] = table.spec.catalogs

    def dies(*_: Any) -> bool:
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr(rest.RestMirror, "drop", dies)
        with pytest.raises(InterruptedError):
            mirror.drop_mirror(stores, table, catalog, really=True)
    assert "harness mirror drop" in str(mirrored.lag.trouble)
    [kept] = real.database.rows("mirrors/kept", {"table_id": table.table_id})
    assert kept["holds"] == [version.version]
    for claim in (mirrored.claim, mirrored.tiers):
        real.ledger.release(claim)
    with pytest.raises(MirrorsLeft, match="lakehouse"):
        drop_table(real.owner, table, catalog=CATALOG)

    assert mirror.drop_mirror(stores, table, catalog, really=True) == ("stream",)

    assert (mirrored.lag.trouble, mirrored.lag.version) == (None, None)
    assert not mirrored.server.catalog.table_exists(f"{NAMESPACE}.{table.views['stream']}")


def test_what_a_dropped_mirror_was_sent_is_kept_for_an_hour_and_counts_as_no_mirror(mirrored: Mirrored):
    real, stores, table = mirrored.real, cast(Any, mirrored.real), mirrored.table
    version = mirrored.publish()
    mirrored.step()
    [catalog] = table.spec.catalogs
    mirror.drop_mirror(stores, table, catalog, really=True)
    [kept] = real.database.rows("mirrors/kept", {"table_id": table.table_id})
    assert kept["holds"] == [version.version] and kept["files"]
    assert real.mirrors.state(table, catalog.name).holds == ()
    assert not real.mirrors.forget(table, catalog.name)
    assert mirrored.lag.version is None
    older = "UPDATE harness.mirrors SET dropped_at = dropped_at - interval '61 minutes' WHERE table_id = %s"
    real.ask(older, [table.table_id])
    assert real.database.rows("mirrors/kept", {"table_id": table.table_id}) == []
    assert mirrored.step() is None  # the spec names it still
    [kept] = real.database.rows("mirrors/kept", {"table_id": table.table_id})
    assert kept["holds"] == [version.version]


def test_a_table_is_not_dropped_while_a_catalog_names_its_files(mirrored: Mirrored):
    mirrored.publish()
    mirrored.step()
    for claim in (mirrored.claim, mirrored.tiers):
        mirrored.real.ledger.release(claim)
    with pytest.raises(MirrorsLeft, match="lakehouse"):
        drop_table(mirrored.real.owner, mirrored.table, catalog=CATALOG)
    stores: Any = mirrored.real
    [catalog] = mirrored.table.spec.catalogs
    mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
    assert not mirrored.server.catalog.table_exists(f"{NAMESPACE}.{mirrored.table.views['stream']}")
    drop_table(mirrored.real.owner, mirrored.table, catalog=CATALOG)
    mirrored.real.made.remove(mirrored.table)


def test_a_probe_says_what_the_server_can_and_leaves_nothing(mirrored: Mirrored):
    found = mirrored.real.foreign_catalog(mirrored.table, mirrored.table.spec.catalogs[0]).probe()
    assert found.is_usable
    assert found.transactions
    assert found.keeps_metadata
    assert found.keeps_snapshots
    assert found.elsewhere
    assert [name for _, name in mirrored.server.catalog.list_tables(NAMESPACE) if "probe" in name] == []
