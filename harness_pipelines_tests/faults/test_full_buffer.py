"""A buffer at its limit, and a Postgres without room: what waits is named, nothing is lost, all goes on by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import harness_pipelines as hp
from harness_pipelines.cli.main import cli
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.pressure import BufferFull
from harness_pipelines.services import Services
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines.stages.table.expire import expire_once
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import INGEST, TIER, TableRig, await_trouble, environment, running
from harness_pipelines_tests.scrape import scrape_ledger, served

DISK_BYTES = 400 * 2**20
FULL = "ingest is paused: the buffers of all tables have"


@contextmanager
def tight(rig: TableRig) -> Iterator[hp.Harness]:
    """Another harness over the same services, for which the buffers of all tables are full."""
    with hp.connect(replace(rig.stores.settings, buffer_gb=1e-9)) as opened:
        yield opened


def buffered(rig: TableRig) -> int:
    return sum(high for _, high in rig.status().values())


def status(rig: TableRig) -> dict[str, Any]:
    shown = CliRunner().invoke(cli, ["status", rig.name, "--json"], env=environment(rig.stores.settings))
    [one] = json.loads(shown.stdout)["tables"]
    found: dict[str, Any] = one
    return found


def test_a_full_buffer_pauses_ingest_by_name_and_kafka_keeps_the_rest(rig: TableRig, monkeypatch: pytest.MonkeyPatch):
    rig.produce(100)
    rig.ingest()
    rig.produce(50)
    with tight(rig) as harness:
        worker = Worker(harness.stores, [rig.table.row], WorkerOptions(stages=INGEST))
        with running(worker):
            said = await_trouble(worker, Stage.INGEST)

            assert said.startswith(f"{rig.name}: {FULL}"), said
            assert buffered(rig) == 200
            assert rig.read(tail=True) == rig.truth
            seen = status(rig)
            assert (seen["state"], seen["buffer"]["paused"]["limit"]) == ("paused", "server")
            shown = CliRunner().invoke(cli, ["status", rig.name], env=environment(rig.stores.settings))
            assert FULL in " ".join(shown.output.split())
            with served(worker, rig.table) as url:
                found = scrape_ledger(url)
                assert found.value("harness_ingest_paused", table=rig.name, limit="server") == 1
                assert found.value("harness_ingest_paused", table=rig.name, limit="table") == 0

            monkeypatch.setattr(harness.stores.segments._room, "_bytes_max", 10**12)
            wait_until(lambda: buffered(rig) == 300, "ingest goes on")
            wait_until(lambda: not worker.progress[0].trouble, "its trouble is over")
    seen = status(rig)
    assert (seen["state"], seen["buffer"]["paused"]) == (None, None)
    rig.assert_exact()


def test_a_run_until_idle_ends_by_name_when_only_expire_could_empty_the_buffer(make_rig: MakeRig):
    rig = make_rig(retention={"grace": 1})
    rig.produce(100)
    rig.ingest()
    rig.produce(50)
    with tight(rig) as harness:
        options = WorkerOptions(stages=INGEST | TIER, until_idle=True)
        with pytest.raises(BufferFull, match=FULL):
            Worker(harness.stores, [rig.table.row], options).run()
    assert rig.status() == {0: (100, 100), 1: (100, 100)}, "what was there is in the lake"
    assert rig.read(tail=True) == rig.truth

    before = room_of(rig)
    claim = rig.claim(Stage.EXPIRE)

    def is_retired() -> bool:  # once the grace of the version before the move is over
        expire_once(rig.stores, rig.table.row, claim)
        asked = "SELECT FROM harness.segments WHERE table_id = %s AND retired_at IS NOT NULL"
        with rig.stores.database.session() as connection:
            return bool(connection.execute(asked, [rig.table.row.table_id]).fetchall())

    wait_until(is_retired, "the segment that the pause closed retires", every_s=0.2)
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.segments SET retired_at = retired_at - %s WHERE table_id = %s",
            [timedelta(minutes=5), rig.table.row.table_id],
        )
    expire_once(rig.stores, rig.table.row, claim)
    assert room_of(rig) < before, "the segment that the pause closed was given back"
    rig.worker(INGEST | TIER, until_idle=True).run()
    assert rig.status() == {0: (150, 150), 1: (150, 150)}
    rig.assert_exact()


def room_of(rig: TableRig) -> int:
    """Bytes of the table's segments on the disk."""
    rows = rig.stores.database.rows("buffer/room")
    return sum(int(row["bytes"]) for row in rows if row["table_id"] == rig.table.row.table_id)


# -- a full disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_home(tmp_path: Path) -> Iterator[Path]:
    """A folder on a small disk."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "harness-test", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk is needed, and this machine lets nobody mount one")
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.folder("the tests' lake is in the same database as their tables")
@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is needed, and only root may mount one")
def test_a_postgres_without_room_on_its_disk_is_named_and_nothing_is_lost(
    make_rig: MakeRig, settings: Settings, small_home: Path, tmp_path: Path
):
    services = Services(small_home)
    place = services.up(only=["postgres"])
    assert place.owner is not None
    migrate(place.owner)
    ballast = small_home / "ballast"
    try:
        cramped_by = replace(
            settings, dsn=place.postgres, owner_dsn=place.owner, warehouse=f"file://{tmp_path}/warehouse"
        )
        with hp.connect(cramped_by) as cramped:
            rig = make_rig(over=cramped, partitions=1)
            worker = Worker(cramped.stores, [rig.table.row], WorkerOptions(stages=INGEST))
            with running(worker):
                rig.produce(1_000)
                rig.await_rows(1_000)
                fill(ballast)
                rig.produce(60_000)
                said = await_trouble(worker, Stage.INGEST)
                assert re.search(r"Postgres at .*No space left on device", said, re.S), said
                ballast.unlink()
                services.up(only=["postgres"])  # where the server gave up: it could not write its log
                wait_until(lambda: rig.status() == {0: (0, 61_000)}, "all records are in the buffer")
            rig.assert_exact()
    finally:
        ballast.unlink(missing_ok=True)
        services.down()


def fill(ballast: Path) -> None:
    """Take all that is left of a disk."""
    with ballast.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(b"\0" * 2**16)
            except OSError:
                return
