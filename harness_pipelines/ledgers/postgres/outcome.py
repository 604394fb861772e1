"""Resolve a COMMIT whose answer was lost: read the ledger under the locks of that commit."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from harness_pipelines.errors import OutcomeUnknown, TryAgain
from harness_pipelines.protocol.versions import Version

log = structlog.get_logger(__name__)
OUTCOME_CHECKS = 5  #: a COMMIT is mostly lost because Postgres goes away, so the first question may be lost as well
PAUSE_S = 2.0  #: before the next one


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
            log.info("outcome.not_told", table=table, error=str(away))
            continue
        if found is None:
            raise CommitLost(f"{table}: {unknown}; the ledger shows that it did not take effect: try again")
        return found
    raise OutcomeUnknown(
        f"{table}: {unknown}; the ledger was asked {OUTCOME_CHECKS} times what became of it and gave no answer. "
        f"`harness status {table}` shows it when Postgres is back: look before you repeat the command"
    ) from unknown
