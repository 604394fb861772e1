"""What there is to do for all tables, in one look at the ledger; whoever asks Kafka notes there where the logs end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from harness_pipelines.stores.ports import TableRow
from harness_pipelines.stores.ports_log import Watermark
from harness_pipelines.stores.postgres import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """How far a table's tiers are from each other, and who works on it. Offsets are sums over its partitions."""

    name: str
    stopped: str | None
    unread: int | None  #: offsets of the log above the buffer, as last seen; None: nobody has looked yet
    unseen_s: float | None  #: since the oldest of these looks
    buffered: int  #: offsets above the stream view
    unmerged: int  #: offsets of the stream view above the batch view
    buffered_bytes: int
    since_tier_s: float
    since_expire_s: float | None  #: since somebody held expire; None: nobody has yet
    buffer_at: int  #: sum of `buffer_hi`
    stream_at: int  #: sum of `stream_hi`
    busy: frozenset[str]  #: stages that somebody holds
    open: Mapping[str, Mapping[str, Any]]  #: stage -> attempt and state of its open or stuck move


class Watch:
    """Looks of one database."""

    def __init__(self, database: Database, readers: Database) -> None:
        self._database, self._readers = database, readers

    def record_ends(self, table: TableRow, marks: Mapping[int, Watermark]) -> None:
        """Note where the log of each partition begins and ends now."""
        partitions = sorted(marks)
        given = {
            "table_id": table.table_id,
            "partitions": partitions,
            "starts": [marks[p].low for p in partitions],
            "ends": [marks[p].end for p in partitions],
        }
        self._database.run("watch/record_ends", given)

    def work(self, tables: Collection[str] | None) -> list[TableWork]:
        """Of *tables*, by name, those that there are, or of all; the one that is furthest behind comes first."""
        wanted = None if tables is None else list(tables)
        return [_work(row) for row in self._readers.rows("watch/work", {"tables": wanted})]


def _work(row: Mapping[str, Any]) -> TableWork:
    return TableWork(
        name=row["name"],
        stopped=row["stopped"],
        unread=None if row["unread"] is None else int(row["unread"]),
        unseen_s=row["unseen_s"],
        buffered=row["buffered"],
        unmerged=row["unmerged"],
        buffered_bytes=row["buffered_bytes"],
        since_tier_s=row["since_tier_s"],
        since_expire_s=row["since_expire_s"],
        buffer_at=row["buffer_at"],
        stream_at=row["stream_at"],
        busy=frozenset(row["busy"]),
        open=row["open"],
    )
