"""Rules of fsck on a table with both views, on books written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness_pipelines.audit.fsck import batch_view, lake, ledger
from harness_pipelines.audit.fsck.rule import RULES, Look
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.ports.files import ManifestSeen, MetadataSeen, SnapshotSeen, Survey, Unreadable
from harness_pipelines.ports.table_state import Books, LayoutRow, StoredBounds
from harness_pipelines.protocol.versions import View
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.audit.books import books, file, move, position, surveyed, version

TREE = RegionTree.single([IndexedColumn("id", "long")])


def two_views(*, batch_hi=15, **changes) -> Books:
    """A sound table whose batch view ends inside of a tier move: one merge to 10, one to 15, and a relayout."""
    merges = [
        move(13, 0, 10, stage="otree"),
        move(14, 10, 15, stage="otree"),
        move(15, 0, 0, stage="otree", lo={}, hi={}, rows=15),
    ]
    reached = {4: (10, 13), 5: (batch_hi, 14), 6: (batch_hi, 15)}
    versions = [
        *books().versions,
        *(
            replace(
                version(number, 20, move_id=move_id),
                bounds={0: StoredBounds(start=0, batch_hi=high, stream_hi=20, buffer_hi=30)},
                batch=View(metadata="file:///b/metadata/6.json", snapshot=106),
                layout=6 if number == 6 else None,
            )
            for number, (high, move_id) in reached.items()
        ),
    ]
    made = books(
        views={"stream": "orders__stream", "batch": "orders"},
        pointers={"stream": "file:///t/metadata/6.json", "batch": "file:///b/metadata/6.json"},
        positions={0: position(batch_hi=batch_hi)},
        versions=versions,
        moves=[*books().moves, *merges],
        layouts=[LayoutRow(version=6, tree=TREE.to_json(), digest=TREE.digest, clustered={"": 3})],
    )
    return replace(made, **changes)


def batch_look(files, look_books=None, *, told="0:15"):
    """A look at `two_views` with *files* in the batch view and all rows in one file of the stream view."""
    snapshot = SnapshotSeen(
        snapshot=106, parent=None, sequence=6, manifest_list="file:///b/list", summary={"harness.batch-hi": told}
    )
    metadata = MetadataSeen(snapshot=106, snapshots={106: snapshot}, properties={}, offset_id=9)
    manifest = ManifestSeen(path="file:///b/m", bytes=9, live=1, rows=15, plain=True, manifest=None)  # nothing reads it
    batch = Survey(
        metadata={"file:///b/metadata/6.json": metadata},
        lists={"file:///b/list": (manifest,)},
        manifests={"file:///b/m": files},
        damaged={},
    )
    stream = surveyed((file(rows=10, high=9), file("file:///t/data/b.parquet", rows=10, low=10)), number=6)
    return Look(books=look_books or two_views(), surveys={"stream": stream, "batch": batch}, log=None)


def merged_file(**changes):
    return file("file:///b/data/a.parquet", partition=None, **{"rows": 15, "high": 14, **changes})


def objections(check, look):
    return [found.detail for found in check(look)]


def test_a_sound_table_with_two_views_breaks_no_rule_of_the_ledger_or_of_the_batch_view():
    look = batch_look((merged_file(),))
    batch = (batch_view.same_rows, batch_view.files_below_batch_hi, batch_view.told_batch_hi)

    assert [(r.invariant, found) for r in RULES if not r.needs for found in r.check(look)] == []
    assert [found for check in batch for found in check(look)] == []


def test_rows_that_the_batch_view_lacks_or_has_twice_are_counted():
    """A file of the stream view that batch_hi cuts has a row on either side: 11 to 19 rows."""
    assert objections(batch_view.same_rows, batch_look((merged_file(rows=11),))) == []
    for rows in (10, 20):
        [detail] = objections(batch_view.same_rows, batch_look((merged_file(rows=rows),)))
        assert f"has {rows} rows, the stream view has 11 to 19 below batch_hi of version 6" in detail


KEYED = TableSpec(table="shop.orders", columns={"id": "long"}, key=("id",))


def test_the_batch_view_of_a_keyed_table_may_have_fewer_rows_than_the_stream_view_and_never_more():
    books = two_views(spec=KEYED)
    for rows in (0, 3, 19):
        assert objections(batch_view.same_rows, batch_look((merged_file(rows=rows),), books)) == []
    [detail] = objections(batch_view.same_rows, batch_look((merged_file(rows=20),), books))
    assert "has 20 rows, the stream view has 0 to 19 below batch_hi" in detail


@pytest.mark.parametrize(
    ("deletes", "told"),
    [
        ([("file:///b/data/a.parquet", "position")], []),
        ([("file:///b/data/gone.parquet", "position")], ["file:///b/data/gone.parquet is not live"]),
        ([("file:///b/data/a.parquet", "position")] * 2, ["file:///b/data/a.parquet has another one"]),
        ([("file:///b/data/one.parquet", "position")], ["file:///b/data/one.parquet has 1 rows"]),
        ([(None, "position")], ["position delete file file:///b/data/0.parquet with 2 rows"]),
        ([(None, "equality")], ["equality delete file file:///b/data/0.parquet with 2 rows"]),
    ],
)
def test_deletes_are_of_positions_in_one_live_file_each_and_only_of_a_keyed_table(deletes, told):
    found = [file(f"file:///b/data/{i}.parquet", rows=2, deletes=kind, deletes_of=of)
             for i, (of, kind) in enumerate(deletes)]  # fmt: skip
    look = batch_look((merged_file(), file("file:///b/data/one.parquet", rows=1), *found), two_views(spec=KEYED))

    details = objections(lake.deletes_of_live_files, look)
    assert len(details) == len(told)
    assert all(detail.endswith(end) for detail, end in zip(details, told, strict=True))
    of_an_append_table = batch_look((merged_file(), *found))
    assert len(objections(lake.deletes_of_live_files, of_an_append_table)) == len(deletes)


def test_hidden_rows_do_not_count():
    hidden = file("file:///b/data/d.parquet", rows=2, deletes="position", deletes_of="file:///b/data/a.parquet")
    for files, found in (((merged_file(rows=21), hidden), 0), ((merged_file(rows=21),), 1)):
        assert len(objections(batch_view.same_rows, batch_look(files, two_views(spec=KEYED)))) == found


def test_a_delete_in_the_batch_view_of_a_keyed_table_is_named():
    strange = merged_file(operations=("delete", "put"))
    sound = (merged_file(operations=("put", "put")), merged_file(operations=None))
    assert objections(batch_view.puts_alone, batch_look(sound, two_views(spec=KEYED))) == []
    [detail] = objections(batch_view.puts_alone, batch_look((strange,), two_views(spec=KEYED)))
    assert "holds operations delete to put, expected put alone" in detail
    assert objections(batch_view.puts_alone, batch_look((strange,))) == []


def test_where_the_batch_view_is_the_only_one_it_has_as_many_rows_as_tier_moves_brought():
    only = two_views(spec=TableSpec(table="shop.orders", columns={"id": "long"}, views="batch"))
    brought = sum(m.rows or 0 for m in only.moves if m.stage == "tier" and m.state == "COMMITTED")
    assert objections(batch_view.rows_of_moves, batch_look((merged_file(rows=brought),), only)) == []
    [detail] = objections(batch_view.rows_of_moves, batch_look((merged_file(rows=brought - 1),), only))
    assert f"has {brought - 1} rows, tier moves brought {brought}" in detail
    assert objections(batch_view.rows_of_moves, batch_look((merged_file(),))) == [], "both views: S19 compares them"


def test_a_file_of_the_batch_view_above_batch_hi_and_a_summary_that_says_otherwise_are_named():
    [above] = objections(batch_view.files_below_batch_hi, batch_look((merged_file(high=15),)))
    told = objections(batch_view.told_batch_hi, batch_look((merged_file(),), told="0:12"))

    assert "holds offsets 0..15, the batch view has [0, 15)" in above
    assert told == [
        f"version {number}, partition 0: batch_hi is 15, its snapshot of the batch view says 12" for number in (5, 6)
    ]


def counted(rows, *, view="batch", **changes) -> Look:
    """A look at `two_views` whose *view* has so many *rows* by version, as manifest lists say; None: it has no list."""
    made = two_views(**changes)
    at = {number: View(metadata=f"file:///{view}/{number}.json", snapshot=number) for number in rows}
    metadata, lists = {}, {}
    for number, count in rows.items():
        path = f"file:///{view}/list{number}"
        snapshot = SnapshotSeen(snapshot=number, parent=None, sequence=number, manifest_list=path, summary={})
        metadata[at[number].metadata] = MetadataSeen(
            snapshot=number, snapshots={number: snapshot}, properties={}, offset_id=9
        )
        manifest = ManifestSeen(
            path="m", bytes=9, live=1, rows=count or 0, plain=True, manifest=None
        )  # nothing reads it
        lists[path] = Unreadable(path, "gone") if count is None else (manifest,)
    survey = Survey(metadata=metadata, lists=lists, manifests={}, damaged={})
    versions = [
        replace(v, batch=at.get(v.version, v.batch))
        if view == "batch"
        else replace(v, stream=at.get(v.version, v.stream))
        for v in made.versions
    ]
    return Look(books=replace(made, versions=versions), surveys={view: survey}, log=None)


def test_a_relayout_that_loses_or_doubles_rows_breaks_s20():
    for has in (14, 30):
        assert objections(lake.rewrites_keep_rows, counted({5: 15, 6: has})) == [
            f"version 6, otree move 15 has {has} rows in shop.orders, version 5 had 15"
        ]
    assert objections(lake.rewrites_keep_rows, counted({4: 10, 5: 15, 6: 15})) == []
    assert objections(lake.rewrites_keep_rows, counted({5: None, 6: 15})) == [], "S10 says what is gone"
    assert objections(lake.rewrites_keep_rows, counted({6: 15})) == [], "version 5 is no longer held"


def test_a_compaction_that_loses_rows_breaks_s20():
    moves = [replace(m, stage="compact") if m.move_id == 15 else m for m in two_views().moves]

    assert objections(lake.rewrites_keep_rows, counted({5: 20, 6: 19}, view="stream", moves=moves)) == [
        "version 6, compact move 15 has 19 rows in shop.orders__stream, version 5 had 20"
    ]
    assert objections(lake.rewrites_keep_rows, counted({5: 20, 6: 19}, moves=moves)) == [], "not its view"


@pytest.mark.parametrize("changes", [{"lo": {0: 15}}, {"trigger": "reconcile", "base_version": 5}])
def test_a_merge_and_what_reconcile_took_over_may_bring_rows(changes):
    moves = [replace(m, **changes) if m.move_id == 15 else m for m in two_views().moves]

    assert objections(lake.rewrites_keep_rows, counted({5: 15, 6: 16}, moves=moves)) == []


def test_merges_that_leave_a_gap_and_two_open_ones_are_named():
    gap = two_views(moves=[m if m.move_id != 14 else replace(m, lo={0: 12}) for m in two_views().moves])
    opened = [move(n, 15, 20, stage="otree", shard=n, state="PLANNED") for n in (20, 21)]

    [detail] = objections(batch_view.merges_tile, batch_look((), gap))
    assert "leaves a gap after move 13, which ends at 10" in detail
    assert objections(batch_view.one_open_merge, batch_look((), two_views(moves=opened))) == [
        "2 open moves of otree: 20-21"
    ]


def test_a_layout_that_is_gone_or_is_not_its_digests_is_named():
    [row] = two_views().layouts
    for layouts, text in [
        ([], "no row 6 in harness.layouts; version 6 names it"),
        ([replace(row, digest="0" * 64)], "the row says 000000000000"),
        ([replace(row, tree="{}")], "expected a stored region tree"),
        ([replace(row, clustered={"01": 3})], "1 clustered regions, such as '01', are not in its tree"),
    ]:
        [detail] = objections(batch_view.layouts_there, batch_look((), two_views(layouts=layouts)))
        assert text in detail


def test_a_batch_view_that_reconcile_began_anew_is_merged_again_from_the_start():
    anew = move(30, 0, 0, lo={}, hi={}, stage="otree", trigger="reconcile", base_version=6, rows=0)
    begun = replace(
        two_views().versions[-1],
        version=7,
        move_id=30,
        layout=None,
        bounds={0: StoredBounds(start=0, batch_hi=0, stream_hi=20, buffer_hi=30)},
    )
    again = replace(
        begun, version=8, move_id=31, bounds={0: StoredBounds(start=0, batch_hi=20, stream_hi=20, buffer_hi=30)}
    )
    look = batch_look(
        (),
        two_views(
            versions=[*two_views().versions, begun, again],
            moves=[*two_views().moves, anew, move(31, 0, 20, stage="otree")],
            positions={0: position(batch_hi=20)},
        ),
    )

    rules = (batch_view.merges_tile, ledger.bounds_only_rise, ledger.version_is_its_move)
    assert [found for check in rules for found in check(look)] == []
