"""The registry of crash points and the code agree, and what is not in it cannot be armed."""

from __future__ import annotations

import ast
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness_pipelines
from harness_pipelines import faults
from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.claims import CONTINUOUS_STAGES


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.disarm()


def points_in_the_code() -> list[tuple[str, re.Pattern[str]]]:
    """(place, pattern of its names) of every ``faults.point(...)``; a stage that is filled in matches any."""
    return [
        (f"{path.name}:{call.lineno}", re.compile(_pattern(call.args[0])))
        for path in Path(harness_pipelines.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "faults.point"
    ]


def _pattern(name: ast.expr) -> str:
    if isinstance(name, ast.JoinedStr):
        return "".join(_pattern(part) for part in name.values)
    if isinstance(name, ast.FormattedValue):
        return "[a-z]+"
    assert isinstance(name, ast.Constant), f"a point is named where it is: {ast.unparse(name)}"
    return re.escape(str(name.value))


def test_every_point_in_the_code_is_declared_and_every_declared_one_is_in_the_code():
    found = points_in_the_code()
    assert [place for place, names in found if not any(names.fullmatch(name) for name in faults.POINTS)] == []
    assert [name for name in faults.POINTS if not any(names.fullmatch(name) for _, names in found)] == []


def test_every_stage_that_a_worker_runs_may_die_around_its_claim_and_around_its_commit():
    for stage in CONTINUOUS_STAGES:
        for where in ("before_claim", "after_claim", "in_transaction", "after_commit", "before_release"):
            assert f"{stage}.{where}" in faults.POINTS


def test_a_name_begins_with_its_stage_and_says_where_and_how_one_recovers():
    for name, point in faults.POINTS.items():
        assert name.startswith(f"{point.stage}.")
        assert point.where
        assert point.recovery


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("tier.nowhere=kill", r"'tier\.nowhere'.*the crash points are ingest\.before_claim, .*revert\.after_commit"),
        ("tier.after_plan=explode", r"expected point=kill\|stop\|raise\[@count\]"),
        ("tier.after_plan=kill@0", r"expected point=kill\|stop\|raise\[@count\]"),
        ("tier.after_plan=kill@x", r"expected point=kill\|stop\|raise\[@count\]"),
    ],
)
def test_a_wish_that_cannot_be_armed_is_a_usage_error(wish: str, said: str):
    with pytest.raises(UsageError, match=said):
        faults.arm_from({"HARNESS_FAULT": wish})


def test_an_armed_point_acts_once_and_only_the_time_that_was_asked_for():
    faults.arm_from({"HARNESS_FAULT": "tier.after_plan=raise@2,tier.after_files=raise"})
    faults.point("tier.after_plan")
    faults.point("tier.before_lock")
    with pytest.raises(faults.FaultInjected):
        faults.point("tier.after_plan")
    faults.point("tier.after_plan")
    with pytest.raises(faults.FaultInjected):
        faults.point("tier.after_files")


def test_threads_that_reach_a_point_together_trigger_it_once():
    acted: list[int] = []
    faults.arm("ingest.after_plan", lambda: acted.append(threading.get_ident()), at=3)
    threads = [threading.Thread(target=faults.point, args=("ingest.after_plan",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(acted) == 1


def test_the_documentation_has_the_table_of_points():
    page = Path(__file__).parents[2] / "docs" / "explanation" / "what-can-go-wrong.md"
    found = [line for line in page.read_text().splitlines() if line.startswith("| `") and "." in line.split("`")[1]]
    assert found == [f"| `{name}` | {point.where} | {point.recovery} |" for name, point in faults.POINTS.items()]
