"""Commit the units of many tables in one transaction: each then costs its rows, and all share what a commit costs.

A unit that is large, or that has records to refuse, comes after the others, by itself; so does one that waits for
another system. Where the transaction fails, nothing of it was written, and each unit is committed by itself: a table
that is sick meets its error alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import structlog

from harness_pipelines.errors import DatabaseAway, HarnessError, OutcomeUnknown
from harness_pipelines.ports.buffer import WriterUnit
from harness_pipelines.ports.decoded import DecodedRange
from harness_pipelines.ports.errors import KafkaUnreachable
from harness_pipelines.ports.source import Log, TopicIdentity, added_partitions
from harness_pipelines.stages.ingest.ingest import Ready, Steps, with_digests

log = structlog.get_logger(__name__)
T = TypeVar("T")
RECORDS_MAX = 512  #: of a unit that is committed with others
BYTES_MAX = 2**20  #: of its rows


@dataclass(slots=True, eq=False)
class _Run(Generic[T]):
    """One unit: where its steps wait, or what they came to."""

    steps: Steps[T]
    ready: Ready | None = None  #: what is to be committed; None: something slow comes, or it is over
    is_over: bool = False
    result: T | None = None

    def go_on(self, resume: Callable[[], Ready | None]) -> None:
        """Let the steps go on by *resume* up to where they wait next."""
        try:
            self.ready = resume()
        except StopIteration as done:
            self.ready, self.is_over, self.result = None, True, done.value

    def begin(self) -> None:
        self.go_on(lambda: next(self.steps))

    def send(self, rows: int) -> None:
        self.go_on(lambda: self.steps.send(rows))

    def throw(self, error: BaseException) -> None:
        self.go_on(lambda: self.steps.throw(error))

    def finish(self) -> T:
        """Do all that is left, each commit by itself."""
        while not self.is_over:
            try:
                rows = 0 if self.ready is None else self.ready.commit()
            except BaseException as error:  # the steps handle what they can, whatever it is
                self.throw(error)
            else:
                self.send(rows)
        return self.result  # type: ignore[return-value]  # it is there once they are over


def together(units: Sequence[Steps[T]], stream: Log) -> list[T]:
    """What each of *units* comes to, with as few transactions as there can be. Raises: what they do not handle."""
    runs = [_Run(steps) for steps in units]
    for run in runs:
        run.begin()
    small = [run for run in runs if run.ready is not None and is_small(run.ready.ranges)]
    if len(small) > 1:
        _commit(small, stream)
    return [run.finish() for run in runs]


def is_small(ranges: Sequence[DecodedRange]) -> bool:
    """A unit of *ranges* holds up no others: it has few rows, and no record that is refused or counted."""
    if any(r.refused or r.violations or r.filtered for r in ranges):
        return False
    bytes_: int = sum(r.rows.get_total_buffer_size() for r in ranges)  # `nbytes` looks at each column
    return sum(r.rows.num_rows for r in ranges) <= RECORDS_MAX and bytes_ <= BYTES_MAX


def _commit(runs: Sequence[_Run[T]], stream: Log) -> None:
    """Commit those of *runs* that nothing speaks against in one transaction; the others still wait afterwards."""
    units: list[tuple[_Run[T], WriterUnit]] = []
    try:
        units = _units(runs, stream)
        if len(units) < 2:
            return
        rows = units[0][1].writer.commit_all([unit for _, unit in units], confirm=_is_confirmed)
    except (OutcomeUnknown, DatabaseAway) as error:
        for run, _ in units:
            run.throw(_of_one(error, run))
    except HarnessError as error:  # of one of them: nothing was written, and each meets its own by itself
        log.info("ingest.apart", table=None, tables=len(units), error=str(error))
    except Exception as error:  # raised further it would end the worker of all tables; by itself a sick one is named
        log.exception("ingest.group_broken", table=None, tables=len(units), error=str(error))
    else:
        for (run, _), count in zip(units, rows, strict=True):
            run.send(count)


def _units(runs: Sequence[_Run[T]], stream: Log) -> list[tuple[_Run[T], WriterUnit]]:
    """Those of *runs* that can be committed together, with digests. Raises: what asking for the topics of all does."""
    topics = {run.ready.table.spec.topic for run in runs if run.ready is not None}
    found = stream.identities(topics)  # after their records were read
    fit = [(run, *unit) for run in runs if (unit := _unit(run, found)) is not None]
    ranges = with_digests([(ready.table, unit.ranges) for _, ready, unit in fit])
    return [(run, replace(unit, ranges=one)) for (run, _, unit), one in zip(fit, ranges, strict=True)]


def _unit(run: _Run[T], found: dict[str, TopicIdentity | HarnessError]) -> tuple[Ready, WriterUnit] | None:
    """What is to be committed of *run*; None: it must be looked at by itself, or has had its error."""
    ready = run.ready
    assert ready is not None
    identity = found[ready.table.spec.topic]
    if isinstance(identity, KafkaUnreachable):  # asked by itself it would wait once more
        run.throw(identity)
        return None
    try:
        if isinstance(identity, HarnessError):
            return None
        added_partitions(ready.table.identity, identity)
        return ready, WriterUnit(writer=ready.writer, segment=ready.segment.current(), ranges=ready.ranges)
    except HarnessError:
        return None


def _of_one(error: OutcomeUnknown | DatabaseAway, run: _Run[T]) -> HarnessError:
    """*error* of a transaction of several tables, for one of them."""
    if isinstance(error, DatabaseAway) or run.ready is None:
        return error
    return OutcomeUnknown(f"{run.ready.table.name}: with other tables: {error}")


def _is_confirmed() -> None:
    """The topics were asked for after their records were read."""
