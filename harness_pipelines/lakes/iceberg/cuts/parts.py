"""The views' part of a cut: the manifests that are named as they are, and those that are written for it.

Of the base view, which most rows are in, data manifests are never written again, and no file of it is opened unless its
bounds reach beyond what the plan reads. Of the other view, the files that the plan reads from are named as existing
ones by one manifest: its own manifests say that they are of the base view's partitioning, since both views call
theirs 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import orjson
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.metadata import TableMetadata

from harness_pipelines.lakes.iceberg.cuts.folder import Place
from harness_pipelines.lakes.iceberg.cuts.hidden import choose, hidden_in, write_view_deletes
from harness_pipelines.lakes.iceberg.cuts.manifests import (
    DATA,
    DELETES,
    Entry,
    Listed,
    Stamp,
    entries,
    entry_of,
    listed,
    write_manifest,
)
from harness_pipelines.lakes.iceberg.cuts.shape import CutShape
from harness_pipelines.lakes.iceberg.read.manifests import metadata_of, understood
from harness_pipelines.lakes.iceberg.read.scan import PinnedView, extent_of, is_beyond, named_errors, pinned
from harness_pipelines.layout.files import Positions
from harness_pipelines.ports.lake import reachable
from harness_pipelines.ports.serving.cuts import CutPart
from harness_pipelines.protocol.cuts import part_key
from harness_pipelines.protocol.reading.narrowing import Ranges
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan, ranges_of
from harness_pipelines.protocol.reading.queries import LakeQuery

_Numbered = tuple[int, Entry]  #: an entry with the id that its partitioning has in the cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The manifests of one view in a cut."""

    written: tuple[Listed, ...] = ()  #: in the fresh folder
    left_out: frozenset[str] = frozenset()  #: of the base view's, by path: others stand for them
    files: tuple[str, ...] = ()  #: all that it has in the fresh folder

    def to_json(self) -> str:
        written = [one.to_json() for one in self.written]
        return orjson.dumps({"written": written, "left_out": sorted(self.left_out), "files": list(self.files)}).decode()

    @classmethod
    def from_json(cls, text: str) -> Part:
        told = orjson.loads(text)
        return cls(
            written=tuple(map(Listed.from_json, told["written"])),
            left_out=frozenset(told["left_out"]),
            files=tuple(told["files"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """What is known when the parts of a cut are written."""

    place: Place
    shape: CutShape
    stamp: Stamp
    plan: ReadPlan

    def query(self, ranges: Ranges) -> LakeQuery:
        return LakeQuery(table=self.plan.table, version=self.plan.version, ranges=ranges, columns=())


def key_of(part: LakePart, shape: CutShape) -> str:
    """What its manifests are made of: they are the same as long as it is."""
    return part_key(part.metadata, ranges_of(part), sorted(shape.moved.items()), shape.schema.schema_id)


def kept(known: Mapping[str, CutPart], name: str, key: str) -> CutPart | None:
    """The part of the cut before, if it is the same one."""
    part = known.get(name)
    return None if part is None or part.key != key else part


def metadata_at(location: str, query: LakeQuery, place: Place) -> TableMetadata:
    """What a metadata file says. Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable."""
    with named_errors(query, location), understood("metadata file", location):
        return metadata_of(location, place.io)


def listed_by(metadata: TableMetadata, query: LakeQuery, place: Place) -> Sequence[Listed]:
    """The manifests of a view. Raises: LakeFileMissing, LakeFileBroken, LakeUnreadable."""
    head = metadata.current_snapshot()
    if head is None:
        return ()
    with named_errors(query, head.manifest_list):
        return listed(head.manifest_list, place.io)


# -- the base view ----------------------------------------------------------------------------------------------


def base_part(writing: Writing, part: LakePart, metadata: TableMetadata) -> Part:
    """The base view's part: delete manifests in the place of some, if the view has rows that *part* leaves out."""
    ranges = ranges_of(part)
    is_mixed = not any(spec.fields for spec in metadata.partition_specs)
    if is_mixed and not is_beyond(extent_of(metadata), ranges):
        return Part()
    query = writing.query(ranges)
    with named_errors(query, part.metadata):
        view = pinned(part.metadata)
    chosen = choose(view, ranges)
    hidden = hidden_in(view, view.files.many(np.flatnonzero(chosen.straddling)), query)
    hidden |= {f.path: np.arange(f.stored) for f in view.files.many(np.flatnonzero(chosen.outside)) if f.stored}
    if not hidden:
        return Part()
    known = [one for one in listed_by(metadata, query, writing.place) if one.content == DELETES]
    stays, left_out = _without(writing, known, hidden, query)
    return _written(writing, [*stays, *_new_deletes(writing, view, hidden, {})], left_out=left_out)


def _without(
    writing: Writing, manifests: Iterable[Listed], replaced: Collection[str], query: LakeQuery
) -> tuple[list[_Numbered], frozenset[str]]:
    """Of delete manifests that name a delete file of a data file in *replaced* what else they name, and their paths."""
    stays: list[_Numbered] = []
    left_out = []
    for one in manifests:
        found = _entries(one, query, writing)
        if any(entry.hides_in in replaced for entry in found):
            left_out.append(one.path)
            stays += [(one.spec_id, entry) for entry in found if entry.hides_in not in replaced]
    return stays, frozenset(left_out)


# -- the other view ---------------------------------------------------------------------------------------------


def other_part(writing: Writing, part: LakePart, metadata: TableMetadata) -> Part:
    """The part of the other view: all files that *part* has rows of, with what hides rows of them."""
    ranges = ranges_of(part)
    query = writing.query(ranges)
    with named_errors(query, part.metadata):
        view = pinned(part.metadata)
    chosen = choose(view, ranges)
    hidden = hidden_in(view, view.files.many(np.flatnonzero(chosen.straddling)), query)
    paths = {file.path for file in view.files.many(np.flatnonzero(~chosen.outside))}
    found: list[_Numbered] = []
    for one in listed_by(metadata, query, writing.place):
        known = _entries(one, query, writing)
        number = writing.shape.moved[one.spec_id]
        found += [(number, entry) for entry in known if _is_read(entry, paths, hidden)]
    return _written(writing, [*found, *_new_deletes(writing, view, hidden, writing.shape.moved)])


def _is_read(entry: Entry, paths: Collection[str], hidden: Collection[str]) -> bool:
    """Whether it is one of the data files at *paths*, or hides rows of one that has no new deletes."""
    if entry.hides_in is None:
        return entry.path in paths
    return entry.hides_in in paths and entry.hides_in not in hidden


# -- both -------------------------------------------------------------------------------------------------------


def _entries(one: Listed, query: LakeQuery, writing: Writing) -> Sequence[Entry]:
    with named_errors(query, one.path):
        return entries(one, writing.place.io)


def _new_deletes(
    writing: Writing, view: PinnedView, hidden: Mapping[str, Positions], moved: Mapping[int, int]
) -> list[_Numbered]:
    """Entries of new delete files; *moved* as in `CutShape`."""
    with reachable(writing.plan.table, "writing position deletes of a cut"):
        written = write_view_deletes(writing.place, view, hidden)
    added = ManifestEntryStatus.ADDED
    return [(moved.get(i, i), entry_of(file, status=added, stamp=writing.stamp)) for file, i in written]


def _written(writing: Writing, found: Iterable[_Numbered], *, left_out: frozenset[str] = frozenset()) -> Part:
    """One manifest for the data files, and one for the delete files, of each partitioning."""
    ordered = sorted(found, key=lambda one: (one[1].content, one[0]))
    manifests = []
    for (_, number), group in groupby(ordered, key=lambda one: (one[1].content, one[0])):
        named = [entry for _, entry in group]
        with reachable(writing.plan.table, "writing a manifest of a cut"):
            spec = writing.shape.spec(number)
            manifests.append(write_manifest(writing.place, writing.shape, spec, named, stamp=writing.stamp))
    new = [entry.path for _, entry in ordered if entry.is_new]
    return Part(
        written=tuple(sorted(manifests, key=attrgetter("content"))),
        left_out=left_out,
        files=(*(one.path for one in manifests), *new),
    )


def totals(manifests: Iterable[Listed]) -> dict[str, str]:
    """What a snapshot's summary says of its files, as Iceberg counts: hidden rows are among the records."""
    found = list(manifests)
    data, deletes = ([one for one in found if one.content == content] for content in (DATA, DELETES))
    counts = {
        "total-records": sum(one.live_rows for one in data),
        "total-data-files": sum(one.live_files for one in data),
        "total-delete-files": sum(one.live_files for one in deletes),
        "total-position-deletes": sum(one.live_rows for one in deletes),
        "total-equality-deletes": 0,
    }
    return {name: str(count) for name, count in counts.items()}
