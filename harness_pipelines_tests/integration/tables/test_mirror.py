"""Foreign catalogs follow a table: what they show is a published version, whatever happens to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyiceberg.catalog.rest import RestCatalog

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.mirrors import VERSION
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.integration.stores.test_lake_on_s3 import command
from harness_pipelines_tests.mirrored import assert_published_all_along, by_pyiceberg, by_spark
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

MIRROR = frozenset({Stage.MIRROR})
VIEWS = ("stream", "batch")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[CatalogServer]:
    with CatalogServer(tmp_path / "lakehouse").running() as running:
        running.catalog.create_namespace("faults")
        yield running


def mirrored(make_rig: MakeRig, server: CatalogServer, **changes: Any) -> TableRig:
    catalog = {"name": "lakehouse", "type": "rest", "uri": server.uri, **changes.pop("catalog", {})}
    return make_rig(catalogs=[catalog], **changes)


def moved(rig: TableRig, count: int = 10) -> None:
    rig.produce(count)
    rig.ingest()
    rig.tier()


def mirror(rig: TableRig) -> None:
    rig.worker(MIRROR, until_idle=True).run()


def shows(rig: TableRig, server: CatalogServer, view: str = "stream") -> tuple[int | None, str | None]:
    found = server.table(f"faults.{rig.table.row.views[view]}")  # type: ignore[index]
    return found.metadata.current_snapshot_id, found.metadata.properties.get(VERSION)


def there(rig: TableRig, server: CatalogServer, view: str) -> bool:
    return server.catalog.table_exists(f"faults.{rig.table.row.views[view]}")  # type: ignore[index]


def rows(rig: TableRig, server: CatalogServer) -> int:
    return len(server.table(f"faults.{rig.table.row.views['stream']}").scan().to_arrow())


@pytest.mark.long
def test_a_catalog_follows_each_version_and_shows_its_very_rows(make_rig: MakeRig, server: CatalogServer):
    rig = mirrored(make_rig, server)
    for _ in range(3):
        moved(rig)
        mirror(rig)
        head = rig.stores.tables.head(rig.table.row)
        assert shows(rig, server) == (head.stream.snapshot, str(head.version))
    rows = server.table(f"faults.{rig.table.row.views['stream']}").scan().to_arrow()
    assert sorted(rows["id"].to_pylist()) == sorted(one for _, _, one in rig.truth.elements())
    [lag] = rig.stores.mirrors.lags([rig.name])
    assert (lag.version, lag.behind, lag.lag_s, lag.trouble) == (head.version, 0, 0.0, None)


def test_both_views_are_always_those_of_one_version_while_a_worker_runs(make_rig: MakeRig, server: CatalogServer):
    rig = mirrored(make_rig, server, views="both", layout={"columns": ["n", "id"]}, tier={"max_rows": 20})
    seen: set[tuple[int, int]] = set()
    with rig.working(frozenset(Stage)):
        for _ in range(4):
            rig.produce(30)
            wanted = rig.truth.total()

            def shown(wanted: int = wanted) -> bool:
                with server.quiet():  # all in one look
                    pair = [shows(rig, server, view)[0] if there(rig, server, view) else None for view in VIEWS]
                    if None in pair:
                        return False
                    found = rows(rig, server)
                seen.add((pair[0] or 0, pair[1] or 0))
                return found >= wanted

            wait_until(shown, f"{wanted} rows are in the foreign catalog", deadline_s=120)
    published = {(v.stream.snapshot, v.batch.snapshot) for v in rig.stores.tables.versions(rig.table.row) if v.batch}
    assert seen <= published
    assert len(seen) >= 4
    rig.assert_exact()


@pytest.mark.long
def test_each_read_by_pyiceberg_and_spark_is_of_a_published_version_while_a_worker_runs(
    make_rig: MakeRig, server: CatalogServer
):
    rig = mirrored(make_rig, server, views="both", layout={"columns": ["n", "id"]}, tier={"max_rows": 20})
    moved(rig)
    mirror(rig)
    reads = {
        "PyIceberg": by_pyiceberg(RestCatalog("other", uri=server.uri), rig),
        "Spark": by_spark(rig.stores.spark(), rig, uri=server.uri, options={}),
    }
    assert_published_all_along(rig, reads)


def test_fsck_compares_what_the_ledger_noted_with_what_the_server_shows(make_rig: MakeRig, server: CatalogServer):
    rig = mirrored(make_rig, server)

    def checked() -> tuple[list[str], list[str]]:
        found = fsck(rig.stores, [rig.name])
        assert found.unchecked == []
        return [f.detail for f in found.broken if f.invariant == "S38"], [f.detail for f in found.hints]

    moved(rig)
    mirror(rig)
    backup = server.backup()
    moved(rig)
    mirror(rig)
    head = rig.stores.tables.head(rig.table.row).version
    assert checked() == ([], [])

    with rig.stores.database.transaction() as connection:
        planted = "UPDATE harness.mirrors SET version = %s, holds = ARRAY[%s::bigint] WHERE table_id = %s"
        connection.execute(planted, [head - 1, head - 1, rig.table.row.table_id])
    [broken], _ = checked()
    assert f"it shows version {head}, and the ledger noted none but {head - 1}" in broken
    mirror(rig)
    assert checked() == ([], [])

    stream = f"faults.{rig.table.row.views['stream']}"
    server.table(stream).delete("id = 0")
    [broken], _ = checked()
    assert "which no version of the ledger has" in broken

    server.restore(backup)
    nothing, [hint] = checked()
    assert (nothing, f"it went back to version {head - 1}" in hint) == ([], True)
    server.catalog.drop_table(stream)
    nothing, [hint] = checked()
    assert (nothing, "it is not there" in hint) == ([], True)

    server.fail("load", "503 before")
    assert [c.invariant for c in fsck(rig.stores, [rig.name]).unchecked] == ["S38"]


def test_a_login_that_may_only_read_compares_them_too(make_rig: MakeRig, server: CatalogServer, settings: Settings):
    rig = mirrored(make_rig, server)
    moved(rig)
    mirror(rig)
    assert settings.dsn is not None
    name = f"reader_{rig.topic}"
    with psycopg.connect(settings.dsn, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'rosebud-4711' IN ROLE harness_reader".encode())
        try:
            dsn = make_conninfo(settings.dsn, user=name, password="rosebud-4711")
            with hp.connect(replace(settings, dsn=dsn)) as reader:
                found = fsck(reader.stores, [rig.name])
        finally:
            owner.execute(f"DROP ROLE {name}".encode())
    assert (found.unchecked, found.broken) == ([], [])


def test_the_commands_show_probe_and_drop(make_rig: MakeRig, server: CatalogServer):
    rig = mirrored(make_rig, server)
    moved(rig)
    mirror(rig)
    head = rig.stores.tables.head(rig.table.row)
    shown = json.loads(command(rig, "mirror", "status", rig.name, "--json"))
    assert [(m["catalog"], m["version"], m["behind"], m["trouble"]) for m in shown["mirrors"]] == [
        ("lakehouse", head.version, 0, None)
    ]
    [listed] = json.loads(command(rig, "status", rig.name, "--json"))["tables"]
    assert [m["version"] for m in listed["mirrors"]] == [head.version]
    assert "lakehouse shows version" in command(rig, "status", rig.name)
    probed = json.loads(command(rig, "mirror", "probe", rig.name, "--json"))
    assert probed["is_usable"]
    assert probed["transactions"]
    planned = json.loads(command(rig, "mirror", "drop", rig.name, "--dry-run", "--json"))
    assert (planned["views"], planned["dropped"]) == (["stream"], False)
    assert there(rig, server, "stream")
    command(rig, "mirror", "drop", rig.name, "--yes")
    assert not there(rig, server, "stream")
    assert rig.stores.mirrors.lags([rig.name])[0].version is None
