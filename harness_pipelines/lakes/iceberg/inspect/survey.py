"""Files that the versions of a table reach in the lake, and the missing ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.lakes.iceberg.inspect.files import LakeLook, ManifestSeen
from harness_pipelines.ports.files import FileSeen, MetadataSeen, Unreadable

READERS = 8  #: files that are read at once: a store far away answers slowly, but many at a time
Progress = Callable[[int, int], None]  #: files read, known number of files to read
Item = TypeVar("Item")
Seen = TypeVar("Seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All that was read. A file that is not there has its `Unreadable` in the place of its content."""

    metadata: Mapping[str, MetadataSeen | Unreadable]
    lists: Mapping[str, tuple[ManifestSeen, ...] | Unreadable]
    manifests: Mapping[str, tuple[FileSeen, ...] | Unreadable]  #: those that were opened, and those that are damaged
    damaged: Mapping[str, tuple[tuple[FileSeen, Unreadable], ...]]  #: manifest -> its files that are gone or cut off
    newest: str | None = None  #: metadata file of the newest version
    by_age: frozenset[str] = frozenset()  #: manifest lists whose files are those of the newest that are old enough

    def lost(self, location: str) -> Iterable[tuple[str, Unreadable]]:
        """(kind, file) of everything that the metadata file at *location* names and that cannot be read."""
        found = self.metadata[location]
        if isinstance(found, Unreadable):
            yield "metadata file", found
            return
        if found.head is None:
            return
        manifests = self.lists[found.head.manifest_list]
        if isinstance(manifests, Unreadable):
            yield "manifest list", manifests
            return
        for manifest in manifests:
            files = self.manifests.get(manifest.path, ())
            if isinstance(files, Unreadable):
                yield "manifest", files
        if found.head.manifest_list in self.by_age:
            manifests, oldest = self.newest_manifests(), found.head.sequence
        else:
            oldest = None
        for manifest in manifests:
            for file, damage in self.damaged.get(manifest.path, ()):
                if oldest is None or (file.added is not None and file.added <= oldest):
                    yield "delete file" if file.deletes else "data file", damage

    def newest_manifests(self) -> tuple[ManifestSeen, ...]:
        """Manifests of the newest version; none when its list cannot be read."""
        found = self.metadata.get(self.newest or "")
        if not isinstance(found, MetadataSeen) or found.head is None:
            return ()
        manifests = self.lists[found.head.manifest_list]
        return () if isinstance(manifests, Unreadable) else manifests

    def rows(self, location: str) -> int | None:
        """Rows of main at *location* that are not hidden, by its manifest list; ``None`` when that was not read."""
        found = self.metadata.get(location)
        if not isinstance(found, MetadataSeen):
            return None
        manifests = self.lists[found.head.manifest_list] if found.head else ()
        return None if isinstance(manifests, Unreadable) else sum(manifest.rows for manifest in manifests)

    def files(self, location: str) -> list[FileSeen] | None:
        """Live files of main at *location*, delete files too; ``None`` when not all manifests were read."""
        found = self.metadata.get(location)
        if not isinstance(found, MetadataSeen):
            return None
        if found.head is None:
            return []
        manifests = self.lists[found.head.manifest_list]
        if isinstance(manifests, Unreadable):
            return None
        listed: list[FileSeen] = []
        for manifest in manifests:
            files = self.manifests.get(manifest.path)
            if files is None or isinstance(files, Unreadable):
                return None
            listed.extend(files)
        return listed


def survey(
    locations: Sequence[str],
    *,
    newest: str | None,
    warehouse: str,
    linear: bool,
    data: bool,
    progress: Progress | None = None,
) -> Survey:
    """Read the metadata files at *locations* and what their main branches reach, down to the manifests.

    *newest* is the metadata file of the newest version; *linear*: no version was reverted. Then the manifests of an
    older version are only compared where the numbers of files leave no doubt: parsing them all takes most of the time.
    *data*: read the data files too.
    Raises: OSError when the warehouse cannot be listed.
    """
    look = LakeLook(locations, warehouse=warehouse)
    tell = _Counter(progress)
    with ThreadPoolExecutor(READERS, thread_name_prefix="fsck") as pool:

        def each(items: Iterable[Item], path: Callable[[Item], str], read: Callable[[Item], Seen]) -> dict[str, Seen]:
            wanted = {path(item): item for item in items}
            KNOWN.learn(wanted)
            tell.expect(len(wanted))
            return dict(zip(wanted, map(tell.done, pool.map(read, wanted.values())), strict=True))

        def opened(manifests: Iterable[ManifestSeen]) -> dict[str, tuple[FileSeen, ...] | Unreadable]:
            return each(manifests, lambda m: m.path, lambda m: look.files(m, of=of))

        metadata = each(locations, str, look.metadata)
        parsed = [m for m in metadata.values() if isinstance(m, MetadataSeen)]
        of = next((m for m in parsed if m.offset_id is not None), None)
        lists = each((m.head.manifest_list for m in parsed if m.head), str, look.manifests)
        read = Survey(metadata=metadata, lists=lists, manifests={}, damaged={}, newest=newest)
        manifests = opened(read.newest_manifests())
        files = replace(read, manifests=manifests).files(newest) if newest is not None else None
        by_age = _by_age(read, files) if linear and files is not None else frozenset()
        others = [found for path, found in lists.items() if path not in by_age and not isinstance(found, Unreadable)]
        manifests |= opened(m for found in others for m in found if m.path not in manifests)
        unopened = {m.path: m for path in by_age for m in lists[path] if m.path not in manifests}  # type: ignore[union-attr]
        altered = each(unopened.values(), lambda m: m.path, look.altered)
        manifests |= {path: damage for path, damage in altered.items() if damage is not None}
        of_manifest = {path: seen for path, seen in manifests.items() if not isinstance(seen, Unreadable)}
        named = [file for seen in of_manifest.values() for file in seen]
        damages = each(named, lambda f: f.path, look.damage if data else look.cut_short)
    damaged = {
        path: found
        for path, seen in of_manifest.items()
        if (found := tuple((file, damage) for file in seen if (damage := damages[file.path]) is not None))
    }
    return replace(read, manifests=manifests, damaged=damaged, by_age=by_age)


def _by_age(read: Survey, files: Sequence[FileSeen]) -> frozenset[str]:
    """The manifest lists with exactly those of *files*, the newest version's, that were there already.

    A file of the newest version that is no younger than an older one was in that one too. So if the older one counts no
    more files than that, it has no others.
    """
    ages = sorted(file.added for file in files if file.added is not None)
    found = set()
    for metadata in read.metadata.values():
        if not isinstance(metadata, MetadataSeen) or metadata.head is None:
            continue
        manifests = read.lists[metadata.head.manifest_list]
        if isinstance(manifests, Unreadable) or not all(m.plain for m in manifests):
            continue
        if sum(m.live for m in manifests) == bisect_right(ages, metadata.head.sequence):
            found.add(metadata.head.manifest_list)
    return frozenset(found)


class _Counter:
    """Files read so far, for observers."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done, self._total = progress, 0, 0

    def expect(self, more: int) -> None:
        self._total += more

    def done(self, seen: Seen) -> Seen:
        self._done += 1
        if self._progress:
            self._progress(self._done, self._total)
        return seen
