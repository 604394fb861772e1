"""The peer Kafka Connect: Iceberg's own sink in a standalone worker, as its manual says it is done.

One worker with one task, so that a commit writes one data file whatever the number of partitions: what asks the store
least. Its offsets and its control topic lie in Kafka and cost the store nothing. Only `deploy/run bench stores` and
`deploy/run bench scale` fetch the jars; Hadoop's classes, which Parquet's writer names, come with PySpark.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness_pipelines.engines.spark.kafka import java_properties
from harness_pipelines.services.base import Place
from harness_pipelines.services.java import jars, java_home
from harness_pipelines.services.kafka import LOGGING
from harness_pipelines.services.spark import in_properties
from harness_pipelines.services.state import LOOPBACK, free_ports
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.bench.base import Run
from harness_pipelines_tests.bench.peer import CATALOG, NAMESPACE, PeerTable

MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
COORDINATES = {"partition": "kafka_partition", "offset": "kafka_offset", "timestamp": "kafka_timestamp"}
TOPIC_FIELD = "kafka_topic"  #: of records, which no table has as a column
STOP_S = 30.0


class ConnectSink(PeerTable):
    """A worker of Kafka Connect with the sink as its one connector; ended with the block.

    Of several topics, which are named as their tables are, the sink finds the table of a record by its topic.
    """

    def __init__(self, run: Run, *topics: str, commit_s: int) -> None:
        super().__init__(run.harness, *topics)
        self._commit_s = commit_s
        self._control = run.kafka.create(1)
        self._folder = run.harness.settings.home / "bench" / self.name
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def __enter__(self) -> Self:
        super().__enter__()
        self._folder.mkdir(parents=True, mode=0o700)  # the settings hold keys
        return self

    def begin(self) -> float:
        settings = self._harness.settings
        [self._port] = free_ports(1, home=self._folder, name="connect", taken=frozenset())
        (self._folder / "logging.properties").write_text(LOGGING)
        worker = in_properties_file(worker_properties(settings, self._folder, self._port))
        (self._folder / "worker.properties").write_text(worker)
        sink = sink_properties(settings, self.catalog, control=self._control, commit_s=self._commit_s)
        sink |= route_properties(dict(zip(self.topics, self._names, strict=True)))
        (self._folder / "sink.json").write_text(json.dumps({"name": self.name, "config": sink}))
        command = [str(java_home() / "bin" / "java"), "-Xmx768m", "-XX:+UseG1GC"]
        command += [f"-Dlog4j2.configurationFile={self._folder}/logging.properties", "-cp", class_path(settings)]
        with self._log.open("wb") as out:
            began = time.monotonic()
            self._process = subprocess.Popen(
                [*command, MAIN, "worker.properties", "sink.json"],
                cwd=self._folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        return began

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def _looks(self) -> bool:
        return self._states() == ["RUNNING", "RUNNING"]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
        super().__exit__(kind, error, trace)

    @property
    def _log(self) -> Path:
        return self._folder / "connect.log"

    def _status(self) -> Mapping[str, Any]:
        """What the worker says of its connector; nothing while it does not answer."""
        try:
            with urllib.request.urlopen(self._address, timeout=5) as answer:
                found: Mapping[str, Any] = json.load(answer)
                return found
        except (OSError, urllib.error.URLError):
            return {}

    @property
    def _address(self) -> str:
        return f"http://{LOOPBACK}:{self._port}/connectors/{self.name}/status"

    def _states(self) -> list[str]:
        """Of the connector and of its task, once it has one."""
        found = self._status()
        return [one["state"] for one in (found["connector"], *found["tasks"])] if found else []

    def _check(self) -> None:
        assert self._process is not None
        if self._process.poll() is not None or "FAILED" in self._states():
            why = "".join(str(task.get("trace", "")) for task in self._status().get("tasks", ()))
            raise AssertionError(f"the sink ended: {why}\n{self._log.read_text()[-3000:]}")


def class_path(settings: Settings) -> str:
    """The jars of the worker. Raises: ToolMissing."""
    import pyspark

    place = Place(home=settings.home, jars=settings.jars)
    folders = [jars(place, "connect"), jars(place, "s3")]
    hadoop = sorted(Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"))
    driver = sorted(jars(place, "spark").glob("postgresql-*.jar"))
    return ":".join([*(f"{folder}/*" for folder in folders), *map(str, (*driver, *hadoop))])


def worker_properties(settings: Settings, folder: Path, port: int) -> dict[str, str]:
    """Of a worker that takes JSON without schemas and answers on this machine alone."""
    kafka = _kafka(settings)
    clients = {f"{kind}.{name}": value for kind in ("consumer", "producer", "admin") for name, value in kafka.items()}
    return {
        **kafka,
        **clients,
        "listeners": f"http://{LOOPBACK}:{port}",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(folder / "offsets"),
        "offset.flush.interval.ms": "1000",  # so often a task looks for commits where no record comes
    }


def route_properties(tables: Mapping[str, str]) -> dict[str, str]:
    """What is read and where it goes: all to the one table, or each record to the table that is named as its topic."""
    topics = {"topics": ",".join(tables)}
    if len(tables) == 1:
        return {**topics, "iceberg.tables": f"{NAMESPACE}.{next(iter(tables.values()))}"}
    return {
        **topics,
        "transforms.coordinates.topic.field": TOPIC_FIELD,
        "iceberg.tables.dynamic-enabled": "true",
        "iceberg.tables.route-field": TOPIC_FIELD,
    }


def sink_properties(settings: Settings, catalog: Mapping[str, str], *, control: str, commit_s: int) -> dict[str, str]:
    """Of the connector, but for `route_properties`: records are committed every *commit_s* seconds."""
    coordinates = {f"transforms.coordinates.{what}.field": column for what, column in COORDINATES.items()}
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "1",
        "transforms": "coordinates",
        "transforms.coordinates.type": "org.apache.kafka.connect.transforms.InsertField$Value",
        **coordinates,
        "iceberg.control.topic": control,
        "iceberg.control.commit.interval-ms": str(commit_s * 1000),
        "iceberg.catalog": CATALOG,
        **{f"iceberg.kafka.{name}": value for name, value in _kafka(settings).items()},
        **{f"iceberg.catalog.{name}": value for name, value in catalog.items() if name not in ("", "type")},
        "iceberg.catalog.catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
    }


def in_properties_file(properties: Mapping[str, str]) -> str:
    """The text of a file that Java reads as *properties*."""
    return "".join(f"{name}={in_properties(value)}\n" for name, value in properties.items())


def _kafka(settings: Settings) -> dict[str, str]:
    assert settings.kafka is not None
    return {"bootstrap.servers": settings.kafka, **java_properties(settings.kafka_properties)}
