"""The parts of the tree that a move writes: pieces for new rows, and parts due for a rewrite.

New rows are few against the rows that are there, so a file for each region would litter: they go to the smallest parts
of the tree that give them files of some size, and wait there, as in a buffer tree (Arge 1995), until enough of them
have come together. A part is due when what waits in it is a share of what is clustered there. Where many files of like
size wait at one node they alone are put together and sent further down: their number stays bounded however small the
merges are, and what waits high in a view that is larger than a move's budget comes down to where it can be clustered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.tree import Node, RegionTree, is_layered

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


@dataclass(slots=True, eq=False)
class _Part:
    """A node with the files wholly inside it."""

    path: str
    node: Node
    above: _Part | None
    apart: bool = False  #: its children are the sample layer and the other rows, which never become one region
    children: tuple[_Part, _Part] | None = None
    here: dict[str, FileStats] = field(default_factory=dict)  #: files at this very node, by path
    waiting: dict[str, FileStats] = field(default_factory=dict)  #: of these, those that are not clustered
    settled: int = 0  #: the sequence number up to which they are
    count: int = 0  #: files at it and below
    staged: int = 0  #: bytes of those that are not clustered
    bytes: int = 0
    crowds: tuple[Rewrite, ...] | None = None  #: at it and below; None: something changed since they were looked for
    eligible: tuple[_Part, ...] | None = None  #: as `crowds`

    @property
    def clustered(self) -> int:
        return self.bytes - self.staged

    @property
    def files(self) -> list[FileStats]:
        """At it and below."""
        below = [file for child in self.children or () for file in child.files]
        return [*below, *self.here.values()]

    def add(self, count: int, size: int, *, staged: int) -> None:
        """Count files in, or out with negative numbers, here and above; what was judged there is judged again."""
        part: _Part | None = self
        while part is not None:
            part.count, part.bytes, part.staged = part.count + count, part.bytes + size, part.staged + staged
            part.crowds = part.eligible = None
            part = part.above

    def as_due(self) -> Rewrite:
        return Rewrite(path=self.path, files=tuple(self.files), staged_bytes=self.staged)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What makes a part due."""

    target_bytes: int  #: of a file
    staged_ratio: float
    budget_bytes: int  #: of a move
    left_out: tuple[frozenset[str], ...] = ()  #: paths that no move takes together: one that did has failed


class Placed:
    """The files of a batch view at the parts of its tree, kept from look to look.

    Files that come or go are counted at their part and above it, and only these parts are judged again: a look costs
    what changed since the one before, and not what is there.
    """

    def __init__(self, tree: RegionTree, clustered: Mapping[str, int], files: Iterable[FileStats] = ()) -> None:
        """*clustered* has, per region, the data sequence number up to which its files are as its last rewrite left
        them."""
        self._parts: dict[str, _Part] = {}
        self._at: dict[str, _Part] = {}  #: by the path of a file
        self._rules: Rules | None = None
        self._tree, self._clustered = tree, clustered
        self._lay_out(tree, clustered)
        self.change((), files)

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, path: str) -> bool:
        return path in self._at

    def __getitem__(self, path: str) -> FileStats:
        return self._at[path].here[path]

    @property
    def bytes(self) -> int:
        return self._parts[""].bytes

    def change(self, gone: Iterable[str], come: Iterable[FileStats]) -> None:
        """Take out the files at the paths *gone*; put in *come*, each for one at its path. Raises: ShapesDiffer."""
        for path in gone:
            self._take(path)
        for file in come:
            self._take(file.path)
            self._put(self._parts[place(self._tree, file)], file)

    def lay_out(self, tree: RegionTree, clustered: Mapping[str, int]) -> None:
        """Go on with the tree of a later version: only files below a node that is another one now are placed again.

        Raises: ShapesDiffer.
        """
        if tree != self._tree or clustered != self._clustered:
            self.change((), self._lay_out(tree, clustered))

    def due(self, rules: Rules) -> list[Rewrite]:
        """The parts that one move rewrites: disjoint, most staged first, within the budget, at least one.

        A part is as large as can be: one rewrite of ten regions is no dearer than ten, and takes the files between
        them. Files that only wait go first and by themselves: they are few bytes, and many files for every reader.
        """
        if rules != self._rules:
            for one in self._parts.values():
                one.crowds = one.eligible = None
            self._rules = rules
        root = self._parts[""]
        found = list(_crowds(root, rules)) or [part.as_due() for part in self._eligible(root, rules)]
        found.sort(key=lambda d: (-d.staged_bytes / max(d.bytes, 1), d.path))
        chosen: list[Rewrite] = []
        left = rules.budget_bytes
        for part in found:
            if part.bytes <= left or not chosen:
                chosen.append(part)
                left -= part.bytes
        return sorted(not_all_of(rules.left_out, chosen), key=lambda d: d.path)

    def _take(self, path: str) -> None:
        if (part := self._at.pop(path, None)) is not None:
            file, waited = part.here.pop(path), part.waiting.pop(path, None)
            part.add(-1, -file.bytes, staged=-file.bytes if waited else 0)

    def _put(self, part: _Part, file: FileStats) -> None:
        waits = file.sequence > part.settled
        part.here[file.path], self._at[file.path] = file, part
        if waits:
            part.waiting[file.path] = file
        part.add(1, file.bytes, staged=file.bytes if waits else 0)

    def _lay_out(self, tree: RegionTree, clustered: Mapping[str, int]) -> list[FileStats]:
        """Make the parts of *tree*; returns the files whose part is no more, for which others are to be found."""
        nodes, parts, homeless = iter(tree.nodes()), dict[str, _Part](), list[FileStats]()

        def made(path: str, was: _Part | None, above: _Part | None) -> _Part:
            node = next(nodes)
            part = parts[path] = _Part(path, node, above, apart=path == "" and is_layered(tree.columns))
            part.settled = 0 if node else clustered.get(path, 0)
            if was is not None and was.node != node:
                homeless.extend(was.files)
                was = None
            if was is not None:
                self._take_over(part, was)
            if node is not None:
                low, high = (was and was.children) or (None, None)
                part.children = made(path + "0", low, part), made(path + "1", high, part)
                for child in part.children:
                    part.count, part.bytes = part.count + child.count, part.bytes + child.bytes
                    part.staged += child.staged
            return part

        root = self._parts.get("")
        if root is not None and tree.columns != self._tree.columns:
            homeless, root = root.files, None
        made("", root, None)
        for file in homeless:
            del self._at[file.path]
        self._parts, self._tree, self._clustered = parts, tree, clustered
        return homeless

    def _take_over(self, part: _Part, was: _Part) -> None:
        """The files at a node that stays."""
        part.here, same = was.here, part.settled == was.settled
        part.waiting = was.waiting if same else {p: f for p, f in part.here.items() if f.sequence > part.settled}
        self._at |= dict.fromkeys(part.here, part)
        part.count, part.bytes = len(part.here), sum(file.bytes for file in part.here.values())
        part.staged = sum(file.bytes for file in part.waiting.values())

    def _eligible(self, part: _Part, rules: Rules) -> tuple[_Part, ...]:
        """The topmost parts that are due, not above the budget and not tried in vain, and regions whatever their
        size."""
        if part.eligible is None:
            fits = (part.bytes <= rules.budget_bytes or part.children is None) and not self._has_all_of(part, rules)
            if fits and _is_due(part, rules):
                part.eligible = (part,)
            else:
                part.eligible = tuple(one for child in part.children or () for one in self._eligible(child, rules))
        return part.eligible

    def _has_all_of(self, part: _Part, rules: Rules) -> bool:
        """Return whether all files of one of the sets that are left out are at *part* or below."""

        def is_below(path: str) -> bool:
            return path in self._at and self._at[path].path.startswith(part.path)

        return any(all(map(is_below, one)) for one in rules.left_out if one)


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
    files: Iterable[FileStats],
    clustered: Mapping[str, int],
    *,
    target_bytes: int,
    staged_ratio: float,
    budget_bytes: int,
    left_out: Collection[Collection[str]] = (),
) -> list[Rewrite]:
    """As `Placed.due`, of a view that is looked at once."""
    rules = Rules(
        target_bytes=target_bytes,
        staged_ratio=staged_ratio,
        budget_bytes=budget_bytes,
        left_out=tuple(map(frozenset, left_out)),
    )
    return Placed(tree, clustered, files).due(rules)


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


def _crowds(part: _Part, rules: Rules) -> tuple[Rewrite, ...]:
    """Per node the files that wait there, where they are `WAITING_MAX` of like size or half a move's budget.

    Only files of like size are put together, so a row is written once per factor of `WAITING_MAX`, not once per merge.
    """
    if part.crowds is None:
        below = (one for child in part.children or () for one in _crowds(child, rules))
        part.crowds = (*_crowd(part, rules), *below)
    return part.crowds


def _crowd(part: _Part, rules: Rules) -> Iterator[Rewrite]:
    """That of one node, if any."""
    tiers: dict[int, list[FileStats]] = defaultdict(list)
    for file in part.waiting.values():
        if any(file.path in one for one in rules.left_out):
            continue
        tiers[file.bytes.bit_length() // _TIER_BITS].append(file)
    for _, tier in sorted(tiers.items()):
        size = sum(file.bytes for file in tier)
        if len(tier) >= WAITING_MAX or (part.children and len(tier) > 1 and size >= rules.budget_bytes / 2):
            yield Rewrite(
                path=part.path, files=tuple(_within(tier, rules.budget_bytes)), staged_bytes=size, waiting=True
            )
            return


def _within(files: Sequence[FileStats], budget_bytes: int) -> list[FileStats]:
    """The oldest of *files* that fit into the budget, two at least."""
    taken: list[FileStats] = []
    for file in sorted(files, key=lambda f: (f.sequence, f.path)):
        if len(taken) >= 2 and sum(f.bytes for f in taken) + file.bytes > budget_bytes:
            break
        taken.append(file)
    return taken


def _is_due(part: _Part, rules: Rules) -> bool:
    if part.staged and part.staged >= rules.staged_ratio * part.clustered:
        return True
    if part.children is None:
        # A clustered file that is still too large could not be cut (equal keys), and is not tried each time.
        return part.clustered <= OVERSIZE * rules.target_bytes < part.bytes
    regions = not part.apart and all(child.children is None for child in part.children)
    return regions and part.count > 1 and part.bytes < UNDERSIZE * rules.target_bytes


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
