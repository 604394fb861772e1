"""Where tier takes rows from: segments of the buffer, or with `buffer: none` the log itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness_pipelines.formats.contract.checks import judge_of
from harness_pipelines.ports.access import HasBufferRows, HasEngine, HasLake, HasLedger, HasLog, HasSegments
from harness_pipelines.ports.lake import NOTHING_STAGED, Staged
from harness_pipelines.ports.ledger import RefusedRecord, StateDraft, TableRow
from harness_pipelines.ports.source import check_epochs, check_positions, check_source, epochs_of
from harness_pipelines.protocol.bounds import Bounds, Vector
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.segments import needed
from harness_pipelines.stages.ingest.refusing import One, check_move, note_refused
from harness_pipelines.stages.run.moving import make_branch


class Ports(HasBufferRows, HasEngine, HasLake, HasLedger, HasLog, HasSegments, Protocol):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt staged."""

    staged: Staged
    refused: tuple[RefusedRecord, ...] = ()
    state: StateDraft | None = None  #: of a consumer that moves rows itself
    epochs: Mapping[int, int] = field(default_factory=dict)  #: `buffer: none`: of the last record of each partition


class Source(Protocol):
    """What a move takes its rows from."""

    def check(self, table: TableRow) -> None:
        """Check before a move is planned that its rows can be checked. Raises: ContractUnusable."""
        ...

    def takeable(self, stores: Ports, table: TableRow) -> dict[int, Bounds]:
        """Bounds, with ``buffer_hi`` limited to what tier may take.

        Raises: TopicRecreated, PartitionsGrown, RecordsLost, ... when the log is not the one that the table was made
        from.
        """
        ...

    def stage(self, stores: Ports, table: TableRow, move: Move) -> Attempt:
        """Let the engine write the move's rows to the attempt's branch, and check from metadata what it wrote."""
        ...

    def ingest_to(self, move: Move) -> Vector:
        """To where the publishing of *move* sets the position of ingest too."""
        ...


class FromBuffer:
    """Rows that ingest has checked."""

    def check(self, table: TableRow) -> None:
        """Ingest has done so."""

    def takeable(self, stores: Ports, table: TableRow) -> dict[int, Bounds]:
        return {p.partition: p.bounds for p in stores.ledger.positions(table)}

    def stage(self, stores: Ports, table: TableRow, move: Move) -> Attempt:
        named = segments_of(stores, table, move)
        rows = sum(stores.buffer_rows(table, named, move.ranges).values())
        if rows == 0:
            return Attempt(staged=NOTHING_STAGED)  # gaps only: nothing to write, but the bounds move on
        make_branch(stores, table, move)
        stores.engine.write_segments(table, move, named, rows=rows)
        return Attempt(staged=stores.lake.staged(table, move, rows=rows))

    def ingest_to(self, move: Move) -> Vector:
        return {}


class FromLog:
    """Records of the log, decoded and checked by the engine; refused ones are published with the move."""

    def check(self, table: TableRow) -> None:
        judge_of(table.spec)  # Spark's tasks would find out attempt by attempt

    def takeable(self, stores: Ports, table: TableRow) -> dict[int, Bounds]:
        bounds = {p.partition: p.bounds for p in stores.ledger.positions(table)}
        check_source(table, stores.log, {p: b.buffer_hi for p, b in bounds.items()}, known=bounds)
        marks = stores.log.watermarks(table.spec.topic, bounds)
        # After a revert the log is read again from further below; what it does not have there is named, not tried.
        check_positions(table.spec.topic, {p: b.stream_hi for p, b in bounds.items()}, marks)
        return {p: replace(b, buffer_hi=max(marks[p].end, b.buffer_hi)) for p, b in bounds.items()}

    def stage(self, stores: Ports, table: TableRow, move: Move) -> Attempt:
        """Spark tells no leader epochs, so they are read before and compared after: what it read lies between."""
        known = stores.segments.positions(table)
        check_epochs(table, stores.log, {p: (at.buffer_hi, at.leader_epoch) for p, at in known.items()})
        epochs = epochs_of(table, stores.log, move.ranges)
        make_branch(stores, table, move)

        def check(rows: int, refused: int, one: One) -> None:
            check_move(table, rows=rows, refused=refused, one=one, before=stores.segments)

        rows, refused = stores.engine.write_log(table, move, check=check)
        note_refused(table, refused)
        check_source(table, stores.log, move.hi)
        check_epochs(table, stores.log, {p: (move.hi[p], epoch) for p, epoch in epochs.items()})
        return Attempt(staged=stores.lake.staged(table, move, rows=rows), refused=tuple(refused), epochs=epochs)

    def ingest_to(self, move: Move) -> Vector:
        return dict(move.hi)


_SOURCES: Mapping[bool, Source] = {True: FromBuffer(), False: FromLog()}


def source_of(table: TableRow) -> Source:
    return _SOURCES[table.intake.buffered]


def segments_of(stores: Ports, table: TableRow, move: Move) -> list[SegmentRef]:
    """The segments that may hold rows of *move*. Raises: SchemaMoved."""
    found = needed(stores.segments.all(table), {r.partition: r.low for r in move.ranges})
    return [*table.seen([s.ref for s in found])]
