"""The parts of the tree that a move writes: pieces for new rows, and parts due for a rewrite.

New rows are few against the rows that are there, so a file for each region would litter: they go to the smallest parts
of the tree that give them files of some size, and wait there, as in a buffer tree (Arge 1995), until enough of them
have come together. A part is due when what waits in it is a share of what is clustered there. Where many files of like
size wait at one node they alone are put together and sent further down: their number stays bounded however small the
merges are, and what waits high in a view that is larger than a move's budget comes down to where it can be clustered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.tree import RegionTree, is_layered

OVERSIZE = 1.5  #: targets of bytes: a region above is cut again
UNDERSIZE = 0.5  #: targets of bytes that two neighbours hold together: they become one
WAITING_MAX = 16  #: files of like size that wait at one node; like size: within a factor of as many
_TIER_BITS = WAITING_MAX.bit_length() - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """What should be rewritten at one part of the tree: all files inside it, or only some that wait at its node."""

    path: str
    files: tuple[FileStats, ...]
    staged_bytes: int  #: of those of them that are not clustered yet
    waiting: bool = False  #: only these files, to be sent further down; the regions below stay as they are

    @property
    def bytes(self) -> int:
        """What is read and written."""
        return sum(file.bytes for file in self.files)


@dataclass(slots=True)
class _Part:
    """A node with the files wholly inside it."""

    path: str
    files: list[FileStats] = field(default_factory=list)
    waiting: list[FileStats] = field(default_factory=list)  #: of these, not clustered and at this very node
    staged: int = 0  #: bytes
    bytes: int = 0
    children: tuple[_Part, _Part] | None = None
    apart: bool = False  #: its children are the sample layer and the other rows, which never become one region

    @property
    def clustered(self) -> int:
        return self.bytes - self.staged

    def as_due(self) -> Rewrite:
        return Rewrite(path=self.path, files=tuple(self.files), staged_bytes=self.staged)


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
    left_out: Collection[Collection[str]] = (),
) -> list[Rewrite]:
    """The parts that one move rewrites: disjoint, most staged first, within *budget_bytes*, at least one.

    *clustered* has, per region, the data sequence number up to which its files are as its last rewrite left them.
    A part is as large as can be: one rewrite of ten regions is no dearer than ten, and takes the files between them.
    Files that only wait go first and by themselves: they are few bytes, and many files for every reader.
    *left_out* are sets of paths that no move takes together: one that did has failed, so others take less.
    """
    root = _parts(tree, files, clustered)
    found = list(_crowds(root, budget_bytes, left_out)) or [
        part.as_due() for part in _eligible(root, target_bytes, staged_ratio, budget_bytes, left_out)
    ]
    found.sort(key=lambda d: (-d.staged_bytes / max(d.bytes, 1), d.path))
    chosen: list[Rewrite] = []
    left = budget_bytes
    for part in found:
        if part.bytes <= left or not chosen:
            chosen.append(part)
            left -= part.bytes
    return sorted(not_all_of(left_out, chosen), key=lambda d: d.path)


def not_all_of(left_out: Collection[Collection[str]], chosen: Sequence[Rewrite]) -> list[Rewrite]:
    """The first of *chosen*, as many as one move takes: half as many as long as one of *left_out* is all among them."""
    taken = list(chosen)
    while has_all_of(left_out, [file for part in taken for file in part.files]):
        taken = taken[: len(taken) // 2]
    return taken


def has_all_of(left_out: Collection[Collection[str]], files: Sequence[FileStats]) -> bool:
    """Return whether *files* contain all paths of one of the sets *left_out*."""
    if not left_out:
        return False
    paths = {file.path for file in files}
    return any(paths.issuperset(one) for one in left_out if one)


def _crowds(part: _Part, budget_bytes: int, left_out: Collection[Collection[str]]) -> Iterator[Rewrite]:
    """Per node the files that wait there, where they are `WAITING_MAX` of like size or half a move's budget.

    Only files of like size are put together, so a row is written once per factor of `WAITING_MAX`, not once per merge.
    """
    tiers: dict[int, list[FileStats]] = defaultdict(list)
    for file in part.waiting:
        if any(file.path in one for one in left_out):
            continue
        tiers[file.bytes.bit_length() // _TIER_BITS].append(file)
    for _, tier in sorted(tiers.items()):
        size = sum(file.bytes for file in tier)
        if len(tier) >= WAITING_MAX or (part.children and len(tier) > 1 and size >= budget_bytes / 2):
            yield Rewrite(path=part.path, files=tuple(_within(tier, budget_bytes)), staged_bytes=size, waiting=True)
            break
    for child in part.children or ():
        yield from _crowds(child, budget_bytes, left_out)


def _within(files: Sequence[FileStats], budget_bytes: int) -> list[FileStats]:
    """The oldest of *files* that fit into the budget, two at least."""
    taken: list[FileStats] = []
    for file in sorted(files, key=lambda f: (f.sequence, f.path)):
        if len(taken) >= 2 and sum(f.bytes for f in taken) + file.bytes > budget_bytes:
            break
        taken.append(file)
    return taken


def _eligible(
    part: _Part, target_bytes: int, staged_ratio: float, budget_bytes: int, left_out: Collection[Collection[str]]
) -> Iterator[_Part]:
    """The topmost parts that are due, not above the budget and not tried in vain, and regions whatever their size."""
    fits = (part.bytes <= budget_bytes or part.children is None) and not has_all_of(left_out, part.files)
    if fits and _is_due(part, target_bytes, staged_ratio):
        yield part
    elif part.children is not None:
        for child in part.children:
            yield from _eligible(child, target_bytes, staged_ratio, budget_bytes, left_out)


def _is_due(part: _Part, target_bytes: int, staged_ratio: float) -> bool:
    if part.staged and part.staged >= staged_ratio * part.clustered:
        return True
    if part.children is None:
        # A clustered file that is still too large could not be cut (equal keys), and is not tried each time.
        return part.clustered <= OVERSIZE * target_bytes < part.bytes
    regions = not part.apart and all(child.children is None for child in part.children)
    return regions and len(part.files) > 1 and part.bytes < UNDERSIZE * target_bytes


def taken_along(
    tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int], touched: Collection[str]
) -> tuple[list[FileStats], list[str]]:
    """Return what is rewritten around the files at the paths *touched*, and the regions that this clusters again.

    Where clustered files of a region are touched, what waits in it goes along: it is less than they are, and without
    it the region would not be clustered afterwards.
    """
    placed = [(file, place(tree, file)) for file in files]

    def waits(file: FileStats, path: str) -> bool:
        return file.sequence > clustered.get(path, 0)

    regions = {path for file, path in placed if file.path in touched and not waits(file, path)}
    taken = [file for file, path in placed if file.path in touched or (path in regions and waits(file, path))]
    return taken, sorted(regions)


def not_grown(
    tree: RegionTree,
    regions: Sequence[str],
    taken: Sequence[FileStats],
    staged: Sequence[FileStats],
    *,
    target_bytes: int,
) -> list[str]:
    """Of *regions* those that need not be cut now that the files *staged* stand for *taken*.

    A region that was too large before could not be cut: equal keys, see `_is_due`.
    """
    had, has = _bytes_at(tree, taken), _bytes_at(tree, staged)
    large = OVERSIZE * target_bytes
    return [path for path in regions if has[path] <= large or had[path] > large]


def _bytes_at(tree: RegionTree, files: Sequence[FileStats]) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for file in files:
        found[place(tree, file)] += file.bytes
    return found


def _parts(tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int]) -> _Part:
    here: dict[str, list[FileStats]] = defaultdict(list)
    for file in files:
        here[place(tree, file)].append(file)
    nodes = iter(tree.nodes())

    def made(path: str) -> _Part:
        part = _Part(path, apart=path == "" and is_layered(tree.columns))
        if next(nodes) is not None:
            part.children = low, high = made(path + "0"), made(path + "1")
            part.files = low.files + high.files
            part.staged, part.bytes = low.staged + high.staged, low.bytes + high.bytes
        settled = 0 if part.children else clustered.get(path, 0)
        part.waiting = [file for file in here[path] if file.sequence > settled]
        part.files = part.files + here[path]
        part.staged += sum(file.bytes for file in part.waiting)
        part.bytes += sum(file.bytes for file in here[path])
        return part

    return made("")
