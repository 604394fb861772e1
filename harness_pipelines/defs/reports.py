"""Reports in Dagster beside its runs: lags of tables, and commits of external workers.

Each event is a row that Dagster keeps for weeks, so a tick reports a bounded number of them, whatever the number of
tables; those that have waited longest come first. What was shown when is kept per table and changes with it alone: a
sensor's cursor is copied into each of its ticks, and with hundreds of tables that would be gigabytes a day.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dagster import AssetMaterialization, AssetObservation, DagsterInstance

from harness_pipelines.defs.names import table_key
from harness_pipelines.defs.tables import stage_assets
from harness_pipelines.ports.upkeep import TableWork
from harness_pipelines.protocol.claims import Stage

OBSERVE_S = 300.0  #: how far a table is behind is shown so often, if it changed
RUNLESS_S = 15.0  #: a stage that no run of Dagster works on is shown so often
REPORTS_MAX = 25  #: of one tick
_LAG = "lag"
_KEY = "harness/shown/"

Event = AssetObservation | AssetMaterialization
Kept = Mapping[str, Mapping[str, Any]]  #: of one table: by stage, or `_LAG`, what was shown ("seen") and when ("at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Something of a table that has changed since it was shown."""

    work: TableWork
    of: str  #: a stage, or `_LAG`
    shown_at: float  #: 0: never before
    seen: Any

    @property
    def table(self) -> str:
        """Its name."""
        return self.work.name

    def events(self) -> list[Event]:
        """The events that Dagster shall show."""
        if self.of == _LAG:
            return [
                AssetObservation(table_key(self.table), metadata=self.seen, description="offsets between the tiers")
            ]
        move = self.work.last[self.of]
        return [
            AssetMaterialization(
                key,
                metadata={"move": move["move"], "move_rows": move["rows"] or 0},
                description="committed by a worker outside of Dagster",
            )
            for key in stage_assets(self.table, Stage(self.of))
        ]


def shown_until(cursor: str | None) -> float:
    """When the last tick reported that Dagster took the events of; one of an older version does not say."""
    try:
        return float(cursor or 0.0)
    except ValueError:
        return 0.0


def kept_of(instance: DagsterInstance, tables: Iterable[str], *, until: float) -> dict[str, Kept]:
    """What was shown of each of *tables*. A tick after *until* noted it, but its events were lost."""
    found = instance.daemon_cursor_storage.get_cursor_values({_KEY + table for table in tables})
    return {
        key.removeprefix(_KEY): {of: one for of, one in json.loads(text).items() if one["at"] <= until}
        for key, text in found.items()
    }


def due(works: Iterable[TableWork], kept: Mapping[str, Kept], now: float) -> list[Report]:
    """What is to be shown in this tick."""
    found = sorted((one for work in works for one in _of(work, kept.get(work.name, {}), now)), key=lambda o: o.shown_at)
    return found[:REPORTS_MAX]


def keep(instance: DagsterInstance, kept: Mapping[str, Kept], reports: Iterable[Report], now: float) -> None:
    """Note that *reports* were shown."""
    changed: dict[str, dict[str, Any]] = {}
    for one in reports:
        of_table = changed.setdefault(one.table, dict(kept.get(one.table, {})))
        of_table[one.of] = {"seen": one.seen, "at": now}
    if changed:
        instance.daemon_cursor_storage.set_cursor_values({_KEY + t: json.dumps(words) for t, words in changed.items()})


def _of(work: TableWork, kept: Kept, now: float) -> Iterator[Report]:
    lags = _lags(work)
    shown_at = _shown_at(kept, _LAG, lags)
    if shown_at is not None and now - shown_at >= OBSERVE_S:
        yield Report(work=work, of=_LAG, shown_at=shown_at, seen=lags)
    for stage, move in work.last.items():
        # One account of ingest takes many commits.
        newest = [move["move"], work.buffer_at if stage == Stage.INGEST else 0]
        shown_at = _shown_at(kept, stage, newest)
        if not move["by_a_run"] and shown_at is not None and now - shown_at >= RUNLESS_S:
            yield Report(work=work, of=stage, shown_at=shown_at, seen=newest)


def _shown_at(kept: Kept, of: str, seen: Any) -> float | None:
    """When *of* was last shown, 0 for never; None: it was shown as it is."""
    before = kept.get(of, {"seen": None, "at": 0.0})
    return None if before["seen"] == seen else float(before["at"])


def _lags(work: TableWork) -> dict[str, Any]:
    return {
        "behind_log": -1 if work.unread is None else work.unread,
        "buffered": work.buffered,
        "not_clustered": work.unmerged,
        "buffered_bytes": work.buffered_bytes,
        "open_moves": ", ".join(f"{s} {m['state'].lower()} ({m['attempt']})" for s, m in sorted(work.open.items())),
        "stopped": work.stopped or "",
    }
