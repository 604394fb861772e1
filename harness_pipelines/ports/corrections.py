"""Corrections of a replay, and the corrections in effect at its coordinates."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from harness_pipelines.ports.ledger import RefusedRecord, Swap
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.changes.corrections import Change, Coordinate, Kind, Waiting, Wanted
from harness_pipelines.protocol.schema.evolution import Evolved
from harness_pipelines.protocol.versions import Version, ViewName

if TYPE_CHECKING:
    from harness_pipelines.drivers.postgres import Database

HELD = "held"
Vectors = tuple[Vector, Vector]  #: per partition ``[low, high)``
#: Writes the metadata of the views with the rows put back, on top of these pointers, which are those of this version;
#: the number is the move's. A view that shows none of the rows stays as it is.
BuildCorrection = Callable[[Version, Mapping[ViewName, str], int], Mapping[ViewName, Swap]]

#: Writes the metadata of the views with the new schema, on top of these pointers.
#: From the metadata file of each view and the number of the move.
BuildSchema = Callable[[Mapping[ViewName, str], int], Mapping[ViewName, Swap]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldRecord:
    """A record in quarantine."""

    record: RefusedRecord
    kafka_ms: int  #: -1: the log had no time for it
    whole: bool  #: False: of key, value and headers only the first bytes are kept

    @property
    def at(self) -> Coordinate:
        return self.record.partition, self.record.offset


@dataclass(frozen=True, slots=True, kw_only=True)
class InEffect:
    """A correction in effect: added, replaced or removed; digests are text, None without a row."""

    partition: int
    offset: int
    was: str | None  #: of the row that it was before all corrections
    digest: str | None
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedState:
    """The table as the replay reads it under the locks."""

    head: Version
    pointers: Mapping[ViewName, str]
    states: Mapping[Coordinate, str]  #: of those that were asked about what quarantine says; it knows no others
    waits: Mapping[Coordinate, Waiting]

    @property
    def held(self) -> frozenset[Coordinate]:
        """Records for the quarantine."""
        return frozenset(at for at, state in self.states.items() if state == HELD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """The corrections of one boundary commit."""

    changes: Mapping[Coordinate, Change]
    states: Mapping[Coordinate, str]  #: what quarantine must say of them; it must not know the others
    refused: Sequence[RefusedRecord] = ()  #: those of them that are quarantined
    bytes: int
    decoder: str | None  #: digest of the spec that decoded them, if it was not the table's
    act: Literal["replay", "repair"] = "replay"  #: whose crash points it passes


class CorrectionBook(Protocol):
    """Quarantined records of one table, and how they are put back."""

    def over(self, database: Database) -> CorrectionBook: ...

    def held(
        self, wanted: Wanted, *, after: Coordinate, limit: int, below: Coordinate | None = None
    ) -> list[HeldRecord]: ...
    def held_at(self, wanted: Wanted, *, after: Coordinate, limit: int) -> list[Coordinate]: ...
    def in_effect(self) -> list[InEffect]: ...
    def between(self, since: int, to: int) -> dict[Coordinate, Kind]: ...
    def look(self, wanted: Sequence[Coordinate]) -> LockedState: ...
    def drop(self, wanted: Sequence[Coordinate], *, by: str) -> int: ...
    def publish(self, correction: Correction, build: BuildCorrection, *, by: str, run_id: str | None) -> Version: ...


class SchemaChanges(Protocol):
    """Changes of the schema of one table."""

    def publish(self, evolved: Evolved, build: BuildSchema, *, by: str) -> Version: ...
