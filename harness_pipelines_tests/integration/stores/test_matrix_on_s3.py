"""The crash matrix with the lake on an object store: a holder that dies or sleeps at any point changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import harness_pipelines as hp
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.faults import matrix
from harness_pipelines_tests.faults.matrix import Ground
from harness_pipelines_tests.producer import KafkaRig

BY_THE_CLOCK_S = 60.0  #: a run of expire asks the store for some hundred files, one after the other

DRILLED = sorted({(cell.stage, cell.act) for cell in matrix.all_cells(acts=("kill", "stop"))})

pytestmark = [pytest.mark.long, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def ground(harness: hp.Harness, settings: Settings, endpoints: Endpoints) -> Iterator[Ground]:
    assert endpoints.kafka is not None
    assert (settings.warehouse or "").startswith("s3://")
    kafka = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    yield Ground(harness=harness, kafka=kafka, settings=settings, by_the_clock_s=BY_THE_CLOCK_S)
    kafka.close()


@pytest.mark.parametrize(
    ("stage", "act"), sorted({(cell.stage, cell.act) for cell in matrix.all_cells(acts=("kill", "stop"))})
)
def test_a_worker_that_dies_or_sleeps_at_any_point_is_followed_without_loss_or_double(
    ground: Ground, stage: str, act: matrix.Act
):
    cells = [cell for cell in matrix.all_cells(acts=(act,)) if cell.stage == stage]
    outcomes = list(matrix.run(ground, cells))
    assert len(outcomes) == len(cells)
    assert {str(one.cell): one.trouble for one in outcomes if one.trouble} == {}
