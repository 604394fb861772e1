"""Explore the models and kill the mutants by hand.

python -m harness_pipelines_tests.model             what the suite explores
python -m harness_pipelines_tests.model --large     larger bounds: minutes, and some GB of memory
python -m harness_pipelines_tests.model --mutants   every mutant, with the trace that kills it
"""

from __future__ import annotations

import sys

import click

from harness_pipelines_tests.model.explorer import explore
from harness_pipelines_tests.model.mutants import LARGE, MUTANTS, STATES_MAX, SUITE


@click.command()
@click.option("--large", is_flag=True, help="Explore larger bounds.")
@click.option("--mutants", is_flag=True, help="Print the trace that kills each mutant.")
def main(*, large: bool, mutants: bool) -> None:
    """Exit 1 if a model is violated, or a mutant lives."""
    wrong = 0
    if mutants:
        for name, mutant in MUTANTS.items():
            report = explore(mutant.mutated(), only=mutant.breaks, states_max=STATES_MAX)
            click.echo(f"{name} ({', '.join(mutant.switches)})\n{report}\n")
            wrong += report.violation is None
    else:
        for model in LARGE if large else SUITE:
            report = explore(model, states_max=10_000_000 if large else STATES_MAX)
            click.echo(report)
            wrong += report.violation is not None
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
