"""The demo's progress on standard error: a live display on a terminal, else lines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from harness_pipelines.show import bars
from harness_pipelines.show.output import note

if TYPE_CHECKING:
    from rich.live import Live

    from harness_pipelines.ledgers.postgres.views.status import RowlessOffsets
    from harness_pipelines.ports.ledger import PartitionStatus

REDRAW_EVERY_S = 0.2
LINE_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The state of the demo at one moment."""

    seconds: float
    sent: int
    records: int
    live: int | None  #: rows that those leave; None where each leaves one
    version: int
    positions: Sequence[PartitionStatus]
    ends: Mapping[int, int]
    apart: Mapping[int, RowlessOffsets]  #: offsets that are no rows, by partition
    tried: int
    wrong: int

    @property
    def spans(self) -> list[bars.Spans]:
        return bars.spans_of(self.positions, self.ends, apart=self.apart)

    def line(self) -> str:
        spans = self.spans
        lake, buffer, tail = (sum(getattr(s, tier.name) or 0 for s in spans) for tier in bars.TIERS)
        by_value = sum(s.batch or 0 for s in spans)
        where = f"lake {lake:,}, {by_value:,} by value  buffer {buffer:,}  tail {tail:,}  version {self.version}"
        checked = f"reads checked {self.tried}, wrong {self.wrong}"
        live = "" if self.live is None else f", {self.live:,} live"
        return f"{self.seconds:5.1f} s  sent {self.sent:,} of {self.records:,}{live}  {where}  {checked}"


class Show:
    """Use it as a context manager around the part that moves; `step` works at any time."""

    def __init__(self) -> None:
        self._console = bars.console(stderr=True)
        self._live: Live | None = None
        self._last = 0.0

    def step(self, text: str) -> None:
        """Tell what begins now."""
        if self._live is not None:
            self._console.print(text)
        else:
            note(text)

    def due(self) -> bool:
        """True when the next `update` would be shown."""
        return time.monotonic() - self._last >= (REDRAW_EVERY_S if self._live else LINE_EVERY_S)

    def update(self, moment: Moment) -> None:
        self._last = time.monotonic()
        if self._live is None:
            note(moment.line())
            return
        from rich.console import Group
        from rich.text import Text

        head = Text(moment.line(), style="bold")
        self._live.update(Group(head, *bars.bars(moment.spans), bars.legend(moment.spans)), refresh=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            from rich.live import Live

            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
