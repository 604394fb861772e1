"""The port to an engine: bulk work over the rows of a move, with a result staged as files.

An engine writes to the branch of the move's attempt and publishes nothing. What it wrote, the lake says
(`Lake.staged`). Rows that an engine will compute are opaque to stages: only the engine that made them looks inside.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NewType, Protocol

from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.lake.compaction import Run, WideRun
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.versions import Version

if TYPE_CHECKING:
    from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
    from harness_pipelines.layout.files import Extent, FileStats, Positions
    from harness_pipelines.layout.tree import RegionTree
    from harness_pipelines.protocol.reading.narrowing import Ranges
    from harness_pipelines.protocol.reading.queries import LakeQuery
    from harness_pipelines.spec.types import Type

Rows = NewType("Rows", object)  #: rows that are computed when they are written or counted


#: Takes how many records are rows, how many do not fit, and what gives one of these; raises where that is too many.
CheckCounts = Callable[[int, int, Callable[[], RefusedRecord]], None]


@dataclass(frozen=True, slots=True)
class ScanColumn:
    """A column that is wanted of a view."""

    shown: str  #: its name in the result
    name: str  #: in the view
    type: Type  #: in the view, where a time is a long


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeScan:
    """How an engine reads what a query wants of a pinned view."""

    columns: Sequence[ScanColumn]  #: in order
    has_layer: bool  #: the view says of each row whether the sample layer takes it
    is_covered: bool  #: every row of the view lies in the wanted ranges


class LakeScans(Protocol):
    """What an engine has to know of a view, as *metadata* fixes it."""

    def scan(self, metadata: str, query: LakeQuery) -> LakeScan:
        """Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable for what an engine's plan would be made of."""
        ...

    def of_files(self, metadata: str, paths: Collection[str]) -> LakeQuery:
        """All columns and rows of some files."""
        ...


class Met(NamedTuple):
    """Rows of one file that have a changed key."""

    rows: int
    positions: Positions | None  #: in the file, in no order; None: more keys changed than the engine lists


class KeyChanges(Protocol):
    """The newest version of each key that a move has."""

    @property
    def keys(self) -> int: ...
    @property
    def puts(self) -> int: ...
    @property
    def box(self) -> tuple[Extent, ...]:
        """Where the keys lie, by the columns of `harness_pipelines.layout.tree.key_columns`."""
        ...

    @property
    def rows(self) -> Rows:
        """The puts, with all columns."""
        ...

    def met_in(self, metadata: str, files: Sequence[FileStats]) -> Mapping[str, Met]:
        """Per path which rows of *files* of the view at *metadata* have a changed key.

        Raises: KeyInTwoPartitions; StagedWrong when a live row was not compared.
        """
        ...

    def beside(self, older: Rows) -> Rows:
        """The puts and those of *older* whose key did not change."""
        ...


class Arranging(Protocol):
    """One attempt that writes rows of a table by region; it ends with its context."""

    def stream_rows(self, metadata: str, ranges: Ranges) -> Rows:
        """The rows of *ranges* in the stream view at *metadata*."""
        ...

    def file_rows(self, metadata: str, files: Sequence[FileStats]) -> Rows:
        """The live rows of *files* of the batch view at *metadata*."""
        ...

    def recalled_rows(self, version: Version) -> Rows:
        """The rows of the batch view of *version* that lie in Postgres."""
        ...

    def newest(self, rows: Rows, *, recalled: Rows | None = None) -> AbstractContextManager[KeyChanges]:
        """The newest version of each key of *rows*, but of the keys of *recalled*. Raises: KeyInTwoPartitions."""
        ...

    def sample(self, rows: Rows, columns: Sequence[IndexedColumn], *, share: float) -> tuple[ColumnValues, ...]:
        """*columns* of about *share* of *rows*: always the same ones."""
        ...

    def write_pieces(
        self, rows: Rows, tree: RegionTree, values: Sequence[ColumnValues], *, pieces: Sequence[int]
    ) -> None:
        """Write *rows*, ``pieces[i]`` files for region i of *tree*, each in the order of a curve over *values*."""
        ...

    def write_one_piece(self, rows: Rows) -> None:
        """Write *rows* to one file, by their coordinates."""
        ...


class Engine(Protocol):
    """Bulk work of one installation. Raises, each of them: TryAgain when it is away, or what fails the attempt."""

    def check(self) -> None:
        """Raises: UsageError when the engine is not installed on this machine."""
        ...

    def write_segments(self, table: TableRow, move: Move, segments: Sequence[SegmentRef]) -> None:
        """Write the move's rows of *segments*; which in which file says `file_ranges`."""
        ...

    def write_log(self, table: TableRow, move: Move, *, check: CheckCounts) -> tuple[int, list[RefusedRecord]]:
        """Decode the move's records and write their rows: how many, and the records that do not fit.

        *check* comes first: all of the refused are read into this process only if it does not raise.
        """
        ...

    def write_runs(
        self, table: TableRow, move: Move, *, metadata: str, runs: Sequence[Run | WideRun], file_bytes: int
    ) -> None:
        """Write the rows of *runs* of files of the stream view at *metadata*, one file of at most *file_bytes* each."""
        ...

    def arranging(self, table: TableRow, move: Move) -> AbstractContextManager[Arranging]:
        """Let the move's attempt write rows by region."""
        ...

    def run_tasks(
        self, ranges: Sequence[OffsetRange], work: Callable[[Iterable[Any]], Iterable[Any]], result: Any
    ) -> list[Mapping[str, Any]]:
        """Run *work* over *ranges* on executors, one range a task; returns its rows (Arrow schema *result*)."""
        ...

    def interrupt(self) -> None:
        """End what stages of this process do on the engine, for good, and never wait for it."""
        ...

    def give_up(self, table: TableRow, stage: Stage) -> None:
        """End the attempt that is under way for *stage* of *table*, and never wait for it: its claim is lost.

        The thread that waits for it gets FencedOut. Call it again while the claim is lost: what an attempt asks of the
        engine after that is met then.
        """
        ...
