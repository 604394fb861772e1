"""A SIGTERM ends a process whose main thread is in C and never comes back."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness_pipelines.chaos.processes import state_of
from harness_pipelines.cli.ending import TERMINATED
from harness_pipelines_tests.producer import DEADLINE_S, wait_until

# The main thread holds no lock of Python's and runs no line of it: the handler is never called.
HANGS = """
import ctypes, signal
from harness_pipelines.cli.ending import end_in_time

end_in_time(0.2)
signal.signal(signal.SIGTERM, lambda *_: None)
print("ready", flush=True)
libc = ctypes.CDLL(None)
while True:
    libc.sleep(60)
"""


IN_ORDER = """
import signal
from harness_pipelines.cli.ending import end_in_time

end_in_time()
try:
    print("ready", flush=True)
    signal.pause()
finally:
    print("given back", flush=True)
"""


def test_a_command_without_a_handler_ends_in_good_order():
    with subprocess.Popen([sys.executable, "-c", IN_ORDER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)  # another one disturbs nothing
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (TERMINATED, "given back\n")


ENDS_ONCE = """
import signal, sys
from harness_pipelines.cli.ending import end_in_time, end_interrupts_in_time

end_in_time()
end_interrupts_in_time()
try:
    print("ready", flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("ending", flush=True)
    sys.stdin.readline()  # another Ctrl-C comes before the line
    print("given back", flush=True)
"""


def test_another_ctrl_c_disturbs_no_ending():
    with subprocess.Popen(
        [sys.executable, "-c", ENDS_ONCE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for said in ("ready\n", "ending\n"):
            assert process.stdout.readline() == said
            process.send_signal(signal.SIGINT)
        said, _ = process.communicate("\n", timeout=DEADLINE_S)
    assert (process.returncode, said) == (0, "given back\n")


def test_a_command_that_hangs_in_c_ends_after_sigterm_and_says_so():
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == TERMINATED
    assert "without waiting for what does not answer" in said


FILLS_ITS_OUTPUT = """
import os, signal, sys
from harness_pipelines.cli.ending import end_in_time

end_in_time(0.2)
signal.signal(signal.SIGTERM, lambda *_: None)
print("ready", flush=True)
while True:
    os.write(sys.stderr.fileno(), b"x" * 4096)
"""


def test_a_command_whose_output_nobody_reads_ends_after_sigterm():
    with subprocess.Popen(
        [sys.executable, "-c", FILLS_ITS_OUTPUT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        wait_until(lambda: state_of(process.pid) == "S", "the pipe is full")
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(DEADLINE_S) == TERMINATED
        finally:
            process.kill()


LEAVES_A_CHILD = """
import ctypes, signal, subprocess
from harness_pipelines.cli.ending import end_in_time, end_interrupts_in_time, if_late

end_in_time(0.2)
end_interrupts_in_time()
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
if_late(lambda: 1 // 0)
if_late(child.kill)
print(child.pid, flush=True)
libc = ctypes.CDLL(None)
while True:
    libc.sleep(60)
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_what_a_late_command_started_is_killed_with_it(by: signal.Signals):
    with subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(by)
        process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 128 + by
    wait_until(lambda: state_of(child) in {"gone", "Z"}, "the child is gone")


# A module that is imported when it is first needed makes its dataclasses by text that it compiles.
INTERRUPTED_IN_TEXT = """
import click, sys
from harness_pipelines.cli import main

def interrupted():
    raise KeyboardInterrupt

@main.cli.command()
def caught():
    exec("interrupted()", globals())

@main.cli.command()
def handled():
    try:
        exec("interrupted()", globals())
    except KeyboardInterrupt:
        print("goes on")

main.main()
"""


@pytest.mark.parametrize(("command", "code"), [("caught", 130), ("handled", 0)])
def test_a_command_that_was_interrupted_while_it_compiled_a_text_has_the_exit_code_that_it_chose(
    command: str, code: int, tmp_path: Path
):
    (tmp_path / "interrupted.py").write_text(INTERRUPTED_IN_TEXT)
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
