"""Foreign catalogs follow a table: what they show is a published version, whatever happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.mirrors import VERSION
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import TableRig

MIRROR = frozenset({Stage.MIRROR})


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
