"""A stage that is added brings its model steps, mutants, crash points and fsck rules with it."""

from __future__ import annotations

import pytest

from harness_pipelines import faults
from harness_pipelines.audit.fsck.run import RULES
from harness_pipelines.protocol.claims import Stage
from harness_pipelines_tests.model.mutants import MUTANTS
from harness_pipelines_tests.model.registry import FSCK_RULES, STEPS


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_has_steps_in_the_models(stage: Stage):
    assert STEPS.get(stage), f"add the model steps of {stage} to harness_pipelines_tests/model and its registry"
    assert all(step.startswith(f"{stage}.") for step in STEPS[stage])


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_has_mutants(stage: Stage):
    found = [name for name, mutant in MUTANTS.items() if mutant.stage is stage]

    assert len(found) >= 3, f"seed faults of {stage} in harness_pipelines_tests/model/mutants.py"


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_has_crash_points_around_its_commit(stage: Stage):
    points = {name.removeprefix(f"{stage}.") for name in faults.POINTS if name.startswith(f"{stage}.")}

    assert {"in_transaction", "after_commit"} <= points, f"declare the crash points of {stage} in faults.POINTS"


@pytest.mark.parametrize("stage", Stage)
def test_a_stage_has_rules_of_fsck(stage: Stage):
    known = {rule.invariant for rule in RULES}

    assert FSCK_RULES.get(stage), f"name the fsck rules of {stage} in harness_pipelines_tests/model/registry.py"
    assert set(FSCK_RULES[stage]) <= known
