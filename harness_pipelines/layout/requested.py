"""What a person asked to have rewritten, and which parts of the tree that is.

A request names parts of the tree and ends with a data sequence number: files that came later are none of its business.
So what is left of it can be read off the files at any time; it ends although rows keep coming, and a part that is done
is not done again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness_pipelines.layout.files import FileStats, place
from harness_pipelines.layout.rewrites import Rewrite
from harness_pipelines.layout.tree import RegionTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Rewrite the files below *paths* that are not clustered, or with *rebuild* all of them."""

    request_id: int
    paths: tuple[str, ...]  #: of regions or inner nodes; the tree may have changed there since
    upto: int  #: sequence number of the snapshot that brought the newest file that is meant
    rebuild: bool

    def covers(self, path: str) -> bool:
        """All of the part at *path* was asked for."""
        return any(path.startswith(wanted) for wanted in self.paths)

    def touches(self, path: str) -> bool:
        """Something inside the part at *path* was asked for."""
        return self.covers(path) or any(wanted.startswith(path) for wanted in self.paths)


@dataclass(slots=True)
class _Part:
    """What lies at or below one node."""

    files: list[FileStats] = field(default_factory=list)
    staged: int = 0  #: bytes
    wanted: int = 0  #: bytes of the files that the request means
    clean: int = 0  #: bytes of regions without such a file
    own: int = 0  #: wanted bytes at the node itself, which only a rewrite of the whole node takes

    def as_due(self, path: str) -> Rewrite:
        return Rewrite(path=path, files=tuple(self.files), staged_bytes=self.staged)


def left_of(
    request: Request,
    tree: RegionTree,
    files: Sequence[FileStats],
    clustered: Mapping[str, int],
    *,
    budget_bytes: int,
) -> list[Rewrite]:
    """The parts that are still to be rewritten: disjoint, in the order of the tree.

    None is above *budget_bytes* but single regions. A file that reaches over several regions goes with the smallest
    part that holds it, so it is left where that part is above the budget or was not asked for.
    """
    regions = set(tree.paths())
    parts = _parts(request, tree, files, clustered)

    def below(path: str) -> Iterator[Rewrite]:
        part, region = parts[path], path in regions
        if not part.wanted or not request.touches(path):
            return
        due = part.as_due(path)
        fits = due.bytes <= budget_bytes and request.covers(path) and (part.own or not part.clean)
        if region or fits:
            yield due
        else:
            yield from below(path + "0")
            yield from below(path + "1")

    return list(below(""))


def parts_with(tree: RegionTree, files: Sequence[FileStats], paths: Collection[str]) -> list[str]:
    """The smallest parts that hold the files at *paths*: regions, and where files span several the node above them."""
    return [place(tree, file) for file in files if file.path in paths]


def at_once(parts: Sequence[Rewrite], *, budget_bytes: int) -> list[Rewrite]:
    """The first of *parts* that one move takes: within the budget, but at least one."""
    taken, left = list(parts[:1]), budget_bytes - sum(part.bytes for part in parts[:1])
    for part in parts[1:]:
        if part.bytes > left:
            break
        taken.append(part)
        left -= part.bytes
    return taken


def as_due(
    tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int], paths: Sequence[str]
) -> list[Rewrite]:
    """The parts at *paths* as `harness_pipelines.layout.rewrites.due` would give them."""
    everything = Request(request_id=0, paths=tuple(paths), upto=0, rebuild=True)
    parts = _parts(everything, tree, files, clustered)
    return [parts[path].as_due(path) for path in sorted(paths)]


def _parts(
    request: Request, tree: RegionTree, files: Sequence[FileStats], clustered: Mapping[str, int]
) -> Mapping[str, _Part]:
    regions = set(tree.paths())
    here: dict[str, list[FileStats]] = defaultdict(list)
    for file in files:
        here[place(tree, file)].append(file)
    parts: dict[str, _Part] = defaultdict(_Part)
    for path, found in here.items():
        settled = clustered.get(path, 0) if path in regions else 0
        staged = [file for file in found if file.sequence > settled]
        meant = sum(f.bytes for f in (found if request.rebuild else staged) if f.added <= request.upto)
        size = sum(file.bytes for file in found)
        for upto in range(len(path) + 1):
            part = parts[path[:upto]]
            part.files += found
            part.staged += sum(file.bytes for file in staged)
            part.wanted += meant
            part.clean += size if path in regions and not meant else 0
        parts[path].own = meant if path not in regions else 0
    return parts
