"""How full the buffer is, and whether ingest may take more (`harness_pipelines.protocol.pressure`).

One look reads the sizes of all tables, and serves all threads of the process for a while: the sizes of relations are
asked of the file system, which costs up to 0.1 ms for a segment, so neither a batch nor a table asks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import structlog

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.pressure import Fill, LimitName, fills, full, look_is_due

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Look:
    """What one look found, and what was taken since; by the ids of tables."""

    at: float  #: monotonic seconds
    bytes: Mapping[int, int]
    bytes_max: Mapping[int, int | None]  #: of the specs as they are now: a worker keeps the one it began with
    pauses: dict[int, Fill]
    taken: int = 0  #: by all tables
    of_all: int = field(init=False)  #: the sum of *bytes*: there may be a thousand

    def __post_init__(self) -> None:
        self.of_all = sum(self.bytes.values())

    def fills(self, table: TableRow, server_max: int) -> list[Fill]:
        return fills(
            of_table=self.bytes.get(table.table_id, 0),
            of_server=self.of_all,
            table_max=self.bytes_max.get(table.table_id),
            server_max=server_max,
        )


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why a table may take nothing more: how it was when the pause began, and whether it begins now."""

    fill: Fill
    begins: bool


class Room:
    """The room in the buffers of one database. Safe for use by several threads."""

    def __init__(self, database: Database, *, bytes_max: int, clock: Callable[[], float]) -> None:
        self._database, self._bytes_max, self._clock = database, bytes_max, clock
        self._lock = Lock()
        self._look: _Look | None = None
        self._asked_for: dict[int, int | None] = {}  # `buffer.max_bytes` of the spec that a table was asked for by

    def full(self, table: TableRow, *, taken: int) -> Verdict | None:
        """The limit that keeps *table* from taking more, noted in the ledger; None: it may.

        *taken*: bytes of records that it took since it asked last. Raises: PostgresUnreachable.
        """
        with self._lock:
            look = self._looked(table, taken)
            before = look.pauses.get(table.table_id)
            now = full(look.fills(table, self._bytes_max), paused_by=_limit(before))
            if now is None:
                if before is not None:
                    self._resume(table, look)
                return None
            if before is None or before.limit != now.limit:
                self._pause(table, look, now)
                return Verdict(now, begins=True)
            return Verdict(before, begins=False)

    def _looked(self, table: TableRow, taken: int) -> _Look:
        look = self._look
        if look is not None:
            look.taken += taken
            age_s, changed = self._clock() - look.at, self._is_changed(table)
            if not changed and not look_is_due(look.fills(table, self._bytes_max), age_s=age_s, taken=look.taken):
                return look
        self._look = look = self._ask()
        return look

    def _is_changed(self, table: TableRow) -> bool:
        """Its spec has another limit than when it was asked for last."""
        before, now = self._asked_for.get(table.table_id), table.spec.buffer_bytes_max
        self._asked_for[table.table_id] = now
        return before != now

    def _ask(self) -> _Look:
        at = self._clock()
        found = self._database.rows("buffer/room")
        pauses = {row["table_id"]: _paused(row) for row in found if row["limited"] is not None}
        return _Look(
            at=at,
            bytes={row["table_id"]: row["bytes"] for row in found},
            bytes_max={row["table_id"]: row["table_max"] for row in found},
            pauses=pauses,
        )

    def _pause(self, table: TableRow, look: _Look, fill: Fill) -> None:
        given = {"table_id": table.table_id, "limited": fill.limit, "bytes": fill.bytes, "bytes_max": fill.bytes_max}
        self._database.run("buffer/pause", given)
        look.pauses[table.table_id] = fill
        log.warning("ingest.paused", table=table.name, limit=fill.limit, bytes=fill.bytes, bytes_max=fill.bytes_max)

    def _resume(self, table: TableRow, look: _Look) -> None:
        self._database.run("buffer/resume", {"table_id": table.table_id})
        del look.pauses[table.table_id]
        log.info("ingest.resumed", table=table.name, bytes=look.bytes.get(table.table_id, 0))


def _limit(paused: Fill | None) -> LimitName | None:
    return None if paused is None else paused.limit


def _paused(row: Mapping[str, Any]) -> Fill:
    return Fill(limit=row["limited"], bytes=row["paused_at"], bytes_max=row["bytes_max"])
