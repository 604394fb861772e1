"""Log rotation for the embedded services and workers.

A file that has become large is copied to ``NAME.1`` and emptied, which whoever appends to it does not notice: a line
that is written at that very moment may be lost. Older copies move on, and the last one goes.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOG_BYTES_MAX = 32 * 2**20
LOGS_KEPT = 4  #: older copies of each
EVERY_S = 60.0


def rotate(folder: Path, *, bytes_max: int = LOG_BYTES_MAX, kept: int = LOGS_KEPT) -> None:
    """Rotate what has become large in *folder*. A file that another process rotates at the same time is left to it.

    Raises: OSError.
    """
    with (folder / ".rotating").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        for log in sorted(folder.glob("*.log")):
            if log.stat().st_size > bytes_max:
                rotate_one(log, kept=kept)


def rotate_one(log: Path, *, kept: int = LOGS_KEPT) -> None:
    """Begin *log* again, and keep what it had. Raises: OSError."""
    for number in range(kept - 1, 0, -1):
        older = log.with_name(f"{log.name}.{number}")
        if older.exists():
            older.replace(log.with_name(f"{log.name}.{number + 1}"))
    shutil.copy2(log, log.with_name(f"{log.name}.1"))
    os.truncate(log, 0)


@contextmanager
def rotating(folder: Path, *, every_s: float = EVERY_S) -> Iterator[None]:
    """While the block lasts the logs in *folder*, if there is one, are looked at now and then."""
    if not folder.is_dir():
        yield
        return
    over = threading.Event()

    def go_on() -> None:
        while True:
            with suppress(OSError):  # of another user, or a full disk: the work does not depend on it
                rotate(folder)
            if over.wait(every_s):
                return

    threading.Thread(target=go_on, name="rotate-logs", daemon=True).start()
    try:
        yield
    finally:
        over.set()
