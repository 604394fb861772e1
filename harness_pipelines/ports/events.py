"""An event of a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a table."""

    seq: int  #: 1, 2, 3, ... of the table, larger ones behind `promoted` and `history_lost`: who has it has all before
    event: str  #: created, published, reverted, reconciled, accepted-foreign, promoted, history_lost; folded
    payload: Mapping[str, Any]  #: the version that it made, the move that made it, ...
    table_id: int = 0  #: of the table; one that is dropped and made again under the same name has another

    def to_json(self) -> dict[str, Any]:
        return {"seq": self.seq, "event": self.event, **self.payload}


class Producer(Protocol):
    """Produces records to one topic."""

    def send(
        self, partition: int, value: bytes | None, acked: Callable[[int, float], None], *, key: bytes | None = None
    ) -> None:
        """Queue a record. Raises: TryAgain."""
        ...

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until all that is queued has arrived. Raises: TryAgain."""
        ...


class News(Protocol):
    """Commits of tables as they are heard of."""

    def heard(self, table_id: int) -> int:
        """How many commits of the table were heard of."""
        ...

    def wait(self, table_id: int, heard: int, timeout_s: float) -> object:
        """Return when more than *heard* were heard of, or after *timeout_s*."""
        ...

    def follow(self, hear: Callable[[int | None], None]) -> Callable[[], None]:
        """Call *hear* with the table of each commit and request, with None where tables or specs have changed, until
        what is returned is called."""
        ...
