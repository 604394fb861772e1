"""Recluster: rewrite parts of the batch view on request.

plan: which parts, how much, how long. run: the request is recorded, and otree moves it part by part; whoever runs otree
for the table does it, and what is done stays done when it is interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from harness_pipelines.errors import UsageError
from harness_pipelines.layout.files import classify
from harness_pipelines.layout.requested import Request, at_once, parts_with
from harness_pipelines.layout.rewrites import Rewrite
from harness_pipelines.ports.access import HasGuard
from harness_pipelines.ports.ledger import TableStopped
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.clustering import BUDGET_BYTES, Clustering, layout_of
from harness_pipelines.spec.where import parse_where
from harness_pipelines.stages.otree.otree import Ports as OtreePorts
from harness_pipelines.stages.otree.otree import left_of_request, otree_once
from harness_pipelines.stages.run.claims import ClaimKeeper

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.ports.requests import LeftOut

LOOK_S = 0.5
LEASE = timedelta(seconds=30)
MOVES_SEEN = 20  #: of which the rate is worked out


class Ports(OtreePorts, HasGuard, Protocol):
    """The ports that it uses."""


class NothingToRecluster(UsageError):
    """The table has no batch view, no rows in it, or no such region."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclustering:
    """The work of a request, or its rest."""

    table: str
    request: Request  #: with id 0 before it is recorded
    parts: Sequence[Rewrite]
    files: int
    bytes_per_s: float | None  #: of earlier rewrites; None: there were none

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def moves(self) -> int:
        """How many moves of the byte budget it takes."""
        left, count = list(self.parts), 0
        while left:
            left = left[len(at_once(left, budget_bytes=BUDGET_BYTES)) :]
            count += 1
        return count

    @property
    def seconds(self) -> float | None:
        return self.bytes / self.bytes_per_s if self.bytes_per_s else None


def plan_recluster(
    stores: Ports, table: TableRow, *, regions: Sequence[str] = (), where: str | None = None, rebuild: bool = False
) -> Reclustering:
    """The cost of rewriting *regions* (by path; '' is all, the default), or those that *where* may match.

    Without *rebuild* only parts with files that are not clustered yet. Changes nothing.
    Raises: NothingToRecluster, WhereError, LakeAway.
    """
    head, layout = _head_and_layout(stores, table)
    assert head.batch is not None
    paths = _chosen(stores, table, head, layout, regions=regions, where=where)
    upto = stores.lake.sequence_of(table, head.batch.metadata)
    request = Request(request_id=0, paths=paths, upto=upto, rebuild=rebuild)
    return _looked_at(stores, table, head, request)


def ask(stores: Ports, table: TableRow, plan: Reclustering) -> Reclustering:
    """Record what was planned; an open request for the same parts is gone on with, and what is left of it returned."""
    wanted = plan.request
    made = stores.reclusters.ask(table, paths=wanted.paths, upto=wanted.upto, rebuild=wanted.rebuild)
    return _looked_at(stores, table, stores.ledger.head(table), made.request)


def run(stores: Ports, table: TableRow, request: Request, *, run_id: str | None = None) -> Iterator[Reclustering]:
    """Work until nothing is left of *request*; yields what is, now and then.

    Where another worker holds otree, that one does it, and this only looks on. *run_id*: of Dagster, to be recorded.
    Raises: TableStopped, MoveStuck, WarehouseTaken, LedgerOlderThanLake, RequestCancelled,
    RequestLost; TryAgain when Spark or a store is away.
    """
    if table.stopped:
        raise TableStopped(f"{table.name} is stopped: {table.stopped}; nothing was rewritten")
    give_up = partial(stores.engine.give_up, table, Stage.OTREE)
    keeper = ClaimKeeper(stores.ledger, table, Stage.OTREE, holder=str(uuid4()), lease=LEASE, give_up=give_up)
    pause = threading.Event()
    try:
        while stores.reclusters.is_open(table, request):
            stores.guard.check(table, stores.ledger)
            if keeper.acquire():
                otree_once(stores, table, keeper.current(), trigger="request", run_id=run_id)
            else:
                pause.wait(LOOK_S)
            yield _looked_at(stores, table, stores.ledger.head(table), request)
    finally:
        keeper.release()


def _head_and_layout(stores: Ports, table: TableRow) -> tuple[Version, Clustering]:
    head = stores.ledger.head(table)
    layout = layout_of(stores, table, head)
    if head.batch is None:
        raise NothingToRecluster(f"{table.name} has no batch view: its spec says `views: {table.view_set.word}`")
    if layout is None:
        raise NothingToRecluster(
            f"{table.name}: the batch view has no rows yet; `harness run {table.name} --until-idle` merges them"
        )
    return head, layout


def _chosen(
    stores: Ports, table: TableRow, head: Version, layout: Clustering, *, regions: Sequence[str], where: str | None
) -> tuple[str, ...]:
    """Paths of parts, none inside of another."""
    known = layout.tree.paths()
    for wanted in regions:
        if not any(path.startswith(wanted) for path in known):
            raise NothingToRecluster(
                f"{table.name}: no region {wanted!r} in the tree of version {head.version}; `harness layout "
                f"{table.name} --json` has their paths"
            )
    chosen = list(regions or [""])
    if where is not None:
        matching = _matching(stores, table, head, layout, where)
        chosen = [path for path in matching if any(path.startswith(wanted) for wanted in chosen)]
    return tuple(sorted(p for p in set(chosen) if not any(p.startswith(q) for q in chosen if q != p)))


def _matching(stores: Ports, table: TableRow, head: Version, layout: Clustering, where: str) -> list[str]:
    """The smallest parts with a file that may hold a row for which *where* is true: regions, and what files span."""
    assert head.batch is not None
    predicate = parse_where(where, {column.name: column.type for column in table.spec.columns})
    files = stores.lake.region_files(table, head.batch.metadata)
    found = stores.lake_reads.paths_matching(head.batch.metadata, predicate)
    return parts_with(layout.tree, files, found)


def _looked_at(stores: Ports, table: TableRow, head: Version, request: Request) -> Reclustering:
    parts = left_of_request(stores, table, head, request)
    layout = layout_of(stores, table, head)
    assert layout is not None and head.batch is not None
    files = stores.lake.region_files(table, head.batch.metadata)
    at = classify(layout.tree, files)
    inside = sum(1 for path in at if path is not None and any(path.startswith(part.path) for part in parts))
    return Reclustering(table=table.name, request=request, parts=parts, files=inside, bytes_per_s=_rate(stores, table))


def _rate(stores: Ports, table: TableRow) -> float | None:
    """Bytes per second of the last rewrites."""
    seen = [
        (move["bytes"], (move["committed_at"] - move["planned_at"]).total_seconds())
        for move in stores.ledger.moves(table, stage=Stage.OTREE, limit=MOVES_SEEN)
        if move["committed_at"] is not None and move["bytes"]
    ]
    seconds = sum(took for _, took in seen)
    return sum(size for size, _ in seen) / seconds if seconds > 0 else None


def left_out(stores: Ports, table: TableRow) -> list[LeftOut]:
    """Relayouts that failed in all attempts and whose files are still there."""
    head, found = stores.tables.head(table), stores.reclusters.left_out(table)
    if not found or head.batch is None:
        return []
    live = {file.path for file in stores.lake.region_files(table, head.batch.metadata)}
    return [one for one in found if one.files and one.files <= live]
