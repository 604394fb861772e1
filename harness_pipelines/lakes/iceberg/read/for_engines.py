"""What an engine has to know of a pinned view, whose rows it reads by itself."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from pyiceberg.types import NestedField

from harness_pipelines.lakes.iceberg.checked_io import compare
from harness_pipelines.lakes.iceberg.read.scan import (
    READERS,
    PinnedView,
    choose_files,
    layer_field,
    named_errors,
    pinned,
    reaches_beyond,
    view_fields,
)
from harness_pipelines.ports.engine import LakeScan, ScanColumn
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.queries import LakeQuery, LakeStats
from harness_pipelines.spec.types import Type, type_from_json

ALL_OFFSETS = (0, 2**63 - 1)


class IcebergScans:
    """`LakeScans` over PyIceberg's metadata."""

    def scan(self, metadata: str, query: LakeQuery) -> LakeScan:
        """Compare what an engine's plan is made of with its digests, and say how it finds what *query* wants.

        Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable.
        """
        with named_errors(query, metadata):
            view = pinned(metadata)
            _check_ends(view, query)
            fields = view_fields(view, query.columns)
        return LakeScan(
            columns=[ScanColumn(shown=shown, name=one.name, type=_type(one)) for shown, one in fields.items()],
            has_layer=layer_field(view) is not None,
            is_covered=_covered(view, query.ranges),
        )

    def of_files(self, metadata: str, paths: Collection[str]) -> LakeQuery:
        """All columns and rows of some files."""
        ranges = dict.fromkeys(pinned(metadata).files.known_partitions(), ALL_OFFSETS) or {0: ALL_OFFSETS}
        return LakeQuery(table=metadata, version=0, ranges=ranges, columns=(), files=frozenset(paths))


def _type(field: NestedField) -> Type:
    return type_from_json(field.model_dump(mode="json", by_alias=True)["type"])


def _covered(view: PinnedView, ranges: Ranges) -> bool:
    """True if every row of *view* lies in *ranges*, so that no filter on them is needed."""
    mixed = view.files.mixed
    if np.any(mixed) and (not np.all(view.files.overlapping(ranges)[mixed]) or reaches_beyond(view, ranges)):
        return False
    return bool(np.all(mixed | (view.files.overlapping(ranges) & view.files.inside(ranges))))


def _check_ends(view: PinnedView, query: LakeQuery) -> None:
    """Compare with their digests the files by which another engine finds the rows of *query*.

    Of data files that is all but the pages. What this process has parsed before is read again: an engine reads it now.
    Of an object store that is data files alone: what it holds under a name changes only as a whole, and fsck reads it.
    Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable.
    """
    chosen = choose_files(view, query, LakeStats())
    files = [path for file in chosen for path in (file.path, file.deletes and file.deletes.path) if path is not None]

    def check(path: str) -> None:
        with named_errors(query, path):
            compare(view.io, path)

    with ThreadPoolExecutor(READERS, thread_name_prefix="check") as pool:
        list(pool.map(check, [view.location, *view.manifests, *files]))
