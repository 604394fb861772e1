"""A real Nessie follows a table on an object store, though it forgets most of what it is sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog

from harness_pipelines.drivers.files import listed
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.mirrors import VERSION
from harness_pipelines.services import Endpoints
from harness_pipelines.services.s3 import BUCKET
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.mirrored import assert_published_all_along, by_pyiceberg, by_spark, version_of
from harness_pipelines_tests.nessie import Nessie, nessie
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import COORDINATES, TableRig

pytestmark = pytest.mark.long  # the server is 245 MB and wants Java 21

JARS = Path(os.environ.get("HARNESS_JARS", Path(__file__).parents[3] / ".cache" / "jars"))
MIRROR = frozenset({Stage.MIRROR})
ORDER = [(name, "ascending") for name in COORDINATES]


@pytest.fixture(scope="module")
def server(endpoints: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nessie]:
    assert endpoints.s3 is not None
    with nessie(endpoints.s3, f"s3://{BUCKET}/nessie", tmp_path_factory.mktemp("nessie"), jars=JARS) as running:
        running.client().create_namespace("faults")
        yield running


@pytest.fixture
def client(server: Nessie) -> RestCatalog:
    return server.client()


def mirrored(make_rig: MakeRig, server: Nessie, **changes: object) -> TableRig:
    return make_rig(catalogs=[{"name": "lakehouse", "type": "rest", "uri": server.uri}], **changes)


def publish(rig: TableRig, count: int = 10) -> None:
    rig.produce(count)
    rig.ingest()
    rig.tier()


def mirror(rig: TableRig) -> str | None:
    """One round; what holds the mirror up."""
    rig.worker(MIRROR, until_idle=True).run()
    [lag] = rig.stores.mirrors.lags([rig.name])
    return lag.trouble


def name_of(rig: TableRig) -> str:
    return f"faults.{rig.table.row.views['stream']}"


def test_a_table_is_followed_by_a_server_that_keeps_no_history(make_rig: MakeRig, server: Nessie, client: RestCatalog):
    rig = mirrored(make_rig, server)
    probed = rig.stores.foreign_catalog(rig.table.row, rig.table.spec.catalogs[0]).probe()
    assert (probed.is_usable, probed.transactions) == (True, True)
    assert not probed.keeps_snapshots, "the probe says by name what the server does not keep"
    assert not probed.keeps_refs
    assert not probed.elsewhere, "it writes its metadata beside ours, whatever it is asked"
    for _ in range(3):
        publish(rig)
        assert mirror(rig) is None
        head = rig.stores.tables.head(rig.table.row)
        there = client.load_table(name_of(rig))
        assert (there.metadata.current_snapshot_id, there.properties[VERSION]) == (
            head.stream.snapshot,
            str(head.version),
        )
        assert len(there.metadata.snapshots) == 1
        assert version_of(rig, "stream", by_pyiceberg(client, rig)("stream")) == head.version


def test_an_append_to_a_branch_there_replaces_main_and_stops_the_mirror_by_name(
    make_rig: MakeRig, server: Nessie, client: RestCatalog
):
    rig = mirrored(make_rig, server)
    publish(rig)
    assert mirror(rig) is None
    there = client.load_table(name_of(rig))
    ours = there.metadata.current_snapshot_id
    there.manage_snapshots().create_branch(ours, "aside").commit()
    there.append(there.scan(limit=1).to_arrow(), branch="aside")
    assert client.load_table(name_of(rig)).metadata.current_snapshot_id != ours
    publish(rig)

    assert "which no version of the ledger has" in (mirror(rig) or "")

    assert rig.stores.tables.table(rig.name).stopped is None
    rig.assert_exact()


def test_expire_removes_files_of_ours_and_none_that_the_server_names(
    make_rig: MakeRig, server: Nessie, client: RestCatalog
):
    rig = mirrored(make_rig, server, retention={"versions": "1s", "snapshots": 1, "grace": "1s", "lease": "5s"})
    for _ in range(4):
        publish(rig)
        assert mirror(rig) is None
    there = client.load_table(name_of(rig))
    beside = {f.path for f in listed(there.location())}
    assert there.metadata_location in beside
    wanted = by_pyiceberg(client, rig)("stream")

    with rig.working(frozenset({Stage.EXPIRE})):
        wait_until(
            lambda: len({f.path for f in listed(there.location())}) < len(beside),
            "expire removed files",
            deadline_s=120,
        )
    assert client.load_table(name_of(rig)).metadata_location == there.metadata_location
    assert there.metadata_location in {f.path for f in listed(there.location())}
    assert by_pyiceberg(client, rig)("stream").sort_by(ORDER) == wanted.sort_by(ORDER)


def test_each_read_by_pyiceberg_and_spark_is_of_a_published_version_while_a_worker_runs(
    make_rig: MakeRig, server: Nessie, client: RestCatalog
):
    rig = mirrored(make_rig, server, views="both", layout={"columns": ["n", "id"]}, tier={"max_rows": 20})
    publish(rig)
    mirror(rig)
    reads = {
        "PyIceberg": by_pyiceberg(client, rig),
        "Spark": by_spark(rig.stores.spark(), rig, uri=server.uri, options=server.spark_options()),
    }
    assert_published_all_along(rig, reads)
