"""The versions that expire's decisions need, independent of the number of versions that are retained.

Versions never change, and what is answered for stays answered: a process reads each of them once, unless the end of the
history is lost (`KnownVersions.forget_lost`). Of those that are older than what is retained only the pinned ones are
loaded, and for each the one that answers for what it had buffered is looked for from it on, a page at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from harness_pipelines.drivers.postgres import Connection, sql
from harness_pipelines.ports import rows
from harness_pipelines.protocol.versions import Version, answering_version, unanswered

PAGE, PAGE_MAX = 8, 512  #: the first page, and the largest: what answers for a version mostly is one of the next
Pin = tuple[int, tuple[tuple[int, int], ...]]  #: a version, and the `buffer_hi` that it is read with


def pin_of(version: Version) -> Pin:
    return version.version, tuple(sorted(version.buffer_hi.items()))


@dataclass(frozen=True, slots=True)
class _Searched:
    """How far the version that answers for a pin was looked for."""

    through: int
    answer: int | None  #: None: no version up to *through* does


@dataclass(slots=True, kw_only=True)
class KnownVersions:
    """What is known of the versions of one table."""

    table_id: int
    through: int = 0  #: the newest version that was read
    waiting: list[Version] = field(default_factory=list)  #: retained, and no version answers for them yet
    _pins: dict[Pin, _Searched] = field(default_factory=dict)
    _newest: int = 0  #: of all that were read, for whatever

    def forget_lost(self, connection: Connection) -> None:
        """Forget all where the newest version that was read is not there: so it was lost with others.

        A stand-by that was promoted may lack it, or a backup that was restored. What it answered for, the buffer
        answers for again. No number is given twice.
        """
        key = {"table_id": self.table_id, "version": self._newest}
        if self._newest and connection.execute(sql("upkeep/has_version"), key).fetchone() is None:
            self.through, self.waiting, self._pins, self._newest = 0, [], {}, 0

    def catch_up(self, connection: Connection, *, retained_from: int) -> list[Version]:
        """Read the retained versions that are newer than those that were read, oldest first."""
        found = []
        for page in self._pages(connection, above=max(self.through, retained_from - 1)):
            self.waiting = unanswered([*self.waiting, *page], page)
            self.through = page[-1].version
            found += page
        self.waiting = [v for v in self.waiting if v.version >= retained_from]
        return found

    def answers(self, connection: Connection, pins: Iterable[Version]) -> Mapping[Pin, int | None]:
        """The number of the version that answers for each of *pins*; None: the buffer still does."""
        found: dict[Pin, _Searched] = {}
        for version in pins:
            pin = pin_of(version)
            searched = self._pins.get(pin) or _searched(version, [], through=version.version)
            if searched.answer is None:
                for page in self._pages(connection, above=searched.through):
                    searched = _searched(version, page, through=page[-1].version)
                    if searched.answer is not None:
                        break
            found[pin] = searched
        self._pins = found  # those that nothing pins any more are forgotten
        return {pin: searched.answer for pin, searched in found.items()}

    def _pages(self, connection: Connection, *, above: int) -> Iterator[list[Version]]:
        for page in pages_above(connection, self.table_id, above=above):
            self._newest = max(self._newest, page[-1].version)
            yield page


def _searched(version: Version, page: list[Version], *, through: int) -> _Searched:
    answer = answering_version(version, page)
    return _Searched(through, None if answer is None else answer.version)


def older_needed(
    connection: Connection, known: KnownVersions, *, retained_from: int, numbers: Iterable[int], named: list[Version]
) -> set[int]:
    """The numbers of the versions that are needed though they are not retained: those of *numbers*, those that are
    *named* (with their own bounds), and those that answer for any of these."""
    known.forget_lost(connection)
    pinned = [v for v in named if v.version < retained_from]
    wanted = sorted({number for number in numbers if number < retained_from})
    key = {"table_id": known.table_id, "versions": wanted}
    old = [rows.version(row) for row in connection.execute(sql("upkeep/versions_of"), key)] if wanted else []
    pins = [*pinned, *old]
    answers = known.answers(connection, pins).values()
    return {v.version for v in pins} | {number for number in answers if number is not None and number < retained_from}


def pages_above(connection: Connection, table_id: int, *, above: int) -> Iterator[list[Version]]:
    """The versions above one, oldest first; each page has twice as many as the one before it."""
    limit = PAGE
    while True:
        key = {"table_id": table_id, "above": above, "limit": limit}
        page = [rows.version(row) for row in connection.execute(sql("upkeep/versions_above"), key)]
        if page:
            yield page
        if len(page) < limit:
            return
        above, limit = page[-1].version, min(2 * limit, PAGE_MAX)
