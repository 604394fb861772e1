"""Growth of all buffers, the time until they reach their limits, and for which tables ingest pauses at one.

Workers and sensors note the sizes now and then, in the ledger: whoever asks is shown the same, and nothing is forgotten
with a worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.protocol.pressure import Fill, buffer_full

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Ingest of a table pauses since then."""

    fill: Fill  #: as it was when the pause began
    since: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "limit": self.fill.limit,
            "bytes": self.fill.bytes,
            "max_bytes": self.fill.bytes_max,
            "since": self.since,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGrowth:
    """The buffer of one table."""

    table: str
    bytes: int
    per_s: float  #: bytes a second over the last minutes; below 0: it shrinks
    full_s: float  #: until its limit or that of all buffers is reached, at this pace; `inf`: this one does not grow
    retired: int = 0  #: of its bytes, in segments that wait to be dropped
    bytes_max: int | None = None  #: the table's limit
    pause: Pause | None = None

    @property
    def paused(self) -> str | None:
        """Why ingest pauses, and what ends that."""
        if self.pause is None:
            return None
        return (
            f"{buffer_full(self.table, self.pause.fill)} (since {self.pause.since:%Y-%m-%d %H:%M:%S} UTC; now it has "
            f"{self.bytes / 1e6:,.1f} MB, of which {self.retired / 1e6:,.1f} MB wait to be dropped)"
        )

    def to_json(self) -> dict[str, Any]:
        full_s = None if self.full_s == inf else round(self.full_s)
        return {
            "bytes": self.bytes,
            "retired_bytes": self.retired,
            "max_bytes": self.bytes_max,
            "growth_bytes_s": round(self.per_s),
            "full_s": full_s,
            "paused": self.pause and self.pause.to_json(),
        }


def note(connection: Connection, tables: Collection[str]) -> None:
    """Note how large the buffers of *tables* are, where that was not done for minutes."""
    connection.execute(sql("growth/note"), {"tables": list(tables)})


def growth(database: Database, *, room_gb: float) -> dict[str, BufferGrowth]:
    """All tables that have a buffer; *room_gb* is what all of them may take together."""
    found = database.rows("growth/now")
    room = max(room_gb * GB - sum(row["bytes"] for row in found), 0.0)
    pace = sum(max(row["per_s"], 0.0) for row in found)
    return {
        row["name"]: BufferGrowth(
            table=row["name"],
            bytes=row["bytes"],
            per_s=row["per_s"],
            full_s=min(room / pace, _own_full_s(row)) if row["per_s"] > 0 else inf,
            retired=row["retired"],
            bytes_max=row["bytes_max"],
            pause=_pause(row),
        )
        for row in found
    }


def _own_full_s(row: Mapping[str, Any]) -> float:
    """Until a growing table reaches its own limit."""
    return inf if row["bytes_max"] is None else max(row["bytes_max"] - row["bytes"], 0) / float(row["per_s"])


def _pause(row: Mapping[str, Any]) -> Pause | None:
    if row["limited"] is None:
        return None
    fill = Fill(limit=row["limited"], bytes=row["paused_at"], bytes_max=row["paused_max"])
    return Pause(fill=fill, since=row["since"])
