"""The boundary commit of a revert in Postgres.

Like every boundary commit it is one transaction that locks in the order of the design: the table, the catalog row, the
open moves, the lake positions, the trim lock, and last the claims. What the buffer holds is judged in statements begun
after the trim lock was granted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import OutcomeUnknown
from harness_pipelines.ledgers.postgres import rows
from harness_pipelines.ledgers.postgres.boundary import check_kept
from harness_pipelines.ledgers.postgres.corrections import readable_versions, restored_corrections
from harness_pipelines.ledgers.postgres.outcome import published_by
from harness_pipelines.ledgers.postgres.requests.recall import overlays_there
from harness_pipelines.ports.ledger import BuildRevert, PointerMoved, Swap, TableRow, TableUnknown
from harness_pipelines.protocol.bounds import Vector, highest, lowest, vector_to_json
from harness_pipelines.protocol.changes.corrections import Waiting, restoring_waits
from harness_pipelines.protocol.changes.reverts import Held, RevertPlan, check_revert, in_effect, plan_revert, reverted
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version, VersionGone, ViewName, answering_version

log = structlog.get_logger(__name__)
OPTIMISTIC_BUILDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """What a revert has locked and read."""

    pointers: Mapping[ViewName, str]  #: what is built on
    dropped: frozenset[ViewName]  #: views that the catalog does not have any more
    starts: Vector
    plan: RevertPlan


class Reverts:
    """Reverts of one table of one database."""

    def __init__(self, database: Database, table: TableRow, *, catalog: str, log_from: Vector) -> None:
        """*log_from*: for ``buffer: none``, Kafka's log start by partition."""
        self._database = database
        self._table = table
        self._key = {"table_id": table.table_id}
        self._pointer_keys: dict[ViewName, dict[str, str]] = {
            name: {"catalog": catalog, "namespace": table.spec.namespace, "view": iceberg_name}
            for name, iceberg_name in table.views.items()
        }
        self._log_from = log_from

    def plan(self, to: int | None) -> RevertPlan:
        """What a revert to version *to* (``None``: the head) would do now; changes nothing. Raises: VersionGone."""
        with self._database.transaction() as connection:
            planned = self._lock(connection, to).plan
            connection.rollback()
            return planned

    def commit(self, to: int | None, build: BuildRevert) -> Version:
        """Publish the version that restores *to*.

        Raises: VersionGone, RevertRefused, RevertWaits, CommitLost; OutcomeUnknown only when Postgres stays away then.
        """
        move_id = self._reserve(to)
        for _ in range(OPTIMISTIC_BUILDS):
            planned = self.plan(to)
            check_revert(planned)
            swaps = {
                name: build(name, self._pointer(name, planned.head), planned.head, planned.target, move_id)
                for name in self._pointer_keys
            }
            faults.point("revert.before_lock")
            try:
                return self._commit_known(to, move_id, _only(swaps, planned))
            except PointerMoved as moved:
                log.info("revert.pointer_moved", table=self._table.name, detail=str(moved))
        return self._commit_known(to, move_id, build)

    def _reserve(self, to: int | None) -> int:
        """Record that a revert was begun, before a file names it; it counts as abandoned until it commits."""
        planned = self.plan(to)
        check_revert(planned)
        key = {**self._key, "base_version": planned.head.version, "schema_version": planned.target.schema_version}
        with self._database.transaction() as connection:
            return int(connection.execute(sql("revert/reserve_move"), key).fetchone()["move_id"])  # type: ignore[index]

    def _commit_known(self, to: int | None, move_id: int, build: BuildRevert) -> Version:
        try:
            with self._database.transaction() as connection:
                published = self._commit(connection, to, move_id, build)
                faults.point("revert.in_transaction")
            faults.point("revert.after_commit")
            return published
        except OutcomeUnknown as unknown:
            return published_by(self._database, self._table, move_id, unknown)

    def _pointer(self, view: ViewName, head: Version) -> str:
        found = self._database.rows("reads/pointer", self._pointer_keys[view])
        return _base(view, found[0] if found else None, head)

    # -- in the transaction ---------------------------------------------------------------------------------

    def _lock(self, connection: Connection, to: int | None) -> _Locked:
        """Take the locks in order, up to the trim lock, and plan on what is there then."""
        table = connection.execute(sql("ledger/lock_table"), self._key).fetchone()
        if table is None:
            raise TableUnknown(f"table {self._table.name} is not there any more; nothing was changed")
        rows_of = {
            view: connection.execute(sql("ledger/lock_pointer"), key).fetchone()
            for view, key in self._pointer_keys.items()
        }
        moves = [rows.move(row) for row in connection.execute(sql("revert/lock_open_moves"), self._key)]
        connection.execute(sql("ledger/lock_positions"), self._key)
        connection.execute(sql("reads/take_trim_lock"), self._key)
        positions = connection.execute(sql("ledger/lock_positions"), self._key).fetchall()
        starts = {row["partition"]: row["start"] for row in positions}
        plan = self._plan(connection, to, table, positions, starts=starts, moves=moves)
        return _Locked(
            pointers={view: _base(view, row, plan.head) for view, row in rows_of.items()},
            dropped=frozenset(view for view, row in rows_of.items() if row is None),
            starts=starts,
            plan=plan,
        )

    def _plan(
        self,
        connection: Connection,
        to: int | None,
        table: Mapping[str, Any],
        positions: list[Any],
        *,
        starts: Vector,
        moves: list[Move],
    ) -> RevertPlan:
        key = {**self._key, "first": table["retained_from"]}
        versions = [rows.version(row) for row in connection.execute(sql("ledger/versions"), key)]
        head = versions[-1]
        target = head if to is None else next((v for v in versions if v.version == to), None)
        if target is None:
            found = connection.execute(sql("revert/version"), {**self._key, "version": to}).fetchone()
            if found is None:
                raise VersionGone(f"{self._table.name} has no version {to}; the newest is {head.version}")
            target = rows.version(found)
        unbuffered = self._table.spec.buffer == "none"
        held = Held(
            retained_from=table["retained_from"],
            hot="tail" if unbuffered else "buffer",
            hot_from=self._log_from if unbuffered else {row["partition"]: row["trim_floor"] for row in positions},
            overlays=overlays_there(connection, self._table.table_id),
        )
        claims = [rows.claim(row) for row in connection.execute(sql("revert/claims"), self._key)]
        waits = self._waits(connection, target)
        return plan_revert(head, target, versions, held, starts=starts, moves=moves, claims=claims, waits=waits)

    def _waits(self, connection: Connection, target: Version) -> Waiting | None:
        """Does a version that may be read count on a correction of *target* not being there?"""
        connection.execute(sql("upkeep/delete_expired_leases"), self._key)
        readable, versions = readable_versions(connection, self._table.table_id)
        hot = [v for v in readable if answering_version(v, versions) is None]
        if not hot:
            return None
        low, high = lowest(v.stream_hi for v in hot), highest(v.buffer_hi for v in hot)
        restored = restored_corrections(connection, self._table.table_id, target.version, among=(low, high))
        return restoring_waits(restored, table=self._table.name, readable=hot, versions=versions)

    def _commit(self, connection: Connection, to: int | None, move_id: int, build: BuildRevert) -> Version:
        locked = self._lock(connection, to)
        plan = locked.plan
        check_revert(plan)
        swaps = [build(view, base, plan.head, plan.target, move_id) for view, base in locked.pointers.items()]
        new = {swap.view: swap.new for swap in swaps}
        check_kept(connection, self._table, [file for swap in swaps for file in swap.built])
        buffered = connection.execute(sql("ledger/ingest_positions"), self._key).fetchall()
        now = connection.execute(sql("reads/now")).fetchone()
        assert now is not None
        following = reverted(
            plan.head,
            plan.target,
            views=new,
            buffer_hi={row["partition"]: row["buffer_hi"] for row in buffered if row["partition"] in locked.starts},
            starts=locked.starts,
            move_id=move_id,
            now=now["now"],
        )
        for view, pointer in locked.pointers.items():
            key = {**self._pointer_keys[view], "old": pointer, "new": new[view].metadata}
            if view not in locked.dropped:
                connection.execute(sql("ledger/move_pointer"), key)
            elif connection.execute(sql("revert/put_back"), key).rowcount != 1:
                raise PointerMoved(f"the {view} view is in the catalog again; nothing was written")
        self._close_moves(connection, plan)
        for partition, bounds in sorted(following.bounds.items()):
            where = {**self._key, "partition": partition}
            hi = {"stream_hi": bounds.stream_hi, "batch_hi": bounds.batch_hi}
            connection.execute(sql("revert/set_position"), {**where, **hi})
        self._record(connection, plan, following, move_id)
        connection.execute(sql("revert/lock_claims"), self._key)
        connection.execute(sql("revert/fence_claims"), self._key)
        return following

    def _close_moves(self, connection: Connection, plan: RevertPlan) -> None:
        why = f"the table was reverted to version {plan.target.version}"
        key = {"move_ids": [m.move_id for m in plan.open_moves], "error": why}
        connection.execute(sql("revert/abandon_moves"), key)

    def _record(self, connection: Connection, plan: RevertPlan, following: Version, move_id: int) -> None:
        """The move, the version, the moves that it takes back, the event; the table is not stopped any more."""
        connection.execute(
            sql("revert/record_move"),
            {
                **self._key,
                "move_id": move_id,
                "lo": rows.vector({r.partition: r.low for r in plan.back}),
                "hi": rows.vector({r.partition: r.high for r in plan.back}),
                "base_version": plan.head.version,
                "schema_version": following.schema_version,
            },
        )
        connection.execute(sql("ledger/insert_version"), rows.version_parameters(following))
        history = connection.execute(sql("revert/lineage"), self._key).fetchall()
        lineage = in_effect({row["version"]: row["revert_of"] for row in history}, following.version)
        key = {**self._key, "move_id": move_id, "in_effect": sorted(lineage)}
        connection.execute(sql("revert/mark_undone"), key)
        connection.execute(sql("corrections/follow_revert"), self._key)
        connection.execute(sql("corrections/forget_all_signed"), self._key)
        if self._table.spec.buffer == "none":  # the log is read again, by the spec of then
            connection.execute(sql("evolve/forget_signed"), self._key)
        payload = {
            "version": following.version,
            "revert_of": plan.target.version,
            "move": move_id,
            "stage": "revert",
            "stream_hi": vector_to_json(following.stream_hi),
        }
        connection.execute(
            sql("ledger/append_outbox"), {**self._key, "event": "reverted", "payload": rows.json(payload)}
        )
        connection.execute(sql("ledger/stop_table"), {**self._key, "stopped": None, "stage": None})


def _base(view: ViewName, row: Mapping[str, Any] | None, head: Version) -> str:
    """What the catalog's *row* names; of a view that another engine dropped what the ledger published last."""
    return head.views[view].metadata if row is None else str(row["metadata_location"])


def _only(swaps: Mapping[ViewName, Swap], planned: RevertPlan) -> BuildRevert:
    """Hands out the swap of a view where it still fits: the same pointer, and the same head and target."""

    def same(view: ViewName, pointer: str, head: Version, target: Version, _move: int) -> Swap:
        swap = swaps[view]
        if (pointer, head.version, target.version) != (swap.old, planned.head.version, planned.target.version):
            raise PointerMoved(f"built on version {planned.head.version}, the table is at version {head.version}")
        return swap

    return same
