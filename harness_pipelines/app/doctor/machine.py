"""This machine: Python, packages, Java, jars, ports and disks. Asks no server, starts no JVM."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path

from harness_pipelines.app.doctor.check import Check, Finding, Notes
from harness_pipelines.extras import MODULES, pip_install
from harness_pipelines.services import Services
from harness_pipelines.services.base import Place, ToolMissing
from harness_pipelines.services.java import jars, java_home, java_major
from harness_pipelines.services.postgres import find_binaries
from harness_pipelines.services.state import is_free
from harness_pipelines.services.values import ServiceState
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.settings import Settings

OLDEST_PYTHON, FIRST_PYTHON_TOO_NEW = (3, 11), (3, 14)
#: The packages whose versions matter most to the reader of a report.
SHOWN = ("harness-pipelines", "pyarrow", "pyiceberg", "confluent-kafka", "psycopg", "pyspark", "dagster", "obstore")
FREE_BYTES_FAIL, FREE_BYTES_WARN = 256 * 1024**2, 5 * 1024**3
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")  #: the only two that pyproject.toml has
#: What each kind of jars must have among them, by how their file names begin.
NEEDED_JARS = {
    "spark": ("iceberg-spark-runtime-", "postgresql-", "spark-sql-kafka-", "kafka-clients-"),
    "kafka": ("kafka_", "kafka-clients-"),
    "s3": ("iceberg-aws-bundle-",),
}


def machine(settings: Settings, services: Services) -> list[Check]:
    """Looks that wait for nobody. *settings* are those of the user, before embedded services fill them in."""
    local = _Local(settings, services)
    return [
        Check(system="machine", name=name, look=look, deadline_s=8.0)
        for name, look in (
            ("python", _python),
            ("extras", local.extras),
            ("java", local.java),
            ("jars", local.jars),
            ("postgres programs", local.programs),
            ("disk", local.disks),
            ("services", local.services),
        )
    ]


def _python(notes: Notes) -> Iterator[Finding]:
    found = f"Python {'.'.join(map(str, sys.version_info[:3]))} in {sys.prefix}"
    if OLDEST_PYTHON <= sys.version_info[:2] < FIRST_PYTHON_TOO_NEW:
        yield notes.ok("python", found)
    else:
        yield notes.fail("python", found, "use Python 3.11, 3.12 or 3.13")
    known = [f"{name} {number}" for name in SHOWN if (number := _version(name)) is not None]
    if unfit := list(_unfit(requires("harness-pipelines") or ())):
        way_on = "install the harness into an empty environment, or with `--constraint deploy/constraints.txt`"
        yield notes.fail("packages", "; ".join(unfit), way_on)
    else:
        yield notes.ok("packages", ", ".join(known))


def _unfit(requirements: Sequence[str]) -> Iterator[str]:
    """Packages that are missing, or outside of the versions that the harness was tested with; not those of extras."""
    for text in requirements:
        wanted, _, marker = text.partition(";")
        name = re.split(r"[^\w.-]", wanted, maxsplit=1)[0]
        if "extra" in marker:
            continue
        there = _version(name)
        if there is None:
            yield f"{name} is missing"
        elif not all(_fits(there, sign, bound) for sign, bound in _BOUND.findall(wanted)):
            yield f"{name} {there} is installed, and {wanted.strip()} is needed"


def _fits(there: str, sign: str, bound: str) -> bool:
    found, limit = (tuple(int(part) for part in re.findall(r"\d+", text)) for text in (there, bound))
    return found >= limit if sign == ">=" else found < limit


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


class _Local:
    """The looks that depend on what the settings ask for."""

    def __init__(self, settings: Settings, services: Services) -> None:
        self._settings, self._services = settings, services

    @property
    def _wants_spark_here(self) -> bool:
        """Whether this machine starts Spark: for a master, or as an embedded service."""
        if self._settings.spark is None and self._settings.engine == "arrow":
            return False
        return not (self._settings.spark or "").startswith("sc://")

    @property
    def _has_services(self) -> bool:
        return (self._services.home / "services.json").exists()

    def extras(self, notes: Notes) -> Iterator[Finding]:
        """Which extras are whole, and those that the settings need."""
        there = {extra: all(_is_there(module) for module in modules) for extra, modules in MODULES.items()}
        wanted = dict(self._wanted())
        for extra, why in wanted.items():
            if not there[extra]:
                yield notes.fail(f"extra {extra}", f"not installed, and {why} needs it", pip_install(extra))
        whole = [extra for extra, is_whole in there.items() if is_whole] or ["none"]
        others = [extra for extra, is_whole in there.items() if not is_whole and extra not in wanted]
        rest = f"; not installed: {', '.join(others)}" if others else ""
        yield notes.ok("extras", f"installed: {', '.join(whole)}{rest}")

    def _wanted(self) -> Iterator[tuple[str, str]]:
        settings = self._settings
        if settings.warehouse is not None and local_path(settings.warehouse) is None:
            yield "s3", "HARNESS_WAREHOUSE"
        if settings.registry:
            yield "formats", "HARNESS_REGISTRY"
        if settings.spark:
            yield ("connect" if settings.spark.startswith("sc://") else "spark"), "HARNESS_SPARK"
        if os.environ.get("DAGSTER_HOME"):
            yield "dagster", "DAGSTER_HOME"

    def java(self, notes: Notes) -> Iterator[Finding]:
        if self._settings.kafka and not self._wants_spark_here:
            yield notes.skipped("java", "Kafka and Spark run elsewhere, so this machine needs no Java")
            return
        try:
            found = java_home()
        except ToolMissing as missing:
            if self._has_services or self._settings.spark:
                yield notes.raised("java", missing)
            else:
                yield notes.warn("java", str(missing), "reading needs no Java; embedded services and a local Spark do")
            return
        asked = os.environ.get("JAVA_HOME")
        if asked and Path(asked) != found:
            major = java_major(Path(asked))
            what = f"is Java {major}" if major else "has no Java"
            way_on = f"unset JAVA_HOME, or set it to {found}: other programs go by it"
            yield notes.warn("java", f"JAVA_HOME ({asked}) {what}; {found} is used instead", way_on)
        else:
            yield notes.ok("java", f"Java {java_major(found)} in {found}")

    def jars(self, notes: Notes) -> Iterator[Finding]:
        settings = self._settings
        kinds = ["spark"] if self._wants_spark_here else []
        kinds += [] if settings.kafka else ["kafka"]
        if kinds and settings.warehouse is not None and local_path(settings.warehouse) is None:
            kinds += ["s3"] if "spark" in kinds else []
        if not kinds:
            yield notes.skipped("jars", "Kafka and Spark run elsewhere, so this machine needs no jars")
        for kind in kinds:
            name = f"jars of {kind}"
            try:
                folder = jars(Place(home=self._services.home, jars=settings.jars), kind)
            except ToolMissing as missing:
                if self._has_services or (settings.spark and kind != "kafka"):
                    yield notes.raised(name, missing)
                else:
                    yield notes.warn(name, str(missing), missing.todo())
                continue
            files = [path.name for path in folder.glob("*.jar")]
            lacks = [begin for begin in NEEDED_JARS[kind] if not any(file.startswith(begin) for file in files)]
            if lacks:
                way_on = "fetch them again: `deploy/run --version`, or deploy/jars with Maven (own-services.md)"
                yield notes.fail(name, f"{folder} lacks {', '.join(f'{begin}*.jar' for begin in lacks)}", way_on)
            else:
                yield notes.ok(name, f"{len(files)} in {folder}")

    def programs(self, notes: Notes) -> Iterator[Finding]:
        if self._settings.dsn:
            yield notes.skipped("postgres programs", "HARNESS_DSN names a server, so none is started here")
            return
        try:
            yield notes.ok("postgres programs", str(find_binaries(None, None)))
        except ToolMissing as missing:
            if self._has_services:
                yield notes.raised("postgres programs", missing)
            else:
                yield notes.warn("postgres programs", str(missing), missing.todo())

    def disks(self, notes: Notes) -> Iterator[Finding]:
        """Of the home, and of a warehouse that is a folder; both may be on one disk."""
        home, warehouse = self._services.home, local_path(self._settings.warehouse or "")
        if not (self._settings.dsn and self._settings.kafka and self._settings.spark):
            yield _disk(notes, "disk of the home", home)
        if warehouse is not None:
            yield _disk(notes, "disk of the warehouse", Path(warehouse))

    def services(self, notes: Notes) -> Iterator[Finding]:
        """The embedded services, and whether their ports are theirs."""
        states = self._services.status()
        if not self._has_services:
            text = f"none were started in {self._services.home}"
            yield notes.skipped("services", text, "`harness services up` starts PostgreSQL, Kafka and Spark here")
            return
        ports = self._services.ports()
        for one in states:
            name = f"service {one.name}"
            if one.state is ServiceState.EXTERNAL:
                continue
            if one.state is ServiceState.RUNNING:
                yield notes.ok(name, f"runs as process {one.pid} on {one.shown_address}")
            elif one.state is ServiceState.STARTING:
                text = f"process {one.pid} lives and does not answer: it is starting, overloaded, or hangs"
                yield notes.fail(name, text, f"its log is {one.log}; `harness services up` waits for it")
            elif one.state is ServiceState.DIED:
                text = f"it ended without being stopped; its log is {one.log}"
                yield notes.fail(name, text, "`harness services up` starts it again with its data")
            elif taken := [port for port in ports.get(one.name, ()) if not is_free(port)]:
                text = f"stopped, and another process has its port {', '.join(map(str, taken))}"
                way_on = "end that process, or let `harness services up` choose another port: clients need the new one"
                yield notes.warn(name, text, way_on)
            else:
                yield notes.skipped(name, "stopped", "`harness services up` starts it")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _disk(notes: Notes, name: str, folder: Path) -> Finding:
    """Free space where *folder* is, or would be made."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    usage = shutil.disk_usage(there)
    text = f"{_gib(usage.free)} of {_gib(usage.total)} free at {there}"
    way_on = "make room, or move it to a larger disk: PostgreSQL and Kafka stop when their disk is full"
    if usage.free < FREE_BYTES_FAIL:
        return notes.fail(name, text, way_on)
    if usage.free < FREE_BYTES_WARN:
        return notes.warn(name, text, way_on)
    if not os.access(there, os.W_OK):
        return notes.fail(name, f"{there} cannot be written by user {os.geteuid()}", "give its user the right to write")
    return notes.ok(name, text)


def _gib(count: int) -> str:
    return f"{count / 1024**3:.1f} GiB"
