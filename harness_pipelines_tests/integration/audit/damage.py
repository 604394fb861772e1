"""What tests do to a sound table behind the harness's back, and what fsck says of it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from harness_pipelines.audit.fsck.run import fsck as check
from harness_pipelines_tests.integration.audit.conftest import Rig

POSITIONS = ("lake_positions", "ingest_positions")
TABLES = ("tables", "schemas", *POSITIONS, "versions", "moves", "claims", "segments", "quarantine", "outbox", "leases")


def broken(rig: Rig) -> dict[str, list[str]]:
    """{invariant: details} of what fsck reports for the table."""
    report = check(rig.harness.stores, [rig.table.name])
    found: dict[str, list[str]] = {}
    for finding in report.broken:
        assert finding.table == rig.table.name
        found.setdefault(finding.invariant, []).append(finding.detail)
    return found


@contextmanager
def restored(rig: Rig) -> Iterator[None]:
    """Put the ledger's rows of the table back at the end, whatever was done to them."""
    table_id, mark = rig.table.row.table_id, f"kept_{uuid.uuid4().hex[:8]}"
    for name in TABLES:
        rig.sql(f"CREATE TABLE public.{mark}_{name} AS SELECT * FROM harness.{name} WHERE table_id = {table_id}")
    try:
        yield
    finally:
        with psycopg.connect(rig.dsn) as connection:
            connection.execute("SET LOCAL session_replication_role = replica")  # foreign keys look away meanwhile
            for name in TABLES:
                connection.execute(f"DELETE FROM harness.{name} WHERE table_id = {table_id}")
                connection.execute(
                    f"INSERT INTO harness.{name} OVERRIDING SYSTEM VALUE SELECT * FROM public.{mark}_{name}"
                )
                connection.execute(f"DROP TABLE public.{mark}_{name}")


def metadata_of(rig: Rig, version: int) -> str:
    return next(v.stream.metadata for v in rig.table.versions() if v.version == version)


def files_of(rig: Rig, version: int) -> list[str]:
    view = rig.harness.stores.lake.load(rig.table.row, metadata_of(rig, version))
    return [task.file.file_path for task in view.scan().plan_files()]


def of(rig: Rig) -> str:
    """The rows of the table, as a condition of SQL."""
    return f"table_id = {rig.table.row.table_id}"
