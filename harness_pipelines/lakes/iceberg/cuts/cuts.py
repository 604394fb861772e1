"""`CutFiles` over PyIceberg's metadata and Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.table.metadata import TableMetadata, TableMetadataV1

from harness_pipelines.lakes.iceberg.checked_io import StoreIO, opened_io
from harness_pipelines.lakes.iceberg.cuts import chunks as chunk_files
from harness_pipelines.lakes.iceberg.cuts.deletes import write_hidden
from harness_pipelines.lakes.iceberg.cuts.folder import Place, common_folder
from harness_pipelines.lakes.iceberg.cuts.manifests import Listed, Stamp, write_list, write_manifest
from harness_pipelines.lakes.iceberg.cuts.metadata import snapshot, write_metadata
from harness_pipelines.lakes.iceberg.cuts.parts import (
    Part,
    Writing,
    base_part,
    kept,
    key_of,
    listed_by,
    metadata_at,
    other_part,
    totals,
)
from harness_pipelines.lakes.iceberg.cuts.shape import CutShape, shape_of
from harness_pipelines.lakes.iceberg.cuts.sound import check, listed, understood_record
from harness_pipelines.ports.errors import LakeFileBroken, LakeFileMissing
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.ledger import TableRow
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged, CutDraft, CutImpossible, CutPart
from harness_pipelines.protocol.cut_checks import FRESH, MERGED, NAMED, ListedCut
from harness_pipelines.protocol.cuts import (
    NAMED_MAKER,
    Chunk,
    CutBounds,
    bounds_text,
    next_sequence,
    next_timestamp,
    snapshot_id,
)
from harness_pipelines.protocol.keyed_cuts import Hidden
from harness_pipelines.protocol.lake.properties import properties_of
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan
from harness_pipelines.protocol.reading.queries import LakeQuery
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.locations import normal

if TYPE_CHECKING:
    import pyarrow as pa

    from harness_pipelines.protocol.reading.narrowing import Ranges

BASE, OTHER = "base", "other"  #: names of the parts of a cut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Views:
    """What a plan reads of the lake, and what a cut of it has in common."""

    base: LakePart | None  #: None: no row of the lake is read; the schema is the view's still
    other: LakePart | None
    metadata: Mapping[str, TableMetadata]  #: by location, of all views of the version
    shape: CutShape

    @property
    def sequences(self) -> list[int]:
        return [_last_sequence(metadata) for metadata in self.metadata.values()]

    @property
    def folders(self) -> list[str]:
        """Where the files of the views lie: of all, so that the location of a table is the same for each cut."""
        return [metadata.location for metadata in self.metadata.values()]


def _last_sequence(metadata: TableMetadata) -> int:
    return 0 if isinstance(metadata, TableMetadataV1) else metadata.last_sequence_number


class IcebergCuts:
    """Writes cuts in a folder beside the views, and the views never.

    Of files of cuts there are no notes (`CheckedIO`), so none are asked for: the ledger knows their sizes.
    """

    def __init__(self, *, warehouse: str) -> None:
        self._warehouse = normal(warehouse)

    def write_chunk(
        self, table: TableRow, version: Version, rows: pa.Table, *, ranges: Ranges, maker: str, sequence: int
    ) -> Chunk:
        """Write *rows*, in the plan's columns and all coordinates, as one file: the rows of *ranges*, in offset order.

        Raises: CutImpossible, LakeAway, StoreRefused; LakeFileMissing, LakeFileBroken, LakeUnreadable.
        """
        place, seen = self._place(table, version), table.at_schema(version.schema_version)
        location = version.stream.metadata
        metadata = metadata_at(location, _query(table, version), place)
        shape = shape_of(metadata, None, names=(location, None), schema_version=version.schema_version)
        with reachable(table.name, "writing a chunk of a cut"):
            return chunk_files.write_chunk(seen, place, shape, rows, ranges=ranges, maker=maker, sequence=sequence)

    def write_hidden(self, table: TableRow, version: Version, hidden: Hidden, *, sequence: int) -> Chunk:
        """Write which rows of some data files a cut hides, as one file. Raises: LakeAway, StoreRefused."""
        with reachable(table.name, "writing position deletes of a cut"):
            return write_hidden(self._place(table, version), hidden, sequence=sequence)

    def read_chunk(self, table: TableRow, plan: ReadPlan, chunk: Chunk) -> pa.Table:
        """The rows of a chunk as they were written. Raises: CutDamaged, LakeUnreadable."""
        try:
            return chunk_files.read_chunk(StoreIO(), plan, chunk)
        except (LakeFileMissing, LakeFileBroken) as error:
            raise CutDamaged(str(error)) from error

    def listed(self, metadata: str) -> ListedCut:
        """What the cut at *metadata* says of itself. Raises: CutDamaged, LakeAway, StoreRefused."""
        with reachable(metadata, "reading a cut"):
            return listed(metadata, opened_io())

    def check(self, cut: Cut) -> None:
        """Whether *cut* can still be read. Raises: CutDamaged, LakeAway, StoreRefused."""
        with reachable(f"cut {cut.snapshot_id}", "reading it"):
            check(cut, StoreIO())

    def write_cut(
        self,
        table: TableRow,
        version: Version,
        plan: ReadPlan,
        *,
        chunks: Sequence[Chunk],
        previous: CutDraft | None,
        bounds: CutBounds,
        makers: Sequence[str],
        now_ms: int,
    ) -> CutDraft:
        """Write manifests, manifest list and metadata of the cut that *plan* and *chunks* are. Raises: as the port."""
        place = self._place(table, version)
        views = _views(table, version, plan, place)
        last = (previous.sequence, previous.timestamp_ms) if previous else (None, None)
        sequence = next_sequence(last[0], views.sequences)
        number = snapshot_id(table.table_id, version.version, bounds, sequence=sequence, makers=makers)
        stamp = Stamp(snapshot=number, sequence=sequence)
        at_ms = next_timestamp(last[1], now_ms)
        location = common_folder(*views.folders, place.folder)
        writing = Writing(place=place, shape=views.shape, stamp=stamp, plan=plan)
        parts, manifests, own = _view_manifests(writing, views, previous.parts if previous else {})
        with understood_record("a chunk"):
            named = chunk_files.named_by(chunks, stamp)
            by_manifest = chunk_files.entries_of_chunks(named, stamp)
        with reachable(table.name, "writing a cut"):
            for entries in by_manifest:
                added = write_manifest(place, views.shape, views.shape.plain, entries, stamp=stamp)
                manifests, own = [*manifests, added], [*own, added.path]
            listed_at = write_list(place, manifests, stamp=stamp)
            summary = _summary(plan, bounds, makers) | totals(manifests)
            head = snapshot(views.shape, manifest_list=listed_at, stamp=stamp, timestamp_ms=at_ms, summary=summary)
            metadata = write_metadata(place, views.shape, head, location=location, properties=properties_of(table.spec))
        return CutDraft(
            snapshot_id=stamp.snapshot,
            sequence=stamp.sequence,
            timestamp_ms=at_ms,
            version=version.version,
            schema_version=version.schema_version,
            bounds=dict(bounds),
            metadata=metadata,
            chunks=named,
            parts=parts,
            files=(metadata, listed_at, *own, *(chunk.path for chunk in named)),
        )

    def _place(self, table: TableRow, version: Version) -> Place:
        return Place.of(table, version, warehouse=self._warehouse, io=opened_io())


def _query(table: TableRow, version: Version) -> LakeQuery:
    """What names the table and the version in errors."""
    return LakeQuery(table=table.name, version=version.version, ranges={}, columns=())


def _views(table: TableRow, version: Version, plan: ReadPlan, place: Place) -> _Views:
    """The views that *plan* reads: the batch view is the base if it is one of them. Raises: CutImpossible."""
    parts = {part.view: part for part in plan.lake}
    _check(table, version, plan)
    base = parts.get("batch") or parts.get("stream")
    other = parts.get("stream") if "batch" in parts else None
    query = _query(table, version)
    locations = [view.metadata for view in version.views.values()]
    metadata = {location: metadata_at(location, query, place) for location in locations}
    names = (base.metadata if base else version.stream.metadata, other.metadata if other else None)
    shape = shape_of(
        metadata[names[0]],
        metadata[names[1]] if names[1] else None,
        names=names,
        schema_version=version.schema_version,
    )
    return _Views(base=base, other=other, metadata=metadata, shape=shape)


def _check(table: TableRow, version: Version, plan: ReadPlan) -> None:
    """The plan reads what *version* pins, each view once. Raises: CutImpossible."""
    pinned = {view: one.metadata for view, one in version.views.items()}
    if len({part.view for part in plan.lake}) < len(plan.lake) or any(
        pinned.get(part.view) != part.metadata for part in plan.lake
    ):
        raise CutImpossible(
            f"{table.name}: version {version.version} had rows in the buffer that are in a later version's view by "
            "now, whose files may hold rows twice; nothing was written"
        )
    if plan.key and any(part.view == "stream" for part in plan.lake):
        raise CutImpossible(
            f"{table.name} is keyed: the newest row of a key may hide others in the views, and a cut names both; "
            "nothing was written. Its merged state, the batch view, can be a cut"
        )


def _view_manifests(
    writing: Writing, views: _Views, known: Mapping[str, CutPart]
) -> tuple[dict[str, CutPart], list[Listed], list[str]]:
    """The parts of the views, their manifests, and the files of these in the fresh folder."""
    parts: dict[str, CutPart] = {}
    manifests: list[Listed] = []
    files: list[str] = []
    for name, part, make in ((BASE, views.base, base_part), (OTHER, views.other, other_part)):
        if part is None:
            continue
        key = key_of(part, views.shape)
        metadata = views.metadata[part.metadata]
        same = kept(known, name, key)
        if same:
            with understood_record(f"the part {name!r}"):
                found = Part.from_json(same.manifests)
        else:
            found = make(writing, part, metadata)
        if name == BASE:
            own = listed_by(metadata, writing.query({}), writing.place)
            manifests += [one for one in own if one.path not in found.left_out]
        parts[name] = same or CutPart(key=key, manifests=found.to_json())
        manifests += found.written
        files += found.files
    return parts, manifests, files


def _summary(plan: ReadPlan, bounds: CutBounds, makers: Sequence[str]) -> dict[str, str]:
    """What the snapshot says of the cut: with how many offsets it is behind the plan, if it is a merged state."""
    behind = sum(max(0, b.buffer_hi - bounds[p][3]) for p, b in plan.bounds.items())
    found = {"harness.version": str(plan.version), "harness.bounds": bounds_text(bounds)}
    found["harness.freshness"] = NAMED if NAMED_MAKER in makers else FRESH
    return found if not behind else found | {"harness.freshness": MERGED, "harness.behind": str(behind)}
