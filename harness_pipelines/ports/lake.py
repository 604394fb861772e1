"""Values that flows and the lake exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.drivers.object_stores.troubles import StoreRefused, refusal
from harness_pipelines.ports.errors import DeletesBroken, ForeignDeletes, LakeAway, ManifestDamaged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.lake.mirrors import Known, Seen
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.catalogs import CatalogSpec
from harness_pipelines.spec.locations import folder_of, normal

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """The files of one attempt, checked against its move."""

    files: tuple[DataFile, ...]
    rows: int
    bytes: int


NOTHING_STAGED = Staged(files=(), rows=0, bytes=0)


class CatalogPointers(Protocol):
    """Which metadata file the catalog names for each view, for the lake, which writes them."""

    def current(self, table: TableRow, view: ViewName) -> str: ...
    def move(self, table: TableRow, view: ViewName, *, old: str, new: str, claim: Claim | None = None) -> bool: ...
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
        raise LakeAway(f"{table}: {doing}: {error}; nothing was published, the next attempt follows") from error


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


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorState:
    """What the ledger remembers of one mirror."""

    version: int | None  #: the last version that the server was seen to show
    holds: Sequence[int]  #: every version that it may show: seen there, or sent since
    head: int  #: the table's newest version
    uuids: Mapping[str, str]  #: of the tables as the server has them, by view
    looked_s: float | None  #: since the server was last looked at
    trouble: str | None


class MirrorBook(Protocol):
    """What the ledger remembers of mirrors; one row for each table and catalog."""

    def state(self, table: TableRow, catalog: str) -> MirrorState: ...
    def intend(self, table: TableRow, catalog: str, claim: Claim) -> Version:
        """Note that the head is on its way, so that expire keeps it, and return it."""
        ...

    def register(self, table: TableRow, catalog: str, claim: Claim, *, metadata: str) -> None:
        """Note that *metadata* is about to be named by the server, so that expire keeps it for good."""
        ...

    def known(self, table: TableRow, view: ViewName, seen: Seen | None) -> Known: ...
    def settle(
        self, table: TableRow, catalog: str, claim: Claim, *, version: int, seen: Mapping[ViewName, Seen]
    ) -> None: ...
    def trouble(self, table: TableRow, catalog: str, error: str) -> None: ...
    def forget(self, table: TableRow, catalog: str) -> bool: ...


class MirrorOpener(Protocol):
    def __call__(self, table: TableRow, catalog: CatalogSpec) -> ForeignCatalog: ...
