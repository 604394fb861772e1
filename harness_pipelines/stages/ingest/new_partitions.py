"""New partitions of a topic join its append table automatically; they stop ingest of a keyed table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from harness_pipelines.ports.access import HasLedger, HasLog, HasSegments
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.claims import Claim
from harness_pipelines.protocol.keys import partitions_grown
from harness_pipelines.stages.ingest import ingest

log = structlog.get_logger(__name__)
PARTITIONS_EVERY_S = 5.0  #: how often topics are described
STANDBY_S = 0.25  #: between the looks of one that found partitions and does not hold the claim


class Ports(HasLedger, HasLog, HasSegments, Protocol):
    """The ports that it uses."""


class Joins(Protocol):
    """The table that partitions join, and the claim of the stage that reads its log."""

    table: TableRow

    @property
    def stores(self) -> Ports: ...


class Joiner:
    """Finds partitions of a topic that its table does not have."""

    def __init__(self, owner: Joins, claim: Callable[[], Claim | None], ask: Callable[[], None]) -> None:
        """*claim* is that of the stage that reads the log, if it is held; *ask* lets `look` be called soon."""
        self._owner, self._claim, self._ask = owner, claim, ask
        self.generation = 0  #: how often the partitions to read have changed
        self.joined_at = -math.inf  #: monotonic seconds, when partitions joined last
        self._known: frozenset[int] | None = None  # partitions of the table at the last look
        self._complete_at = -math.inf  # when a look began that found all of them known

    def knows_all_since(self, moment: float) -> bool:
        """Was there a look after *moment* that found nothing to join? If not, one is asked for."""
        if self._complete_at >= moment:
            return True
        self._ask()
        return False

    def look(self) -> bool:
        """Look once; True: the table knows all partitions of its topic.

        Raises: PartitionsGrown, FencedOut, what the log does.
        """
        began_at = time.monotonic()
        table, stores = self._owner.table, self._owner.stores
        known = stores.segments.positions(table)
        if self._known is not None and self._known != known.keys():
            self.generation += 1  # they joined, and the answer of the commit may have been lost
        self._known = frozenset(known)
        starts = ingest.join_partitions(table, stores.log, known=known)
        if not starts:
            self._complete_at = began_at
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
