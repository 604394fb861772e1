"""Rules of fsck for the reach that the ledger keeps: expire removes what it has in no version in reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness_pipelines.audit.fsck.rule import Look, Objection, ViewSeen, rule, spelled
from harness_pipelines.ports.files import ManifestSeen, MetadataSeen, Unreadable
from harness_pipelines.ports.table_state import Spans

Versions = Mapping[int, str]  #: by number the metadata file


@rule("S10", "the reach that the ledger keeps has what the metadata of each version in reach names", "lake")
def kept_reach_is_whole(look: Look) -> Iterator[Objection]:
    """Versions that expire has not read yet are not in it; manifests that this look did not open are not compared."""
    for view in look.views.values():
        kept = look.books.reach.get(view.name, {})
        for path, needed in _lacking(view, kept, _read_versions(look, view, kept)):
            yield Objection(
                path,
                f"{path}: version {spelled(needed)} of {view.title} has it, and the reach that the ledger keeps does "
                "not: expire would remove it. Stop expire; `DELETE FROM harness.reach WHERE table_id = "
                f"{look.books.table_id}` as harness_worker lets it read all versions again",
            )


@rule("S11", "the reach that the ledger keeps of the newest version that was read has no file more", "lake")
def kept_reach_has_no_more(look: Look) -> Iterator[Objection]:
    """What it has more is never removed, which costs space and nothing else."""
    for view in look.views.values():
        kept = look.books.reach.get(view.name, {})
        going = {path for path, spans in kept.items() if any(last is None for _, last in spans)}
        if view.head is None or view.head.metadata not in going:
            continue
        if (named := _named(view, view.head.metadata)) is not None:
            for path in sorted(going - named):
                text = f"{path}: the reach that the ledger keeps of {view.title} has it, the newest version does not"
                yield Objection(path, text)


def _read_versions(look: Look, view: ViewSeen, kept: Mapping[str, Spans]) -> Versions:
    """The versions in reach that expire has read."""
    found = {n: v.views[view.name].metadata for n, v in look.named_versions.items() if view.name in v.views}
    return {number: path for number, path in found.items() if _has(kept.get(path, ()), number)}


def _lacking(view: ViewSeen, kept: Mapping[str, Spans], versions: Versions) -> Iterator[tuple[str, list[int]]]:
    """Files that the reach lacks, with the versions that have them. Each manifest is compared once."""
    of_list, of_manifest = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for number, metadata in versions.items():
        seen = view.survey.metadata.get(metadata)
        if isinstance(seen, MetadataSeen) and seen.head is not None:
            of_list[seen.head.manifest_list].append(number)
    for manifest_list, numbers in of_list.items():
        for manifest in _manifests(view, manifest_list):
            of_manifest[manifest.path] += numbers
    of_file = ((file, of_manifest[path]) for path in of_manifest for file in _files(view, path))
    for path, numbers in (*of_list.items(), *of_manifest.items(), *of_file):
        if lacking := [number for number in numbers if not _has(kept.get(path, ()), number)]:
            yield path, lacking


def _named(view: ViewSeen, metadata: str) -> set[str] | None:
    """All that a version has; None: it could not be read in full."""
    seen, files = view.survey.metadata.get(metadata), view.survey.files(metadata)
    if not isinstance(seen, MetadataSeen) or files is None:
        return None
    named = {metadata, *(file.path for file in files)}
    if seen.head is not None:
        named |= {seen.head.manifest_list, *(m.path for m in _manifests(view, seen.head.manifest_list))}
    return named


def _manifests(view: ViewSeen, manifest_list: str) -> Sequence[ManifestSeen]:
    found = view.survey.lists.get(manifest_list, ())
    return () if isinstance(found, Unreadable) else found


def _files(view: ViewSeen, manifest: str) -> Iterable[str]:
    found = view.survey.manifests.get(manifest, ())
    return () if isinstance(found, Unreadable) else [file.path for file in found]


def _has(spans: Spans, version: int) -> bool:
    return any(first <= version and (last is None or version <= last) for first, last in spans)
