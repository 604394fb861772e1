"""Runs are forks of a process that has imported everything, and has one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._core.errors import DagsterUserCodeUnreachableError
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import GrpcServerTarget
from dagster._grpc.client import DagsterGrpcClient

from harness_pipelines.chaos import orchestrator
from harness_pipelines.chaos.processes import name_of
from harness_pipelines.defs import warm
from harness_pipelines.services.state import free_port
from harness_pipelines_tests.faults.dagster_rig import descendants
from harness_pipelines_tests.producer import wait_until

START_S = 240.0


def test_chaos_knows_the_processes_by_the_same_names():
    assert (orchestrator.TEMPLATE_NAME, orchestrator.RUN_NAME) == (warm.TEMPLATE_NAME, warm.RUN_NAME)


def test_only_a_code_server_of_our_definitions_forks():
    assert not warm._is_code_server()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """A code server of the specs in the tests' folder; its pid and port."""
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}")
    port = free_port(tmp_path, "code")
    command = [sys.executable, "-m", "dagster", "api", "grpc", "-p", str(port), "-m", warm.DEFINITIONS]
    more = {"DAGSTER_HOME": str(tmp_path), "HARNESS_TABLES": str(Path(__file__).parent / "tables")}
    with _ended(subprocess.Popen([*command, "--location-name", "harness"], env={**os.environ, **more})) as process:
        client = DagsterGrpcClient(host="localhost", port=port)
        wait_until(lambda: _answers(client, process), "the code server answers", deadline_s=START_S)
        yield process.pid, port


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _answers(client: DagsterGrpcClient, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None
    try:
        return bool(client.ping("there"))
    except DagsterUserCodeUnreachableError:
        return False


def test_a_run_is_a_fork_of_a_template_with_one_thread(server: tuple[int, int], tmp_path: Path):
    pid, port = server
    [template] = descendants(pid)
    wait_until(lambda: name_of(template) == warm.TEMPLATE_NAME, "the template waits", deadline_s=START_S)
    assert len(list(Path(f"/proc/{template}/task").iterdir())) == 1

    with DagsterInstance.from_config(str(tmp_path)) as instance:
        run_id = launched(instance, port)
        wait_until(lambda: ended(instance, run_id), "the run has ended", deadline_s=START_S)
        said = [entry.user_message for entry in instance.all_logs(run_id)]
    assert any("deleted from before" in text for text in said)
    wait_until(lambda: warm.RUN_NAME not in names_below(pid), "its process is gone", deadline_s=START_S)
    assert name_of(template) == warm.TEMPLATE_NAME
    assert ticks_of_ended_children(template) > 0, "the run was a child of the template"


def ticks_of_ended_children(pid: int) -> int:
    """CPU time in user mode, of those that were waited for."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[13])


def names_below(pid: int) -> list[str]:
    return [name_of(below) for below in descendants(pid)]


def launched(instance: DagsterInstance, port: int) -> str:
    """A run of the purge, by the code server at *port*."""
    target = GrpcServerTarget(host="localhost", port=port, socket=None, location_name="harness")
    with WorkspaceProcessContext(instance, target) as process:
        request = process.create_request_context()
        [job] = [
            job
            for location in request.code_locations
            for repository in location.get_repositories().values()
            for job in repository.get_all_jobs()
            if job.name == "harness_purge"
        ]
        run = instance.create_run(
            job_name=job.name,
            run_id=None,
            run_config={},
            resolved_op_selection=None,
            step_keys_to_execute=None,
            status=None,
            tags={},
            root_run_id=None,
            parent_run_id=None,
            job_snapshot=job.job_snapshot,
            execution_plan_snapshot=None,
            parent_job_snapshot=None,
            remote_job_origin=job.get_remote_origin(),
            job_code_origin=job.get_python_origin(),
            asset_selection=None,
            asset_check_selection=None,
            op_selection=None,
            asset_graph=request.asset_graph,
        )
        instance.launch_run(run.run_id, request)
        return run.run_id


def ended(instance: DagsterInstance, run_id: str) -> bool:
    run = instance.get_run_by_id(run_id)
    return run is not None and run.is_finished
