"""What is asked of an object store, and what it answers: on one that runs in this process."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from harness_pipelines.drivers import files
from harness_pipelines.drivers.object_stores.clients import administration, bucket_of
from harness_pipelines.lakes.iceberg.catalog import StagingCatalog, view_schema
from harness_pipelines.ledgers.postgres.acts.drop import purge
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.lake.file_digests import Digest
from harness_pipelines_tests.store_proxy import Fault, StoreProxy

CONSTANT = Fault(status=200, headers={"ETag": '"0f343b0931126a20f133d67c2b018a3b"'})  #: to every PUT, and keeps nothing


class Notes:
    """Of a ledger, which nobody reads."""

    warehouse = None

    def add(self, path: str, digest: Digest) -> None: ...

    def flush(self) -> None: ...

    def ask(self, _: Any) -> dict[str, Digest]:
        return {}


@pytest.fixture
def place(started: tuple[StoreProxy, str]) -> str:
    return f"{started[1]}/{uuid4().hex[:8]}"


@pytest.mark.parametrize("key", ["x//y.parquet", "/y.parquet", "./y.parquet", "x/../y.parquet", "tab\ty.parquet"])
def test_files_with_keys_that_no_engine_writes_go_with_the_others(place: str, key: str):
    bucket, below = bucket_of(place)
    for one in (key, "plain.parquet"):
        administration(place).put_object(Bucket=bucket, Key=f"{below}/{one}", Body=b"x")
    assert len(list(files.listed(place))) == 2

    assert purge(place)

    assert list(files.listed(place)) == []


def test_a_metadata_file_that_a_proxy_did_not_pass_on_is_not_named_by_a_version(proxy: StoreProxy, place: str):
    proxy.fail("CREATE", CONSTANT, path=".metadata.json", times=1)
    catalog = StagingCatalog("harness", warehouse=place, digests=Notes())
    words: dict[str, Any] = {"schema": view_schema([]), "location": f"{place}/view", "properties": {}}

    with pytest.raises(LakeAway, match="did not keep"), reachable("shop.orders", "publishing"):
        catalog.stage_new(("shop", "orders"), **words)
    proxy.forget()
    catalog.stage_new(("shop", "orders"), **words)

    assert proxy.counts() == {"CREATE": 1}, "what a store answers with its tag is not asked for once more"
