"""The work of stages, what expire removes and folds, and what workers record about the log and about stalled stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import PartitionStatus, Segment, Stopped, TableRow
from harness_pipelines.ports.source import OpenTransaction, Watermark
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.versions import ViewName


@dataclass(frozen=True, slots=True, kw_only=True)
class TrimDecision:
    """What one decision under the trim lock found."""

    floor: Mapping[int, int]
    retire: tuple[Segment, ...]
    retained_from: int
    overlays: tuple[str, ...] = ()  #: tables of recalled rows that retire


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    path: str  #: in the normal form
    bytes: int
    modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one listing of the files of a table led to, or with a dry run would."""

    deleted: tuple[str, ...] = ()  #: that an earlier run condemned
    condemned: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesMoved:
    """Records whose bytes went to the lake, or with a dry run would."""

    records: int = 0
    bytes: int = 0
    stay: tuple[str, ...] = ()  #: `partition:offset` of the first that are too large to be moved

    def to_json(self) -> dict[str, Any]:
        return {"records": self.records, "bytes": self.bytes, "stay": list(self.stay)}


class Trimmer(Protocol):
    """Retiring segments, and dropping them in a later run."""

    def trim(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> TrimDecision: ...
    def drop_retired(self, table: TableRow, *, retired_for: timedelta) -> list[str]: ...


class Expiry(Trimmer, Protocol):
    """What expire removes."""

    def has_ripe(self, table: TableRow) -> bool: ...
    def ripe_in_s(self, table: TableRow) -> float | None: ...
    def sweep(self, table: TableRow, claim: Claim, *, dry_run: bool = False, remove_large: bool = False) -> Swept: ...
    def abort_uploads(self, table: TableRow) -> int: ...
    def dead_branches(self, table: TableRow, *, view: ViewName = "stream") -> list[str]: ...


class QuarantineMover(Protocol):
    """Moves bytes of quarantined records into the lake."""

    def is_due(self, table: TableRow) -> bool: ...
    def move(self, table: TableRow, claim: Claim, *, dry_run: bool = False) -> BytesMoved: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePulse:
    """What tells a worker which stages of a table have work. Moments are seconds since 1970 by the database's clock."""

    table_id: int
    positions: tuple[PartitionStatus, ...]
    version: int  #: of the head
    stream: str  #: metadata file of the head's stream view
    batch: str | None
    stopped: Stopped | None
    open: frozenset[str]  #: stages with an open or a stuck move
    asked: bool  #: a recall or a recluster is asked for
    claims: Mapping[str, str]  #: stage -> who holds its claim now
    tier_at: float  #: when tier last committed a move, or the table was made
    otree_at: float | None  #: when otree last committed or planned a move
    buffered_bytes: int  #: of segments that are not retired; 0 where nothing is buffered
    removes: bool  #: files are condemned, or segments retired, and wait to be removed
    superseded_at: float | None  #: when the oldest retained version was; None: it is the head
    spec_hash: int = 0  #: of the spec as the ledger stores it


class LogNotes(Protocol):
    """What workers record about the log, for readers of the ledger alone, and what they watch the ledger for."""

    def pulses(self, tables: Collection[int]) -> tuple[float, dict[int, TablePulse | HarnessError]]: ...

    def record_ends(self, seen: Mapping[int, Mapping[int, Watermark]]) -> None: ...
    def record_held(self, seen: Mapping[int, Mapping[int, OpenTransaction | None]]) -> None: ...


class StallNotes(Protocol):
    """What workers record about stages that make no progress."""

    def note(self, tables: Collection[str]) -> None: ...
    def note_small_files(self, table_id: int, *, worth_it: bool) -> None: ...
    def note_troubles(self, holder: str, troubles: Mapping[str, Mapping[str, str]]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a stage of a table took in one process since that was noted last."""

    table: str
    stage: Stage
    taken_bytes: int  #: of the values of records that ingest read
    cpu_s: float  #: of its threads


class CostNotes(Protocol):
    """What workers record about what their work takes."""

    def add(self, spent: Sequence[Spent]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """Lags between a table's tiers, and its claims. Offsets are sums over its partitions."""

    name: str
    stopped: str | None
    unread: int | None  #: offsets of the log above the buffer, as last seen; None: never looked at
    buffered: int  #: offsets above the stream view
    unmerged: int  #: offsets of the stream view above the batch view
    buffered_bytes: int
    since_tier_s: float
    since_expire_s: float | None  #: since expire was last held; None: never
    buffer_at: int  #: sum of `buffer_hi`
    stream_at: int  #: sum of `stream_hi`
    busy: frozenset[str]  #: stages whose claim is held
    open: Mapping[str, Mapping[str, Any]]  #: stage -> attempt and state of its open or stuck move
    last: Mapping[str, Mapping[str, Any]]  #: stage -> move, rows and `by_a_run` (of Dagster) of its newest commit


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenEnds:
    """The last known ends of a table's log."""

    table: str
    ends: Mapping[int, int]
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimState:
    """The claim of one stage."""

    lease_s: float  #: until its lease ends; 0: it is free
    own: bool  #: the caller holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMove:
    """An open move."""

    attempt: int
    failures: int
    stuck: bool
    age_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """The number of records that broke a check of the contract."""

    check: str
    severity: str
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """Rows of the ledger that one run folded."""

    versions: int = 0
    moves: int = 0
    events: int = 0
    records: int = 0  #: refused ones that name none of these moves any more
    through: int = 0  #: version up to which history is folded now; 0: nothing was due

    def plus(self, other: Folded) -> Folded:
        return Folded(
            versions=self.versions + other.versions,
            moves=self.moves + other.moves,
            events=self.events + other.events,
            records=self.records + other.records,
            through=max(self.through, other.through),
        )

    def to_json(self) -> dict[str, Any]:
        return {"versions": self.versions, "moves": self.moves, "events": self.events, "through": self.through}


class Folding(Protocol):
    """Folds old history."""

    def fold(self, table: TableRow, claim: Claim) -> Folded: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedHistory:
    """How far the history of a table is folded."""

    version: int  #: versions up to this one, but for those that something names
    versions: int  #: that were folded
    event: int
    events: int  #: that were folded
    folded_at: datetime

    def __str__(self) -> str:
        at = f"{self.folded_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"history up to version {self.version} was folded into checkpoints on {at}"
