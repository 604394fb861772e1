"""What the ledger says that audits, fsck and lineage compare with the tiers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.table_state import Books
from harness_pipelines.protocol.changes.corrections import Coordinate
from harness_pipelines.protocol.lake.lineage import RecordAsked
from harness_pipelines.protocol.lake.signoff import SignOff
from harness_pipelines.protocol.versions import Version, ViewName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Row = Mapping[str, Any]  #: of the ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeBy:
    """What the ledger says of a snapshot."""

    version: int  #: the first that names it
    move_id: int | None  #: None: it came with the table


class Signatures(Protocol):
    """Ranges that audits signed off."""

    def all(self, table: TableRow) -> list[SignOff]: ...
    def keep(self, table: TableRow, signed: Sequence[SignOff]) -> None: ...
    def now(self) -> datetime: ...


class ProofBook(Protocol):
    """What the ledger says that an audit compares with the tiers."""

    def taken(self, table: TableRow) -> Sequence[Row]: ...
    def accepted(self, table: TableRow) -> Sequence[Row]: ...
    def quarantined(self, table: TableRow, partition: int, low: int, high: int) -> Sequence[Row]: ...
    def overlay_tables(self, table: TableRow) -> frozenset[str]: ...
    def quarantined_outside(self, table: TableRow) -> Sequence[Row]: ...


class LakeBytes(Protocol):
    """Bytes of quarantined records that are in the lake. Raises: RawBytesMissing; LakeFileMissing, LakeUnreadable."""

    def read(self, table: TableRow, wanted: Sequence[Coordinate]) -> Iterator[tuple[Coordinate, Row]]: ...
    def stored(self, table: TableRow, partitions: Iterable[int]) -> Mapping[int, NDArray[np.int64]]: ...


class StateDump(Protocol):
    """All rows of a table in the ledger, for fsck."""

    def held(self, name: str) -> AbstractContextManager[None]: ...
    def names(self, name: str | None = None) -> list[str]: ...
    def books(self, name: str) -> Books: ...
    def changed(self, table_id: int) -> Iterator[Coordinate]: ...
    def cut_files(self, table_id: int) -> Iterator[tuple[str, bool]]: ...


class LineageBook(Protocol):
    """What the ledger knows of the origin of rows of one table."""

    def versions(self) -> list[Version]: ...
    def versions_of(self, numbers: Iterable[int]) -> dict[int, Version]: ...
    def made_by(self, view: ViewName, snapshots: Iterable[int]) -> dict[int, MadeBy]: ...
    def moves(self, move_ids: Iterable[int]) -> dict[int, Row]: ...
    def carried(self, record: RecordAsked) -> list[Row]: ...
    def folded(self, *, move_id: int | None = None, record: RecordAsked | None = None) -> list[Row]: ...
    def holding(self, segments: Sequence[str], record: RecordAsked) -> list[str]: ...
