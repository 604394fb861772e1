"""Values that flows and the lake exchange."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from harness_pipelines.drivers.object_stores.troubles import StoreRefused, refusal, said
from harness_pipelines.ports.errors import (
    DeletesBroken,
    ForeignDeletes,
    LakeAway,
    LakeFileBroken,
    LakeFileMissing,
    LakeUnreadable,
    ManifestDamaged,
)
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.lake.mirrors import KnownSnapshot, Seen
from harness_pipelines.protocol.lake.reach import Main
from harness_pipelines.protocol.lake.wide import Extent, Extents
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.locations import folder_of, normal
from harness_pipelines.spec.sections.catalogs import CatalogSpec

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Positions
    from harness_pipelines.ports.files import Progress, Survey
    from harness_pipelines.protocol.lake.lineage import FileAsked
    from harness_pipelines.protocol.moves import Move
    from harness_pipelines.protocol.reading.narrowing import Ranges
    from harness_pipelines.protocol.reading.queries import LakeQuery, LakeStats
    from harness_pipelines.spec.predicate import Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteFile:
    """Tells which rows of one data file are hidden."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFile:
    """A data file with its run of offsets ``[low, high)`` in one partition, or over all that it mixes."""

    path: str
    stored: int  #: rows that it holds, hidden ones too
    bytes: int
    partition: int | None  #: None: of several partitions
    low: int
    high: int
    deletes: DeleteFile | None = None  #: tells which of its rows are hidden
    extents: Extents | None = None  #: of each partition, where it mixes several and says so; hidden rows count

    @property
    def rows(self) -> int:
        """Rows that are not hidden."""
        return self.stored - (self.deletes.rows if self.deletes else 0)

    @property
    def runs(self) -> tuple[Extent, ...] | None:
        """What it has of each partition; None: its partitions are not known."""
        if self.extents is not None:
            return tuple(self.extents)
        if self.partition is None:
            return None
        return (Extent(partition=self.partition, low=self.low, high=self.high, rows=self.stored),)

    def run_of(self, partition: int) -> tuple[int, int] | None:
        """The offsets ``[low, high)`` that rows of *partition* may have in it; None: it has none of them."""
        if self.extents is not None:
            return self.extents.of_partition(partition)
        return (self.low, self.high) if self.partition in (partition, None) else None


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Rows of one file that are not hidden, and where in it they are."""

    file: LakeFile
    rows: pa.Table
    positions: Positions  #: of the rows, in their order


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OrderedRows:
    """Rows of one partition in offset order, in the types of their file; the next ones have higher offsets."""

    partition: int
    rows: pa.Table


@dataclass(frozen=True, slots=True)
class StoredAmount:
    """What lies in some ranges of a view: rows exactly, bytes by the share of the rows."""

    rows: int
    bytes: int


class LakeView(Protocol):
    """One view as a metadata file fixes it."""

    @property
    def files(self) -> Sequence[LakeFile]:
        """Its data files, by partition and first offset."""
        ...

    @property
    def folder(self) -> str:
        """Where its files lie."""
        ...

    @property
    def snapshot(self) -> int | None:
        """That main names."""
        ...

    def field_ids(self, table: TableRow) -> dict[str, int]:
        """The ids by which the columns of `lake_schema` are found in its files."""
        ...

    def field_id(self, name: str) -> int:
        """The id of one of its columns."""
        ...

    def rows(self, table: TableRow, file: LakeFile) -> Iterator[pa.Table]:
        """The rows of *file* as digests are made of them, a bounded batch at a time. Raises: DeletesBroken."""
        ...

    def tables(self, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]) -> Iterator[pa.Table]:
        """The rows of *file* in *schema*, as `rows` gives them; columns that it lacks are NULL."""
        ...

    def placed(self, file: LakeFile, schema: pa.Schema, ids: Mapping[str, int]) -> Iterator[tuple[pa.Table, Positions]]:
        """What `tables` gives, and where in the file the rows are."""
        ...

    def false_bounds(self, table: TableRow, written: Any, rows: pa.Table) -> str | None:
        """What the manifest says of one of `Staged.written` and its *rows*, of `rows`, contradict; None: nothing."""
        ...

    def false_file(self, written: Any) -> str | None:
        """What one of `Staged.written` or its manifest says of the file as a whole, and is not so; None: nothing."""
        ...

    def check_bytes(self, path: str) -> None:
        """Read all of a data or delete file and keep nothing. Raises: FileDamaged, FileNotFoundError, OSError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A live file as a manifest names it."""

    path: str
    rows: int
    bytes: int
    partition: int | None  #: Kafka's; None: it mixes several
    low: int | None  #: its rows are in ``[low, high)``; None: its writer kept no bounds, or it has no rows
    high: int | None
    snapshot: int | None  #: that added it
    sequence: int | None  #: its data sequence number
    is_data: bool = True  #: False: it tells which rows of another file are hidden
    extents: Extents | None = None  #: as of `LakeFile`
    hides_in: str | None = None  #: of a file of position deletes: the data file whose rows it hides

    def reaches(self, partition: int, offset: int) -> bool:
        """Whether a record can be in it, by partition and bounds."""
        if not self.is_data or self.partition not in (None, partition):
            return False
        if self.extents is not None:
            run = self.extents.of_partition(partition)
            return run is not None and run[0] <= offset < run[1]
        return self.low is None or self.high is None or self.low <= offset < self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotTold:
    """A snapshot that a metadata file still names."""

    snapshot: int
    parent: int | None
    operation: str | None
    move_id: int | None  #: None: it is of no move


class ViewPast(Protocol):
    """What is kept of one view, snapshot by snapshot. Every method raises: LakeAway, MetadataMissing."""

    @property
    def snapshots(self) -> Sequence[int]:
        """All that can be looked into, newest first; those that no kept version has come last."""
        ...

    def told(self, snapshot: int) -> SnapshotTold | None:
        """What a snapshot tells of itself; None where no metadata file that is kept names it."""
        ...

    def of_move(self, move_id: int) -> SnapshotTold | None:
        """The snapshot that names a move, if the newest metadata file has it."""
        ...

    def find(self, asked: FileAsked, *, at: Sequence[int]) -> tuple[int, FileEntry] | None:
        """The file that is meant, and the first of the snapshots *at* that has it."""
        ...

    def has(self, snapshot: int, path: str) -> bool:
        """Whether a file is live in a snapshot."""
        ...

    def hiding(self, snapshot: int, path: str) -> FileEntry | None:
        """The file of position deletes that speaks of a data file."""
        ...

    def files(self, snapshot: int) -> Mapping[str, FileEntry] | None:
        """The live files of a snapshot by path; None when it is not kept."""
        ...


class LakeReads(Protocol):
    """Reads views, each as the metadata file fixes it that is named first.

    Every method raises: LakeFileMissing, LakeUnreadable, DeletesBroken; `view` and `past` what the storage says.
    """

    def view(self, metadata: str) -> LakeView: ...
    def scan(self, metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[pa.Table]: ...
    def in_order(self, metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[OrderedRows]: ...
    def located(self, metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[Located]: ...
    def files_of(self, metadata: str, query: LakeQuery) -> list[tuple[str, int]]: ...
    def paths_matching(self, metadata: str, where: Predicate) -> frozenset[str]: ...
    def stored_in(self, metadata: str, ranges: Ranges) -> StoredAmount: ...
    def past(self, table: str, pins: Mapping[int, str]) -> ViewPast: ...
    def survey(
        self,
        locations: Sequence[str],
        *,
        newest: str | None,
        linear: bool,
        data: bool,
        progress: Progress | None = None,
    ) -> Survey:
        """What metadata files at *locations* and their main branches reach. Raises: OSError.

        *newest* is the metadata file of the newest version; *linear*: no version was reverted; *data*: read the data
        files too.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The files of one attempt, checked against its move."""

    files: tuple[LakeFile, ...]
    rows: int
    bytes: int
    written: tuple[Any, ...] = ()  #: the same as the lake describes them, for the lake


NOTHING_STAGED = Staged(files=(), rows=0, bytes=0)


class ViewMetadata(Protocol):
    """What metadata files of views name, by the view's namespace and name; each raises: MetadataMissing."""

    @property
    def name(self) -> str:
        """Of the catalog."""
        ...

    def reached(self, identifier: tuple[str, str], *, current: str, known: Container[str] = ()) -> set[str]:
        """Every file that *current* names by any of its snapshots, but for those whose manifest list is *known*.

        Raises: ManifestDamaged, OSError too.
        """
        ...

    def lists(self, identifier: tuple[str, str], metadata: str) -> list[str]:
        """The manifest lists of all snapshots that *metadata* names."""
        ...

    def main(self, metadata: str, *, known: Container[str] = ()) -> Main:
        """What main of *metadata* reaches; the manifests that are *known* without their files.

        Raises: ManifestDamaged, OSError too.
        """
        ...

    def earlier(self, identifier: tuple[str, str], metadata: str) -> set[str]:
        """The metadata files that *metadata* follows, as far as it says."""
        ...

    def folder(self, identifier: tuple[str, str], metadata: str) -> str:
        """Where the files of the view lie."""
        ...

    def branches(self, identifier: tuple[str, str], metadata: str) -> list[str]:
        """All that *metadata* names, main too."""
        ...


class CatalogPointers(Protocol):
    """Which metadata file the catalog names for each view, for the lake, which writes them."""

    def current(self, table: TableRow, view: ViewName) -> str: ...
    def move(
        self,
        table: TableRow,
        view: ViewName,
        *,
        old: str,
        new: str,
        claim: Claim | None = None,
        attempt: Move | None = None,
    ) -> bool: ...
    def nonce_of(self, move_id: int) -> str: ...


@dataclass(frozen=True, slots=True)
class QuarantinePlace:
    """Where the bytes of quarantined records are."""

    folder: str | None  #: None: reconcile has made expire forget it
    metadata: str | None  #: None: nothing was moved yet

    @property
    def root(self) -> str:
        """The folder that its files are in."""
        return folder_of(self.metadata) if self.metadata else normal(str(self.folder))


class QuarantineLedger(Protocol):
    """What the ledger knows of these bytes, for the lake, which some of them go to."""

    def too_large(self, table: TableRow, *, one_max: int, limit: int) -> list[Mapping[str, Any]]: ...
    def in_postgres(self, table: TableRow, *, one_max: int) -> int: ...
    def due(self, table: TableRow, *, one_max: int, size: int) -> Mapping[str, Any]: ...
    def oldest(self, table: TableRow, *, one_max: int, size: int, records: int) -> list[Mapping[str, Any]]: ...
    def place(self, table: TableRow, *, folder: str) -> QuarantinePlace: ...
    def publish(
        self,
        table: TableRow,
        claim: Claim,
        batch: Sequence[Mapping[str, Any]],
        *,
        old: QuarantinePlace,
        new: str,
        schema_ids: Sequence[int | None],
    ) -> None: ...


@contextmanager
def reachable(table: str, doing: str) -> Iterator[None]:
    """Convert an error of the warehouse to a HarnessError; nothing is published."""
    try:
        yield
    except (ForeignDeletes, DeletesBroken, ManifestDamaged) as error:
        raise type(error)(f"{table}: {doing}: {error}") from error
    except FileDamaged as error:
        raise ManifestDamaged(f"{table}: {doing}: {error}; nothing was published") from error
    except OSError as error:
        if (way_on := refusal(str(error))) is not None:
            raise StoreRefused(f"{table}: {doing}: {way_on} ({error}); nothing was published") from error
        raise LakeAway(f"{table}: {doing}: {said(error)}; nothing was published, the next attempt follows") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorChange:
    """One view of a foreign catalog that is to show what *metadata*, a file of ours, fixes."""

    view: ViewName
    seen: Seen  #: what the server showed; the commit holds only on it
    metadata: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a foreign catalog did with a scratch table."""

    follows: bool  #: a commit made it show the snapshot that was sent
    keeps_metadata: bool  #: after a registration it names our own metadata file
    keeps_snapshots: bool  #: after a commit the older snapshots are still there
    keeps_refs: bool  #: so is a branch beside main
    keeps_properties: bool
    asserts: bool  #: a commit on a snapshot that is not main's was refused
    transactions: bool  #: it takes two tables in one request
    elsewhere: bool  #: it wrote its metadata where `write.metadata.path` says

    @property
    def is_usable(self) -> bool:
        return self.follows and self.keeps_properties and self.asserts


class ForeignCatalog(Protocol):
    """One catalog that a table is mirrored to. Raises, everywhere: MirrorAway, MirrorLoginFailed, MirrorRefused."""

    def load(self, view: ViewName) -> Seen | None: ...
    def uuid_of(self, view: ViewName, metadata: str) -> str: ...
    def register(self, view: ViewName, metadata: str) -> None:
        """Raises, besides: MirrorNamespaceMissing; MirrorUndecided, as `follow`."""
        ...

    def follow(self, changes: Sequence[MirrorChange]) -> None:
        """All in one request where the server can, else one after the other in this order.

        Raises, besides: MirrorUndecided, where it may have been done or was not: load and look.
        """
        ...

    def drop(self, view: ViewName) -> bool: ...
    def probe(self) -> Probed: ...


def mirrored_views(table: TableRow, catalog: CatalogSpec) -> tuple[ViewName, ...]:
    """The views that *catalog* is to have, the stream view first: it is never behind the batch view."""
    return tuple(
        view for view in ("stream", "batch") if view in table.views and view in (catalog.tables or table.views)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """What the ledger remembers of one mirror."""

    version: int | None  #: the last version that the server was seen to show
    holds: Sequence[int]  #: every version that it may show: seen there, or sent since
    head: int  #: the table's newest version
    uuids: Mapping[str, str]  #: of the tables as the server has them, by view
    looked_s: float | None  #: since the server was last looked at
    trouble: str | None


class MirrorBehind(Protocol):
    """How far one mirror is."""

    @property
    def catalog(self) -> str: ...
    @property
    def kind(self) -> str | None: ...
    @property
    def version(self) -> int | None: ...
    @property
    def head(self) -> int: ...


class MirrorBook(Protocol):
    """What the ledger remembers of mirrors; one row for each table and catalog."""

    def lags(self, tables: Collection[str]) -> Sequence[MirrorBehind]: ...

    def state(self, table: TableRow, catalog: str) -> MirrorState: ...
    def intend(self, table: TableRow, catalog: str, claim: Claim) -> Version:
        """Note that the head is on its way, so that expire keeps it, and return it."""
        ...

    def register(self, table: TableRow, catalog: str, claim: Claim, *, metadata: str) -> bool:
        """Note that *metadata* is about to be named by the server, so that expire keeps it for good.

        False: a drop began since it was intended.
        """
        ...

    def known(self, table: TableRow, view: ViewName, seen: Seen | None) -> KnownSnapshot: ...
    def settle(
        self, table: TableRow, catalog: str, claim: Claim, *, version: int, seen: Mapping[ViewName, Seen]
    ) -> None: ...
    def trouble(self, table: TableRow, catalog: str, error: str) -> None: ...
    def begin_drop(self, table: TableRow, catalog: str) -> None:
        """Note that the server is about to lose the tables."""
        ...

    def forget(self, table: TableRow, catalog: str) -> bool:
        """Forget a mirror whose drop was begun; False: a worker has begun to follow it again, or none was known."""
        ...


class MirrorOpener(Protocol):
    def __call__(self, table: TableRow, catalog: CatalogSpec) -> ForeignCatalog: ...


@contextmanager
def judged(table: TableRow, file: LakeFile) -> Iterator[None]:
    """What the storage says about *file* by the audit's name. Raises: LakeFileMissing, LakeUnreadable."""
    where = f"{table.name}: {file.path}"
    try:
        yield
    except FileNotFoundError as error:
        raise LakeFileMissing(f"{where} is gone ({error}), but its view names it; nothing was judged") from error
    except FileDamaged as error:
        raise LakeFileBroken(f"{table.name}: {error}; nothing was judged") from error
    except (OSError, pa.ArrowInvalid) as error:
        raise LakeUnreadable(f"{where} cannot be read: {error}; nothing was judged") from error


def lake_schema(table: TableRow) -> pa.Schema:
    """User columns and coordinates, all nullable: what a damaged file holds must be readable too.

    The columns have the names that they had first: digests are made of these.
    """
    first = table.first_names
    found = arrow_schema(table.spec.stored, coordinates=True)
    return pa.schema([f.with_nullable(True).with_name(first.get(f.name, f.name)) for f in found])
