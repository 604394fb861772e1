"""Which engine moves a table: its spec says it, else the installation; with `auto` the cheaper one per move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness_pipelines.engines.chosen import ARROW_BYTES_MAX, ARROW_ROWS_MAX, ChosenEngine, cheaper
from harness_pipelines.ports.engine import Engine
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import Move
from harness_pipelines.spec.settings import EngineWord


@dataclass
class Noting:
    """An engine that notes what it is asked."""

    name: str
    asked: list[str] = field(default_factory=list)

    def __getattr__(self, what: str) -> Any:
        def ask(*_: object, **__: object) -> None:
            self.asked.append(f"{self.name}.{what}")

        return ask


@dataclass
class World:
    word: EngineWord
    opened: list[Noting] = field(default_factory=list)
    moves: Sequence[Mapping[str, Any]] = ()

    @property
    def engine(self) -> ChosenEngine:
        def make(name: str) -> Engine:
            self.opened.append(Noting(name))
            return cast("Engine", self.opened[-1])

        return ChosenEngine(
            self.word, spark=lambda: make("spark"), arrow=lambda: make("arrow"), moves=lambda _: self.moves
        )

    @property
    def asked(self) -> list[str]:
        return [one for engine in self.opened for one in engine.asked]


def table(engine: EngineWord | None) -> TableRow:
    return cast("TableRow", SimpleNamespace(spec=SimpleNamespace(engine=engine)))


MOVE = cast("Move", SimpleNamespace(ranges=()))


@pytest.mark.parametrize(
    ("word", "of_table", "rows", "expected"),
    [
        ("spark", None, 10, "spark"),
        ("spark", "arrow", 10**9, "arrow"),
        ("arrow", "spark", 10, "spark"),
        ("arrow", None, 10**9, "arrow"),
        ("auto", None, 1_000, "arrow"),
        ("auto", None, 10**8, "spark"),
        ("spark", "auto", 1_000, "arrow"),
    ],
)
def test_the_table_decides_before_the_installation(
    word: EngineWord, of_table: EngineWord | None, rows: int, expected: str
):
    world = World(word)
    world.engine.write_segments(table(of_table), MOVE, [], rows=rows)
    assert world.asked == [f"{expected}.write_segments"]
    assert [one.name for one in world.opened] == [expected], "the other one is not opened"


def test_bulk_is_sparks_by_rows_and_by_bytes():
    assert cheaper(ARROW_ROWS_MAX + 1, 0) == "spark"
    assert cheaper(1, ARROW_BYTES_MAX + 1) == "spark"
    assert cheaper(1, 1) == "arrow"


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        pytest.param([], "arrow", id="no move yet"),
        pytest.param([{"rows": 10, "bytes": 10 * 100}], "arrow", id="small rows"),
        pytest.param([{"rows": 10, "bytes": 10 * ARROW_BYTES_MAX}], "spark", id="large rows"),
        pytest.param([{"rows": 0, "bytes": 0}, {"rows": 10, "bytes": 10 * ARROW_BYTES_MAX}], "spark", id="gaps first"),
        pytest.param([{"rows": None, "bytes": None}], "arrow", id="an open move alone"),
        pytest.param([{"rows": 10, "bytes": 10}, {"rows": 1, "bytes": ARROW_BYTES_MAX}], "arrow", id="the newest"),
    ],
)
def test_how_large_rows_are_the_moves_before_say(moves: Sequence[Mapping[str, Any]], expected: str):
    world = World("auto", moves=moves)
    world.engine.write_segments(table(None), MOVE, [], rows=2)
    assert world.asked == [f"{expected}.write_segments"]


def test_what_ends_work_opens_no_engine():
    world = World("spark")
    engine = world.engine
    engine.interrupt()
    engine.give_up(table("arrow"), Stage.TIER)
    assert world.opened == []


@pytest.mark.parametrize(("word", "asked"), [("spark", ["spark.check"]), ("auto", ["spark.check"]), ("arrow", [])])
def test_what_needs_spark_is_known_before_a_worker_begins(word: EngineWord, asked: list[str]):
    world = World("spark")
    world.engine.check([table("arrow"), table(word)], tasks=False)
    assert world.asked == asked


def test_tasks_are_asked_of_the_engine_of_the_installation():
    worlds = [World("spark"), World("arrow")]
    for world in worlds:
        world.engine.check([table("arrow")], tasks=True)
    assert [world.asked for world in worlds] == [["spark.check"], ["arrow.check"]]
