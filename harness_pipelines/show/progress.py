"""Progress of a worker: a live display on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness_pipelines.show import bars

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from harness_pipelines.stages.run.worker import TableProgress

LINE_EVERY_S, RESTING_EVERY_S = 5.0, 60.0
LINES_MAX = 20  #: at once
REDRAW_EVERY_S = 0.25
RATE_OVER_S = 5.0
TROUBLE_CHARS_MAX = 200


class Rates:
    """Rows per second of each table over the last seconds."""

    def __init__(self, over_s: float = RATE_OVER_S) -> None:
        self._over_s = over_s
        self._seen: dict[str, deque[tuple[float, int]]] = {}

    def note(self, name: str, rows: int, *, now: float) -> float:
        """Record that *rows* were done at *now* (monotonic seconds); return the current rate."""
        seen = self._seen.setdefault(name, deque())
        seen.append((now, rows))
        while len(seen) > 2 and now - seen[0][0] > self._over_s:
            seen.popleft()
        (then, before), (last, after) = seen[0], seen[-1]
        return (after - before) / (last - then) if last > then else 0.0


class LineProgress:
    """A log line of each table that changed, every few seconds; of one that rests, one a minute.

    Of many tables, those come first whose last line is the oldest: the log of hundreds stays as short as that of some.
    """

    def __init__(self, rates: Rates, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates, self._clock = rates, clock
        self._last = clock()
        self._said: dict[str, tuple[float, Mapping[str, object]]] = {}  #: when, and what of it counts as a change

    def update(self, tables: Sequence[TableProgress]) -> None:
        """Update with the worker's figures; frequent calls are cheap."""
        import structlog

        now = self._clock()
        if now - self._last < LINE_EVERY_S:
            return
        self._last = now
        log, due = structlog.get_logger(__name__), list[tuple[float, str, dict[str, object]]]()
        for one in tables:
            rate, figures = round(self._rates.note(one.name, one.rows, now=now)), _figures(one)
            said_at, said = self._said.get(one.name, (0.0, {}))
            if figures != said or now - said_at >= RESTING_EVERY_S:
                due.append((said_at, one.name, {"rows_per_s": rate, **figures}))
        for _, name, figures in sorted(due, key=lambda line: line[:2])[:LINES_MAX]:
            log.info("run.progress", table=name, **figures)
            self._said[name] = now, {word: value for word, value in figures.items() if word != "rows_per_s"}
        self._said = {one.name: self._said[one.name] for one in tables if one.name in self._said}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release nothing."""


class LiveProgress:
    """A display on standard error, redrawn a few times per second."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._last = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(console=bars.console(stderr=True), auto_refresh=False, redirect_stdout=False)
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, tables: Sequence[TableProgress]) -> None:
        """Update with the worker's figures; frequent calls are cheap."""
        now = time.monotonic()
        if self._live is None or now - self._last < REDRAW_EVERY_S:
            return
        self._last = now
        rates = {one.name: self._rates.note(one.name, one.rows, now=now) for one in tables}
        self._live.update(picture(tables, rates), refresh=True)


def picture(tables: Sequence[TableProgress], rates: dict[str, float]) -> RenderableType:
    """Show all tables: rate, lag, a bar per partition, and the reason why a stage waits."""
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = []
    seen: list[bars.Spans] = []
    for one in tables:
        lag = lags(one)
        tail = "?" if lag["tail"] is None else f"{lag['tail']:,}"
        head = Text(one.name, style="bold")
        head.append(f"  {rates.get(one.name, 0.0):,.0f} rows/s, {one.rows:,} rows, ", style="not bold")
        head.append(
            f"lag {tail} tail + {lag['buffer']:,} buffer, {one.moves} moves, version {one.version or '-'}",
            style="not bold",
        )
        lines.append(head)
        spans = bars.spans_of(one.positions, one.ends)
        seen += spans
        lines += bars.bars(spans)
        if one.refused:
            lines.append(Text(f"  {one.refused:,} quarantined", style="yellow"))
        for stage, text in list(one.trouble.items()):
            lines.append(Text(f"  {stage}: {text[:TROUBLE_CHARS_MAX]}", style="red"))
    return Group(*lines, bars.legend(seen))


def _figures(one: TableProgress) -> dict[str, object]:
    lag = lags(one)
    figures: dict[str, object] = {"rows": one.rows, "lag_tail": lag["tail"], "lag_buffer": lag["buffer"]}
    return {**figures, "version": one.version or None, "moves": one.moves}


def lags(one: TableProgress) -> dict[str, int | None]:
    """Return the number of offsets only in Kafka (None: unknown) and only in the buffer."""
    spans = bars.spans_of(one.positions, one.ends)
    known = [s.tail for s in spans if s.tail is not None]
    return {
        "tail": sum(known) if spans and len(known) == len(spans) else None,
        "buffer": sum(s.buffer for s in spans),
    }
