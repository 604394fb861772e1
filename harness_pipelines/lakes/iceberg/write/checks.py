"""What staged and live files may hold, checked from metadata before a publish."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import LongType

from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.catalog import is_wide
from harness_pipelines.lakes.iceberg.read.file_columns import NONE
from harness_pipelines.lakes.iceberg.read.live_files import LiveFiles, live_files
from harness_pipelines.lakes.iceberg.read.manifests import columns_of, manifests_of
from harness_pipelines.lakes.iceberg.write import extents
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.protocol.coordinates import OFFSET
from harness_pipelines.protocol.moves import Move


class ForeignFiles(HarnessError):
    """The view holds rows that the ledger did not publish."""

    way_on = (
        "`harness audit TABLE`, then `harness revert TABLE --to HEAD --yes` or `harness reconcile TABLE "
        "--accept-foreign --yes`"
    )


def check_no_overlap(table: TableRow, view: Table, move: Move) -> None:
    """No live file of the head may reach into the ranges of the move (S37, and the guard against foreign writers).

    Raises: ForeignFiles.
    """
    snapshot = view.metadata.current_snapshot()
    highest = _highest(view, snapshot) if snapshot else {}
    for taken in move.ranges:
        if (found := highest.get(taken.partition)) is not None and found[0] >= taken.low:
            raise ForeignFiles(
                f"{table.name}: the stream view holds offset {found[0]} of partition {taken.partition} in {found[1]}, "
                f"but the ledger has published only below {taken.low}: another writer, or a restored database. "
                f"Nothing was written; `harness audit {table.name}` shows the rows, `harness revert {table.name} --to "
                "HEAD --yes` sets the view back to what the ledger published, `harness reconcile "
                f"{table.name} --accept-foreign --yes` takes them over"
            )


def _highest(view: Table, snapshot: Snapshot) -> dict[int, tuple[int, str]]:
    """Per Kafka partition the highest offset of any live file, and that file."""
    if is_wide(view.metadata):
        return _highest_of_wide(live_files(snapshot, view.io, offset_id=view.schema().find_field(OFFSET).field_id))
    highest: dict[int, tuple[int, str]] = {}
    offset_id = view.schema().find_field(OFFSET).field_id
    for manifest in manifests_of(snapshot, view.io):
        files = columns_of(manifest, view.io)
        low, high = files.longs(offset_id)
        is_data, partitions = files.is_data, files.partitions
        if len(unknown := np.flatnonzero(is_data & ((low == NONE) | (high == NONE)))):
            raise no_bounds(files.path(int(unknown[0])))
        for partition in np.unique(partitions[is_data]).tolist():
            mine = np.flatnonzero(is_data & (partitions == partition))
            last = int(mine[np.argmax(high[mine])])
            if partition not in highest or highest[partition][0] < high[last]:
                highest[partition] = (int(high[last]), files.path(last))
    return highest


def _highest_of_wide(files: LiveFiles) -> dict[int, tuple[int, str]]:
    """As `_highest`, of files that say what they have of each partition; one that does not is not of the harness."""
    if len(strange := np.flatnonzero(files.mixed)):
        raise ForeignFiles(
            f"{files[int(strange[0])].path} does not say what it has of each partition: it was not written by the "
            "harness. Nothing was written; `harness revert TABLE --to HEAD --yes` sets the view back to what the "
            "ledger published"
        )
    found = files.highest()
    paths = {place: files[place].path for place in {place for _, place in found.values()}}
    return {p: (high - 1, paths[place]) for p, (high, place) in found.items()}


def offset_bounds(file: DataFile, view: Table) -> tuple[int, int]:
    """Lowest and highest ``_kafka_offset`` in a file of *view*, both included."""
    field_id = view.schema().find_field(OFFSET).field_id
    low, high = (file.lower_bounds or {}).get(field_id), (file.upper_bounds or {}).get(field_id)
    if low is None or high is None:
        raise no_bounds(file.file_path)
    return int(from_bytes(LongType(), low)), int(from_bytes(LongType(), high))


def no_bounds(path: str) -> ForeignFiles:
    return ForeignFiles(
        f"{path} has no bounds for _kafka_offset: it was not written by the harness. Nothing was written; `harness "
        "revert TABLE --to HEAD --yes` sets the view back to what the ledger published"
    )


def check_inside(table: TableRow, move: Move, files: Sequence[tuple[DataFile, tuple[int, int]]], *, rows: int) -> None:
    """Record counts are the move's rows, and every file lies inside the move's range of its partition."""
    where = f"{table.name}: move {move.move_id}, attempt {move.attempt}"
    if (found := sum(file.record_count for file, _ in files)) != rows:
        raise StagedWrong(f"{where}: {rows} rows were to be moved, {found} were staged; nothing was published")
    for file, (low, high) in files:
        if (told := extents.of(file)) is not None:
            if not told.within({r.partition: (r.low, r.high) for r in move.ranges}):
                raise StagedWrong(f"{where}: {file.file_path} holds offsets outside the move; nothing was published")
            continue
        partition = int(file.partition[0])
        if not (partition in move.lo and move.lo[partition] <= low and high < move.hi[partition]):
            raise StagedWrong(
                f"{where}: {file.file_path} holds offsets {low}..{high} of partition {partition}, outside the move; "
                "nothing was published"
            )


def check_hull(table: TableRow, move: Move, files: Sequence[tuple[DataFile, tuple[int, int]]], *, rows: int) -> None:
    """Record counts are the move's rows; a file of the batch view mixes partitions, so its bounds say less."""
    where = f"{table.name}: move {move.move_id}, attempt {move.attempt}"
    if (found := sum(file.record_count for file, _ in files)) != rows:
        raise StagedWrong(f"{where}: {rows} rows were to be moved, {found} were staged; nothing was published")
    if not move.ranges:  # a relayout, or a compaction: any row of the view
        return
    # A merge of a keyed table writes rows below the move once more, those in files where other keys changed.
    lowest, highest = 0 if table.spec.key else min(r.low for r in move.ranges), max(r.high for r in move.ranges)
    for file, (low, high) in files:
        if not lowest <= low <= high < highest:
            raise StagedWrong(
                f"{where}: {file.file_path} holds offsets {low}..{high}, outside the move; nothing was published"
            )
