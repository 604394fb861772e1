"""Files of one view, from one listing and from metadata, and whether data files are complete.

Metadata files, manifest lists and manifests never change under their path, so what was read of them is kept. Whether
a file exists comes from the listing, and whether it is unchanged from its digest, never from the cache.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import orjson
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestFile,
    read_manifest_list,
)

from harness_pipelines.drivers.files import listed, size_of
from harness_pipelines.lakes.iceberg.checked_io import KEPT, opened_io
from harness_pipelines.lakes.iceberg.parquet import check_pages, damage_named
from harness_pipelines.lakes.iceberg.read.file_columns import FileColumns
from harness_pipelines.lakes.iceberg.read.manifests import DAMAGE, kept_columns
from harness_pipelines.ports.files import GONE, FileSeen, ManifestSeen, MetadataSeen, SnapshotSeen, Unreadable
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION
from harness_pipelines.protocol.lake.file_digests import FileDamaged
from harness_pipelines.spec.locations import folder_of, normal

Seen = TypeVar("Seen")


class LakeLook:
    """The files of one view. *locations* are metadata files of it; the folders around them are listed once.

    Raises: OSError when the warehouse cannot be listed.
    """

    def __init__(self, locations: Iterable[str]) -> None:
        self._io: FileIO = opened_io(fresh=True)
        self._sizes: dict[str, int] = {}
        self._roots = sorted({folder_of(path) + "/" for path in locations})
        for root in self._roots:
            self._sizes.update(stored_files(root))

    def size(self, path: str) -> int | None:
        """Bytes of a file; ``None`` if there is no such file."""
        if (found := self._sizes.get(path)) is not None:  # mostly: a path is written as it was listed
            return found
        if (found := self._sizes.get(normal(path))) is not None:
            return found
        return size_of(path)  # gone, of another engine, or spelled through a link: asked for one by one

    def metadata(self, path: str) -> MetadataSeen | Unreadable:
        return self._read(path, "seen metadata", partial(self._metadata, path))

    def manifests(self, manifest_list: str) -> tuple[ManifestSeen, ...] | Unreadable:
        return self._read(manifest_list, "manifest list", partial(self._manifests, manifest_list))

    def cut_off(self, manifest: ManifestSeen) -> Unreadable | None:
        """Return whether a manifest is there in full, without opening it."""
        size = self.size(manifest.path)
        if size is None:
            return Unreadable(manifest.path, GONE)
        if size != manifest.bytes:
            return Unreadable(manifest.path, f"has {size:,} bytes, {manifest.bytes:,} were written")
        return None

    def altered(self, manifest: ManifestSeen) -> Unreadable | None:
        """Return whether a manifest is not what was written, without an answer to what it says."""
        return self.cut_off(manifest) or self._tried(manifest.path, partial(self._compare, manifest.path))

    def damage(self, file: FileSeen) -> Unreadable | None:
        """Return whether a data or delete file is gone or is not what was written; each of its pages is read."""
        return self.cut_short(file) or self._tried(file.path, partial(self._read_pages, file.path))

    def cut_short(self, file: FileSeen) -> Unreadable | None:
        """Return whether a data or delete file is there in full, without opening it."""
        size = self.size(file.path)
        if size is None:
            return Unreadable(file.path, GONE)
        if size != file.bytes:
            return Unreadable(file.path, f"has {size:,} bytes, {file.bytes:,} were written")
        return None

    def _compare(self, path: str) -> None:
        self._io.new_input(path).open().close()

    def _read_pages(self, path: str) -> None:
        with damage_named(self._io, path), self._io.new_input(path).open() as stream:
            check_pages(stream)

    @staticmethod
    def _tried(path: str, look: Callable[[], None]) -> Unreadable | None:
        try:
            look()
        except FileDamaged as error:
            return Unreadable(path, error.why)
        except (OSError, *DAMAGE) as error:
            return Unreadable(path, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")
        return None

    def files(self, manifest: ManifestSeen, *, of: MetadataSeen | None) -> tuple[FileSeen, ...] | Unreadable:
        """The live files of a manifest; *of* says which columns are which."""
        if (damage := self.cut_off(manifest)) is not None:
            return damage
        return self._read(manifest.path, "manifest", partial(self._files, manifest.manifest, of))

    def _read(self, path: str, kind: str, read: Callable[[], Seen]) -> Seen | Unreadable:
        if self.size(path) is None:
            return Unreadable(path, GONE)
        try:
            if KEPT.has(path, kind=kind):  # what it was is known, not what it is
                self._compare(path)
            return read()
        except FileDamaged as error:
            return Unreadable(path, error.why)
        except (OSError, *DAMAGE) as error:
            return Unreadable(path, f"cannot be read: {type(error).__name__}: {str(error)[:200]}")

    def _metadata(self, path: str) -> MetadataSeen:
        def parsed() -> MetadataSeen:
            return _parse_metadata(self._io, path)

        return KEPT.get(path, parsed, kind="seen metadata", weigh=lambda seen: 1_024 * (2 + len(seen.snapshots)))

    def _manifests(self, path: str) -> tuple[ManifestSeen, ...]:
        def parsed() -> tuple[ManifestSeen, ...]:
            return _parse_list(self._io, path)

        return KEPT.get(path, parsed, kind="manifest list", weigh=lambda seen: 2_048 * (1 + len(seen)))

    def _files(self, manifest: ManifestFile, of: MetadataSeen | None) -> tuple[FileSeen, ...]:
        columns = kept_columns(manifest, lambda: manifest.fetch_manifest_entry(self._io, discard_deleted=True))
        return tuple(_seen(columns, number, of) for number in range(len(columns)))


def stored_files(folder: str) -> dict[str, int]:
    """{path: bytes} of every file below *folder*, in the normal form; one listing."""
    return {file.path: file.bytes for file in listed(folder)}


def _parse_metadata(io: FileIO, path: str) -> MetadataSeen:
    with io.new_input(path).open() as stream:
        content = stream.read()
    held = orjson.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    current, ids = held.get("current-snapshot-id"), {f["name"]: f["id"] for f in _fields(held)}
    return MetadataSeen(
        snapshot=None if current in (None, -1) else int(current),
        snapshots={
            int(s["snapshot-id"]): SnapshotSeen(
                snapshot=int(s["snapshot-id"]),
                parent=s.get("parent-snapshot-id"),
                sequence=s.get("sequence-number", 0),
                manifest_list=s["manifest-list"],
                summary=s.get("summary", {}),
            )
            for s in held.get("snapshots", ())
        },
        properties=held.get("properties", {}),
        offset_id=ids.get(OFFSET),
        operation_id=ids.get(OPERATION),
        fields=_fields(held),
    )


def _fields(metadata: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The columns of the current schema."""
    current = metadata["current-schema-id"]
    return next((s["fields"] for s in metadata["schemas"] if s["schema-id"] == current), ())


def _parse_list(io: FileIO, path: str) -> tuple[ManifestSeen, ...]:
    return tuple(
        ManifestSeen(
            path=m.manifest_path,
            bytes=m.manifest_length,
            live=(m.added_files_count or 0) + (m.existing_files_count or 0),
            rows=((m.added_rows_count or 0) + (m.existing_rows_count or 0)) * _SIGN[m.content],
            plain=m.content is ManifestContent.DATA and m.deleted_files_count == 0,
            manifest=m,
        )
        for m in read_manifest_list(io.new_input(path))
    )


_SIGN = {ManifestContent.DATA: 1, ManifestContent.DELETES: -1}
_DELETES = {DataFileContent.POSITION_DELETES.value: "position", DataFileContent.EQUALITY_DELETES.value: "equality"}


def _seen(files: FileColumns, number: int, of: MetadataSeen | None) -> FileSeen:
    low, high = (None, None)
    if of is not None and of.offset_id is not None:
        low, high = files.ends(of.offset_id, number)
    return FileSeen(
        path=files.path(number),
        added=files.written(number),
        bytes=int(files.bytes[number]),
        rows=int(files.rows[number]),
        partition=files.partition(number),
        low=low,
        high=high,
        extents=files.extents(number),
        operations=None if of is None or of.operation_id is None else _texts(files, number, of.operation_id),
        deletes=_DELETES.get(files.content(number)),
        deletes_of=files.deletes_of(number),
    )


def _texts(files: FileColumns, number: int, field_id: int) -> tuple[str, str] | None:
    """Lower and upper bound of a column; None where the writer kept none."""
    low, high = files.lower(field_id, number), files.upper(field_id, number)
    return None if low is None or high is None else (low.decode(), high.decode())
