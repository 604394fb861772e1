"""The common loop of publishing stages: finish the open move first, retry, halve, and stop with a named error."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError, OutcomeUnknown, Recovery, TryAgain
from harness_pipelines.ports.access import HasLake, HasLedger
from harness_pipelines.ports.errors import BaseGone
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.bounds import Vector
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.lake.files import FilesGone
from harness_pipelines.protocol.lake.overlays import OverlaysMoved
from harness_pipelines.protocol.moves import ATTEMPTS_MAX, Move, MoveState, MoveStuck, can_halve, halve
from harness_pipelines.protocol.schema.schemas import SchemaMoved, check_schema
from harness_pipelines.protocol.versions import Version, check_base


class Ports(HasLake, HasLedger, Protocol):
    """The ports that it uses."""


class Pointless(HarnessError):
    """The staged files bring no improvement; the table stays unchanged."""

    recovery = Recovery.REFRESH


class TooLarge(HarnessError):
    """The engine that does the move now takes less at once than the one that it was planned for: plan it again."""

    recovery = Recovery.REFRESH


PLANS_MAX = 3  #: moves that one call plans, because what the one before was planned on is gone
FAILURES_MAX = 3  #: attempts that failed by themselves before a move is halved
_UNRANGED = {Stage.OTREE: "regions due", Stage.COMPACT: "small files"}


@dataclass(slots=True)
class Tally:
    """What became of the moves of one stage in this process; written by the thread of the stage."""

    committed: int = 0
    failed: int = 0  #: attempts that an error ended, an outage too
    given_up: int = 0  #: moves that were closed without effect
    records: int = 0  #: in the files of the committed ones
    bytes: int = 0  #: of these files
    cpu_s: float = 0.0  #: of the thread, for all moves


class StagedAttempt(Protocol):
    """What an attempt leaves behind."""

    @property
    def staged(self) -> Staged: ...


Attempt = TypeVar("Attempt", bound=StagedAttempt)


class Mover(Protocol[Attempt]):
    """The three steps of one stage for one table."""

    @property
    def name(self) -> Stage: ...

    def plan(self, claim: Claim, *, trigger: str, run_id: str | None, below: Vector | None = None) -> Move | None:
        """Record a move of what there is, or ``None``. *below* caps it per partition."""

    def stage(self, move: Move) -> Attempt:
        """Write the files of one attempt to its branch, and check what was written."""

    def publish(self, claim: Claim, move: Move, attempt: Attempt) -> Version:
        """Make the staged files part of the table: the boundary commit."""


class Moving(Generic[Attempt]):
    """Runs the moves of one stage of a table."""

    def __init__(self, stores: Ports, table: TableRow, mover: Mover[Attempt], *, tally: Tally | None = None) -> None:
        self._stores, self._table, self._mover = stores, table, mover
        self._tally = tally or Tally()

    def once(self, claim: Claim, *, trigger: str, run_id: str | None) -> Version | None:
        """Finish the open move, or make a new one; ``None`` when there is nothing to move.

        Raises: MoveStuck, FencedOut, ForeignCommit (NEVER); SchemaMoved, read the table again; BaseGone, FilesGone,
        OverlaysMoved, TooLarge where each of several plans was overtaken; TryAgain when Spark or a store is away.
        """
        for _ in range(PLANS_MAX - 1):
            with suppress(BaseGone, FilesGone, OverlaysMoved, TooLarge):
                return self._once(claim, trigger=trigger, run_id=run_id)
        return self._once(claim, trigger=trigger, run_id=run_id)

    def _once(self, claim: Claim, *, trigger: str, run_id: str | None) -> Version | None:
        """Run one move. If its base or inputs are gone it is closed, and the next one plans on the current head."""
        began_s = time.thread_time()
        try:
            return self._counted(claim, trigger=trigger, run_id=run_id)
        finally:
            self._tally.cpu_s += time.thread_time() - began_s

    def _counted(self, claim: Claim, *, trigger: str, run_id: str | None) -> Version | None:
        ledger, table = self._stores.ledger, self._table
        now = ledger.head(table).schema_version
        check_schema(table.name, planned=table.schema_version, found=now, what=f"{self._mover.name} began")
        move = self._open_or_plan(claim, trigger=trigger, run_id=run_id)
        if move is None:
            return None
        faults.point(f"{self._mover.name}.after_plan")
        try:
            attempt = self._mover.stage(move)
            faults.point(f"{self._mover.name}.after_files")
            published = self._mover.publish(claim, move, attempt)
        except Pointless as why:
            self._give_up(claim, move, state=MoveState.ABANDONED, error=str(why))
            return None
        except TooLarge as error:
            self._give_up(claim, move, state=MoveState.ABANDONED, error=str(error))
            raise
        except (BaseGone, FilesGone, OverlaysMoved) as gone:
            self._give_up(claim, move, state=MoveState.ABANDONED, error=str(gone))
            check_ours(self._stores, self._table, move)
            raise
        except SchemaMoved as moved:
            self._give_up(claim, move, state=MoveState.ABANDONED, error=str(moved))
            raise
        except HarnessError as error:
            self._tally.failed += 1
            counts = error.recovery is not Recovery.NEVER and not isinstance(error, TryAgain | OutcomeUnknown)
            with suppress(TryAgain, OutcomeUnknown):  # the first error is reported, not the failure to record it
                ledger.note_failure(move, error=str(error), counts=counts)
            raise
        self._tally.committed += 1
        self._tally.records += attempt.staged.rows
        self._tally.bytes += attempt.staged.bytes
        return published

    def _give_up(self, claim: Claim, move: Move, *, state: MoveState, error: str) -> None:
        self._stores.ledger.close_move(claim, move, state=state, error=error)
        self._tally.given_up += 1

    def _open_or_plan(self, claim: Claim, *, trigger: str, run_id: str | None) -> Move | None:
        ledger, name = self._stores.ledger, self._mover.name
        found = ledger.open_move(self._table, name, shard=claim.shard)
        if found is None:
            return self._mover.plan(claim, trigger=trigger, run_id=run_id)
        if found.state is MoveState.QUARANTINED:
            raise MoveStuck(
                f"{self._table.name}: {name} move {found.move_id} of {shown(found)} failed in every attempt and holds "
                f"the stage; {self._way_on}"
            )
        failures = ledger.note_failure(found, error=None, counts=False)
        # Before the attempt is taken, the one before it may still be published: its COMMIT may be under way.
        move = ledger.take_attempt(claim, found, run_id=run_id)
        if move.schema_version != self._table.schema_version:
            other = f"planned with schema {move.schema_version}, the table is at {self._table.schema_version}"
            self._give_up(claim, move, state=MoveState.ABANDONED, error=other)
            return self._mover.plan(claim, trigger=trigger, run_id=run_id)
        # What takes Spark or the worker down with it looks like an outage, which counts as no failure. After a mere
        # outage half of a move is as good a beginning as all of it.
        if failures >= FAILURES_MAX or (found.attempt >= ATTEMPTS_MAX and can_halve(found)):
            return self._smaller(claim, move, run_id=run_id)
        return move

    @property
    def _way_on(self) -> str:
        name = self._table.name
        return (
            f"see its error in `harness status {name}`, repair the cause, stop the worker, then "
            f"`harness run {name} --retry-stuck`"
        )

    def _smaller(self, claim: Claim, failed: Move, *, run_id: str | None) -> Move | None:
        """After too many attempts take half the range; what cannot be halved holds the stage by name."""
        if not can_halve(failed):
            self._give_up(claim, failed, state=MoveState.QUARANTINED, error="every attempt failed")
            raise MoveStuck(
                f"{self._table.name}: {failed.stage} move {failed.move_id} of {shown(failed)} failed in every attempt; "
                f"{self._way_on}"
            )
        self._give_up(claim, failed, state=MoveState.ABANDONED, error="halved after failed attempts")
        return self._mover.plan(claim, trigger="halved", run_id=run_id, below=halve(failed.lo, failed.hi))


def make_branch(stores: Ports, table: TableRow, move: Move) -> Version:
    """The branch of the attempt, from the move's base, which is returned.

    Raises: BaseGone (plan the move again), ForeignCommit.
    """
    base = base_of(stores, table, move)
    view = table.effects[move.stage].view
    try:
        stores.lake.make_branch(table, move, base.views[view])
    except BaseGone:
        check_ours(stores, table, move)
        raise
    faults.point(f"{move.stage}.during_files")
    return base


def check_ours(stores: Ports, table: TableRow, move: Move) -> None:
    """A new plan helps only where the head's own snapshot is there to build on. Raises: ForeignCommit."""
    view = table.effects[move.stage].view
    head, main = stores.ledger.head(table), stores.lake.main_snapshot(table, view=view)
    if stores.ledger.head(table).version == head.version:  # so both are of one instant
        check_base(head, main, table=table.name, view=view)


def base_of(stores: Ports, table: TableRow, move: Move) -> Version:
    """The version that the move was planned on. Raises: BaseGone."""
    base = stores.ledger.version(table, move.base_version)
    if base is None:
        raise BaseGone(f"{table.name}: version {move.base_version}, the base of move {move.move_id}, is not retained")
    return base


def shown(move: Move) -> str:
    """What a move takes, for people."""
    if move.recall is not None:
        return f"request {move.recall} to recall or release rows"
    return ", ".join(f"partition {r.partition} [{r.low}, {r.high})" for r in move.ranges) or _UNRANGED[move.stage]
