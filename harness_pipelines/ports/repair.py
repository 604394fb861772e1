"""How a table continues after lost history, lost records, or commits of another writer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness_pipelines.ports.ledger import Ledger, TableRow
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.lake.history import LiveRows, NamedMove, PastMove
from harness_pipelines.protocol.versions import Version, View, ViewName

Row = Mapping[str, Any]  #: of the ledger
ByFile = Mapping[str, Collection[NamedMove]]  #: the moves that each metadata file names


class Reconciling(Protocol):
    """Changes of the ledger by which a table continues after lost history, or takes over rows of another writer."""

    def leases_over(self, table: TableRow) -> list[Mapping[str, Any]]: ...
    def end_leases(self, table: TableRow) -> int: ...
    def end_claims_ahead(self, table: TableRow) -> int: ...
    def restore_columns(self, table: TableRow) -> None: ...
    def go_on(
        self, table: TableRow, *, lost: Sequence[NamedMove], retained_from: int, batch: NewBatch | None = None
    ) -> None: ...
    def adopt(
        self,
        table: TableRow,
        adoption: Adoption,
        *,
        lost: Sequence[NamedMove],
        retained_from: int,
        batch: NewBatch | None = None,
    ) -> Version: ...
    def reserve(self, table: TableRow, move: AdoptedMove, *, on: Version) -> int: ...
    def accept(self, table: TableRow, *, pointer: str, stream: View, on: Version, move: AdoptedMove) -> Version: ...
    def nonce_of(self, move_id: int) -> str: ...
    def accepted(self, table: TableRow) -> list[Mapping[str, Any]]: ...


class LossBook(Protocol):
    """Records that are accepted as lost."""

    def accept(self, table: TableRow, claim: Claim, *, partition: int, low: int, high: int) -> int: ...


class ClaimsAndMoves(Protocol):
    """Who holds the stages of a table, and what they have to finish."""

    def claims(self, table: TableRow) -> list[Row]: ...
    def open_moves(self, table: TableRow) -> list[Row]: ...


class WarehouseMark(Protocol):
    """The mark that says which ledger a warehouse belongs to. Raises: WarehouseTaken, LakeAway."""

    def check(self, *, times: float = 1) -> None: ...
    def is_fresh(self) -> bool: ...
    def confirm(self) -> None: ...
    def stranger(self) -> str | None: ...
    def follow(self) -> None: ...
    def take_over(self) -> None: ...


class Histories(Protocol):
    """Which history each table was compared with its lake in, and the moves that the ledger ever had."""

    @property
    def connections(self) -> int: ...
    def ask(self, table: TableRow) -> None: ...
    def known(self, table: TableRow, move_ids: Sequence[int]) -> Mapping[int, set[str]]: ...
    def highest_move(self, table: TableRow) -> int: ...
    def begin(self, table: TableRow, *, event: str) -> Version | None: ...


class NamedByFiles(Protocol):
    """The moves that the newest metadata files of a view name; files that were *read* are not read again."""

    def __call__(self, table: TableRow, pointer: str, view: ViewName, *, read: ByFile) -> ByFile: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LakeState:
    """What one metadata file says of its view's main branch."""

    head: View
    moves: tuple[PastMove, ...]  #: of main's kept snapshots, oldest first
    extents: Mapping[int, LiveRows]  #: live rows by partition of the log; of a batch view none, its files mix them
    accepted: tuple[PastMove, ...]  #: those by which rows of other writers were accepted, in the pseudo-partition
    foreign_hi: int  #: where live rows of the pseudo-partition end; 0: there are none
    strangers: tuple[int, ...]  #: snapshots of main that brought rows without naming a move, and were not accepted
    gone: tuple[str, ...]  #: live files, of data and of deletes, that are not there
    reached: Vector  #: the bound of a batch view; of a stream view none
    recalled: str  #: the tables in Postgres that have rows of a batch view; empty if it is whole
    properties: Mapping[str, str]
    changed_ms: int  #: by the clock of its writer
    schema_changes: int  #: of its columns, since it was made
    fields: Sequence[Mapping[str, Any]]  #: the user's columns, in Iceberg's JSON form

    @property
    def is_sound(self) -> bool:
        """All its files are there, and no other writer's rows that were not accepted."""
        return not self.gone and not self.strangers


class LakeHistory(Protocol):
    """The past of one view, from its folder alone."""

    def newest(self) -> LakeState:
        """The newest sound state. Raises: LakeHistoryMissing, LakeAway."""
        ...

    def newest_readable(self) -> LakeState | None:
        """The newest state that can be read, sound or not; None: there is none. Raises: LakeAway."""
        ...

    def at(self, metadata: str) -> LakeState:
        """What a metadata file says. Raises: MetadataMissing."""
        ...


class LakeHistories(Protocol):
    """Where the past of views is. Raises: LakeAway."""

    def of(self, table: TableRow, pointer: str, *, view: ViewName) -> LakeHistory:
        """Of a view whose catalog row names *pointer*, which itself may be gone."""
        ...

    def below(self, location: str, *, namespace: str, view: str) -> LakeHistory:
        """Of a folder that a table left."""
        ...

    def folders(self, *, namespace: str, view: str) -> list[str]:
        """Folders of the warehouse that may hold *view*: every table that was made by that name left one."""
        ...

    def present(self, paths: Sequence[str]) -> set[str]:
        """Those of *paths* that are there."""
        ...


class Guard(Protocol):
    """Whether a ledger may write to the lake of a table."""

    def check(self, table: TableRow, ledger: Ledger, *, resting: bool = False) -> None: ...
    def is_fresh(self, table: TableRow) -> bool: ...
    def lost(self, table: TableRow, ledger: Ledger) -> list[NamedMove]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedMove:
    """A move to insert as committed; with *move_id* ``None`` the ledger assigns a number."""

    move_id: int | None
    stage: str
    lo: Vector
    hi: Vector
    rows: int
    bytes: int = 0
    attempt: int = 1
    nonce: str = ""  #: as the lake names it; "": the ledger gives it one


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """The batch view of the next version: a state in the lake, or an empty one. It has no recalled rows."""

    pointer: str  #: what the catalog names now
    view: View
    batch_hi: Vector  #: of the partitions that it has rows of; the others end at their start
    keeps_layout: bool  #: it is the view that the ledger's region tree is of


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """All changes when the ledger adopts the newest metadata of the lake."""

    pointer: str  #: what the catalog names now
    head: View  #: what it names then
    starts: Vector
    stream_hi: Vector
    buffer_hi: Vector
    moves: Sequence[AdoptedMove] = field(default_factory=tuple)
