"""Everything that the ledger says of one table at one instant, as it stands: nothing is judged, nothing is assumed.

The rows are not the protocol's values, because those refuse what fsck has to show: bounds out of order, versions with
gaps, moves of stages that are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, LiteralString

from psycopg import sql as compose

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres.named_snapshots import versions_named
from harness_pipelines.ports.ledger import TableUnknown, view_names
from harness_pipelines.protocol.bounds import Bounds, Vector, vector_from_json
from harness_pipelines.protocol.lake.overlays import Overlay, overlays_from_json
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.versions import Version, View, ViewName, by_name
from harness_pipelines.spec.table import QUARANTINE_SUFFIX, TableSpec

SHOWN_MAX = 20  #: rows of one kind that are named
LEASE = timedelta(minutes=15)
_OFFSETS_END = 2**63 - 1


class TableDamaged(HarnessError):
    """The table's own row cannot be understood, so nothing can be said of the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Bounds of one partition as written, in order or not."""

    start: int
    batch_hi: int
    stream_hi: int
    buffer_hi: int

    @property
    def in_order(self) -> bool:
        return 0 <= self.start <= self.batch_hi <= self.stream_hi <= self.buffer_hi


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionRow:
    """One partition in `lake_positions` and `ingest_positions`; ``None`` where one of them lacks it."""

    partition: int
    lake_start: int | None
    stream_hi: int | None
    batch_hi: int | None
    trim_floor: int | None
    ingest_start: int | None
    buffer_hi: int | None
    schema_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRow:
    version: int
    stream: View
    schema_version: int
    bounds: Mapping[int, Cut]
    revert_of: int | None
    move_id: int | None
    committed_at: datetime
    batch: View | None = None  #: None in a table without a batch view
    layout: int | None = None  #: the version that last changed how the batch view is clustered
    overlays: tuple[Overlay, ...] = ()  #: tables of recalled rows

    @property
    def views(self) -> dict[ViewName, View]:
        return by_name(self.stream, self.batch)

    @property
    def stream_hi(self) -> dict[int, int]:
        return {p: cut.stream_hi for p, cut in self.bounds.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRow:
    move_id: int
    stage: str
    shard: int
    lo: Vector
    hi: Vector
    base_version: int | None
    schema_version: int
    state: str
    attempt: int
    epoch: int
    trigger: str
    rows: int | None
    error: str | None
    undone_by: int | None  #: the revert that took it back
    planned_at: datetime

    @property
    def ranges(self) -> dict[int, tuple[int, int]]:
        """``[low, high)`` by partition of the log, without the empty ones."""
        found = {p: (self.lo[p], self.hi.get(p, -1)) for p in sorted(self.lo) if p >= 0}
        return {p: (low, high) for p, (low, high) in found.items() if low != high}

    @property
    def accepted(self) -> bool:
        """It took over another writer's rows, which belong to no partition of the log."""
        return any(p < 0 for p in self.lo)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow:
    name: str
    state: str
    schema_version: int
    max_hi: Vector | None
    retired_at: datetime | None
    stored: bool  #: its table exists


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlayRow:
    """A table of recalled rows."""

    name: str
    move_id: int
    retired: bool
    stored: bool  #: its table exists


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutRow:
    """How the batch view is clustered from a version on, as written."""

    version: int
    tree: str
    digest: str
    clustered: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffered:
    """What the stored segments hold, seen by the bounds of the same instant."""

    waiting: Mapping[int, int]  #: partition -> rows in ``[stream_hi, buffer_hi)``
    kept: Mapping[int, int]  #: partition -> rows in ``[low, buffer_hi)`` of `kept_from`
    doubled: Sequence[Mapping[str, Any]]  #: partition, offset, rows; at or above stream_hi
    uncommitted: Sequence[Mapping[str, Any]]  #: segment, partition, first, last, rows
    refused_twice: Sequence[Mapping[str, Any]]  #: partition, offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrected:
    """What a replay made of one record."""

    partition: int
    offset: int
    rows: int  #: that there are more: 1 put back or added, 0 replaced, -1 removed
    hides: bool  #: of a row that moves had brought


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Records that were set aside, whose bytes are in the lake."""

    title: str = ""  #: of their table in the catalog, with the namespace
    metadata: str | None = None  #: that was published last; None: none was
    pointer: str | None = None  #: that the catalog names
    offsets: Mapping[int, bytes] = field(default_factory=dict)  #: by partition, in order, big-endian longs


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """All rows of one table."""

    table_id: int
    name: str
    namespace: str
    views: Mapping[ViewName, str]  #: names of its Iceberg tables
    spec: TableSpec
    cluster_id: str
    topic: str
    topic_id: str
    outbox_seq: int
    retained_from: int
    stopped: str | None
    now: datetime
    since_tier_s: float  #: since tier last moved something, or since the table was made
    pointers: Mapping[ViewName, str]  #: metadata files that the catalog names; a view that it does not have is missing
    positions: Mapping[int, PositionRow]
    versions: Sequence[VersionRow]
    layouts: Sequence[LayoutRow]  #: those that a retained version names
    moves: Sequence[MoveRow]
    schemas: Sequence[int]
    segments: Sequence[SegmentRow]
    claims: Mapping[tuple[str, int], Mapping[str, Any]]  #: (stage, shard) -> holder, epoch, lease_until, alive
    leases: Sequence[Mapping[str, Any]]  #: version, holder, born, until, alive
    outbox: Mapping[str, int]  #: events, first, last
    outbox_gaps: Sequence[tuple[int, int]]  #: ``[low, high)``
    quarantined: Mapping[int, tuple[int, int]]  #: partition -> held records below and above stream_hi
    quarantined_outside: Sequence[tuple[int, int]]  #: partition, offset
    corrected: Sequence[Corrected]  #: records whose correction is in effect
    unsettled: Sequence[tuple[int, int, str]]  #: partition, offset, state of records that no correction agrees with
    buffered: Buffered
    filtered: Mapping[int, int] = field(default_factory=dict)  #: partition -> records that the filter left out
    fields: Sequence[Mapping[str, Any]] = ()  #: of the newest schema, in Iceberg's JSON form
    snapshots: Sequence[Version] = ()  #: what named snapshots pin, with the bounds that it is read with
    overlays: Sequence[OverlayRow] = ()
    moved: Moved = field(default_factory=Moved)
    begun: Mapping[int, int] = field(default_factory=dict)  #: versions that begin a history -> first number left out

    @property
    def retained(self) -> list[VersionRow]:
        """Versions that may be read now: retained, or held by a live lease."""
        leased = {lease["version"] for lease in self.leases if lease["alive"]}
        return [v for v in self.versions if v.version >= self.retained_from or v.version in leased]


def table_names(database: Database, name: str | None = None) -> list[str]:
    """Tables of the ledger; with *name* that one alone. Raises: TableUnknown."""
    found = [str(row["name"]) for row in database.rows("fsck/tables", {"name": name})]
    if name is not None and not found:
        raise TableUnknown(f"no table {name!r}; `harness table list` names those that exist")
    return found


@contextmanager
def held(database: Database, name: str) -> Iterator[None]:
    """Hold the head of the table for the length of the block: expire removes nothing that it needs.

    A table without any version cannot be held, and there is nothing to remove.
    """
    with database.transaction() as connection:
        connection.execute(sql("reads/async_commit"))
        table = connection.execute(sql("fsck/table"), {"name": name}).fetchone()
        if table is not None:
            connection.execute(sql("reads/share_trim_lock"), {"table_id": table["table_id"]})
        lease = connection.execute(sql("fsck/hold"), {"name": name, "lease": LEASE}).fetchone()
    try:
        yield
    finally:
        if lease is not None:
            database.run("reads/end_lease", {"lease_id": lease["lease_id"]})


def read_books(database: Database, name: str, *, catalog: str) -> Books:
    """All rows of the table *name* at one instant. Raises: TableUnknown, TableDamaged, PostgresUnreachable."""
    with database.reading() as connection:
        connection.execute(sql("checks/repeatable_read"))
        table = connection.execute(sql("fsck/table"), {"name": name}).fetchone()
        if table is None:
            raise TableUnknown(f"no table {name!r}; `harness table list` names those that exist")
        key = {"table_id": table["table_id"], "limit": SHOWN_MAX}
        spec = _spec(name, table["spec"])
        views = view_names(spec)
        pointers: dict[ViewName, str] = {}
        for view, named in views.items():
            wanted = {"catalog": catalog, "namespace": table["namespace"], "view": named}
            if (pointer := connection.execute(sql("reads/pointer"), wanted).fetchone()) is not None:
                pointers[view] = pointer["metadata_location"]
        positions = {row["partition"]: PositionRow(**row) for row in _all(connection, "positions", key)}
        segments = [_segment(row) for row in _all(connection, "segments", key)]
        moves = [_move(row) for row in _all(connection, "moves", key)]
        schemas = _all(connection, "schemas", key)
        since = connection.execute(sql("ledger/since_tier"), key).fetchone()
        assert since is not None, "the table's row was read at this instant"
        return Books(
            table_id=table["table_id"],
            name=name,
            namespace=table["namespace"],
            views=views,
            spec=spec,
            cluster_id=table["cluster_id"],
            topic=table["topic"],
            topic_id=table["topic_id"],
            outbox_seq=table["outbox_seq"],
            retained_from=table["retained_from"],
            stopped=table["stopped"],
            now=table["now"],
            since_tier_s=since["since_tier_s"],
            pointers=pointers,
            positions=positions,
            versions=[_version(row) for row in _all(connection, "versions", key)],
            layouts=[LayoutRow(**row) for row in _all(connection, "layouts", key)],
            moves=moves,
            schemas=[row["schema_version"] for row in schemas],
            fields=schemas[-1]["fields"] if schemas else (),
            segments=segments,
            claims={(row["stage"], row["shard"]): row for row in _all(connection, "claims", key)},
            leases=_all(connection, "leases", key),
            outbox=dict(_all(connection, "outbox", key)[0]),
            outbox_gaps=[(row["low"], row["high"]) for row in _all(connection, "outbox_gaps", key)],
            quarantined={r["partition"]: (r["lake"], r["buffer"]) for r in _all(connection, "quarantined", key)},
            filtered={row["partition"]: row["records"] for row in _all(connection, "filtered", key)},
            moved=_moved(connection, table, spec, key, catalog=catalog),
            corrected=[Corrected(**row) for row in _all(connection, "corrected", key)],
            unsettled=[(row["partition"], row["offset"], row["state"]) for row in _all(connection, "unsettled", key)],
            quarantined_outside=[
                (row["partition"], row["offset"]) for row in _all(connection, "quarantined_outside", key)
            ],
            buffered=_buffered(connection, key, segments, positions, moves=moves),
            snapshots=versions_named(connection, table["table_id"]),
            overlays=[_overlay(row) for row in connection.execute(sql("overlays/all"), key)],
            begun={row["version"]: row["left_out"] for row in _all(connection, "begun", key)},
        )


def _spec(name: str, written: object) -> TableSpec:
    try:
        return TableSpec.model_validate(written)
    except ValueError as error:
        raise TableDamaged(
            f"the spec of {name} in harness.tables cannot be read: {' '.join(str(error).split())[:300]}"
        ) from error


def kept_from(positions: Mapping[int, PositionRow], moves: Sequence[MoveRow]) -> tuple[list[MoveRow], dict[int, int]]:
    """The moves of ingest all of whose rows must be in the buffer, and from where on they are per partition.

    Those wholly above the trim floor. A move that reaches below it says of all its partitions together how many rows
    it brought, so that what it has above the floor cannot be counted.
    """
    low = {p: row.trim_floor for p, row in positions.items() if row.trim_floor is not None}
    left = [m for m in moves if m.stage == "ingest" and m.state == "COMMITTED" and m.rows is not None]
    while True:
        below = [m for m in left if any(at < low.get(p, _OFFSETS_END) for p, (at, _) in m.ranges.items())]
        if not below:
            return left, low
        for move in below:
            low |= {p: max(low[p], high) for p, (_, high) in move.ranges.items() if p in low}
        over = {move.move_id for move in below}
        left = [m for m in left if m.move_id not in over]


def _buffered(
    connection: Connection,
    key: Mapping[str, Any],
    segments: Sequence[SegmentRow],
    positions: Mapping[int, PositionRow],
    *,
    moves: Sequence[MoveRow],
) -> Buffered:
    """Count what the segments hold; those that end below `stream_hi` are leftovers that no read of the head sees."""
    low = {p: _OFFSETS_END if row.stream_hi is None else row.stream_hi for p, row in positions.items()}
    there = [s for s in segments if s.state != "retired" and s.stored]
    read = _rows_of([s.name for s in there if may_hold(s.max_hi, low)])
    _, kept = kept_from(positions, moves)
    held = _rows_of([s.name for s in there if may_hold(s.max_hi, kept)])
    key = {**key, "partitions": list(kept), "lows": list(kept.values())}

    def ask(section: LiteralString, rows: compose.Composable | None) -> list[Mapping[str, Any]]:
        if rows is None:
            return []
        return list(connection.execute(compose.SQL(sql(f"fsck/{section}")).format(rows=rows), key).fetchall())

    return Buffered(
        waiting={row["partition"]: row["rows"] for row in ask("waiting", read)},
        kept={row["partition"]: row["rows"] for row in ask("kept", held)},
        doubled=ask("doubled", read),
        uncommitted=ask("uncommitted", read),
        refused_twice=ask("refused_twice", read),
    )


def _rows_of(segments: Sequence[str]) -> compose.Composable | None:
    """The coordinates of all rows of *segments*, as a query; ``None``: there are none."""
    if not segments:
        return None
    return compose.SQL(" UNION ALL ").join(
        compose.SQL('SELECT {} AS segment, _kafka_partition AS partition, _kafka_offset AS "offset" FROM {}').format(
            compose.Literal(name), compose.Identifier("harness_buffer", name)
        )
        for name in segments
    )


def _moved(
    connection: Connection, table: Mapping[str, Any], spec: TableSpec, key: Mapping[str, Any], *, catalog: str
) -> Moved:
    name = f"{spec.name}{QUARANTINE_SUFFIX}"
    wanted = {"catalog": catalog, "namespace": table["namespace"], "view": name}
    pointer = connection.execute(sql("reads/pointer"), wanted).fetchone()
    place = connection.execute(sql("quarantine/place"), key).fetchone()
    return Moved(
        title=f"{table['namespace']}.{name}",
        metadata=place["metadata"] if place else None,
        pointer=pointer["metadata_location"] if pointer else None,
        offsets={row["partition"]: bytes(row["offsets"]) for row in _all(connection, "moved", key)},
    )


def _all(connection: Connection, section: str, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    return connection.execute(sql(f"fsck/{section}"), key).fetchall()


def _version(row: Mapping[str, Any]) -> VersionRow:
    return VersionRow(
        version=row["version"],
        stream=View(metadata=row["stream_metadata"], snapshot=row["stream_snapshot"]),
        batch=None
        if row["batch_metadata"] is None
        else View(metadata=row["batch_metadata"], snapshot=row["batch_snapshot"]),
        layout=row["layout"],
        overlays=overlays_from_json(row["overlays"]),
        schema_version=row["schema_version"],
        bounds={
            int(p): Cut(**{word: cut.get(word, -1) for word in ("start", "batch_hi", "stream_hi", "buffer_hi")})
            for p, cut in row["bounds"].items()
        },
        revert_of=row["revert_of"],
        move_id=row["move_id"],
        committed_at=row["committed_at"],
    )


def _overlay(row: Mapping[str, Any]) -> OverlayRow:
    retired = row["retired_at"] is not None
    return OverlayRow(name=row["segment"], move_id=row["move_id"], retired=retired, stored=row["stored"])


def _move(row: Mapping[str, Any]) -> MoveRow:
    return MoveRow(**{**row, "lo": vector_from_json(row["lo"]), "hi": vector_from_json(row["hi"])})


def _segment(row: Mapping[str, Any]) -> SegmentRow:
    return SegmentRow(
        name=row["segment"],
        state=row["state"],
        schema_version=row["schema_version"],
        max_hi=None if row["max_hi"] is None else vector_from_json(row["max_hi"]),
        retired_at=row["retired_at"],
        stored=row["stored"],
    )


def protocol_versions(found: Sequence[VersionRow]) -> list[Version]:
    """The versions whose bounds are in order, as the rules of the protocol take them."""
    return [
        Version(
            table_id=0,
            version=row.version,
            stream=row.stream,
            schema_version=row.schema_version,
            bounds={
                p: Bounds(start=c.start, batch_hi=c.batch_hi, stream_hi=c.stream_hi, buffer_hi=c.buffer_hi)
                for p, c in row.bounds.items()
            },
            move_id=row.move_id,
            committed_at=row.committed_at,
            revert_of=row.revert_of,
        )
        for row in found
        if all(cut.in_order for cut in row.bounds.values())
    ]
