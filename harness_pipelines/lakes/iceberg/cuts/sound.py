"""Whether a cut that is served again can still be read, and what the ledger has of it understood.

What the ledger has of the last cut was written by a reader's login, and its files lie where others may delete them. So
neither is trusted: what cannot be read is `CutDamaged`, upon which the server retires the cut and makes another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import orjson
from pyiceberg.io import FileIO

from harness_pipelines.drivers.files import size_of
from harness_pipelines.lakes.iceberg.checked_io import AT_ONCE, fresh
from harness_pipelines.lakes.iceberg.read.manifests import DAMAGE, listed_in
from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged
from harness_pipelines.protocol.lake.file_digests import FileDamaged


@contextmanager
def told_of(what: str) -> Iterator[None]:
    """Something is made of what the ledger has of the last cut. Raises: CutDamaged where that is not understood."""
    try:
        yield
    except DAMAGE as error:
        raise _damaged(what, f"{type(error).__name__}: {str(error)[:200]}") from error


def check(cut: Cut, io: FileIO) -> None:
    """Read its metadata and its list of manifests as they are now, and compare the sizes of its other files.

    Of manifests and chunks the size is known that they were written with; of delete files only that they are there.
    Raises: CutDamaged, OSError, StoreRefused.
    """
    with _readable(cut.metadata):
        manifest_list = _list_of(cut, _content(cut.metadata, io))
    with _readable(manifest_list):
        sizes = {one.manifest_path: one.manifest_length for one in listed_in(manifest_list, fresh(io))}
    sizes |= {chunk.path: chunk.bytes for chunk in cut.chunks}
    others = [path for path in cut.files if path not in (cut.metadata, manifest_list)]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cut") as pool:
        for path, size in zip(others, pool.map(size_of, others), strict=True):
            _check_size(path, size, sizes)


def _content(location: str, io: FileIO) -> Mapping[str, Any]:
    with fresh(io).new_input(location).open() as stream:
        told: Mapping[str, Any] = orjson.loads(stream.read())
    return told


def _list_of(cut: Cut, told: Mapping[str, Any]) -> str:
    """The list of manifests of its snapshot."""
    [head] = [one for one in told["snapshots"] if one["snapshot-id"] == cut.snapshot_id == told["current-snapshot-id"]]
    if head["sequence-number"] != cut.sequence:
        raise ValueError(f"sequence {head['sequence-number']}, the ledger has {cut.sequence}")
    return str(head["manifest-list"])


def _check_size(path: str, size: int | None, written: Mapping[str, int]) -> None:
    if size is None:
        raise _damaged(path, "it is not there")
    if size != (wanted := written.get(path, size)):
        raise _damaged(path, f"it has {size:,} bytes, and was written with {wanted:,}")


@contextmanager
def _readable(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise _damaged(path, "it is not there") from error
    except OSError:  # the store is away, which may pass
        raise
    except (ManifestDamaged, FileDamaged) as error:
        raise _damaged(path, str(error)) from error
    except DAMAGE as error:
        raise _damaged(path, f"{type(error).__name__}: {str(error)[:200]}") from error


def _damaged(what: str, why: str) -> CutDamaged:
    return CutDamaged(f"of the newest cut {what} cannot be read: {why}")
