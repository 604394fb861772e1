"""A SIGTERM ends a command within a time limit, even if a call hangs.

A command first stops in order: it undoes open work, releases its claims and ends the processes that it started. If a
thread waits in C for a server that does not answer, Python may never reach its own signal handler. Therefore a thread
that waits for nothing else also receives the signal.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

END_S_MAX = 10.0  #: from the signal to the end of the process
LAST_WORDS_S_MAX = 1.0
TERMINATED = 128 + signal.SIGTERM
_if_late: list[Callable[[], None]] = []
_in_time = {signal.SIGTERM}  #: signals after which the process ends in time


def end_in_time(end_s_max: float = END_S_MAX) -> None:
    """From now on a SIGTERM ends this process within *end_s_max* seconds. Call it on the main thread.

    A command may install its own handler that ends it earlier.
    """
    signal.signal(signal.SIGTERM, _terminate)
    seen, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(seen, end_s_max), name="end-in-time", daemon=True).start()


def end_interrupts_in_time() -> None:
    """From now on Ctrl-C ends this process as SIGTERM does: once, and in time. For a command that started others.

    Call it on the main thread; `end_in_time` was called before.
    """
    _in_time.add(signal.SIGINT)
    signal.signal(signal.SIGINT, _interrupt)


def forget_interrupt() -> None:
    """Let the exit code stand that a command has chosen, whatever became of a Ctrl-C before.

    A KeyboardInterrupt that once left text which `exec` or `eval` compiled, as those do that make a dataclass or a
    named tuple, is remembered although it was handled: Python then ends by the signal itself, with no exit code at all.
    Other such text makes it forget (CPython's `run_eval_code_obj` and `Py_RunMain`).
    """
    exec("")


def if_late(kill: Callable[[], None]) -> None:
    """Call *kill* when the command does not end in time: it ends by force what the command started, and waits for
    nothing. It runs on another thread than the one that is late.
    """
    _if_late.append(kill)


def _terminate(number: int, _frame: FrameType | None) -> None:
    """End as Ctrl-C does, once: later signals do not disturb the ending."""
    signal.signal(number, lambda *_: None)
    atexit.register(signal.signal, number, signal.SIG_IGN)  # Python puts the default back before it is gone itself
    raise SystemExit(TERMINATED)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    """End once: another Ctrl-C does not disturb the ending."""
    signal.signal(number, lambda *_: None)
    raise KeyboardInterrupt


def _watch(seen: int, end_s_max: float) -> None:
    while not (found := _in_time.intersection(os.read(seen, 64))):
        pass
    by = signal.Signals(min(found))
    time.sleep(end_s_max)
    for kill in _if_late:
        with suppress(Exception):  # the next one has its turn too, and the process ends in any case
            kill()
    said = (
        f"harness: ended {end_s_max:.0f} s after {by.name} without waiting for what does not answer; claims that are "
    )
    last_words = f"{said}held end by themselves\n".encode()
    # The reader of the output may be what hangs: then its pipe is full, and a write to it never returns.
    writer = threading.Thread(target=os.write, args=(sys.stderr.fileno(), last_words), daemon=True)
    writer.start()
    writer.join(LAST_WORDS_S_MAX)
    os._exit(128 + by)
