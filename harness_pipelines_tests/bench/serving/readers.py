"""Engines that read through a running `harness serve`, and the tables of a peer from where the peer commits.

An engine is begun by the first group that asks for it, and ended with the run. Spark is the one of the run. Trino is
measured where its program is kept already: it is 780 MB.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.engines.spark.session import catalog_options
from harness_pipelines.spec.locations import local_path
from harness_pipelines_tests.bench.base import Run
from harness_pipelines_tests.bench.peer import CATALOG, PeerTable
from harness_pipelines_tests.bench.serving.client import server
from harness_pipelines_tests.engines import duckdb_with_iceberg
from harness_pipelines_tests.integration.serve.server import Served

JARS = Path(os.environ.get("HARNESS_JARS", Path(__file__).parents[3] / ".cache" / "jars"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """An engine that has attached the catalog, and what tables are called in its SQL."""

    query: Callable[[str], pa.Table]
    fresh: Callable[[str], str]
    lake: Callable[[str], str]  #: the batch view alone
    peer: Callable[[PeerTable], str]  #: as it is now


def reader_of(run: Run, engine: str) -> Reader | None:
    """The engine, attached to a catalog over a folder; None, with a line that says why, where it is not there."""
    if why := _missing(run, engine):
        run.say(f"{engine} is left out: {why}")
        return None
    if "served" not in run.shared:
        run.shared["served"] = run.keep(server(run))
    name = f"reader of {engine}"
    if name not in run.shared:
        run.say(f"{engine} attaches the catalog")
        run.shared[name] = run.keep(READERS[engine](run, run.shared["served"]))
    found = run.shared[name]
    assert isinstance(found, Reader)
    return found


def _missing(run: Run, engine: str) -> str | None:
    if engine == "spark" and not run.harness.settings.spark:
        return "there is no Spark"
    if engine == "trino":
        from harness_pipelines_tests.trino import kept_at

        return None if (folder := kept_at(JARS)).exists() else f"it is not in {folder}"
    return None


@contextmanager
def duckdb(run: Run, served: Served) -> Iterator[Reader]:
    connection = duckdb_with_iceberg(run.harness.stores.warehouse)
    for name, warehouse in (("fresh", ""), ("lake", "lake")):
        connection.execute(
            f"ATTACH '{warehouse}' AS {name} (TYPE iceberg, ENDPOINT '{served.url}', TOKEN '{served.token}')"
        )
    with connection:
        yield Reader(
            query=lambda sql: connection.execute(sql).to_arrow_table(),
            fresh=lambda table: f"fresh.{table}",
            lake=lambda table: f"lake.{table}",
            peer=lambda peer: f"iceberg_scan('{_plain(peer.pointer())}')",
        )


@contextmanager
def spark(run: Run, served: Served) -> Iterator[Reader]:
    session = run.harness.stores.spark()
    names = {warehouse: f"h_{uuid.uuid4().hex[:8]}" for warehouse in ("", "lake")}
    for warehouse, name in names.items():
        options = {
            "": "org.apache.iceberg.spark.SparkCatalog", "type": "rest", "uri": served.url, "token": served.token,
            "cache-enabled": "false", **({"warehouse": warehouse} if warehouse else {}),
            **spark_options(run.harness.stores.warehouse, run.harness.settings.s3),
        }  # fmt: skip
        for word, value in options.items():
            session.conf.set(f"spark.sql.catalog.{name}{'.' if word else ''}{word}", value)

    yield Reader(
        query=lambda sql: session.sql(sql).toArrow(),
        fresh=lambda table: f"{names['']}.{table}",
        lake=lambda table: f"{names['lake']}.{table}",
        peer=lambda peer: peer.table,
    )


@contextmanager
def trino(run: Run, served: Served) -> Iterator[Reader]:
    from harness_pipelines_tests.trino import trino as running

    folder = run.harness.settings.home / "bench" / f"trino-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, mode=0o700)
    catalogs = {"fresh": _rest(served, ""), "lake": _rest(served, "lake"), "peer": _jdbc(run)}
    texts = {
        name: _text({"connector.name": "iceberg", "fs.hadoop.enabled": "true", **one}) for name, one in catalogs.items()
    }
    with running(texts, folder, jars=JARS) as found:
        yield Reader(
            query=found.query,
            fresh=lambda table: f"fresh.{table}",
            lake=lambda table: f"lake.{table}",
            peer=lambda peer: peer.table.replace(CATALOG, "peer", 1),
        )


READERS: Mapping[str, Callable[[Run, Served], Any]] = {"duckdb": duckdb, "spark": spark, "trino": trino}


def _rest(served: Served, warehouse: str) -> dict[str, str]:
    named = {"iceberg.rest-catalog.warehouse": warehouse} if warehouse else {}
    return {
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": served.url,
        "iceberg.rest-catalog.security": "OAUTH2",
        "iceberg.rest-catalog.oauth2.token": served.token,
        **named,
    }


def _plain(metadata: str) -> str:
    return local_path(metadata) or metadata


def _jdbc(run: Run) -> dict[str, str]:
    """The catalog that peers commit to; its sessions are not ended for being idle, which Trino would not expect."""
    stores = run.harness.stores
    options = catalog_options(stores.dsn, warehouse=f"{stores.warehouse}/bench_peer", idle_s=0)
    return {
        "iceberg.catalog.type": "jdbc",
        "iceberg.jdbc-catalog.driver-class": "org.postgresql.Driver",
        "iceberg.jdbc-catalog.connection-url": f"{options['uri']}&options={quote(options['jdbc.options'], safe='')}",
        "iceberg.jdbc-catalog.connection-user": options["jdbc.user"],
        "iceberg.jdbc-catalog.connection-password": options["jdbc.password"],
        "iceberg.jdbc-catalog.catalog-name": CATALOG,
        "iceberg.jdbc-catalog.schema-version": options["jdbc.schema-version"],
        "iceberg.jdbc-catalog.default-warehouse-dir": options["warehouse"],
    }


def _text(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in properties.items())
