"""Contents of each region: clustered files, later pieces, and files that span regions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.tree import RegionTree


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionState:
    """What lies at one region: clustered files (as its last rewrite left them) and staged pieces (since then)."""

    path: str
    clustered_rows: int = 0
    clustered_bytes: int = 0
    staged_rows: int = 0
    staged_bytes: int = 0
    files: int = 0
    clustered_sequence: int = 0  #: files with a larger sequence number are staged
    unsplittable: bool = False

    @property
    def rows(self) -> int:
        return self.clustered_rows + self.staged_rows

    @property
    def bytes(self) -> int:
        return self.clustered_bytes + self.staged_bytes


@dataclass(frozen=True, slots=True)
class RegionContents:
    """All files of a batch view, by the regions of its tree."""

    regions: tuple[RegionState, ...]  #: in the order of the tree
    astray: Mapping[str, tuple[FileStats, ...]]  #: files in no region, by the inner node that holds them

    @property
    def staged_share(self) -> float:
        """Bytes that are staged or astray, of all."""
        astray = sum(file.bytes for files in self.astray.values() for file in files)
        total = astray + sum(region.bytes for region in self.regions)
        return (astray + sum(region.staged_bytes for region in self.regions)) / total if total else 0.0


def contents_of(tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int]) -> RegionContents:
    """Sort *files* into the regions. *clustered*: per path the sequence number of its last rewrite, none: never."""
    at: dict[str, list[FileStats]] = defaultdict(list)
    for file in files:
        at[place(tree, file)].append(file)
    regions = tuple(
        _state(region.path, at.pop(region.path, []), clustered.get(region.path, 0), region.unsplittable)
        for region in tree.regions()
    )
    return RegionContents(regions, {path: tuple(found) for path, found in sorted(at.items())})


def _state(path: str, files: Sequence[FileStats], sequence: int, unsplittable: bool) -> RegionState:
    settled = [file for file in files if file.sequence <= sequence]
    staged = [file for file in files if file.sequence > sequence]
    return RegionState(
        path=path,
        clustered_rows=sum(file.live for file in settled),
        clustered_bytes=sum(file.bytes for file in settled),
        staged_rows=sum(file.live for file in staged),
        staged_bytes=sum(file.bytes for file in staged),
        files=len(files),
        clustered_sequence=sequence,
        unsplittable=unsplittable,
    )
