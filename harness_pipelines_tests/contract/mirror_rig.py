"""A table with a mirror in a foreign catalog, the worker that follows it, and the fixtures that make them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyiceberg.table import Table

from harness_pipelines import faults
from harness_pipelines.lakes.iceberg.catalogs import rest
from harness_pipelines.ledgers.postgres.views.mirrors import MirrorLag
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.mirrors import VERSION
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages import mirror
from harness_pipelines.stages.mirror import Mirroring
from harness_pipelines.stages.run.progress import TableProgress
from harness_pipelines_tests.catalog_server import CatalogServer
from harness_pipelines_tests.contract.stores_rig import RealRig
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
