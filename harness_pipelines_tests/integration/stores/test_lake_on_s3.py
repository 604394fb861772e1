"""A table's whole life with its lake on an object store."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from harness_pipelines.drivers.files import listed
from harness_pipelines.ledgers.postgres.acts.drop import to_purge
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig, environment


def command(rig: TableRig, *words: str, code: int = 0) -> str:
    """What `harness` prints. The database's owner: it drops tables."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("harness")), *words],
        env=environment(rig.stores.settings),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def files_of(rig: TableRig) -> list[str]:
    """All that lies in folders of the table's views."""
    namespace, _, name = rig.name.partition(".")
    begin = f"{rig.stores.warehouse}/{namespace}/{name}"
    return [file.path for file in listed(f"{rig.stores.warehouse}/{namespace}") if file.path.startswith(begin)]


@pytest.mark.parametrize("key", [None, ["id"]], ids=["append", "keyed"])
def test_a_table_is_filled_merged_read_proved_and_dropped_on_a_store(make_rig: MakeRig, key: list[str] | None):
    rig = make_rig(views="both", key=key, retention={"versions": "1s", "snapshots": 1, "grace": "1s", "lease": "5s"})
    for _ in range(3):
        rig.produce(40)
        rig.worker(until_idle=True).run()
    if key is None:
        rig.assert_exact()
    rows = rig.table.read().num_rows
    assert rows >= 120
    plan = rig.table.plan(lease=timedelta(minutes=10))  # a first query of Spark takes a while
    assert rig.table.to_spark(rig.stores.spark(), plan=plan).count() == rows
    rig.table.release(plan)
    head = rig.stores.tables.head(rig.table.row)
    assert all(view.metadata.startswith("s3://") for view in head.views.values())

    before = len(files_of(rig))

    def fewer() -> bool:
        command(rig, "run", rig.name, "--stage", "expire", "--for", "2s")
        return len(files_of(rig)) < before

    wait_until(fewer, "expire removed files")
    assert rig.table.read().num_rows == rows
    command(rig, "audit", rig.name)
    broken = json.loads(command(rig, "fsck", rig.name, "--json"))
    assert (broken["ok"], broken["broken"]) == (True, [])

    shown = json.loads(command(rig, "table", "drop", rig.name, "--yes", "--purge", "--json"))
    assert sum(view["count"] for view in shown["files"]) > 0
    assert files_of(rig) == []
    assert to_purge(rig.stores.owner, rig.name) == []
