"""What test processes leave that were ended before they could clean up: by Ctrl-C, pytest-xdist gives them no time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from harness_pipelines.services import Services


def end_leftovers(folder: Path) -> None:
    """End the services whose home lies below *folder*, and every process that has a folder below it in its settings."""
    for state in [*folder.rglob("services.json")]:
        Services(state.parent).down()
    for pid in _told_of(folder):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _told_of(folder: Path) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and f"={folder}/".encode() in (entry / "environ").read_bytes():
                yield int(entry.name)
