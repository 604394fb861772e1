"""What the errors of Postgres are called."""

from __future__ import annotations

import psycopg
import pytest

from harness_pipelines.drivers.postgres import LedgerBusy, explained


def test_of_two_sessions_that_waited_for_each_other_one_may_try_again():
    with pytest.raises(LedgerBusy, match="try again: deadlock detected; nothing was written"), explained("host=a"):
        raise psycopg.errors.DeadlockDetected("deadlock detected")
