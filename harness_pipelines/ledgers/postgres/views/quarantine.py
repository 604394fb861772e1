"""Quarantined records in the ledger: selected ones and their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness_pipelines.drivers.postgres import Database
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.refused import HEAD_BYTES, WHOLE_BYTES_MAX
from harness_pipelines.protocol.changes.corrections import BEFORE_ALL, Coordinate, Wanted

Row = Mapping[str, Any]
#: Reads key, value and headers of records whose bytes are in the lake, in any order.
ReadBytes = Callable[[Database, TableRow, Sequence[Coordinate]], Iterable[tuple[Coordinate, Row]]]
TOGETHER = 100  #: records that are asked for at once


def set_aside(
    database: Database,
    table: TableRow,
    wanted: Wanted,
    *,
    state: str | None = None,
    after: Coordinate = BEFORE_ALL,
    limit: int,
) -> list[Row]:
    """The first *limit* of the *wanted* records behind *after*, by partition and offset.

    Without their bytes: see `with_bytes`.
    """
    more = {
        "whole_max": WHOLE_BYTES_MAX,
        "state": state,
        "after_partition": after[0],
        "after_offset": after[1],
        "limit": limit,
    }
    return list(database.rows("quarantine/records", _key(table, wanted) | more))


def with_bytes(database: Database, table: TableRow, records: Sequence[Row], *, in_lake: ReadBytes) -> list[Row]:
    """*records* with their key, value and headers, wherever these are, or what is kept of one that is not `whole`.

    *in_lake* reads those that are in the lake. Raises: what it raises.
    """
    bytes_of: dict[Coordinate, Row] = {}
    there = [one for one in records if not one["in_lake"]]
    for first in range(0, len(there), TOGETHER):
        wanted = there[first : first + TOGETHER]
        key: dict[str, Any] = {"table_id": table.table_id, "whole_max": WHOLE_BYTES_MAX, "head": HEAD_BYTES}
        key |= {word + "s": [one[word] for one in wanted] for word in ("partition", "offset")}
        # As text bytes are twice as many, which may be more than Postgres sends.
        for row in database.rows("quarantine/bytes", key, binary=True):
            bytes_of[row["partition"], row["offset"]] = row
    moved = [(one["partition"], one["offset"]) for one in records if one["in_lake"]]
    moved += [at for one in there if (at := (one["partition"], one["offset"])) not in bytes_of]  # meanwhile
    if moved:
        bytes_of |= in_lake(database, table, moved)
    return [{**one, **bytes_of[one["partition"], one["offset"]]} for one in records]


def counts_set_aside(database: Database, table: TableRow, wanted: Wanted) -> list[Row]:
    """Per state, reason and partition: how many of the *wanted* records, from which offset to which."""
    return list(database.rows("quarantine/counts", _key(table, wanted)))


def kept(database: Database, table: TableRow) -> Row:
    """How many records have their bytes in the lake, where that is, and how many, and how large, in Postgres."""
    found = database.rows("quarantine/kept", {"table_id": table.table_id})[0]
    return {**found, "name": f"{table.spec.namespace}.{table.quarantine}" if found["metadata"] else None}


def _key(table: TableRow, wanted: Wanted) -> dict[str, Any]:
    return {
        "table_id": table.table_id,
        "reasons": list(wanted.reasons) or None,
        "partition": wanted.partition,
        "offset": wanted.offset,
        "detail": wanted.detail,
        "schema_id": wanted.schema_id,
        "since_ms": _ms(wanted.since),
        "until_ms": _ms(wanted.until),
        "set_aside_since": wanted.set_aside_since,
        "set_aside_until": wanted.set_aside_until,
    }


def _ms(moment: datetime | None) -> int | None:
    """Milliseconds as Kafka's timestamps are, upwards: a record of the same moment or later is not before it."""
    if moment is None:
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return -(-(since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) // 1000)
