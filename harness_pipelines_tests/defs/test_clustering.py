"""A backfill of regions writes them again, is done once, and always says so; other runs of otree merge as before."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import AssetKey, DagsterExecutionInterruptedError, DagsterInstance, DagsterRunStatus, Definitions

from harness_pipelines.defs import clustering
from harness_pipelines.defs.build import build
from harness_pipelines.defs.clustering import REGIONS, _requested, covered
from harness_pipelines.defs.tables import job_name
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.layout.requested import Request
from harness_pipelines.ledgers.postgres.requests.recluster import Reclusters
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.ports.ledger import TableStopped
from harness_pipelines.ports.requests import Asked
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.read.report.layout import look
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.rig import OTREE, TableRig

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
ALL = REGIONS.get_partition_keys()


@pytest.fixture
def clustered(make_rig: MakeRig) -> TableRig:
    """A table of four regions, into which more was merged that is not clustered yet."""
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 4})
    for _ in range(2):
        rig.produce(400)
        rig.ingest()
        rig.tier()
        rig.move_once(Stage.OTREE, _merge, crash=None)
    assert look(rig.stores, rig.table.row).score.staged_share > 0
    return rig


def _merge(*args: Any, **words: Any) -> object:
    from harness_pipelines.stages.otree.otree import otree_once

    return otree_once(*args, **words)


def backfilled(rig: TableRig, instance: DagsterInstance, *keys: str, rebuild: bool = False) -> dict[str, Any]:
    """The metadata of a run over the regions from the first to the last of *keys*, as a backfill starts it."""
    job = definitions(rig).resolve_job_def(job_name(Stage.OTREE))
    step = f"{rig.name.replace('.', '__')}__rewrite_otree"
    done = job.execute_in_process(
        instance=instance,
        tags={RANGE_START: keys[0], RANGE_END: keys[-1]},
        run_config={"ops": {step: {"config": {"rebuild": rebuild}}}},
    )
    assert done.success
    shown = {
        event.partition: {name: value.value for name, value in event.materialization.metadata.items()}
        for event in done.get_asset_materialization_events()
    }
    assert {partition for partition in shown if partition} == {k for k in ALL if keys[0] <= k <= keys[-1]}
    return next(iter(shown.values()))


def definitions(rig: TableRig) -> Definitions:
    return build([rig.table.spec])


def test_a_backfill_of_regions_clusters_them_and_shows_the_score(
    clustered: TableRig, environment: None, instance: DagsterInstance
) -> None:
    rig = clustered
    shown = backfilled(rig, instance, ALL[0], ALL[7])
    assert shown["parts"] > 0
    assert shown["bytes_rewritten"] > 0
    assert shown["staged_share"] < shown["staged_share_before"]
    assert backfilled(rig, instance, ALL[8], ALL[-1])["staged_share"] == 0
    key = AssetKey([rig.table.spec.namespace, rig.table.spec.name, "otree"])
    assert instance.get_materialized_partitions(key) == set(ALL)
    plotted = instance.fetch_observations(AssetKey(list(key.path[:2])), limit=2).records
    shares = [record.asset_observation.metadata["staged_share"].value for record in plotted if record.asset_observation]
    assert shares == [shown["staged_share"]], "of what changed it"
    rig.assert_exact()


def test_what_is_done_is_not_done_again_unless_it_is_asked_for(
    clustered: TableRig, environment: None, instance: DagsterInstance
) -> None:
    rig = clustered
    backfilled(rig, instance, ALL[0], ALL[-1])
    before = rig.stores.ledger.head(rig.table.row).version
    assert backfilled(rig, instance, ALL[0], ALL[-1])["parts"] == 0
    assert rig.stores.ledger.head(rig.table.row).version == before
    assert backfilled(rig, instance, ALL[3], rebuild=True)["parts"] == 1
    assert rig.stores.ledger.head(rig.table.row).version == before + 1
    rig.assert_exact()


def test_a_table_without_merged_rows_ends_its_backfill_too(
    make_rig: MakeRig, environment: None, instance: DagsterInstance
) -> None:
    rig = make_rig(views="both", layout={"columns": ["n"], "regions": 4})
    assert "no rows yet" in backfilled(rig, instance, ALL[0])["why"]


def test_a_run_without_regions_merges_what_is_due(
    clustered: TableRig, environment: None, instance: DagsterInstance
) -> None:
    rig = clustered
    rig.produce(100)
    rig.ingest()
    rig.tier()
    job = definitions(rig).resolve_job_def(job_name(Stage.OTREE))
    done = job.execute_in_process(instance=instance)
    assert done.success
    events = done.get_asset_materialization_events()
    assert [event.partition for event in events] == [*ALL, None], "its regions are there, and it says so once"
    again = job.execute_in_process(instance=instance)
    assert [event.partition for event in again.get_asset_materialization_events()] == [None]
    assert {p.bounds.batch_hi for p in rig.table.positions()} == {900}
    rig.worker(OTREE, until_idle=True).run()
    rig.assert_exact()


@pytest.mark.parametrize(
    ("paths", "chosen", "expected"),
    [
        ([""], ["0000", "1111"], [""]),
        (["0", "1"], ["0101"], ["0"]),
        (["0", "10", "11"], ["0000", "1000", "1001"], ["0", "10"]),
        (["00000", "00001", "1"], ["0000"], ["0000"]),
        (["0000", "0001", "001", "01", "1"], ["0001", "0010", "0011"], ["0001", "001"]),
    ],
)
def test_a_region_that_is_larger_than_a_part_belongs_to_it(
    paths: list[str], chosen: list[str], expected: list[str]
) -> None:
    assert covered(paths, chosen) == expected


INTERRUPTED = DagsterExecutionInterruptedError()
AWAY, REFUSED = LakeAway("Spark is away"), TableStopped("a.b is stopped")
STARTED, CANCELING = DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING


class Ledger:
    """Its part that has the requests, as a list."""

    def __init__(self) -> None:
        self.asked = [Request(request_id=1, paths=("0",), upto=5, rebuild=True)]  # of somebody else
        self.stores: Any = SimpleNamespace(
            reclusters=SimpleNamespace(ask=self.ask, cancel=lambda _, one: self.asked.remove(one))
        )
        self.next_id = 2
        self.after_ask: Callable[[], None] = lambda: None

    def ask(self, _: Any, **wanted: Any) -> Asked:
        """As `Reclusters.ask`: an open request for the same is gone on with."""
        for one in self.asked:
            if (one.paths, one.rebuild) == (wanted["paths"], wanted["rebuild"]):
                return Asked(one, is_new=False)
        self.asked.append(Request(request_id=self.next_id, **wanted))
        self.after_ask()
        return Asked(self.asked[-1], is_new=True)

    def run(self, error: BaseException | None, *, status: DagsterRunStatus, tags: dict[str, str]) -> None:
        """A run of a backfill that ends by *error*; *tags* are the run's. None: by an interrupt while it asks."""
        run = SimpleNamespace(run_id="r", status=status, tags=tags)
        instance = SimpleNamespace(get_run_by_id=lambda _: run, add_run_tags=lambda _, more: tags.update(more))
        context: Any = SimpleNamespace(run=run, instance=instance, log=SimpleNamespace(info=lambda _: None))
        table: Any = SimpleNamespace(name="a.b")
        with pytest.raises(type(error or INTERRUPTED)), _requested(context, self.stores, table, WANTED):
            assert error is not None
            raise error
        self.next_id += 1

    @property
    def left(self) -> list[int]:
        return [one.request_id for one in self.asked]


WANTED = Request(request_id=0, paths=("0",), upto=5, rebuild=False)


@pytest.mark.parametrize(
    ("error", "status", "left"),
    [
        (INTERRUPTED, CANCELING, [1]),
        (INTERRUPTED, DagsterRunStatus.CANCELED, [1]),
        (INTERRUPTED, STARTED, [1, 2]),  # its machine ends: others go on with it
        (AWAY, STARTED, [1, 2]),  # nobody would want what was done already to be done again
        (AWAY, CANCELING, [1]),
        (OutcomeUnknown("COMMIT was sent"), STARTED, [1, 2]),
        (REFUSED, STARTED, [1]),
        (RuntimeError("a defect"), STARTED, [1]),
    ],
)
def test_a_request_is_withdrawn_by_a_run_that_is_cancelled_or_fails_for_good(
    error: BaseException, status: DagsterRunStatus, left: list[int]
) -> None:
    """Against the ledger's part as a list; by a real Dagster: faults/test_dagster_backfills.py."""
    ledger = Ledger()
    ledger.run(error, status=status, tags={})
    assert ledger.left == left


def test_a_person_who_asks_meanwhile_keeps_the_request_for_other_regions() -> None:
    ledger = Ledger()
    ledger.asked.append(replace(WANTED, request_id=3, paths=("1",)))
    ledger.run(INTERRUPTED, status=CANCELING, tags={})
    assert ledger.left == [1, 3]


@pytest.mark.parametrize(("error", "left"), [(INTERRUPTED, [1]), (REFUSED, [1]), (AWAY, [1, 2])])
def test_a_retry_owns_the_request_of_the_run_that_it_repeats(error: BaseException, left: list[int]) -> None:
    ledger, tags = Ledger(), dict[str, str]()
    ledger.run(AWAY, status=STARTED, tags=tags)
    ledger.run(error, status=CANCELING if error is INTERRUPTED else STARTED, tags=dict(tags))
    assert ledger.left == left


def test_another_backfill_does_not_own_a_request_that_was_there_before() -> None:
    ledger = Ledger()
    ledger.run(AWAY, status=STARTED, tags={})
    ledger.run(INTERRUPTED, status=CANCELING, tags={})
    assert ledger.left == [1, 2]


def test_a_run_that_is_interrupted_while_it_asks_withdraws_what_it_gets() -> None:
    def interrupted(*_: Any) -> None:
        raise INTERRUPTED

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        ledger = Ledger()
        ledger.after_ask = lambda: os.kill(os.getpid(), signal.SIGINT)
        ledger.run(None, status=CANCELING, tags={})
    finally:
        signal.signal(signal.SIGINT, before)
    assert ledger.left == [1]


def test_a_run_withdraws_the_request_that_it_made_and_no_newer_one_for_the_same_regions(
    clustered: TableRig, environment: None, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    later: list[Request] = []

    def overtaken(stores: Any, table: Any, request: Request, *, run_id: str) -> Iterator[None]:
        stores.reclusters.end(table, request)  # another worker did it
        later.append(asked(clustered, request))
        raise REFUSED
        yield

    monkeypatch.setattr(clustering, "run", overtaken)
    assert not executed(clustered, instance).success
    assert clustered.stores.reclusters.open(clustered.table.row) == later


def test_a_run_leaves_a_request_that_another_one_made_while_it_planned(
    clustered: TableRig, environment: None, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, other = Reclusters.ask, list[Request]()

    def late(self: Reclusters, table: Any, **wanted: Any) -> Any:
        monkeypatch.setattr(Reclusters, "ask", ask)
        other.append(asked(clustered, Request(request_id=0, **wanted)))
        return ask(self, table, **wanted)

    def refused(*_: Any, **__: Any) -> Iterator[None]:
        raise REFUSED
        yield

    monkeypatch.setattr(Reclusters, "ask", late)
    monkeypatch.setattr(clustering, "run", refused)
    assert not executed(clustered, instance).success
    assert clustered.stores.reclusters.open(clustered.table.row) == other


def asked(rig: TableRig, wanted: Request) -> Request:
    """The open request for what *wanted* names, made if it was not there."""
    rig.stores.reclusters.ask(rig.table.row, paths=wanted.paths, upto=wanted.upto, rebuild=wanted.rebuild)
    return rig.stores.reclusters.open(rig.table.row)[-1]


def executed(rig: TableRig, instance: DagsterInstance) -> Any:
    """A run over all regions, which may fail."""
    job = definitions(rig).resolve_job_def(job_name(Stage.OTREE))
    tags = {RANGE_START: ALL[0], RANGE_END: ALL[-1]}
    return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)
