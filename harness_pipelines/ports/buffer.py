"""The mutable tier: how ingest fills its segments, and how rows are read, here and by engines that use SQL.

Recalled rows are in it too. The adapter for Postgres and the one in `memory` implement these ports; the contract tests
run over both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.ports.ledger import Beginning, IngestPosition, ReadState, Segment, TableRow
from harness_pipelines.protocol.lake.overlays import Overlay
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.queries import HotQuery
from harness_pipelines.spec.predicate import TRUE, Predicate

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.ports.decoded import DecodedRange, RowsUnfit
    from harness_pipelines.protocol.reading.queries import BufferQuery, BufferStats
    from harness_pipelines.spec.arrow import Named


class BufferSegments(Protocol):
    """Opening and closing segments, and the positions of ingest."""

    def all(self, table: TableRow) -> list[Segment]: ...
    def positions(self, table: TableRow) -> dict[int, IngestPosition]: ...
    def open_segment(self, table: TableRow) -> Segment: ...
    def index(self, table: TableRow, segment: Segment) -> None: ...
    def rotate(self, table: TableRow) -> None: ...
    def check_room(self, table: TableRow, *, taken: int) -> None:
        """May ingest take more? *taken*: bytes of records that it took since it asked last.

        Raises: BufferFull, at a limit, and until enough was given back.
        """
        ...

    def refused(self, table: TableRow, partition: int, low: int, high: int) -> Sequence[int]: ...
    def beginning(self, table: TableRow, *, limit: int) -> Beginning: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WriterUnit:
    """What one writer is to commit: *ranges* of its table, to *segment*."""

    writer: BufferWriter
    segment: Segment
    ranges: Sequence[DecodedRange]


class SizedSegments(BufferSegments, Protocol):
    """Segments that take space."""

    def sizes(self, table: TableRow) -> list[Mapping[str, Any]]: ...


class BufferWriter(Protocol):
    """The ingest commit."""

    def commit(self, segment: Segment, ranges: Sequence[DecodedRange], *, confirm: Callable[[], None]) -> int: ...
    def commit_all(self, units: Sequence[WriterUnit], *, confirm: Callable[[], None]) -> list[int]:
        """Commit *units* of writers of this kind, this one among them, in one transaction, all or none.

        Returns the rows of each. A lock that is not granted soon ends a transaction of several units: LedgerBusy.
        Raises: as `commit`.
        """
        ...

    def trouble(self, segment: Segment, rows_: pa.Table) -> RowsUnfit | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlScan:
    """Rows of segments as a relation; an engine's predicates on the coordinates reach their indexes.

    Values are raw: dates are days, times and timestamps are microseconds, decimals of up to `INT64_DIGITS` digits are
    unscaled integers, nested values are JSON text (`harness_pipelines.protocol.schema.nested_json`).
    """

    relation: str = field(repr=False)  #: stands in FROM
    stored: Mapping[str, str]  #: column -> what the relation calls it; coordinates keep their names


class SegmentScans(Protocol):
    """Segments as relations."""

    def rows(
        self,
        columns: Sequence[Named],
        segments: Sequence[SegmentRef],
        *,
        where: Predicate = TRUE,
        stores_op: bool = False,
    ) -> SqlScan:
        """The rows of *segments* for which *where* may hold, with all coordinates."""
        ...

    def no_rows(self, columns: Sequence[Named], *, lease_id: str) -> SqlScan:
        """No rows; every use of the relation fails when the lease has ended."""
        ...

    def guard(self, lease_id: str) -> str:
        """A statement that fails when the lease has ended: run in a session before it reads."""
        ...


class BufferReads(Protocol):
    """Reads segments in this process. Raises: SegmentMissing, TryAgain."""

    def read(self, query: BufferQuery, stats: BufferStats) -> pa.Table:
        """All rows of *query*."""
        ...

    def batches(self, query: BufferQuery, stats: BufferStats) -> Iterator[pa.Table]:
        """The rows of *query*, some at a time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What one attempt wrote."""

    segment: str
    bytes: int
    packed: tuple[str, ...]  #: columns that share one value


class OverlayTables(Protocol):
    """Tables of recalled rows."""

    def write(self, table: TableRow, move: Move, rows: pa.Table) -> Written: ...
    def read(self, table: TableRow, overlays: Iterable[Overlay]) -> pa.Table: ...


class Newest(Protocol):
    """Reads the newest rows of keys beside the state that they belong to."""

    def look(self, table: TableRow, wanted: HotQuery | None = None) -> tuple[ReadState, pa.Table | None]: ...
