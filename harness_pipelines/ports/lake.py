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
from harness_pipelines.protocol.versions import ViewName
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
