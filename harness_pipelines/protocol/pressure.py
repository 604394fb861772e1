"""When ingest pauses because the buffer is full, and when it continues. No I/O.

Two limits hold: the table's (`buffer: {max_bytes: ...}` of its spec) and the server's (``HARNESS_BUFFER_GB``), which
all tables share. Ingest pauses at a limit and continues below `RESUMES_AT` of it: between the two it does what it did
before, so that one segment that is dropped does not let it start and stop for ever.

What counts are the bytes that segments take on Postgres's disk, retired ones too: only dropping gives them back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Literal

from harness_pipelines.errors import TryAgain
from harness_pipelines.protocol.claims import Stage

LimitName = Literal["table", "server"]
RESUMES_AT = 0.8  #: of the limit at which ingest paused
NEAR = 0.8  #: of a limit: from here on the sizes are looked at often
LOOK_S_MIN, LOOK_S_NEAR, LOOK_S_MAX = 0.2, 1.0, 10.0  #: between two looks at the sizes by one process
BYTES_FOR_TAKEN = 2.0  #: of Postgres for each byte of a record, indexes included
SHARE_UNSEEN_MAX = 0.25  #: of the room that was left, which may be filled before the next look


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How full one limit is."""

    limit: LimitName
    bytes: int  #: that count against it
    bytes_max: int

    @property
    def left(self) -> int:
        """Bytes until ingest pauses."""
        return max(self.bytes_max - self.bytes, 0)

    @property
    def is_near(self) -> bool:
        return self.bytes >= NEAR * self.bytes_max


def fills(*, of_table: int, of_server: int, table_max: int | None, server_max: int) -> list[Fill]:
    """The limits that hold for a table, its own first: what it can do something about."""
    own = [] if table_max is None else [Fill(limit="table", bytes=of_table, bytes_max=table_max)]
    return [*own, Fill(limit="server", bytes=of_server, bytes_max=server_max)]


def full(found: Iterable[Fill], *, paused_by: LimitName | None) -> Fill | None:
    """The limit that keeps ingest from taking more; None: it may.

    *paused_by*: the limit for which it pauses already.
    """
    for fill in found:
        share = RESUMES_AT if fill.limit == paused_by else 1.0
        if fill.bytes >= share * fill.bytes_max:
            return fill
    return None


def look_is_due(found: Iterable[Fill], *, age_s: float, taken: int) -> bool:
    """Are sizes that were read *age_s* ago too old to decide by, after *taken* bytes of records since then?"""
    known = [*found]
    if age_s < LOOK_S_MIN:
        return False
    if age_s >= (LOOK_S_NEAR if any(fill.is_near for fill in known) else LOOK_S_MAX):
        return True
    return taken * BYTES_FOR_TAKEN >= SHARE_UNSEEN_MAX * min((fill.left for fill in known), default=inf)


class BufferFull(TryAgain):
    """The buffer is at its limit, so ingest of the table pauses; Kafka keeps the records."""

    way_on = (
        "nothing, if tier and expire run: ingest continues by itself. Else start them; or raise `buffer.max_bytes` "
        "of the spec, or HARNESS_BUFFER_GB"
    )


def buffer_full(table: str, fill: Fill) -> BufferFull:
    """The error of a table that pauses, as *fill* was when it began to: its text stays the same meanwhile."""
    whose = {
        "table": ("its buffer has", "its spec allows (`buffer.max_bytes`)"),
        "server": ("the buffers of all tables have", "the server allows (HARNESS_BUFFER_GB)"),
    }
    has, allows = whose[fill.limit]
    return BufferFull(
        f"{table}: {Stage.INGEST} is paused: {has} {_gb(fill.bytes)} of the {_gb(fill.bytes_max)} that {allows}; Kafka "
        f"keeps the other records. It continues by itself below {_gb(RESUMES_AT * fill.bytes_max)}: for that tier "
        "moves rows to the lake and expire drops their segments"
    )


def _gb(size: float) -> str:
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"
