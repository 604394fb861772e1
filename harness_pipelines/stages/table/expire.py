"""Expire: remove files and segments that nothing needs, over at least two runs.

One run decides (segments retire, files are condemned) and removes only what an earlier run decided: an irreversible
act never belongs to the run of the reversible one that it follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

import structlog

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import (
    HasGuard,
    HasHistoryFold,
    HasLake,
    HasLedger,
    HasRawBytes,
    HasSegments,
    HasUpkeep,
)
from harness_pipelines.ports.errors import FilesKept, LedgerOlderThanLake, WarehouseTaken
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import BytesMoved, Folded, Swept
from harness_pipelines.protocol.claims import Claim

log = structlog.get_logger(__name__)
LOOK_EVERY_S_MAX = 600.0
MOVED_AGE_S, MOVED_BYTES = 600.0, 2**16  #: of a segment that is closed though nothing comes; an empty one has pages too
RETIRED_FOR_MIN = timedelta(seconds=30)  #: a statement of a reader may last so long after its lease was looked up


class Ports(HasLake, HasLedger, HasRawBytes, HasGuard, HasHistoryFold, HasSegments, HasUpkeep, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """The result of one run, or with a dry run its plan."""

    floor: dict[int, int]
    retired: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    condemned: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    retained_from: int = 0
    quarantined: BytesMoved = field(
        default_factory=BytesMoved
    )  #: records that were quarantined, whose bytes went to the lake
    uploads: int = 0  #: that were cut off long ago, and are aborted
    folded: Folded = field(default_factory=Folded)  #: rows of the ledger's history
    looked: bool = False  #: files were listed
    ripe_in_s: float | None = None  #: seconds until what it left for a later run may be removed; None: it left nothing

    def to_json(self) -> dict[str, Any]:
        return {
            "floor": {str(p): o for p, o in sorted(self.floor.items())},
            "retired": self.retired,
            "dropped": self.dropped,
            "condemned": self.condemned,
            "deleted": self.deleted,
            "retained_from": self.retained_from,
            "quarantined": self.quarantined.to_json(),
            "uploads": self.uploads,
            "folded": self.folded.to_json(),
        }


def look_every_s(table: TableRow) -> float:
    """How often to list the files of *table*: a listing costs requests, and what it finds waits for a grace."""
    return min(float(table.spec.retention.grace), LOOK_EVERY_S_MAX)


def expire_once(
    stores: Ports,
    table: TableRow,
    claim: Claim,
    *,
    dry_run: bool = False,
    remove_large: bool = False,
    look: bool = True,
) -> Expired:
    """One run: drop segments, decide about the buffer and the versions; delete the files that earlier runs condemned,
    and condemn others, by one listing; then move what quarantine has too much of.

    What is decided about the buffer and the retained versions needs nothing of the lake, and is decided whatever the
    lake's files are like: a version whose metadata is gone must be able to get out of reach.
    *remove_large*: even if that is more than half of the table's bytes, which otherwise asks for a person's word.
    Without *look* files are listed only if some are to be deleted (see `look_every_s`).
    Raises: FilesKept, when all else is done; SizeGuard, MetadataMissing, FencedOut; LakeAway, PostgresUnreachable when
    a store is away; where files are due to go, before anything is done, WarehouseTaken and LedgerOlderThanLake.
    """
    now = stores.ledger.table(table.name)
    if now.table_id == table.table_id:  # else it was dropped and made again, and the claim is gone
        table = now  # what is removed for good goes by the spec in force, not by the one that a worker began with
    held_up: list[HarnessError] = []
    admitted = dry_run or _may_write(stores, table, held_up, look=look)
    grace = max(timedelta(seconds=table.spec.retention.grace), RETIRED_FOR_MIN)
    dropped = [] if dry_run else stores.upkeep.drop_retired(table, retired_for=grace)
    moved, swept, uploads = BytesMoved(), Swept(), 0
    if not dry_run:
        _close_what_is_moved(stores, table)
    faults.point("expire.before_trim")
    decision = stores.upkeep.trim(table, claim, dry_run=dry_run)
    faults.point("expire.after_commit")
    folded = Folded() if dry_run else stores.history_fold.fold(table, claim)
    look = admitted and (look or stores.upkeep.has_ripe(table))
    with _going_on(held_up), reachable(table.name, "expire"):
        if look:
            if not dry_run:
                _drop_dead_branches(stores, table, claim)
            faults.point("expire.before_condemn")
            try:
                swept = stores.upkeep.sweep(table, claim, dry_run=dry_run, remove_large=remove_large)
            except FilesKept as error:  # all else is done
                held_up.append(error)
            uploads = 0 if dry_run else stores.upkeep.abort_uploads(table)
    with _going_on(held_up):
        if admitted:
            moved = stores.raw_bytes.move(table, claim, dry_run=dry_run)
    if held_up:
        raise held_up[0]
    expired = Expired(
        floor=dict(decision.floor),
        retired=[*(s.name for s in decision.retire), *decision.overlays],
        dropped=dropped,
        condemned=[f.path for f in swept.condemned],
        deleted=list(swept.deleted),
        retained_from=decision.retained_from,
        quarantined=moved,
        uploads=uploads,
        folded=folded,
        looked=look,
        ripe_in_s=None if dry_run else stores.upkeep.ripe_in_s(table),
    )
    log.info(
        "expire.done",
        table=table.name,
        retired=len(expired.retired),
        dropped=len(dropped),
        deleted=len(swept.deleted),
        quarantined=moved.records,
        uploads=uploads,
    )
    return expired


def _close_what_is_moved(stores: Ports, table: TableRow) -> None:
    """Close the open segment of a table that gets no more records: tier, which closes others, has nothing to move."""
    newest = stores.segments.sizes(table)[-1:] if table.intake.buffered else []
    if any(s["state"] == "open" and s["age_s"] >= MOVED_AGE_S and s["bytes"] >= MOVED_BYTES for s in newest) and all(
        p.bounds.stream_hi >= p.bounds.buffer_hi for p in stores.ledger.positions(table)
    ):
        stores.segments.rotate(table)


def _may_write(stores: Ports, table: TableRow, held_up: list[HarnessError], *, look: bool) -> bool:
    """Return whether the lake is this ledger's, if files are due to be removed or written; other trouble is held up.

    Raises: WarehouseTaken, LedgerOlderThanLake.
    """
    if look or stores.upkeep.has_ripe(table) or stores.raw_bytes.is_due(table):
        try:
            stores.guard.check(table, stores.ledger)
        except (WarehouseTaken, LedgerOlderThanLake):
            raise
        except HarnessError as error:
            held_up.append(error)
            return False
    return True


@contextmanager
def _going_on(held_up: list[HarnessError]) -> Iterator[None]:
    """Collect an error in the block for the end, so that it blocks nothing else."""
    try:
        yield
    except HarnessError as error:
        held_up.append(error)


def _drop_dead_branches(stores: Ports, table: TableRow, claim: Claim) -> None:
    for view in table.views:
        if dead := stores.upkeep.dead_branches(table, view=view):
            stores.lake.drop_branches(table, dead, view=view, claim=claim)
