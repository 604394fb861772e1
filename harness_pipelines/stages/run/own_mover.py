"""Moves of an external writer: it writes files; the harness claims, plans, verifies and publishes.

A mover does what tier does, with another writer than Spark. Nothing it says is believed: the files are read back, and
every row must be the one that the buffer has at its offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.errors import HarnessError, Recovery, UsageError
from harness_pipelines.ports.access import (
    HasBufferReader,
    HasBufferRows,
    HasEngine,
    HasGuard,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasSegments,
    HasTables,
)
from harness_pipelines.ports.lake import NOTHING_STAGED, LakeView, Staged, judged
from harness_pipelines.ports.ledger import StateDraft, TableRow, TableStopped
from harness_pipelines.protocol.bounds import OffsetRange, Vector
from harness_pipelines.protocol.claims import Claim, Stage, StageHeld
from harness_pipelines.protocol.lake.properties import summary_of
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import BufferPart, SegmentRef
from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
from harness_pipelines.protocol.versions import Version
from harness_pipelines.read.digested import BufferSide, Rows, of_partition
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.stages.run.claims import ClaimKeeper
from harness_pipelines.stages.run.moving import Moving, make_branch
from harness_pipelines.stages.tier import tier
from harness_pipelines.stages.tier.sources import Attempt, segments_of

TRIGGER = "own"
LEASE = timedelta(seconds=60)
BATCH_OFFSETS = 100_000


class Ports(
    HasBufferReader,
    HasBufferRows,
    HasEngine,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasSegments,
    HasGuard,
    HasTables,
    Protocol,
):
    """The ports that it uses."""


class ProofWrong(HarnessError):
    """The mover's report or its files do not match the move; nothing was published."""

    recovery = Recovery.REFRESH


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A mover's report of what it wrote."""

    ranges: Mapping[int, tuple[int, int]]  #: by partition offsets ``[low, high)``: all rows that lie there
    rows: int
    state: StateDraft | None = None  #: (`Held.draft`) committed together with the move


class OwnMove:
    """One attempt of a move: what it takes, and where its rows go."""

    def __init__(self, stores: Ports, table: TableRow, move: Move, *, segments: list[SegmentRef], rows: int) -> None:
        self._stores, self._table, self._move, self._segments = stores, table, move, segments
        self.rows = rows  #: that lie in its ranges; offsets have gaps

    @property
    def table(self) -> str:
        return self._table.name

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """By partition the offsets ``[low, high)`` that it takes; a later attempt takes the same."""
        return {r.partition: (r.low, r.high) for r in self._move.ranges}

    @property
    def view(self) -> str:
        """The Iceberg table that the rows belong in, ``namespace.name``."""
        return f"{self._table.spec.namespace}.{self._table.tiered_view}"

    @property
    def branch(self) -> str:
        """The branch that this attempt alone writes to, in one snapshot. No reader reads branches."""
        return self._move.branch

    @property
    def snapshot_properties(self) -> dict[str, str]:
        """The entries that the summary of that snapshot must have."""
        return summary_of(self._move)

    @property
    def schema(self) -> pa.Schema:
        """The user's columns and the five coordinates."""
        return arrow_schema(self._table.spec.stored, coordinates=True)

    def batches(self) -> Iterator[pa.Table]:
        """The rows, in offset order, one partition after the other, a bounded number at a time."""
        for taken in self._move.ranges:
            for low in range(taken.low, taken.high, BATCH_OFFSETS):
                yield self._read(taken.partition, low, min(low + BATCH_OFFSETS, taken.high))

    def append(self, rows: pa.Table) -> None:
        """Write all rows of the move to the branch, by PyIceberg; any other writer of Iceberg will do as well.

        Raises: StagedWrong when they do not fit the schema; LakeAway.
        """
        self._stores.lake.append_to_branch(self._table, self._move, rows)

    def _read(self, partition: int, low: int, high: int) -> pa.Table:
        query = BufferQuery(
            table=self._table.name,
            segments=self._segments,
            ranges={partition: (low, high)},
            schema=self.schema,
            stores_op=bool(self._table.spec.key),
        )
        found = conformed(self._stores.buffer_reader.read(query, BufferStats()), self.schema)
        return found.sort_by("_kafka_offset")


class OwnMover:
    """Moves what is buffered to the lake with the caller's own writer, one move at a time. A context manager."""

    def __init__(self, stores: Ports, table: TableRow, *, offsets_max: int, lease: timedelta = LEASE) -> None:
        self._stores, self._table, self._offsets_max = stores, table, offsets_max
        self._keeper = ClaimKeeper(stores.ledger, table, Stage.TIER, holder=str(uuid4()), lease=lease)

    def move(self, write: Callable[[OwnMove], Moved]) -> Version | None:
        """Let *write* move what is buffered, and publish it; ``None`` when there is nothing to move.

        The move is recorded before it is written; one that was begun and not ended, by whomever, comes first, with the
        same ranges. *write* is not called for offsets without rows. What it raises is raised here, and the next call
        begins the next attempt, as after a crash.
        Raises: StageHeld while a worker holds tier; ProofWrong, StagedWrong; FencedOut, MoveStuck, TableStopped,
        WarehouseTaken; LakeAway, PostgresUnreachable.
        """
        stores = self._stores
        self._table = table = stores.ledger.table(self._table.name)  # its schema may have changed since
        if table.stopped:
            raise TableStopped(f"{table.name} is stopped: {table.stopped}; nothing was moved")
        stores.guard.check(table, stores.ledger)
        if not self._keeper.acquire():
            raise StageHeld(
                f"{table.name}: a worker holds tier; nothing was moved. Run workers without it (`harness run "
                f"{table.name} --stage ingest --stage otree ...`) where your own mover does it"
            )
        steps = _Steps(stores, table, write, self._offsets_max)
        return Moving(stores, table, steps).once(self._keeper.current(), trigger=TRIGGER, run_id=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.release()


def own_mover(stores: Ports, table: TableRow, *, offsets_max: int) -> OwnMover:
    """Raises: UsageError for a table without a buffer or without a stream view."""
    if not table.intake.buffered or table.view_set.mixed:
        lacks = "no stream view" if table.view_set.mixed else "no buffer, so nothing says which rows a range has"
        raise UsageError(f"{table.name}: your own mover moves from the buffer to the stream view; it has {lacks}")
    if offsets_max < 1:
        raise UsageError(f"{table.name}: a move of {offsets_max} offsets; write 1 or more")
    return OwnMover(stores, table, offsets_max=offsets_max)


@dataclass(frozen=True, slots=True)
class _Steps:
    stores: Ports
    table: TableRow
    write: Callable[[OwnMove], Moved]
    offsets_max: int
    name: Stage = Stage.TIER

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move | None:
        return tier.plan(
            self.stores,
            self.table,
            claim,
            trigger=trigger,
            run_id=run_id,
            below=below,
            offsets_max=self.offsets_max,
        )

    def stage(self, move: Move) -> Attempt:
        segments = segments_of(self.stores, self.table, move)
        rows = sum(self.stores.buffer_rows(self.table, segments, move.ranges).values())
        if rows == 0:
            return Attempt(staged=NOTHING_STAGED)
        make_branch(self.stores, self.table, move)
        moved = self.write(OwnMove(self.stores, self.table, move, segments=segments, rows=rows))
        _check_said(self.table, move, moved, rows=rows)
        staged = self.stores.lake.staged(self.table, move, rows=rows)
        _check_rows(self.stores, self.table, move, staged, segments)
        return Attempt(staged=staged, state=moved.state)

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        return tier.publish(self.stores, self.table, claim, move, attempt)


def _check_said(table: TableRow, move: Move, moved: Moved, *, rows: int) -> None:
    """What the mover says fits its move. Raises: ProofWrong."""
    said = {p: tuple(taken) for p, taken in moved.ranges.items() if taken[0] < taken[1]}
    for partition in sorted({r.partition for r in move.ranges} | said.keys()):
        right = (move.lo.get(partition, 0), move.hi.get(partition, 0))
        if said.get(partition, (0, 0)) != right:
            raise ProofWrong(
                f"{table.name}: move {move.move_id} takes offsets [{right[0]}, {right[1]}) of partition {partition}, "
                f"the mover says {list(said.get(partition, ()))}; nothing was published"
            )
    if moved.rows != rows:
        raise ProofWrong(
            f"{table.name}: move {move.move_id} takes {rows} rows, the mover says {moved.rows}; nothing was published"
        )


def _check_rows(stores: Ports, table: TableRow, move: Move, staged: Staged, segments: list[SegmentRef]) -> None:
    """The staged files hold the buffer's rows, each once. 16 bytes a row are held. Raises: ProofWrong."""
    part = BufferPart(segments=tuple(segments), low=dict(move.lo), high=dict(move.hi))
    found = _staged_rows(stores, table, staged)
    for taken in move.ranges:
        buffered = BufferSide(stores.buffer_reader, table, part, taken.partition).window(taken.high)
        if wrong := _difference(buffered, found.get(taken.partition, Rows.of([])), taken):
            raise ProofWrong(f"{table.name}: move {move.move_id}: {wrong}; nothing was published")


def _staged_rows(stores: Ports, table: TableRow, staged: Staged) -> dict[int, Rows]:
    """By partition the rows of the staged files. Raises: ProofWrong for a file that is not in offset order."""
    view = stores.lake_reads.view(stores.lake.pointer(table, "stream"))
    found: dict[int, list[Rows]] = {}
    for file, written in zip(staged.files, staged.written, strict=True):
        with judged(table, file):
            if (wrong := view.false_file(written)) is not None:
                raise ProofWrong(
                    f"{table.name}: {file.path}: {wrong}, so engines would read other rows; nothing was published"
                )
            parts = [_allowed_for(table, view, file.path, written, part) for part in view.rows(table, file)]
        for run in file.runs or ():
            of_run = parts if file.partition is not None else [of_partition(part, run.partition) for part in parts]
            rows = [Rows.from_arrow(part) for part in of_run]
            if np.any(np.diff(np.concatenate([part.offsets for part in rows])) <= 0):
                raise ProofWrong(
                    f"{table.name}: {file.path} of partition {run.partition} is not in ascending order of offsets, "
                    "which the stream view is read in; nothing was published"
                )
            found.setdefault(run.partition, []).extend(rows)
    return {partition: Rows.of(rows) for partition, rows in found.items()}


def _allowed_for(table: TableRow, view: LakeView, path: str, written: object, rows: pa.Table) -> pa.Table:
    """*rows*, which the manifest allows for. Raises: ProofWrong."""
    if (wrong := view.false_bounds(table, written, rows)) is not None:
        raise ProofWrong(f"{table.name}: {path}: {wrong}, so reads would leave them out; nothing was published")
    return rows


def _difference(buffered: Rows, staged: Rows, taken: OffsetRange) -> str | None:
    """The first offset at which two sides differ, for people; ``None``: they are the same."""
    where = f"partition {taken.partition}, offset"
    for one, other, wrong in ((buffered, staged, "was not written"), (staged, buffered, "was written, but is no row")):
        if len(only := np.setdiff1d(one.offsets, other.offsets)):
            return f"{where} {only[0]} {wrong} ({len(only)} such)"
    if len(staged) != len(buffered):
        return f"{where} {staged.offsets[1:][np.diff(staged.offsets) == 0][0]} was written twice"
    differ = np.flatnonzero(buffered.digests != staged.digests)
    if len(differ):
        at = buffered.offsets[differ[0]]
        return f"{where} {at} was written with other values ({len(differ)} of {len(buffered)} rows)"
    return None
