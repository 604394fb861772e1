"""The crash matrix in the form of the suite: every declared point, killed there and, in the long form, asleep."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import harness_pipelines as hp
from harness_pipelines import faults
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.settings import Settings
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.faults import matrix
from harness_pipelines_tests.faults.drills import DRILLS
from harness_pipelines_tests.faults.matrix import Cell, Ground, Outcome
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import TableRig, running

#: Of long runs only: a death in the transaction leaves all that these do, and an append table dies at each of them.
EARLIER = [
    Cell(point="otree.during_files", act="kill", kind="keyed"),
    Cell(point="otree.after_files", act="kill", kind="recalled"),
    Cell(point="otree.before_lock", act="kill", kind="one view"),
]
OTHERS = [
    Cell(point="tier.in_transaction", act="kill", buffer="none"),
    Cell(point="tier.before_naming", act="kill", buffer="none", engine="arrow"),
    Cell(point="revert.before_lock", act="kill", buffer="none"),
    Cell(point="otree.in_transaction", act="kill", kind="keyed", engine="arrow"),
    Cell(point="otree.after_commit", act="kill", kind="keyed"),
    Cell(point="otree.during_files", act="stop", kind="recalled"),
    Cell(point="otree.in_transaction", act="kill", kind="recalled"),
    Cell(point="otree.after_commit", act="kill", kind="recalled", engine="arrow"),
    Cell(point="otree.in_transaction", act="kill", kind="one view"),
    Cell(point="otree.after_commit", act="kill", kind="one view", engine="arrow"),
]
#: Acts whose files expire might take, of tables whose only other copy is the log.
ASLEEP = matrix.all_cells(acts=("sleep",), buffers=("none",))
USUAL = [*matrix.all_cells(), *OTHERS, *EARLIER, *ASLEEP]
#: Of long runs only: the other engine leaves at the same point what this one leaves there.
AGAIN = matrix.by_the_other(USUAL)
CELLS = {str(cell): cell for cell in (*USUAL, *AGAIN)}


@pytest.fixture(scope="module")
def ground(harness: hp.Harness, settings: Settings, endpoints: Endpoints) -> Iterator[Ground]:
    assert endpoints.kafka is not None
    kafka = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    yield Ground(harness=harness, kafka=kafka, settings=settings)
    kafka.close()


class Drilled:
    """Outcomes of the chosen cells; those of one batch are drilled together when the first one is asked for."""

    def __init__(self, ground: Ground, chosen: list[Cell]) -> None:
        self._ground, self._chosen = ground, chosen
        self._outcomes: dict[Cell, Outcome] = {}

    def outcome(self, cell: Cell) -> Outcome:
        if cell not in self._outcomes:
            batch = [one for one in self._chosen if one.batch == cell.batch]
            self._outcomes |= {done.cell: done for done in matrix.run(self._ground, batch)}
        return self._outcomes[cell]


@pytest.fixture(scope="module")
def drilled(ground: Ground, request: pytest.FixtureRequest) -> Drilled:
    params = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    wanted = {found["name"] for found in params if found.get("name") in CELLS}
    return Drilled(ground, [cell for name, cell in CELLS.items() if name in wanted])


@pytest.mark.timeout(1800)  # the first cell of a batch waits for all of it
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if cell.act == "kill" and cell not in (*EARLIER, *AGAIN) else [pytest.mark.long])
        for name, cell in CELLS.items()
    ],
)
def test_a_worker_that_dies_or_sleeps_at_any_point_is_followed_without_loss_double_or_a_human_act(
    drilled: Drilled, name: str
):
    outcome = drilled.outcome(CELLS[name])
    assert not outcome.trouble
    assert outcome.recovered_s is not None


@pytest.mark.parametrize(
    ("stage", "engine"), [*((stage, "spark") for stage in DRILLS), *((stage, "arrow") for stage in matrix.MOVING)]
)
def test_a_stage_that_has_work_reaches_every_point_that_is_declared_for_it(ground: Ground, stage: str, engine: str):
    drill = DRILLS[stage]
    rig = TableRig(ground.harness, ground.kafka, engine=engine, **drill.spec)
    drill.prepare([rig])
    reached: set[str] = set()
    for name in faults.POINTS:
        faults.arm(name, lambda name=name: reached.add(name))  # type: ignore[misc]
    if drill.by_hand is not None:
        drill.by_hand(ground.harness, [rig.name])
    else:
        options = WorkerOptions(stages=drill.stages, until_idle=drill.until_idle)
        with running(Worker(ground.harness.stores, [rig.table.row], options)):
            wait_until(lambda: drill.caught_up(rig), f"{stage} is done")
    wanted = {name for name, one in faults.POINTS.items() if one.stage == stage and one.engine in ("", engine)}
    assert reached == wanted


def test_each_engine_dies_at_every_point_that_it_reaches_and_each_point_of_the_short_form_at_one():
    killed = [cell for cell in CELLS.values() if cell.act == "kill" and cell.kind == "append"]
    for stage in matrix.MOVING:
        points = {name for name, one in faults.POINTS.items() if one.stage == stage}
        for engine in matrix.ENGINES:
            reached = {name for name in points if faults.POINTS[name].engine in ("", engine)}
            assert {cell.point for cell in killed if cell.stage == stage and cell.engine == engine} == reached
        short = [cell for cell in killed if cell.stage == stage and cell not in AGAIN]
        assert {cell.point for cell in short} == points
        assert {cell.engine for cell in short} == set(matrix.ENGINES)


def test_every_stage_with_crash_points_has_a_drill():
    """A server of cuts is no worker and holds no claim: `contract/test_cut_crashes.py` stops one at each point."""
    assert {point.stage for point in faults.POINTS.values()} == {*DRILLS, "serve"}


@pytest.mark.parametrize("stage", ["tier", "expire"])
def test_a_worker_stopped_inside_a_transaction_holds_the_table_no_longer_than_the_timeouts(ground: Ground, stage: str):
    drill = DRILLS[stage]
    rig = TableRig(ground.harness, ground.kafka, **drill.spec)
    drill.prepare([rig])
    with ground.worker(drill, [rig], fault=f"{stage}.in_transaction=stop") as asleep:
        asleep.await_stopped()
        rig.produce(10)
        rig.ingest()
        rig.assert_exact()
        with ground.worker(drill, [rig]):  # after these rows are there: it may end as soon as it finds no more
            wait_until(lambda: drill.caught_up(rig), "another worker went on", deadline_s=matrix.DEADLINE_S)
    rig.assert_exact()


def test_recovery_is_timed_from_the_death_to_a_table_that_moves_again(ground: Ground):
    [(name, recovery)] = matrix.recovery_times(ground, points=["ingest.in_transaction"], times=1).items()
    assert name == "ingest.in_transaction"
    assert recovery.times == 1
    assert 0 < recovery.p50_s == recovery.max_s
