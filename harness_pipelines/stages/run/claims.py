"""Holding a claim: take it when free, have it renewed, release it at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from harness_pipelines import faults
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim, FencedOut, Stage, ahead, is_ahead
from harness_pipelines.stages.run.renewals import Renewals

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Ledger

log = structlog.get_logger(__name__)
WAIT_SHOWN_EVERY_S = 60.0  #: how often the log has whom a stand-by waits for


def take_all(
    ledger: Ledger, keepers: Collection[ClaimKeeper], tables: Collection[TableRow], *, holder: str, lease: timedelta
) -> None:
    """Take the claims of *keepers*, all of *tables*, that are free: one statement, and one that reads the tables again.

    Nothing is done under these claims yet. What is not taken, each keeper asks for by itself. So does each if the
    ledger does not answer.
    """
    wanted = {keeper.place: keeper for keeper in keepers if not keeper.is_held}
    for keeper in wanted.values():
        keeper.expect()
    try:
        taken = {(one.table_id, one.stage): one for one in ledger.claim_all(list(wanted), holder=holder, lease=lease)}
        # Read while the claims are held: from here on nobody else changes how records are decoded.
        now = {row.table_id: row.spec for row in ledger.survey([table.name for table in tables])[0]} if taken else {}
    except HarnessError as away:
        log.info("claims.not_taken", error=str(away))
        return
    known = {table.table_id for table in tables if now.get(table.table_id) == table.spec}
    for (number, stage), keeper in wanted.items():
        keeper.take(taken.get((number, stage)), is_checked=number in known)


class ClaimKeeper:
    """One stage of one shard, and this holder's claim to it.

    `current` is safe to call from any thread. A claim that was lost is forgotten, and `acquire` may take it again.
    """

    def __init__(
        self,
        ledger: Ledger,
        table: TableRow,
        stage: Stage,
        *,
        holder: str,
        lease: timedelta,
        check_spec: Callable[[], None] | None = None,
        give_up: Callable[[], None] | None = None,
        renewals: Renewals | None = None,
    ) -> None:
        """*check_spec* is asked after each take-over, until it does not raise: is the table what the holder knows?

        *give_up* ends what is still done under a claim that was lost, and does not wait for it. It is called again
        until the claim is asked for next. *renewals* are those of the holder's other claims; without them the claim is
        renewed alone.
        """
        self._ledger, self._table, self._stage = ledger, table, stage
        self._check_spec, self._checked = check_spec, False
        self._give_up = give_up
        self._holder, self._lease = holder, lease
        self._claim: Claim | None = None
        self._asks = False  #: what interrupted it, as Ctrl-C does an own mover, left it without the answer
        self._waits_for: str | None = None
        self._shown_at = 0.0  # monotonic seconds
        self._lock = threading.Lock()
        self._renewals = renewals or Renewals(ledger, lease)
        self._is_alone = renewals is None
        self._is_released = False

    def acquire(self) -> bool:
        """Take the claim if it is free; True if this worker holds it now.

        Raises: ClaimAhead, where waiting for the other one is of no use; what *check_spec* raises.
        """
        with self._lock:
            if self._claim is None:
                self._checked = self._is_released = False
                faults.point(f"{self._stage}.before_claim")
                self._asks = True
                self._claim = self._ledger.claim(
                    self._table, self._stage, shard=0, holder=self._holder, lease=self._lease
                )
                self._asks = False
                if self._claim is not None:
                    log.info("claim.taken", table=self._table.name, stage=self._stage, epoch=self._claim.epoch)
                    faults.point(f"{self._stage}.after_claim")
            if self._claim is None:
                self._look_at_holder()
                return False
            self._renewals.add(self)
        if self._check_spec is not None and not self._checked:
            self._check_spec()
            self._checked = True
        return True

    @property
    def place(self) -> tuple[int, Stage]:
        """What it claims: the number of the table, and the stage."""
        return self._table.table_id, self._stage

    def expect(self) -> None:
        """Somebody asks for the claim, with those of other keepers: the ledger may have it from now on."""
        self._asks = True

    def take(self, claim: Claim | None, *, is_checked: bool) -> None:
        """What came of that: *claim*, with the table as its holder knows it if *is_checked*; None: it is not free."""
        self._asks = False
        if claim is None:
            return
        with self._lock:
            self._claim, self._checked, self._is_released = claim, is_checked, False
        log.info("claim.taken", table=self._table.name, stage=self._stage, epoch=claim.epoch)
        self._renewals.add(self)

    def _look_at_holder(self) -> None:
        """Log whom this stand-by waits for, now and then. Raises: ClaimAhead."""
        if (found := self._ledger.claimed(self._table, self._stage, shard=0)) is None:
            return
        claim, now = found
        if is_ahead(claim.lease_until, now=now):
            raise ahead(self._table.name, claim, now=now)
        if self._waits_for != claim.holder or time.monotonic() >= self._shown_at + WAIT_SHOWN_EVERY_S:
            self._waits_for, self._shown_at = claim.holder, time.monotonic()
            until = claim.lease_until.isoformat(sep=" ", timespec="seconds")
            log.info(
                "claim.held_elsewhere", table=self._table.name, stage=self._stage, holder=claim.holder, until=until
            )

    @property
    def is_held(self) -> bool:
        return self._claim is not None

    @property
    def held(self) -> Claim | None:
        """The claim as it was last renewed; None: it is not held."""
        return self._claim

    def current(self) -> Claim:
        """The claim as it was last renewed. Raises: FencedOut when it was lost."""
        claim = self._claim
        if claim is None:
            raise FencedOut(f"{self._table.name}: {self._stage} is not claimed by this worker")
        return claim

    def doubt(self) -> None:
        """After a FencedOut: keep the claim only if the ledger still renews it.

        Threads share a claim, so the fence that one of them ran into may be of an epoch that another one has
        already replaced.
        """
        if (claim := self._claim) is None:
            return
        try:
            self.renewed(claim, self._ledger.renew(claim, lease=self._lease))
        except FencedOut as lost:
            self.renewed(claim, lost)
        except HarnessError as away:  # the lease may still be alive when the database is back
            log.info("claim.not_renewed", table=self._table.name, stage=self._stage, error=str(away))

    def release(self) -> None:
        """Give the claim back; the next holder starts at once."""
        if not self.leave():
            return
        try:
            self._ledger.release_of(self._table, self._stage, shard=0, holder=self._holder)
        except HarnessError as away:  # its lease ends by itself
            log.info("claim.release_failed", table=self._table.name, stage=self._stage, error=str(away))

    def leave(self) -> bool:
        """Forget the claim, and renew it no more; True: the ledger may still have it."""
        self._renewals.remove(self)
        if self._is_alone:
            self._renewals.end()
        with self._lock:
            claim, self._claim = self._claim, None
            self._is_released = True
        if claim is not None:
            faults.point(f"{self._stage}.before_release")
        return claim is not None or self._asks

    def renewed(self, before: Claim, now: Claim | FencedOut) -> None:
        """What became of the claim that was *before*."""
        if isinstance(now, FencedOut):
            log.info("claim.lost", table=self._table.name, stage=self._stage, error=str(now))
        with self._lock:
            if self._claim is before:
                self._claim = None if isinstance(now, FencedOut) else now
        self.end_work()

    def end_work(self) -> None:
        """Without the claim nothing can be published: work that continued would only slow down the next holder's."""
        # Who has the lock asks for the claim, and may wait for Postgres; all other claims are renewed meanwhile.
        if self._give_up is None or not self._lock.acquire(blocking=False):
            return
        try:  # nobody takes the claim, and begins new work under it, meanwhile
            if self._claim is None and not self._is_released:
                self._give_up()
        finally:
            self._lock.release()
