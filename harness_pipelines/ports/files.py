"""What flows and the ledger ask of the place where the lake's files are: a folder, or a bucket of an object store.

They know files by their location alone. Settings, clients and how many requests an act takes are the store's own
business (`drivers/files.py`, `drivers/object_stores/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar

from harness_pipelines.protocol.lake.wide import Extents

One = TypeVar("One")


class FoundFile(Protocol):
    """A file of a listing."""

    @property
    def path(self) -> str:
        """In the normal form."""
        ...

    @property
    def bytes(self) -> int: ...

    @property
    def modified(self) -> datetime | None:
        """As the storage's clock had it: no order and no age may be decided by it alone."""
        ...


class FileStore(Protocol):
    """Raises: OSError for all that may end by itself, StoreRefused for what a person has to correct."""

    def listed(self, folder: str, *, allow_not_found: bool = True, sizes: bool = True) -> Iterator[FoundFile]:
        """Every file below *folder*, at any depth. Without *sizes* a caller must reckon with a file that is gone when
        it asks for its size or age: FileNotFoundError."""
        ...

    def size_of(self, location: str) -> int | None:
        """Bytes of a file; None where there is no such file."""
        ...

    def batches(self, found: Sequence[One], paths: Sequence[str]) -> Iterator[Sequence[One]]:
        """*found*, whose files are *paths*, in the parts that one request deletes."""
        ...

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; one that is not there is no error. What cannot be deleted holds no other file up."""
        ...

    def abort_uploads(self, folder: str, *, before: datetime) -> int:
        """Abort uploads below *folder* that began *before* and never ended; returns how many there were."""
        ...

    def keeps_deleted(self, location: str) -> bool | None:
        """Return whether what is deleted stays as an old version, and is billed; None: nobody knows."""
        ...


# -- what was read of the files of a view ---------------------------------------------------------------------

GONE = "there is no such file"
Progress = Callable[[int, int], None]  #: files read, known number of files to read


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is missing or cannot be parsed."""

    path: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSeen:
    """One snapshot in a metadata file."""

    snapshot: int
    parent: int | None
    sequence: int
    manifest_list: str
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataSeen:
    """One metadata file."""

    snapshot: int | None  #: of main
    snapshots: Mapping[int, SnapshotSeen]
    properties: Mapping[str, str]
    offset_id: int | None  #: field id of `_kafka_offset`; None: the view has no such column
    operation_id: int | None = None  #: of `_op`
    fields: Sequence[Mapping[str, Any]] = ()  #: of the current schema, in Iceberg's JSON form

    @property
    def head(self) -> SnapshotSeen | None:
        return None if self.snapshot is None else self.snapshots.get(self.snapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSeen:
    """One live file in a manifest."""

    path: str
    added: int | None  #: sequence number of the snapshot that added it; a rewrite never keeps it
    bytes: int
    rows: int
    partition: int | None  #: Kafka's; None: not partitioned as the harness does
    low: int | None  #: lowest and highest offset, both included; None: the writer kept no bounds
    high: int | None
    extents: Extents | None = None  #: of each partition, where it mixes several and says so; hidden rows count
    operations: tuple[str, str] | None = None  #: least and greatest `_op`; None: the writer kept no bounds
    deletes: str | None = None  #: what kind of delete file it is: position, equality; None: data
    deletes_of: str | None = None  #: the one data file that a position delete file speaks of


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSeen:
    """One manifest as a manifest list names it."""

    path: str
    bytes: int
    live: int  #: files that it adds or keeps
    rows: int  #: of these; negative for delete files, which hide this number
    plain: bool  #: of data files, and it removes none
    manifest: Any = field(repr=False, compare=False)  #: for the lake, which opens it


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that was read. A file that is not there has its `Unreadable` in the place of its content."""

    metadata: Mapping[str, MetadataSeen | Unreadable]
    lists: Mapping[str, tuple[ManifestSeen, ...] | Unreadable]
    manifests: Mapping[str, tuple[FileSeen, ...] | Unreadable]  #: those that were opened, and those that are damaged
    damaged: Mapping[str, tuple[tuple[FileSeen, Unreadable], ...]]  #: manifest -> its files that are gone or cut off
    newest: str | None = None  #: metadata file of the newest version
    by_age: frozenset[str] = frozenset()  #: manifest lists whose files are those of the newest that are old enough

    def lost(self, location: str) -> Iterable[tuple[str, Unreadable]]:
        """(kind, file) of everything that the metadata file at *location* names and that cannot be read."""
        found = self.metadata[location]
        if isinstance(found, Unreadable):
            yield "metadata file", found
            return
        if found.head is None:
            return
        manifests = self.lists[found.head.manifest_list]
        if isinstance(manifests, Unreadable):
            yield "manifest list", manifests
            return
        for manifest in manifests:
            files = self.manifests.get(manifest.path, ())
            if isinstance(files, Unreadable):
                yield "manifest", files
        if found.head.manifest_list in self.by_age:
            manifests, oldest = self.newest_manifests(), found.head.sequence
        else:
            oldest = None
        for manifest in manifests:
            for file, damage in self.damaged.get(manifest.path, ()):
                if oldest is None or (file.added is not None and file.added <= oldest):
                    yield "delete file" if file.deletes else "data file", damage

    def newest_manifests(self) -> tuple[ManifestSeen, ...]:
        """Manifests of the newest version; none when its list cannot be read."""
        found = self.metadata.get(self.newest or "")
        if not isinstance(found, MetadataSeen) or found.head is None:
            return ()
        manifests = self.lists[found.head.manifest_list]
        return () if isinstance(manifests, Unreadable) else manifests

    def rows(self, location: str) -> int | None:
        """Rows of main at *location* that are not hidden, by its manifest list; ``None`` when that was not read."""
        found = self.metadata.get(location)
        if not isinstance(found, MetadataSeen):
            return None
        manifests = self.lists[found.head.manifest_list] if found.head else ()
        return None if isinstance(manifests, Unreadable) else sum(manifest.rows for manifest in manifests)

    def files(self, location: str) -> list[FileSeen] | None:
        """Live files of main at *location*, delete files too; ``None`` when not all manifests were read."""
        found = self.metadata.get(location)
        if not isinstance(found, MetadataSeen):
            return None
        if found.head is None:
            return []
        manifests = self.lists[found.head.manifest_list]
        if isinstance(manifests, Unreadable):
            return None
        listed: list[FileSeen] = []
        for manifest in manifests:
            files = self.manifests.get(manifest.path)
            if files is None or isinstance(files, Unreadable):
                return None
            listed.extend(files)
        return listed
