"""A store whose clock is a day off: neither an order nor an age is decided by it alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.drivers.files import listed
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines.stages.tier.tier import tier_once
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig
from harness_pipelines_tests.store_proxy import StoreProxy

A_GRACE_AGO = """
    SELECT count(*) AS count FROM harness.condemned_files
    WHERE table_id = %s AND since < clock_timestamp() - interval '2 s'
"""


@pytest.fixture
def over(settings: Settings, proxy: StoreProxy) -> Iterator[hp.Harness]:
    """A harness whose warehouse is reached by the proxy; Spark's too."""
    place = f"s3://harness/clocks-{proxy.settings.endpoint.rpartition(':')[2] if proxy.settings.endpoint else ''}"
    with hp.connect(replace(settings, warehouse=place, s3=proxy.settings)) as opened:
        yield opened


def data_files(rig: TableRig) -> set[str]:
    return {file.path for file in listed(rig.stores.warehouse) if file.path.endswith(".parquet")}


def condemned_for_a_grace(rig: TableRig) -> int:
    with rig.stores.database.session() as connection:
        found = connection.execute(A_GRACE_AGO, [rig.table.row.table_id]).fetchone()
    return 0 if found is None else int(found["count"])


def expire(rig: TableRig) -> list[str]:
    claim = rig.claim(Stage.EXPIRE)
    try:
        return expire_once(rig.stores, rig.table.row, claim, remove_large=True).deleted
    finally:
        rig.stores.ledger.release(claim)


@pytest.mark.parametrize("days", [-1, 1], ids=["behind", "ahead"])
def test_files_of_an_open_move_stay_and_versions_keep_their_order(
    make_rig: MakeRig, over: hp.Harness, proxy: StoreProxy, days: int
):
    rig = make_rig(over=over, retention={"versions": "1s", "snapshots": 1, "grace": "1s", "lease": "5s"})
    proxy.ahead = timedelta(days=days)
    for _ in range(2):
        rig.produce(20)
        rig.ingest()
        rig.tier()
    before = data_files(rig)
    rig.produce(20)
    rig.ingest()
    rig.move_once(Stage.TIER, tier_once, crash="after_files")  # its files are there, and its move is open
    written = data_files(rig) - before
    assert written

    expire(rig)
    if days < 0:  # they look a day old
        wait_until(lambda: condemned_for_a_grace(rig) > 0, "files are condemned for longer than the grace")
    assert not set(expire(rig)) & written
    assert written <= data_files(rig)

    versions = [version.version for version in rig.table.versions()]
    assert versions == sorted(versions)
    rig.tier()
    assert rig.stores.ledger.head(rig.table.row).version == versions[-1] + 1
    rig.assert_exact()
    assert audit_table(rig.stores, rig.table.row, processes=1).ok
    assert fsck(rig.stores, [rig.name]).ok


def test_what_nothing_needs_goes_though_the_store_is_a_day_behind(
    make_rig: MakeRig, over: hp.Harness, proxy: StoreProxy
):
    rig = make_rig(over=over, retention={"versions": "1s", "snapshots": 1, "grace": "1s", "lease": "5s"})
    proxy.ahead = timedelta(days=-1)
    for _ in range(3):
        rig.produce(20)
        rig.ingest()
        rig.tier()
    gone: list[str] = []

    def some_went() -> bool:
        gone.extend(expire(rig))
        return bool(gone)

    wait_until(some_went, "metadata files of old versions are deleted")
    rig.assert_exact()
    assert fsck(rig.stores, [rig.name]).ok
