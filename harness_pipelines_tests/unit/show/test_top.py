"""`harness top`: rates from one look to the next, and the screen that lists them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from textual.widgets import DataTable, Static
from textual.worker import WorkerFailed

from harness_pipelines.cli.main import cli
from harness_pipelines.cli.reads import status
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.ledgers.postgres.views.status import Counts
from harness_pipelines.ports.ledger import PartitionStatus, SickTable
from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.versions import Version, View
from harness_pipelines.show.look import Look
from harness_pipelines.show.rates import Rates, rate, sparkline
from harness_pipelines.show.status import TableSeen
from harness_pipelines.show.top_screen import TableScreen, TopApp
from harness_pipelines.spec.table import Freshness
from harness_pipelines_tests.producer import DEADLINE_S

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CLAIM = {"stage": "ingest", "holder": "a:1", "epoch": 1, "lease_until": NOW, "alive": True, "ahead": False}


def seen(
    table: str = "shop.orders", *, taken: int = 0, end: int | None = 100, refused: int = 0, stopped: str | None = None
) -> TableSeen:
    bounds = Bounds(start=0, batch_hi=0, stream_hi=0, buffer_hi=taken)
    view = View(metadata="m", snapshot=1)
    return TableSeen(
        table=table, topic="t", since_tier_s=1.0, since_ingest_s=0.5, goals=Freshness(),
        head=Version(
            table_id=1, version=1, schema_version=1, move_id=None, bounds={0: bounds}, stream=view, committed_at=NOW
        ),
        positions=[PartitionStatus(partition=0, bounds=bounds, trim_floor=0)], ends={} if end is None else {0: end},
        claims=[CLAIM], open_moves=[], apart={}, refusing=None, violations=[], asked=[], stopped=stopped, trouble=None,
        counts=Counts(quarantined=refused, filtered=0, readers=0, oldest_lease_s=None, lake_rows=0),
        stalls=[], held={}, pins=[], growth=None, lags=[], mirrors=[], at=NOW,
    )  # fmt: skip


def looked(*tables: TableSeen, sick: Sequence[SickTable] = ()) -> Look:
    return Look(tables=tables, sick=sick, kafka=None, silent={})


def test_rates_are_those_since_the_last_look():
    rates = Rates()
    [first] = rates.of([seen(taken=10, end=20)], now_s=0)
    assert (first.ingested_per_s, first.produced_per_s, first.tail, first.state) == (None, None, 10, "ok")
    [second] = rates.of([seen(taken=30, end=120)], now_s=2)
    assert (second.ingested_per_s, second.produced_per_s, second.ingested_history) == (10.0, 50.0, (10.0,))
    [third] = rates.of([seen(taken=25, end=None)], now_s=3)
    assert (third.ingested_per_s, third.produced_per_s, third.tail) == (0.0, None, None)  # a revert takes nothing
    assert rates.of([], now_s=4) == []
    [again] = rates.of([seen(taken=50)], now_s=5)
    assert again.ingested_history == ()


def test_what_is_wrong_first_is_the_state():
    rates = Rates()
    told = [seen("a.a", stopped="why"), seen("a.b")]
    assert [one.state for one in rates.of(told, now_s=0)] == ["stopped", "ok"]


@given(st.lists(st.floats(0, 1e9), max_size=40), st.integers(1, 30))
def test_a_sparkline_has_its_width_and_its_greatest_value_is_full(values: list[float], width: int):
    line = sparkline(values, width=width)
    assert len(line) == width
    assert ("█" in line) == any(value > 0 for value in values[-width:])
    assert [rate(one) for one in (None, 0.0, 0.25, 1234.6)] == ["-", "0", "0.2", "1,235"]


def driven(look: Callable[[], Look], steps: Callable[[TopApp, Any], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        app = TopApp(look, every_s=0.05)
        async with app.run_test(size=(160, 40)) as pilot:
            await steps(app, pilot)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


async def until(pilot: Any, holds: Callable[[], bool]) -> None:
    while not holds():
        await pilot.pause(0.01)


def shown(app: TopApp) -> list[str]:
    rows: DataTable[Any] = app.screen_stack[0].query_one(DataTable)
    return [str(rows.get_row_at(at)[0]) for at in range(rows.row_count)]


def head(app: TopApp) -> str:
    return str(app.screen_stack[0].query_one("#head", Static).render())


def opened(app: TopApp) -> str:
    """What the screen of one table shows; nothing as long as it is not there."""
    if not (isinstance(app.screen, TableScreen) and app.screen.query("#table")):
        return ""
    return str(app.screen.query_one("#table", Static).render())


def test_tables_are_sorted_by_a_key_opened_and_closed():
    def look() -> Look:
        return looked(seen("a.a", taken=90), seen("a.b", taken=10, refused=7), seen("a.c", taken=50))

    async def steps(app: TopApp, pilot: Any) -> None:
        await until(pilot, lambda: len(shown(app)) == 3)
        assert shown(app) == ["a.a", "a.b", "a.c"]
        await pilot.press("l")
        assert shown(app) == ["a.b", "a.c", "a.a"]
        await pilot.press("t", "down", "enter")
        await until(pilot, lambda: "a.b  version 1" in opened(app) and "worker a:1: ingest" in opened(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, TableScreen))
        await pilot.press("q")

    driven(look, steps)


def test_a_ledger_that_is_away_is_named_and_asked_again():
    answers: list[Look | TryAgain] = [
        TryAgain("Postgres does not answer [at] once"),
        looked(seen("a.a"), sick=[SickTable(name="a.b", why="odd [row]")]),
    ]

    def look() -> Look:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Look):
            return answer
        raise answer

    async def steps(app: TopApp, pilot: Any) -> None:
        await until(pilot, lambda: "Postgres does not answer [at] once" in head(app))
        await until(pilot, lambda: shown(app) == ["a.a"])
        assert "2 tables, 1 not ok" in head(app)
        assert "a.b cannot be read: odd [row]" in head(app)

    driven(look, steps)


def test_a_defect_of_a_look_ends_it_and_is_not_hidden():
    def look() -> Look:
        raise ZeroDivisionError("a defect")

    async def steps(app: TopApp, pilot: Any) -> None:
        await until(pilot, lambda: not app.is_running)

    with pytest.raises(WorkerFailed, match="a defect"):
        driven(look, steps)


def test_a_watch_shows_an_outage_and_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    answers: list[Look | HarnessError] = [
        looked(seen("a.a")), TryAgain("Postgres is away"), looked(seen("a.b")), UsageError("the end"),
    ]  # fmt: skip

    def look(*_: Any) -> Look:
        answer = answers.pop(0)
        if isinstance(answer, Look):
            return answer
        raise answer

    monkeypatch.setattr("harness_pipelines.show.look.look_at", look)
    with pytest.raises(UsageError, match="the end"):
        status._watch(cast("Any", None), cast("Any", None), (), every_s=0.001)
    shown = capsys.readouterr().out
    assert shown.index("a.a") < shown.index("not refreshed: Postgres is away") < shown.index("a.b")
    assert shown.count("a.a  version 1") == 2, "what was seen last stays"


def test_without_a_terminal_it_names_the_command_that_prints(tmp_path: Any):
    done = CliRunner().invoke(cli, ["--home", str(tmp_path), "top"])
    assert done.exit_code == 2
    assert "`harness status` prints the state once" in done.output


@pytest.mark.parametrize("gone", [True, False])
def test_an_open_table_follows_the_looks(gone: bool):
    looks = [looked(seen("a.a", taken=1))]

    async def steps(app: TopApp, pilot: Any) -> None:
        await until(pilot, lambda: shown(app) == ["a.a"])
        await pilot.press("enter")
        await until(pilot, lambda: "a.a  version 1" in opened(app))
        looks[0] = looked() if gone else looked(seen("a.a", stopped="an odd record"))
        expected = "a.a is gone" if gone else "an odd record"
        await until(pilot, lambda: expected in opened(app))

    driven(lambda: looks[0], steps)
