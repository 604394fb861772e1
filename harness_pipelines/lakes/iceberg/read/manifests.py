"""Manifests and manifest lists through PyIceberg; damage becomes a named error."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table.snapshots import Snapshot

from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.protocol.lake.file_digests import FileDamaged

#: What a damaged file does to the parsers of JSON and Avro, which do not check what they read.
DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, AssertionError, EOFError, ArithmeticError, SystemError),
    *(zlib.error, struct.error),
)


def manifests_of(snapshot: Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """What a snapshot's manifest list names; nothing of no snapshot. Raises: ManifestDamaged, OSError."""
    if snapshot is None:
        return []
    with understood("manifest list", snapshot.manifest_list):
        return snapshot.manifests(io)


def entries_of(manifest: ManifestFile, io: FileIO) -> list[ManifestEntry]:
    """The live entries of a manifest. Raises: ManifestDamaged, OSError."""
    path, size = manifest.manifest_path, len(io.new_input(manifest.manifest_path))
    if size != manifest.manifest_length:  # PyIceberg reads past the end of what was cut off
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
        raise _damaged(what, path, f"{type(error).__name__}: {str(error)[:200]}") from error


def _damaged(what: str, path: str, why: str) -> ManifestDamaged:
    return ManifestDamaged(
        f"{what} {path} cannot be understood: {why}; nothing was written. `harness fsck` names the versions that need "
        "it: copy it back, or `harness revert` to one that does not"
    )
