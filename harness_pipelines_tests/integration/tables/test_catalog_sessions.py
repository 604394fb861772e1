"""The connections that Spark's Iceberg catalog keeps: none is left behind, and none is missed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

import harness_pipelines as hp
from harness_pipelines.engines.spark import session as stores_spark
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

OPEN = """
    SELECT count(*) FROM pg_stat_activity
    WHERE application_name = %s AND query LIKE 'SELECT * FROM iceberg_tables%%'
"""


@pytest.mark.usefixtures("by_spark")
def test_an_idle_catalog_gives_its_connections_back_and_connects_anew_by_itself(
    make_rig: Callable[..., TableRig], settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    name = f"catalog {uuid.uuid4().hex[:8]}"
    monkeypatch.setattr(stores_spark, "catalog_options", partial(stores_spark.catalog_options, idle_s=1))

    def sessions() -> int:
        with psycopg.connect(settings.dsn or "") as owner:  # roles do not see each other's statements
            row = owner.execute(OPEN, [name]).fetchone()
        assert row is not None
        return int(row[0])

    with hp.connect(replace(settings, dsn=make_conninfo(settings.dsn or "", application_name=name))) as other:
        rig = make_rig(other)
        rig.produce(10)
        rig.ingest()
        with ThreadPoolExecutor(1) as thread:  # a session may end as soon as tier is done with it
            opened = thread.submit(wait_until, lambda: sessions() > 0, "the catalog has a session")
            rig.tier()
            opened.result()
        wait_until(lambda: sessions() == 0, "Postgres has ended the catalog's sessions")
        rig.produce(10)
        rig.ingest()
        rig.tier()
        rig.assert_exact()
        assert [move["attempt"] for move in rig.stores.tables.moves(rig.table.row, stage=Stage.TIER, limit=5)] == [1, 1]
