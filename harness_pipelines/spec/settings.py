"""The `Settings` object: the addresses of the services.

What else is read from the environment is read where it is used: ``HARNESS_FAULT`` (`harness_pipelines.faults`),
``HARNESS_TABLES`` (`harness_pipelines.defs.definitions`) and ``JAVA_HOME`` (`harness_pipelines.services.java`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Literal, get_args

from harness_pipelines.errors import UsageError
from harness_pipelines.spec.locations import warehouse_location
from harness_pipelines.spec.object_stores import S3Settings, check_encryption, encrypting
from harness_pipelines.spec.profiles import nearest_home, with_profile, working_folder
from harness_pipelines.spec.wording import quote

KAFKA_PROPERTY_PREFIX = "HARNESS_KAFKA_"
REGISTRY_PROPERTY_PREFIX = "HARNESS_REGISTRY_"
SPARK_CONF_PREFIX = "HARNESS_SPARK_CONF_"
_SPARK_NAME = re.compile(r"spark(\.[A-Za-z0-9-][A-Za-z0-9_-]*)+")
#: What another setting says, or what the harness could not work with.
_SPARK_TAKEN: Mapping[str, str] = {
    "spark.master": "HARNESS_SPARK says it",
    "spark.remote": "HARNESS_SPARK says it",
    "spark.jars": "HARNESS_JARS says it; `spark.jars.packages` and the server's own jars are free",
    "spark.submit.deployMode": "the driver is the process of the harness",
    "spark.sql.extensions": "the harness needs Iceberg's",
    "spark.sql.session.timeZone": "stages rely on UTC",
}
BUFFER_GB, BUFFER_GB_MIN = 20.0, 0.064  # two segments of the buffer
EngineWord = Literal["spark", "auto", "arrow"]
ENGINES: tuple[EngineWord, ...] = get_args(EngineWord)
#: Key and secret that `harness serve` hands out to engines; they may only read the warehouse.
READING_KEYS = ("HARNESS_SERVE_S3_ACCESS_KEY", "HARNESS_SERVE_S3_SECRET_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Addresses of the services. ``None`` means the embedded service under `home`.

    Every setting comes from an environment variable of the same name: ``HARNESS_DSN``, ``HARNESS_KAFKA``,
    ``HARNESS_REGISTRY``, ``HARNESS_SPARK``, ``HARNESS_WAREHOUSE``, ``HARNESS_HOME``, ``HARNESS_JARS``,
    ``HARNESS_BUFFER_GB``, ``HARNESS_CATALOG_NAME``, ``HARNESS_ENGINE``.
    ``HARNESS_KAFKA_SASL_PASSWORD`` and its like become the librdkafka
    property
    ``sasl.password``, ``HARNESS_REGISTRY_BASIC_AUTH_USER_INFO`` and its like properties of Confluent's client of the
    schema registry; libpq reads its own settings from the DSN and from ``PG*``. ``HARNESS_S3_*`` say how the object
    store of a warehouse ``s3://`` is reached, ``HARNESS_SPARK_CONF_*`` are properties of Spark.

    ``HARNESS_OWNER_DSN`` is only for `harness init` and `harness table drop`; ``HARNESS_SPARK_DSN`` is Spark's login.
    """

    home: Path
    dsn: str | None = field(default=None, repr=False)  #: the login of workers and readers
    owner_dsn: str | None = field(default=None, repr=False)  #: of the database's owner; `None`: as `dsn`
    spark_dsn: str | None = field(default=None, repr=False)  #: Spark's login, of `harness_spark`; `None`: as `dsn`
    kafka: str | None = None
    spark: str | None = None
    warehouse: str | None = None
    s3: S3Settings = field(default_factory=S3Settings)
    reading_keys: tuple[str, str] | None = field(default=None, repr=False)  #: `READING_KEYS`, for engines
    reading_role: str | None = None  #: ``HARNESS_SERVE_S3_ROLE``: by which `harness serve` gets keys for engines
    encrypting: tuple[str, ...] = ()  #: variables by which one client of an object store would encrypt
    jars: Path | None = None
    catalog_name: str = "harness"
    engine: EngineWord = "spark"  #: of the moves of tables whose spec names none
    buffer_gb: float = BUFFER_GB  #: of disk that all buffers may take together before ingest pauses
    kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: str | None = field(default=None, repr=False)  #: no embedded one; may hold user and password
    registry_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    spark_conf: Mapping[str, str] = field(default_factory=dict, repr=False)  #: ``HARNESS_SPARK_CONF_*``, by property

    def __post_init__(self) -> None:
        """Raises: UsageError for a warehouse that engines would read differently, or write so."""
        if self.warehouse is not None:
            object.__setattr__(self, "warehouse", warehouse_location(self.warehouse))
            if self.warehouse.startswith("s3://"):
                check_encryption(self.encrypting)

    @classmethod
    def from_env(
        cls, env: Mapping[str, str] | None = None, *, home: Path | None = None, profile: str | None = None
    ) -> Settings:
        """Read the settings once; *home* (a command line option) wins over ``HARNESS_HOME``.

        *env*: by default that of the process, and what *profile* of `harness.toml` adds to it.
        """
        values = with_profile(os.environ, profile=profile) if env is None else env
        chosen = home or Path(values.get("HARNESS_HOME") or nearest_home(working_folder()))
        named = "--home" if home else "HARNESS_HOME"
        jars = values.get("HARNESS_JARS")
        return cls(
            home=_usable_home(_absolute(chosen, named), named),
            dsn=values.get("HARNESS_DSN") or None,
            owner_dsn=values.get("HARNESS_OWNER_DSN") or None,
            spark_dsn=values.get("HARNESS_SPARK_DSN") or None,
            kafka=values.get("HARNESS_KAFKA") or None,
            spark=values.get("HARNESS_SPARK") or None,
            warehouse=values.get("HARNESS_WAREHOUSE") or None,
            s3=S3Settings.from_env(values),
            reading_keys=_pair(values, READING_KEYS),
            reading_role=values.get("HARNESS_SERVE_S3_ROLE") or None,
            encrypting=encrypting(values),
            jars=_absolute(Path(jars), "HARNESS_JARS") if jars else None,
            catalog_name=values.get("HARNESS_CATALOG_NAME") or "harness",
            engine=_engine(values.get("HARNESS_ENGINE") or "spark"),
            buffer_gb=_number(values, "HARNESS_BUFFER_GB", BUFFER_GB, least=BUFFER_GB_MIN),
            kafka_properties=_properties(values, KAFKA_PROPERTY_PREFIX),
            registry=values.get("HARNESS_REGISTRY") or None,
            registry_properties=_properties(values, REGISTRY_PROPERTY_PREFIX),
            spark_conf=spark_conf_of(values, catalog=values.get("HARNESS_CATALOG_NAME") or "harness"),
        )

    def with_services(
        self,
        *,
        dsn: str | None,
        kafka: str | None,
        spark: str | None,
        warehouse: str | None,
        owner_dsn: str | None = None,
        spark_dsn: str | None = None,
        kafka_login: Mapping[str, str] | None = None,
        s3: S3Settings | None = None,
    ) -> Settings:
        """Return these settings with every unset address filled in from the embedded services.

        The embedded logins are not used for a database or a Kafka that is set.
        """
        is_embedded = self.dsn is None
        return replace(
            self,
            dsn=self.dsn or dsn,
            kafka=self.kafka or kafka,
            kafka_properties={**({} if self.kafka else kafka_login or {}), **self.kafka_properties},
            spark=self.spark or spark,
            warehouse=self.warehouse or warehouse,
            s3=s3 if s3 is not None and self.warehouse is None else self.s3,
            owner_dsn=self.owner_dsn or (owner_dsn if is_embedded else None),
            spark_dsn=self.spark_dsn or (spark_dsn if is_embedded else None),
        )

    def kafka_environment(self) -> dict[str, str]:
        """`kafka` and `kafka_properties` as the variables that `from_env` reads them from."""
        named = {
            KAFKA_PROPERTY_PREFIX + name.upper().replace(".", "_"): value
            for name, value in self.kafka_properties.items()
        }
        return {"HARNESS_KAFKA": self.kafka or "", **named}

    def for_others(self) -> Settings:
        """These settings for a process on Spark's machines: without the login of the database's owner."""
        return replace(self, owner_dsn=None)


def _absolute(path: Path, named: str) -> Path:
    """Raises: UsageError where `~` is of nobody, or the current folder is gone."""
    try:
        return path.expanduser().absolute()
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{named} is {quote(str(path))}, which means no folder: {error}") from error


def _usable_home(home: Path, named: str) -> Path:
    """The folder *home*, or where one can be made, as far as can be seen without writing. Raises: UsageError."""
    try:
        os.scandir(home).close()
        os.stat(home / "services.json")
    except FileNotFoundError:
        present = next(place for place in (home, *home.parents) if os.path.lexists(place))
        why = "" if present.is_dir() else f"{quote(str(present))} is a link to nothing"
    except OSError as error:  # a file in the path, links in a circle, a name that is too long, no right to look
        why = error.strerror or str(error)
    else:
        why = ""
    if why:
        raise UsageError(
            f"{named} is {quote(str(home))}, which cannot be the home: {why}. Nothing was done; let it name a folder "
            "that this user may read and write, or one that can be made"
        )
    return home


def _pair(values: Mapping[str, str], names: tuple[str, str]) -> tuple[str, str] | None:
    """Raises: UsageError for one without the other."""
    found = values.get(names[0]) or "", values.get(names[1]) or ""
    if not any(found):
        return None
    if not all(found):
        raise UsageError(f"{names[0]} and {names[1]} belong together: set both or none")
    return found


def _engine(word: str) -> EngineWord:
    """Raises: UsageError."""
    if word not in ENGINES:
        raise UsageError(f"HARNESS_ENGINE is {word!r}; write {', '.join(ENGINES[:-1])} or {ENGINES[-1]}")
    return word


def _number(values: Mapping[str, str], name: str, default: float, *, least: float) -> float:
    """Raises: UsageError."""
    try:
        found = float(values.get(name) or default)
    except ValueError:
        found = 0.0
    if not least <= found < inf:
        raise UsageError(f"{name} is {values[name]!r}; write a number of at least {least:g}, such as {default:g}")
    return found


def _properties(values: Mapping[str, str], prefix: str) -> dict[str, str]:
    """``PREFIX_SASL_PASSWORD`` as the property ``sasl.password``, and so on."""
    return {
        name.removeprefix(prefix).lower().replace("_", "."): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def variable_of(name: str) -> str:
    """The variable that says what Spark's property *name* is: ``HARNESS_SPARK_CONF_spark_executor_memory``.

    A dot is written as ``_`` and ``_`` as ``__``. Spark's names distinguish upper from lower case, so variables do.
    """
    return SPARK_CONF_PREFIX + name.replace("_", "__").replace(".", "_")


def property_of(variable: str) -> str:
    """The property that *variable* names. Raises: UsageError."""
    said = variable.removeprefix(SPARK_CONF_PREFIX)
    name = ".".join(part.replace("\0", "_") for part in said.replace("__", "\0").split("_"))
    if not _SPARK_NAME.fullmatch(name):
        lower = said.lower()
        meant = lower if lower.startswith("spark_") else f"spark_{lower}"
        hint = f": {SPARK_CONF_PREFIX}{meant}?" if re.fullmatch(r"[a-z0-9_-]+", meant) else ""
        raise UsageError(
            f"{quote(variable)} names no property of Spark: write its name as Spark does, with `_` for a dot and `__` "
            f"for `_`, as in {variable_of('spark.executor.memory')} or "
            f"{variable_of('spark.dynamicAllocation.maxExecutors')}{hint}"
        )
    return name


def spark_conf_of(values: Mapping[str, str], *, catalog: str) -> dict[str, str]:
    """The properties of Spark that *values* name, by name. Raises: UsageError for those that are not free."""
    found = {
        property_of(variable): value for variable, value in values.items() if variable.startswith(SPARK_CONF_PREFIX)
    }
    for name, value in found.items():
        why = _SPARK_TAKEN.get(name)
        if name == f"spark.sql.catalog.{catalog}" or name.startswith(f"spark.sql.catalog.{catalog}."):
            why = "the harness makes this catalog, of HARNESS_DSN and HARNESS_WAREHOUSE"
        if why is not None:
            raise UsageError(f"{variable_of(name)} cannot be set: {why}. Unset it")
        if not value.isprintable():
            raise UsageError(
                f"{variable_of(name)} has a line break or a control character in its value: {quote(value)}"
            )
    return found
