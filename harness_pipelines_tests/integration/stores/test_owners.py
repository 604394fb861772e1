"""Two ledgers start on one warehouse at the same moment, many times; each has its own database and process."""

from __future__ import annotations

import multiprocessing
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier

import pytest

from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.lakes.owner import Ownership
from harness_pipelines.ledgers.postgres.migrations import ledger_database, migrate
from harness_pipelines.ports.errors import WarehouseTaken
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines_tests.store_proxy import Fault, StoreProxy

SPAWN = multiprocessing.get_context("spawn")
STEP_S = 120.0
#: What becomes of the first request of a step that writes the mark, in turns. It is made again later, when the other
#: ledger may believe what it has read meanwhile. PUT: a client that no longer asks by condition meets the same.
FAULTS = (Fault(lost=True), Fault.named(503, "SlowDown"), None)
KINDS = ("CREATE", "REPLACE", "PUT")


@dataclass(frozen=True, slots=True)
class Round:
    """What one ledger came to know."""

    started: bool  #: the new warehouse was its own when it asked
    took: bool  #: so it was when it had taken it over
    has: bool  #: so it is when both have


def ledger(dsn: str, s3: S3Settings, places: list[str], together: Barrier, into: Connection) -> None:
    """One of the two: starts in each of *places*, and then takes it over."""
    found = []
    try:
        migrate(dsn)
        database = ledger_database(dsn, role=None, size=1)
        for place in places:
            BOUND.bind(place, s3)
            mine = Ownership(database, warehouse=place)
            answers = []
            for act in (mine.confirm, mine.take_over, mine.confirm):
                together.wait(STEP_S)
                answers.append(is_mine(act))
                together.wait(STEP_S)
            found.append(Round(*answers))
        into.send(found)
        database.close()
    finally:
        if len(found) < len(places):
            together.abort()  # nobody must wait for a ledger that failed


def is_mine(act: Callable[[], None]) -> bool:
    with suppress(WarehouseTaken):
        act()
        return True
    return False


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("rounds", [pytest.param(24, id="24"), pytest.param(1_000, id="1000", marks=pytest.mark.long)])
def test_of_two_ledgers_that_start_at_once_exactly_one_owns_the_warehouse_each_time(
    rounds: int, proxy: StoreProxy, make_database: Callable[[], str]
):
    base = f"s3://harness/{uuid.uuid4().hex[:10]}"
    places = [f"{base}/{number}" for number in range(rounds)]
    together = SPAWN.Barrier(3)
    ends = [SPAWN.Pipe(duplex=False) for _ in range(2)]
    ledgers = [
        SPAWN.Process(target=ledger, args=(make_database(), proxy.settings, places, together, into)) for _, into in ends
    ]
    for process in ledgers:
        process.start()
    try:
        for number in range(rounds):
            for _ in ("start", "take over", "confirm"):
                if (fault := FAULTS[number % len(FAULTS)]) is not None:
                    proxy.fail(KINDS, fault, times=1)
                together.wait(STEP_S)
                together.wait(STEP_S)
                proxy.heal()
        assert all(out.poll(STEP_S) for out, _ in ends)
        one, other = (out.recv() for out, _ in ends)
    finally:
        for process in ledgers:
            process.kill()
            process.join()

    assert len(one) == len(other) == rounds
    for place, ours, theirs in zip(places, one, other, strict=True):
        assert ours.started != theirs.started, f"{place}: {ours} and {theirs}"
        assert ours.has != theirs.has, f"{place}: {ours} and {theirs}"
        assert all(side.took for side in (ours, theirs) if side.has), f"{place}: {ours} and {theirs}"
