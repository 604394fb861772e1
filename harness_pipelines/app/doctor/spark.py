"""Spark: its version, its executors, and whether it and Python read what the other writes to the warehouse."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

from harness_pipelines.app.doctor.check import Check, Finding, Notes, Verdict
from harness_pipelines.app.probes import ask_spark
from harness_pipelines.drivers.files import listed, remove_folders
from harness_pipelines.drivers.object_stores.deletion import delete
from harness_pipelines.drivers.postgres import WORKER
from harness_pipelines.ledgers.postgres.views.server import (
    brief_session,
    forget_pointer,
    has_ledger,
    pointer_of,
    show_pointer,
)
from harness_pipelines.ports.lake import reachable
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from harness_pipelines.app.doctor.spark_trial import SparkTrial

RELEASE = "4.1."  #: of the jars that the harness gives it
LATE_S = 26.0
BY_PYTHON, BY_SPARK = 7, 8  #: the rows of the trial table


def spark(settings: Settings) -> list[Check]:
    """One check, in a separate session."""
    running = _Running(settings)
    # A server that hangs is named before; one that is late is starting, busy, or has no executors.
    late = Verdict.WARN
    return [
        Check(system="spark", name="session", look=running.look, deadline_s=LATE_S, late=late, give_up=running.hang_up)
    ]


class _Running:
    """The check, and how it is ended if Spark no longer answers."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._trial: SparkTrial | None = None

    def hang_up(self) -> None:
        if self._trial is not None:
            self._trial.hang_up()

    def look(self, notes: Notes) -> Iterator[Finding]:
        settings = self._settings
        if settings.spark is None:
            text = "HARNESS_SPARK is not set, and no embedded Spark runs"
            way_on = (
                "set HARNESS_SPARK, or `harness services up`; reading needs none, nor do tables with `engine: arrow`"
            )
            yield notes.skipped("session", text, way_on)
            return
        if find_spec("pyspark") is None:
            yield notes.skipped("session", "PySpark is not installed; reading needs none", "see machine: extras")
            return
        if settings.spark.startswith("sc://"):
            ask_spark(settings.spark)  # names a server that hangs, which a session would wait for
        from harness_pipelines.app.doctor.spark_trial import spark_on_trial

        with spark_on_trial(settings) as self._trial:
            yield from _about(notes, self._trial)
            yield from _both_ways(notes, settings, self._trial)


def _about(notes: Notes, trial: SparkTrial) -> Iterator[Finding]:
    found = trial.version()
    if found.startswith(RELEASE):
        yield notes.ok("version", f"Spark {found}, {trial.master()}")
    else:
        way_on = f"use Spark {RELEASE}x with Scala 2.13: the jars of Iceberg and Kafka are for that release"
        yield notes.fail("version", f"Spark {found}", way_on)
    began = time.monotonic()
    tasks = trial.run_tasks()
    yield notes.ok("executors", f"ran {tasks} tasks in {time.monotonic() - began:.1f} s")


def _both_ways(notes: Notes, settings: Settings, trial: SparkTrial) -> Iterator[Finding]:
    """Python makes a table, Spark reads it and adds a row, Python reads both; then nothing of it is left."""
    name = "spark and python"
    if settings.dsn is None or settings.warehouse is None:
        yield notes.skipped(name, "they meet in a warehouse and a ledger, and one of them is not set")
        return
    from harness_pipelines.lakes.iceberg.inspect.trial import TrialTable

    with brief_session(settings.dsn, role=None) as connection:
        if not has_ledger(connection):
            yield notes.skipped(name, "there is no ledger yet whose catalog Spark could ask", "`harness init`")
            return
    table = TrialTable(settings.catalog_name, warehouse=settings.warehouse)
    try:
        with brief_session(settings.dsn, role=WORKER) as connection:
            place = (settings.catalog_name, *table.identifier)
            try:
                with reachable(settings.warehouse, "writing a trial table"):
                    metadata = table.write(BY_PYTHON)
                show_pointer(connection, place, metadata)
                yield _judged(notes, "spark reads python", trial.read(metadata), [BY_PYTHON])
                trial.append(table.identifier, BY_SPARK)
                with reachable(settings.warehouse, "reading what Spark wrote"):
                    found = table.read(pointer_of(connection, place))
                yield _judged(notes, "python reads spark", found, [BY_PYTHON, BY_SPARK])
            finally:
                forget_pointer(connection, place)
    finally:
        with suppress(OSError):  # the check of the warehouse says why
            delete([file.path for file in listed(table.folder)])
            remove_folders(table.folder)


def _judged(notes: Notes, name: str, found: list[int], wanted: list[int]) -> Finding:
    if found == wanted:
        return notes.ok(name, "from the warehouse, the same rows")
    way_on = "let Spark have the warehouse under the same path, and the same HARNESS_S3_*"
    return notes.fail(name, f"{found} was read where {wanted} was written", way_on)
