"""The machine of an embedded Spark sleeps for longer than Spark waits for a heartbeat: a laptop that is closed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness_pipelines.services.base import Place
from harness_pipelines.services.process import ProcessId, end
from harness_pipelines.services.spark import Spark
from harness_pipelines.services.state import free_port
from harness_pipelines_tests.producer import wait_until

TIMEOUT_S = 10
SLEEPS = 3  #: after each of them the heartbeat that is due and the look for missing ones come in any order
#: Spark's limits, which are two minutes, one minute, 10 s and 60 times: what takes ten minutes is over in half of one.
HASTENED = f"""
spark.network.timeout                 {TIMEOUT_S}s
spark.network.timeoutInterval         1s
spark.executor.heartbeatInterval      1s
spark.executor.heartbeat.maxFailures  5
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[str, ProcessId]]:
    """The address and the process of an embedded Spark."""
    jars = os.environ.get("HARNESS_JARS")
    spark, ports = (
        Spark(Place(home=tmp_path, jars=Path(jars) if jars else None), memory="1g"),
        (free_port(tmp_path, "spark"),),
    )
    (tmp_path / "logs").mkdir()
    spark.prepare(ports, lambda _: None)
    conf = tmp_path / "spark" / "conf" / "spark-defaults.conf"
    conf.write_text(conf.read_text() + HASTENED)
    process = spark.launch(ports)
    try:
        wait_until(lambda: spark.is_ready(ports), "the server answers", deadline_s=spark.ready_timeout_s)
        yield spark.address(ports), process
    finally:
        end(process, polite=spark.polite, timeout_s=20.0)


def counted(address: str) -> int:
    """What a new client of the server gets."""
    session = SparkSession.builder.remote(address).create()
    try:
        return int(session.range(1000).repartition(4).count())
    finally:
        session.stop()


@pytest.mark.long
def test_an_embedded_spark_serves_after_a_sleep_that_is_longer_than_its_limit_of_heartbeats(
    server: tuple[str, ProcessId],
):
    address, process = server
    assert counted(address) == 1000
    for _ in range(SLEEPS):
        os.kill(process.pid, signal.SIGSTOP)
        try:
            time.sleep(2 * TIMEOUT_S)  # time itself is tested: a stopped process has no condition to wait for
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert counted(address) == 1000
    until = time.monotonic() + 3 * TIMEOUT_S
    while time.monotonic() < until:
        assert counted(address) == 1000
