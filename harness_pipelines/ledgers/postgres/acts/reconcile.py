"""Writes of `harness reconcile`: end leases, advance the ledger to the lake, accept foreign rows and losses.

`Reconciler` runs as the login itself (the owner that ran `harness init`): workers may not choose the numbers of moves.
Locks in the order of all commits: table, catalog row, positions, claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, RowGone, sql
from harness_pipelines.ledgers.postgres import parameters, specs
from harness_pipelines.ledgers.postgres.boundary import BoundaryFrame, SharedCatalog, check_held, check_not_removed
from harness_pipelines.ledgers.postgres.history.numbers import begin_history, next_version, nonce_of, tell
from harness_pipelines.ports.ledger import PointerMoved, TableRow, TableUnknown, view_dropped
from harness_pipelines.ports.repair import AdoptedMove, Adoption, NewBatch
from harness_pipelines.protocol.bounds import BoundaryGap, Bounds, Vector
from harness_pipelines.protocol.claims import LEASE_MAX, Claim, Stage
from harness_pipelines.protocol.lake.history import HISTORY_LOST, HistoryBroken, NamedMove, floor_after, number_behind
from harness_pipelines.protocol.schema.schemas import check_schema
from harness_pipelines.protocol.versions import Version, View, ViewName

TRIGGER = "reconcile"
ACCEPT_FOREIGN = "accept-foreign"


class Reconciler:
    """The writing side of reconcile for one database. *catalog* is the catalog's name.

    *check_whole* returns the files that a metadata file needs; it raises BuiltGone where one is not there.
    """

    def __init__(
        self, database: Database, *, catalog: str, check_whole: Callable[[TableRow, str], Sequence[str]]
    ) -> None:
        self.database = database
        self._catalog = SharedCatalog(catalog, database)
        self._check_whole = check_whole

    def leases_over(self, table: TableRow) -> list[Mapping[str, Any]]:
        """Leases that have ended, or that are older than any may be."""
        return list(self.database.rows("reconcile/leases_over", {"table_id": table.table_id}))

    def end_leases(self, table: TableRow) -> int:
        """Delete the leases that are over; returns how many."""
        return self.database.run("reconcile/end_leases_over", {"table_id": table.table_id})

    def end_claims_ahead(self, table: TableRow) -> int:
        """End the claims that were given by a clock that ran ahead; returns how many."""
        return self.database.run("reconcile/end_claims_ahead", {"table_id": table.table_id, "lease_max": LEASE_MAX})

    def restore_columns(self, table: TableRow) -> None:
        """Give the spec the columns of the schema in force, and leave its settings. Raises: SpecMoved."""
        with self.database.transaction() as connection:
            connection.execute(sql("ledger/lock_row"), {"table_id": table.table_id})
            specs.write(connection, table, specs.with_columns_of_schema(table), what="these are columns")

    def go_on(
        self, table: TableRow, *, lost: Sequence[NamedMove], retained_from: int, batch: NewBatch | None = None
    ) -> None:
        """Let a ledger that lost the moves *lost* continue by itself: no number of the lost time comes again.

        *batch* is published with the next version if the ledger's view is no longer complete.
        Raises: TableHeld, PointerMoved, BuiltGone.
        """
        with self._locked(table, [batch.view.metadata] if batch else []) as frame:
            connection = frame.connection
            if batch is not None:
                self._swap(frame, "batch", old=batch.pointer, new=batch.view.metadata)
                self._begin_batch(frame, batch, lost=lost)
            elif lost:
                self._over(connection, table, lost)
                begin_history(connection, table, event=HISTORY_LOST, lost=lost)
            self._retain(connection, table, retained_from)
            connection.execute(sql("ledger/stop_table"), {"table_id": table.table_id, "stopped": None, "stage": None})

    def _begin_batch(self, frame: BoundaryFrame, batch: NewBatch, *, lost: Sequence[NamedMove]) -> None:
        """Publish a version that has *batch*, by a move that stands for all that made it."""
        connection, table = frame.connection, frame.table
        _run(connection, "abandon_open", table_id=table.table_id, why="the batch view that it was made on is replaced")
        head, _ = frame.head()
        following = self._following(frame, head, lost)
        stands_for = AdoptedMove(move_id=None, stage="otree", lo={}, hi={}, rows=0)
        given = self._insert_move(connection, table, stands_for, base=following.version - 1)
        following = _with_batch(replace(following, move_id=given), batch)
        self._set_batch_hi(connection, following)
        self._publish(frame, following, after=head, lost=lost)

    def _following(self, frame: BoundaryFrame, head: Version, lost: Sequence[NamedMove]) -> Version:
        """The version behind *head*; where history was lost its number lies behind all that were given out."""
        if lost:
            self._over(frame.connection, frame.table, lost)
            return next_version(frame.connection, head)
        return replace(head, version=head.version + 1, move_id=None, revert_of=None, committed_at=frame.now())

    @staticmethod
    def _over(connection: Connection, table: TableRow, lost: Sequence[NamedMove]) -> None:
        """The history of the moves *lost* is over: neither they nor numbers of that time are given again."""
        now = _one(connection, "reads/now")["now"]
        highest = number_behind(max(one.move_id for one in lost), now=now)
        connection.execute(sql("reconcile/raise_move_ids"), {"highest": highest})
        told = {"move_ids": [one.move_id for one in lost], "nonces": [one.nonce for one in lost]}
        connection.execute(sql("history/note_lost"), {"table_id": table.table_id, **told})
        connection.execute(sql("history/begin"), {"table_id": table.table_id})

    @staticmethod
    def _set_batch_hi(connection: Connection, version: Version) -> None:
        for partition, bounds in sorted(version.bounds.items()):
            key = {"table_id": version.table_id, "partition": partition, "batch_hi": bounds.batch_hi}
            _run(connection, "set_batch_hi", **key)

    def adopt(
        self,
        table: TableRow,
        adoption: Adoption,
        *,
        lost: Sequence[NamedMove],
        retained_from: int,
        batch: NewBatch | None = None,
    ) -> Version:
        """Publish the lake's newest metadata as the next version, with the moves that made it; all or nothing.

        Raises: TableHeld, BuiltGone; PointerMoved, also when ingest took records that it counts; HistoryBroken when
        the ledger has used the numbers otherwise.
        """
        found = [adoption.head.metadata, *([batch.view.metadata] if batch else [])]
        with self._locked(table, found) as frame:
            connection = frame.connection
            if batch is not None:
                self._swap(frame, "batch", old=batch.pointer, new=batch.view.metadata)
            self._swap(frame, "stream", old=adoption.pointer, new=adoption.head.metadata)
            now_open = {"table_id": table.table_id, "why": "open when the ledger was brought up to the lake"}
            head, _ = frame.head()
            following = self._following(frame, head, lost)
            last: int | None = None
            for move in adoption.moves:
                given = self._insert_move(connection, table, move, base=following.version - 1)
                last = given if move.stage == "tier" else last
            _run(connection, "abandon_open", **now_open)
            self._set_bounds(frame, adoption)
            following = replace(following, stream=adoption.head, bounds=_bounds(adoption), move_id=last)
            if batch is not None:
                following = _with_batch(following, batch)
                self._set_batch_hi(connection, following)
            connection.execute(sql("quarantine/keep_files"), {"table_id": table.table_id})
            self._publish(frame, following, after=head, lost=lost)
            self._retain(connection, table, retained_from)
            return following

    @staticmethod
    def _set_bounds(frame: BoundaryFrame, adoption: Adoption) -> None:
        connection, table = frame.connection, frame.table
        floors = {row["partition"]: row["trim_floor"] for row in frame.lock_positions()}
        held, key = _ingested(connection, table, adoption), {"table_id": table.table_id}
        for partition, start in sorted(adoption.starts.items()):
            where = {**key, "partition": partition, "start": start}
            stream_hi = adoption.stream_hi[partition]
            known = {"buffer_hi": held.get(partition, start), "stream_hi": stream_hi}
            floor = floor_after(floors.get(partition, start), **known)
            _run(connection, "set_stream_hi", **where, stream_hi=stream_hi, trim_floor=floor)
            buffered = adoption.buffer_hi[partition]
            _run(connection, "set_buffer_hi", **where, buffer_hi=buffered, schema_version=table.schema_version)

    def reserve(self, table: TableRow, move: AdoptedMove, *, on: Version) -> int:
        """Record *move*, which takes another writer's rows over on top of version *on*, before a file names its number.

        It counts as abandoned until it is accepted. Raises: TableHeld.
        """
        key = {"table_id": table.table_id, "base_version": on.version, "schema_version": table.schema_version}
        with self._locked(table, compared=True) as frame:
            ranges = {"lo": parameters.vector(move.lo), "hi": parameters.vector(move.hi)}
            return int(_one(frame.connection, "reconcile/reserve_foreign", **key, **ranges)["move_id"])

    def nonce_of(self, move_id: int) -> str:
        """The nonce of a move that was reserved. Raises: MoveClosed."""
        return nonce_of(self.database, move_id)

    def accept(self, table: TableRow, *, pointer: str, stream: View, on: Version, move: AdoptedMove) -> Version:
        """Publish *stream*, which holds another writer's rows in the pseudo-partition, on top of version *on*.

        Raises: TableHeld, PointerMoved, BuiltGone.
        """
        with self._locked(table, [stream.metadata], compared=True) as frame:
            self._swap(frame, "stream", old=pointer, new=stream.metadata)
            head, _ = frame.head()
            if head.version != on.version:
                raise PointerMoved(
                    f"{table.name} is at version {head.version}, not {on.version}; nothing was written, look again"
                )
            given = self._insert_move(frame.connection, table, move, base=head.version, trigger=ACCEPT_FOREIGN)
            following = replace(
                head, version=head.version + 1, stream=stream, move_id=given, revert_of=None, committed_at=frame.now()
            )
            self._record(frame, following)
            self._tell(frame, following, event="accepted-foreign")
            return following

    def accepted(self, table: TableRow) -> list[Mapping[str, Any]]:
        """What was taken over from other writers: move, offsets in the pseudo-partition, rows."""
        return list(self.database.rows("reconcile/accepted", {"table_id": table.table_id}))

    # -- parts of these transactions ------------------------------------------------------------------------

    @contextmanager
    def _locked(self, table: TableRow, found: Sequence[str] = (), *, compared: bool = False) -> Iterator[BoundaryFrame]:
        """A boundary commit of the owner while no claim is held; late holders are fenced.

        *compared*: the table has to have been compared with its lake since a promotion. The commit publishes the
        metadata files *found*, of which all files have to be there; what was condemned of the table is so no more, but
        for what a holder of expire, which is fenced only now, had begun to remove.
        Raises: TableUnknown, TableHeld, BuiltGone.
        """
        key = {"table_id": table.table_id}
        with self.database.transaction() as connection:
            connection.execute(sql("drop/as_owner"))
            frame = BoundaryFrame(connection, table, self._catalog)
            if not (frame.lock_table() if compared else frame.lock_row()):
                raise TableUnknown(f"table {table.name} is not there any more; nothing was changed")
            yield frame
            frame.lock_trim()
            # Claims are looked at last, as every commit does; one that is taken after this look is fenced by the next.
            frame.fence_all()
            for location in found:
                connection.execute(sql("upkeep/pardon"), {**key, "paths": []})
                check_not_removed(connection, table, self._check_whole(table, location))

    @staticmethod
    def _swap(frame: BoundaryFrame, view: ViewName, *, old: str, new: str) -> None:
        """Raises: TableUnknown, PointerMoved."""
        table, found = frame.table, frame.lock_view(view)
        if found is None:
            raise view_dropped(table, view)
        if found != old:
            raise PointerMoved(f"{table.name}: the catalog is at {found}, not at {old}; nothing was written")
        frame.catalog.swap(frame.connection, table, table.views[view], old=old, new=new)

    @staticmethod
    def _insert_move(
        connection: Connection, table: TableRow, move: AdoptedMove, *, base: int, trigger: str = TRIGGER
    ) -> int:
        number = move.move_id or _one(connection, "reconcile/next_move_id")["move_id"]
        made = connection.execute(
            sql("reconcile/adopt_move"),
            {
                "move_id": number,
                "table_id": table.table_id,
                "stage": move.stage,
                "lo": parameters.vector(move.lo),
                "hi": parameters.vector(move.hi),
                "base_version": None if move.stage == "ingest" else base,
                "schema_version": table.schema_version,
                "attempt": move.attempt,
                "trigger": trigger,
                "rows": move.rows,
                "bytes": move.bytes,
                "nonce": move.nonce or None,
            },
        ).fetchone()
        if made is None and move.nonce and move.nonce != _nonce(connection, number):
            # The ledger gave the number again, to another move: the lake's gets a new one.
            return Reconciler._insert_move(connection, table, replace(move, move_id=None), base=base, trigger=trigger)
        if made is None:
            raise HistoryBroken(
                f"{table.name}: the lake names move {number}, and the ledger has another move by that number: it was "
                "worked on since it was restored. Nothing was changed; restore it again and reconcile before a worker "
                "runs"
            )
        return int(number)

    def _publish(self, frame: BoundaryFrame, following: Version, *, after: Version, lost: Sequence[NamedMove]) -> None:
        """The version, and its event: where history was lost it says which numbers are left out."""
        self._record(frame, following)
        if lost:
            tell(frame.connection, following, after=after, event=HISTORY_LOST, lost=lost)
        else:
            self._tell(frame, following, event="reconciled")

    @staticmethod
    def _record(frame: BoundaryFrame, following: Version) -> None:
        frame.version(following)
        key = {"table_id": following.table_id, "stopped": None, "stage": None}
        frame.connection.execute(sql("ledger/stop_table"), key)

    @staticmethod
    def _tell(frame: BoundaryFrame, following: Version, *, event: str) -> None:
        frame.event(event, {"version": following.version, "move": following.move_id})

    @staticmethod
    def _retain(connection: Connection, table: TableRow, retained_from: int) -> None:
        key = {"table_id": table.table_id, "retained_from": retained_from}
        connection.execute(sql("upkeep/set_retained_from"), key)


@dataclass(frozen=True, slots=True)
class Losses:
    """Records that Kafka dropped before ingest read them: the position passes them in one commit, by a recorded move.

    It runs under the claim of ingest, as the other commits of that stage do.
    """

    database: Database

    def accept(self, table: TableRow, claim: Claim, *, partition: int, low: int, high: int) -> int:
        """Let ingest continue at *high* of *partition* where it stands at *low*; the number of the move.

        Raises: SchemaMoved, BoundaryGap when it stands elsewhere, FencedOut.
        """
        key = {"table_id": table.table_id, "partition": partition, "lo": low, "hi": high}
        with self.database.transaction() as connection:
            # As every commit of ingest: a schema change waits, or we do.
            connection.execute(sql("ledger/share_ingest"), key)
            found = connection.execute(sql("ledger/ingest_positions"), key).fetchall()
            now = next((row["schema_version"] for row in found if row["partition"] == partition), -1)
            check_schema(table.name, planned=table.schema_version, found=now, what="the loss was looked at")
            if connection.execute(sql("ledger/advance_ingest"), key).rowcount != 1:
                raise BoundaryGap(what="the buffer", partition=partition, expected_low=-1, got_low=low)
            move = {"shard": claim.shard, "schema_version": table.schema_version, "epoch": claim.epoch}
            row = connection.execute(sql("audit/begin_accepted"), {**key, **move}).fetchone()
            assert row is not None
            check_held(connection, claim)
        return int(row["move_id"])


def _ingested(connection: Connection, table: TableRow, adoption: Adoption) -> Vector:
    """How far ingest is, locked; where *adoption* counts records for it, it is where it was looked at.

    Raises: PointerMoved.
    """
    rows = connection.execute(sql("reconcile/lock_ingest"), {"table_id": table.table_id})
    held: Vector = {row["partition"]: row["buffer_hi"] for row in rows}
    counted = [(p, low) for move in adoption.moves if move.stage == Stage.INGEST for p, low in move.lo.items()]
    for partition, low in counted:
        if (found := held.get(partition, low)) != low:
            raise PointerMoved(
                f"{table.name}: ingest is at offset {found} of partition {partition}, not at {low}; nothing was "
                "written, look again"
            )
    return held


def _bounds(adoption: Adoption) -> dict[int, Bounds]:
    return {
        p: Bounds(start=start, batch_hi=start, stream_hi=adoption.stream_hi[p], buffer_hi=adoption.buffer_hi[p])
        for p, start in adoption.starts.items()
    }


def _with_batch(version: Version, batch: NewBatch) -> Version:
    bounds = {p: replace(b, batch_hi=batch.batch_hi.get(p, b.start)) for p, b in version.bounds.items()}
    layout = version.layout if batch.keeps_layout else None
    return replace(version, batch=batch.view, bounds=bounds, layout=layout, overlays=())


def _nonce(connection: Connection, move_id: int) -> str:
    return str(_one(connection, "history/nonce", move_id=move_id)["nonce"])


def _run(connection: Connection, statement: str, /, **parameters: Any) -> int:
    return connection.execute(sql(f"reconcile/{statement}"), parameters).rowcount


def _one(connection: Connection, statement: str, /, **parameters: Any) -> Mapping[str, Any]:
    row = connection.execute(sql(statement), parameters).fetchone()
    if row is None:
        raise RowGone(f"{statement} found no row where one must be; nothing was written, look again")
    return row
