"""The ledger as a port. `PostgresLedger` is the real one, `MemoryLedger` the reference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import uuid4

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import Bounds, Vector
from harness_pipelines.protocol.changes.reverts import RevertPlan
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage
from harness_pipelines.protocol.lake.overlays import Overlay, OverlayChange
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.reading.plan import SegmentRef
from harness_pipelines.protocol.reading.reads import At
from harness_pipelines.protocol.schema.schemas import (
    DigestLayout,
    SchemaMoved,
    SchemaRow,
    first_layouts,
    first_names,
    others,
)
from harness_pipelines.protocol.shape import Intake, ViewSet, intake_of, view_set_of
from harness_pipelines.protocol.versions import Effect, Version, View, ViewName
from harness_pipelines.spec.table import QUARANTINE_SUFFIX, STREAM_SUFFIX, TableSpec


class TableUnknown(HarnessError):
    """The ledger has no table of that name."""

    way_on = "`harness table list` shows the existing tables"


class TableExists(HarnessError):
    """The table exists with a spec that cannot change to the new one."""

    way_on = "`harness evolve` changes columns; another name creates another table"


class TableStopped(HarnessError):
    """An error that needs a decision stopped the table."""

    way_on = "`harness status TABLE` shows the reason; a worker continues once the cause is gone"


class PointerMoved(HarnessError):
    """The catalog pointer moved since the metadata was built: rebuild on the new head."""

    recovery = Recovery.REFRESH


class LeaseEnded(HarnessError):
    """The lease of a read ended during the read; its rows may be incomplete and are not returned."""

    way_on = "read again; `to_spark(lease_s=...)` or `retention.lease`"

    recovery = Recovery.REFRESH
    exit_code = TryAgain.exit_code


class TableDamaged(HarnessError):
    """The ledger's row of a table cannot be read."""

    way_on = (
        "restore the table's row from a backup, or repair its spec as the owner of the database; `harness fsck` "
        "lists all such tables"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SickTable:
    """A table whose ledger row cannot be read, with the reason."""

    name: str
    why: str


class NotInTime(TryAgain):
    """The awaited event did not happen in time; it still may."""


def view_names(spec: TableSpec) -> dict[ViewName, str]:
    """Return the names of the Iceberg tables of *spec* inside its namespace."""
    names: dict[ViewName, str] = {"stream": f"{spec.name}{STREAM_SUFFIX}", "batch": spec.name}
    return {name: names[name] for name in view_set_of(spec).names}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One table in the ledger."""

    table_id: int
    spec: TableSpec
    identity: TopicIdentity  #: cluster, topic and topic id at `table apply`; partitions as of then
    retained_from: int
    stopped: str | None
    history: tuple[SchemaRow, ...]  #: its schemas from the first to the one that *spec* has
    spec_hash: int = field(default=0, compare=False)  #: of the spec as the ledger stores it

    @property
    def name(self) -> str:
        return self.spec.table

    @property
    def schema_version(self) -> int:
        return self.history[-1].schema_version

    @property
    def fields(self) -> tuple[Mapping[str, Any], ...]:
        """Iceberg's JSON form of the user's columns."""
        return self.history[-1].fields

    def at_schema(self, schema_version: int) -> TableRow:
        """Return the table with an older schema. Raises: SchemaMoved for a schema that it does not know yet."""
        if schema_version == self.schema_version:
            return self
        if schema_version > self.schema_version:
            raise SchemaMoved(f"{self.name}: known with schema {self.schema_version}, the table is at {schema_version}")
        until = tuple(one for one in self.history if one.schema_version <= schema_version)
        return replace(self, spec=TableSpec.model_validate(until[-1].spec), history=until)

    def decoded_with(self, partition: int, offset: int) -> int:
        """Return the schema with which the record at *offset* is decoded."""
        newest = (s.schema_version for s in reversed(self.history[1:]) if offset >= s.starts.get(partition, 0))
        return next(newest, self.history[0].schema_version)

    @property
    def first_names(self) -> dict[str, str]:
        """Map current column names to the original names, which the digests of rows use."""
        if len(self.history) == 1:
            return {}
        first = first_names(self.history)
        return {f["name"]: first[f["id"]] for f in self.fields if f["name"] != first[f["id"]]}

    @property
    def first_layouts(self) -> dict[str, DigestLayout]:
        """Map original column names to the digest form of columns whose structs changed."""
        if len(self.history) == 1:
            return {}
        first = first_names(self.history)
        return {first[id_]: layout for id_, layout in first_layouts(self.history).items()}

    def seen(self, segments: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        """Return *segments*, each with its differences from the table's schema. Raises: SchemaMoved."""
        return tuple(
            one
            if one.schema_version is None or one.schema_version == self.schema_version
            else replace(one, others=others(self.fields, self.at_schema(one.schema_version).fields))
            for one in segments
        )

    def overlaid(self, overlays: Iterable[Overlay]) -> tuple[SegmentRef, ...]:
        """The tables of *overlays*, to be read with the columns of today; they have those of the time of writing."""
        found = self.seen(
            [SegmentRef(name=o.segment, schema_version=o.schema_version, packed=o.packed) for o in overlays]
        )
        return tuple(replace(one, schema_version=None) for one in found)

    @property
    def views(self) -> dict[ViewName, str]:
        """Names of its Iceberg tables inside the namespace."""
        return view_names(self.spec)

    @property
    def quarantine(self) -> str:
        """Name of the Iceberg table with the bytes of quarantined records, inside the namespace, if any."""
        return f"{self.spec.name}{QUARANTINE_SUFFIX}"

    @property
    def effects(self) -> Mapping[Stage, Effect]:
        """The views that moves of its stages change."""
        return self.view_set.effects

    @property
    def tiered_view(self) -> str:
        """Name of the Iceberg table that tier writes, inside the namespace."""
        return self.views[self.view_set.tiered]

    @property
    def intake(self) -> Intake:
        """How records get from the log into it."""
        return intake_of(self.spec)

    @property
    def view_set(self) -> ViewSet:
        """What its views mean for stages and reads."""
        return view_set_of(self.spec)


def view_dropped(table: TableRow, view: ViewName) -> TableUnknown:
    """Return the message for a view without a catalog row. The ledger knows its metadata, so a revert restores it."""
    return TableUnknown(
        f"{table.name}: the catalog has no view {table.views[view]}: another engine dropped it. Nothing was written; "
        f"`harness revert {table.name} --to HEAD --yes` restores it as the ledger published it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestPosition:
    """Ingest position of one partition."""

    partition: int
    start: int
    buffer_hi: int
    leader_epoch: int | None
    schema_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Counts of the first records of a table."""

    refused: int  #: records that were quarantined
    taken: bool  #: some record became a row, or was left out by the filter


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One buffer table."""

    name: str
    seq: int
    state: str  #: open, closed or retired
    schema_version: int
    max_hi: Mapping[int, int] | None
    created_at: datetime
    retired_at: datetime | None = None
    packed: tuple[str, ...] = ()  #: columns that share one value

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(name=self.name, schema_version=self.schema_version, packed=self.packed)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveDraft:
    """A planned move without an id."""

    stage: Stage
    shard: int
    lo: Vector
    hi: Vector
    base_version: int
    schema_version: int
    trigger: str
    run_id: str | None = None
    parent_move: int | None = None
    parts: Sequence[str] = ()  #: of the batch view, by path: a request to rewrite them
    recall: int | None = None  #: the request to recall or release rows that it answers


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutState:
    """The region tree of the batch view from a version on."""

    tree: str  #: JSON of the region tree
    digest: str  #: of the tree
    clustered: Mapping[str, int]  #: region -> data sequence number up to which its files are clustered
    scores: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A change of a catalog pointer from one metadata file to the next."""

    view: ViewName
    old: str
    base_snapshot: int  #: the snapshot of main in *old*; the ledger must have published it
    new: View
    layout: LayoutState | None = None  #: where the move changed it
    built: tuple[str, ...] = ()  #: files that no open move stands for: the commit asks whether they are there still


#: Writes the metadata of a revert of one view: its name, the pointer that is built on, head, target, move id.
BuildRevert = Callable[[ViewName, str, Version, Version, int], Swap]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedRecord:
    """A record for the quarantine, with its raw bytes."""

    partition: int
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    check: str | None = None  #: of the contract, that it breaks
    kafka_ms: int | None = None  #: when it was produced, in ms since 1970; -1: the log does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class StateDraft:
    """A consumer's commit to its state, with its claim; `states` creates it."""

    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """What a move staged; the ledger checks it against the locked rows."""

    claim: Claim
    move: Move
    rows: int
    bytes: int
    refused: Sequence[RefusedRecord] = ()
    violations: Mapping[tuple[int, str], int] = field(default_factory=dict)  #: of the contract, by partition and check
    ingest_to: Mapping[int, int] = field(default_factory=dict)  #: `buffer: none`: buffer_hi moves with stream_hi
    epochs: Mapping[int, int] = field(default_factory=dict)  #: and so does the leader epoch of the last record
    overlays: OverlayChange | None = None  #: what becomes of the recalled rows; None: they stay as they are
    state: StateDraft | None = None  #: of a consumer that moves rows: committed with the move, or neither is


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadState:
    """The read state of a leased reader: one version, the bounds of one instant, and the segments above the lake."""

    version: Version
    bounds: Mapping[int, Bounds]
    segments: tuple[SegmentRef, ...]
    lease_id: str
    lease_until: datetime
    answered_by: Version | None = None  #: an old version's buffered rows, when they have moved to the lake since


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    partition: int
    bounds: Bounds
    trim_floor: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """The error that stopped a table."""

    why: str
    stage: str | None  #: that met it; None: it is not known


class Ledger(Protocol):
    """The ledger's tables, claims, moves, versions and leases. Every method is one transaction."""

    def create_table(
        self,
        spec: TableSpec,
        identity: TopicIdentity,
        *,
        starts: Vector,
        fields: Sequence[Mapping[str, Any]],
        views: Mapping[ViewName, View],
    ) -> TableRow: ...
    def update_spec(self, table: TableRow, spec: TableSpec, *, decoding: bool = False) -> TableRow: ...
    def tables(self) -> list[TableRow]: ...
    def survey(self, names: Collection[str] | None = None) -> tuple[list[TableRow], list[SickTable]]: ...
    def table(self, name: str) -> TableRow: ...
    def modes(self) -> dict[int, tuple[str, str | None]]: ...
    def beat(self, holder: str, stages: Collection[Stage], *, lease: timedelta) -> frozenset[str]: ...
    def leave(self, holder: str) -> None: ...
    def stop_table(self, table: TableRow, reason: str | None, *, stage: str | None = None) -> None: ...
    def stopped(self, table: TableRow) -> Stopped | None: ...
    def start_table(self, table: TableRow, was: str) -> bool: ...
    def add_partitions(self, claim: Claim, starts: Vector) -> None: ...

    def claim(self, table: TableRow, stage: Stage, *, shard: int, holder: str, lease: timedelta) -> Claim | None: ...
    def claimed(self, table: TableRow, stage: Stage, *, shard: int) -> tuple[Claim, datetime] | None: ...
    def release_of(self, table: TableRow, stage: Stage, *, shard: int, holder: str) -> None: ...
    def renew(self, claim: Claim, *, lease: timedelta) -> Claim: ...
    def renew_all(self, claims: Collection[Claim], *, lease: timedelta) -> dict[Claim, Claim | FencedOut]: ...
    def release_all(self, holder: str, stages: Collection[tuple[int, Stage]]) -> None: ...
    def release(self, claim: Claim) -> None: ...

    def plan_move(self, claim: Claim, draft: MoveDraft) -> Move: ...
    def open_move(self, table: TableRow, stage: Stage, *, shard: int) -> Move | None: ...
    def take_attempt(self, claim: Claim, move: Move, *, run_id: str | None) -> Move: ...
    def close_move(self, claim: Claim, move: Move, *, state: MoveState, error: str) -> None: ...
    def note_failure(self, move: Move, *, error: str | None, counts: bool) -> int: ...
    def moves(self, table: TableRow, *, stage: Stage | None = None, limit: int = 100) -> list[Mapping[str, Any]]: ...

    def head(self, table: TableRow) -> Version: ...
    def versions(self, table: TableRow) -> list[Version]: ...
    def version(self, table: TableRow, number: int | None) -> Version | None: ...
    def positions(self, table: TableRow) -> list[PartitionStatus]: ...
    def since_tier_s(self, table: TableRow) -> float: ...
    def pointer(self, table: TableRow, view: ViewName) -> str: ...
    def layout(self, table: TableRow, version: Version) -> LayoutState | None: ...
    def publish(self, table: TableRow, boundary: Boundary, build: Callable[[str], Swap]) -> Version: ...

    def plan_revert(self, table: TableRow, *, to: int | None, log_from: Vector) -> RevertPlan: ...
    def revert(self, table: TableRow, *, to: int | None, log_from: Vector, build: BuildRevert) -> Version: ...


class ReadLeases(Protocol):
    """Leases and read states for readers: lease first, then read the state."""

    def look(
        self, table: TableRow, *, holder: str, lease: timedelta, at: At | None = None, lease_id: str | None = None
    ) -> ReadState: ...
    def renew(self, lease_id: str, *, lease: timedelta) -> datetime: ...
    def end(self, lease_id: str) -> None: ...
    def finish(self, lease_id: str) -> None: ...


LEASE_AGE_MAX = timedelta(hours=24)


def new_lease() -> str:
    """The name of a lease that is about to be taken: who has it before can give the lease back whatever happens."""
    return str(uuid4())


@contextmanager
def claimed_once(
    ledger: Ledger, table: TableRow, stage: Stage, *, shard: int = 0, lease: timedelta
) -> Iterator[Claim | None]:
    """A claim for one act, returned after it; None while another holder has the stage.

    What ends the block gives it back, a signal in the middle of taking it too.
    """
    holder = str(uuid4())
    try:
        yield ledger.claim(table, stage, shard=shard, holder=holder, lease=lease)
    finally:
        ledger.release_of(table, stage, shard=shard, holder=holder)
