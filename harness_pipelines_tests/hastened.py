"""A worker for which time passes faster, so that what it does once in ten minutes is seen in seconds.

Only the clocks of an idle worker's periods are hastened: when the lake is looked at, and when expire runs. Leases,
timeouts and ages are those of the services, whose clocks a test cannot hasten.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

from harness_pipelines.lakes import owner
from harness_pipelines.stages import guard
from harness_pipelines.stages.run import steps, table_units
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.store_proxy import Request, StoreProxy, looks_of_expire

PERIODS_S_MAX = 240.0
_PERIODIC: tuple[ModuleType, ...] = (owner, guard, steps, table_units)


@contextmanager
def hastened(times: float) -> Iterator[Callable[[], float]]:
    """While the block lasts, *times* as many seconds pass for the looks of workers that are made in it; their clock."""
    began = time.monotonic()

    def monotonic() -> float:
        now = time.monotonic()
        return began + (now - began) * times

    with ExitStack() as until:
        for module in _PERIODIC:
            until.enter_context(patch.object(module, "time", SimpleNamespace(monotonic=monotonic)))
        for name in ("EXPIRE_EVERY_S", "EXPIRE_IDLE_S"):
            until.enter_context(patch.object(table_units, name, getattr(table_units, name) / times))
        yield monotonic


def whole_periods(proxy: StoreProxy, clock: Callable[[], float], count: int) -> tuple[list[Request], float]:
    """What is asked of the store in *count* whole periods of expire's looks, and their minutes by *clock*.

    No moment of the periods is left out, and none counts twice. Raises: AssertionError when a look does not come.
    """
    seen_at: list[float] = []

    def has_looked() -> bool:
        if len(looks_of_expire(proxy.made())) > len(seen_at):
            seen_at.append(clock())
        return len(seen_at) > count

    wait_until(has_looked, f"expire has looked {count + 1} times", deadline_s=PERIODS_S_MAX)
    made = proxy.made()
    looks = looks_of_expire(made)
    return made[looks[0] : looks[count]], (seen_at[count] - seen_at[0]) / 60
