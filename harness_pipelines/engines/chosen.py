"""Which engine does a move: what the table's spec says, else the installation; with `auto` the cheaper one.

Neither engine is opened before it is needed: a worker of tables with `engine: arrow` never imports PySpark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness_pipelines.ports.engine import Arranging, CheckCounts, Engine
    from harness_pipelines.ports.ledger import RefusedRecord, TableRow
    from harness_pipelines.protocol.bounds import OffsetRange
    from harness_pipelines.protocol.claims import Stage
    from harness_pipelines.protocol.lake.compaction import Run, WideRun
    from harness_pipelines.protocol.moves import Move
    from harness_pipelines.protocol.reading.plan import SegmentRef
    from harness_pipelines.spec.settings import EngineWord


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of all processes that a move takes; bytes are those of its files."""

    fixed_s: float
    row_s: float
    byte_s: float

    def of(self, rows: int, size: float) -> float:
        return self.fixed_s + rows * self.row_s + size * self.byte_s


#: As `harness bench moves` measures them, on two cores with an embedded Spark that has moved rows before.
SPARK, ARROW = Cost(0.9, 5.2e-6, 3.5e-8), Cost(0.08, 2.3e-6, 2.0e-8)
#: Bulk is Spark's, which has several cores or machines for it. Each of these takes a worker's thread three CPU seconds.
ARROW_ROWS_MAX, ARROW_BYTES_MAX = 1_000_000, 128 * 1024 * 1024
MOVES_ASKED = 4  #: the newest ones, of which one tells how large a row is


class ChosenEngine:
    """`harness_pipelines.ports.engine.Engine` over both; *word* is for tables whose spec names none."""

    def __init__(
        self,
        word: EngineWord,
        *,
        spark: Callable[[], Engine],
        arrow: Callable[[], Engine],
        moves: Callable[[TableRow], Sequence[Mapping[str, Any]]],
    ) -> None:
        """*moves*: those of tier, the newest first, `MOVES_ASKED` of them; by their rows and bytes."""
        self._word, self._make, self._moves = word, {"spark": spark, "arrow": arrow}, moves
        self._opened: dict[str, Engine] = {}
        self._lock = threading.Lock()

    def _engine(self, name: str) -> Engine:
        with self._lock:
            if name not in self._opened:
                self._opened[name] = self._make[name]()
            return self._opened[name]

    def _of(self, table: TableRow, rows: int) -> Engine:
        word = table.spec.engine or self._word
        return self._engine(cheaper(rows, rows * self._row_bytes(table)) if word == "auto" else word)

    def _row_bytes(self, table: TableRow) -> float:
        """What a row takes in a file; 0 before the first move, which goes by its rows alone."""
        known = (move["bytes"] / move["rows"] for move in self._moves(table) if move["rows"] and move["bytes"])
        return float(next(known, 0.0))

    def check(self, tables: Sequence[TableRow], *, tasks: bool) -> None:
        """With `auto` both are needed, and Arrow always is there."""
        by_spark = [table for table in tables if (table.spec.engine or self._word) != "arrow"]
        if by_spark or (tasks and self._word != "arrow"):
            self._engine("spark").check(by_spark, tasks=tasks)
        elif tasks:
            self._engine("arrow").check(tables, tasks=True)

    def offsets_max(self, table: TableRow, stage: Stage) -> int | None:
        word = table.spec.engine or self._word
        return self._engine(word).offsets_max(table, stage) if word == "arrow" else None

    def write_segments(self, table: TableRow, move: Move, segments: Sequence[SegmentRef], *, rows: int) -> None:
        self._of(table, rows).write_segments(table, move, segments, rows=rows)

    def write_log(self, table: TableRow, move: Move, *, check: CheckCounts) -> tuple[int, list[RefusedRecord]]:
        offsets = sum(r.span for r in move.ranges)
        return self._of(table, offsets).write_log(table, move, check=check)

    def write_runs(
        self, table: TableRow, move: Move, *, metadata: str, runs: Sequence[Run | WideRun], file_bytes: int
    ) -> None:
        engine = self._of(table, sum(run.rows for run in runs))
        engine.write_runs(table, move, metadata=metadata, runs=runs, file_bytes=file_bytes)

    def arranging(self, table: TableRow, move: Move, *, rows: int) -> AbstractContextManager[Arranging]:
        return self._of(table, rows).arranging(table, move, rows=rows)

    def run_tasks(
        self, ranges: Sequence[OffsetRange], work: Callable[[Iterable[Any]], Iterable[Any]], result: Any
    ) -> list[Mapping[str, Any]]:
        self.check((), tasks=True)
        return self._engine("spark").run_tasks(ranges, work, result)

    def interrupt(self) -> None:
        for engine in list(self._opened.values()):
            engine.interrupt()

    def give_up(self, table: TableRow, stage: Stage) -> None:
        for engine in list(self._opened.values()):
            engine.give_up(table, stage)


def cheaper(rows: int, size: float) -> str:
    """The engine that moves *rows*, which are about *size* bytes in files, for less."""
    is_bulk = rows > ARROW_ROWS_MAX or size > ARROW_BYTES_MAX
    return "arrow" if not is_bulk and ARROW.of(rows, size) <= SPARK.of(rows, size) else "spark"
