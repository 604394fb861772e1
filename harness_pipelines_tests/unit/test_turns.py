"""Each value of a parameter that takes turns is met in the gate, and no test is left out of it."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from harness_pipelines_tests.turns import Case, left_out

pytest_plugins = ["pytester"]


def case(file: str, test: int, name: str, value: int, *, other: int = 0) -> Case:
    others = frozenset({("point", other)})
    return Case(file=file, line=test, name=f"{other}-{value}", others=others, turning=((name, value),))


def cases(tests: int, values: int, *, others: int = 1) -> list[Case]:
    return [
        case("a.py", test, "view", value, other=other)
        for test, other, value in product(range(tests), range(others), range(values))
    ]


@pytest.mark.parametrize("tests", range(1, 8))
@pytest.mark.parametrize("others", [1, 3])
@pytest.mark.parametrize("values", [1, 2, 3])
def test_each_test_keeps_one_value_and_each_value_is_kept_by_a_test(tests: int, others: int, values: int):
    all_of_them = cases(tests, values, others=others)
    kept = set(all_of_them) - left_out(all_of_them)
    assert Counter((one.line, one.others) for one in kept) == Counter({(one.line, one.others) for one in all_of_them})
    assert len({one.turning for one in kept}) == min(values, tests * others)


def test_the_order_of_the_cases_does_not_matter():
    all_of_them = cases(4, 3, others=2)
    assert left_out(reversed(all_of_them)) == left_out(all_of_them)


def test_other_parameters_and_files_have_turns_of_their_own():
    one, other = cases(1, 3), [case("b.py", 1, "view", value) for value in range(3)]
    pairs = [case("a.py", 5, "seed", value) for value in range(2)]
    kept = {*one, *other, *pairs} - left_out([*one, *other, *pairs])
    assert kept == {one[0], other[0], pairs[0]}


MODULE = """
import pytest

pytestmark = pytest.mark.turns("view")

@pytest.fixture(params=["both", "stream"])
def view(request):
    return request.param

@pytest.mark.parametrize("point", ["before", pytest.param("after", marks=pytest.mark.long)])
def test_one(view, point): pass

def test_two(view): pass

def test_three(): pass
"""


def test_pytest_leaves_out_what_is_not_its_turn(pytester: pytest.Pytester):
    marks = '["long: x", "turns(parameter): x"]'
    pytester.makepyprojecttoml(f"[tool.pytest.ini_options]\nmarkers = {marks}\n")
    pytester.makeconftest(
        "from harness_pipelines_tests import turns\ndef pytest_collection_modifyitems(items): turns.mark_long(items)\n"
    )
    pytester.makepyfile(MODULE)
    found, _ = pytester.inline_genitems("-p", "no:randomly")
    names = {item.name: item.get_closest_marker("long") is None for item in found}
    assert {name for name, kept in names.items() if kept} == {"test_one[both-before]", "test_two[stream]", "test_three"}
    assert len(names) == 7
