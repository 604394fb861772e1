"""The boundary commit: the one transaction by which an act publishes a version, the same for all acts.

An act builds the new metadata on the head without a lock, then commits: it locks, checks what it has locked, lets the
catalog name the new metadata, advances bounds, and writes the version and its event. If another move published
first it builds again, the last time while the locks are held. After a COMMIT whose answer was lost it asks the ledger.
`BoundaryCommit` is this frame of an act, `BoundaryFrame` its transaction. What an act does between these steps stays
in the act's own module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from harness_pipelines import faults
from harness_pipelines.drivers.files import size_of
from harness_pipelines.drivers.postgres import Connection, Database, RowGone, sql
from harness_pipelines.errors import OutcomeUnknown, TryAgain
from harness_pipelines.ledgers.postgres import parameters
from harness_pipelines.ledgers.postgres.history.numbers import nonce_of
from harness_pipelines.ports import rows
from harness_pipelines.ports.errors import BuiltGone, TableHeld
from harness_pipelines.ports.ledger import PointerMoved, Swap, TableRow, view_dropped
from harness_pipelines.protocol.bounds import BoundaryGap, Vector
from harness_pipelines.protocol.claims import Claim, FencedOut, check_claim
from harness_pipelines.protocol.moves import Move, check_open, took_effect
from harness_pipelines.protocol.versions import Version, ViewName
from harness_pipelines.spec.locations import normal

log = structlog.get_logger(__name__)
OUTCOME_CHECKS = 5  #: a COMMIT is mostly lost because Postgres goes away, so the first question may be lost as well
PAUSE_S = 2.0  #: before the next one
OPTIMISTIC_BUILDS = 3  #: builds on a head read without a lock, before one is made while the lock is held
LOCKS = ("table", "views", "moves", "positions", "trim", "claims")  #: all acts take them in this order

Commit = Callable[["BoundaryFrame"], Version]


class SharedCatalog:
    """The catalog whose rows lie in the ledger's database, by its name in ``iceberg_tables``.

    Its pointers are swapped inside of the boundary commit, so that pointer and version change together. A catalog
    elsewhere cannot join this transaction. It would have these same calls, but its swap would be a separate commit,
    between a transaction that records the intent and one that settles the version.
    """

    def __init__(self, name: str, database: Database) -> None:
        self.name, self._database = name, database

    def key(self, table: TableRow, iceberg_name: str) -> dict[str, str]:
        """The row of a table of Iceberg that belongs to *table*."""
        return {"catalog": self.name, "namespace": table.spec.namespace, "view": iceberg_name}

    def current(self, table: TableRow, view: ViewName) -> str:
        """The metadata file that the catalog names for *view* now. Raises: TableUnknown for one that was dropped."""
        if (found := self.find(table, view)) is None:
            raise view_dropped(table, view)
        return found

    def find(self, table: TableRow, view: ViewName) -> str | None:
        """The same; ``None`` for a view that was dropped."""
        found = self._database.rows("reads/pointer", self.key(table, table.views[view]))
        return str(found[0]["metadata_location"]) if found else None

    def move(
        self,
        table: TableRow,
        view: ViewName,
        *,
        old: str,
        new: str,
        claim: Claim | None = None,
        attempt: Move | None = None,
    ) -> bool:
        """Name *new*, which has the same rows, in place of *old*, by itself; False: another one is named.

        What an *attempt* writes may be named while it is open: expire removes none of its files before, and may have
        removed them since. The last check is whether *claim* is held. Raises: MoveClosed, FencedOut, BuiltGone.
        """
        key = {**self.key(table, table.views[view]), "old": old, "new": new}
        with self._database.transaction() as connection:
            if not connection.execute(sql("ledger/move_pointer"), key).rowcount:
                return False
            found: Sequence[Mapping[str, Any]] = ()
            if attempt is not None:  # locked before the trim lock, as acts do
                found = connection.execute(sql("ledger/lock_move"), {"move_id": attempt.move_id}).fetchall()
            connection.execute(sql("reads/share_trim_lock"), {"table_id": table.table_id})
            check_kept(connection, table, [new])
            if attempt is not None:
                check_open(attempt, rows.move(found[0]) if found else None)
            if claim is not None:
                check_held(connection, claim)
            return True

    def nonce_of(self, move_id: int) -> str:
        """What tells the move from others of its number; its metadata names both. Raises: MoveClosed."""
        return nonce_of(self._database, move_id)

    def lock(self, connection: Connection, table: TableRow, iceberg_name: str) -> str | None:
        """The metadata file that is named, until the transaction ends; ``None``: another engine dropped the row."""
        row = connection.execute(sql("ledger/lock_pointer"), self.key(table, iceberg_name)).fetchone()
        return None if row is None else str(row["metadata_location"])

    def put_back(self, connection: Connection, table: TableRow, iceberg_name: str, *, old: str, new: str) -> bool:
        """Name *new* for a row that another engine dropped; False: the row exists again meanwhile."""
        key = {**self.key(table, iceberg_name), "old": old, "new": new}
        return connection.execute(sql("revert/put_back"), key).rowcount == 1

    def insert(self, connection: Connection, table: TableRow, iceberg_name: str, *, new: str) -> None:
        """Name *new* for a table of Iceberg that the catalog has no row of."""
        connection.execute(sql("ledger/insert_pointer"), {**self.key(table, iceberg_name), "new": new})

    def swap(self, connection: Connection, table: TableRow, iceberg_name: str, *, old: str, new: str) -> None:
        """Name *new* in place of *old*, which the caller has found under the lock."""
        key = {**self.key(table, iceberg_name), "old": old, "new": new}
        connection.execute(sql("ledger/move_pointer"), key)


class BoundaryFrame:
    """A boundary commit under way. A lock that is asked for out of order is an error of the act."""

    def __init__(self, connection: Connection, table: TableRow, catalog: SharedCatalog) -> None:
        self.connection, self.table, self.catalog = connection, table, catalog
        self._key = {"table_id": table.table_id}
        self._held: set[str] = set()

    # -- locks, in their order ------------------------------------------------------------------------------

    def lock_table(self) -> Mapping[str, Any] | None:
        """The table's row; ``None``: it was dropped. Raises: LedgerPromoted."""
        self._takes("table")
        return self.connection.execute(sql("ledger/lock_table"), self._key).fetchone()

    def lock_row(self) -> bool:
        """The same for a ledger that was promoted and not compared with the lake; False: the table was dropped."""
        self._takes("table")
        return self.connection.execute(sql("ledger/lock_row"), self._key).fetchone() is not None

    def lock_view(self, view: ViewName) -> str | None:
        """The metadata file that the catalog names for *view*; ``None``: another engine dropped the view."""
        self._takes("views")
        return self.catalog.lock(self.connection, self.table, self.table.views[view])

    def lock_views(self) -> dict[ViewName, str]:
        """The metadata files that the catalog names, batch before stream. Raises: TableUnknown for a dropped view."""
        found: dict[ViewName, str] = {}
        for view in sorted(self.table.views):
            if (pointer := self.lock_view(view)) is None:
                raise view_dropped(self.table, view)
            found[view] = pointer
        return found

    def lock_quarantine(self) -> str | None:
        """The same for the table of quarantined bytes, which no version names; ``None``: there is no such row."""
        self._takes("views")
        return self.catalog.lock(self.connection, self.table, self.table.quarantine)

    def lock_move(self, move_id: int) -> Move | None:
        self._takes("moves")
        row = self.connection.execute(sql("ledger/lock_move"), {"move_id": move_id}).fetchone()
        return rows.move(row) if row else None

    def lock_open_moves(self) -> list[Move]:
        """Those of all stages, so that none of them is published, closed or tried again."""
        self._takes("moves")
        return [rows.move(row) for row in self.connection.execute(sql("revert/lock_open_moves"), self._key)]

    def lock_positions(self) -> list[Mapping[str, Any]]:
        """The rows of the lake's positions, by partition."""
        self._takes("positions")
        return [*self.connection.execute(sql("ledger/lock_positions"), self._key)]

    def lock_trim(self) -> None:
        """Block new reads; only statements begun after this decide what may still be read."""
        self._takes("trim")
        self.connection.execute(sql("reads/take_trim_lock"), self._key)

    def share_trim(self) -> None:
        """From now on expire decides nothing; reads begin all the same."""
        self._takes("trim")
        self.connection.execute(sql("reads/share_trim_lock"), self._key)

    def fence(self, claim: Claim) -> None:
        """The last check of a commit; the claim stays locked against a thief until it ends. Raises: FencedOut."""
        self._takes("claims")
        check_held(self.connection, claim)

    def fence_stages(self) -> None:
        """End all claims but that of ingest, for every holder: their plans no longer fit."""
        self._takes("claims")
        self.connection.execute(sql("revert/lock_claims"), self._key)
        self.connection.execute(sql("revert/fence_claims"), self._key)

    def fence_all(self) -> None:
        """End all claims, so that late holders are fenced. Raises: TableHeld, while one of them is alive."""
        self._takes("claims")
        if held := self.connection.execute(sql("drop/live_claims"), self._key).fetchall():
            who = ", ".join(
                f"{c['stage']} by {c['holder']} until {c['lease_until']:%Y-%m-%d %H:%M:%S} UTC" for c in held
            )
            raise TableHeld(
                f"{self.table.name} is being worked on ({who}); nothing was changed. Stop its worker, or wait until "
                "its lease has ended, then run the same command again"
            )
        self._end_claims()

    def _end_claims(self) -> None:
        self.connection.execute(sql("reconcile/fence_all"), self._key)

    def _takes(self, lock: str) -> None:
        before = LOCKS[: LOCKS.index(lock) + 1]
        assert lock in self._held or self._held.issubset(before), f"{lock} is locked behind {self._held}"
        self._held.add(lock)

    # -- what is there --------------------------------------------------------------------------------------

    def head(self) -> tuple[Version, datetime]:
        """The newest version, and what the database's clock says."""
        row = self.connection.execute(sql("ledger/head"), self._key).fetchone()
        if row is None:
            raise gone("ledger/head")
        return rows.version(row), row["now"]

    def buffer_hi(self, partitions: Container[int] | None = None) -> Vector:
        """How far the buffer reaches, by partition; of *partitions* alone where they are given."""
        rows_of = self.connection.execute(sql("ledger/ingest_positions"), self._key)
        found = {row["partition"]: row["buffer_hi"] for row in rows_of}
        return found if partitions is None else {p: hi for p, hi in found.items() if p in partitions}

    def now(self) -> datetime:
        row = self.connection.execute(sql("reads/now")).fetchone()
        assert row is not None
        now: datetime = row["now"]
        return now

    def check_kept(self, swaps: Iterable[Swap]) -> None:
        """Check that the files built for *swaps* may be published now; the trim lock is held. Raises: BuiltGone."""
        assert "trim" in self._held
        check_kept(self.connection, self.table, [file for swap in swaps for file in swap.built])

    # -- what is written ------------------------------------------------------------------------------------

    def swap(self, swap: Swap) -> None:
        """Set the catalog's pointer of a view to its new metadata; its row is locked."""
        name = self.table.views[swap.view]
        self.catalog.swap(self.connection, self.table, name, old=swap.old, new=swap.new.metadata)

    def put_back(self, swap: Swap) -> None:
        """The same for a view that was found dropped. Raises: PointerMoved."""
        name = self.table.views[swap.view]
        if not self.catalog.put_back(self.connection, self.table, name, old=swap.old, new=swap.new.metadata):
            raise PointerMoved(f"the {swap.view} view is in the catalog again; nothing was written")

    def advance(self, move: Move) -> None:
        """Move the bounds that a move of its stage moves. Raises: BoundaryGap, where one is not at the move's start."""
        for taken in move.ranges:
            where = {**self._key, "partition": taken.partition, "lo": taken.low, "hi": taken.high}
            for bound in self.table.effects[move.stage].bounds:
                if not self.connection.execute(sql(f"ledger/advance_{bound}"), where).rowcount:
                    raise BoundaryGap(
                        what="its row in lake_positions", partition=taken.partition, expected_low=-1, got_low=taken.low
                    )

    def version(self, following: Version) -> None:
        self.connection.execute(sql("ledger/insert_version"), parameters.of_version(following))

    def event(self, event: str, payload: Mapping[str, Any]) -> None:
        """Append to the table's outbox."""
        key = {**self._key, "event": event, "payload": parameters.json(payload)}
        self.connection.execute(sql("ledger/append_outbox"), key)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryCommit:
    """One act on *table*, from its first build until its outcome is known."""

    database: Database
    table: TableRow
    catalog: SharedCatalog
    act: str  #: the stage, as crash points and logs name it
    move_id: int  #: of the move that the version is published by
    sent: Move | None = None  #: of a move with attempts: the one that is published, whose number others may have too
    nonce: str | None = None  #: of a move without attempts, which was reserved: what tells it from those

    @classmethod
    def reserved(
        cls, database: Database, table: TableRow, catalog: SharedCatalog, *, act: str, move: Mapping[str, Any]
    ) -> BoundaryCommit:
        """An act without a claim; its *move* is recorded before a file names it, and is abandoned until it commits."""
        with database.transaction() as connection:
            key = {"table_id": table.table_id, "run_id": None, **move}
            row = connection.execute(sql("ledger/reserve_move"), key).fetchone()
            assert row is not None
        ours = {"move_id": row["move_id"], "nonce": row["nonce"]}
        return cls(database=database, table=table, catalog=catalog, act=act, **ours)

    def publish(self, prepare: Callable[[], Commit], locked: Commit) -> Version:
        """Commit what *prepare* builds on the head of now; after `OPTIMISTIC_BUILDS` in vain *locked*, under the locks.

        Raises: what both raise but PointerMoved; CommitLost; OutcomeUnknown only when Postgres stays away.
        """
        for _ in range(OPTIMISTIC_BUILDS):
            prepared = prepare()
            faults.point(f"{self.act}.before_lock")
            try:
                return self.commit(prepared)
            except PointerMoved as moved:
                log.info("boundary.pointer_moved", act=self.act, table=self.table.name, detail=str(moved))
        return self.commit(locked)

    def commit(self, steps: Commit) -> Version:
        """Do *steps* in one transaction; where its answer is lost, look what became of it."""
        try:
            with self.database.transaction() as connection:
                if not self._is_ours(connection):
                    raise gone("history/nonce")
                published = steps(BoundaryFrame(connection, self.table, self.catalog))
                faults.point(f"{self.act}.in_transaction")
            faults.point(f"{self.act}.after_commit")
            return published
        except OutcomeUnknown as unknown:
            log.info("boundary.outcome_unknown", act=self.act, table=self.table.name, move=self.move_id)
            return self.resolve(unknown)

    def resolve(self, unknown: OutcomeUnknown) -> Version:
        """The version that the move published, read under the locks of the commit, which may still be under way.

        Raises: CommitLost; OutcomeUnknown when the ledger cannot be asked either.
        """
        return resolved(self.table.name, unknown, self._published)

    def _published(self) -> Version | None:
        with self.database.transaction() as connection:
            key = {"table_id": self.table.table_id}
            connection.execute(sql("ledger/lock_row"), key)
            if self.sent is not None:
                row = connection.execute(sql("ledger/lock_move"), {"move_id": self.move_id}).fetchone()
                if not took_effect(self.sent, rows.move(row) if row else None):
                    return None
            if not self._is_ours(connection):
                return None
            found = connection.execute(sql("reads/version_of_move"), {**key, "move_id": self.move_id}).fetchone()
            if found is None and self.sent is not None:
                raise gone("reads/version_of_move")
            return None if found is None else rows.version(found)

    def _is_ours(self, connection: Connection) -> bool:
        """Whether the number is that of this act's move: a stand-by that lacked the move may give it to another one."""
        if self.nonce is None:
            return True
        row = connection.execute(sql("history/nonce"), {"move_id": self.move_id}).fetchone()
        return row is not None and row["nonce"] == self.nonce


def check_kept(connection: Connection, table: TableRow, built: Iterable[str]) -> None:
    """All the files *built* may be published now: they are there, and expire is not about to remove them.

    An act that writes files and then stands still for long publishes files that were removed meanwhile, unless it asks.
    No clock is compared: a file that expire is about to remove stays among the condemned until it is gone, expire
    chooses what to remove under the trim lock, and looks what is reached after that. So what is there and not
    condemned while a commit holds the trim lock is reached when expire looks next.
    The caller holds that lock, shared at least, until its commit. Raises: BuiltGone.
    """
    files = list(built)
    key = {"table_id": table.table_id, "paths": [normal(file) for file in files]}
    if (found := connection.execute(sql("upkeep/condemned_of"), key).fetchone()) is not None:
        raise BuiltGone.of(table.name, found["path"])
    for file in files:  # asked after that: a file is among the condemned until it is gone
        if size_of(file) is None:
            raise BuiltGone.of(table.name, file)


def check_not_removed(connection: Connection, table: TableRow, found: Iterable[str]) -> None:
    """No holder of expire has begun to remove one of the files *found*, all of which are there.

    The caller holds the trim lock, has fenced the claims and pardoned the rest. Raises: BuiltGone.
    """
    key = {"table_id": table.table_id, "paths": [normal(file) for file in found]}
    if (row := connection.execute(sql("upkeep/condemned_of"), key).fetchone()) is not None:
        raise BuiltGone(
            f"{table.name}: a run of expire began to remove {row['path']} at "
            f"{row['removing_since']:%Y-%m-%d %H:%M:%S} UTC and has not said that it did: its process may sleep, and "
            "remove it yet. Nothing was changed; end that process, and run the same command again an hour after that "
            "time"
        )


def check_held(connection: Connection, claim: Claim) -> None:
    """The row of the claim is locked until the transaction ends. Raises: FencedOut."""
    row = connection.execute(sql("ledger/check_claim"), claim_key(claim)).fetchone()
    if row is None:
        raise FencedOut(f"{claim.stage} of table {claim.table_id}: the claim is gone; nothing was written")
    check_claim(claim, rows.claim(row), now=row["now"])


def claim_key(claim: Claim) -> dict[str, Any]:
    return {
        "table_id": claim.table_id,
        "stage": claim.stage,
        "shard": claim.shard,
        "holder": claim.holder,
        "epoch": claim.epoch,
    }


def check_pointer(old: str, locked: str) -> None:
    """Check that the catalog still names the metadata that was built on. Raises: PointerMoved."""
    if locked != old:
        raise PointerMoved(f"built on {old.rsplit('/', 1)[-1]}, the catalog is at {locked.rsplit('/', 1)[-1]}")


def same_base(swap: Swap, locked: str) -> Swap:
    """*swap*, if it was built on what the catalog names. Raises: PointerMoved."""
    check_pointer(swap.old, locked)
    return swap


def gone(statement: str) -> RowGone:
    """The error for a row that this process knows and that is gone."""
    return RowGone(
        f"{statement} found no row where this process knows one: the database was restored, a stand-by was "
        "promoted that lacked it, or the table was dropped; nothing was written, look again"
    )


class CommitLost(TryAgain):
    """A COMMIT never arrived: the ledger shows that it had no effect."""

    way_on = "run the same command again: it did not take effect"


def resolved(table: str, unknown: OutcomeUnknown, ask: Callable[[], Version | None]) -> Version:
    """The version that was published; *ask* reads it from the ledger, ``None`` where nothing took effect.

    Raises: CommitLost; OutcomeUnknown when the ledger could not be asked either.
    """
    for turn in range(OUTCOME_CHECKS):
        if turn:
            time.sleep(PAUSE_S)
        try:
            found = ask()
        except (TryAgain, OutcomeUnknown) as away:
            log.info("boundary.outcome_unread", table=table, error=str(away))
            continue
        if found is None:
            raise CommitLost(f"{table}: {unknown}; the ledger shows that it did not take effect: try again")
        return found
    raise OutcomeUnknown(
        f"{table}: {unknown}; the ledger was asked {OUTCOME_CHECKS} times what became of it and gave no answer. "
        f"`harness status {table}` shows it when Postgres is back: look before you repeat the command"
    ) from unknown
