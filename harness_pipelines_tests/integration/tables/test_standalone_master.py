"""A standalone master: a move outlives a worker that is killed, and missing executors are named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from harness_pipelines.services.java import java_home
from harness_pipelines.services.state import free_ports
from harness_pipelines.spec.settings import variable_of
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import Command, TableRig

START_S = 120.0
PARTITIONS, RECORDS = 8, 2_000


class Cluster:
    """A master on this machine, and workers of one core each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, self._ui = free_ports(2, home=folder, name="master", taken=frozenset())
        self._processes: list[subprocess.Popen[bytes]] = []
        self._launch("master.Master", "--port", str(self._port), "--webui-port", str(self._ui))

    @property
    def address(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def state(self) -> dict[str, Any]:
        """What the master says of its workers and applications; nothing before it listens."""
        try:
            found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{self._ui}/json/", timeout=5.0).json()
        except httpx.HTTPError:
            return {}
        return found

    def add_worker(self) -> subprocess.Popen[bytes]:
        wait_until(lambda: bool(self.state()), "the master answers", deadline_s=START_S)
        folder = self._folder / f"worker-{len(self._processes)}"
        options = ("--cores", "1", "--memory", "800m", "--webui-port", "0", "--work-dir", str(folder))
        return self._launch("worker.Worker", *options, self.address)

    def _launch(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        found = find_spec("pyspark")
        assert found is not None
        assert found.origin is not None
        home = Path(found.origin).parent
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *words],
            env={**inherited, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """End a worker and its executors, or the master, at once."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def close(self) -> None:
        for process in reversed(self._processes):
            self.kill(process)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


@pytest.fixture
def rig(make_rig: MakeRig) -> TableRig:
    made = make_rig(partitions=PARTITIONS)
    made.produce(RECORDS)
    made.ingest()
    return made


def tiering(rig: TableRig, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, **conf: str) -> Command:
    """A process that runs tier on the cluster until nothing is left."""
    fixed = {
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
    }
    for name, value in {**fixed, **conf}.items():
        monkeypatch.setenv(variable_of(name), value)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("JAVA_HOME", str(java_home()))
    monkeypatch.setenv("HARNESS_JARS", str(rig.stores.settings.jars))
    settings = replace(rig.stores.settings, spark=cluster.address)
    return Command(settings, "run", rig.name, "--stage", "tier", "--until-idle")


@pytest.mark.long
def test_a_move_outlives_a_worker_that_is_killed(
    rig: TableRig, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed, _ = cluster.add_worker(), cluster.add_worker()
    wait_until(lambda: cluster.state()["aliveworkers"] == 2, "two workers are there", deadline_s=START_S)

    with tiering(rig, cluster, monkeypatch, **{"spark.dynamicAllocation.initialExecutors": "2"}) as command:
        wait_until(lambda: cluster.state()["coresused"] == 2, "both workers have an executor", deadline_s=START_S)
        cluster.kill(doomed)
        assert all(stream_hi == 0 for stream_hi, _ in rig.status().values()), "nothing was published yet"
        code, said = command.await_end(deadline_s=4 * START_S)

    assert code == 0, said
    assert all(stream_hi == RECORDS for stream_hi, _ in rig.status().values())
    rig.assert_exact()


@pytest.mark.long
def test_missing_executors_are_named_and_the_end_of_the_wait_shows_no_traceback(
    rig: TableRig, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: bool(cluster.state()), "the master answers", deadline_s=START_S)

    with tiering(rig, cluster, monkeypatch) as command:
        wait_until(lambda: bool(cluster.state()["activeapps"]), "the application is there", deadline_s=START_S)
        command.await_line("Spark has no executors", deadline_s=4 * START_S)
        command.send(signal.SIGTERM)
        _, said = command.await_end()

    assert "Traceback" not in said
    assert "py4j" not in said.lower()
