"""Error handling of stages: report, wait, retry; and restarting a stopped table.

One mechanism for all units of all stages: whatever is met again before the unit did any work is shown, and the pauses
grow. So nothing repeats unseen, whatever it is called.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import structlog

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.pauses import jittered
from harness_pipelines.ports.errors import SparkInterrupted
from harness_pipelines.ports.ledger import Stopped, TableRow
from harness_pipelines.protocol.claims import FencedOut, Stage
from harness_pipelines.protocol.schema.schemas import SchemaMoved, SpecDisagrees
from harness_pipelines.stages.run.progress import TableProgress

if TYPE_CHECKING:
    from harness_pipelines.ports.ledger import Ledger

log = structlog.get_logger(__name__)
WAIT_S_MIN, BACKOFF_S_MAX = 0.1, 5.0
COUNTED_S = 1.0  #: at least, after a failure that counts against a move: what heals in seconds shall not halve it
BROKEN_S_MIN, BROKEN_S_MAX = 10.0, 300.0  #: how long a stage is held after an unexpected error


class StageBroken(HarnessError):
    """A stage of one table met an error that has no name; it is held, and what else the worker does continues."""

    way_on = "the traceback is in the worker's log, at `stage.broken`: report it; the stage is tried again by itself"


class Sufferer(Protocol):
    """The table of a unit, and the errors that the unit recorded for it."""

    table: TableRow
    progress: TableProgress
    fatal: HarnessError | None

    @property
    def ledger(self) -> Ledger: ...
    def reload(self) -> None: ...
    def doubt(self, stage: str) -> None: ...


class Backoff:
    """Waits longer after each failure, shows the trouble, and forgets it after the next success of the same unit."""

    def __init__(self, owner: Sufferer, stage: str) -> None:
        self._owner, self.stage = owner, stage
        self._wait_s, self._broken_s = WAIT_S_MIN, BROKEN_S_MIN
        self._unseen = 0  # errors since the unit last worked that were not shown
        self._trouble: HarnessError | None = None
        self.held_until = 0.0  #: on the monotonic clock
        self.worked_at = -float("inf")  #: on the monotonic clock, while the claim was held

    @property
    def is_in_trouble(self) -> bool:
        return self._trouble is not None

    def reset(self) -> None:
        """The unit did its work: its trouble is over. That of another unit of the stage is not."""
        self.over()
        self.worked_at = time.monotonic()

    def over(self, *, by_work: bool = True) -> None:
        """An error that the unit itself showed has ended; after the worker ends, only the ledger keeps it."""
        owner = self._owner
        self._wait_s, self._broken_s, self._unseen = WAIT_S_MIN, BROKEN_S_MIN, 0
        over, self._trouble = self._trouble, None
        if over is None:
            return
        if owner.progress.trouble.get(self.stage) == str(over):
            del owner.progress.trouble[self.stage]
        if owner.fatal is over:
            owner.fatal = None
            if by_work:
                with suppress(HarnessError):
                    owner.ledger.start_table(owner.table, str(over))

    def failed(self, error: HarnessError, *, pause_s: float = 0.0) -> float:
        """Show *error*; the seconds to wait before the next try: where a person is needed *pause_s* at least.

        That the claim or the schema went to another one is met once in the ordinary course of things.
        """
        if isinstance(error, SparkInterrupted):
            return 0.0
        if isinstance(error, FencedOut):
            self._owner.doubt(self.stage)
        if isinstance(error, SchemaMoved | SpecDisagrees):
            self._owner.reload()
        if isinstance(error, FencedOut | SchemaMoved) and not self._unseen:
            self._unseen = 1
            return 0.0
        self._show(error, stops=error.recovery is Recovery.NEVER and not isinstance(error, FencedOut))
        if self.stage != Stage.INGEST and not isinstance(error, TryAgain):
            self._wait_s = max(self._wait_s, COUNTED_S)
        pause = jittered(self._wait_s)
        self._wait_s = min(self._wait_s * 2, BACKOFF_S_MAX)
        return max(pause, pause_s if error.recovery is Recovery.NEVER else 0.0)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """An unexpected error holds the stage for a while, by name; the traceback is in the log."""
        try:
            yield
        except Exception as error:  # the outer edge of a stage
            name, hold_s = self._owner.table.name, self._broken_s
            broken = StageBroken(
                f"{name}: {self.stage} met an error that has no name, {type(error).__name__}: {error}; the worker's "
                f"log has the traceback. It is tried again in {hold_s:.0f} s, all else continues"
            )
            broken.__cause__ = error
            self._show(broken, stops=True)
            log.exception("stage.broken", table=name, stage=self.stage, error=str(error))
            self.held_until, self._broken_s = time.monotonic() + hold_s, min(hold_s * 2, BROKEN_S_MAX)

    def _show(self, error: HarnessError, *, stops: bool) -> None:
        owner, self._trouble = self._owner, error
        owner.progress.errors[self.stage] += 1
        shown = owner.progress.trouble
        if shown.get(self.stage) != str(error):
            log.warning("stage.failed", table=owner.table.name, stage=self.stage, error=str(error))
        shown[self.stage] = str(error)
        if stops:
            owner.fatal = error
            with suppress(HarnessError):
                owner.ledger.stop_table(owner.table, str(error), stage=self.stage)


@dataclass(slots=True)
class Restart:
    """A table that is stopped starts again once its stage works, whoever had stopped it.

    What is compared is what the ledger says of the table, and since when this worker knows it: every unit of the stage
    has to work after that.
    """

    owner: Sufferer
    units: Sequence[Backoff]
    found: Stopped | None = None
    since: float = 0.0  #: monotonic seconds

    def look(self, now: Stopped | None, asked_at: float) -> None:
        """Take what the table was stopped by *now*, *asked_at*, and clear it where this worker is past it.

        Raises: what the ledger raises.
        """
        if now != self.found:
            self.found, self.since = now, asked_at
        if self.found is None:
            return
        concerned = [t for t in self.units if self.found.stage in (None, t.stage)]
        if concerned and all(t.worked_at > self.since and not t.is_in_trouble for t in concerned):
            self.owner.ledger.start_table(self.owner.table, self.found.why)
            log.info("table.resumed", table=self.owner.table.name, stage=self.found.stage, was=self.found.why)
