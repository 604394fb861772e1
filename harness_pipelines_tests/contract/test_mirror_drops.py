"""What expire keeps for a foreign catalog, and mirrors that are dropped while workers follow them."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from pyiceberg.table import Table

from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.catalogs import rest
from harness_pipelines.ledgers.postgres.acts.drop import drop_table
from harness_pipelines.ports.errors import MirrorsLeft
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.stages import mirror
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.contract.mirror_rig import NAMESPACE, Mirrored
from harness_pipelines_tests.contract.stores_rig import CATALOG, RealRig
from harness_pipelines_tests.producer import DEADLINE_S

RETENTION = {"versions": "1s", "snapshots": 1, "grace": "1s"}


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
    mirrored = Mirrored(real, server, views="stream", retention=RETENTION)
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
    mirrored, stores = Mirrored(real, server, views="stream", retention=RETENTION), cast(Any, real)
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
    mirrored, stores = Mirrored(real, server, views="stream", retention=RETENTION), cast(Any, real)
    mirrored.publish()
    mirrored.step()
    mirrored.publish()
    [catalog] = mirrored.table.spec.catalogs
    name = f"{NAMESPACE}.{mirrored.table.views['stream']}"
    at_server, end, drop = threading.Event(), threading.Event(), rest.RestMirror.drop

    def slow(catalog: Any, view: Any) -> bool:
        found = drop(catalog, view)
        at_server.set()
        assert end.wait(DEADLINE_S)
        return found

    def begin() -> None:
        operator.start()
        assert at_server.wait(DEADLINE_S)

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
    operator.join(DEADLINE_S)
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
