"""What is said of a COMMIT whose answer was lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import pytest

from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain
from harness_pipelines.ledgers.postgres import boundary
from harness_pipelines.ledgers.postgres.boundary import OUTCOME_CHECKS, CommitLost, resolved
from harness_pipelines.protocol.versions import Version, View

LOST = OutcomeUnknown("COMMIT was sent, its answer was lost")
PUBLISHED = Version(
    table_id=1,
    version=7,
    stream=View(metadata="7.json", snapshot=7),
    schema_version=1,
    bounds={},
    move_id=3,
    committed_at=datetime(2026, 1, 1, tzinfo=UTC),
)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What was waited for, instead of waiting."""
    found: list[float] = []
    monkeypatch.setattr("harness_pipelines.ledgers.postgres.boundary.time.sleep", found.append)
    return found


def answers(*given: Version | HarnessError | None) -> Callable[[], Version | None]:
    left: Iterator[Version | HarnessError | None] = iter(given)

    def ask() -> Version | None:
        told = next(left)
        if isinstance(told, HarnessError):
            raise told
        return told

    return ask


def test_an_answer_that_comes_at_once_is_not_waited_for(pauses: list[float]):
    assert resolved("a.b", LOST, answers(PUBLISHED)) == PUBLISHED
    assert pauses == []


def test_a_ledger_that_is_away_is_asked_again_after_a_pause(pauses: list[float]):
    away = [TryAgain("Postgres is not answering"), TryAgain("a lock was not granted"), LOST]

    assert resolved("a.b", LOST, answers(*away, PUBLISHED)) == PUBLISHED
    assert pauses == [boundary.PAUSE_S] * len(away)


def test_what_took_no_effect_may_be_tried_again(pauses: list[float]):
    with pytest.raises(CommitLost, match=r"a.b: COMMIT was sent.*did not take effect: try again"):
        resolved("a.b", LOST, answers(TryAgain("Postgres is not answering"), None))


def test_the_outcome_stays_unknown_when_the_ledger_cannot_be_asked(pauses: list[float]):
    with pytest.raises(OutcomeUnknown, match=r"a.b: COMMIT was sent.*gave no answer.*harness status a.b"):
        resolved("a.b", LOST, answers(*[TryAgain("Postgres is not answering")] * OUTCOME_CHECKS))
    assert len(pauses) == OUTCOME_CHECKS - 1
