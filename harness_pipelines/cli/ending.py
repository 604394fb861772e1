"""A SIGTERM ends a command in time, whatever hangs.

A command stops in good order first: what it began is undone or given back, and what it started is ended. Where a thread
waits in C for a server that does not answer, Python may never get to its own handler, so the signal is also seen here,
by a thread that waits for nothing else.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from types import FrameType

END_S_MAX = 10.0  #: from the signal to the end of the process
TERMINATED = 128 + signal.SIGTERM


def end_in_time(end_s_max: float = END_S_MAX) -> None:
    """From now on a SIGTERM ends this process, *end_s_max* seconds later at the latest. Main thread only.

    A command may have a handler instead that ends it by itself.
    """
    signal.signal(signal.SIGTERM, _terminate)
    seen, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(seen, end_s_max), name="end-in-time", daemon=True).start()


def _terminate(number: int, _frame: FrameType | None) -> None:
    """End as by Ctrl-C, once: another signal disturbs nothing that ends."""
    signal.signal(number, lambda *_: None)
    atexit.register(signal.signal, number, signal.SIG_IGN)  # Python puts the default back before it is gone itself
    raise SystemExit(TERMINATED)


def _watch(seen: int, end_s_max: float) -> None:
    while signal.SIGTERM not in os.read(seen, 64):
        pass
    time.sleep(end_s_max)
    said = f"harness: ended {end_s_max:.0f} s after SIGTERM without waiting for what does not answer; claims that are "
    os.write(sys.stderr.fileno(), f"{said}held end by themselves\n".encode())
    os._exit(TERMINATED)
