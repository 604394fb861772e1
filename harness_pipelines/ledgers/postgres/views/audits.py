"""Signed-off ranges of audits, with the file listing that they are based on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from harness_pipelines.drivers.files import listed
from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ports.errors import LakeUnreadable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.lake.signoff import SignOff, Stored


def signed_off(database: Database, table: TableRow) -> list[SignOff]:
    """Every range that audits of *table* signed off, by partition and offset; no two overlap."""
    return [SignOff(**row) for row in database.rows("audit/signed", {"table_id": table.table_id})]


def keep(database: Database, table: TableRow, signed: Sequence[SignOff]) -> None:
    """Record *signed* in place of all that they overlap, in one transaction.

    Raises: MissingRole when the login is no worker; nothing is kept then.
    """
    if not signed:
        return
    with database.transaction() as connection:
        connection.execute(sql("audit/lock_signed"), {"table_id": table.table_id})  # or two audits could overlap
        for one in signed:
            where = {"table_id": table.table_id, "partition": one.partition, "low": one.low, "high": one.high}
            connection.execute(sql("audit/forget_signed"), where)
            found = {"rows": one.rows, "refused": one.refused, "digest": one.digest, "evidence": one.evidence}
            judged = {"status": one.status, "witness": one.witness, "version": one.version}
            connection.execute(sql("audit/sign"), {**where, **found, **judged, "audited_at": one.audited_at})


def now(database: Database) -> datetime:
    """The ledger's clock."""
    found: datetime = database.rows("reads/now")[0]["now"]
    return found


def stored_files(location: str) -> Mapping[str, Stored]:
    """Size and time of every file below *location* of a view, by its path, from one listing.

    Raises: LakeUnreadable.
    """
    try:
        found = list(listed(location, allow_not_found=False))
    except OSError as error:
        raise LakeUnreadable(f"{location} cannot be listed: {error}; nothing was judged") from error
    latest = datetime.max.replace(tzinfo=UTC)
    return {file.path: Stored(bytes=file.bytes, modified=file.modified or latest) for file in found}
