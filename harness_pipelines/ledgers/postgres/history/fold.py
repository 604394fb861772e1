"""Fold old history into checkpoints, in small transactions that hold the trim lock and no lock of the table.

A transaction decides by `protocol.checkpoints` and calls the ledger's functions. These make a checkpoint of exactly
what they remove, and refuse to remove what something needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import structlog
from psycopg import Error

from harness_pipelines import faults
from harness_pipelines.drivers.postgres import Connection, Database, sql
from harness_pipelines.errors import TryAgain
from harness_pipelines.ledgers.postgres.boundary import check_held
from harness_pipelines.ledgers.postgres.named_snapshots import version_leased, versions_named
from harness_pipelines.ledgers.postgres.specs import in_force
from harness_pipelines.ledgers.postgres.views.versions_needed import KnownVersions, older_needed
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.upkeep import Folded
from harness_pipelines.protocol.bounds import Vector, vector_from_json
from harness_pipelines.protocol.checkpoints import (
    FOLD_AT_LEAST,
    VERSIONS_AT_ONCE,
    FoldableVersion,
    Kind,
    Span,
    foldable,
    folded_through,
    grouped,
    near,
    without_needed,
)
from harness_pipelines.protocol.claims import Claim

log = structlog.get_logger(__name__)
RECORDS_AT_ONCE = 1_000  #: refused ones, each of which is sealed again: some 0.2 s under the trim lock
BATCHES_MAX = 100  #: transactions of one run: a ledger that was never folded gets there over some runs


class HistoryNeeded(TryAgain):
    """History that was to be folded is needed by now; nothing was removed."""

    way_on = "the next run of expire decides again"


class HistoryFold:
    """Folds the history of tables of one ledger."""

    def __init__(self, database: Database, *, at_least: int = FOLD_AT_LEAST, at_once: int = VERSIONS_AT_ONCE) -> None:
        """*at_least*: fewer old versions, or moves of ingest, wait; *at_once* are folded in one transaction."""
        self._database, self._at_least, self._at_once = database, at_least, at_once
        self._unfinished: set[int] = set()  #: tables of which a run has left something

    def fold(self, table: TableRow, claim: Claim) -> Folded:
        """Fold what is older than the table's `retention.history` and needed by nothing, some batches of it.

        Raises: FencedOut; HistoryNeeded, with the batches before it folded.
        """
        found = self._database.rows("fold/state", self._asked(table))
        if not found or not (found[0]["is_due"] or table.table_id in self._unfinished):
            return Folded()
        needed = self._needed(table, retained_from=found[0]["retained_from"])
        staying = [row["move_id"] for row in self._database.rows("fold/staying", {"table_id": table.table_id})]
        whole = Folded()
        self._unfinished.add(table.table_id)
        for _ in range(BATCHES_MAX):
            done = self._batch(table, claim, needed, staying)
            whole = whole.plus(done)
            if done == Folded(through=done.through):
                self._unfinished.discard(table.table_id)
                break
        if whole.moves:
            log.info("expire.folded", table=table.name, versions=whole.versions, moves=whole.moves, events=whole.events)
        return whole

    def _asked(self, table: TableRow) -> dict[str, Any]:
        """The parameters of `fold/state` and of what follows."""
        retention = table.spec.retention
        of_spec = {"history": timedelta(seconds=retention.history), "newest": retention.snapshots}
        return {"table_id": table.table_id, **of_spec, "least": self._at_least, "limit": self._at_once}

    def _needed(self, table: TableRow, *, retained_from: int) -> frozenset[int]:
        """Versions below *retained_from* that must stay: pins are taken of later ones alone, or of what is pinned.

        A lease on a pin that went has its bounds. Leases are read first: pins may go while they are read.
        """
        key = {"table_id": table.table_id}
        with self._database.session() as connection:
            pins = {row["version"] for row in connection.execute(sql("fold/pins"), key)}
            leased = [version_leased(row) for row in connection.execute(sql("upkeep/leased_versions"), key)]
            named = [*versions_named(connection, table.table_id), *leased]
            known = KnownVersions(table_id=table.table_id)
            older = older_needed(connection, known, retained_from=retained_from, numbers=pins, named=named)
            first = connection.execute(sql("fold/first"), key).fetchall()
        return frozenset({*pins, *older, *(row["version"] for row in first)})

    def _batch(self, table: TableRow, claim: Claim, needed: Collection[int], staying: Sequence[int]) -> Folded:
        """What is old is decided by the spec in force: a longer history holds from its `apply`."""
        try:
            with self._database.transaction() as connection:
                connection.execute(sql("reads/take_trim_lock"), {"table_id": table.table_id})
                key = self._asked(in_force(connection, table))
                if (state := connection.execute(sql("fold/state"), key).fetchone()) is None:
                    return Folded()
                done = _fold(connection, {**key, **state, "staying": staying}, needed)
                check_held(connection, claim)
                faults.point("expire.in_fold")
                return done
        except Error as error:
            if error.sqlstate != "HP020":
                raise
            raise HistoryNeeded(str(error).split("\n")[0]) from error


def _fold(connection: Connection, key: Mapping[str, Any], needed: Collection[int]) -> Folded:
    before, last = int(key["version"]), int(key["last"] or 0)
    found = connection.execute(sql("fold/reverts"), {**key, "through": min(before, last)})
    allowed = folded_through(last, {row["version"]: row["revert_of"] for row in found})
    through = max(before, allowed)  # a longer history than before lets rows below stay, for as long as it holds
    asked = {**key, "through": allowed, "needed": sorted(needed)}
    versions = [FoldableVersion(**row) for row in connection.execute(sql("fold/old_versions"), asked)]
    ingest, abandoned = sql("fold/old_ingest"), sql("fold/old_abandoned")
    beside = [row["move_id"] for some in (ingest, abandoned) for row in connection.execute(some, key)]
    move_ids = [*beside, *(v.move_id for v in versions if v.move_id is not None)]
    rows = connection.execute(sql("fold/moves_of"), {**asked, "move_ids": move_ids}).fetchall()
    spans = {r["move_id"]: _span(r) for r in rows if foldable(r["stage"], r["state"], r["trigger"])}
    going = without_needed(versions, through=allowed, needed=needed, moves=spans.keys())[: key["limit"]]
    moves = [spans[n] for n in (*beside, *(v.move_id for v in going)) if n in spans]
    if (records := _judge_for_good(connection, key, moves)) == RECORDS_AT_ONCE:  # there may be more
        return Folded(records=records, through=before)
    if going or through > before:
        numbers = {"before": before, "through": through, "versions": [v.version for v in going]}
        connection.execute(sql("fold/fold_versions"), {**key, **numbers})
    _fold_moves(connection, key, moves)
    events = _fold_events(connection, {**key, "through": through})
    return Folded(versions=len(going), moves=len(moves), events=events, records=records, through=through)


def _judge_for_good(connection: Connection, key: Mapping[str, Any], moves: Sequence[Span]) -> int:
    """Let records that *moves* refused name them no more; how many: `RECORDS_AT_ONCE` at most."""
    in_effect = [one.first_move for one in moves if one.kind == "in effect"]
    judged = {"move_ids": [one.first_move for one in moves], "in_effect": in_effect, "records": RECORDS_AT_ONCE}
    return connection.execute(sql("fold/judge_for_good"), {**key, **judged}).rowcount


def _fold_moves(connection: Connection, key: Mapping[str, Any], moves: Sequence[Span]) -> None:
    known = near([_checkpoint(row) for row in connection.execute(sql("fold/checkpoints"), key)], moves)
    barriers = [row["move_id"] for row in connection.execute(sql("fold/barriers"), key)]
    for group in grouped([*known, *moves], barriers):
        ids = [one.first_move for one in group if one.checkpoint is None]
        connection.execute(sql("fold/fold_moves"), {**key, "move_ids": ids, "checkpoints": _numbers(group)})


def _numbers(group: Iterable[Span]) -> list[int]:
    return [one.checkpoint for one in group if one.checkpoint is not None]


def _fold_events(connection: Connection, key: Mapping[str, Any]) -> int:
    [row] = connection.execute(sql("fold/old_events"), {**key, "limit": 2 * key["limit"]}).fetchall()
    if row["through"] is None:
        return 0
    [done] = connection.execute(sql("fold/fold_events"), {**key, "through": row["through"]}).fetchall()
    return int(done["folded"])


def _span(row: Mapping[str, Any]) -> Span:
    kind: Kind = (
        "abandoned" if row["state"] == "ABANDONED" else "undone" if row["undone_by"] is not None else "in effect"
    )
    one = _ranged(row, kind)
    digests: Vector | None = None if row["digest"] is None else {}  # the ledger adds them up
    return replace(one, first_move=row["move_id"], last_move=row["move_id"], digests=digests)


def _checkpoint(row: Mapping[str, Any]) -> Span:
    one = _ranged(row, row["kind"])
    digests = None if row["digest"] is None else vector_from_json(row["digest"])
    numbers = {word: row[word] for word in ("first_move", "last_move", "moves", "checkpoint")}
    return replace(one, digests=digests, **numbers)


def _ranged(row: Mapping[str, Any], kind: Kind) -> Span:
    in_effect = kind == "in effect"
    return Span(
        stage=row["stage"],
        kind=kind,
        schema_version=row["schema_version"],
        first_move=0,
        last_move=0,
        lo=vector_from_json(row["lo"]) if in_effect else {},
        hi=vector_from_json(row["hi"]) if in_effect else {},
        rows=row["rows"] or 0,
    )
