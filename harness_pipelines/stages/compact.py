"""Compact: merge small files of the stream view to the target size; order, rows and bounds do not change.

plan: find neighbours that are small. stage: Spark rewrites their rows, in offset order, to the attempt's branch.
publish: the boundary commit, in which the new files stand for the old ones (operation `replace`, which readers that
follow the view pass over). What tier appends meanwhile stays: the replace is made on the head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from harness_pipelines.ports.access import HasEngine, HasLake, HasLakeReads, HasLedger, HasTables
from harness_pipelines.ports.lake import LakeFile, LakeReads, Staged, reachable
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap, TableRow
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.compaction import Run, StreamFile, WideRun, check_written, plan_runs
from harness_pipelines.protocol.moves import Move, budget_of
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.run.moving import Moving, Pointless, Tally, make_branch

log = structlog.get_logger(__name__)
FILES = "files"  #: why it is due, when no move of it is open
BUDGET_BYTES = 2 * 2**30  #: of files that one move reads


class Ports(HasEngine, HasLake, HasLakeReads, HasLedger, HasTables, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt staged."""

    staged: Staged
    removed: Mapping[str, str | None]  #: the files that it stands for, and the delete file of each


def trigger(stores: Ports, table: TableRow, *, judged: str | None = None) -> str | None:
    """Why compact should move now: ``recovery`` of an open move, or ``files``; ``None`` if it need not.

    *judged* is a metadata file of the stream view in which no rewrite was worth its cost.
    """
    if stores.tables.open_move(table, Stage.COMPACT, shard=0) is not None:
        return "recovery"
    head = stores.tables.head(table)
    if head.stream.metadata == judged:
        return None
    return FILES if due(stores, table, head) else None


def compact_once(
    stores: Ports, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None = None, done: Tally | None = None
) -> Version | None:
    """Rewrite small files, finishing an open move first; ``None`` when nothing is worth it.

    Raises: MoveStuck, FencedOut (NEVER); TryAgain when Spark or a store is away.
    """
    return Moving(stores, table, _Compact(stores, table), tally=done).once(claim, trigger=trigger, run_id=run_id)


@dataclass(frozen=True, slots=True)
class _Compact:
    stores: Ports
    table: TableRow
    name: Stage = Stage.COMPACT

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move | None:
        return plan(self.stores, self.table, claim, trigger=trigger, run_id=run_id)

    def stage(self, move: Move) -> Attempt:
        return stage(self.stores, self.table, move)

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        return publish(self.stores, self.table, claim, move, attempt)


# -- plan ---------------------------------------------------------------------------------------------------


def plan(stores: Ports, table: TableRow, claim: Claim, *, trigger: str, run_id: str | None) -> Move | None:
    """Record a move without ranges when files of the head are small: which, follows from its base version."""
    head = stores.ledger.head(table)
    if not due(stores, table, head):
        return None
    draft = MoveDraft(
        stage=Stage.COMPACT,
        shard=claim.shard,
        lo={},
        hi={},
        base_version=head.version,
        schema_version=table.schema_version,
        trigger=trigger,
        run_id=run_id,
    )
    return stores.ledger.plan_move(claim, draft)


def due(
    stores: HasLakeReads, table: TableRow, version: Version, *, budget_bytes: int | None = None
) -> tuple[Run, ...] | tuple[WideRun, ...]:
    """The small files of *version* that one move rewrites, and their new files. Raises: LakeAway."""
    return plan_runs(
        stream_files(stores.lake_reads, table, version.stream.metadata),
        stream_hi=version.stream_hi,
        target_bytes=_target_bytes(table),
        budget_bytes=BUDGET_BYTES if budget_bytes is None else budget_bytes,
    )


def stream_files(lake: LakeReads, table: TableRow, metadata: str) -> list[StreamFile]:
    """The live files of the stream view of *table* that *metadata* fixes. Raises: LakeAway."""
    with reachable(table.name, "reading the stream view's manifests"):
        return [_stream_file(file) for file in lake.view(metadata).files]


def _stream_file(file: LakeFile) -> StreamFile:
    assert file.partition is not None or file.extents is not None
    return StreamFile(
        path=file.path,
        partition=file.partition or 0,
        extents=file.extents,
        low=file.low,
        high=file.high,
        rows=file.rows,
        bytes=file.bytes,
        deletes=file.deletes.path if file.deletes else None,
    )


def _target_bytes(table: TableRow) -> int:
    return table.spec.layout.target_file_mb * 2**20


# -- stage --------------------------------------------------------------------------------------------------


def stage(stores: Ports, table: TableRow, move: Move) -> Attempt:
    """Let the engine rewrite the base's small files to the attempt's branch, and check from metadata what it wrote."""
    base = make_branch(stores, table, move)
    runs = due(stores, table, base, budget_bytes=budget_of(move, bytes_max=BUDGET_BYTES))
    if not runs:  # the target was made smaller since
        raise Pointless(f"{table.name}: no file of version {base.version}, the base of move {move.move_id}, is small")
    file_bytes = 2 * _target_bytes(table)
    stores.engine.write_runs(table, move, metadata=base.stream.metadata, runs=runs, file_bytes=file_bytes)
    staged = stores.lake.staged(table, move, rows=sum(run.rows for run in runs))
    check_written(runs, [_stream_file(file) for file in staged.files])
    return Attempt(staged=staged, removed={file.path: file.deletes for run in runs for file in run.files})


# -- publish ------------------------------------------------------------------------------------------------


def publish(stores: Ports, table: TableRow, claim: Claim, move: Move, attempt: Attempt) -> Version:
    """Let the staged files stand for the small ones: pointer, version and move in one transaction."""
    keep = table.spec.retention.snapshots

    def build(base: str) -> Swap:
        return stores.lake.build_replace(table, move, attempt.staged, removed=attempt.removed, base=base, keep=keep)

    boundary = Boundary(claim=claim, move=move, rows=attempt.staged.rows, bytes=attempt.staged.bytes)
    published = stores.ledger.publish(table, boundary, build)
    log.info(
        "compact.published",
        table=table.name,
        version=published.version,
        rows=boundary.rows,
        files=len(attempt.staged.files),
        removed=len(attempt.removed),
        move=move.move_id,
    )
    return published
