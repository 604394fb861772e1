"""New partitions of a topic join its append table automatically; they stop ingest of a keyed table."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import HasLedger, HasLog, HasSegments
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.stages.ingest import ingest
from harness_pipelines.stages.run.trouble import Backoff

log = structlog.get_logger(__name__)
PARTITIONS_EVERY_S = 5.0
STANDBY_S = 0.25  #: between the looks of one that found partitions and does not hold the claim


class Ports(HasLedger, HasLog, HasSegments, Protocol):
    """The ports that it uses."""


class Joins(Protocol):
    """The table that partitions join, and the claim of the stage that reads its log."""

    table: TableRow

    @property
    def stores(self) -> Ports: ...

    @property
    def stop(self) -> threading.Event: ...


class Joiner:
    """Looks for partitions now and then, at once when it begins, and whenever it is asked to."""

    def __init__(self, owner: Joins, claim: Callable[[], Claim | None]) -> None:
        self._owner, self._claim = owner, claim
        self._asked = threading.Event()
        self.generation = 0  #: how often the partitions to read have changed
        self.joined_at = -math.inf  #: monotonic seconds, when partitions joined last
        self._known: frozenset[int] | None = None  # partitions of the table at the last look
        self._complete_at = -math.inf  # when a look began that found all of them known

    def knows_all_since(self, moment: float) -> bool:
        """Was there a look after *moment* that found nothing to join? If not, the next one comes at once."""
        if self._complete_at >= moment:
            return True
        self._asked.set()
        return False

    def wake(self) -> None:
        """End the pause."""
        self._asked.set()

    def forever(self, backoff: Backoff) -> None:
        """Look until the worker ends."""
        while not self._owner.stop.is_set():
            self._asked.clear()
            began_at = time.monotonic()
            try:
                is_complete = self._look()
                backoff.reset()
            except HarnessError as error:
                self._owner.stop.wait(backoff.failed(error))
                continue
            if is_complete:
                self._complete_at = began_at
                self._asked.wait(PARTITIONS_EVERY_S)
            elif self.joined_at < began_at:
                self._owner.stop.wait(STANDBY_S)

    def _look(self) -> bool:
        """True: the table knows all partitions of its topic. Raises: PartitionsGrown, FencedOut, what the log does."""
        table, stores = self._owner.table, self._owner.stores
        known = stores.segments.positions(table)
        if self._known is not None and self._known != known.keys():
            self.generation += 1  # they joined, and the answer of the commit may have been lost
        self._known = frozenset(known)
        starts = ingest.join_partitions(table, stores.log, known=known)
        if not starts:
            return True
        if table.spec.key:
            self.generation += 1  # ingest finds out too, and stops
            raise partitions_grown(table.name, known=known, added=set(starts))
        if (claim := self._claim()) is None:
            return False
        stores.ledger.add_partitions(claim, starts)
        self.joined_at = time.monotonic()
        log.info("ingest.partitions_joined", table=table.name, partitions=sorted(starts))
        return False
