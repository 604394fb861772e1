"""An event of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a table."""

    seq: int  #: 1, 2, 3, ... of the table, larger ones behind `promoted` and `history_lost`: who has it has all before
    event: str  #: created, published, reverted, reconciled, accepted-foreign, promoted, history_lost
    payload: Mapping[str, Any]  #: the version that it made, the move that made it, ...
    table_id: int = 0  #: of the table; one that is dropped and made again under the same name has another

    def to_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "event": self.event, **self.payload}
