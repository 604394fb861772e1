"""A look at a batch view reads the manifests that are new, and what it keeps is the view that it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.files import Extent, FileStats, hiding
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.ports.lake import DeleteFile
from harness_pipelines.ports.lake_writes import FileList, FileLists
from harness_pipelines.read.clustering import Clustering
from harness_pipelines.stages.otree.look import Kept, Seen

COLUMNS = ((1, "int"),)
LAYOUT = Clustering(tree=RegionTree.single([IndexedColumn("n", "int")]).split("", 0, At(20)), clustered={"0": 1})


def file(number: int) -> FileStats:
    extents = (Extent(number, number + 5, 0, 0),)
    return FileStats(path=f"f{number}", rows=9, bytes=10 + number, sequence=1 + number % 3, extents=extents)


def lists_of(manifests: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> FileLists:
    """The numbers of the files that each manifest names, and of those that its delete files hide rows of."""
    return FileLists(
        columns=COLUMNS,
        lists={
            name: FileList(
                files=tuple(map(file, files)),
                deletes={f"f{n}": DeleteFile(path=f"{name}-d{n}", rows=1 + n, bytes=7) for n in deletes},
            )
            for name, (files, deletes) in manifests.items()
        },
    )


@st.composite
def views(draw: st.DrawFn) -> list[FileLists]:
    """Versions of a view. Some files go, and those that stay are named by manifests of before, or by new ones."""
    found, manifests = list[FileLists](), dict[str, tuple[Sequence[int], Sequence[int]]]()
    for number in range(draw(st.integers(1, 5))):
        gone = draw(st.sets(st.sampled_from(sorted(manifests)))) if manifests else set[str]()
        left = {name: one for name, one in manifests.items() if name not in gone}
        named = {n for files, _ in left.values() for n in files}
        hidden = {n for _, deletes in left.values() for n in deletes}
        come, hides = draw(st.sets(st.integers(0, 12), max_size=6)), draw(st.sets(st.integers(0, 12), max_size=3))
        manifests = {**left, f"m{number}": (sorted(come - named), sorted(hides - hidden))}
        found.append(lists_of(manifests))
    return found


def files_of(lists: FileLists) -> dict[str, FileStats]:
    deletes = {path: hides for one in lists.lists.values() for path, hides in one.deletes.items()}
    return {f.path: hiding(f, deletes.get(f.path)) for one in lists.lists.values() for f in one.files}


@given(views(), st.data())
def test_whatever_version_follows_what_is_kept_is_that_version(versions: list[FileLists], data: st.DataObject):
    seen = Seen(versions[0], LAYOUT)
    for version in [*versions, *data.draw(st.lists(st.sampled_from(versions)))]:  # and back, as an attempt's base is
        seen.follow(version, LAYOUT)
        wanted = files_of(version)
        assert len(seen.placed) == len(wanted)
        assert {path: seen.placed[path] for path in wanted} == wanted


def test_one_look_has_what_is_kept_of_a_table_at_a_time_and_what_was_looked_at_last_stays():
    kept = Kept(files_max=3)
    seen = {number: Seen(lists_of({}), LAYOUT) for number in (1, 2, 3)}
    for number, one in seen.items():
        one.follow(lists_of({"m": (range(2), ())}), LAYOUT)
        kept.keep(number, one)
    assert kept.take(1) is None
    assert kept.take(2) is None
    assert kept.take(3) is seen[3]
    assert kept.take(3) is None

    seen[1].follow(replace(lists_of({"m2": (range(9), ())})), LAYOUT)
    kept.keep(1, seen[1])
    assert kept.take(1) is seen[1]
