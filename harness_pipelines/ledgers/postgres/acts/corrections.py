"""The boundary commit of a replay in Postgres, and the recorded corrections.

Like every boundary commit it is one transaction that locks in the order of the design: the table, the catalog rows
(batch before stream), the move, the lake positions, the trim lock. It is asked for by a person and has no claim: what
keeps two of them apart is that a record is held only once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import orjson

from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.ledgers.postgres.boundary import (
    BoundaryCommit,
    BoundaryFrame,
    Commit,
    SharedCatalog,
    check_pointer,
    gone,
)
from harness_pipelines.ledgers.postgres.named_snapshots import version_leased, versions_named
from harness_pipelines.ledgers.postgres.views.quarantine import ReadBytes, set_aside, with_bytes
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions, pin_of
from harness_pipelines.ports.corrections import (
    HELD,
    BuildCorrection,
    Correction,
    HeldRecord,
    InEffect,
    LockedState,
    Vectors,
)
from harness_pipelines.ports.ledger import RefusedRecord, Swap, TableRow
from harness_pipelines.ports.refused import REFUSED_TOGETHER, kept
from harness_pipelines.protocol.changes.corrections import (
    Coordinate,
    CorrectionsMoved,
    Kind,
    Recorded,
    Waiting,
    Wanted,
    corrected,
    net,
    waiting,
)
from harness_pipelines.protocol.changes.reverts import in_effect
from harness_pipelines.protocol.schema.schemas import check_schema
from harness_pipelines.protocol.versions import Version, VersionGone, ViewName, check_base

HELD_BYTES = 256 * 2**20  #: of keys, values and headers that are held in memory


class Corrections:
    """Corrections of one table of one database."""

    def __init__(self, database: Database, table: TableRow, *, catalog: str, in_lake: ReadBytes) -> None:
        """*in_lake* reads quarantined bytes that are in the lake."""
        self._database, self._table, self._in_lake = database, table, in_lake
        self._key = {"table_id": table.table_id}
        self._catalog = SharedCatalog(catalog, database)

    def over(self, database: Database) -> Corrections:
        """The same over the sessions of another role."""
        return Corrections(database, self._table, catalog=self._catalog.name, in_lake=self._in_lake)

    def held(
        self, wanted: Wanted, *, after: Coordinate, limit: int, below: Coordinate | None = None
    ) -> list[HeldRecord]:
        """The first *limit* of the *wanted* records that are held behind *after*, by partition and offset.

        Those at and above *below* are left out, and those behind the first with which they are more than HELD_BYTES.
        Raises: as `with_bytes`.
        """
        found = set_aside(self._database, self._table, wanted, state=HELD, after=after, limit=limit)
        if below is not None:
            found = [row for row in found if (row["partition"], row["offset"]) < below]
        sizes = accumulate((row["kept_bytes"] for row in found), initial=0)
        found = [row for row, before in zip(found, sizes, strict=False) if before <= HELD_BYTES]
        return [_held(row) for row in with_bytes(self._database, self._table, found, in_lake=self._in_lake)]

    def held_at(self, wanted: Wanted, *, after: Coordinate, limit: int) -> list[Coordinate]:
        """Where the first *limit* of them are; their bytes are not looked at."""
        found = set_aside(self._database, self._table, wanted, state=HELD, after=after, limit=limit)
        return [(row["partition"], row["offset"]) for row in found]

    def in_effect(self) -> list[InEffect]:
        """Records that were put back and not taken back by a revert, by coordinate."""
        return [
            InEffect(
                partition=row["partition"],
                offset=row["offset"],
                was=row["was"],
                digest=row["digest"],
                version=row["version"],
            )
            for row in self._database.rows("corrections/in_effect", self._key)
        ]

    def between(self, since: int, to: int) -> dict[Coordinate, Kind]:
        """What corrections, and reverts that undid some, made of records from version *since* to *to*.

        Raises: VersionGone for a version that the ledger does not know, as one of a history that was lost.
        """
        if since == to:
            return {}
        key = {**self._key, "since": since, "to": to}
        found_between = self._database.rows("corrections/any_between", key)[0]
        if not found_between["known"]:
            raise VersionGone(
                f"{self._table.name}: the ledger has no version {since}: it is of a history that was lost, so nothing "
                "tells what became since of records that were read then. Begin at `earliest`"
            )
        if not found_between["any"]:
            return {}
        history = self._database.rows("revert/lineage", self._key)
        revert_of = {row["version"]: row["revert_of"] for row in history}
        had, has = in_effect(revert_of, since), in_effect(revert_of, to)
        found = self._database.rows("corrections/of_versions", {**self._key, "versions": sorted(had ^ has)})
        return net([_recorded(row) for row in found], since=had, to=has)

    def look(self, wanted: Sequence[Coordinate]) -> LockedState:
        """What a replay of *wanted* would find now; changes nothing. Raises: TableUnknown."""
        with self._database.transaction() as connection:
            frame = BoundaryFrame(connection, self._table, self._catalog)
            found = self._stand(frame, wanted, self._hold(frame))
            connection.rollback()
            return found

    def drop(self, wanted: Sequence[Coordinate], *, by: str) -> int:
        """Give up those of *wanted* that are held; they stay accounted for. Returns how many."""
        key = {**self._key, **_places(wanted), "state": "dropped", "by": by}
        with self._database.transaction() as connection:
            connection.execute(sql("ledger/lock_table"), self._key)
            count: int = connection.execute(sql("corrections/settle"), key).rowcount
            return count

    def publish(self, correction: Correction, build: BuildCorrection, *, by: str, run_id: str | None) -> Version:
        """Publish a version in which all of *correction* is so, or none.

        Raises: CorrectionsMoved, AlreadyThere, ForeignCommit, CommitLost; OutcomeUnknown only when Postgres stays away.
        """
        wanted = sorted(correction.changes)
        commit = self._reserve(correction, run_id)
        move_id = commit.move_id

        def prepare() -> Commit:
            found = self.look(wanted)
            self._check_unmoved(correction, found)  # else the views have rows of these records already
            swaps = build(found.head, found.pointers, move_id)
            return lambda frame: self._commit(frame, correction, move_id, _prepared(found.pointers, swaps), by)

        return commit.publish(prepare, lambda frame: self._commit(frame, correction, move_id, build, by))

    def _reserve(self, correction: Correction, run_id: str | None) -> BoundaryCommit:
        head = self.look(sorted(correction.changes)).head
        move = {
            "stage": "replay",
            "base_version": head.version,
            "schema_version": head.schema_version,
            "trigger": "request",
            "run_id": run_id,
            "error": "the replay did not take effect",
        }
        return BoundaryCommit.reserved(self._database, self._table, self._catalog, act=correction.act, move=move)

    # -- in the transaction ---------------------------------------------------------------------------------

    @staticmethod
    def _hold(frame: BoundaryFrame) -> dict[ViewName, str]:
        """Lock the table and its views, so that nothing else publishes; reads continue."""
        frame.lock_table()
        pointers = frame.lock_views()
        frame.lock_positions()
        return pointers

    def _stand(
        self, frame: BoundaryFrame, wanted: Sequence[Coordinate], pointers: Mapping[ViewName, str]
    ) -> LockedState:
        """Statements begun after the trim lock was granted decide what may be read."""
        connection, known = frame.connection, KnownVersions(table_id=self._table.table_id)
        if (locked := connection.execute(sql("ledger/lock_table"), self._key).fetchone()) is None:
            raise gone("ledger/lock_table")
        known.catch_up(connection, retained_from=locked["retained_from"])  # before reads wait
        frame.lock_trim()
        connection.execute(sql("upkeep/delete_ended"), self._key)
        head, _ = frame.head()
        states = connection.execute(sql("corrections/lock_states"), {**self._key, **_places(wanted)}).fetchall()
        return LockedState(
            head=head,
            pointers=pointers,
            states={(row["partition"], row["offset"]): row["state"] for row in states},
            waits=self._waiting(connection, wanted, head, known),
        )

    def _waiting(
        self, connection: Connection, wanted: Sequence[Coordinate], head: Version, known: KnownVersions
    ) -> Mapping[Coordinate, Waiting]:
        # What is asked for lies below the bounds of the head, so that the head itself has none of it in the buffer.
        old = [v for v in unanswered_versions(connection, known) if v != head]
        return waiting(wanted, table=self._table.name, head=head, readable=old, versions=old)

    def _commit(
        self, frame: BoundaryFrame, correction: Correction, move_id: int, build: BuildCorrection, by: str
    ) -> Version:
        connection, wanted = frame.connection, sorted(correction.changes)
        pointers, (head, _) = self._hold(frame), frame.head()
        check_schema(
            self._table.name,
            planned=self._table.schema_version,
            found=head.schema_version,
            what="records were decoded",
        )
        known = connection.execute(sql("corrections/states_at"), {**self._key, **_places(wanted)}).fetchall()
        self._check_states(correction, {(row["partition"], row["offset"]): row["state"] for row in known})
        # Files may be written here, which takes its time: before the trim lock, for which every read waits.
        with connection.building():
            swaps = build(head, pointers, move_id)
        found = self._stand(frame, wanted, pointers)
        self._check_unmoved(correction, found)
        for name, swap in swaps.items():
            check_base(found.head, swap.base_snapshot, table=self._table.name, view=name)
        frame.check_kept(swaps.values())
        following = corrected(
            found.head,
            views={**found.head.views, **{name: swap.new for name, swap in swaps.items()}},
            buffer_hi=frame.buffer_hi(),
            move_id=move_id,
            now=frame.now(),
        )
        for swap in swaps.values():
            frame.swap(swap)
        self._record(frame, correction, following, base=found.head.version, by=by)
        return following

    def _check_unmoved(self, correction: Correction, found: LockedState) -> None:
        """Raises: CorrectionsMoved."""
        self._check_states(correction, found.states)
        if found.waits:
            raise CorrectionsMoved(f"{self._table.name}: some have to wait; nothing was written, ask again")

    def _check_states(self, correction: Correction, states: Mapping[Coordinate, str]) -> None:
        """Raises: CorrectionsMoved."""
        if moved := sum(states.get(at) != correction.states.get(at) for at in correction.changes):
            raise CorrectionsMoved(
                f"{self._table.name}: {moved:,} of {len(correction.changes):,} records were settled by others; nothing "
                "was written, ask again"
            )

    def _record(self, frame: BoundaryFrame, correction: Correction, following: Version, *, base: int, by: str) -> None:
        """The move, the version, the corrections, what is held no more, what audits have to read again, the event."""
        connection, wanted, move_id = frame.connection, sorted(correction.changes), following.move_id
        key, places = {**self._key, "move_id": move_id}, _places(wanted)
        told = {"base_version": base, "rows": len(wanted), "bytes": correction.bytes}
        if connection.execute(sql("corrections/record_move"), {**key, **told}).rowcount != 1:
            raise CorrectionsMoved(f"{self._table.name}: move {move_id} is over already; nothing was written")
        frame.version(following)
        changes = [correction.changes[at] for at in wanted]
        back = [at for at, change in zip(wanted, changes, strict=True) if change.kind is Kind.ADDED]
        connection.execute(sql("corrections/settle"), {**key, **_places(back), "state": "replayed", "by": by})
        for first in range(0, len(correction.refused), REFUSED_TOGETHER):
            aside = [kept(record).to_json() for record in correction.refused[first : first + REFUSED_TOGETHER]]
            connection.execute(sql("corrections/set_aside"), {**key, "records": orjson.dumps(aside).decode()})
        told_of = {
            "kinds": [str(change.kind) for change in changes],
            "digests": [change.digest for change in changes],
            "were": [change.was for change in changes],
            "decoder": correction.decoder,
        }
        connection.execute(sql("corrections/insert"), {**key, **places, **told_of, "version": following.version})
        connection.execute(sql("corrections/forget_signed"), {**key, **places})
        payload = {
            "version": following.version,
            "move": move_id,
            "stage": "replay",
            "rows": len(wanted),
            "corrections": len(wanted),
        }
        frame.event("published", payload)


def unanswered_versions(connection: Connection, known: KnownVersions) -> list[Version]:
    """The versions that may be read (retained, leased, named; the head too) and that no later one answers for yet.

    To be asked under the trim lock, while the row of the table is locked; *known* has caught up before. A named version
    has the bounds of its snapshot.
    """
    key = {"table_id": known.table_id}
    pins = versions_named(connection, known.table_id)
    pins += [version_leased(row) for row in connection.execute(sql("upkeep/leased_versions"), key)]
    answers = known.answers(connection, pins)
    return [*known.waiting, *(v for v in pins if answers[pin_of(v)] is None)]


def restored_corrections(connection: Connection, table_id: int, target: int, *, among: Vectors) -> list[Coordinate]:
    """Return the records of the offsets *among* whose row in version *target* differs from the log, or is missing."""
    lineage = connection.execute(sql("revert/lineage"), {"table_id": table_id}).fetchall()
    has = in_effect({row["version"]: row["revert_of"] for row in lineage}, target)
    low, high = among
    key = {"table_id": table_id, "versions": sorted(has), "partitions": sorted(low)}
    key |= {"lows": [low[p] for p in sorted(low)], "highs": [high[p] for p in sorted(low)]}
    recorded = [_recorded(row) for row in connection.execute(sql("corrections/of_versions_among"), key)]
    return sorted(net(recorded, since=frozenset(), to=has))


def _recorded(row: Mapping[str, Any]) -> Recorded:
    at = row["partition"], row["offset"]
    return Recorded(at=at, version=row["version"], digest=row["digest"], was=row["was"])


def _places(wanted: Sequence[Coordinate]) -> dict[str, list[int]]:
    return {"partitions": [partition for partition, _ in wanted], "offsets": [offset for _, offset in wanted]}


def _prepared(pointers: Mapping[ViewName, str], swaps: Mapping[ViewName, Swap]) -> BuildCorrection:
    """Hands out *swaps* where they still fit, which were built on *pointers*."""

    def same(_head: Version, locked: Mapping[ViewName, str], _move: int) -> Mapping[ViewName, Swap]:
        for view, pointer in locked.items():
            check_pointer(pointers[view], pointer)
        return swaps

    return same


def _held(row: Mapping[str, Any]) -> HeldRecord:
    return HeldRecord(
        record=RefusedRecord(
            partition=row["partition"],
            offset=row["offset"],
            reason=row["reason"],
            detail=row["detail"],
            key=row["key"],
            value=row["value"],
            headers=[(name, None if value is None else bytes.fromhex(value)) for name, value in row["headers"]],
        ),
        kafka_ms=row["kafka_ms"],
        whole=row["whole"],
    )
