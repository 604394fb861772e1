"""A SIGTERM ends a command in time, whatever hangs.

A command that handles SIGTERM stops in good order first. Where a thread waits in C for a server that does not answer,
Python may never get to its own handler, so the signal is also seen here, by a thread that waits for nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

END_S_MAX = 12.0  #: from the signal to the end of the process
TERMINATED = 128 + signal.SIGTERM


def end_in_time(end_s_max: float = END_S_MAX) -> None:
    """From now on this process is over *end_s_max* seconds after a SIGTERM that it handles. Main thread only."""
    seen, written = os.pipe()
    os.set_blocking(written, False)
    signal.set_wakeup_fd(written, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(seen, end_s_max), name="end-in-time", daemon=True).start()


def _watch(seen: int, end_s_max: float) -> None:
    while signal.SIGTERM not in os.read(seen, 64):
        pass
    time.sleep(end_s_max)
    said = f"harness: ended {end_s_max:.0f} s after SIGTERM without waiting for what does not answer; claims that are "
    os.write(sys.stderr.fileno(), f"{said}held end by themselves\n".encode())
    os._exit(TERMINATED)
