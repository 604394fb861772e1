"""A stand-by that lagged takes the place of the primary of a run, at its address."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import harness_pipelines as hp
from harness_pipelines.chaos.standby import Server
from harness_pipelines.ports.errors import WarehouseTaken
from harness_pipelines.services import Services

PROMOTIONS = "promotions"  #: in the home of a run: a byte for each


def promotions_of(home: Path) -> int:
    """How many there were. A reader that finds one more may find an older state than before."""
    path = home / PROMOTIONS
    return path.stat().st_size if path.exists() else 0


def fail_over(services: Services, home: Path, *, port: int, lag: Callable[[], None]) -> Server:
    """Make a stand-by, let it lack what is committed during *lag*, and let it stand in for the primary, which dies.

    Returns the old primary, which is down.
    """
    number = promotions_of(home) + 1
    primary = Server(home)
    primary.port = port
    standby = primary.copy_to(home / f"standby-{number}", standby=True)
    try:
        standby.start()
        standby.await_caught_up(primary)
        standby.cut_off()
        lag()
        with (home / PROMOTIONS).open("ab") as counted:
            counted.write(b"x")
        services.kill("postgres")
        standby.promote()
    finally:
        standby.end(signal.SIGINT)
    old = Server(home / f"left-behind-{number}")
    shutil.copytree(home / "secrets", old.home / "secrets")
    (home / "postgres").rename(old.home / "postgres")
    (standby.home / "postgres").rename(home / "postgres")
    services.up(only=["postgres"])
    return old


def unfenced(old: Server, harness: hp.Harness, tables: list[str]) -> list[str]:
    """Which of *tables* a worker of the *old* primary, when it comes back, may still work on."""
    old.start()
    try:
        with hp.connect(replace(harness.settings, dsn=old.worker_dsn)) as left:
            return [name for name in tables if not _is_refused(left, name)]
    finally:
        old.end()


def _is_refused(left: hp.Harness, name: str) -> bool:
    try:
        left.stores.guard.check(left.table(name).row, left.stores.ledger)
    except WarehouseTaken:
        return True
    return False
