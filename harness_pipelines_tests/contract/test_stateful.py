"""Random steps over the stores: each alone against the oracle, and the reference and the real one in lock-step."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from harness_pipelines_tests.contract.machine import TableMachine
from harness_pipelines_tests.contract.sides import MemorySide, RealSide, Side
from harness_pipelines_tests.contract.stores_rig import RealRig

#: HARNESS_TEST_LONGER=20 runs twenty times as many examples.
LONGER = int(os.environ.get("HARNESS_TEST_LONGER", "1"))


def run(make, *, examples: int, steps: int) -> None:
    """Run the machine. A failure comes again with ``--randomly-seed`` as pytest printed it, or from hypothesis's blob.

    The blob (`reproduce_failure`) goes around *factory* like `seed`.
    """
    factory = seed(random.getrandbits(64))(lambda: TableMachine(make))
    run_state_machine_as_test(
        factory,  # type: ignore[arg-type]  # anything that gives a machine will do, says its documentation
        settings=settings(
            max_examples=examples * LONGER,
            stateful_step_count=steps,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(900 * LONGER)
def test_the_reference_keeps_the_rules():
    run(lambda: [MemorySide()], examples=100, steps=40)


@pytest.mark.long  # the next test judges examples of the real stores by the same oracle
@pytest.mark.timeout(900 * LONGER)
def test_the_real_stores_keep_the_rules(real: RealRig):
    run(lambda: [RealSide(real)], examples=12, steps=20)


@pytest.mark.timeout(900 * LONGER)
def test_the_reference_and_the_real_stores_agree_step_by_step(real: RealRig):
    def both() -> list[Side]:
        return [MemorySide(), RealSide(real)]

    run(both, examples=8, steps=20)
