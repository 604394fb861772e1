"""Accept rows that another writer committed to the stream view, under a pseudo-partition.

A foreign row has no place in the log, whatever its coordinates say, so it is rewritten with `_kafka_partition` -1
and new offsets, behind those that were taken over before; the writer's own files leave the view in the same
snapshot. Reads of the harness show the records of the topic and so never these rows; engines that read the Iceberg
table see them, and audit counts them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.access import HasLake, HasOwnership, HasReconciler, HasTables
from harness_pipelines.ports.lake_writes import ForeignChange
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.repair import AdoptedMove
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import Version

ROWS_MAX = 5_000_000  #: they are held in memory while they are rewritten


class Ports(HasLake, HasOwnership, HasReconciler, HasTables, Protocol):
    """The ports that it uses."""


class ForeignRefused(HarnessError):
    """The other writer's commit is not a plain append, or is too large: only a revert undoes it."""

    way_on = "`harness revert TABLE --to HEAD --yes`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRows:
    """The files that another writer appended, and their destination."""

    table: str
    rows: int
    files: int
    low: int  #: first offset that they get in the pseudo-partition
    pointer: str  #: the metadata file that was looked at
    move_id: int | None = None  #: None: not taken over (yet)
    version: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "rows": self.rows,
            "files": self.files,
            "partition": FOREIGN_PARTITION,
            "low": self.low,
            "high": self.low + self.rows,
            "move": self.move_id,
            "version": self.version,
        }


def find_foreign(stores: Ports, table: TableRow) -> ForeignRows:
    """What another writer appended to the stream view since the ledger's version; changes nothing.

    Raises: ForeignRefused, naming the way back.
    """
    _check_stream(table)
    head = stores.tables.head(table)
    return _look(stores, table, head)[0]


def _check_stream(table: TableRow) -> None:
    if table.view_set.mixed:
        raise ForeignRefused(
            f"{table.name}: rows of another writer are taken over into the stream view, and `views: batch` has none; "
            f"nothing was changed. `harness revert {table.name} --to HEAD --yes` sets the view back"
        )


def _check_batch(stores: Ports, table: TableRow, head: Version, *, back: str) -> None:
    """The batch view has no rows, so nothing can be adopted from it. Raises: ForeignRefused."""
    if head.batch is None:
        return
    found = stores.lake.main_snapshot(table, view="batch")
    if found != head.batch.snapshot:
        raise ForeignRefused(
            f"{table.name}: the batch view is at snapshot {found}, version {head.version} published "
            f"{head.batch.snapshot}: another writer committed to it. Its rows are those of the stream view, and others "
            f"cannot be taken over; nothing was changed. {back}"
        )


def accept_foreign(stores: Ports, table: TableRow, found: ForeignRows) -> ForeignRows:
    """Take the rows of *found* over as the table's next version.

    Raises: ForeignRefused, PointerMoved if it no longer matches *found*, TableHeld; then nothing was published.
    """
    stores.ownership.check()
    head = stores.tables.head(table)
    now, files = _look(stores, table, head)
    if now != found or files is None:
        raise ForeignRefused(
            f"{table.name}: the view was written to since it was looked at; nothing was changed, look again"
        )
    move = AdoptedMove(
        move_id=None,
        stage="tier",
        lo={FOREIGN_PARTITION: found.low},
        hi={FOREIGN_PARTITION: found.low + found.rows},
        rows=found.rows,
    )
    move_id = stores.reconciler.reserve(table, move, on=head)
    nonce = stores.reconciler.nonce_of(move_id)
    view = files.replaced(move_id=move_id, nonce=nonce, first=found.low, schema_version=table.schema_version)
    move = replace(move, move_id=move_id)
    published = stores.reconciler.accept(table, pointer=found.pointer, stream=view, on=head, move=move)
    return replace(found, move_id=move_id, version=published.version)


def accepted_hi(stores: HasReconciler, table: TableRow) -> int:
    """Where the rows end that were accepted so far, in the pseudo-partition."""
    return max((row["high"] for row in stores.reconciler.accepted(table)), default=0)


def _look(stores: Ports, table: TableRow, head: Version) -> tuple[ForeignRows, ForeignChange | None]:
    pointer = stores.tables.pointer(table, "stream")
    low = accepted_hi(stores, table)
    nothing = ForeignRows(table=table.name, rows=0, files=0, low=low, pointer=pointer)
    back = f"`harness revert {table.name} --to {head.version} --yes` sets the view back to version {head.version}"
    _check_batch(stores, table, head, back=back)
    found = stores.lake.foreign_files(table, pointer=pointer, published=head.stream.metadata)
    if found is None:
        return nothing, None
    if found.removed:
        raise ForeignRefused(
            f"{table.name}: another writer removed {len(found.removed)} files of the table or deleted rows of it, such "
            f"as {found.removed[0]}; that cannot be taken over, nothing was changed. {back}"
        )
    if found.rows > ROWS_MAX:
        raise ForeignRefused(
            f"{table.name}: another writer appended {found.rows:,} rows, more than the {ROWS_MAX:,} that can be taken "
            f"over at once; nothing was changed. {back}"
        )
    return replace(nothing, rows=found.rows, files=found.files), found
