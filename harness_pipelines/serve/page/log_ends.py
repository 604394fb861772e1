"""Ends of the Kafka logs, queried in the background: the page never waits for Kafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.errors import KafkaUnreachable
from harness_pipelines.secret import redact
from harness_pipelines.show.status import open_log

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness
    from harness_pipelines.app.table import Table
    from harness_pipelines.ports.ledger import PartitionStatus, TableRow
    from harness_pipelines.ports.source import Log, OpenTransaction, Watermark

PAUSE_S = 0.5  #: between two rounds
EVERY_S = 3.0  #: a table that is not open in a browser is polled
AWAY_PAUSE_S = 3.0
END_S = 2.0
OLD_S = 10.0  #: an end that was seen longer ago counts as unknown


@dataclass(frozen=True, slots=True)
class _Answer:
    ends: Mapping[int, int]
    trouble: str | None
    at: float  #: monotonic seconds
    held: Mapping[int, OpenTransaction] = field(default_factory=dict)  #: of the table that is open


class LogEnds:
    """Ends of all tables' topics. It queries Kafka in rounds while a browser asks for the page."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self._log: Log | None = None
        self._tables: list[TableRow] = []
        self._opened: str | None = None
        self._answers: dict[int, _Answer] = {}
        self._looked, self._over = threading.Event(), threading.Event()
        self.trouble: str | None = None  #: why Kafka as a whole is not asked
        self._thread = threading.Thread(target=self._run, name="status-page-ends", daemon=True)
        self._thread.start()

    def look_at(self, tables: Iterable[TableRow], *, opened: str | None) -> None:
        """Record that a browser shows *tables*, with details of *opened*."""
        self._tables, self._opened = list(tables), opened
        self._looked.set()

    def of(self, table: Table, positions: list[PartitionStatus]) -> tuple[Mapping[int, int], str | None]:
        """Return the last known ends by partition; empty with the reason if unknown. *positions* is ignored."""
        del positions
        found = self._known(table.row.table_id)
        return (found.ends, found.trouble or self.trouble) if found else ({}, self.trouble)

    def held(self, table: Table, positions: list[PartitionStatus]) -> Mapping[int, OpenTransaction]:
        """Return the records behind open transactions, as last seen. *positions* is ignored."""
        del positions
        found = self._known(table.row.table_id)
        return found.held if found else {}

    def unread(self, table_id: int, buffer_at: int) -> int | None:
        """Return the number of offsets above *buffer_at*, the sum of `buffer_hi`; None if unknown."""
        found = self._known(table_id)
        return max(sum(found.ends.values()) - buffer_at, 0) if found and found.ends else None

    def close(self) -> None:
        """Stop; a running query of the ledger finishes first."""
        self._over.set()
        self._looked.set()
        self._thread.join(END_S)

    def _known(self, table_id: int) -> _Answer | None:
        found = self._answers.get(table_id)
        return found if found and time.monotonic() - found.at < OLD_S else None

    def _run(self) -> None:
        while self._looked.wait() and not self._over.is_set():
            self._looked.clear()
            try:
                self._round(self._tables)
            except Exception as error:  # ends get old, and the page says why; the next round may do
                structlog.get_logger().exception("page.ends_broken")
                self.trouble = redact(f"an unexpected error: {error!r}")
            self._over.wait(AWAY_PAUSE_S if self.trouble else PAUSE_S)

    def _round(self, tables: list[TableRow]) -> None:
        try:
            partitions = self._harness.stores.overview.partitions()
            self._log = self._log or open_log(self._harness.settings)
        except HarnessError as error:
            self.trouble = redact(str(error))
            return
        due = sorted(filter(self._is_due, tables), key=lambda table: table.name != self._opened)
        try:
            marks = self._log.watermarks_of(_wanted(due, partitions))
            for table in due:
                known = partitions.get(table.table_id, [])
                self._answers[table.table_id] = self._answer(self._log, table, known, marks.get(table.spec.topic, {}))
        except HarnessError as error:
            self.trouble = redact(str(error))
            return
        self.trouble = None

    def _is_due(self, table: TableRow) -> bool:
        found = self._answers.get(table.table_id)
        return table.name == self._opened or found is None or time.monotonic() - found.at >= EVERY_S

    def _answer(
        self, log: Log, table: TableRow, partitions: list[int], marks: Mapping[int, Watermark] | HarnessError
    ) -> _Answer:
        """Raises: KafkaUnreachable, when the other topics get no answer either."""
        try:
            if isinstance(marks, HarnessError):
                raise marks
            held = log.held(table.spec.topic, partitions) if table.name == self._opened and partitions else {}
            return _Answer({p: marks[p].end for p in partitions}, None, time.monotonic(), held)
        except KafkaUnreachable:
            raise
        except HarnessError as error:
            return _Answer({}, redact(str(error)), time.monotonic())


def _wanted(tables: Iterable[TableRow], partitions: Mapping[int, list[int]]) -> dict[str, set[int]]:
    """The partitions to ask for by topic; several tables may have one topic."""
    found: dict[str, set[int]] = {}
    for table in tables:
        if known := partitions.get(table.table_id):
            found.setdefault(table.spec.topic, set()).update(known)
    return found
