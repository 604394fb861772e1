"""Records that were set aside, as the ledger has them: those that a person asks for, and how many they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from harness_pipelines.protocol.corrections import Coordinate, Wanted
from harness_pipelines.stores.ports import TableRow
from harness_pipelines.stores.postgres import Database

Row = Mapping[str, Any]
BEFORE_ALL: Coordinate = (-1, -1)


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

    With the bytes that Postgres has: of a record that is `in_lake` it has none; see `with_bytes`.
    """
    more = {"state": state, "after_partition": after[0], "after_offset": after[1], "limit": limit}
    return list(database.rows("quarantine/records", _key(table, wanted) | more))


def with_bytes(database: Database, table: TableRow, records: Sequence[Row]) -> list[Row]:
    """*records* with their key, value and headers, wherever these are. Raises: as `raw_bytes.read`."""
    moved = [(one["partition"], one["offset"]) for one in records if one["in_lake"]]
    if not moved:
        return list(records)
    from harness_pipelines.stores import raw_bytes  # and PyIceberg

    found = dict(raw_bytes.read(database, table, moved))
    return [{**one, **found.get((one["partition"], one["offset"]), {})} for one in records]


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
