"""Named crash points: no-ops until a test, or ``HARNESS_FAULT``, arms one.

``HARNESS_FAULT="tier.in_transaction=kill"`` kills the process with SIGKILL when it gets there, ``=stop`` stops it with
SIGSTOP (somebody else must continue it), ``=raise`` raises `FaultInjected`. A count, ``=kill@3``, waits for the
third time. Idea: Neon's failpoints.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness_pipelines.errors import UsageError


class FaultInjected(Exception):
    """Raised by an armed crash point; deliberately not a HarnessError, so that nothing handles it on purpose."""


@dataclass(slots=True)
class _Armed:
    act: Callable[[], None]
    wait_for: int


_armed: dict[str, _Armed] = {}


def arm(name: str, act: Callable[[], None], *, at: int = 1) -> None:
    """Run *act* the *at*-th time that the point *name* is reached (and never again)."""
    _armed[name] = _Armed(act=act, wait_for=at)


def disarm() -> None:
    _armed.clear()


def point(name: str) -> None:
    """A place where a process may die; the name says which."""
    if not _armed:
        return
    armed = _armed.get(name)
    if armed is None:
        return
    armed.wait_for -= 1
    if armed.wait_for == 0:
        armed.act()


def arm_from(environment: Mapping[str, str]) -> None:
    """Arm what ``HARNESS_FAULT`` asks for: ``point=action[@count]``, several with commas."""
    acts: dict[str, Callable[[], None]] = {
        "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
        "raise": _raise,
    }
    for wish in filter(None, environment.get("HARNESS_FAULT", "").split(",")):
        name, _, action = wish.partition("=")
        verb, _, count = action.partition("@")
        if verb not in acts or (count and not count.isdecimal()):
            raise UsageError(f"HARNESS_FAULT {wish!r}: expected point=kill|stop|raise[@count]")
        arm(name, acts[verb], at=int(count or 1))


def _raise() -> None:
    raise FaultInjected("a crash point was armed")
