"""The boundary commit of a revert in Postgres.

Like every boundary commit it is one transaction that locks in the order of the design: the table, the catalog row, the
open moves, the lake positions, the trim lock, and last the claims. What the buffer holds is judged in statements begun
after the trim lock was granted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres import parameters
from harness_pipelines.ledgers.postgres.acts.corrections import restored_corrections, unanswered_versions
from harness_pipelines.ledgers.postgres.boundary import BoundaryCommit, BoundaryFrame, Commit, SharedCatalog
from harness_pipelines.ledgers.postgres.history.numbers import also_told
from harness_pipelines.ledgers.postgres.requests.recall import overlays_there
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions
from harness_pipelines.ports import rows
from harness_pipelines.ports.ledger import BuildRevert, PointerMoved, Swap, TableRow, TableUnknown
from harness_pipelines.protocol.bounds import Vector, highest, lowest, vector_to_json
from harness_pipelines.protocol.changes.corrections import Waiting, restoring_waits
from harness_pipelines.protocol.changes.reverts import (
    Retained,
    RevertPlan,
    check_revert,
    in_effect,
    plan_revert,
    reverted,
)
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version, VersionGone, ViewName


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read before the trim lock, and holds under it."""

    table: Mapping[str, Any]
    known: KnownVersions
    retained: Sequence[Version]  #: oldest first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Locked:
    """The rows that a revert has locked and read."""

    pointers: Mapping[ViewName, str]  #: what is built on
    dropped: frozenset[ViewName]  #: views that the catalog no longer has
    starts: Vector
    plan: RevertPlan


class Reverts:
    """Reverts of one table of one database."""

    def __init__(self, database: Database, table: TableRow, *, catalog: str, log_from: Vector) -> None:
        """*log_from*: for ``buffer: none``, Kafka's log start by partition."""
        self._database = database
        self._table = table
        self._key = {"table_id": table.table_id}
        self._catalog = SharedCatalog(catalog, database)
        self._views: list[ViewName] = sorted(table.views)  # batch before stream
        self._log_from = log_from

    def plan(self, to: int | None) -> RevertPlan:
        """What a revert to version *to* (``None``: the head) would do now; changes nothing. Raises: VersionGone."""
        with self._database.transaction() as connection:
            planned = self._lock(BoundaryFrame(connection, self._table, self._catalog), to).plan
            connection.rollback()
            return planned

    def commit(self, to: int | None, build: BuildRevert) -> Version:
        """Publish the version that restores *to*.

        Raises: VersionGone, RevertRefused, RevertWaits, CommitLost; OutcomeUnknown only when Postgres stays away then.
        """
        commit = self._reserve(to)
        move_id = commit.move_id

        def prepare() -> Commit:
            planned = self.plan(to)
            check_revert(planned)
            swaps = {
                name: build(name, self._pointer(name, planned.head), planned.head, planned.target, move_id)
                for name in self._views
            }
            return lambda frame: self._commit(frame, to, move_id, _only(swaps, planned))

        return commit.publish(prepare, lambda frame: self._commit(frame, to, move_id, build))

    def _reserve(self, to: int | None) -> BoundaryCommit:
        planned = self.plan(to)
        check_revert(planned)
        move = {
            "stage": "revert",
            "base_version": planned.head.version,
            "schema_version": planned.target.schema_version,
            "trigger": "revert",
            "error": "the revert did not take effect",
        }
        return BoundaryCommit.reserved(self._database, self._table, self._catalog, act="revert", move=move)

    def _pointer(self, view: ViewName, head: Version) -> str:
        return _base(view, self._catalog.find(self._table, view), head)

    # -- in the transaction ---------------------------------------------------------------------------------

    def _lock(self, frame: BoundaryFrame, to: int | None) -> _Locked:
        """Take the locks in order, up to the trim lock, and plan on what is there then."""
        table = frame.lock_table()
        if table is None:
            raise TableUnknown(f"table {self._table.name} is not there any more; nothing was changed")
        found = {view: frame.lock_view(view) for view in self._views}
        moves = frame.lock_open_moves()
        frame.lock_positions()
        # Before reads wait: the table is locked, so that no version comes, and none gets out of reach.
        known = KnownVersions(table_id=self._table.table_id)
        retained = known.catch_up(frame.connection, retained_from=table["retained_from"])
        frame.lock_trim()
        positions = frame.lock_positions()
        starts = {row["partition"]: row["start"] for row in positions}
        plan = self._plan(frame.connection, to, _Read(table, known, retained), positions, starts=starts, moves=moves)
        return _Locked(
            pointers={view: _base(view, pointer, plan.head) for view, pointer in found.items()},
            dropped=frozenset(view for view, pointer in found.items() if pointer is None),
            starts=starts,
            plan=plan,
        )

    def _plan(
        self,
        connection: Connection,
        to: int | None,
        read: _Read,
        positions: Sequence[Mapping[str, Any]],
        *,
        starts: Vector,
        moves: list[Move],
    ) -> RevertPlan:
        head = read.retained[-1]
        target = head if to is None else next((v for v in read.retained if v.version == to), None)
        if target is None:
            found = connection.execute(sql("revert/version"), {**self._key, "version": to}).fetchone()
            if found is None:
                raise VersionGone(
                    f"{self._table.name} has no version {to}; the newest is {head.version}"
                    f"{also_told(connection, self._table)}"
                )
            target = rows.version(found)
        intake = self._table.intake
        held = Retained(
            retained_from=read.table["retained_from"],
            hot=intake.hot,
            hot_from={row["partition"]: row["trim_floor"] for row in positions} if intake.buffered else self._log_from,
            overlays=overlays_there(connection, self._table.table_id),
        )
        claims = [rows.claim(row) for row in connection.execute(sql("revert/claims"), self._key)]
        waits = self._waits(connection, target, read.known)
        return plan_revert(head, target, read.retained, held, starts=starts, moves=moves, claims=claims, waits=waits)

    def _waits(self, connection: Connection, target: Version, known: KnownVersions) -> Waiting | None:
        """Does a version that may be read count on a correction of *target* not being there?"""
        connection.execute(sql("upkeep/delete_ended"), self._key)
        hot = unanswered_versions(connection, known)
        if not hot:
            return None
        low, high = lowest(v.stream_hi for v in hot), highest(v.buffer_hi for v in hot)
        restored = restored_corrections(connection, self._table.table_id, target.version, among=(low, high))
        return restoring_waits(restored, table=self._table.name, readable=hot, versions=hot)

    def _commit(self, frame: BoundaryFrame, to: int | None, move_id: int, build: BuildRevert) -> Version:
        locked = self._lock(frame, to)
        plan = locked.plan
        check_revert(plan)
        swaps = [build(view, base, plan.head, plan.target, move_id) for view, base in locked.pointers.items()]
        frame.check_kept(swaps)
        following = reverted(
            plan.head,
            plan.target,
            views={swap.view: swap.new for swap in swaps},
            buffer_hi=frame.buffer_hi(locked.starts),
            starts=locked.starts,
            move_id=move_id,
            now=frame.now(),
        )
        for swap in swaps:
            if swap.view in locked.dropped:
                frame.put_back(swap)
            else:
                frame.swap(swap)
        self._close_moves(frame.connection, plan)
        for partition, bounds in sorted(following.bounds.items()):
            where = {**self._key, "partition": partition}
            hi = {"stream_hi": bounds.stream_hi, "batch_hi": bounds.batch_hi}
            frame.connection.execute(sql("revert/set_position"), {**where, **hi})
        self._record(frame, plan, following, move_id)
        frame.fence_stages()
        return following

    def _close_moves(self, connection: Connection, plan: RevertPlan) -> None:
        why = f"the table was reverted to version {plan.target.version}"
        key = {"move_ids": [m.move_id for m in plan.open_moves], "error": why}
        connection.execute(sql("revert/abandon_moves"), key)

    def _record(self, frame: BoundaryFrame, plan: RevertPlan, following: Version, move_id: int) -> None:
        """Write the move, the version, the moves that it undoes, and the event; unstop the table."""
        connection = frame.connection
        connection.execute(
            sql("revert/record_move"),
            {
                **self._key,
                "move_id": move_id,
                "lo": parameters.vector({r.partition: r.low for r in plan.back}),
                "hi": parameters.vector({r.partition: r.high for r in plan.back}),
                "base_version": plan.head.version,
                "schema_version": following.schema_version,
            },
        )
        frame.version(following)
        history = connection.execute(sql("revert/lineage"), self._key).fetchall()
        lineage = in_effect({row["version"]: row["revert_of"] for row in history}, following.version)
        key = {**self._key, "move_id": move_id, "in_effect": sorted(lineage)}
        connection.execute(sql("revert/mark_undone"), key)
        connection.execute(sql("corrections/follow_revert"), self._key)
        connection.execute(sql("corrections/forget_all_signed"), self._key)
        if not self._table.intake.buffered:  # the log is read again, by the spec of then
            connection.execute(sql("evolve/forget_signed"), self._key)
        payload = {
            "version": following.version,
            "revert_of": plan.target.version,
            "move": move_id,
            "stage": "revert",
            "stream_hi": vector_to_json(following.stream_hi),
        }
        frame.event("reverted", payload)
        connection.execute(sql("ledger/stop_table"), {**self._key, "stopped": None, "stage": None})


def _base(view: ViewName, pointer: str | None, head: Version) -> str:
    """What the catalog names; of a view that another engine dropped what the ledger published last."""
    return head.views[view].metadata if pointer is None else pointer


def _only(swaps: Mapping[ViewName, Swap], planned: RevertPlan) -> BuildRevert:
    """Hands out the swap of a view where it still fits: the same pointer, and the same head and target."""

    def same(view: ViewName, pointer: str, head: Version, target: Version, _move: int) -> Swap:
        swap = swaps[view]
        if (pointer, head.version, target.version) != (swap.old, planned.head.version, planned.target.version):
            raise PointerMoved(f"built on version {planned.head.version}, the table is at version {head.version}")
        return swap

    return same
