"""A consistent, unvalidated dump of one table's ledger rows.

The rows are not the protocol's values, because those refuse what fsck has to show: bounds out of order, versions with
gaps, moves of stages that are not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql as compose

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.named_snapshots import versions_named
from harness_pipelines.ports.ledger import TableUnknown, view_names
from harness_pipelines.ports.rows import damaged
from harness_pipelines.ports.table_state import (
    _OFFSETS_END,
    LEASE,
    SHOWN_MAX,
    Books,
    Buffered,
    CheckpointRow,
    CorrectionRow,
    FoldRow,
    LayoutRow,
    MoveRow,
    OverlayRow,
    PositionRow,
    QuarantineInLake,
    SegmentRow,
    StoredBounds,
    VersionRow,
    kept_from,
)
from harness_pipelines.protocol.bounds import vector_from_json
from harness_pipelines.protocol.changes.corrections import Coordinate
from harness_pipelines.protocol.cut_rows import CutRow, NamedCutRow, seen_of
from harness_pipelines.protocol.lake.overlays import overlays_from_json
from harness_pipelines.protocol.segments import may_hold
from harness_pipelines.protocol.versions import View, ViewName
from harness_pipelines.spec.load import read_back
from harness_pipelines.spec.table import QUARANTINE_SUFFIX, TableSpec
from harness_pipelines.spec.wording import SpecError

SEALS_AT_ONCE, SEALED_BYTES_AT_ONCE = 10_000, 256 * 2**20
CUTS_AT_ONCE = 100  #: rows of cuts that are in memory: each has an offset for every partition


@dataclass(frozen=True, slots=True)
class TableStates:
    """All rows of tables of one ledger."""

    database: Database
    catalog: str

    def names(self, name: str | None = None) -> list[str]:
        """Tables of the ledger; with *name* that one alone. Raises: TableUnknown."""
        found = [str(row["name"]) for row in self.database.rows("fsck/tables", {"name": name})]
        if name is not None and not found:
            raise TableUnknown(f"no table {name!r}; `harness table list` names those that exist")
        return found

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Hold the head of the table for the length of the block: expire removes nothing that it needs.

        A table without any version cannot be held, and there is nothing to remove.
        """
        with self.database.transaction() as connection:
            connection.execute(sql("reads/async_commit"))
            table = connection.execute(sql("fsck/table"), {"name": name}).fetchone()
            if table is not None:
                connection.execute(sql("reads/share_trim_lock"), {"table_id": table["table_id"]})
            lease = connection.execute(sql("fsck/hold"), {"name": name, "lease": LEASE}).fetchone()
        try:
            yield
        finally:
            if lease is not None:
                self.database.run("reads/end_lease", {"lease_id": lease["lease_id"]})

    def books(self, name: str) -> Books:
        """All rows of the table *name* at one instant. Raises: TableUnknown, TableDamaged, PostgresUnreachable."""
        with self.database.reading() as connection:
            connection.execute(sql("checks/repeatable_read"))
            table = connection.execute(sql("fsck/table"), {"name": name}).fetchone()
            if table is None:
                raise TableUnknown(f"no table {name!r}; `harness table list` names those that exist")
            key = {"table_id": table["table_id"], "limit": SHOWN_MAX}
            spec = _spec(name, table["spec"])
            views = view_names(spec)
            pointers: dict[ViewName, str] = {}
            for view, named in views.items():
                wanted = {"catalog": self.catalog, "namespace": table["namespace"], "view": named}
                if (pointer := connection.execute(sql("reads/pointer"), wanted).fetchone()) is not None:
                    pointers[view] = pointer["metadata_location"]
            positions = {row["partition"]: PositionRow(**row) for row in _all(connection, "positions", key)}
            segments = [_segment(row) for row in _all(connection, "segments", key)]
            moves = [_move(row) for row in _all(connection, "moves", key)]
            schemas = _all(connection, "schemas", key)
            since = connection.execute(sql("ledger/since_tier"), {"tables": [table["table_id"]]}).fetchone()
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
                reach=_reach(_all(connection, "reach", key)),
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
                moved=_moved(connection, table, spec, key, catalog=self.catalog),
                corrected=[CorrectionRow(**row) for row in _all(connection, "corrected", key)],
                unsettled=[
                    (row["partition"], row["offset"], row["state"]) for row in _all(connection, "unsettled", key)
                ],
                quarantined_outside=[
                    (row["partition"], row["offset"]) for row in _all(connection, "quarantined_outside", key)
                ],
                buffered=_buffered(connection, key, segments, positions, moves=moves),
                snapshots=versions_named(connection, table["table_id"], sound=True),
                pins_changed=[(row["name"], row["version"]) for row in _all(connection, "pins_changed", key)],
                overlays=[_overlay(row) for row in connection.execute(sql("overlays/all"), key)],
                begun={row["version"]: row["left_out"] for row in _all(connection, "begun", key)},
                mirrored=frozenset(
                    version for row in connection.execute(sql("mirrors/kept"), key) for version in row["holds"]
                ),
                checkpoints=[CheckpointRow(**_with_vectors(row)) for row in _all(connection, "checkpoints", key)],
                folded=_folded(connection, key),
                **_cuts(connection, table["cut_folders"], key),
            )

    def cut_files(self, table_id: int) -> Iterator[tuple[str, bool]]:
        """Files that cuts name whose time has not ended, to be taken without a pause; False: of retired cuts alone."""
        for row in self.database.streamed("fsck/cut_files", {"table_id": table_id}):
            yield row["path"], row["served"]

    def changed(self, table_id: int) -> Iterator[Coordinate]:
        """Quarantined records that were changed outside of the harness.

        Page by page, each at its own instant: however many records there are, no statement takes long.
        """
        at: Coordinate = (-1, -1)
        while True:
            given = {"table_id": table_id, "records": SEALS_AT_ONCE, "bytes": SEALED_BYTES_AT_ONCE}
            page = self.database.rows("fsck/sealed", {**given, "partition": at[0], "offset": at[1]})
            yield from ((row["partition"], row["offset"]) for row in page if not row["whole"])
            if not page:
                return
            at = (page[-1]["partition"], page[-1]["offset"])


def _spec(name: str, written: object) -> TableSpec:
    try:
        return read_back(written, source=name)
    except SpecError as error:
        raise damaged(name, " ".join(str(error).split())[:300]) from error


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
) -> QuarantineInLake:
    name = f"{spec.name}{QUARANTINE_SUFFIX}"
    wanted = {"catalog": catalog, "namespace": table["namespace"], "view": name}
    pointer = connection.execute(sql("reads/pointer"), wanted).fetchone()
    place = connection.execute(sql("quarantine/place"), key).fetchone()
    return QuarantineInLake(
        title=f"{table['namespace']}.{name}",
        metadata=place["metadata"] if place else None,
        pointer=pointer["metadata_location"] if pointer else None,
        offsets={row["partition"]: bytes(row["offsets"]) for row in _all(connection, "moved", key)},
    )


def _reach(found: Sequence[Mapping[str, Any]]) -> dict[ViewName, dict[str, list[tuple[int, int | None]]]]:
    reach: dict[ViewName, dict[str, list[tuple[int, int | None]]]] = {}
    for row in found:
        reach.setdefault(row["view"], {}).setdefault(row["path"], []).append((row["first"], row["last"]))
    return reach


def _all(connection: Connection, section: str, key: Mapping[str, Any]) -> list[dict[str, Any]]:
    return connection.execute(sql(f"fsck/{section}"), key).fetchall()


def _cuts(connection: Connection, folders: Sequence[str], key: Mapping[str, Any]) -> dict[str, Any]:
    """What servers showed; nothing is asked of a table that none served."""
    if not folders:
        return {}
    with connection.cursor(name="cuts") as cursor:
        cursor.itersize = CUTS_AT_ONCE
        seen = seen_of(map(_cut, cursor.execute(sql("fsck/cuts"), key)))
    return {
        "cuts": seen,
        "named_cuts": [_named_cut(row) for row in _all(connection, "named_cuts", key)],
        "cut_folders": folders,
        "buffered_bytes": _all(connection, "buffered_bytes", key)[0]["bytes"],
    }


def _cut(row: Mapping[str, Any]) -> CutRow:
    told = {int(p): cut if isinstance(cut, list) and len(cut) == 4 else [-1] * 4 for p, cut in row["bounds"].items()}
    merged = frozenset(p for p, cut in told.items() if cut[3] == cut[1])
    known = {word: value for word, value in row.items() if word not in ("bounds", "chunks")}
    # By hand, they may be anything; a server retires such a cut.
    sizes = {
        one["path"]: one["bytes"] for one in row["chunks"] if isinstance(one, dict) and {"path", "bytes"} <= {*one}
    }
    return CutRow(**known, high={p: cut[3] for p, cut in told.items()}, merged=merged, sizes=sizes)


def _named_cut(row: Mapping[str, Any]) -> NamedCutRow:
    bounds = row["bounds"]
    high = {int(p): cut[3] if isinstance(cut, list) and len(cut) == 4 else -1 for p, cut in bounds.items()}
    return NamedCutRow(**{word: value for word, value in row.items() if word != "bounds"}, high=high)


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
            int(p): StoredBounds(
                **{word: cut.get(word, -1) for word in ("start", "batch_hi", "stream_hi", "buffer_hi")}
            )
            for p, cut in row["bounds"].items()
        },
        revert_of=row["revert_of"],
        move_id=row["move_id"],
        committed_at=row["committed_at"],
        narrowed=row["narrowed"],
    )


def _overlay(row: Mapping[str, Any]) -> OverlayRow:
    retired = row["retired_at"] is not None
    return OverlayRow(name=row["segment"], move_id=row["move_id"], retired=retired, stored=row["stored"])


def _move(row: Mapping[str, Any]) -> MoveRow:
    return MoveRow(**_with_vectors(row))


def _with_vectors(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "lo": vector_from_json(row["lo"]), "hi": vector_from_json(row["hi"])}


def _folded(connection: Connection, key: Mapping[str, Any]) -> FoldRow:
    found = _all(connection, "folded", key)
    return FoldRow(**{**found[0], "stream_hi": vector_from_json(found[0]["stream_hi"])}) if found else FoldRow()


def _segment(row: Mapping[str, Any]) -> SegmentRow:
    return SegmentRow(
        name=row["segment"],
        state=row["state"],
        schema_version=row["schema_version"],
        max_hi=None if row["max_hi"] is None else vector_from_json(row["max_hi"]),
        retired_at=row["retired_at"],
        stored=row["stored"],
    )
