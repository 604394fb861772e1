"""A buffer at its limit, and a Postgres without room: what waits is named, nothing is lost, all goes on by itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
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
FULL = "ingest is paused: its buffer has"


def limited(rig: TableRig, bytes_max: int | None) -> None:
    """Give the table a limit in the ledger that no spec could have; None: it has none."""
    word = '"postgres"' if bytes_max is None else json.dumps({"max_bytes": bytes_max})
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.tables SET spec = jsonb_set(spec, '{buffer}', %s::jsonb) WHERE table_id = %s",
            [word, rig.table.row.table_id],
        )


def status(rig: TableRig) -> dict[str, Any]:
    shown = CliRunner().invoke(cli, ["status", rig.name, "--json"], env=environment(rig.stores.settings))
    [one] = json.loads(shown.stdout)["tables"]
    found: dict[str, Any] = one
    return found


def test_a_full_buffer_pauses_ingest_by_name_and_kafka_keeps_the_rest(rig: TableRig):
    rig.produce(100)
    with rig.working(INGEST) as worker:
        rig.await_rows(200)
        wait_until(lambda: sum(hi for _, hi in rig.status().values()) == 200, "all records are in the buffer")
        limited(rig, 1)
        said = await_trouble(worker, Stage.INGEST)
        rig.produce(50)

        assert said.startswith(f"{rig.name}: {FULL}"), said
        assert sum(hi for _, hi in rig.status().values()) == 200
        rig.assert_exact()
        seen = status(rig)
        assert (seen["state"], seen["buffer"]["paused"]["limit"], seen["buffer"]["max_bytes"]) == ("paused", "table", 1)
        shown = CliRunner().invoke(cli, ["status", rig.name], env=environment(rig.stores.settings))
        assert FULL in " ".join(shown.output.split())
        with served(worker, rig.table) as url:
            found = scrape_ledger(url)
            assert found.value("harness_ingest_paused", table=rig.name, limit="table") == 1
            assert found.value("harness_ingest_paused", table=rig.name, limit="server") == 0
            assert found.value("harness_buffer_limit_bytes", table=rig.name) == 1

        limited(rig, None)
        wait_until(lambda: sum(hi for _, hi in rig.status().values()) == 300, "ingest goes on")
        wait_until(lambda: not worker.progress[0].trouble, "its trouble is over")
    seen = status(rig)
    assert (seen["state"], seen["buffer"]["paused"]) == (None, None)
    rig.assert_exact()


def test_a_run_until_idle_ends_by_name_when_only_expire_could_empty_the_buffer(make_rig: MakeRig):
    rig = make_rig(retention={"grace": 1})
    rig.produce(100)
    rig.ingest()
    limited(rig, 1)
    rig.produce(50)
    with pytest.raises(BufferFull, match=FULL):
        rig.worker(INGEST | TIER, until_idle=True).run()
    assert sum(stream for stream, _ in rig.status().values()) == 200, "what was there is in the lake"
    rig.assert_exact()

    rows = rig.stores.database.rows("buffer/room")
    [before] = [row["bytes"] for row in rows if row["table_id"] == rig.table.row.table_id]
    limited(rig, before)
    claim = rig.claim(Stage.EXPIRE)
    expire_once(rig.stores, rig.harness.table(rig.name).row, claim)
    with rig.stores.database.transaction() as connection:
        connection.execute(
            "UPDATE harness.segments SET retired_at = retired_at - %s WHERE table_id = %s",
            [timedelta(minutes=5), rig.table.row.table_id],
        )
    expire_once(rig.stores, rig.harness.table(rig.name).row, claim)
    rig.worker(INGEST | TIER, until_idle=True).run()
    assert sum(stream for stream, _ in rig.status().values()) == 300
    rig.assert_exact()


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
        pytest.skip("this machine lets nobody mount")
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.folder("the tests' lake is in the same database as their tables")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
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
