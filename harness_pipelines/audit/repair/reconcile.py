"""Reconcile: show the state of ledger, lake, claims and Kafka, then repair it.

look: a report of verdicts, nothing is changed. settle: does what the report says, each act guarded by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from harness_pipelines.audit.repair.lake import LakePlan, Way, apply_plan, plan_lake
from harness_pipelines.ports.access import (
    HasBufferRows,
    HasGuard,
    HasLake,
    HasLakeHistories,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasOverview,
    HasOwnership,
    HasProof,
    HasReconciler,
    HasSegments,
    HasTables,
    HasUpkeep,
    HasWarehouse,
)
from harness_pipelines.ports.errors import MetadataMissing, TableHeld
from harness_pipelines.ports.ledger import TableRow, claimed_once
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.moves import Move, MoveState
from harness_pipelines.protocol.schema.schemas import SpecDisagrees, check_columns
from harness_pipelines.protocol.versions import ViewName

LEASE = timedelta(seconds=60)
TIME = "%Y-%m-%d %H:%M:%S %Z"
Claims = Mapping[tuple[str, int], Mapping[str, Any]]  #: by stage and shard
GIVEN_UP = "no live claim: abandoned by reconcile"


class Ports(
    HasBufferRows,
    HasLakeHistories,
    HasLake,
    HasLakeReads,
    HasLedger,
    HasLog,
    HasOverview,
    HasOwnership,
    HasProof,
    HasReconciler,
    HasSegments,
    HasGuard,
    HasTables,
    HasUpkeep,
    HasWarehouse,
    Protocol,
):
    """The ports that it uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that was looked at: what it is, how it stands, and what settles it."""

    kind: str  #: owner, ledger, move, claim, lease or branch
    subject: str
    verdict: str
    act: str | None = None  #: what settle does about it; None: it is left as it is

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "subject": self.subject, "verdict": self.verdict, "act": self.act}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileReport:
    """How one table stands."""

    table: str
    verdicts: tuple[Leftover, ...]
    lake: LakePlan
    abandon: tuple[Move, ...] = ()
    branches: tuple[str, ...] = ()
    over: int = 0  #: leases that have ended
    settled: bool = field(default=False)

    @property
    def acts(self) -> list[Leftover]:
        return [v for v in self.verdicts if v.act is not None]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "settled": self.settled,
            "verdicts": [v.to_json() for v in self.verdicts],
            "acts": len(self.acts),
            **self.lake.to_json(),
        }


def look(stores: Ports, table: TableRow, *, take_over: bool = False) -> ReconcileReport:
    """How *table* stands; changes nothing.

    Raises: WarehouseTaken unless *take_over*; LakeHistoryMissing, HistoryBroken when the ledger is older than the lake
    and neither Kafka nor the lake continues it; KafkaUnreachable only where Kafka has to be asked.
    """
    owner = _owner(stores, take_over=take_over)
    lake = plan_lake(stores, table)
    claims = {(str(c["stage"]), int(c["shard"])): c for c in stores.overview.claims(table)}
    moves = [(one.move, _judged(table, lake, one)) for one in _open_moves(stores, table, claims)]
    over = stores.reconciler.leases_over(table)
    dead = _dead_branches(stores, table, lake, [m for m, _ in moves])
    return ReconcileReport(
        table=table.name,
        lake=lake,
        verdicts=(
            *owner,
            *_columns(table),
            *_ledger(lake),
            *(verdict for _, verdict in moves),
            *_claims(claims),
            *(_lease(row) for row in over),
            *(Leftover(kind="branch", subject=b, verdict="its attempt is over", act="drop the branch") for b in dead),
        ),
        abandon=tuple(move for move, verdict in moves if verdict.act is not None),
        branches=tuple(dead),
        over=len(over),
    )


def settle(stores: Ports, table: TableRow, report: ReconcileReport, *, take_over: bool = False) -> ReconcileReport:
    """Carry out *report*. It skips, by name, what another worker has started on meanwhile.

    Raises: TableHeld, PointerMoved, FencedOut, HistoryBroken; an act is done wholly or not at all.
    """
    if take_over:
        stores.ownership.take_over()
    else:
        stores.ownership.confirm()
    if _columns(table):
        stores.reconciler.restore_columns(table)
        table = stores.ledger.table(table.name)
    stores.reconciler.end_claims_ahead(table)
    apply_plan(stores, table, report.lake)
    stores.ownership.follow()
    if report.lake.way is not Way.ADOPT:  # else the adoption has closed them
        for move in report.abandon:
            _abandon(stores, table, move)
    stores.reconciler.end_leases(table)
    opened = {table.effects[Stage(row["stage"])].view for row in _publishing(stores, table)}
    for view in sorted(table.views.keys() - opened):
        if dead := stores.upkeep.dead_branches(table, view=view):
            _drop_branches(stores, table, dead, view=view)
    after = look(stores, stores.ledger.table(table.name))
    return ReconcileReport(table=table.name, verdicts=report.verdicts, lake=report.lake, settled=not after.acts)


# -- verdicts -----------------------------------------------------------------------------------------------


def _owner(stores: Ports, *, take_over: bool) -> list[Leftover]:
    whose = stores.ownership.stranger()
    if not take_over:
        if whose is not None:
            stores.ownership.confirm()
        return []
    told = "no other ledger has it; a copy of this one loses it" if whose is None else f"it belongs to {whose}"
    return [Leftover(kind="owner", subject=stores.warehouse, verdict=told, act="take the warehouse over")]


def _columns(table: TableRow) -> list[Leftover]:
    version = table.schema_version
    try:
        check_columns(table.spec, fields=table.fields, schema_version=version)
    except SpecDisagrees as differ:
        act = f"give the spec the columns of schema {version}"
        return [Leftover(kind="spec", subject="columns", verdict=str(differ), act=act)]
    return []


def _ledger(lake: LakePlan) -> list[Leftover]:
    if lake.way is Way.NONE:
        return []
    subject = "recalled rows" if lake.way is Way.BATCH else "older than the lake"
    return [Leftover(kind="ledger", subject=subject, verdict=lake.why, act=lake.act)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """An open move with what says how it stands."""

    move: Move
    error: str | None
    claim: Mapping[str, Any] | None
    staged: bool


def _open_moves(stores: Ports, table: TableRow, claims: Claims) -> list[_Found]:
    found = []
    for row in stores.overview.open_moves(table):
        move = stores.tables.open_move(table, Stage(row["stage"]), shard=row["shard"])
        if move is not None and move.move_id == row["move_id"]:
            staged = _is_staged(stores, table, move)
            claim = claims.get((row["stage"], row["shard"]))
            found.append(_Found(move=move, error=row["error"], claim=claim, staged=staged))
    return found


def _is_staged(stores: Ports, table: TableRow, move: Move) -> bool:
    if move.stage not in table.effects:
        return False
    try:
        return stores.lake.is_staged(table, move)
    except MetadataMissing:
        return False


def _publishing(stores: Ports, table: TableRow) -> list[Mapping[str, Any]]:
    """Open moves that may have a branch."""
    return [row for row in stores.overview.open_moves(table) if Stage(row["stage"]) in table.effects]


def _judged(table: TableRow, lake: LakePlan, found: _Found) -> Leftover:
    move, claim = found.move, found.claim
    shown = ", ".join(f"partition {r.partition} [{r.low}, {r.high})" for r in move.ranges) or "no new offsets"
    subject = f"{move.stage} move {move.move_id}, attempt {move.attempt}: {shown}"
    if move.state is MoveState.QUARANTINED:
        why = (
            f"failed in every attempt ({found.error}) and holds the stage; repair the cause, then `harness run "
            f"{table.name} --retry-stuck` plans it again"
        )
        return Leftover(kind="move", subject=subject, verdict=why)
    if claim is not None and claim["alive"] and not claim["ahead"]:
        held = f"{claim['holder']} holds the claim until {_at(claim)} and works on it"
        return Leftover(kind="move", subject=subject, verdict=held)
    if lake.way is Way.ADOPT and any(m.move_id == move.move_id for m in lake.adopted):
        return Leftover(kind="move", subject=subject, verdict="the lake says that it was published")
    if lake.way is not Way.ADOPT and found.staged:
        ready = (
            f"staged on branch {move.branch} and not published; the next worker takes it as attempt {move.attempt + 1}"
        )
        return Leftover(kind="move", subject=subject, verdict=ready)
    nobody = "nobody has a claim" if claim is None else f"its holder's lease ended {_at(claim)}"
    return Leftover(
        kind="move",
        subject=subject,
        verdict=f"nothing of it is staged or published, {nobody}",
        act="abandon it; the next worker plans it again",
    )


def _claims(claims: Claims) -> list[Leftover]:
    return [_claim(stage, shard, row) for (stage, shard), row in sorted(claims.items())]


def _claim(stage: str, shard: int, row: Mapping[str, Any]) -> Leftover:
    subject = f"{stage}, shard {shard}, epoch {row['epoch']}"
    if not row["alive"]:
        return Leftover(kind="claim", subject=subject, verdict=f"ended at {_at(row)}; the next worker takes it")
    held = f"held by {row['holder']} until {_at(row)}"
    if not row["ahead"]:
        return Leftover(kind="claim", subject=subject, verdict=held)
    why = f"{held}, and it is {row['now']:{TIME}}: the database's clock has run ahead, no worker renews it"
    return Leftover(kind="claim", subject=subject, verdict=why, act="end it")


def _at(claim: Mapping[str, Any]) -> str:
    return f"{claim['lease_until']:{TIME}}"


def _lease(row: Mapping[str, Any]) -> Leftover:
    return Leftover(
        kind="lease",
        subject=f"{row['lease_id']} of {row['holder']} on version {row['version']}",
        verdict=f"ends at {row['until']:{TIME}}, later than any may"
        if row["ahead"]
        else f"ended at {row['until']:{TIME}}",
        act="end it",
    )


def _dead_branches(stores: Ports, table: TableRow, lake: LakePlan, open_moves: Sequence[Move]) -> list[str]:
    """Branches of attempts that are over. While a move is open its worker may be making one: none is dropped."""
    if lake.way is Way.ADOPT or any(m.state is MoveState.PLANNED for m in open_moves):
        return []
    return [branch for view in table.views for branch in stores.upkeep.dead_branches(table, view=view)]


# -- acts ---------------------------------------------------------------------------------------------------


def _drop_branches(stores: Ports, table: TableRow, dead: Sequence[str], *, view: ViewName) -> None:
    """As expire does, in its place: one that sleeps here has lost its claim to expire, and changes nothing."""
    with claimed_once(stores.ledger, table, Stage.EXPIRE, lease=LEASE) as claim:
        if claim is None:
            raise TableHeld(f"{table.name}: a worker has taken expire meanwhile; it drops the branches")
        stores.lake.drop_branches(table, dead, view=view, claim=claim)


def _abandon(stores: Ports, table: TableRow, move: Move) -> None:
    with claimed_once(stores.ledger, table, move.stage, shard=move.shard, lease=LEASE) as claim:
        if claim is None:
            held = f"a worker has taken {move.stage} meanwhile; move {move.move_id} is left to it"
            raise TableHeld(f"{table.name}: {held}")
        stores.ledger.close_move(claim, move, state=MoveState.ABANDONED, error=GIVEN_UP)
