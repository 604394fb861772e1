"""A worker for which time passes faster, so that what it does once in ten minutes is seen in seconds.

Only the clocks of an idle worker's periods are hastened: when the lake is looked at, and when expire runs. Leases,
timeouts and ages are those of the services, whose clocks nobody can hasten.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from harness_pipelines.lakes import owner
from harness_pipelines.stages import guard
from harness_pipelines.stages.run import worker

_PERIODIC: tuple[ModuleType, ...] = (owner, guard, worker)


@contextmanager
def hastened(times: float) -> Iterator[None]:
    """While the block lasts, *times* as many seconds pass for the looks of workers that are made in it."""
    began = time.monotonic()

    def monotonic() -> float:
        now = time.monotonic()
        return began + (now - began) * times

    with ExitStack() as until:
        for module in _PERIODIC:
            until.enter_context(patch.object(module, "time", SimpleNamespace(monotonic=monotonic)))
        until.enter_context(patch.object(worker, "EXPIRE_EVERY_S", worker.EXPIRE_EVERY_S / times))
        yield
