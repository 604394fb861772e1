"""What a home remembers, and how processes are known again."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_pipelines.chaos.standby import Server
from harness_pipelines.services.base import ServicesBusy, ServicesError
from harness_pipelines.services.control_room import ControlRoom
from harness_pipelines.services.manager import Services
from harness_pipelines.services.process import (
    Launch,
    ProcessId,
    child_environment,
    end,
    has_marker,
    identify,
    is_alive,
    launch,
    strays,
    tail,
    wait_until,
)
from harness_pipelines.services.state import (
    FIRST_PORT,
    FORMAT,
    LAST_PORT,
    LOOPBACK,
    Record,
    StateFile,
    free_ports,
    is_free,
    make_home,
    make_private,
    secret,
)
from harness_pipelines.spec.settings import Settings


def silent() -> None:
    """Stands for a progress message that nobody reads."""


def sleeper(home: Path, *, ignore_term: bool = False) -> ProcessId:
    """Start a process that lives until it is ended."""
    code = "import signal,sys; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if ignore_term else "import signal\n"
    code += f"open({str(home / 'began')!r}, 'w').close(); signal.pause()"
    command = [sys.executable, "-S", "-c", code]
    process = launch(Launch(command=command, cwd=home, env=child_environment(home, "x", {})), home / "x.log")
    assert wait_until((home / "began").exists, timeout_s=60)
    return process


def test_a_state_written_is_the_state_read_by_another_object(tmp_path):
    record = Record(ports=(20001, 20002), process=ProcessId(pid=7, started="boot/1"))
    StateFile(tmp_path).write("kafka", record)
    StateFile(tmp_path).write("spark", Record(ports=(20003,), process=None))

    assert StateFile(tmp_path).read() == {"kafka": record, "spark": Record(ports=(20003,), process=None)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"format": 2, "services": {}}', "written by a newer harness.*format is 2.*knows 1.*Install that version"),
        ('{"services": {"kaf', "is not the JSON.*Remove the file"),
        ("", "is not the JSON.*nothing was started or stopped"),
        ("[]", "is not the JSON.*nothing was started or stopped"),
        ('{"services": 5}', "is not the JSON.*nothing was started or stopped"),
        ('{"format": "x", "services": {}}', "is not the JSON.*nothing was started or stopped"),
        ('{"services": {"kafka": {"ports": [1], "pid": 1}}}', "is not the JSON.*nothing was started or stopped"),
    ],
)
def test_a_home_of_a_newer_harness_or_with_a_damaged_state_is_left_alone_by_name(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "services.json").write_text(text)
    services = Services(tmp_path)
    for call in (services.status, services.up, services.down, services.current):
        with pytest.raises(ServicesError, match=said):
            call()
    assert (tmp_path / "services.json").read_text() == text


def test_a_home_that_is_no_folder_is_named(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.write_text("")
    for call in (Services(home).status, Services(home).up):
        with pytest.raises(ServicesError, match=f"the home {home} .*HARNESS_HOME"):
            call()


def test_a_home_that_cannot_be_made_is_named() -> None:
    with pytest.raises(ServicesError, match="the home /proc/no/home is no folder that can be made.*HARNESS_HOME"):
        Services(Path("/proc/no/home")).up()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_home_that_cannot_be_written_is_named_and_keeps_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    services = Services(tmp_path)
    StateFile(tmp_path).write("kafka", Record(ports=(1,), process=None))
    monkeypatch.setattr("harness_pipelines.services.state.os.fsync", full)
    for call in (services.up, services.down):
        with pytest.raises(
            ServicesError, match=f"home {tmp_path} cannot be written: .*{os.strerror(number)}.*as it was"
        ):
            call()
    assert StateFile(tmp_path).read() == {"kafka": Record(ports=(1,), process=None)}
    assert not [found for found in tmp_path.rglob(".*") if found.is_file()]


def test_a_home_says_its_format_and_one_of_before_has_the_first(tmp_path: Path) -> None:
    path = tmp_path / "services.json"
    path.write_text('{"services": {"spark": {"ports": [1], "pid": null, "started": null}}}')
    assert StateFile(tmp_path).read() == {"spark": Record(ports=(1,), process=None)}
    StateFile(tmp_path).write("kafka", Record(ports=(2,), process=None))
    assert json.loads(path.read_text())["format"] == FORMAT


def test_threads_that_write_at_once_lose_nothing(tmp_path):
    state = StateFile(tmp_path)
    names = [f"service-{number}" for number in range(8)]
    threads = [threading.Thread(target=state.write, args=(name, Record(ports=(1,), process=None))) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(state.read()) == names


def test_a_home_that_never_had_services_has_an_empty_state(tmp_path):
    assert StateFile(tmp_path / "new").read() == {}


def test_a_second_holder_of_the_lock_is_told_to_try_again(tmp_path):
    told: list[str] = []
    with StateFile(tmp_path).exclusive(timeout_s=1, waiting=silent):
        waits = StateFile(tmp_path).exclusive(timeout_s=0.05, waiting=lambda: told.append("waiting"))
        with pytest.raises(ServicesBusy, match="nothing was changed; try again"), waits:
            pytest.fail("two holders of one lock")

    assert told == ["waiting"]
    with StateFile(tmp_path).exclusive(timeout_s=0, waiting=silent):
        pass  # free again


def test_a_secret_is_made_once_and_only_its_owner_may_read_it(tmp_path):
    path = tmp_path / "secrets" / "postgres"

    assert secret(path) == secret(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_to_all() -> Iterator[None]:
    """A umask that takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_to_all")
@pytest.mark.parametrize("before", ["missing", "empty", "of an older harness"])
def test_a_home_is_its_users_alone_whatever_the_umask(tmp_path, before):
    home = tmp_path / "home"
    if before != "missing":
        home.mkdir()
    if before == "of an older harness":
        (home / "services.lock").touch()
        (home / "logs").mkdir()

    with StateFile(home).exclusive(timeout_s=1, waiting=silent):
        assert mode(home) == 0o700


@pytest.mark.usefixtures("open_to_all")
def test_a_folder_of_others_stays_open_and_what_is_made_in_it_is_private(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "of_others").touch()
    (shared / "logs").mkdir()

    make_home(shared)
    for name in ("logs", "kafka"):
        make_private(shared / name)

    assert [mode(path) for path in (shared, shared / "logs", shared / "kafka")] == [0o777, 0o700, 0o700]


def test_ports_are_free_distinct_and_not_those_already_taken(tmp_path):
    first = free_ports(3, home=tmp_path, name="kafka", taken=frozenset())
    second = free_ports(3, home=tmp_path, name="kafka", taken=frozenset(first))

    assert len({*first, *second}) == 6
    assert all(is_free(port) for port in (*first, *second))


def test_servers_of_chaos_and_dagster_s_ui_take_no_port_that_a_connection_may_get_before_they_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ControlRoom, "_prepare", lambda _: {})
    for port in (Server(tmp_path / "server").port, ControlRoom(Settings(home=tmp_path)).port):
        assert FIRST_PORT <= port < LAST_PORT


def test_a_port_with_a_listener_is_not_free():
    with socket.create_server((LOOPBACK, 0)) as server:
        assert not is_free(server.getsockname()[1])


def test_a_later_process_with_the_same_pid_is_not_taken_for_ours():
    own = identify(os.getpid())
    assert own is not None

    assert is_alive(own)
    assert not is_alive(ProcessId(pid=own.pid, started="another boot/1"))


def test_a_zombie_is_not_alive():
    child = subprocess.Popen(["/bin/true"])
    assert wait_until(lambda: identify(child.pid) is None, timeout_s=60)
    child.wait()


def test_a_launched_process_is_in_another_session_and_no_child_of_ours(tmp_path):
    process = sleeper(tmp_path)
    try:
        assert os.getsid(process.pid) != os.getsid(0)
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)
    finally:
        end(process, polite=signal.SIGKILL, timeout_s=60)
    assert not is_alive(process)


def test_a_process_that_ignores_the_polite_signal_is_killed(tmp_path):
    process = sleeper(tmp_path, ignore_term=True)

    end(process, polite=signal.SIGTERM, timeout_s=0.1)

    assert not is_alive(process)


def test_a_stopped_process_can_be_ended(tmp_path):
    process = sleeper(tmp_path)
    os.kill(process.pid, signal.SIGSTOP)

    end(process, polite=signal.SIGTERM, timeout_s=60)

    assert not is_alive(process)


def test_strays_are_found_by_the_home_and_the_service_that_they_belong_to(tmp_path):
    process = sleeper(tmp_path)
    try:
        assert list(strays(lambda proc: has_marker(proc, tmp_path, "x"))) == [process]
        assert list(strays(lambda proc: has_marker(proc, tmp_path, "y"))) == []
        assert list(strays(lambda proc: has_marker(proc, tmp_path.parent, "x"))) == []
    finally:
        end(process, polite=signal.SIGKILL, timeout_s=60)


def test_a_service_inherits_no_secret_and_no_setting_of_another_spark(tmp_path, monkeypatch):
    for name in ("HARNESS_DSN", "SPARK_HOME", "PYSPARK_PYTHON", "PGPASSWORD", "JAVA_TOOL_OPTIONS"):
        monkeypatch.setenv(name, "foreign")

    found = child_environment(tmp_path, "spark", {"SPARK_CONF_DIR": "ours"})

    assert "foreign" not in found.values()
    assert found["SPARK_CONF_DIR"] == "ours"
    assert found["PATH"] == os.environ["PATH"]


def test_the_tail_of_a_log_is_its_last_lines(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("\n".join(f"line {number}" for number in range(5000)))

    assert tail(log, lines=2) == "line 4998\nline 4999"
    assert tail(tmp_path / "absent") == ""
