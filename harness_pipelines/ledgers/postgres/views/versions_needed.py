"""The versions that expire's decisions need, independent of the number of versions in between.

Of those that are older than what is retained only the pinned ones are loaded, and for each the one that answers for
what it had buffered, which is looked for from it on, a page at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from harness_pipelines.drivers.postgres import Connection, sql
from harness_pipelines.ports import rows
from harness_pipelines.protocol.versions import Version, answering_version

PAGE = 100


def versions_needed(
    connection: Connection, table_id: int, *, retained_from: int, numbers: Collection[int], named: Iterable[Version]
) -> list[Version]:
    """All versions from *retained_from* on, oldest first; of the older ones those with *numbers*, those that are
    *named* (with their own bounds), and those that answer for any of these."""
    key = {"table_id": table_id}
    pinned = [v for v in named if v.version < retained_from]
    wanted = sorted({*(n for n in numbers if n < retained_from), *(v.version for v in pinned)})
    old = [rows.version(row) for row in connection.execute(sql("upkeep/versions_of"), {**key, "versions": wanted})]
    recent = [rows.version(row) for row in connection.execute(sql("ledger/versions"), {**key, "first": retained_from})]
    found = {v.version: v for v in (*old, *recent)}
    for pin in (*old, *pinned):
        for page in _pages(connection, table_id, above=pin.version, below=retained_from):
            if (answer := answering_version(pin, page)) is not None:
                if answer.version != pin.version:
                    found.setdefault(answer.version, answer)
                break
    return [found[number] for number in sorted(found)]


def _pages(connection: Connection, table_id: int, *, above: int, below: int) -> Iterator[list[Version]]:
    """The versions between the two, oldest first; before the first page one that is empty, for one that needs none."""
    yield []
    while above < below:
        key = {"table_id": table_id, "above": above, "below": below, "limit": PAGE}
        page = [rows.version(row) for row in connection.execute(sql("upkeep/versions_between"), key)]
        if not page:
            return
        yield page
        above = page[-1].version
