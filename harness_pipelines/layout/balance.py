"""Build a balanced tree from files, if there is none or if cuts in place made it deep.

A part that grew is cut where it stands, so rows that come in order make a chain of the tree: each rewrite cuts the
outermost region again. How deep a region lies is what routing costs its rows, and the length of its name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import FileStats, place, rebuild, side_of
from harness_pipelines.layout.tree import SIDES, RegionTree, is_layered, layered

LOST_MAX = 0.1  #: share of the clustered bytes that a balanced tree may leave to be clustered again
Clustered = Mapping[str, int]  #: per region the data sequence number up to which its files are clustered


def depth_max(regions: int) -> int:
    """The depth above which a tree of this many regions is rebalanced: twice the minimum, with room for few regions."""
    return 2 * max(regions - 1, 1).bit_length() + 8


def from_files(files: Sequence[FileStats], columns: Sequence[IndexedColumn]) -> tuple[RegionTree, dict[str, int]]:
    """Build a tree from *files* alone, and mark the regions that may count as clustered.

    That is a region with one file, and newer ones that wait beside it and are smaller. Files that overlap otherwise are
    to be clustered.
    """
    tree, clustered = _told_apart(files, columns), dict[str, int]()
    for path, here in _in_regions(tree, files).items():
        first = min(here, key=lambda file: (-file.bytes, file.sequence, file.path))
        if all(file.sequence > first.sequence for file in here if file is not first):
            clustered[path] = first.sequence
    return tree, clustered


def balanced(tree: RegionTree, files: Sequence[FileStats], clustered: Clustered) -> tuple[RegionTree, dict[str, int]]:
    """*tree* and *clustered*, or where the tree is too deep another one that has the same files in its regions.

    A region of that one is clustered if it has the clustered files of one region, and what waits in it is newer. Where
    clustered files of more than `LOST_MAX` of the bytes share a region of it, or span several, the tree stays.
    """
    kept = dict(clustered)
    if tree.depth <= depth_max(len(tree)):
        return tree, kept
    homes = {file.path: home for home, here in _in_regions(tree, files).items() for file in here}
    settled = [f for f in files if f.path in homes and f.sequence <= clustered.get(homes[f.path], 0)]
    flat, carried, held = _told_apart(settled, tree.columns), dict[str, int](), 0
    of_settled = {file.path for file in settled}
    for path, here in _in_regions(flat, files).items():
        found = {homes[file.path] for file in here if file.path in of_settled}
        if len(found) != 1:
            continue
        upto = clustered[found.pop()]
        held += sum(file.bytes for file in here if file.path in of_settled)
        if all(file.sequence > upto for file in here if file.path not in of_settled):
            carried[path] = upto
    lost = sum(file.bytes for file in settled) - held
    if not held or lost > LOST_MAX * (held + lost) or flat.depth >= tree.depth:
        return tree, kept
    return flat, carried


def _told_apart(files: Sequence[FileStats], columns: Sequence[IndexedColumn]) -> RegionTree:
    """`rebuild` on both sides of the sample layer, which is always the first cut."""
    if not is_layered(columns) or len(files) < 2:
        return rebuild(files, columns)
    tree = layered(columns)
    for side in SIDES:
        inside = [f for f in files if side_of(f, columns[0], f.extents[0], At(1)) == side]
        tree = tree.grafted(side, rebuild(inside, columns))
    return tree


def _in_regions(tree: RegionTree, files: Sequence[FileStats]) -> Mapping[str, list[FileStats]]:
    """The files that lie wholly in one region, by its path."""
    regions, found = set(tree.paths()), defaultdict[str, list[FileStats]](list)
    for file in files:
        if (home := place(tree, file)) in regions:
            found[home].append(file)
    return found
