"""Growth of all buffers, and the time until they reach their limit.

Workers and sensors note the sizes now and then, in the ledger: whoever asks is shown the same, and nothing is forgotten
with a worker.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, sql

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferGrowth:
    """The buffer of one table."""

    table: str
    bytes: int
    per_s: float  #: bytes a second over the last minutes; below 0: it shrinks
    full_s: float  #: until all buffers together are full, at the pace of all that grow; `inf`: this one does not grow

    def to_json(self) -> dict[str, Any]:
        full_s = None if self.full_s == inf else round(self.full_s)
        return {"bytes": self.bytes, "growth_bytes_s": round(self.per_s), "full_s": full_s}


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
            full_s=room / pace if row["per_s"] > 0 else inf,
        )
        for row in found
    }
