"""Whether a cut that is served again can still be read, and what the ledger has of it understood.

What the ledger has of the last cut was written by a reader's login, and its files lie where others may delete them. So
neither is trusted: what cannot be read is `CutDamaged`, upon which the server retires the cut and makes another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import orjson
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile

from harness_pipelines.drivers.files import size_of
from harness_pipelines.lakes.iceberg.checked_io import AT_ONCE, fresh
from harness_pipelines.lakes.iceberg.parquet import damage_named, read_columns
from harness_pipelines.lakes.iceberg.read.deletes import deleted_from
from harness_pipelines.lakes.iceberg.read.manifests import DAMAGE, entries_of, listed_in
from harness_pipelines.ports.errors import ManifestDamaged
from harness_pipelines.ports.serving.cuts import Cut, CutDamaged
from harness_pipelines.protocol.cut_checks import ListedCut, ListedData, ListedDeletes
from harness_pipelines.protocol.cuts import bounds_of_json
from harness_pipelines.protocol.lake.file_digests import FileDamaged


@contextmanager
def understood_record(what: str) -> Iterator[None]:
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
    with readable(cut.metadata):
        manifest_list = _list_of(cut, _content(cut.metadata, io))
    with readable(manifest_list):
        sizes = {one.manifest_path: one.manifest_length for one in listed_in(manifest_list, fresh(io))}
    sizes |= {chunk.path: chunk.bytes for chunk in cut.chunks}
    others = [path for path in cut.files if path not in (cut.metadata, manifest_list)]
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cut") as pool:
        for path, size in zip(others, pool.map(size_of, others), strict=True):
            _check_size(path, size, sizes)


def listed(metadata: str, io: FileIO) -> ListedCut:
    """What a cut says of itself, as its files are now: of data files only those of which delete files hide rows.

    Of data files that one delete file of the cut names together, that file says how many rows it hides of each.

    Raises: CutDamaged, OSError, StoreRefused.
    """
    with readable(metadata):
        told = _content(metadata, io)
        [head] = [one for one in told["snapshots"] if one["snapshot-id"] == told["current-snapshot-id"]]
        summary, manifest_list = head["summary"], str(head["manifest-list"])
        bounds = bounds_of_json(orjson.loads(summary["harness.bounds"]))
    with readable(manifest_list):
        manifests = listed_in(manifest_list, fresh(io))
    deletes = [
        ListedDeletes(
            path=entry.data_file.file_path,
            sequence=entry.sequence_number or 0,
            hidden=_hidden(entry.data_file, io),
        )
        for entry in _entries(manifests, io, content=ManifestContent.DELETES)
    ]
    wanted = {path for one in deletes for path in one.hidden}
    data = [
        ListedData(
            path=entry.data_file.file_path, rows=entry.data_file.record_count, sequence=entry.sequence_number or 0
        )
        for entry in (_entries(manifests, io, content=ManifestContent.DATA) if wanted else ())
        if entry.data_file.file_path in wanted
    ]
    return ListedCut(
        snapshot_id=head["snapshot-id"],
        sequence=head["sequence-number"],
        version=int(summary["harness.version"]),
        bounds=bounds,
        freshness=str(summary.get("harness.freshness", "")),
        data=tuple(data),
        deletes=tuple(deletes),
    )


def _hidden(deletes: DataFile, io: FileIO) -> Mapping[str, int]:
    """How many rows it hides of which data file."""
    if (path := deleted_from(deletes)) is not None:
        return {path: deletes.record_count}
    with readable(deletes.file_path), damage_named(io, deletes.file_path):
        with fresh(io).new_input(deletes.file_path).open() as stream:
            paths = read_columns(stream, ["file_path"], repeated=["file_path"]).column("file_path")
        return {one["values"]: one["counts"] for one in paths.value_counts().to_pylist()}


def _entries(manifests: Iterable[ManifestFile], io: FileIO, *, content: ManifestContent) -> Iterator[ManifestEntry]:
    for one in manifests:
        if one.content == content:
            with readable(one.manifest_path):
                found = entries_of(one, fresh(io))
            yield from found


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
def readable(path: str) -> Iterator[None]:
    """A file of a cut is read. Raises: CutDamaged where it is lost or not understood; OSError."""
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
