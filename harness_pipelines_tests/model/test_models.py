"""The protocol holds in every state of the small models, and they reach the states that matter."""

from __future__ import annotations

import pytest

from harness_pipelines_tests.model import mutants
from harness_pipelines_tests.model.explorer import Report, explore
from harness_pipelines_tests.model.mutants import STATES_MAX, SUITE, AnyModel
from harness_pipelines_tests.model.registry import STEPS

_reports: dict[str, Report] = {}


def explored(model: AnyModel) -> Report:
    """Each model is explored once, whichever test asks first."""
    if model.name not in _reports:
        _reports[model.name] = explore(model, states_max=STATES_MAX)
        print(_reports[model.name])
    return _reports[model.name]


@pytest.mark.parametrize("model", SUITE, ids=lambda m: m.name)
def test_every_invariant_holds_and_a_goal_stays_reachable(model: AnyModel):
    report = explored(model)

    assert report.violation is None, str(report)


@pytest.mark.parametrize("kind", sorted({type(m).__name__ for m in SUITE}))
def test_every_interesting_state_is_reached(kind: str):
    """A witness per state: a model that could not get there would prove nothing about it."""
    models = [m for m in SUITE if type(m).__name__ == kind]
    reached = frozenset[str]().union(*(explored(m).witnessed for m in models))

    assert reached == set(models[0].witnesses)


@pytest.mark.long
def test_every_step_of_the_registry_is_taken():
    taken = frozenset[str]().union(*(explored(m).actions for m in SUITE))

    assert {step for steps in STEPS.values() for step in steps} - taken == set()


def test_what_was_explored_is_named_once():
    names = [m.name for m in (*mutants.SUITE, *mutants.LARGE)]

    assert len(names) == len(set(names))
