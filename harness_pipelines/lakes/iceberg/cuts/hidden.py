"""Rows of a view's files that a plan does not read: position deletes hide them in a cut.

Which rows these are is read, by the same code that reads the plan: of a file whose bounds do not lie within the ranges,
all rows are hidden but those that a read of it returns. So rows that are deleted already are among them, and the
new delete file stands for the old one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import IntegerType

from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.read.deletes import AT_ONCE, write_deletes
from harness_pipelines.lakes.iceberg.read.live_files import Mask
from harness_pipelines.lakes.iceberg.read.scan import (
    POSITION,
    PinnedView,
    named_errors,
    reaches_beyond,
    read_file,
)
from harness_pipelines.layout.files import Positions
from harness_pipelines.ports.lake import LakeFile
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The files of a view by what a plan reads of them."""

    outside: Mask  #: nothing
    straddling: Mask  #: perhaps not all rows


def choose(view: PinnedView, ranges: Ranges) -> Chosen:
    """Which files of *view* hold rows of *ranges* alone, by their bounds, and which need a look."""
    files = view.files
    overlapping, inside, mixed = files.overlapping(ranges), files.inside(ranges), files.mixed
    if not reaches_beyond(view, ranges):
        inside = inside | mixed
    elif np.any(mixed):
        for place in np.flatnonzero(mixed & overlapping).tolist():
            inside[place] = _is_inside(view, place, ranges)
    return Chosen(outside=~(overlapping | inside), straddling=overlapping & ~inside)


def _is_inside(view: PinnedView, place: int, ranges: Ranges) -> bool:
    """Whether the bounds of a file of several partitions rule out that a row is not in *ranges*."""
    partition_id, file = view.field_id(PARTITION), view.files[place]
    low, high = (bound(partition_id, place) for bound in (view.files.lower, view.files.upper))
    if low is None or high is None:
        return False
    found = range(int(from_bytes(IntegerType(), low)), int(from_bytes(IntegerType(), high)) + 1)
    return len(found) <= len(ranges) and all(
        p in ranges and ranges[p][0] <= file.low and file.high <= ranges[p][1] for p in found
    )


def hidden_in(view: PinnedView, files: Sequence[LakeFile], query: LakeQuery) -> dict[str, Positions]:
    """Of *files* those that have rows which *query* leaves out, by path, with all rows that it leaves out.

    What is hidden already is among these; a file of which nothing more is hidden is left out.
    Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable, DeletesBroken.
    """
    places = LakeQuery(
        table=query.table,
        version=query.version,
        ranges=query.ranges,
        columns=[LakeColumn(name=OFFSET, field_id=None)],
    )

    def hidden(file: LakeFile) -> Positions:
        with named_errors(query, file.path):
            rows = read_file(view, file, places, with_positions=True)
        is_hidden = np.ones(file.stored, np.bool_)
        is_hidden[rows.column(POSITION).to_numpy()] = False
        return np.flatnonzero(is_hidden)

    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cut") as pool:
        found = list(pool.map(hidden, files))
    return {
        file.path: positions
        for file, positions in zip(files, found, strict=True)
        if len(positions) > (file.deletes.rows if file.deletes else 0)
    }


def write_view_deletes(place: Place, view: PinnedView, hidden: Mapping[str, Positions]) -> list[tuple[DataFile, int]]:
    """Write a delete file for each data file of *view*; the number beside it is that of its partitioning in the view.

    Raises: OSError, StoreRefused.
    """

    def write(found: tuple[LakeFile, int]) -> tuple[DataFile, int]:
        file, spec_id = found
        where = place.data_file("deletes")
        return write_deletes(place.io, where, file, hidden[file.path], spec_id=spec_id), spec_id

    if not hidden:
        return []
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="cut") as pool:
        return list(pool.map(write, view.files.named(hidden)))
