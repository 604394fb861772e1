"""Rates of tables, from one look at them to the next."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness_pipelines.show.status import TableSeen

LOOKS_KEPT = 30
_BLOCKS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRates:
    """One table as `harness top` lists it."""

    table: str
    state: str  #: ``ok``, or what is wrong first
    produced_per_s: float | None  #: records into the topic; None: not known yet, or Kafka does not answer
    ingested_per_s: float | None  #: records into the table
    ingested_history: tuple[float, ...]  #: `ingested_per_s` of the last looks, the oldest first
    tail: int | None  #: offsets that only Kafka has
    buffer: int  #: offsets that only the buffer has
    unmerged: int  #: offsets of the lake that the batch view lacks
    waiting_s: float | None  #: since the last commit of ingest, where offsets wait in Kafka
    quarantined: int
    lake_rows: int
    workers: int

    @property
    def is_well(self) -> bool:
        return self.state == "ok"


@dataclass(frozen=True, slots=True)
class _Reading:
    at_s: float
    come: int | None
    taken: int


class Rates:
    """Remembers the last looks at each table."""

    def __init__(self) -> None:
        self._readings: dict[str, deque[_Reading]] = {}

    def of(self, seen: Collection[TableSeen], *, now_s: float) -> list[TableRates]:
        """The rates of *seen*, looked at *now_s* (seconds of a steady clock); tables that are gone are forgotten."""
        self._readings = {one.table: self._added(one, now_s) for one in seen}
        return [_rates(one, self._readings[one.table]) for one in seen]

    def _added(self, one: TableSeen, now_s: float) -> deque[_Reading]:
        known = self._readings.get(one.table) or deque[_Reading](maxlen=LOOKS_KEPT + 1)
        ends = [one.ends.get(p.partition) for p in one.positions]
        come = None if None in ends else sum(end for end in ends if end is not None)
        known.append(_Reading(now_s, come, sum(p.bounds.buffer_hi for p in one.positions)))
        return known


def _rates(one: TableSeen, readings: Sequence[_Reading]) -> TableRates:
    pairs = list(zip(readings, list(readings)[1:], strict=False))
    history = tuple(max(b.taken - a.taken, 0) / max(b.at_s - a.at_s, 1e-9) for a, b in pairs)
    come = None
    if pairs and (first := pairs[-1][0]).come is not None and (last := pairs[-1][1]).come is not None:
        come = max(last.come - first.come, 0) / max(last.at_s - first.at_s, 1e-9)
    lag = one.lag
    return TableRates(
        table=one.table,
        state=_state(one),
        produced_per_s=come,
        ingested_per_s=history[-1] if history else None,
        ingested_history=history,
        tail=lag["tail"],
        buffer=lag["buffer"] or 0,
        unmerged=lag.get("stream") or 0,
        waiting_s=one.since_ingest_s if lag["tail"] else None,
        quarantined=one.counts.quarantined,
        lake_rows=one.counts.lake_rows,
        workers=len({claim["holder"] for claim in one.claims if claim["alive"]}),
    )


def _state(one: TableSeen) -> str:
    if one.state is not None:
        return one.state
    if not any(claim["alive"] for claim in one.claims):
        return "no worker"
    if one.stalled:
        return "stalled"
    return "late" if one.late else "ok"


def sparkline(values: Sequence[float], *, width: int) -> str:
    """*values* as blocks, the newest on the right, from 0 to the greatest of them."""
    shown = list(values)[-width:]
    greatest = max(shown, default=0.0)
    if greatest <= 0:
        return (_BLOCKS[0] * len(shown)).rjust(width)
    return "".join(_BLOCKS[round(value / greatest * (len(_BLOCKS) - 1))] for value in shown).rjust(width)


def rate(per_s: float | None) -> str:
    """A rate for people; ``-`` where it is not known."""
    if per_s is None:
        return "-"
    return f"{per_s:,.0f}" if per_s >= 10 or per_s == 0 else f"{per_s:.1f}"
