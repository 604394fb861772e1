"""The process that the processes of queries are copies of: it has loaded what they need, and so one takes milliseconds.

It does nothing else and has no threads, so that it may be copied. It ends with the process that it belongs
to, and ends its copies then.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from contextlib import suppress

from harness_pipelines.engines.duckdb.child import serve
from harness_pipelines.engines.duckdb.database import Limits
from harness_pipelines.engines.duckdb.wire import Line

FORK, KILL, END = "fork", "kill", "end"
_PR_SET_PDEATHSIG = 1  #: of Linux's `prctl`: the signal for the death of the parent


def main(number: int) -> None:
    """Do what the process at the other end of the socket *number* asks."""
    import duckdb  # noqa: F401  # its copies have it

    line, children = Line(socket.socket(fileno=number)), set[int]()
    try:
        while True:
            (word, *args), files = line.receive()
            if word == FORK:
                found = _forked(line, files[0], *args)
                children.update([found] if found > 0 else [])
            else:
                [pid] = args
                found = _ended(pid, children, is_waited_for=word == END)
            line.send(found)
    except EOFError:
        for pid in children:
            os.kill(pid, signal.SIGKILL)


def _forked(line: Line, file: int, limits: Limits, spill: str) -> int:
    """The number of a new copy, whose other end of *file* the caller has; below zero if the system allows no more."""
    try:
        pid = os.fork()
    except OSError as error:
        pid = -(error.errno or 1)
    if pid:
        os.close(file)
        return pid
    try:
        with suppress(AttributeError):  # elsewhere it ends when it next sends something
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        line.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries write there before they end a process without memory
        serve(Line(socket.socket(fileno=file)), limits, spill)
    finally:
        os._exit(0)


def _ended(pid: int, children: set[int], *, is_waited_for: bool) -> int:
    """End a copy, if it runs; and say how it ended, if that is waited for: its number is free then."""
    if pid not in children:
        return 0
    os.kill(pid, signal.SIGKILL)  # one that has ended keeps its number until it is waited for
    if not is_waited_for:
        return 0
    children.discard(pid)
    return os.waitpid(pid, 0)[1]
