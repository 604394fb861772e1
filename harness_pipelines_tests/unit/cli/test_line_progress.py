"""The lines of a worker's log: a table that rests is quiet, and many tables take turns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from structlog.testing import capture_logs

from harness_pipelines.show.progress import LINE_EVERY_S, LINES_MAX, RESTING_EVERY_S, LineProgress, Rates
from harness_pipelines.stages.run.progress import TableProgress


class Shown:
    """Lines of tables, by a clock of the test."""

    def __init__(self) -> None:
        self.now = 100.0
        self.progress = LineProgress(Rates(), clock=lambda: self.now)

    def after(self, seconds: float, tables: Sequence[TableProgress]) -> list[str]:
        self.now += seconds
        with capture_logs() as lines:
            self.progress.update(tables)
        return [line["table"] for line in lines if line["event"] == "run.progress"]


def test_a_table_has_a_line_when_it_changed_and_else_one_a_minute():
    shown, one = Shown(), TableProgress("shop.orders")
    assert shown.after(LINE_EVERY_S, [one]) == ["shop.orders"]
    assert shown.after(LINE_EVERY_S, [one]) == []
    one.rows += 5
    assert shown.after(1.0, [one]) == []
    assert shown.after(LINE_EVERY_S, [one]) == ["shop.orders"]
    assert shown.after(RESTING_EVERY_S - 1.0, [one]) == []
    assert shown.after(LINE_EVERY_S, [one]) == ["shop.orders"]


def test_many_tables_take_turns():
    tables = [TableProgress(f"shop.t{number:03}") for number in range(3 * LINES_MAX)]
    shown, said = Shown(), Counter[str]()
    for _ in range(6):
        for one in tables:
            one.rows += 1
        found = shown.after(LINE_EVERY_S, tables)
        assert len(found) == LINES_MAX
        said.update(found)
    assert set(said.values()) == {2}
    assert len(said) == len(tables)
