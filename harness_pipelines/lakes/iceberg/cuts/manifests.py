"""Manifests and lists of manifests of a cut, and the entries that they repeat of those of a view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import uuid4

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec

from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.cuts import avro
from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.cuts.shape import CutShape
from harness_pipelines.lakes.iceberg.read.deletes import deleted_from, foreign
from harness_pipelines.lakes.iceberg.read.manifests import entries_of, listed_in

DATA, DELETES = 0, 1  #: what a manifest holds
_CONTENT = {DATA: "data", DELETES: "deletes"}
_ENTRY_BYTES = 300  #: of an `Entry`, beside its body


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """Which cut writes."""

    snapshot: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A live file of a manifest, encoded as an existing one."""

    path: str
    hides_in: str | None  #: of position deletes: the data file whose rows they hide, "" if several; None: it holds rows
    rows: int
    sequence: int
    partition: tuple[int | None, ...]
    encoded: bytes
    is_new: bool = False  #: in the cut that writes it

    @property
    def content(self) -> int:
        return DATA if self.hides_in is None else DELETES


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Over the values of one field that files are partitioned by."""

    has_null: bool
    low: str | None  #: as Iceberg writes it, in hex
    high: str | None
    has_nan: bool | None = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A manifest as a list names it."""

    path: str
    size: int  #: in bytes
    spec_id: int
    content: int
    sequence: int
    min_sequence: int
    snapshot: int
    files: tuple[int, int, int]  #: added, existing, deleted ones
    rows: tuple[int, int, int]
    partitions: tuple[Summary, ...] | None = None

    @property
    def live_files(self) -> int:
        return self.files[0] + self.files[1]

    @property
    def live_rows(self) -> int:
        return self.rows[0] + self.rows[1]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Listed:
        summaries = told["partitions"]
        partitions = None if summaries is None else tuple(Summary(**one) for one in summaries)
        counts = {name: tuple(told[name]) for name in ("files", "rows")}
        return cls(**{**told, **counts, "partitions": partitions})

    @classmethod
    def of(cls, manifest: ManifestFile) -> Listed:
        """As the list of a view names it, with its own sequence numbers."""
        counts = [
            manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count,
            manifest.added_rows_count, manifest.existing_rows_count, manifest.deleted_rows_count,
        ]  # fmt: skip
        found = [count or 0 for count in counts]
        return cls(
            path=manifest.manifest_path,
            size=manifest.manifest_length,
            spec_id=manifest.partition_spec_id,
            content=int(manifest.content),
            sequence=manifest.sequence_number,
            min_sequence=manifest.min_sequence_number,
            snapshot=manifest.added_snapshot_id or 0,
            files=(found[0], found[1], found[2]),
            rows=(found[3], found[4], found[5]),
            partitions=None if manifest.partitions is None else tuple(map(_summary, manifest.partitions)),
        )

    def encoded(self) -> bytes:
        return b"".join([
            avro.text(self.path),
            *map(avro.long, (self.size, self.spec_id, self.content, self.sequence, self.min_sequence, self.snapshot)),
            *map(avro.long, (*self.files, *self.rows)),
            avro.maybe(self.partitions, lambda summaries: avro.array(list(map(_encoded, summaries)))),
            avro.maybe(None, avro.raw),  # no keys: nothing is encrypted
        ])  # fmt: skip


def _summary(one: Any) -> Summary:
    low, high = (None if bound is None else bound.hex() for bound in (one.lower_bound, one.upper_bound))
    return Summary(has_null=one.contains_null, has_nan=one.contains_nan, low=low, high=high)


def _encoded(one: Summary) -> bytes:
    bounds = (avro.maybe(bound, lambda told: avro.raw(bytes.fromhex(told))) for bound in (one.low, one.high))
    return avro.boolean(one.has_null) + avro.maybe(one.has_nan, avro.boolean) + b"".join(bounds)


def listed(manifest_list: str, io: FileIO) -> Sequence[Listed]:
    """The manifests that a view's list names. Raises: ManifestDamaged, OSError."""

    def read() -> tuple[Listed, ...]:
        return tuple(map(Listed.of, listed_in(manifest_list, io)))

    return KEPT.get(manifest_list, read, kind="listed", weigh=lambda found: 600 * len(found))


def entries(one: Listed, io: FileIO) -> Sequence[Entry]:
    """The live files of a view's manifest. Raises: ManifestDamaged, ForeignDeletes, OSError."""

    def read() -> tuple[Entry, ...]:
        return tuple(map(_existing, entries_of(_manifest(one), io)))

    return KEPT.get(one.path, read, kind="entries", weigh=_weight)


def _weight(found: Sequence[Entry]) -> int:
    return sum(len(entry.encoded) + _ENTRY_BYTES for entry in found)


def _manifest(one: Listed) -> ManifestFile:
    return ManifestFile.from_args(
        manifest_path=one.path,
        manifest_length=one.size,
        partition_spec_id=one.spec_id,
        content=one.content,
        sequence_number=one.sequence,
        min_sequence_number=one.min_sequence,
        added_snapshot_id=one.snapshot,
    )


def _existing(found: ManifestEntry) -> Entry:
    """What an entry says, with the numbers that it takes over from its manifest."""
    assert found.snapshot_id is not None and found.sequence_number is not None
    return entry_of(
        found.data_file,
        status=ManifestEntryStatus.EXISTING,
        stamp=Stamp(snapshot=found.snapshot_id, sequence=found.sequence_number),
        written=found.file_sequence_number,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a manifest says of a file, whichever snapshot it is in; the words are those of `Entry`."""

    path: str
    hides_in: str | None
    rows: int
    partition: tuple[int | None, ...]
    encoded: bytes  #: `avro.data_file`

    def entry(self, *, status: ManifestEntryStatus, stamp: Stamp, written: int | None = None) -> Entry:
        """Of the snapshot of *stamp*, which added it; *written* as in `avro.entry`, if it is another number."""
        sequence = stamp.sequence if written is None else written
        return Entry(
            path=self.path,
            hides_in=self.hides_in,
            rows=self.rows,
            sequence=stamp.sequence,
            partition=self.partition,
            encoded=avro.entry(
                status, self.encoded, snapshot=stamp.snapshot, sequence=stamp.sequence, written=sequence
            ),
            is_new=status is ManifestEntryStatus.ADDED,
        )


def told_of_file(file: DataFile, *, is_ours: bool = False) -> Told:
    """One that *is_ours* may hide rows of several files. Raises: ForeignDeletes."""
    hides_in = None
    if int(file.content) != DATA and (hides_in := deleted_from(file)) is None:
        if not is_ours:
            raise foreign(file.file_path)
        hides_in = ""
    return Told(
        path=file.file_path,
        hides_in=hides_in,
        rows=file.record_count,
        partition=tuple(file.partition[place] for place in range(len(file.partition))),
        encoded=avro.data_file(file),
    )


def entry_of(file: DataFile, *, status: ManifestEntryStatus, stamp: Stamp, written: int | None = None) -> Entry:
    """The entry of a file: `Told.entry`. Raises: ForeignDeletes."""
    return told_of_file(file).entry(status=status, stamp=stamp, written=written)


def write_manifest(
    place: Place, shape: CutShape, spec: PartitionSpec, found: Sequence[Entry], *, stamp: Stamp
) -> Listed:
    """Write one manifest of files that are partitioned by *spec*, all with rows or all with deletes."""
    content = found[0].content
    path = place.metadata_file(f"{stamp.snapshot}-{uuid4()}-m{content}.avro")
    told = {
        "schema": shape.schema_json.decode(),
        "partition-spec": shape.spec_fields_json(spec).decode(),
        "partition-spec-id": str(spec.spec_id),
        "format-version": str(avro.FORMAT),
        "content": _CONTENT[content],
    }
    schema = avro.entry_schema(spec.partition_type(shape.schema))
    size = place.put(path, avro.container(schema, told, (entry.encoded for entry in found)))
    new, old = ([entry.rows for entry in found if entry.is_new is is_new] for is_new in (True, False))
    return Listed(
        path=path,
        size=size,
        spec_id=spec.spec_id,
        content=content,
        sequence=stamp.sequence,
        min_sequence=min(entry.sequence for entry in found),
        snapshot=stamp.snapshot,
        files=(len(new), len(old), 0),
        rows=(sum(new), sum(old), 0),
        partitions=tuple(_over([entry.partition[at] for entry in found]) for at in range(len(spec.fields))),
    )


def _over(values: Iterable[int | None]) -> Summary:
    """Over the whole numbers of type int by which files are partitioned."""
    all_values = list(values)
    known = [value for value in all_values if value is not None]
    low, high = (_bound(end(known)) if known else None for end in (min, max))
    return Summary(has_null=len(known) < len(all_values), low=low, high=high)


def _bound(value: int) -> str:
    return value.to_bytes(4, "little", signed=True).hex()


def write_list(place: Place, found: Sequence[Listed], *, stamp: Stamp) -> str:
    """Write the list of a cut's manifests, each with the sequence numbers that it has; return where it is."""
    path = place.metadata_file(f"snap-{stamp.snapshot}-{uuid4()}.avro")
    told = {
        "snapshot-id": str(stamp.snapshot),
        "parent-snapshot-id": "null",
        "sequence-number": str(stamp.sequence),
        "format-version": str(avro.FORMAT),
    }
    place.put(path, avro.container(avro.list_schema(), told, [one.encoded() for one in found]))
    return path
