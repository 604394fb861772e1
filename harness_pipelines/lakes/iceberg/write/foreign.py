"""Commits of another writer to a view, found from metadata, and rewriting their rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.lakes.iceberg.checked_io import write_data_files
from harness_pipelines.lakes.iceberg.parquet import check_pages, damage_named
from harness_pipelines.lakes.iceberg.private.tables import Changes
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, manifests_of
from harness_pipelines.lakes.iceberg.write import extents
from harness_pipelines.ports.lake import reachable
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.lake.properties import ATTEMPT, MOVE, NONCE, RANGES, SCHEMA_VERSION
from harness_pipelines.protocol.topics import FOREIGN_PARTITION
from harness_pipelines.protocol.versions import View

ACCEPTED = "harness.accepted-rows"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForeignChangeFound:
    """`ForeignChange`: the difference between what the ledger published and what the catalog names."""

    view: Table  #: as the catalog names it
    added: tuple[DataFile, ...]
    removed: tuple[str, ...]  #: files of the table that are no longer live, and deletes that were added or removed

    @property
    def files(self) -> int:
        return len(self.added)

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self.added)

    def replaced(self, *, move_id: int, nonce: str, first: int, schema_version: int) -> View:
        """Rewrite the added rows in the pseudo-partition, from offset *first* on, in place of the writer's own files.

        The metadata is based on what was found, and is not published yet. Raises: LakeAway.
        """
        view = self.view
        with reachable(view.metadata_location, f"writing foreign rows as move {move_id}"):
            rows = _as_no_partition(_read(view, self.added), first)
            properties = {
                MOVE: str(move_id),
                NONCE: nonce,
                ATTEMPT: "1",
                SCHEMA_VERSION: str(schema_version),
                RANGES: "",  # of the log: none
                ACCEPTED: f"{first}-{first + rows.num_rows}",
            }
            with Changes(view) as transaction:
                written = write_data_files(view.metadata, rows, view.io)
                extents.add_to(view, written)
                with transaction.update_snapshot(snapshot_properties=properties).overwrite() as swap:
                    for file in self.added:
                        swap.delete_data_file(file)
                    for file in written:
                        swap.append_data_file(file)
        head = view.metadata.current_snapshot()
        assert head is not None
        return View(metadata=view.metadata_location, snapshot=head.snapshot_id)


def foreign_files(view: Table, published: Table) -> ForeignChangeFound | None:
    """What is live in *view* and not in *published*, or the other way round; ``None`` when main is the same."""
    now, before = view.metadata.current_snapshot(), published.metadata.current_snapshot()
    if now == before:
        return None
    with reachable(view.metadata_location, "comparing it with the ledger's version"):
        there, deletes = _live(view, now)
        ours, known = _live(published, before)
    return ForeignChangeFound(
        view=view,
        added=tuple(file for path, file in sorted(there.items()) if path not in ours),
        removed=(*sorted(set(ours) - set(there)), *sorted(set(deletes) ^ set(known))),
    )


def _live(view: Table, head: Snapshot | None) -> tuple[dict[str, DataFile], list[str]]:
    files: dict[str, DataFile] = {}
    deletes: list[str] = []
    for manifest in manifests_of(head, view.io):
        found = entries_of(manifest, view.io)
        if manifest.content is ManifestContent.DELETES:
            deletes += [entry.data_file.file_path for entry in found]
        else:
            files |= {entry.data_file.file_path: entry.data_file for entry in found}
    return files, deletes


def _read(view: Table, files: tuple[DataFile, ...]) -> pa.Table:
    for file in files:  # PyIceberg's scan compares no checksums
        with damage_named(view.io, file.file_path), view.io.new_input(file.file_path).open() as stream:
            check_pages(stream)
    scan = ArrowScan(view.metadata, view.io, view.schema(), AlwaysTrue())
    return scan.to_table([FileScanTask(file) for file in files])


def _as_no_partition(rows: pa.Table, first: int) -> pa.Table:
    count = rows.num_rows
    partition = pa.repeat(pa.scalar(FOREIGN_PARTITION, pa.int32()), count)
    offsets = pa.array(range(first, first + count), pa.int64())
    for name, values in ((PARTITION, partition), (OFFSET, offsets)):
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows
