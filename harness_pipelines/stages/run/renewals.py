"""Renewing the claims of one holder: one thread, and one statement for all of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.protocol.claims import Claim, FencedOut

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Ledger

log = structlog.get_logger(__name__)
RENEWALS_PER_LEASE = 3
END_S = 2.0  #: how long the end waits for a statement that is under way


class Renewed(Protocol):
    """A keeper of one claim."""

    @property
    def held(self) -> Claim | None: ...
    def renewed(self, before: Claim, now: Claim | FencedOut) -> None: ...
    def end_work(self) -> None: ...


class Renewals:
    """The claims of one holder, renewed as long as their keepers have them. Thread-safe."""

    def __init__(self, ledger: Ledger, lease: timedelta) -> None:
        self._ledger, self.lease = ledger, lease
        self._keepers: set[Renewed] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, keeper: Renewed) -> None:
        """Renew the claim of *keeper* from now on."""
        with self._lock:
            self._keepers.add(keeper)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="renewals", daemon=True)
                self._thread.start()

    def remove(self, keeper: Renewed) -> None:
        """Leave the claim of *keeper* alone."""
        with self._lock:
            self._keepers.discard(keeper)

    def end(self) -> None:
        """Renew nothing more. A server that hangs is not waited for."""
        self._ended.set()
        if self._thread is not None and self._thread.ident is not None:  # None: interrupted before its start
            self._thread.join(END_S)

    def _run(self) -> None:
        while not self._ended.wait(self.lease.total_seconds() / RENEWALS_PER_LEASE):
            try:
                self._round()
            except HarnessError as away:  # the leases may still be alive when the database is back
                log.info("claims.not_renewed", error=str(away))
            except Exception:  # without this thread the claims would be lost without a trace
                log.exception("claims.renewal_broken")

    def _round(self) -> None:
        with self._lock:
            keepers = list(self._keepers)
        held = {claim: keeper for keeper in keepers if (claim := keeper.held) is not None}
        for keeper in keepers:
            if keeper.held is None:
                keeper.end_work()
        self._tell(held, self._ledger.renew_all(list(held), lease=self.lease) if held else {})

    def _tell(self, held: Mapping[Claim, Renewed], found: Mapping[Claim, Claim | FencedOut]) -> None:
        for claim, now in found.items():
            held[claim].renewed(claim, now)
