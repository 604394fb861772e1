"""Which files the versions of a view reach, kept as spans of versions: what each version added and took away.

The files of two versions that follow each other mostly are the same. So of a version only the manifests are read that
the version before it did not have; of those that it no longer has it is known what they named. A file is ended when no
manifest names it any more, and may begin again: a revert brings it back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["metadata", "list", "manifest", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Main:
    """What main of a metadata file reaches."""

    metadata: str
    manifest_list: str | None  #: None: there is no snapshot
    manifests: Mapping[str, Collection[str] | None]  #: the files of each; None: it was not read, as they are known

    def paths(self) -> Iterator[tuple[str, Kind]]:
        """All of it, where all manifests were read."""
        yield self.metadata, "metadata"
        if self.manifest_list is not None:
            yield self.manifest_list, "list"
        for manifest, files in self.manifests.items():
            yield manifest, "manifest"
            yield from ((file, "file") for file in files or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A file, and the versions that reach it."""

    path: str
    kind: Kind
    first: int
    last: int | None  #: None: the newest version that was read reaches it


def is_reached(first: int, last: int | None, *, retained_from: int, pinned: Collection[int]) -> bool:
    """Whether one of the versions in reach lies in a span: those from *retained_from* on, and the *pinned* ones (S10).

    The newest version that was read is retained: there is none after it, or it was read when it was the newest.
    """
    return last is None or last >= retained_from or any(first <= version <= last for version in pinned)


@dataclass(slots=True, kw_only=True)
class Newest:
    """What the newest version that was read of one view reaches, and the spans that changed since they were written."""

    through: int = -1  #: the first version with this metadata file; below 0: none was read
    alone: dict[str, Kind] = field(default_factory=dict)  #: its metadata file and manifest list
    manifests: dict[str, Collection[str]] = field(default_factory=dict)
    ended: dict[str, int] = field(default_factory=dict)  #: of spans that are written: the last version
    closed: list[Span] = field(default_factory=list)  #: that began and ended since
    begun: dict[str, tuple[Kind, int]] = field(default_factory=dict)
    _named: Counter[str] = field(default_factory=Counter)  #: by how many manifests each file is

    def __post_init__(self) -> None:
        for files in self.manifests.values():
            self._named.update(files)

    def follow(self, version: int, main: Main) -> None:
        """Go on to *version*, whose metadata file is another one. Manifests without files must be known."""
        alone: dict[str, Kind] = {path: kind for path, kind in main.paths() if kind in ("metadata", "list")}
        self._begin(version, (one for one in alone.items() if one[0] not in self.alone))
        self._end(version, [path for path in self.alone if path not in alone])
        for path, files in main.manifests.items():
            if path not in self.manifests:
                assert files is not None, f"{path} is not known and was not read"
                self._add(version, path, files)
        for path in [path for path in self.manifests if path not in main.manifests]:
            self._remove(version, path)
        self.through, self.alone = version, alone

    def _add(self, version: int, manifest: str, files: Collection[str]) -> None:
        named: list[tuple[str, Kind]] = [(file, "file") for file in files if not self._named[file]]
        self._begin(version, [(manifest, "manifest"), *named])
        self._named.update(files)
        self.manifests[manifest] = files

    def _remove(self, version: int, manifest: str) -> None:
        files = self.manifests.pop(manifest)
        self._named.subtract(files)
        gone = [file for file in files if not self._named[file]]
        for file in gone:
            del self._named[file]
        self._end(version, [manifest, *gone])

    def _begin(self, version: int, paths: Iterable[tuple[str, Kind]]) -> None:
        self.begun |= {path: (kind, version) for path, kind in paths}

    def _end(self, version: int, paths: Iterable[str]) -> None:
        for path in paths:
            if path in self.begun:
                kind, first = self.begun.pop(path)
                self.closed.append(Span(path=path, kind=kind, first=first, last=version - 1))
            else:
                self.ended[path] = version - 1

    def spans(self) -> list[Span]:
        """Those that are to be added. Those that go on are last."""
        return [*self.closed, *(Span(path=p, kind=k, first=f, last=None) for p, (k, f) in self.begun.items())]

    def written(self) -> None:
        self.ended, self.closed, self.begun = {}, [], {}
