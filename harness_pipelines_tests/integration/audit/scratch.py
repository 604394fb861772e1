"""A database of its own on the shared server, that can be dumped, lost and restored, with a warehouse of its own."""

from __future__ import annotations

import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

import harness_pipelines as hp
from harness_pipelines.app.checks import no_gap_no_overlap, rows_are_conserved
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.audit.proof.complete import audit_table
from harness_pipelines.drivers.files import listed
from harness_pipelines.drivers.object_stores.marks import read_mark, replace_mark
from harness_pipelines.lakes.owner import MARK
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.lake_files import moved_away
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import TableRig, new_warehouse, settings_for

TABLES = ("tables", "moves", "versions", "lake_positions", "ingest_positions", "claims", "leases", "outbox", "segments")


class Scratch:
    """The database, its warehouse, and one harness on both; after a restore the harness is another one."""

    def __init__(self, endpoints: Endpoints, folder: Path, kafka: KafkaRig) -> None:
        assert endpoints.postgres is not None
        self._server, self._folder, self.kafka = endpoints.postgres, folder, kafka
        self._endpoints = endpoints
        self._databases: list[str] = []
        self.warehouse = new_warehouse(endpoints, folder)
        self.harness = self._make(f"rec_{uuid.uuid4().hex[:10]}")

    def rig(self, **spec: Any) -> TableRig:
        return TableRig(self.harness, self.kafka, **spec)

    @property
    def settings(self) -> Settings:
        return settings_for(self._endpoints, self._folder, dsn=self.dsn, warehouse=self.warehouse)

    @property
    def mark(self) -> str:
        """The file that names whose the warehouse is."""
        return f"{self.warehouse}/{MARK}"

    def let_mark_be(self, content: bytes) -> None:
        """Write over the mark as another ledger does it: whole, or not at all."""
        assert replace_mark(self.mark, content, seen=read_mark(self.mark))

    @property
    def dsn(self) -> str:
        return make_conninfo(self._server, dbname=self.database)

    def rows(self) -> dict[str, list[Any]]:
        """Every row of the ledger, for those who say that they change none."""
        with psycopg.connect(self.dsn) as connection:
            found = {
                name: sorted(map(repr, connection.execute(f"SELECT * FROM harness.{name}").fetchall()))
                for name in TABLES
            }
            pointers = connection.execute("SELECT * FROM public.iceberg_tables").fetchall()
        return {**found, "pointers": sorted(map(repr, pointers))}

    def sql(self, text: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def dump(self) -> Path:
        """A backup of the database, by pg_dump."""
        backup = self._folder / f"{uuid.uuid4().hex[:8]}.dump"
        subprocess.run([_tool("pg_dump"), "-Fc", "-f", backup, "-d", self.dsn], check=True, timeout=300)
        return backup

    def restore(self, backup: Path, rig: TableRig, *, beside: bool = False) -> None:
        """Bring *backup* back in place of the database, or in one *beside* it; *rig* goes on there."""
        self.harness.close()
        if beside:
            self._create(f"rec_{uuid.uuid4().hex[:10]}")
        else:
            self.sql("DROP SCHEMA harness CASCADE; DROP SCHEMA harness_buffer CASCADE; DROP SCHEMA public CASCADE")
            self.sql("CREATE SCHEMA public")
        subprocess.run(
            [_tool("pg_restore"), "--clean", "--if-exists", "-d", self.dsn, backup],
            check=True, timeout=300, capture_output=True,
        )  # fmt: skip
        self.reopen(rig)

    def lose(self) -> None:
        """The database is gone; a new one is there after `init`."""
        self.harness.close()
        self.harness = self._make(f"rec_{uuid.uuid4().hex[:10]}")

    def reopen(self, rig: TableRig) -> None:
        """*rig* goes on in a harness that has looked at nothing yet."""
        self.harness.close()
        self.harness = hp.connect(self.settings)
        self.resume(rig)

    def resume(self, rig: TableRig) -> None:
        """Let *rig* look at its table through the harness of now."""
        rig.harness, rig.table = self.harness, self.harness.table(rig.name)

    def close(self) -> None:
        self.harness.close()
        for name in self._databases:
            self._on_server(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _make(self, name: str) -> hp.Harness:
        self._create(name)
        harness = hp.connect(self.settings)
        harness.init()
        return harness

    def _create(self, name: str) -> None:
        self._databases.append(name)
        self.database = name
        self._on_server(f"CREATE DATABASE {name}")

    def _on_server(self, text: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(text)


@contextmanager
def unmounted(folder: str) -> Iterator[None]:
    """Nothing is in *folder* for the length of the block; a local one is not there at all."""
    if (path := local_path(folder)) is None:
        with moved_away(*(file.path for file in listed(folder))):
            yield
        return
    aside = Path(path).rename(f"{path}.aside")
    try:
        yield
    finally:
        aside.rename(path)


@contextmanager
def scratch(endpoints: Endpoints, folder: Path) -> Iterator[Scratch]:
    """A scratch database while the block lasts, with a warehouse that nobody has: in *folder*, or in the bucket."""
    assert endpoints.kafka is not None
    kafka = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    made = Scratch(endpoints, folder, kafka)
    try:
        yield made
    finally:
        made.close()
        kafka.close()


def work(rig: TableRig) -> None:
    """Let a worker take and move all that there is."""
    Worker(rig.stores, [rig.table.row], WorkerOptions(until_idle=True)).run()


def assert_sound(rig: TableRig) -> None:
    """Audit, fsck and the checks have nothing to say against the table."""
    audited = audit_table(rig.stores, rig.table.row, full=True)
    assert audited.ok, audited.to_json()
    broken = fsck(rig.stores, [rig.name]).broken
    assert not broken, broken
    for check in (no_gap_no_overlap, rows_are_conserved):
        assert check(rig.stores, rig.table.row).passed, check


def forget(rig: TableRig) -> None:
    """Kafka drops every record that there is."""
    for partition in rig.kafka.acked(rig.topic):
        end = rig.kafka.log.watermarks(rig.topic, [partition])[partition].end
        dropped = dict(rig.kafka.acked(rig.topic)[partition])
        rig.kafka.delete_records(rig.topic, partition, end)
        rig.kafka.ledger.add(rig.topic, partition, dropped.items())  # acknowledged is acknowledged


def _tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is needed: install the client programs of Postgres"
    return found
