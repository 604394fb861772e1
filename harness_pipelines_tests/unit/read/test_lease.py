"""One thread renews the leases of all reads that are under way."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.read.lease import Hold
from harness_pipelines_tests.producer import wait_until


class Leases:
    """What a hold asks of the ledger, and what it says."""

    def __init__(self) -> None:
        self.renewed: Counter[str] = Counter()
        self.gone: list[str] = []
        self.trouble: dict[str, Exception] = {}

    def renew(self, lease_id: str, *, lease: timedelta) -> None:
        self.renewed[lease_id] += 1
        if lease_id in self.trouble:
            raise self.trouble[lease_id]

    def finish(self, lease_id: str) -> None:
        self.gone.append(lease_id)

    def end(self, lease_id: str) -> None:
        self.gone.append(lease_id)


@pytest.fixture
def leases() -> Leases:
    return Leases()


def held(leases: Leases, name: str, lease_s: float) -> Hold:
    stores: Any = SimpleNamespace(leases=leases)
    plan: Any = SimpleNamespace(lease_id=name)
    return Hold(stores, plan, timedelta(seconds=lease_s))


def test_each_is_renewed_at_its_own_pace_until_it_ends(leases: Leases):
    slow, quick = held(leases, "slow", 900), held(leases, "quick", 0.06)  # the second is due long before the first
    wait_until(lambda: leases.renewed["quick"] >= 3, "it is renewed again and again")
    quick.finish()
    seen = leases.renewed["quick"]
    third = held(leases, "third", 0.06)
    wait_until(lambda: leases.renewed["third"] >= 5, "the next one is renewed")
    assert leases.renewed["quick"] <= seen + 1, "one may have been under way"
    assert leases.renewed["slow"] == 0
    for hold in (quick, slow, third):
        hold.end()
    assert sorted(leases.gone) == ["quick", "slow", "third"], "each once"


def test_an_outage_is_waited_for_and_an_end_is_told_at_the_next_check(leases: Leases):
    leases.trouble = {"away": TryAgain("the ledger is away"), "ended": HarnessError("the lease has ended")}
    away, ended = held(leases, "away", 0.06), held(leases, "ended", 0.06)
    wait_until(lambda: leases.renewed["away"] >= 3 and leases.renewed["ended"] >= 1, "both were tried")
    leases.trouble = {}
    away.finish()
    for check in (ended.check, ended.finish):
        with pytest.raises(HarnessError, match="the lease has ended"):
            check()
    ended.end()
    assert leases.gone == ["away", "ended"]


def test_what_nobody_foresaw_ends_the_read_that_met_it_and_no_other(leases: Leases):
    leases.trouble = {"sick": RuntimeError("cannot execute UPDATE in a read-only transaction")}
    sick, well = held(leases, "sick", 0.06), held(leases, "well", 0.06)
    wait_until(lambda: leases.renewed["sick"] >= 1, "it was tried")
    seen = leases.renewed["well"]
    wait_until(lambda: leases.renewed["well"] >= seen + 3, "the other one is renewed as before")
    for check in (sick.check, sick.finish):
        with pytest.raises(RuntimeError, match="read-only"):
            check()
    well.finish()
    sick.end()
    assert leases.gone == ["well", "sick"], "it may be alive, and nobody else gives it back"
