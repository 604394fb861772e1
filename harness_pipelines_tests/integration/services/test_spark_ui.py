"""A Spark server whose UI is on shows no secret of what the harness sends it, with the settings that we give it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from harness_pipelines.engines.spark.jdbc import jdbc_options
from harness_pipelines.engines.spark.kafka import read_kafka
from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.engines.spark.sessions import SparkSessions
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.services import Endpoints
from harness_pipelines.services.base import Place
from harness_pipelines.services.process import end
from harness_pipelines.services.spark import ANSWERS_S, DETACHED_S, LOOKS_S, Spark
from harness_pipelines.services.state import free_ports
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.promise import within
from harness_pipelines_tests.rig import COLUMNS, settings_for

SECRET = f"c4nary{uuid.uuid4().hex[:10]}"
EMPTY = "(SELECT 1 AS a) AS one"


@pytest.fixture
def server(endpoints: Endpoints, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The address of a server, and of its UI."""
    jars = settings_for(endpoints, tmp_path).jars
    spark = Spark(Place(home=tmp_path, jars=jars), memory="1g")
    port, ui = free_ports(2, home=tmp_path, name="spark", taken=frozenset())
    ports = (port,)
    (tmp_path / "logs").mkdir()
    spark.prepare(ports, lambda _: None)
    conf = tmp_path / "spark" / "conf" / "spark-defaults.conf"
    text = re.sub(r"spark\.ui\.enabled +false", f"spark.ui.enabled true\nspark.ui.port {ui}", conf.read_text())
    conf.write_text(text)
    process = spark.launch(ports)
    try:
        wait_until(lambda: spark.is_ready(ports), "the server answers", deadline_s=spark.ready_timeout_s)
        yield spark.address(ports), f"http://127.0.0.1:{ui}"
    finally:
        end(process, polite=spark.polite, timeout_s=20.0)


@pytest.mark.long
def test_the_ui_shows_no_password(server: tuple[str, str], endpoints: Endpoints, tmp_path: Path):
    spark_at, ui = server
    assert endpoints.kafka and endpoints.postgres
    own = {"sasl.username": "u", "sasl.password": SECRET, "security.protocol": "SASL_PLAINTEXT"}
    settings = replace(
        settings_for(endpoints, tmp_path, spark=spark_at, warehouse="s3://nowhere/lake"),
        s3=S3Settings(endpoint="http://127.0.0.1:1", access_key="a", secret_key=SECRET, session_token=SECRET),
        dsn=f"postgresql://u:{SECRET}@127.0.0.1:1/db",
        kafka_properties={**own, "sasl.mechanism": "PLAIN"},
    )
    spec = TableSpec.model_validate({"table": "ui.orders", "topic": "orders", "columns": COLUMNS})
    spark = open_spark(settings)
    jdbc = jdbc_options(settings.dsn or "", role=None)
    try:
        for frame in (
            lambda: spark.read.jdbc(jdbc.url, EMPTY, properties=dict(jdbc.properties)),
            lambda: read_kafka(spark, settings, spec, [OffsetRange(partition=0, low=0, high=2)]),
            lambda: spark.table(f"{settings.catalog_name}.a.b"),
        ):
            with suppress(Exception):  # nobody is there: what is asked for is shown all the same
                frame().collect()
        spark.sql("SELECT 1").collect()
        pages = {path: httpx.get(f"{ui}{path}", follow_redirects=True, timeout=120.0).text for path in _paths(ui)}
    finally:
        spark.stop()
    assert "SELECT 1" in pages["/connect/"] or "catalog" in json.dumps(pages)
    shown = {path: text[max(0, at - 300) : at + 60] for path, text in pages.items() if (at := text.find(SECRET)) >= 0}
    assert shown == {}


def _paths(ui: str) -> list[str]:
    found = ["/connect/", "/SQL/", "/jobs/", "/environment/", "/executors/"]
    [app] = httpx.get(f"{ui}/api/v1/applications", timeout=120.0).json()
    return [
        *found,
        *(f"/api/v1/applications/{app['id']}/{word}" for word in ("jobs", "sql?details=true", "environment")),
    ]


WORKS = """
import sys
from pathlib import Path

from harness_pipelines.engines.spark.sessions import SparkSessions
from harness_pipelines.spec.settings import Settings


def endless(batches):
    import time

    time.sleep(600)
    yield from batches


with SparkSessions(Settings(home=Path(sys.argv[2]), spark=sys.argv[1])).working() as spark:
    spark.range(0, 8, 1, 8).mapInArrow(endless, "id long").collect()
"""


@pytest.mark.long
def test_what_a_killed_process_had_begun_gives_its_places_back_to_others(server: tuple[str, str], tmp_path: Path):
    spark_at, ui = server
    [application] = httpx.get(f"{ui}/api/v1/applications", timeout=120).json()

    def busy() -> int:
        """How many tasks Spark is busy with."""
        found = httpx.get(f"{ui}/api/v1/applications/{application['id']}/executors", timeout=120).json()
        return int(sum(one["activeTasks"] for one in found))

    process = subprocess.Popen([sys.executable, "-c", WORKS, spark_at, str(tmp_path)])
    try:
        wait_until(lambda: busy() > 0, "it has begun", deadline_s=120)
    finally:
        process.kill()
        process.wait()
    with within(2 * (ANSWERS_S + DETACHED_S + LOOKS_S), "that its work is given up"):
        wait_until(lambda: busy() == 0, "its work is given up", deadline_s=600)
    settings = Settings(home=tmp_path, spark=spark_at)
    sessions = SparkSessions(settings)
    try:
        with sessions.working() as spark:
            assert spark.range(0, 8, 1, 8).count() == 8
    finally:
        sessions.close()
