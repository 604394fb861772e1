"""A foreign catalog follows a table, and shows a published version whatever happens to it, to the worker or between."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import LongType

from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.catalogs import rest
from harness_pipelines.ports.errors import MirrorAway
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.lake.mirrors import VERSION, MirrorNameTaken
from harness_pipelines.stages import mirror
from harness_pipelines.stages.mirror import Mirroring
from harness_pipelines_tests.catalog_server import TOKEN, CatalogServer
from harness_pipelines_tests.contract.mirror_rig import NAMESPACE, Mirrored
from harness_pipelines_tests.contract.stores_rig import RealRig


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


def test_a_page_in_place_of_the_request_for_several_views_sends_them_one_by_one_for_ten_minutes(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ahead_s = 0.0
    monkeypatch.setattr(rest, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s))
    stores: Any = real
    with CatalogServer(tmp_path).running() as server:
        server.catalog.create_namespace(NAMESPACE)
        both = Mirrored(real, server, views="both")
        [catalog] = both.table.spec.catalogs
        both.publish()

        def sent() -> tuple[int, int]:
            """Requests of a round that has to send both views."""
            mirror.drop_mirror(stores, both.table, catalog, really=True)
            server.seen.clear()
            assert both.step() is None
            return server.seen["transaction"], server.seen["commit"]

        server.fail("transaction", "404 page", times=1)
        assert sent() == (1, 2)
        assert sent() == (0, 2)
        ahead_s = 601.0
        assert sent() == (1, 0)


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


def before_it_is_sent(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let *act* happen once, between the look at a server and what is sent to it."""
    send, acts = mirror.Round._send, [act]

    def late(self: mirror.Round, *args: Any) -> bool:
        if acts:
            acts.pop()()
        return send(self, *args)

    monkeypatch.setattr(mirror.Round, "_send", late)


def test_a_foreign_append_between_look_and_commit_is_not_written_over(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
):
    mirrored.publish()
    mirrored.step()
    mirrored.publish()
    there = mirrored.there
    before_it_is_sent(monkeypatch, lambda: there.append(rows_of_another(there)))

    assert "which no version of the ledger has" in (mirrored.step() or "")

    assert mirrored.there.scan(row_filter="s = 'not ours'").to_arrow().num_rows == 1


def test_of_two_ledgers_that_register_one_name_at_once_one_is_refused_by_name(
    mirrored: Mirrored, monkeypatch: pytest.MonkeyPatch
):
    mirrored.publish()
    name = f"{NAMESPACE}.{mirrored.table.views['stream']}"
    columns = pa.schema([pa.field("x", pa.int64())])
    before_it_is_sent(monkeypatch, lambda: mirrored.server.catalog.create_table(name, schema=columns))

    assert "that this ledger never registered" in (mirrored.step() or "")

    assert [one.name for one in mirrored.there.schema().fields] == ["x"]
    assert mirrored.there.snapshots() == []


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


def test_a_login_comes_from_a_file_is_read_again_and_a_wrong_one_is_named(
    real: RealRig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(mirror, "PAUSE_S", 0.0)
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
        assert mirrored.step() is None
        mirrored.assert_shows(version)
        server._token = "of today"
        version = mirrored.publish()
        assert "refused the login" in (mirrored.step() or "")
        token.write_text("of today\n")
        assert mirrored.step() is None, "the worker that was refused reads it again"
        mirrored.assert_shows(version)


def test_a_page_of_a_gateway_is_no_word_of_the_catalog_that_a_table_is_missing(mirrored: Mirrored):
    version = mirrored.publish()
    assert mirrored.step() is None
    stores: Any = mirrored.real
    [catalog] = mirrored.table.spec.catalogs
    mirrored.server.seen.clear()

    mirrored.server.fail("load", "404 page")
    trouble = mirrored.step()
    assert "gave no answer" in (trouble or "")
    assert mirrored.server.seen["register"] == 0
    with pytest.raises(MirrorAway):
        mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
    mirrored.server.heal()
    mirrored.server.fail("drop", "404 page")
    with pytest.raises(MirrorAway):
        mirror.drop_mirror(stores, mirrored.table, catalog, really=True)
    assert mirrored.shown() == (version.stream.snapshot, str(version.version))
    assert mirrored.real.database.rows("mirrors/kept", {"table_id": mirrored.table.table_id}) != []


def test_a_page_of_a_gateway_is_no_missing_namespace(mirrored: Mirrored):
    version = mirrored.publish()
    mirrored.server.fail("register", "404 page")
    trouble = mirrored.step() or ""
    assert "gave no answer" in trouble
    assert "namespace" not in trouble
    mirrored.server.heal()
    assert mirrored.step() is None
    mirrored.assert_shows(version)


def test_a_holder_that_was_replaced_notes_nothing(mirrored: Mirrored):
    mirrored.publish()
    mirrored.real.ledger.release(mirrored.claim)
    thief = mirrored.real.claim(mirrored.table, Stage.MIRROR)
    with pytest.raises(FencedOut):
        mirrored.step()
    assert mirrored.step(thief) is None


def test_a_probe_says_what_the_server_can_and_leaves_nothing(mirrored: Mirrored):
    found = mirrored.real.foreign_catalog(mirrored.table, mirrored.table.spec.catalogs[0]).probe()
    assert found.is_usable
    assert found.transactions
    assert found.keeps_metadata
    assert found.keeps_snapshots
    assert found.elsewhere
    assert [name for _, name in mirrored.server.catalog.list_tables(NAMESPACE) if "probe" in name] == []
