"""Values of the embedded services: names, states and addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal

from harness_pipelines.secret import redact
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines.spec.settings import Settings

ServiceName = Literal["postgres", "kafka", "spark", "s3"]
SERVICE_NAMES: tuple[ServiceName, ...] = ("postgres", "kafka", "spark")  #: of every home
ALL_NAMES: tuple[ServiceName, ...] = (*SERVICE_NAMES, "s3")  #: an object store is there where it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the services answer; ``None`` for one that is not running. Addresses but Kafka's may hold a secret."""

    postgres: str | None = field(repr=False)  #: libpq URI of the workers' login
    kafka: str | None  #: ``host:port`` for ``bootstrap.servers``
    spark: str | None = field(repr=False)  #: for ``SparkSession.builder.remote``; holds the token of the server
    warehouse: str  #: URI of the folder of the lake's files
    home: str
    owner: str | None = field(default=None, repr=False)  #: the embedded database's owner, for `harness init`
    spark_login: str | None = field(default=None, repr=False)  #: what Spark gets of the embedded database
    kafka_login: Mapping[str, str] = field(default_factory=dict, repr=False)  #: properties of clients of the embedded
    s3: S3Settings | None = None  #: how the embedded object store is reached, if the warehouse is on it

    def to_json(self) -> dict[str, str | None]:
        """Return the fixed form of ``harness services status --json``, which has one login."""
        shown = asdict(self)
        return {name: shown[name] for name in ("postgres", "kafka", "spark", "warehouse", "home")}

    def fill(self, settings: Settings) -> Settings:
        """Return *settings* with every address that is unset there taken from here."""
        return settings.with_services(
            dsn=self.postgres,
            kafka=self.kafka,
            spark=self.spark,
            warehouse=self.warehouse,
            owner_dsn=self.owner,
            spark_dsn=self.spark_login,
            kafka_login=self.kafka_login,
            s3=self.s3,
        )


class ServiceState(StrEnum):
    """What is known of a service without a request to it."""

    RUNNING = "running"
    STARTING = "starting"  #: its process lives and does not answer yet
    STOPPED = "stopped"
    DIED = "died"  #: it was started, never stopped, and its process is gone
    EXTERNAL = "external"  #: the user's own, named in the settings; never started or stopped here


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """State of one service. `address` is the full one; show `shown_address` to people."""

    name: ServiceName
    state: ServiceState
    address: str | None = field(repr=False)
    pid: int | None
    log: Path

    @property
    def shown_address(self) -> str:
        """The address without its secrets."""
        return redact(self.address) if self.address else ""
