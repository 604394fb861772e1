"""History that is folded: what expire removes of it, and what readers are told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Rows of the ledger that one run folded."""

    versions: int = 0
    moves: int = 0
    events: int = 0
    through: int = 0  #: version up to which history is folded now; 0: nothing was due

    def plus(self, other: Folded) -> Folded:
        return Folded(
            versions=self.versions + other.versions,
            moves=self.moves + other.moves,
            events=self.events + other.events,
            through=max(self.through, other.through),
        )

    def to_json(self) -> dict[str, Any]:
        return {"versions": self.versions, "moves": self.moves, "events": self.events, "through": self.through}


class Folding(Protocol):
    """Folds old history."""

    def fold(self, table: TableRow, claim: Claim) -> Folded: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedHistory:
    """How far the history of a table is folded."""

    version: int  #: versions up to this one, but for those that something names
    versions: int  #: that were folded
    event: int
    events: int  #: that were folded
    folded_at: datetime

    def __str__(self) -> str:
        return (
            f"history up to version {self.version} was folded into checkpoints on {self.folded_at:%Y-%m-%d %H:%M} UTC"
        )
