"""Files that the versions of a table reach in the lake, and the missing ones."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from harness_pipelines.drivers.file_notes import KNOWN
from harness_pipelines.lakes.iceberg.inspect.files import LakeLook
from harness_pipelines.ports.files import FileSeen, ManifestSeen, MetadataSeen, Progress, Survey, Unreadable

READERS = 8  #: files that are read at once: a store far away answers slowly, but many at a time
Item = TypeVar("Item")
Seen = TypeVar("Seen")


def survey(
    locations: Sequence[str],
    *,
    newest: str | None,
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
    look = LakeLook(locations)
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
