"""Which parts of the tree a move writes: pieces for what is new, and parts that are due to be written anew.

New rows are few against the rows that are there, so a file for each region would litter: they go to the smallest parts
of the tree that give them files of some size, and wait there, as in a buffer tree (Arge 1995), until enough of them
have come together. A part is due when what waits in it is a share of what is clustered there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.tree import RegionTree

OVERSIZE = 1.5  #: targets of bytes: a region above is cut again
UNDERSIZE = 0.5  #: targets of bytes that two neighbours hold together: they become one


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A part of the tree, by its path, that should be written anew."""

    path: str
    bytes: int  #: of all files inside: what is read and written
    staged_bytes: int  #: of those that are not clustered yet


@dataclass(slots=True)
class _Part:
    """A node with the files wholly inside it."""

    path: str
    clustered: int = 0
    staged: int = 0
    files: int = 0
    children: tuple[_Part, _Part] | None = None

    @property
    def bytes(self) -> int:
        return self.clustered + self.staged


def pieces(tree: RegionTree, rows: Mapping[str, float], *, rows_min: float) -> RegionTree:
    """*tree* with the parts collapsed in which there are too few *rows* (by region) for two files of *rows_min*."""
    coarse = tree
    for path in _too_small(tree, rows, rows_min):
        coarse = coarse.collapse(path)
    return coarse


def _too_small(tree: RegionTree, rows: Mapping[str, float], rows_min: float) -> Iterator[str]:
    """The topmost inner nodes that hold fewer than two times *rows_min* rows."""
    total: dict[str, float] = defaultdict(float)
    leaves = tree.paths()
    for path in leaves:
        for upto in range(len(path) + 1):
            total[path[:upto]] += rows.get(path, 0.0)
    inner = set(total) - set(leaves)

    def below(path: str) -> Iterator[str]:
        if path not in inner:
            return
        if total[path] < 2 * rows_min:
            yield path
        else:
            yield from below(path + "0")
            yield from below(path + "1")

    yield from below("")


def due(
    tree: RegionTree,
    files: Sequence[FileStats],
    clustered: Mapping[str, int],
    *,
    target_bytes: int,
    staged_ratio: float,
    budget_bytes: int,
) -> list[Due]:
    """The parts to write anew: disjoint, most staged first, within *budget_bytes* but always at least one.

    *clustered* has, per region, the data sequence number up to which its files are as its last rewrite left them.
    A part is as large as can be: one rewrite of ten regions is no dearer than ten, and takes the files between them.
    """
    root = _parts(tree, files, clustered)
    found = [
        Due(path=part.path, bytes=part.bytes, staged_bytes=part.staged)
        for part in _eligible(root, target_bytes, staged_ratio, budget_bytes)
    ]
    found.sort(key=lambda d: (-d.staged_bytes / max(d.bytes, 1), d.path))
    chosen: list[Due] = []
    left = budget_bytes
    for part in found:
        if part.bytes <= left or not chosen:
            chosen.append(part)
            left -= part.bytes
    return sorted(chosen, key=lambda d: d.path)


def _eligible(part: _Part, target_bytes: int, staged_ratio: float, budget_bytes: int) -> Iterator[_Part]:
    """The topmost parts that are due and not above the budget, and regions whatever their size."""
    if _is_due(part, target_bytes, staged_ratio) and (part.bytes <= budget_bytes or part.children is None):
        yield part
    elif part.children is not None:
        for child in part.children:
            yield from _eligible(child, target_bytes, staged_ratio, budget_bytes)


def _is_due(part: _Part, target_bytes: int, staged_ratio: float) -> bool:
    if part.staged and part.staged >= staged_ratio * part.clustered:
        return True
    if part.children is None:
        # What was clustered and is too large all the same could not be cut: equal keys.
        return bool(part.staged) and part.bytes > OVERSIZE * target_bytes
    regions = all(child.children is None for child in part.children)
    return regions and part.files > 1 and part.bytes < UNDERSIZE * target_bytes


def _parts(tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int]) -> _Part:
    here: dict[str, list[FileStats]] = defaultdict(list)
    for file in files:
        here[place(tree, file)].append(file)
    nodes = iter(tree.nodes())

    def made(path: str) -> _Part:
        part = _Part(path)
        if next(nodes) is not None:
            low, high = made(path + "0"), made(path + "1")
            part.children = (low, high)
            part.clustered, part.staged = low.clustered + high.clustered, low.staged + high.staged
            part.files = low.files + high.files
        for file in here[path]:
            part.files += 1
            if part.children is None and file.sequence <= clustered.get(path, 0):
                part.clustered += file.bytes
            else:
                part.staged += file.bytes
        return part

    return made("")
