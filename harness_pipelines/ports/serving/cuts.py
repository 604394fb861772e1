"""Cuts as values and ports: what the ledger keeps of them, and what the lake writes for them.

A cut is what a read sees, written down as one snapshot of Iceberg, so that any engine reads it. See decision 0057.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Protocol

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.protocol.cuts import Chunk, CutBounds

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.ports.ledger import ReadState, TableRow
    from harness_pipelines.protocol.bounds import Vector
    from harness_pipelines.protocol.cut_checks import ListedCut
    from harness_pipelines.protocol.keyed_cuts import Hidden
    from harness_pipelines.protocol.reading.narrowing import Ranges
    from harness_pipelines.protocol.reading.plan import ReadPlan
    from harness_pipelines.protocol.versions import Version


class CutOvertaken(TryAgain):
    """Another server published a cut of the table meanwhile; it is served instead."""

    recovery = Recovery.REFRESH


class CutImpossible(HarnessError):
    """The state of the table cannot be written down as one snapshot of Iceberg."""

    way_on = "read it by `Table.read`, `harness sql` or Spark, which read each tier by itself"


class CutsFull(TryAgain):
    """As many cuts of the table are alive as there may be."""

    way_on = "serve with a shorter `--keep` or a longer `--every`, and let a worker run expire"


class CutDamaged(TryAgain):
    """A file of the newest cut of a table is lost or damaged, or what the ledger has of it cannot be read."""

    way_on = (
        "load the table again: the server retires such a cut, at most one a minute for each table, and makes another; "
        "`harness fsck TABLE` names the files"
    )


class CutRejected(HarnessError):
    """A cut has values that no server of the harness writes."""

    way_on = "compare the clocks of the server and of Postgres; else report it with this message"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutPart:
    """The manifests of one part of a cut, which the next cut names again as long as *key* is the same."""

    key: str  #: what it was made of
    manifests: str  #: JSON of the lake, which alone reads it


@dataclass(frozen=True, slots=True, kw_only=True)
class CutDraft:
    """A cut whose files are written, and that no ledger knows yet."""

    snapshot_id: int
    sequence: int
    timestamp_ms: int  #: of its snapshot and its metadata
    version: int
    schema_version: int
    bounds: CutBounds
    metadata: str  #: location of its metadata JSON
    chunks: tuple[Chunk, ...]
    parts: Mapping[str, CutPart] = field(default_factory=dict)
    files: tuple[str, ...] = ()  #: all that it names in the fresh folder, chunks too


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut(CutDraft):
    """A cut that the ledger knows: its files stay until *until*."""

    table_id: int
    looked_at: datetime  #: by the ledger's clock, as the next three; it shows all that was there then
    published_at: datetime
    served_at: datetime
    until: datetime
    is_named: bool = False  #: of a state that a named snapshot pins, and none follows on it

    @property
    def is_over(self) -> bool:
        """Its files may be gone. It has numbers alone, from which the next cut goes on: no snapshot, chunk, part, file.

        Its sequence is above its own, and at least the ledger's clock in ms: no number is given twice, even by a ledger
        that was restored from a backup.
        """
        return not self.snapshot_id


class Newest(NamedTuple):
    """What the ledger had at one instant."""

    cut: Cut | None
    clock: datetime  #: the ledger's
    #: Without a lease: to compare with the cut, not to read. None: it has changed just now, and was not read.
    state: ReadState | None


class Marks(NamedTuple):
    """Digests of what the ledger had at one instant: with the same ones it has the same again."""

    table: bytes
    state: bytes


class Found(NamedTuple):
    """A table, and what the ledger had of it at the same instant."""

    table: TableRow
    newest: Newest
    asked: float  #: a moment before that instant, by this process's clock (monotonic)
    marks: Marks  #: of the table, and of the state at that instant, whether or not that was read


class CutBook(Protocol):
    """What the ledger knows of cuts. A reader's login may do all of it."""

    def found(self, name: str, *, known: Found | None = None) -> Found | None:
        """The table called *name*, with `newest` of it; None: there is none.

        *known* is what this book gave before, with the newest cut that the caller has by now. Where that is still the
        newest one, only its times are read again, and neither a table nor a state that has not changed: these are the
        same objects. Of a state that has changed it is said that it has.
        """
        ...

    def newest(self, table: TableRow) -> Newest:
        """The last cut; of one whose time has ended the numbers alone (`Cut.is_over`).

        Where there was none, the ledger may give a number to go on from in the same way, or None. From then on it knows
        the folder that the next cut's files are to be written in.
        """
        ...

    def is_there(self, table: TableRow) -> bool:
        """Whether *table* was not dropped."""
        ...

    def publish(self, table: TableRow, draft: CutDraft, *, previous: int | None, lease_id: str, keep: timedelta) -> Cut:
        """Record a cut, if the newest one is still that of the sequence *previous*, and the maker's lease is alive.

        That lease ends with it. Raises: CutOvertaken, LeaseEnded, CutRejected, CutsFull, CutImpossible, TableUnknown.
        """
        ...

    def serve(self, cut: Cut, *, keep: timedelta) -> None:
        """Let the files of *cut* stay for *keep* from now; written only where that is more than a second later.

        Raises: CutOvertaken where the cut is gone or retired, or no snapshot pins a named one: make another one.
        """
        ...

    def retire(self, cut: Cut) -> None:
        """Let no server show the newest cut, or a named one, again, nor go on from its files: one is lost or damaged.

        Nothing is done where *cut* is neither. Raises: CutDamaged where the one before it was retired just now.
        """
        ...

    def named(self, table: TableRow, name: str) -> tuple[Cut, datetime] | None:
        """The cut of the state of *table* that the snapshot *name* pins, and the ledger's clock; None: it pins none.

        Where no such cut is alive, numbers that another one may go on from (`Cut.is_over`).
        Raises: CutRejected where the pin was changed by hand.
        """
        ...

    def tables_of(self, name: str) -> Sequence[str]:
        """The tables that the snapshot *name* pins; none where there is no such snapshot."""
        ...

    def publish_named(self, table: TableRow, draft: CutDraft, *, lease_id: str, keep: timedelta) -> Cut:
        """Record the cut of a state that a snapshot pins, if none is alive. Raises: as `publish`."""
        ...

    def pinned(
        self, table: TableRow, *, every_s: int, mine: Cut | None = None, window: int | None = None
    ) -> tuple[Cut | None, int]:
        """The cut that all servers give out in *window*, or in a later one, if it is alive; and the number of *window*.

        By default it is the window of now. Windows are those of the ledger's clock, of *every_s* (1 to 300). Of one
        without a cut it is *mine* from now on, which was published, and which a load gave that began in *window*: so no
        load gets rows that are older than its window. No window gets an older cut than the one before.
        """
        ...

    def merged(self, table: TableRow, *, above: int, below: int) -> Vector:
        """By partition the highest `batch_hi` of the versions between *above* and *below*, of neither of these two."""
        ...

    def known(self, table: TableRow, snapshot_id: int) -> Cut | None:
        """The cut of a snapshot, by whatever server it was made, if it is alive."""
        ...


class CutFiles(Protocol):
    """Writes cuts beside the views. Every method raises what the storage raises: LakeAway, StoreRefused."""

    def write_chunk(
        self, table: TableRow, version: Version, rows: pa.Table, *, ranges: Ranges, maker: str, sequence: int
    ) -> Chunk:
        """Write *rows*, in the plan's columns and all coordinates, as one file: all rows of *ranges*, in offset order.

        Raises, besides: CutImpossible for a row elsewhere; LakeFileMissing, LakeFileBroken, LakeUnreadable.
        """
        ...

    def write_hidden(self, table: TableRow, version: Version, hidden: Hidden, *, sequence: int) -> Chunk:
        """Write which rows of some data files a cut hides, as one file, which the cut names among its chunks.

        The data files are chunks, or files of a view that is not partitioned; *hidden* names at least one row.
        """
        ...

    def read_chunk(self, table: TableRow, plan: ReadPlan, chunk: Chunk) -> pa.Table:
        """The rows of a chunk as they were written. Raises: CutDamaged, LakeUnreadable."""
        ...

    def listed(self, metadata: str) -> ListedCut:
        """What a cut says of itself: its metadata, its delete files, and the data files whose rows these hide.

        Raises, besides: CutDamaged.
        """
        ...

    def check(self, cut: Cut) -> None:
        """Read the metadata of *cut* and its list of manifests, and see that its other files are there, in full.

        Raises, besides: CutDamaged. What changed in a manifest or a chunk without another size is not seen.
        """
        ...

    def write_cut(
        self,
        table: TableRow,
        version: Version,
        plan: ReadPlan,
        *,
        chunks: Sequence[Chunk],
        previous: CutDraft | None,
        bounds: CutBounds,
        makers: Sequence[str],
        now_ms: int,
    ) -> CutDraft:
        """Write manifests, manifest list and metadata of the cut that *plan* and *chunks* are.

        *makers* are what decides its rows besides the version and *bounds* (`protocol.cuts.snapshot_id`). *now_ms* is
        the server's clock. A cut of *bounds* that end below those of *plan* is the merged state of a keyed table, and
        says so. The draft's chunks are *chunks*, those that are new with the cut's sequence and
        snapshot: they are what the next cut is given.
        Raises, besides: CutImpossible; CutDamaged for what *chunks* and *previous* say that cannot be read;
        LakeFileMissing, LakeFileBroken, LakeUnreadable for a file of the views.
        """
        ...
