"""What people ask of the batch view: rows recalled or released, parts rewritten."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, Self

from harness_pipelines.errors import HarnessError, Recovery
from harness_pipelines.layout.requested import Request
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.overlays import OverlayRequest
from harness_pipelines.protocol.moves import Move


class RequestLost(HarnessError):
    """The ledger no longer has what was asked of a table."""

    way_on = "ask once more: the same command records the request again"
    recovery = Recovery.REFRESH

    @classmethod
    def of(cls, table: TableRow, number: int) -> Self:
        return cls(
            f"{table.name}: the ledger no longer has request {number}: a stand-by that lacked it was promoted, the "
            "database was restored, or the table was dropped; what is published stays, ask once more"
        )


class RequestCancelled(HarnessError):
    """The request that this command waits for was cancelled."""

    way_on = "ask once more: what is finished is not done twice"

    @classmethod
    def of(cls, table: TableRow, number: int) -> Self:
        return cls(f"{table.name}: request {number} was cancelled; what was published before it stays")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallRequest:
    """Requests of people, and their outcome."""

    recall_id: int
    act: OverlayRequest
    where: str | None  #: of a recall
    state: str  #: asked, done, cancelled or refused
    asked_at: datetime
    asked_by: str
    move_id: int | None
    rows: int | None
    bytes: int | None
    detail: str | None  #: why it was refused

    @property
    def is_open(self) -> bool:
        return self.state == "asked"

    def to_json(self) -> dict[str, Any]:
        return {
            "request": self.recall_id,
            "act": self.act,
            "where": self.where,
            "state": self.state,
            "asked_at": self.asked_at.isoformat(),
            "asked_by": self.asked_by,
            "move": self.move_id,
            "rows": self.rows,
            "bytes": self.bytes,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A relayout that failed in every attempt."""

    move_id: int
    files: frozenset[str]  #: paths of what it took
    error: str


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of asking for a rewrite."""

    request: Request
    is_new: bool  #: False: somebody had asked for the same parts before, and that request is still open


class RecallRequests(Protocol):
    """Requests to recall or release rows."""

    def open(self, table: TableRow) -> list[RecallRequest]: ...
    def find(self, table: TableRow, recall_id: int) -> RecallRequest: ...
    def ask(self, table: TableRow, act: OverlayRequest, *, where: str | None, by: str) -> RecallRequest: ...
    def refuse(self, move: Move, *, detail: str) -> None: ...
    def nothing_to_do(self, move: Move) -> None: ...


class ReclusterRequests(Protocol):
    """Requests to rewrite parts of batch views."""

    def open(self, table: TableRow) -> list[Request]: ...
    def is_open(self, table: TableRow, request: Request) -> bool: ...
    def ask(self, table: TableRow, *, paths: tuple[str, ...], upto: int, rebuild: bool) -> Asked: ...
    def end(self, table: TableRow, request: Request) -> None: ...
    def cancel(self, table: TableRow, request: Request) -> None: ...
    def leave_out(self, table: TableRow, *, move_id: int, files: Iterable[str], error: str) -> None: ...
    def left_out(self, table: TableRow) -> list[LeftOut]: ...
