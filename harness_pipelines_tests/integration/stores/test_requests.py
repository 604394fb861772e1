"""What the harness asks of an object store, request by request: users pay for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import uuid4

import pytest

import harness_pipelines as hp
from harness_pipelines.audit.fsck.run import fsck
from harness_pipelines.ports.ledger import Ledger, TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.guard import WarehouseGuard
from harness_pipelines.stages.run.table_units import TableUnits
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.hastened import hastened, whole_periods
from harness_pipelines_tests.producer import wait_until
from harness_pipelines_tests.rig import ALL, OTREE, TIER, TableRig
from harness_pipelines_tests.store_proxy import Request, StoreProxy, looks_of_expire, read_twice

TIMES = 120.0  #: a second is two minutes for the worker
PARTITIONS = 4
WRITES = ("PUT", "CREATE", "REPLACE", "POST")
PERIODS = 1  #: of expire
LOOKS = 50  #: of stages, over some five seconds: the rarest come every two


@pytest.fixture
def counted(settings: Settings, proxy: StoreProxy) -> Iterator[hp.Harness]:
    """A harness whose warehouse is reached by the proxy; Spark's too."""
    with hp.connect(replace(settings, warehouse=f"s3://harness/{uuid4().hex[:8]}", s3=proxy.settings)) as opened:
        yield opened


def kinds(made: list[Request]) -> Counter[str]:
    return Counter(one.kind for one in made)


def settled(rig: TableRig) -> bool:
    return all(p.bounds.batch_hi == p.bounds.buffer_hi > 0 for p in rig.table.positions())


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Each time that a stage asked whether it may write: whether it was at rest."""
    seen: list[bool] = []
    check = WarehouseGuard.check

    def noted(self: WarehouseGuard, table: TableRow, ledger: Ledger, *, resting: bool = False) -> None:
        seen.append(resting)
        check(self, table, ledger, resting=resting)

    monkeypatch.setattr(WarehouseGuard, "check", noted)
    return seen


def at_rest(make_rig: MakeRig, counted: hp.Harness) -> TableRig:
    """A table of which everything is merged."""
    rig = make_rig(over=counted, views="both", tier={"max_age": "1s"})
    rig.produce(20)
    rig.worker(until_idle=True).run()
    assert settled(rig)
    return rig


def test_an_idle_worker_asks_once_a_minute_at_most(make_rig: MakeRig, counted: hp.Harness, proxy: StoreProxy):
    rig = at_rest(make_rig, counted)
    proxy.forget()
    with hastened(TIMES) as clock, rig.working(ALL, lease_s=30.0):
        made, minutes = whole_periods(proxy, clock, PERIODS)
    assert len(made) <= minutes, [(one.kind, one.path.rpartition("/")[2]) for one in made]
    assert kinds(made)["LIST"] >= PERIODS, "it does look"


def test_a_stage_at_rest_asks_the_store_nothing_however_often_it_looks(
    make_rig: MakeRig, counted: hp.Harness, proxy: StoreProxy, looks: list[bool], monkeypatch: pytest.MonkeyPatch
):
    """Not by a clock that runs faster: that one hastens what is done once in a while, and not what each look does.

    The ledger would not let them look for a minute; here it knows of work at all times.
    """
    monkeypatch.setattr(TableUnits, "rest_s", lambda _self, _stage: 0.0)
    rig = at_rest(make_rig, counted)
    proxy.forget()
    since: list[tuple[int, int]] = []  #: requests, and looks, when the last request was seen

    def is_silent() -> bool:
        made = len(proxy.made())
        if not since or since[-1][0] != made:
            since.append((made, len(looks)))
        return looks_of_expire(proxy.made()) != [] and len(looks) >= since[-1][1] + LOOKS

    with rig.working(ALL, lease_s=30.0):
        wait_until(is_silent, f"{LOOKS} looks one after another ask the store nothing")
    assert all(looks[-LOOKS:])


def asked(proxy: StoreProxy, work: Callable[[], object]) -> list[Request]:
    """What *work* asks of the store."""
    first = len(proxy.seen)
    work()
    return proxy.seen[first:]


def without_lists_of_spark(made: list[Request]) -> list[Request]:
    """Iceberg in Spark reads a manifest list for each table that it loads, and to commit; it keeps manifests alone."""
    return [one for one in made if "java" not in one.agent.lower() or "/snap-" not in one.path]


def test_a_move_writes_each_file_once_and_reads_no_metadata_twice(
    make_rig: MakeRig, counted: hp.Harness, proxy: StoreProxy
):
    # Arrow asks the store how long a file is that it opens.
    rig = make_rig(over=counted, partitions=PARTITIONS, views="both", engine="spark")

    def step(stage: frozenset[Stage]) -> list[Request]:
        return asked(proxy, rig.worker(stage, until_idle=True).run)

    for _ in range(2):  # what a process reads once
        rig.produce(20)
        rig.worker(ALL - {Stage.EXPIRE}, until_idle=True).run()
    rig.produce(20)
    rig.ingest()

    tier, otree = step(TIER), step(OTREE)
    assert sum(kinds(tier)[kind] for kind in WRITES) <= PARTITIONS + 5, kinds(tier)
    assert kinds(tier)["LIST"] <= 1
    for _ in range(3):
        rig.produce(20)
        rig.ingest()
        rig.tier()
    compact = step(frozenset({Stage.COMPACT}))
    assert [read_twice(made) for made in (tier, without_lists_of_spark(otree), compact)] == [[], [], []]
    ends = [one for one in otree if one.kind == "HEAD" and "/data/" in one.path]
    assert ends == [], "the lengths of data files are known"
    rig.assert_exact()
    assert fsck(rig.stores, [rig.name]).ok
