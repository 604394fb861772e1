"""Parameters that take turns: in the gate each test has one of their values, and `-m ''` runs it with every value.

A module that runs each of its tests over several kinds of table says `pytestmark = pytest.mark.turns("taken")`, where
"taken" is the name of the parameter or of the fixture that has the values. The first test of the module then keeps
the first value, the next test the second one. So each value is met as long as the module has a test for each. The
other cases get the mark `long`. Cases of a test that differ in other parameters count as tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

MARK = "turns"


@dataclass(frozen=True, slots=True)
class Case:
    """One case of a test: where the test is, and which value of each parameter it has."""

    file: str
    line: int
    name: str
    others: frozenset[tuple[str, int]]  #: (parameter, its value's `id`) of those that do not take turns
    turning: tuple[tuple[str, int], ...]  #: (parameter, place of its value among all) of those that do


def left_out(cases: Iterable[Case]) -> frozenset[Case]:
    """Those of *cases* whose turn it is not."""
    tests: dict[tuple[str, int, frozenset[tuple[str, int]]], list[Case]] = {}
    for case in sorted(cases, key=lambda case: (case.file, case.line, case.name)):
        tests.setdefault((case.file, case.line, case.others), []).append(case)
    out: set[Case] = set()
    turns: Counter[tuple[str, tuple[str, ...]]] = Counter()  # so far, by file and parameters
    for of_test in tests.values():
        parameters = (of_test[0].file, tuple(name for name, _ in of_test[0].turning))
        kept = sorted(of_test, key=lambda case: case.turning)[turns[parameters] % len(of_test)]
        turns[parameters] += 1
        out.update(case for case in of_test if case is not kept)
    return frozenset(out)


def mark_long(items: Sequence[pytest.Item]) -> None:
    """Give the mark `long` to the cases whose turn it is not."""
    found = {item: case for item in items if (case := _case(item)) is not None}
    out = left_out(found.values())
    for item, case in found.items():
        if case in out:
            item.add_marker(pytest.mark.long)


def _case(item: pytest.Item) -> Case | None:
    turning = {name for mark in item.iter_markers(MARK) for name in mark.args}
    given = item.callspec if hasattr(item, "callspec") else None
    if given is None or turning.isdisjoint(given.params) or item.get_closest_marker("long") is not None:
        return None
    return Case(
        file=str(item.path),
        line=item.reportinfo()[1] or 0,
        name=item.name,
        others=frozenset((name, id(value)) for name, value in given.params.items() if name not in turning),
        turning=tuple(sorted((name, place) for name, place in given.indices.items() if name in turning)),
    )
