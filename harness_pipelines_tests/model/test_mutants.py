"""Every seeded fault is found, by the invariant that it breaks, with a trace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_pipelines_tests.model.explorer import explore
from harness_pipelines_tests.model.mutants import MUTANTS, STATES_MAX

LAYERED = [(name, layer) for name, mutant in MUTANTS.items() if len(mutant.switches) > 1 for layer in mutant.switches]


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_dies(name: str):
    mutant = MUTANTS[name]

    report = explore(mutant.mutated(), only=mutant.breaks, states_max=STATES_MAX)

    print(f"{name}\n{report}")
    assert report.violation is not None
    assert report.violation.startswith(mutant.breaks)
    assert report.trace


@pytest.mark.long
@pytest.mark.parametrize(("name", "layer"), LAYERED)
def test_a_layer_that_is_left_in_still_guards(name: str, layer: str):
    """A mutant of several layers names no layer in vain: with any one of them left in, its invariant holds."""
    mutant = MUTANTS[name]
    model = replace(mutant.model, bad=frozenset(mutant.switches) - {layer})

    assert explore(model, only=mutant.breaks, states_max=STATES_MAX, liveness=False).violation is None


def test_a_switch_that_no_mutant_sets_is_not_there():
    """The models look only at switches that mutants set, and every switch is looked at."""
    from pathlib import Path

    folder = Path(__file__).parent
    models = [p for p in folder.glob("*.py") if p.name != "mutants.py" and not p.name.startswith("test_")]
    source = "".join(p.read_text() for p in models)
    switches = {switch for mutant in MUTANTS.values() for switch in mutant.switches}

    assert [s for s in sorted(switches) if f'"{s}"' not in source] == []
