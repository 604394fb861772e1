"""A real Dagster over some tables: daemon, code server and web server as processes, its state in a real Postgres."""

from __future__ import annotations

import os
import re
import signal
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import yaml
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter
from dagster._core.scheduler.instigation import InstigatorTick, TickStatus
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from harness_pipelines.chaos.orchestrator import CODE_SERVER, is_code_server
from harness_pipelines.chaos.processes import processes_with, send
from harness_pipelines.defs.work import STAGE_TAG, TABLE_TAG
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services.control_room import ControlRoom, ensure_database
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import TableRig

ENDED = [DagsterRunStatus.SUCCESS, DagsterRunStatus.FAILURE, DagsterRunStatus.CANCELED]
PID = re.compile(r"\(pid: (\d+)\)")
RUN_S = 480.0  #: for a run to be asked for, to start and to do its work, on a machine that is busy
#: A daemon that kills itself when one of its sensors comes to a phase of a tick; Dagster's own tests crash there, too.
KILLED_AT = """
import os, signal, sys
import dagster._daemon.sensor as sensor
from dagster._daemon.cli import main

deadly = sys.argv.pop(1)

def reached(_flags, phase):
    if phase == deadly:
        os.kill(os.getpid(), signal.SIGKILL)

sensor.check_for_debug_crash = reached
main()
"""


class DagsterRig:
    """Dagster's side of some tables, which only knows these."""

    def __init__(self, room: ControlRoom, instance: DagsterInstance, dsn: str, database: str) -> None:
        self.room, self.instance = room, instance
        self.workspace = ["-w", f"{room.home}/workspace.yaml"]
        self._dsn, self._database = dsn, database

    # -- processes ------------------------------------------------------------------------------------------

    def daemon(self) -> int:
        """Start the daemon with its code server; returns its pid."""
        return self.room.start("daemon", ["dagster-daemon", "run", *self.workspace]).pid

    def daemon_killed_at(self, phase: str) -> None:
        """Run a daemon until it has killed itself at *phase* of a tick."""
        process = self.room.start("daemon", ["python", "-c", KILLED_AT, phase, "run", *self.workspace])
        wait_until(lambda: process.poll() is not None, f"the daemon came to {phase}", deadline_s=RUN_S)
        assert process.returncode == -signal.SIGKILL, self.log("daemon")

    def kill_all(self) -> None:
        """All that Dagster runs is gone at once, runs and code servers among them, also those without a parent."""
        for pid in processes_with(f"DAGSTER_HOME={self.room.home}"):
            send(pid, signal.SIGKILL)
        for process in self.room.processes.values():
            process.wait()

    def end_code_servers(self, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """*number* to the processes that the daemons get definitions and runs from; returns their pids."""
        daemons = [process.pid for name, process in self.room.processes.items() if name.startswith("daemon")]
        ours = processes_with(f"DAGSTER_HOME={self.room.home}")
        below = [pid for daemon in daemons for pid in descendants(daemon)]
        servers = [pid for pid in below if CODE_SERVER in ours.get(pid, "") and is_code_server(pid)]
        assert servers
        for pid in servers:
            send(pid, number)
        return servers

    def kill_run(self, run: DagsterRun) -> None:
        """``kill -9`` of the process that executes *run*."""
        pid = self.pid_of(run)
        assert pid in descendants(self.room.processes["daemon"].pid), f"no process of run {run.run_id}"
        send(pid, signal.SIGKILL)

    def pid_of(self, run: DagsterRun) -> int | None:
        """The process that executes *run*, as its log names it; None before it has one."""
        found = [match for entry in self.instance.all_logs(run.run_id) if (match := PID.search(entry.user_message))]
        return int(found[-1][1]) if found else None

    def log(self, name: str) -> str:
        """The end of what a process printed."""
        return (self.room.logs / f"dagster-{name}.log").read_text()[-3000:]

    # -- a person -------------------------------------------------------------------------------------------

    def asked(self, query: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the web server answers to a mutation of one field."""
        body = {"query": query, "variables": variables}
        answer = httpx.post(f"{self.room.url}/graphql", json=body, timeout=RUN_S).json()
        assert answer.get("data"), answer
        [found] = answer["data"].values()
        return dict(found)

    def reload(self) -> None:
        """The code is loaded again, by a new code server."""
        answer = self.asked(
            'mutation { reloadRepositoryLocation(repositoryLocationName: "harness") { __typename } }', {}
        )
        assert answer["__typename"] == "WorkspaceLocationEntry", answer

    # -- runs -----------------------------------------------------------------------------------------------

    def runs(self, rig: TableRig, stage: Stage, *statuses: DagsterRunStatus) -> Sequence[DagsterRun]:
        tags = {TABLE_TAG: rig.name, STAGE_TAG: stage.value}
        return self.instance.get_runs(RunsFilter(tags=tags, statuses=list(statuses)))

    def records(self, runs: Sequence[DagsterRun]) -> Sequence[RunRecord]:
        """What the instance notes of *runs* beside them, such as when each was made."""
        return self.instance.get_run_records(RunsFilter(run_ids=[run.run_id for run in runs]))

    def ticks(self, name: str, status: TickStatus) -> Sequence[InstigatorTick]:
        """The ticks of the sensor *name* that ended so."""
        return [
            tick
            for state in self.instance.all_instigator_state()
            if state.instigator_name == name
            for tick in self.instance.get_ticks(state.instigator_origin_id, state.selector_id, statuses=[status])
        ]

    def await_run(self, rig: TableRig, stage: Stage, *, other_than: str = "") -> DagsterRun:
        """A run of *stage* that is at work."""

        def found() -> list[DagsterRun]:
            runs = self.runs(rig, stage, DagsterRunStatus.STARTED)
            return [run for run in runs if run.run_id != other_than]

        seen: list[DagsterRun] = []

        def started() -> bool:
            seen.extend(found())
            return bool(seen)

        wait_until(started, f"a run of {stage} started: {self.log('daemon')}", deadline_s=RUN_S)
        return seen[0]

    def await_truth(self) -> None:
        """Wait until no run claims to be at work without a process."""

        def false_ones() -> list[str]:
            alive = set(descendants(os.getpid()))
            active = [s for s in DagsterRunStatus if s not in ENDED]
            runs = self.instance.get_runs(RunsFilter(statuses=active))
            return [run.run_id for run in runs if self.pid_of(run) not in alive]

        wait_until(
            lambda: not false_ones(), f"runs without a process are ended: {self.log('daemon')}", deadline_s=RUN_S
        )

    def rows(self) -> dict[str, int]:
        """How many rows each table of Dagster's database has."""
        with psycopg.connect(self._dsn, dbname=self._database, autocommit=True) as connection:
            names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
            counts = sql.SQL("SELECT count(*) FROM {}")
            return {
                name: connection.execute(counts.format(sql.Identifier(name))).fetchone()[0]  # type: ignore[index]
                for (name,) in names
            }

    def drop_database(self) -> None:
        """Dagster's state is gone; the database is made again, empty."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self._database)))
        known = conninfo_to_dict(self.room.environment["DAGSTER_PG_URL"])
        ensure_database(self._dsn, self._database, password=str(known["password"]))

    def await_tables(self) -> None:
        """Wait until a daemon has made its tables in a new database, and notes its ticks there."""
        target = make_conninfo(self._dsn, dbname=self._database)

        def ticked() -> bool:
            with psycopg.connect(target, autocommit=True) as connection:
                try:
                    found = connection.execute("SELECT 1 FROM job_ticks LIMIT 1").fetchone()
                except psycopg.errors.UndefinedTable:
                    return False
                return found is not None

        wait_until(ticked, f"a daemon ticks on a new database: {self.log('daemon')}", deadline_s=RUN_S)


@contextmanager
def dagster_over(settings: Settings, folder: Path, specs: Sequence[TableSpec]) -> Iterator[DagsterRig]:
    """Dagster over the tables of *specs*, nothing of it started yet; all of it is gone after the block."""
    tables = folder / "tables"
    tables.mkdir(parents=True)
    for spec in specs:
        words = spec.model_dump(mode="json", exclude_defaults=True, by_alias=True)
        (tables / f"{spec.table}.yaml").write_text(yaml.safe_dump(words))
    assert settings.dsn is not None
    database = f"dagster_{uuid.uuid4().hex[:10]}"
    room = ControlRoom(settings, database=database, more={"HARNESS_TABLES": str(tables)})
    os.environ["DAGSTER_PG_URL"] = room.environment["DAGSTER_PG_URL"]
    try:
        with DagsterInstance.from_config(str(room.home)) as instance:
            made = DagsterRig(room, instance, settings.dsn, database)
            try:
                yield made
            finally:
                room.down()
                made.kill_all()
    finally:
        del os.environ["DAGSTER_PG_URL"]
        with psycopg.connect(settings.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(database)))


def descendants(pid: int) -> list[int]:
    """Processes below *pid*, the deepest first."""
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            below.setdefault(parent, []).append(int(entry.name))

    def walk(top: int) -> Iterator[int]:
        for child in below.get(top, ()):
            yield from walk(child)
            yield child

    return list(walk(pid))
