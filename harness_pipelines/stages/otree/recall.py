"""Recall: move rows of the lake to Postgres before a burst of updates on request, and release them.

plan: how much that is. ask and run: the request is recorded, and otree takes it up, whoever runs it for the table: it
copies the rows, hides them in the lake and names their new place in one boundary commit. What a move does is in
`harness_pipelines.stages.otree.recalled`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from getpass import getuser
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

from harness_pipelines.errors import UsageError
from harness_pipelines.ports.access import HasGuard
from harness_pipelines.ports.ledger import TableStopped
from harness_pipelines.ports.requests import RequestLost
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.overlays import OverlayRequest, RecallTooLarge, check_size
from harness_pipelines.stages.otree import recalled
from harness_pipelines.stages.otree.otree import Ports as OtreePorts
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines.stages.run.claims import ClaimKeeper

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.ports.requests import RecallRequest

LOOK_S = 0.2
LEASE = timedelta(seconds=30)


class Ports(OtreePorts, HasGuard, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPlan:
    """What a recall or a release would move now."""

    table: str
    act: OverlayRequest
    where: str | None
    rows: int
    bytes: int  #: of the rows in memory; of a release, in Postgres
    files: int  #: of the batch view that are opened to find the rows
    held: int  #: rows that are recalled already

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "act": self.act,
            "where": self.where,
            "rows": self.rows,
            "bytes": self.bytes,
            "files": self.files,
            "recalled_already": self.held,
        }


def plan_recall(stores: Ports, table: TableRow, where: str) -> RecallPlan:
    """How many rows of the lake match *where* now; they are read, and nothing is changed.

    Raises: NotRecallable, RecallTooLarge, WhereError, LakeFileMissing, LakeUnreadable.
    """
    recalled.check_recallable(table)
    predicate, head = recalled.predicate_of(table, where), stores.tables.head(table)
    found, held = (
        recalled.matching(stores.lake_reads, table, head, predicate, rows_max=0),
        sum(one.rows for one in head.overlays),
    )
    check_size(table.name, rows=found.rows, held=held, rows_max=table.spec.recall.max_rows)
    return RecallPlan(
        table=table.name,
        act=OverlayRequest.RECALL,
        where=where,
        rows=found.rows,
        bytes=found.bytes,
        files=found.files,
        held=held,
    )


def plan_release(stores: Ports, table: TableRow) -> RecallPlan:
    """What is recalled now. Raises: NotRecallable."""
    recalled.check_recallable(table)
    overlays = stores.tables.head(table).overlays
    rows, size = sum(one.rows for one in overlays), sum(one.bytes for one in overlays)
    return RecallPlan(
        table=table.name, act=OverlayRequest.RELEASE, where=None, rows=rows, bytes=size, files=0, held=rows
    )


def ask(stores: Ports, table: TableRow, act: OverlayRequest, *, where: str | None = None) -> RecallRequest:
    """Record a request; an open one that wants the same is gone on with. Raises: NotRecallable, WhereError."""
    recalled.check_recallable(table)
    if act is OverlayRequest.RECALL:
        if where is None:
            raise UsageError(f"{table.name}: which rows? A recall has a `where`")
        recalled.predicate_of(table, where)
    return stores.recalls.ask(table, act, where=where, by=f"{_user()}@{gethostname()}")


def run(stores: Ports, table: TableRow, request: RecallRequest) -> Iterator[RecallRequest]:
    """Work until *request* has ended; yields it as it stands, now and then, and at last as it ended.

    Where another worker holds otree, that one does it, and this only looks on.
    Raises: RecallTooLarge when it was refused; TableStopped, MoveStuck, RequestLost; TryAgain when Spark or a store is
    away.
    """
    if table.stopped:
        raise TableStopped(f"{table.name} is stopped: {table.stopped}; nothing was moved")
    stores.guard.check(table, stores.ledger)
    give_up = partial(stores.engine.give_up, table, Stage.OTREE)
    keeper = ClaimKeeper(stores.ledger, table, Stage.OTREE, holder=str(uuid4()), lease=LEASE, give_up=give_up)
    pause = threading.Event()
    try:
        while (now := _found(stores, table, request)).is_open:
            yield now
            if keeper.acquire():
                otree_once(stores, table, keeper.current(), trigger="request")
            else:
                pause.wait(LOOK_S)
    finally:
        keeper.release()
    if now.state == "refused":
        raise RecallTooLarge(now.detail or f"{table.name}: request {now.recall_id} was refused")
    yield now


def _found(stores: Ports, table: TableRow, request: RecallRequest) -> RecallRequest:
    """*request* as it stands. Raises: RequestLost, also where another one has its number by now."""
    now = stores.recalls.find(table, request.recall_id)
    if now.asked_at != request.asked_at:
        raise RequestLost.of(table, request.recall_id)
    return now


def _user() -> str:
    try:
        return getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        return "unknown"
