"""Which regions a move should rewrite next, and in what order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.tree import RegionTree

FILE_COST_BYTES = 4 * 1024 * 1024  #: what opening one more file costs a reader, as Spark's openCostInBytes counts it
SPLIT_ABOVE = 1.5  #: targets of bytes
MERGE_BELOW = 0.5  #: targets of bytes that two siblings hold together


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
class Standing:
    """All files of a batch view, by the regions of its tree."""

    regions: tuple[RegionState, ...]  #: in the order of the tree
    astray: Mapping[str, tuple[FileStats, ...]]  #: files in no region, by the inner node that holds them

    @property
    def staged_share(self) -> float:
        """Bytes that are staged or astray, of all."""
        astray = sum(file.bytes for files in self.astray.values() for file in files)
        total = astray + sum(region.bytes for region in self.regions)
        return (astray + sum(region.staged_bytes for region in self.regions)) / total if total else 0.0


def standing(tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int]) -> Standing:
    """Sort *files* into the regions. *clustered*: per path the sequence number of its last rewrite, none: never."""
    at: dict[str, list[FileStats]] = defaultdict(list)
    for file in files:
        at[place(tree, file)].append(file)
    regions = tuple(
        _state(region.path, at.pop(region.path, []), clustered.get(region.path, 0), region.unsplittable)
        for region in tree.regions()
    )
    return Standing(regions, {path: tuple(found) for path, found in sorted(at.items())})


def _state(path: str, files: Sequence[FileStats], sequence: int, unsplittable: bool) -> RegionState:
    settled = [file for file in files if file.sequence <= sequence]
    staged = [file for file in files if file.sequence > sequence]
    return RegionState(
        path=path,
        clustered_rows=sum(file.rows for file in settled),
        clustered_bytes=sum(file.bytes for file in settled),
        staged_rows=sum(file.rows for file in staged),
        staged_bytes=sum(file.bytes for file in staged),
        files=len(files),
        clustered_sequence=sequence,
        unsplittable=unsplittable,
    )


class Kind(StrEnum):
    """What is done to a part of the tree."""

    RELAYOUT = "relayout"  #: the region's files become one
    SPLIT = "split"  #: the region is cut, one file each
    MERGE = "merge"  #: the two regions below become one


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One unit of a relayout move; *path* is the region, for a merge the node above both."""

    kind: Kind
    path: str
    bytes: int  #: read and written again
    gain_bytes: int  #: what readers are spared, as bytes, if each of them came by here once

    @property
    def worth(self) -> float:
        return self.gain_bytes / max(1, self.bytes)


def due(
    regions: Sequence[RegionState], *, target_bytes: int, budget_bytes: int, staged_ratio: float = 0.5
) -> list[Action]:
    """What to do, best gain per byte first, as far as the budget reaches; where anything is due, at least one.

    A region is due for a relayout when its staged bytes are *staged_ratio* of its clustered ones, for a split above
    `SPLIT_ABOVE` targets; two sibling regions for a merge below `MERGE_BELOW` together. No region is in two actions.
    """
    wanted = [action for r in regions if (action := _for_region(r, target_bytes, staged_ratio))]
    taken = {action.path for action in wanted if action.kind is Kind.SPLIT}
    merges = _merges(regions, target_bytes, taken)
    merged = {merge.path + step for merge in merges for step in "01"}
    wanted = merges + [action for action in wanted if action.path not in merged]
    wanted.sort(key=lambda action: (-action.worth, action.path))
    return _within(wanted, budget_bytes)


def _for_region(region: RegionState, target_bytes: int, staged_ratio: float) -> Action | None:
    if not region.bytes:
        return None
    spared = (region.files - 1) * FILE_COST_BYTES + region.staged_bytes
    if region.bytes > SPLIT_ABOVE * target_bytes and not region.unsplittable:
        gain = spared + region.bytes - target_bytes
        return Action(kind=Kind.SPLIT, path=region.path, bytes=region.bytes, gain_bytes=gain)
    if region.staged_bytes and region.staged_bytes >= staged_ratio * region.clustered_bytes:
        return Action(kind=Kind.RELAYOUT, path=region.path, bytes=region.bytes, gain_bytes=spared)
    return None


def _merges(regions: Sequence[RegionState], target_bytes: int, taken: set[str]) -> list[Action]:
    by_path = {region.path: region for region in regions}
    found = []
    for low in regions:
        high = by_path.get(low.path[:-1] + "1") if low.path.endswith("0") else None
        if high is None or {low.path, high.path} & taken or low.unsplittable != high.unsplittable:
            continue
        size, files = low.bytes + high.bytes, low.files + high.files
        if size < MERGE_BELOW * target_bytes and files > 1:
            gain = (files - 1) * FILE_COST_BYTES + low.staged_bytes + high.staged_bytes
            found.append(Action(kind=Kind.MERGE, path=low.path[:-1], bytes=size, gain_bytes=gain))
    return found


def _within(wanted: Sequence[Action], budget_bytes: int) -> list[Action]:
    chosen: list[Action] = []
    left = budget_bytes
    for action in wanted:
        if action.bytes <= left or not chosen:
            chosen.append(action)
            left -= action.bytes
    return chosen
