"""The ledger in Postgres: tables, claims, moves, and the boundary commit.

`PostgresLedger.publish` is the one transaction by which a stage takes effect. It locks in the order of the design
(tables, catalog rows, the move, lake positions, claims) and checks what it has locked with the pure rules of
`harness_pipelines.protocol`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from typing import Any

import structlog
from psycopg.errors import UniqueViolation
from psycopg.types.json import Jsonb

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import HarnessError
from harness_pipelines.ledgers.postgres import parameters, specs, workers
from harness_pipelines.ledgers.postgres.acts import drop
from harness_pipelines.ledgers.postgres.acts.drop import Droppable, Dropped, check_not_purged
from harness_pipelines.ledgers.postgres.acts.revert import Reverts
from harness_pipelines.ledgers.postgres.boundary import (
    BoundaryCommit,
    BoundaryFrame,
    Commit,
    SharedCatalog,
    check_held,
    claim_key,
    gone,
    same_base,
)
from harness_pipelines.ledgers.postgres.notify import announce
from harness_pipelines.ledgers.postgres.requests.recall import check_there, recall_done
from harness_pipelines.ledgers.postgres.states import commit_within
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import (
    Boundary,
    BuildRevert,
    LayoutState,
    MoveDraft,
    PartitionStatus,
    SickTable,
    Stopped,
    Swap,
    TableDamaged,
    TableExists,
    TableRow,
    TableUnknown,
)
from harness_pipelines.ports.refused import kept
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.bounds import BoundaryGap, Bounds, Vector
from harness_pipelines.protocol.changes.reverts import RevertPlan
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, may_take
from harness_pipelines.protocol.moves import NO_RESULT, Move, MoveClosed, MoveState, check_open
from harness_pipelines.protocol.schema.schemas import check_schema
from harness_pipelines.protocol.versions import Version, View, ViewName, advance, check_base, tiered_of
from harness_pipelines.spec.load import dump_spec
from harness_pipelines.spec.table import TableSpec

log = structlog.get_logger(__name__)
NAMES_SHOWN_MAX = 20


class PostgresLedger:
    """The ledger of one database. *catalog* is the catalog's name in ``iceberg_tables``.

    *owner* gives the sessions that tables are dropped by; without it they are those of *database*.
    """

    def __init__(self, database: Database, *, catalog: str, owner: Callable[[], Database] | None = None) -> None:
        self.database = database
        self.catalog = catalog
        self.catalog_rows = SharedCatalog(catalog, database)
        self._owner = owner or (lambda: database)

    # -- tables ---------------------------------------------------------------------------------------------

    def create_table(
        self,
        spec: TableSpec,
        identity: TopicIdentity,
        *,
        starts: Vector,
        fields: Sequence[Mapping[str, Any]],
        views: Mapping[ViewName, View],
    ) -> TableRow:
        """Record the table, its schema 1, its partitions and version 1, and make its views known to the catalog.

        Raises: TableExists; FolderPurged, where files that *views* have are being deleted.
        """
        with self.database.transaction() as connection:
            values = {
                "namespace": spec.namespace,
                "name": spec.name,
                "spec": Jsonb(dump_spec(spec)),
                "cluster_id": identity.cluster_id,
                "topic": identity.topic,
                "topic_id": identity.topic_id,
            }
            made = connection.execute(sql("ledger/insert_table"), values).fetchone()
            if made is None:  # it was there, or another `apply` was first
                raise TableExists(f"table {spec.table} exists already; nothing was changed")
            table_id = made["table_id"]
            announce(connection)
            said = {"fields": Jsonb(list(fields)), "spec": values["spec"], "starts": Jsonb({}), "move_id": None}
            _run(connection, "ledger/insert_schema", table_id=table_id, schema_version=1, **said)
            table = self._find(spec.table, connection)
            assert table is not None
            for name, view in views.items():
                self.catalog_rows.insert(connection, table, table.views[name], new=view.metadata)
            check_not_purged(connection, table.name, [view.metadata for view in views.values()])
            self._insert_partitions(connection, table_id, starts)
            now = _one(connection, "reads/now")["now"]
            first = Version(
                table_id=table_id,
                version=1,
                stream=tiered_of(views),
                batch=views.get("batch"),
                schema_version=1,
                bounds={p: Bounds.at(start) for p, start in starts.items()},
                move_id=None,
                committed_at=now,
            )
            _run(connection, "ledger/insert_version", **parameters.of_version(first))
            _emit(connection, table_id, "created", {"version": 1})
            return table

    def update_spec(self, table: TableRow, spec: TableSpec, *, decoding: bool = False) -> TableRow:
        """Replace the settings of a table; columns are evolved, never overwritten.

        *decoding*: how records are decoded changes, too, which no row may depend on yet.
        Raises: SpecMoved, if the spec is no longer that of *table*; SpecDisagrees, TableInUse.
        """
        with self.database.transaction() as connection:
            _run(connection, "ledger/lock_first_claims" if decoding else "ledger/lock_row", table_id=table.table_id)
            if decoding:
                specs.check_unread(connection, table)
            specs.write(connection, table, spec, what="these are settings")
            if decoding:
                _run(connection, "ledger/update_schema_spec", table_id=table.table_id, spec=Jsonb(dump_spec(spec)))
        return self.table(spec.table)

    def tables(self) -> list[TableRow]:
        """Those that can be understood; `survey` names the others too."""
        return self.survey()[0]

    def survey(self, names: Collection[str] | None = None) -> tuple[list[TableRow], list[SickTable]]:
        """All tables, or those of *names* that exist; one unreadable row does not hide the others."""
        found: list[TableRow] = []
        sick: list[SickTable] = []
        for row in self.database.rows("ledger/tables", parameters.of_names(names)):
            name = f"{row['namespace']}.{row['name']}"
            if names is not None and name not in names:
                continue
            try:
                found.append(rows.table_row(row))
            except TableDamaged as error:
                sick.append(SickTable(name=name, why=str(error)))
        return found, sick

    def names(self) -> list[str]:
        """Of all tables, also of those whose row cannot be understood."""
        return [str(row["name"]) for row in self.database.rows("ledger/table_names")]

    def table(self, name: str) -> TableRow:
        """The table called ``namespace.name``. Raises: TableUnknown, with the most similar names, TableDamaged."""
        with self.database.at_once() as connection:
            found = self._find(name, connection)
        if found is None:
            known = self.names()
            shown = ", ".join(get_close_matches(name, known, n=NAMES_SHOWN_MAX, cutoff=0.0)) or "none yet"
            more = f" and {len(known) - NAMES_SHOWN_MAX:,} more" if len(known) > NAMES_SHOWN_MAX else ""
            raise TableUnknown(f"no table {name!r}; tables: {shown}{more}. `harness table apply FILE` creates one")
        return found

    def droppable(self, name: str) -> Droppable:
        """The table called ``namespace.name``, also where its row cannot be understood. Raises: TableUnknown."""
        try:
            return Droppable.of(self.table(name))
        except TableDamaged:
            for row in self.database.rows("ledger/tables", parameters.of_names([name])):
                return Droppable.of_damaged(row)
            raise

    def drop_table(self, table: TableRow | Droppable, *, dry_run: bool = False, purge: Sequence[str] = ()) -> Dropped:
        """Drop a table, all or nothing; see `harness_pipelines.ledgers.postgres.acts.drop`.

        Raises: TableUnknown, TableInUse.
        """
        return drop.drop_table(self._owner(), table, catalog=self.catalog, dry_run=dry_run, purge=purge)

    def stop_table(self, table: TableRow, reason: str | None, *, stage: str | None = None) -> None:
        """Record what stops a table, and in which *stage*; ``None``: nothing stops it."""
        said = {"stopped": reason, "stage": None if reason is None else stage}
        self.database.run("ledger/stop_table", {"table_id": table.table_id, **said})

    def stopped(self, table: TableRow) -> Stopped | None:
        """What stops the table now."""
        found = self.database.rows("ledger/stopped", {"table_id": table.table_id})
        return Stopped(found[0]["stopped"], found[0]["stopped_stage"]) if found else None

    def start_table(self, table: TableRow, was: str) -> bool:
        """Record that *was* no longer stops the table; False: something else stops it, or nothing."""
        return self.database.run("ledger/start_table", {"table_id": table.table_id, "was": was}) == 1

    def add_partitions(self, claim: Claim, starts: Vector) -> None:
        """Let partitions that were added to the topic join, from *starts*. A second call changes nothing.

        They are decoded with the schema in force, whatever the holder of *claim* last heard of it. Raises: FencedOut.
        """
        with self.database.transaction() as connection:
            _run(connection, "ledger/lock_row", table_id=claim.table_id)
            self._insert_partitions(connection, claim.table_id, starts)
            check_held(connection, claim)

    def _find(self, name: str, connection: Connection) -> TableRow | None:
        row = connection.execute(sql("ledger/tables"), parameters.of_names([name])).fetchone()
        return rows.table_row(row) if row else None

    @staticmethod
    def _insert_partitions(connection: Connection, table_id: int, starts: Vector) -> None:
        for partition in sorted(starts):
            where = {"table_id": table_id, "partition": partition, "start": starts[partition]}
            _run(connection, "ledger/insert_partition", **where)
            _run(connection, "ledger/insert_ingest_partition", **where)

    def modes(self) -> dict[int, tuple[str, str | None]]:
        """Name and `mode` of each table by its number; of a spec that cannot be read the mode may be None."""
        return {row["table_id"]: (row["name"], row["mode"]) for row in self.database.rows("ledger/modes")}

    def beat(self, holder: str, stages: Collection[Stage], *, lease: timedelta) -> frozenset[str]:
        """Note that the worker *holder* shares tables for the time of a *lease*; all that share the same stages."""
        return workers.beat(self.database, holder, stages, lease)

    def leave(self, holder: str) -> None:
        """Note that the worker *holder* shares no tables any more."""
        self.database.run("ledger/leave", {"holder": holder})

    # -- claims ---------------------------------------------------------------------------------------------

    def claim(self, table: TableRow, stage: Stage, *, shard: int, holder: str, lease: timedelta) -> Claim | None:
        """Take the claim if it is free; else ``None``. Locks nothing but the claim."""
        key = {"table_id": table.table_id, "stage": stage, "shard": shard}
        with self.database.transaction() as connection:
            seen = connection.execute(sql("ledger/claim"), key).fetchone()
            if seen is None:
                row = connection.execute(
                    sql("ledger/insert_claim"), {**key, "holder": holder, "lease": lease}
                ).fetchone()
                return rows.claim(row) if row else None
            if not may_take(rows.claim(seen), now=seen["now"]):
                return None
            locked = _one(connection, "ledger/lock_claim", **key)
            if not may_take(rows.claim(locked), now=locked["now"]):
                return None
            return rows.claim(_one(connection, "ledger/take_claim", **key, holder=holder, lease=lease))

    def claimed(self, table: TableRow, stage: Stage, *, shard: int) -> tuple[Claim, datetime] | None:
        """The newest claim, alive or not, and what the database's clock says."""
        found = self.database.rows("ledger/claim", {"table_id": table.table_id, "stage": stage, "shard": shard})
        return (rows.claim(found[0]), found[0]["now"]) if found else None

    def renew(self, claim: Claim, *, lease: timedelta) -> Claim:
        """Extend a claim that is still held. Raises: FencedOut."""
        with self.database.transaction() as connection:
            row = connection.execute(sql("ledger/renew_claim"), {**claim_key(claim), "lease": lease}).fetchone()
            if row is None:
                check_held(connection, claim)
                raise FencedOut(f"{claim.stage} of table {claim.table_id}: the claim could not be renewed")
            return rows.claim(row)

    def renew_all(self, claims: Collection[Claim], *, lease: timedelta) -> dict[Claim, Claim | FencedOut]:
        """Extend *claims* of one holder in one statement: each as it is now, or why it is lost.

        A claim that another session holds locked just now is in neither: it is asked for again in time.
        """
        return workers.renew_all(self.database, claims, lease)

    def release(self, claim: Claim) -> None:
        """Give a claim back, so that the next holder need not wait for its lease."""
        self.database.run("ledger/release_claim", claim_key(claim))

    def release_of(self, table: TableRow, stage: Stage, *, shard: int, holder: str) -> None:
        """Return any claim that *holder* has of a stage: a worker interrupted while it asked does not know."""
        key = {"table_id": table.table_id, "stage": stage, "shard": shard}
        self.database.run("ledger/release_of_holder", {**key, "holder": holder})

    def release_all(self, holder: str, stages: Collection[tuple[int, Stage]]) -> None:
        """Return the claims that *holder* has of these stages, each with the number of its table."""
        workers.release_all(self.database, holder, stages)

    # -- moves ----------------------------------------------------------------------------------------------

    def plan_move(self, claim: Claim, draft: MoveDraft) -> Move:
        """Record a move before any file of it is written. Raises: MoveClosed when the stage has an open one."""
        try:
            with self.database.transaction() as connection:
                _run(connection, "ledger/lock_table", table_id=claim.table_id)
                if draft.recall is not None:
                    self._check_asked(connection, draft.recall)
                row = _one(connection, "ledger/insert_move", **_draft_parameters(claim, draft), state=MoveState.PLANNED)
                check_held(connection, claim)
                return rows.move(row)
        except UniqueViolation as error:
            raise MoveClosed(
                f"{draft.stage} of table {claim.table_id} has an open move of another holder; nothing was planned"
            ) from error

    @staticmethod
    def _check_asked(connection: Connection, recall: int) -> None:
        """A request that was given up meanwhile is not taken up. Raises: MoveClosed."""
        found = connection.execute(sql("recalls/lock"), {"recall": recall}).fetchone()
        if found is None or found["state"] != "asked":
            raise MoveClosed(f"request {recall} was given up or is done; nothing was planned")

    def open_move(self, table: TableRow, stage: Stage, *, shard: int) -> Move | None:
        """The move that a stage of a shard has to finish first, if any."""
        found = self.database.rows("ledger/open_move", {"table_id": table.table_id, "stage": stage, "shard": shard})
        return rows.move(found[0]) if found else None

    def take_attempt(self, claim: Claim, move: Move, *, run_id: str | None) -> Move:
        """Begin the next attempt of an open move: same range, same base, same schema, another branch."""
        with self.database.transaction() as connection:
            row = connection.execute(
                sql("ledger/take_attempt"),
                {"move_id": move.move_id, "attempt": move.attempt, "epoch": claim.epoch, "run_id": run_id},
            ).fetchone()
            if row is None:
                raise MoveClosed(f"move {move.move_id} is not open in attempt {move.attempt} any more")
            check_held(connection, claim)
            return rows.move(row)

    def close_move(self, claim: Claim, move: Move, *, state: MoveState, error: str) -> None:
        """End a move without effect; its last error stays behind *error*, the reason."""
        with self.database.transaction() as connection:
            _run(connection, "ledger/lock_move", move_id=move.move_id)
            _run(connection, "ledger/close_move", move_id=move.move_id, state=state, rows=None, bytes=None, error=error)
            check_held(connection, claim)

    def note_failure(self, move: Move, *, error: str | None, counts: bool) -> int:
        """Record why an attempt failed; *counts* is false for outages. Returns the failures that count so far.

        ``None``: of its end nothing is known, and what was noted before stays.
        """
        with self.database.transaction() as connection:
            said = {"error": error and error[:2000], "nothing": NO_RESULT, "counts": int(counts)}
            _run(connection, "ledger/note_failure", move_id=move.move_id, attempt=move.attempt, **said)
            return int(_one(connection, "ledger/lock_move", move_id=move.move_id)["failures"])

    def moves(self, table: TableRow, *, stage: Stage | None = None, limit: int = 100) -> list[Mapping[str, Any]]:
        """The latest moves, newest first, as the ledger's rows."""
        key = {"table_id": table.table_id, "stage": stage, "limit": limit}
        return list(self.database.rows("ledger/moves", key))

    # -- versions -------------------------------------------------------------------------------------------

    def head(self, table: TableRow) -> Version:
        found = self.database.rows("ledger/head", {"table_id": table.table_id})
        if not found:
            raise TableUnknown(f"table {table.name} is not in the ledger any more")
        return rows.version(found[0])

    def versions(self, table: TableRow) -> list[Version]:
        """All versions that can still be read, oldest first."""
        found = self.database.rows("ledger/versions", {"table_id": table.table_id, "first": table.retained_from})
        return [rows.version(row) for row in found]

    def version(self, table: TableRow, number: int | None) -> Version | None:
        """One of them; None where it can no longer be read."""
        key = {"table_id": table.table_id, "first": table.retained_from, "version": number}
        found = self.database.rows("ledger/version", key)
        return rows.version(found[0]) if found else None

    def positions(self, table: TableRow) -> list[PartitionStatus]:
        """Bounds of the head and of this instant, by partition."""
        return [rows.partition_status(row) for row in self.database.rows("reads/positions", _tables(table))]

    def since_tier_s(self, table: TableRow) -> float:
        """Seconds since tier last moved something, or since the table was made, by the database's clock."""
        return float(self.database.rows("ledger/since_tier", _tables(table))[0]["since_tier_s"])

    def pointer(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names for *view* now. Raises: TableUnknown for one that was dropped."""
        return self.catalog_rows.current(table, view)

    def layout(self, table: TableRow, version: Version) -> LayoutState | None:
        """How the batch view of *version* is clustered; ``None`` before its first rows."""
        if version.layout is None:
            return None
        found = self.database.rows("ledger/layout", {"table_id": table.table_id, "version": version.layout})
        return LayoutState(**found[0])

    def publish(self, table: TableRow, boundary: Boundary, build: Callable[[str], Swap]) -> Version:
        """Publish a staged move on the view of its stage: the boundary commit of *tier* and *otree*.

        *build* writes the new metadata on top of a metadata location; it is called again when the pointer
        moved meanwhile, the last time while the pointer is locked.

        Raises: FencedOut, MoveClosed, BoundaryGap, SchemaMoved, CommitLost; OutcomeUnknown only when Postgres stays
        away then.
        """
        move = boundary.move
        commit = BoundaryCommit(
            database=self.database,
            table=table,
            catalog=self.catalog_rows,
            act=move.stage,
            move_id=move.move_id,
            sent=move,
        )

        def prepare() -> Commit:
            swap = self._built(table, move, build)
            return lambda frame: self._publish(frame, boundary, lambda old: same_base(swap, old))

        return commit.publish(prepare, lambda frame: self._publish(frame, boundary, build))

    def plan_revert(self, table: TableRow, *, to: int | None, log_from: Vector) -> RevertPlan:
        """What `revert` would do now; changes nothing. Raises: VersionGone."""
        return Reverts(self.database, table, catalog=self.catalog, log_from=log_from).plan(to)

    def revert(self, table: TableRow, *, to: int | None, log_from: Vector, build: BuildRevert) -> Version:
        """Publish a version that restores version *to* (``None``: the head itself, as the ledger knows it).

        *log_from* is Kafka's log start by partition, for ``buffer: none``.
        See `harness_pipelines.ledgers.postgres.acts.revert`.
        Raises: RevertRefused, RevertWaits, VersionGone, CommitLost; OutcomeUnknown only when Postgres stays away then.
        """
        return Reverts(self.database, table, catalog=self.catalog, log_from=log_from).commit(to, build)

    def _built(self, table: TableRow, move: Move, build: Callable[[str], Swap]) -> Swap:
        """Build on the head of now. Of a late attempt it is said that its move is closed, not what it stumbled over."""
        pointer = self.pointer(table, table.effects[move.stage].view)
        _check_schema(table, move, self.head(table))  # asked after the pointer, so that it is of this schema or older
        try:
            return build(pointer)
        except HarnessError:
            found = self.database.rows("ledger/lock_move", {"move_id": move.move_id})
            check_open(move, rows.move(found[0]) if found else None)
            raise

    def _publish(self, frame: BoundaryFrame, boundary: Boundary, build: Callable[[str], Swap]) -> Version:
        connection, table, move = frame.connection, frame.table, boundary.move
        effect = table.effects[move.stage]
        frame.lock_table()
        if (pointer := frame.lock_view(effect.view)) is None:
            raise gone("ledger/lock_pointer")
        check_open(move, frame.lock_move(move.move_id))
        head, now = frame.head()
        _check_schema(table, move, head)
        swap = build(pointer)
        starts = {row["partition"]: row["start"] for row in frame.lock_positions()}
        if boundary.ingest_to:
            self._ingest_with_move(connection, boundary)
        check_base(head, swap.base_snapshot, table=table.name, view=effect.view)
        following = advance(
            head,
            move,
            view=swap.new,
            buffer_hi=frame.buffer_hi(starts),
            starts=starts,
            now=now,
            relaid=swap.layout is not None,
            overlays=boundary.overlays,
        )
        if boundary.overlays is not None:
            check_there(connection, table, following.overlays)
        frame.swap(swap)
        frame.advance(move)
        frame.version(following)
        self._record(connection, boundary, following, swap)
        payload = {"version": following.version, "move": move.move_id, "stage": move.stage, "rows": boundary.rows}
        frame.event("published", payload)
        if boundary.state is not None:
            commit_within(connection, boundary.state)
        for (partition, check), records in sorted(boundary.violations.items()):  # of rows that are taken all the same
            counted = {"partition": partition, "check_name": check, "severity": "warn", "records": records}
            _run(connection, "ledger/count_violations", table_id=table.table_id, **counted)
        frame.fence(boundary.claim)
        return following

    @staticmethod
    def _record(connection: Connection, boundary: Boundary, following: Version, swap: Swap) -> None:
        """The layout, the end of the move, and of the request that it answers."""
        move = boundary.move
        if swap.layout is not None:
            _run(connection, "ledger/insert_layout", **parameters.of_layout(following, swap.layout))
        closing = {"state": MoveState.COMMITTED, "rows": boundary.rows, "bytes": boundary.bytes, "error": None}
        _run(connection, "ledger/close_move", move_id=move.move_id, **closing)
        if move.recall is not None:
            _run(connection, "recalls/end", **recall_done(boundary))

    @staticmethod
    def _ingest_with_move(connection: Connection, boundary: Boundary) -> None:
        """`buffer: none`: the move itself is the ingest; its refused records are quarantined with it."""
        move = boundary.move
        for partition, high in sorted(boundary.ingest_to.items()):
            where = {"table_id": move.table_id, "partition": partition, "epoch": boundary.epochs.get(partition)}
            if not _run(connection, "ledger/reach_ingest", **where, lo=move.lo[partition], hi=high):
                raise BoundaryGap(what="the buffer", partition=partition, expected_low=-1, got_low=move.lo[partition])
        insert_refused(connection, move.table_id, boundary)
        for taken in move.ranges:
            where = {"table_id": move.table_id, "partition": taken.partition, "move_id": move.move_id}
            _run(connection, "ledger/settle_taken", **where, low=taken.low, high=taken.high)


def insert_refused(connection: Connection, table_id: int, boundary: Boundary) -> None:
    for one in map(kept, boundary.refused):
        more = {"table_id": table_id, "move_id": boundary.move.move_id, "headers": Jsonb(one.headers())}
        _run(connection, "ledger/insert_quarantined", **one.parameters(), **more)
    broken = Counter((record.partition, record.check) for record in boundary.refused if record.check)
    for (partition, check), records in sorted(broken.items()):
        counted = {"partition": partition, "check_name": check, "severity": "quarantine", "records": records}
        _run(connection, "ledger/count_violations", table_id=table_id, **counted)


def _check_schema(table: TableRow, move: Move, head: Version) -> None:
    """Check that files staged with one schema are not published on another. Raises: SchemaMoved."""
    what = f"{move.stage} move {move.move_id} was staged"
    check_schema(table.name, planned=move.schema_version, found=head.schema_version, what=what)


def _draft_parameters(claim: Claim, draft: MoveDraft) -> dict[str, Any]:
    return {
        "table_id": claim.table_id,
        "stage": draft.stage,
        "shard": draft.shard,
        "lo": parameters.vector(draft.lo),
        "hi": parameters.vector(draft.hi),
        "base_version": draft.base_version,
        "schema_version": draft.schema_version,
        "epoch": claim.epoch,
        "trigger": draft.trigger,
        "run_id": draft.run_id,
        "parent_move": draft.parent_move,
        "parts": Jsonb(list(draft.parts)),
        "recall": draft.recall,
        "rows": None,
    }


def _run(connection: Connection, statement: str, /, **parameters: Any) -> int:
    return connection.execute(sql(statement), parameters).rowcount


def _tables(table: TableRow) -> dict[str, list[int]]:
    """The parameters of a statement that answers for any number of tables."""
    return {"tables": [table.table_id]}


def _one(connection: Connection, statement: str, /, **parameters: Any) -> Mapping[str, Any]:
    row = connection.execute(sql(statement), parameters).fetchone()
    if row is None:
        raise gone(statement)
    return row


def _emit(connection: Connection, table_id: int, event: str, payload: Mapping[str, Any]) -> None:
    _run(connection, "ledger/append_outbox", table_id=table_id, event=event, payload=Jsonb(dict(payload)))
