"""Text bars: the place of a table's records, partition by partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness_pipelines.protocol.topics import label

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from harness_pipelines.ledgers.postgres.views.status import RowlessOffsets
    from harness_pipelines.ports.ledger import PartitionStatus

BAR_CELLS = 48


@dataclass(frozen=True, slots=True)
class TierLook:
    """Appearance of a tier in a bar."""

    name: str
    mark: str
    style: str


TIERS = (TierLook("lake", "█", "blue"), TierLook("buffer", "▓", "green"), TierLook("tail", "░", "yellow"))
#: Of a table with a batch view: its lake has two parts.
FOUR_TIERS = (TierLook("batch", "▚", "magenta"), TierLook("stream", "█", "blue"), *TIERS[1:])
APART = TierLook("no_rows", "✗", "red")  #: offsets that were refused or filtered


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """Offsets of one partition by tier, without those known to be no rows; ``tail`` is None if the end of the log is
    unknown."""

    partition: int
    lake: int  #: all of it, whichever view answers
    buffer: int
    tail: int | None
    batch: int | None = None  #: the part of the lake that the batch view answers for; None in a table without one
    no_rows: int | None = None  #: refused and filtered offsets; None in a table without any

    @property
    def stream(self) -> int:
        """Return the number of offsets that only the stream view of the lake has."""
        return self.lake - (self.batch or 0)

    @property
    def total(self) -> int:
        return self.lake + self.buffer + (self.tail or 0) + (self.no_rows or 0)

    @property
    def tiers(self) -> tuple[TierLook, ...]:
        tiers = TIERS if self.batch is None else FOUR_TIERS
        return tiers if self.no_rows is None else (*tiers, APART)

    def of(self, tier: TierLook) -> int | None:
        """Return the offsets of *tier*; None if unknown."""
        found: int | None = getattr(self, tier.name)
        return found


def spans_of(
    positions: Sequence[PartitionStatus],
    ends: Mapping[int, int],
    *,
    batch: bool | None = None,
    apart: Mapping[int, RowlessOffsets] | None = None,
) -> list[Spans]:
    """Return the offsets that each tier answers for, from the bounds and the ends of the log.

    *batch*: whether the table has a batch view; by default it has one if the batch view is not empty. *apart*: the
    offsets that are no rows, by partition. The positions of filtered records are not stored, so each tier loses the
    same share of its offsets to them.
    """
    if batch is None:
        batch = any(p.bounds.batch_hi > p.bounds.start for p in positions)
    return [_spans(p, ends.get(p.partition), batch=batch, apart=apart or {}) for p in positions]


def _spans(seen: PartitionStatus, end: int | None, *, batch: bool, apart: Mapping[int, RowlessOffsets]) -> Spans:
    at, none = seen.bounds, apart.get(seen.partition)
    sizes = [at.batch_hi - at.start, at.stream_hi - at.batch_hi, at.buffer_hi - at.stream_hi]
    if none is not None:
        sizes = _less([size - n for size, n in zip(sizes, (none.batch, none.stream, none.buffer), strict=True)],
                      none.filtered)  # fmt: skip
    return Spans(
        partition=seen.partition,
        lake=sizes[0] + sizes[1],
        buffer=sizes[2],
        tail=None if end is None else max(end - at.buffer_hi, 0),
        batch=sizes[0] if batch else None,
        no_rows=(at.buffer_hi - at.start) - sum(sizes) if apart else None,
    )


def _less(sizes: Sequence[int], count: int) -> list[int]:
    """*sizes* without *count*, each less by its share."""
    left, rest, found = max(sum(sizes), 0), max(count, 0), list[int]()
    for size in sizes:
        taken = min(size, round(rest * size / left)) if left else 0
        found.append(size - taken)
        left, rest = left - size, rest - taken
    return found


def cells(sizes: Sequence[int], *, scale: int, width: int) -> list[int]:
    """Return the cells for each of *sizes* when *scale* fills *width*: proportional, but at least one if not empty."""
    if scale <= 0:
        return [0 for _ in sizes]
    found = [max(1, round(size * width / scale)) if size > 0 else 0 for size in sizes]
    while sum(found) > width and max(found) > 1:
        found[found.index(max(found))] -= 1
    return found


def bar(spans: Spans, *, scale: int, width: int = BAR_CELLS) -> Text:
    """Return one partition as a bar, tier by tier from the first offset on."""
    from rich.text import Text

    text = Text()
    sizes = [spans.of(tier) or 0 for tier in spans.tiers]
    for tier, count in zip(spans.tiers, cells(sizes, scale=scale, width=width), strict=True):
        text.append(tier.mark * count, style=tier.style)
    text.append(" " * (width - text.cell_len))
    return text


def numbers(spans: Spans) -> str:
    """Return the figures of one partition as text."""
    sizes = [spans.of(tier) for tier in spans.tiers]
    return " | ".join("?" if size is None else f"{size:,}" for size in sizes)


def bars(spans: Sequence[Spans], *, width: int = BAR_CELLS, topic: str = "") -> list[Text]:
    """Return all partitions of *topic* on one scale, one line each."""
    from rich.text import Text

    scale = max((s.total for s in spans), default=0)
    names = [str(label(topic, one.partition)) for one in spans]
    digits = max(map(len, names), default=1)
    lines = []
    for one, name in zip(spans, names, strict=True):
        line = Text(f"  {name:>{digits}} ", style="dim")
        lines.append(line.append_text(bar(one, scale=scale, width=width)).append(f" {numbers(one)}", style="dim"))
    return lines


def legend(spans: Iterable[Spans] = ()) -> Text:
    """Return a legend for the bars of *spans*."""
    from rich.text import Text

    text = Text("  ")
    used = {tier for one in spans for tier in one.tiers} or set(TIERS)
    for tier in (FOUR_TIERS[0], TIERS[0], *FOUR_TIERS[1:], APART):
        if tier not in used:
            continue
        text.append(tier.mark, style=tier.style).append(f" {tier.name.replace('_', ' ')}   ", style="dim")
    return text


def console(*, stderr: bool = False) -> Console:
    """Return a console that does not wrap lines unless it is a terminal."""
    from rich.console import Console

    found = Console(stderr=stderr, highlight=False)
    return found if found.is_terminal else Console(stderr=stderr, highlight=False, width=10_000, no_color=True)


def ago(seconds: float) -> str:
    """Return a duration with about two digits: ``0.4 s``, ``12 s``, ``3 min``, ``5 h``, ``2 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0):.1f} s"


def size(count: float) -> str:
    """Return a byte count with a unit."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
