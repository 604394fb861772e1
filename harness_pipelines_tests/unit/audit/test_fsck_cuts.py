"""Rules of fsck for cuts, on books written by hand and on folders with files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.audit.fsck import cuts
from harness_pipelines.audit.fsck import run as module
from harness_pipelines.audit.fsck.rule import RULES, CutFilesSeen, Look, named_versions
from harness_pipelines.drivers import files
from harness_pipelines.errors import HarnessError
from harness_pipelines.ports.serving.cuts import CutDamaged
from harness_pipelines.ports.table_state import Books
from harness_pipelines.protocol.cut_checks import ListedCut, ListedData, ListedDeletes
from harness_pipelines.protocol.cut_rows import WRONG_MAX, CutRow, NamedCutRow, seen_of
from harness_pipelines_tests.unit.audit.books import books, file, surveyed, version

FOLDER = "file:///t/orders__fresh-0123abcd"


def cut(sequence: int, high: int = 20, **changes: Any) -> CutRow:
    made = CutRow(
        sequence=sequence,
        number=sequence,
        snapshot_id=1000 + sequence,
        timestamp_ms=sequence,
        version=3,
        high={0: high},
        merged=frozenset(),
        history="h",
        alive=True,
    )
    return replace(made, **changes)


def served(*found: CutRow, **changes: Any) -> Books:
    return books(cuts=seen_of(found), cut_folders=[FOLDER], **changes)


def listed(row: CutRow, **changes: Any) -> ListedCut:
    """What the metadata of *row* says."""
    made = ListedCut(
        snapshot_id=row.snapshot_id,
        sequence=row.sequence,
        version=row.version,
        bounds={p: (0, 0, 10, high) for p, high in row.high.items()},
        freshness="fresh",
    )
    return replace(made, **changes)


def objections(look_books: Books, invariant: str, **seen: Any) -> list[str]:
    look = Look(books=look_books, surveys=None, log=None, **seen)
    return [one.detail for r in RULES if r.invariant == invariant for one in r.check(look)]


def test_cuts_that_follow_each_other_break_no_rule():
    sound = served(cut(1, 10, alive=False), cut(2, 20), cut(9, 30, timestamp_ms=4))
    assert [objections(sound, f"F{number}") for number in (2, 3, 4, 5, 6, 7, 9)] == [[]] * 7
    assert {r.invariant for r in RULES if r.invariant[0] == "F"} == {f"F{number}" for number in (2, 3, 4, 5, 6, 7, 9)}


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ((cut(1), cut(2, snapshot_id=1001)), "2 cuts have the snapshot id 1001"),
        ((cut(5), cut(5)), "cut 5 has the sequence 5, cut 5 before it 5"),
        ((cut(1), cut(2, number=1)), "cut 2 has the number 1, cut 1 before it 1"),
        ((cut(1, timestamp_ms=7), cut(2)), "cut 2 has the timestamp_ms 2, cut 1 before it 7"),
    ],
)
def test_a_number_or_a_time_that_does_not_rise_is_found(rows: tuple[CutRow, ...], found: str):
    assert found in objections(served(*rows), "F2")


def test_a_cut_whose_version_or_files_are_gone_is_found():
    gone = served(cut(1, version=7, alive=False), cut(2, version=8))
    missing = CutFilesSeen(missing=tuple(f"{FOLDER}/data/{n:02}.parquet" for n in range(25)))
    found = objections(gone, "F3", cut_files=missing)
    assert found[0] == "cut 2 is of version 8, which is gone"
    assert found[1].startswith(f"{FOLDER}/data/00.parquet is not there") and found[1].endswith(cuts.WAY_ON)
    assert found[-1] == "5 more files that cuts name are not there" and len(found) == 22


def test_a_retired_cut_may_have_the_id_of_the_next_one():
    assert objections(served(cut(1, retired=True), cut(2, snapshot_id=1001)), "F2") == []


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ({"snapshot_id": 7}, "the metadata of cut 2 has the snapshot 7, the ledger 1002"),
        ({"sequence": 7}, "the metadata of cut 2 has the sequence 7, the ledger 2"),
        ({"version": 7}, "the metadata of cut 2 has the version 7, the ledger 3"),
        ({"bounds": {0: (0, 0, 10, 19)}}, "the metadata of cut 2 has the offsets {0: 19}, the ledger {0: 20}"),
    ],
)
def test_metadata_that_says_another_thing_than_the_ledger_is_found(says: dict[str, Any], found: str):
    look = served(cut(1), cut(2))
    assert objections(look, "F2", cut_files=CutFilesSeen(newest=listed(cut(2), **says))) == [found]
    assert objections(look, "F2", cut_files=CutFilesSeen(newest=listed(cut(2)))) == []


def test_a_newest_cut_that_cannot_be_read_is_found_with_the_way_on():
    seen = CutFilesSeen(newest=CutDamaged("the list is gone"), cut_off=(f"{FOLDER}/data/1.parquet",))
    found = objections(served(cut(1)), "F3", cut_files=seen)
    assert found[0] == f"the list is gone; {cuts.WAY_ON}"
    cut_off = f"{FOLDER}/data/1.parquet, a chunk of the newest cut, has another size than was written"
    assert found[1] == f"{cut_off}; {cuts.WAY_ON}"
    assert objections(served(cut(1)), "F4", cut_files=seen) == [] == objections(served(cut(1)), "F9", cut_files=seen)


@pytest.mark.parametrize(
    ("sequence", "hidden", "found"),
    [
        (6, {"a": 3}, None),
        (5, {"a": 10}, None),
        (4, {"a": 3}, "d of sequence 4 hides nothing of a of sequence 5"),
        (6, {"b": 3}, "d hides rows of b, which cut 1002 does not name"),
        (6, {"a": 11}, "d hides 11 of the 10 rows of a"),
    ],
)
def test_deletes_that_hide_nothing_or_rows_of_no_file_are_found(
    sequence: int, hidden: dict[str, int], found: str | None
):
    says = listed(
        cut(2),
        data=(ListedData(path="a", rows=10, sequence=5),),
        deletes=(ListedDeletes(path="d", sequence=sequence, hidden=hidden),),
    )
    seen = objections(served(cut(1), cut(2)), "F4", cut_files=CutFilesSeen(newest=says))
    assert seen == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("high", "freshness", "found"),
    [
        (20, "fresh", None),
        (19, "fresh", "cut 1001 is behind in partition 0 and calls itself fresh"),
        (19, "merged", None),
        (20, "", "cut 1001 does not say how fresh it is: ''"),
    ],
)
def test_a_cut_that_is_behind_and_does_not_say_so_is_found(high: int, freshness: str, found: str | None):
    looked = served(cut(1, high), versions=[version(1, 0), version(2, 10), version(3, 10, buffer_hi=20)])
    says = listed(cut(1, high), freshness=freshness)
    seen = objections(looked, "F9", cut_files=CutFilesSeen(newest=says))
    assert seen == ([] if found is None else [found])


def test_however_many_cuts_are_wrong_few_findings_are_kept():
    wrong = seen_of(cut(n, 1000 - n) for n in range(1, 200)).wrong
    assert len(wrong) == WRONG_MAX


def test_a_cut_that_shows_less_than_the_one_before_is_found():
    assert objections(served(cut(1, 20), cut(2, 19)), "F5") == ["partition 0 ends at offset 19 in cut 2, at 20 in 1"]
    assert objections(served(cut(1, 20), replace(cut(2), high={})), "F5") == [
        "partition 0 ends at offset -1 in cut 2, at 20 in 1"
    ]
    assert objections(served(cut(1), cut(2, version=2)), "F5") == ["cut 2 is of version 2, cut 1 was of 3"]


def test_what_is_merged_and_another_history_may_show_less():
    keyed = [cut(1, 20, merged=frozenset({0})), cut(2, 10, version=4, merged=frozenset({0}))]
    assert objections(served(*keyed), "F5") == []
    for other in (replace(keyed[1], version=3), replace(keyed[1], merged=frozenset())):
        assert objections(served(keyed[0], other), "F5") != []
    assert objections(served(replace(keyed[0], merged=frozenset()), keyed[1]), "F5") != []
    assert objections(served(cut(1, 20), cut(2, 10, version=2, history="i")), "F5") == []


def test_a_view_that_names_a_file_of_a_cut_is_found():
    inside = f"{FOLDER}/data/x.parquet"
    for path, count in ((inside, 1), ("file:///t/data/x.parquet", 0), (f"{FOLDER}x/data/x.parquet", 0)):
        survey = surveyed([file(path)])
        look = Look(books=served(), surveys={"stream": survey}, log=None)
        assert len(list(cuts.views_name_no_cuts(look))) == count, path
    look = Look(books=books(), surveys={"stream": surveyed([file(inside)])}, log=None)
    assert list(cuts.views_name_no_cuts(look)) == [], "no server served it"


def test_folders_of_cuts_that_grow_without_end_are_found():
    seen = CutFilesSeen(bytes=10**9, named_bytes=10**8, young_bytes=10**8)
    assert "does expire run" in objections(served(buffered_bytes=10**8), "F7", cut_files=seen)[0]
    assert objections(served(buffered_bytes=2 * 10**8), "F7", cut_files=seen) == []
    assert objections(served(), "F7", cut_files=CutFilesSeen(bytes=cuts.FREE_BYTES)) == []


def test_files_of_the_versions_of_live_cuts_must_be_there():
    kept = books(versions=[version(1, 0), version(2, 10), version(3, 20)], retained_from=3)
    rows = (cut(1, version=1), cut(2, version=2, alive=False))
    assert set(named_versions(replace(kept, cuts=seen_of(rows)))) == {1, 3}
    assert set(named_versions(replace(kept, named_cuts=[named(5, version=2)]))) == {2, 3}


# -- of named snapshots -------------------------------------------------------------------------------------


def named(sequence: int, **changes: Any) -> NamedCutRow:
    made = NamedCutRow(
        sequence=sequence, snapshot_id=7000 + sequence, version=3, high={0: 15}, metadata=f"{FOLDER}/metadata/x.json"
    )
    return replace(made, **changes)


def says(row: NamedCutRow, **changes: Any) -> ListedCut:
    found = listed(cut(row.sequence, snapshot_id=row.snapshot_id, version=row.version, high=row.high[0]))
    return replace(found, freshness="named", **changes)


def test_named_cuts_are_beside_the_order_of_the_newest_ones():
    sound = served(cut(1, 10), cut(2, 30), named_cuts=[named(5), named(9)])
    seen = CutFilesSeen(newest=listed(cut(2, 30)), named={5: says(named(5)), 9: says(named(9))})
    assert [objections(sound, f"F{number}", cut_files=seen) for number in (2, 3, 4, 5, 7, 9)] == [[]] * 6


def test_what_is_wrong_with_a_named_cut_is_found():
    look = served(cut(1), named_cuts=[named(5), named(6, version=8), named(7)])
    hiding = ListedDeletes(path="d", sequence=4, hidden={"a": 3})
    other = says(named(7), deletes=(hiding,), data=(ListedData(path="a", rows=10, sequence=5),))
    seen = CutFilesSeen(named={5: says(named(5), version=4), 6: CutDamaged("the list is gone"), 7: other})
    assert objections(look, "F2", cut_files=seen) == ["the metadata of cut 5 has the version 4, the ledger 3"]
    assert objections(look, "F3", cut_files=seen) == [
        "cut 6 is of version 8, which is gone",
        f"cut 6 of a named snapshot: the list is gone; {cuts.WAY_ON}",
    ]
    assert objections(look, "F4", cut_files=seen) == ["d of sequence 4 hides nothing of a of sequence 5"]


# -- the folders --------------------------------------------------------------------------------------------


def test_files_are_looked_for_by_whatever_name_leads_to_them(tmp_path: Path):
    real, link = tmp_path / "real", tmp_path / "link"
    (real / "data").mkdir(parents=True)
    link.symlink_to(real)
    for name, age in (("named", 0), ("old", 0), ("young", None)):
        (real / "data" / name).write_bytes(bytes(len(name)))
        if age is not None:
            os.utime(real / "data" / name, (age, age))
    row = cut(1, sizes={f"file://{link}/data/named": 6, f"file://{link}/data/old": 3})
    named = [
        (f"file://{link}/data/named", True),
        (f"file://{link}/data/gone", True),
        (f"file://{link}/data/lost", False),
    ]
    says: ListedCut | HarnessError = listed(row)

    def read(metadata: str) -> ListedCut:
        if isinstance(says, HarnessError):
            raise says
        return says

    stores: Any = SimpleNamespace(
        files=files,
        table_states=SimpleNamespace(cut_files=lambda table_id: iter(named)),
        cut_files=SimpleNamespace(listed=read),
    )
    look = books(cuts=seen_of([row]), cut_folders=[f"file://{real}"])
    wanted = CutFilesSeen(
        missing=(f"file://{link}/data/gone",),
        cut_off=(f"file://{link}/data/named",),
        newest=says,
        bytes=13,
        named_bytes=5,
        young_bytes=5,
    )
    assert cuts.seen_in(look, stores) == wanted
    says = CutDamaged("gone")
    assert cuts.seen_in(look, stores) == replace(wanted, newest=says)
    retired = books(cuts=seen_of([replace(row, retired=True)]), cut_folders=[f"file://{real}"])
    assert cuts.seen_in(retired, stores) == replace(wanted, newest=None, cut_off=())


def test_names_of_files_that_are_not_there_are_neither_kept_nor_all_asked_for(tmp_path: Path):
    """A reader's login may name ten million of them."""
    asked: list[str] = []

    class Listing:
        def listed(self, folder: str) -> Any:
            return iter(())

        def size_of(self, path: str) -> None:
            asked.append(path)

    many = ((f"{FOLDER}/data/{n}", True) for n in range(5_000))
    stores: Any = SimpleNamespace(files=Listing(), table_states=SimpleNamespace(cut_files=lambda table_id: many))
    seen = cuts.seen_in(served(), stores)
    assert len(seen.missing) == len(asked) == cuts.UNLISTED_MAX
    assert objections(served(), "F3", cut_files=seen)[-1] == "at least 980 more files that cuts name are not there"


def test_nothing_is_listed_for_a_table_that_no_server_served_and_a_store_that_is_away_is_named(tmp_path: Path):
    class Away:
        def listed(self, folder: str) -> Any:
            raise OSError(f"{folder} is away")

    looks = module._Looks(SimpleNamespace(files=Away()), None, data=False)
    assert looks._cut_files(books()) == CutFilesSeen()
    assert looks._cut_files(served(cut(1))) is None
    assert "is away" in looks.trouble["shop.orders", "cuts"]
    unknown = Look(books=served(cut(1)), surveys=None, log=None, cut_files=None)
    assert {r.invariant for r in RULES if r.missing(unknown) == "cuts"} == {"F2", "F3", "F4", "F7", "F9"}
