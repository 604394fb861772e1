"""Values that flows and the lake exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.ports.errors import DeletesBroken, ForeignDeletes, LakeAway, ManifestDamaged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.protocol.versions import ViewName

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
    def move(
        self, table: TableRow, view: ViewName, *, old: str, new: str, fence: Callable[[Any], None] | None = None
    ) -> bool: ...
    def nonce_of(self, move_id: int) -> str: ...


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
        raise LakeAway(f"{table}: {doing}: {error}; nothing was published, the next attempt follows") from error
