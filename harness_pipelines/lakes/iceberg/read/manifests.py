"""The one reader of metadata files, manifest lists and manifests; damage becomes a named error.

These files never change under their path, so what was read of them is kept, within bounds for the process.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import orjson
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile, read_manifest_list
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.lakes.iceberg.checked_io import KEPT, fresh
from harness_pipelines.lakes.iceberg.read.file_columns import FileColumns
from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.protocol.lake.file_digests import FileDamaged

#: What a damaged file does to the parsers of JSON and Avro, which do not check what they read.
DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError, ArithmeticError, SystemError),
    *(zlib.error, struct.error),
)


def metadata_of(location: str, io: FileIO) -> TableMetadata:
    """What a metadata file says. Raises: what its parser raises of one that is damaged; OSError, FileDamaged."""

    def read() -> TableMetadata:
        return FromInputFile.table_metadata(io.new_input(location))

    try:
        return KEPT.get(location, read, kind="metadata", weigh=_bytes_of)
    except (*DAMAGE, ValidationError):
        KEPT.forget(location)  # perhaps the answer was damaged, and not the file
        raise


def _bytes_of(metadata: TableMetadata) -> int:
    """About what PyIceberg's objects take."""
    fields = sum(len(schema.fields) for schema in metadata.schemas)
    return 16_384 + 4_096 * len(metadata.snapshots) + 1_024 * (fields + len(metadata.metadata_log))


def main_list(location: str, io: FileIO) -> str | None:
    """The manifest list of main of a metadata file; None: main has no snapshot.

    PyIceberg's objects of all snapshots, refs and schemas that it names take many times as long as this one word.
    Raises: as `metadata_of`.
    """
    if not KEPT.has(location, kind="metadata") and not location.endswith(".gz.metadata.json"):
        with io.new_input(location).open() as stream, suppress(ValueError, LookupError, TypeError):
            told = orjson.loads(stream.read())
            head = told["current-snapshot-id"]
            found = [one["manifest-list"] for one in told["snapshots"] if one["snapshot-id"] == head]
            if len(found) == 1 and isinstance(found[0], str):
                return found[0]
    snapshot = metadata_of(location, io).current_snapshot()  # nothing is there, or it is written in another way
    return None if snapshot is None else snapshot.manifest_list


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """What a snapshot's manifest list names; nothing of no snapshot. Raises: ManifestDamaged, OSError."""
    if snapshot is None:
        return []
    return listed_in(snapshot.manifest_list, io)


def listed_in(manifest_list: str, io: FileIO) -> list[ManifestFile]:
    """What a manifest list names. Raises: ManifestDamaged, OSError."""
    with understood("manifest list", manifest_list):
        return list(read_manifest_list(io.new_input(manifest_list)))


def columns_of(manifest: ManifestFile, io: FileIO) -> FileColumns:
    """The live files of a manifest. Raises: ManifestDamaged, OSError."""
    return kept_columns(manifest, lambda: entries_of(manifest, io))


def fresh_columns(manifest: ManifestFile, io: FileIO) -> FileColumns:
    """The same for a check of what the file holds now: nothing that is kept answers for it."""
    return _made(manifest, entries_of(manifest, fresh(io)))


def kept_columns(manifest: ManifestFile, read: Callable[[], list[ManifestEntry]]) -> FileColumns:
    """The live files of a manifest, which *read* reads where they are not kept."""
    path = manifest.manifest_path
    return KEPT.get(path, lambda: _made(manifest, read()), kind="manifest", weigh=lambda columns: columns.nbytes)


def _made(manifest: ManifestFile, entries: Sequence[ManifestEntry]) -> FileColumns:
    return FileColumns([e.data_file for e in entries], entries, spec_id=manifest.partition_spec_id)


def entries_of(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """The live entries of a manifest as PyIceberg has them, for a writer that repeats them.

    Nothing of them is kept. Raises: ManifestDamaged, OSError.
    """
    path, size = manifest.manifest_path, len(io.new_input(manifest.manifest_path))
    if size != manifest.manifest_length:  # PyIceberg reads past the end of what was cut off
        KEPT.forget(path)
        raise _damaged("manifest", path, f"{size:,} bytes are there, {manifest.manifest_length:,} were written")
    with understood("manifest", path):
        return manifest.fetch_manifest_entry(io, discard_deleted=True)


@contextmanager
def understood(what: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError:  # it is away, which may pass
        raise
    except FileDamaged as error:
        raise ManifestDamaged(f"{what} {error}; nothing was written") from error
    except DAMAGE as error:
        KEPT.forget(path)
        raise _damaged(what, path, f"{type(error).__name__}: {str(error)[:200]}") from error


def _damaged(what: str, path: str, why: str) -> ManifestDamaged:
    return ManifestDamaged(
        f"{what} {path} cannot be understood: {why}; nothing was written. `harness fsck` names the versions that need "
        "it: copy it back, or `harness revert` to one that does not"
    )
