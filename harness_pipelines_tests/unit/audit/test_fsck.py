"""Rules of fsck on books written by hand: what no database lets a test plant, and what only two looks can tell."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from harness_pipelines.audit import fsck as module
from harness_pipelines.audit import fsck_batch, fsck_buffer, fsck_lake, fsck_ledger, fsck_log
from harness_pipelines.audit.fsck_rules import RULES, Found, LogSeen, Look, Rule, rule, spelled
from harness_pipelines.layout.columns import IndexedColumn
from harness_pipelines.layout.tree import RegionTree
from harness_pipelines.protocol.versions import View
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.stores.books import Books, Buffered, Cut, LayoutRow, MoveRow, PositionRow, SegmentRow, VersionRow
from harness_pipelines.stores.lake_look import FileSeen, ManifestSeen, MetadataSeen, SnapshotSeen, Unreadable
from harness_pipelines.stores.lake_survey import Survey
from harness_pipelines.stores.ports_log import TopicIdentity, Watermark

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def move(move_id, low, high, **changes):
    made = MoveRow(
        move_id=move_id,
        stage="tier",
        shard=0,
        lo={0: low},
        hi={0: high},
        base_version=1,
        schema_version=1,
        state="COMMITTED",
        attempt=1,
        epoch=1,
        trigger="rows",
        rows=high - low,
        error=None,
        undone_by=None,
        planned_at=NOW,
    )
    return replace(made, **changes)


def version(number, stream_hi, *, move_id=None, revert_of=None, buffer_hi=30):
    return VersionRow(
        version=number,
        stream=View(metadata=f"file:///t/metadata/{number}.json", snapshot=100 + number),
        schema_version=1,
        bounds={0: Cut(start=0, batch_hi=0, stream_hi=stream_hi, buffer_hi=buffer_hi)},
        revert_of=revert_of,
        move_id=move_id,
        committed_at=NOW,
    )


def position(stream_hi=20, buffer_hi=30, **changes):
    row = PositionRow(
        partition=0,
        lake_start=0,
        stream_hi=stream_hi,
        batch_hi=0,
        trim_floor=0,
        ingest_start=0,
        buffer_hi=buffer_hi,
        schema_version=1,
    )
    return replace(row, **changes)


def books(**changes) -> Books:
    """A sound table: two tier moves up to 20, ingest up to 30."""
    made = Books(
        table_id=1,
        name="shop.orders",
        namespace="shop",
        views={"stream": "orders__stream"},
        spec=TableSpec(table="shop.orders", columns={"id": "long"}),
        cluster_id="c",
        topic="orders",
        topic_id="t",
        outbox_seq=3,
        retained_from=1,
        stopped=None,
        now=NOW,
        pointers={"stream": "file:///t/metadata/3.json"},
        positions={0: position()},
        versions=[version(1, 0, buffer_hi=0), version(2, 10, move_id=11), version(3, 20, move_id=12)],
        moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 10), move(12, 10, 20)],
        layouts=[],
        schemas=[1],
        segments=[],
        claims={("tier", 0): {"epoch": 1, "alive": True}, ("ingest", 0): {"epoch": 1, "alive": True}},
        leases=[],
        outbox={"events": 3, "first": 1, "last": 3},
        outbox_gaps=[],
        quarantined={},
        quarantined_outside=[],
        buffered=Buffered(waiting={0: 10}, doubled=(), uncommitted=(), refused_twice=()),
    )
    return replace(made, **changes)


def file(path="file:///t/data/a.parquet", **changes):
    seen = FileSeen(path=path, added=3, bytes=5, rows=20, partition=0, low=0, high=19)
    return replace(seen, **changes)


def surveyed(files, *, summary=None, damaged=None, number=3) -> Survey:
    """The metadata of version *number* with *files*."""
    snapshot = SnapshotSeen(snapshot=103, parent=102, sequence=3, manifest_list="file:///t/list", summary=summary or {})
    metadata = MetadataSeen(snapshot=103, snapshots={103: snapshot}, properties={}, offset_id=9)
    manifest = ManifestSeen(path="file:///t/m", bytes=9, live=1, rows=15, plain=True, manifest=None)  # type: ignore[arg-type]  # nothing reads it
    return Survey(
        metadata={f"file:///t/metadata/{number}.json": metadata},
        lists={"file:///t/list": (manifest,)},
        manifests={"file:///t/m": files},
        damaged=damaged or {},
    )


def details(check, look_books=None, *, survey=None, log=None, trouble=None):
    look = Look(books=look_books or books(), surveys=survey and {"stream": survey}, log=log, log_trouble=trouble)
    return [found.detail for found in check(look)]


def hints(check, look_books):
    return [f.detail for f in check(Look(books=look_books, surveys=None, log=None)) if f.hint]


# -- the registry -------------------------------------------------------------------------------------------


def test_every_rule_names_an_invariant_of_the_design_and_says_it_once():
    assert all(re.fullmatch(r"S([1-9]|[12][0-9]|3[0-7])|L([1-9]|10)", r.invariant) for r in RULES)
    assert max(Counter(r.title for r in RULES).values()) == 1


def test_a_sound_ledger_breaks_no_rule():
    look = Look(books=books(), surveys=None, log=None)

    assert [(r.invariant, found) for r in RULES if not r.needs for found in r.check(look)] == []


def test_runs_of_numbers_are_spelled_short():
    assert spelled([5, 1, 2, 3, 9, 3]) == "1-3, 5, 9"
    assert spelled([]) == ""


# -- ledger -------------------------------------------------------------------------------------------------


def test_a_gap_and_an_overlap_between_moves_are_named_with_the_move():
    gap = books(moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 8), move(12, 10, 20)])
    overlap = books(moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 13), move(12, 10, 20)])

    assert details(fsck_ledger.moves_tile, gap) == [
        "tier move 12 took [10, 20) of partition 0; it leaves a gap after move 11, which ends at 8"
    ]
    assert details(fsck_ledger.moves_tile, overlap) == [
        "tier move 12 took [10, 20) of partition 0; it overlaps move 11, which ends at 13"
    ]


def test_what_a_revert_undid_does_not_count_and_its_range_may_be_moved_again():
    reverted = [*books().versions, version(4, 10, move_id=13, revert_of=2), version(5, 20, move_id=14)]
    revert = move(13, 0, 0, stage="revert", epoch=0, rows=0)
    moves = [*books().moves[:2], move(12, 10, 20, undone_by=13), revert, move(14, 10, 20)]

    sound = books(versions=reverted, moves=moves)
    assert details(fsck_ledger.moves_tile, sound) == []
    assert details(fsck_ledger.bounds_only_rise, sound) == []
    assert [m.move_id for m in Look(books=sound, surveys=None, log=None).tier_moves] == [11, 14]

    assert details(fsck_ledger.undone_moves_are_marked, sound) == []
    wrong = [replace(moves[1], undone_by=13), replace(moves[2], undone_by=None), *moves[3:]]
    assert details(fsck_ledger.undone_moves_are_marked, replace(sound, moves=wrong)) == [
        "tier move 11 is marked as undone by revert 13, but its rows are in the head",
        "tier move 12 was undone by a revert and is not marked so",
    ]

    by_hand = books(versions=[*reverted[:3], replace(reverted[3], revert_of=None), reverted[4]], moves=moves)
    assert details(fsck_ledger.bounds_only_rise, by_hand) == ["version 4, partition 0: stream_hi falls from 20 to 10"]


def test_without_a_buffer_tier_reads_the_log_and_a_revert_forgets_nothing_of_it():
    spec = TableSpec(table="shop.orders", columns={"id": "long"}, buffer="none")
    back = [*books().versions, version(4, 10, move_id=13, revert_of=2)]
    moves = [*books().moves[1:], move(13, 0, 0, stage="revert", epoch=0, rows=0)]
    sound = books(spec=spec, moves=moves, versions=back, positions={0: position(10, 20)})

    assert details(fsck_ledger.moves_tile, sound) == []
    assert details(fsck_ledger.moves_tile, replace(sound, positions={0: position(10, 25)})) == [
        "partition 0: buffer_hi is 25, with `buffer: none` it is what tier has read: 20"
    ]


def test_moves_that_reconcile_took_over_share_one_version():
    taken = [move(11, 0, 10, trigger="reconcile", epoch=0), move(12, 10, 20, trigger="reconcile", epoch=0)]
    adopted = books(versions=[version(1, 0, buffer_hi=0), version(2, 20, move_id=12)], moves=[books().moves[0], *taken])

    for check in (fsck_ledger.moves_and_versions, fsck_ledger.version_is_its_move, fsck_ledger.moves_tile):
        assert details(check, adopted) == []


def test_rows_of_another_writer_that_were_accepted_belong_to_no_partition():
    accepted = move(13, 0, 4, lo={-1: 0}, hi={-1: 4}, trigger="accept-foreign", epoch=0)
    sound = books(versions=[*books().versions, version(4, 20, move_id=13)], moves=[*books().moves, accepted])

    for check in (fsck_ledger.moves_tile, fsck_ledger.version_is_its_move, fsck_buffer.nothing_dropped):
        assert details(check, sound) == []


def test_two_open_moves_of_a_stage_are_named():
    twice = [move(13, 20, 25, state="PLANNED"), move(14, 25, 30, state="PLANNED")]

    assert details(fsck_ledger.one_open_move, books(moves=twice)) == ["2 open moves of tier, shard 0: 13-14"]


def test_an_epoch_that_falls_is_named():
    falling = books(moves=[move(11, 0, 10, epoch=3), move(12, 10, 20, epoch=2)])

    assert details(fsck_ledger.epochs_rise, falling) == [
        "tier move 12 has epoch 2, the earlier 11 3",
        "the claim of tier, shard 0, is at epoch 1, move 11 has 3: a late holder would not be fenced",
    ]


def test_partitions_in_two_schemas_are_named():
    mixed = {0: position(), 1: replace(position(), partition=1, schema_version=2)}

    assert details(fsck_ledger.one_schema_at_a_time, books(positions=mixed)) == [
        "a schema publish moves all partitions at once; found partition 0 in schema 1, partition 1 in schema 2"
    ]


def test_an_open_move_whose_holder_is_gone_and_one_that_failed_are_hints():
    left = books(
        moves=[move(13, 20, 30, state="PLANNED")],
        claims={("tier", 0): {"epoch": 4, "alive": False}},
    )
    stuck = books(moves=[move(13, 20, 30, state="QUARANTINED", error="boom")])

    assert "with move 13 open" in hints(fsck_ledger.claims_left, left)[0]
    assert hints(fsck_ledger.moves_left, stuck) == ["tier move 13 failed in every attempt and holds its stage: boom"]


def test_a_lease_above_its_age_and_one_on_no_version_are_broken():
    old = {"version": 9, "holder": "reader", "born": NOW - timedelta(hours=25), "alive": True}

    assert len(details(fsck_ledger.leases_end, books(leases=[old]))) == 2
    assert details(fsck_ledger.leases_end, books(leases=[{**old, "alive": False}])) == []


def test_a_table_that_waits_too_long_or_was_stopped_is_a_hint():
    late = books(now=NOW + timedelta(hours=1), stopped="records lost")

    first, second = hints(fsck_ledger.lake_lag, late)
    assert first.startswith("10 offsets are not in the lake yet")
    assert second == "the table is stopped: records lost"


# -- buffer -------------------------------------------------------------------------------------------------


def test_a_trim_floor_above_what_an_old_version_reads_from_the_buffer_is_named():
    trimmed = books(positions={0: position(trim_floor=15)}, versions=[*books().versions[:2], version(3, 20)])

    [detail] = details(fsck_buffer.floor_leaves_reads, trimmed)
    assert detail == "version 2 needs [10, 30) of partition 0 from the buffer, the trim floor is 15"
    assert details(fsck_buffer.floor_leaves_reads, replace(trimmed, retained_from=3)) == []


def test_a_retired_segment_that_is_never_dropped_is_a_hint():
    segment = SegmentRow(
        name="seg", state="retired", schema_version=1, max_hi={0: 0}, retired_at=NOW - timedelta(days=1), stored=True
    )

    assert "retired 24.0 h ago" in hints(fsck_buffer.leftovers, books(segments=[segment]))[0]


# -- lake ---------------------------------------------------------------------------------------------------


def test_a_file_that_reaches_above_stream_hi_breaks_s37():
    survey = surveyed((file(high=20),))

    assert details(fsck_lake.files_below_stream_hi, survey=survey) == [
        "file:///t/data/a.parquet holds offset 20 of partition 0, stream_hi is 20"
    ]


def test_a_delete_file_breaks_s26_and_is_no_data():
    survey = surveyed((file(), file("file:///t/data/d.parquet", deletes="equality", rows=3)))

    assert details(fsck_lake.no_deletes, survey=survey) == ["equality delete file file:///t/data/d.parquet with 3 rows"]
    assert details(fsck_lake.lake_rows_fit_offsets, survey=survey) == []


def test_a_file_that_is_live_twice_and_one_without_bounds_are_named():
    assert "live 2 times" in details(fsck_lake.files_once, survey=surveyed((file(), file())))[0]
    assert "no bounds of its offsets" in details(fsck_lake.files_inside_bounds, survey=surveyed((file(low=None),)))[0]
    assert "does not have" in details(fsck_lake.files_inside_bounds, survey=surveyed((file(partition=4),)))[0]


def test_rows_of_a_move_are_counted_in_its_files_alone():
    halves = (file(rows=10, high=9), file("file:///t/data/b.parquet", rows=9, low=10))
    across = (file(low=5, high=15, rows=20),)

    assert details(fsck_lake.move_rows, survey=surveyed(halves)) == [
        "tier move 12 brought 10 rows, its files in the head hold 9"
    ]
    assert "no committed move brought them" in details(fsck_lake.move_rows, survey=surveyed(across))[0]


def test_moves_whose_rows_compact_brought_into_one_file_are_counted_together():
    compact = move(13, 0, 0, lo={}, hi={}, stage="compact", rows=20)
    versions = [*books().versions[:2], version(3, 20, move_id=12), version(4, 20, move_id=13)]
    compacted = books(moves=[*books().moves, compact], versions=versions)
    whole, short = (surveyed((file(rows=rows),), number=4) for rows in (20, 19))

    assert details(fsck_lake.move_rows, compacted, survey=whole) == []
    assert details(fsck_lake.move_rows, compacted, survey=short) == [
        "tier moves 11-12 brought 20 rows, their files in the head hold 19"
    ]


def test_a_head_whose_manifest_is_gone_is_not_counted():
    survey = surveyed(Unreadable("file:///t/m", "there is no such file"))

    assert details(fsck_lake.move_rows, survey=survey) == []
    assert details(fsck_lake.lake_rows_fit_offsets, survey=survey) == []


def test_other_engines_may_not_be_allowed_to_remove_files():
    assert details(fsck_lake.nobody_else_removes, survey=surveyed(())) == [
        "the stream view's property gc.enabled is not set: other engines may remove files",
        "the stream view's property write.metadata.delete-after-commit.enabled is not set: other engines may remove "
        "files",
    ]


# -- log ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("low", "end", "text", "hint"),
    [
        (0, 40, None, False),
        (25, 40, "only Postgres has [20, 25)", True),
        (35, 40, "records [30, 35) were dropped before they were read", False),
        (0, 29, "ends at 29, read up to 30", False),
    ],
)
def test_the_log_must_have_what_was_not_read(low, end, text, hint):
    identity = TopicIdentity(cluster_id="c", topic="orders", topic_id="t", partitions=(0,))
    log = LogSeen(identity=identity, marks={0: Watermark(low, end)})
    found = list(fsck_log.log_has_the_rest(Look(books=books(), surveys=None, log=log)))

    assert [(text in f.detail, f.hint) for f in found] == ([] if text is None else [(True, hint)])


def test_a_table_that_was_stopped_by_its_log_kept_the_invariant():
    look = Look(books=books(stopped="recreated"), surveys=None, log=None, log_trouble="the topic is another one")

    assert [f.hint for f in fsck_log.log_has_the_rest(look)] == [True]


# -- two looks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "reported"), [(["a"], ["a"]), ([], []), (["b"], [])])
def test_only_what_two_looks_saw_is_reported(monkeypatch, second, reported):
    seen = iter([["a"], second])
    monkeypatch.setattr(module, "RULES", [])
    monkeypatch.setattr(module, "held", lambda *_: nullcontext())

    class Looks:
        trouble: dict[tuple[str, str], str]
        stores = SimpleNamespace(readers=None)

        def look(self, _name: str) -> Look:
            subjects = next(seen)
            only = Rule(invariant="S1", title="t", check=lambda _: [Found(subject=s, detail=s) for s in subjects])
            module.RULES[:] = [only]
            return Look(books=books(), surveys=None, log=None)

    report = module.Report()
    module._check(Looks(), "shop.orders", report)  # type: ignore[arg-type]

    assert [f.detail for f in report.broken] == reported


def test_a_rule_says_what_it_could_not_do_without():
    before = list(RULES)
    try:

        @rule("S1", "a rule of a test", "lake")
        def check(_look):
            return []

        assert RULES[-1].missing(Look(books=books(), surveys=None, log=None)) == "lake"
        assert RULES[-1].missing(Look(books=books(), surveys={"stream": surveyed(())}, log=None)) is None
    finally:
        RULES[:] = before


# -- the batch view -----------------------------------------------------------------------------------------

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
                bounds={0: Cut(start=0, batch_hi=high, stream_hi=20, buffer_hi=30)},
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
    manifest = ManifestSeen(path="file:///b/m", bytes=9, live=1, rows=15, plain=True, manifest=None)  # type: ignore[arg-type]  # nothing reads it
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
    batch = (fsck_batch.same_rows, fsck_batch.files_below_batch_hi, fsck_batch.told_batch_hi)

    assert [(r.invariant, found) for r in RULES if not r.needs for found in r.check(look)] == []
    assert [found for check in batch for found in check(look)] == []


def test_rows_that_the_batch_view_lacks_or_has_twice_are_counted():
    """A file of the stream view that batch_hi cuts has a row on either side: 11 to 19 rows."""
    assert objections(fsck_batch.same_rows, batch_look((merged_file(rows=11),))) == []
    for rows in (10, 20):
        [detail] = objections(fsck_batch.same_rows, batch_look((merged_file(rows=rows),)))
        assert f"has {rows} rows, the stream view has 11 to 19 below batch_hi of version 6" in detail


KEYED = TableSpec(table="shop.orders", columns={"id": "long"}, key=("id",))


def test_the_batch_view_of_a_keyed_table_may_have_fewer_rows_than_the_stream_view_and_never_more():
    books = two_views(spec=KEYED)
    for rows in (0, 3, 19):
        assert objections(fsck_batch.same_rows, batch_look((merged_file(rows=rows),), books)) == []
    [detail] = objections(fsck_batch.same_rows, batch_look((merged_file(rows=20),), books))
    assert "has 20 rows, the stream view has 0 to 19 below batch_hi" in detail


def test_a_delete_in_the_batch_view_of_a_keyed_table_is_named():
    strange = merged_file(operations=("delete", "put"))
    sound = (merged_file(operations=("put", "put")), merged_file(operations=None))
    assert objections(fsck_batch.puts_alone, batch_look(sound, two_views(spec=KEYED))) == []
    [detail] = objections(fsck_batch.puts_alone, batch_look((strange,), two_views(spec=KEYED)))
    assert "holds operations delete to put, expected put alone" in detail
    assert objections(fsck_batch.puts_alone, batch_look((strange,))) == []


def test_a_file_of_the_batch_view_above_batch_hi_and_a_summary_that_says_otherwise_are_named():
    [above] = objections(fsck_batch.files_below_batch_hi, batch_look((merged_file(high=15),)))
    told = objections(fsck_batch.told_batch_hi, batch_look((merged_file(),), told="0:12"))

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
        manifest = ManifestSeen(path="m", bytes=9, live=1, rows=count or 0, plain=True, manifest=None)  # type: ignore[arg-type]  # nothing reads it
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
        assert objections(fsck_lake.rewrites_keep_rows, counted({5: 15, 6: has})) == [
            f"version 6, otree move 15 has {has} rows in shop.orders, version 5 had 15"
        ]
    assert objections(fsck_lake.rewrites_keep_rows, counted({4: 10, 5: 15, 6: 15})) == []
    assert objections(fsck_lake.rewrites_keep_rows, counted({5: None, 6: 15})) == [], "S10 says what is gone"
    assert objections(fsck_lake.rewrites_keep_rows, counted({6: 15})) == [], "version 5 is no longer held"


def test_a_compaction_that_loses_rows_breaks_s20():
    moves = [replace(m, stage="compact") if m.move_id == 15 else m for m in two_views().moves]

    assert objections(fsck_lake.rewrites_keep_rows, counted({5: 20, 6: 19}, view="stream", moves=moves)) == [
        "version 6, compact move 15 has 19 rows in shop.orders__stream, version 5 had 20"
    ]
    assert objections(fsck_lake.rewrites_keep_rows, counted({5: 20, 6: 19}, moves=moves)) == [], "not its view"


@pytest.mark.parametrize("changes", [{"lo": {0: 15}}, {"trigger": "reconcile", "base_version": 5}])
def test_a_merge_and_what_reconcile_took_over_may_bring_rows(changes):
    moves = [replace(m, **changes) if m.move_id == 15 else m for m in two_views().moves]

    assert objections(fsck_lake.rewrites_keep_rows, counted({5: 15, 6: 16}, moves=moves)) == []


def test_merges_that_leave_a_gap_and_two_open_ones_are_named():
    gap = two_views(moves=[m if m.move_id != 14 else replace(m, lo={0: 12}) for m in two_views().moves])
    opened = [move(n, 15, 20, stage="otree", shard=n, state="PLANNED") for n in (20, 21)]

    [detail] = objections(fsck_batch.merges_tile, batch_look((), gap))
    assert "leaves a gap after move 13, which ends at 10" in detail
    assert objections(fsck_batch.one_open_merge, batch_look((), two_views(moves=opened))) == [
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
        [detail] = objections(fsck_batch.layouts_there, batch_look((), two_views(layouts=layouts)))
        assert text in detail


def test_a_batch_view_that_reconcile_began_anew_is_merged_again_from_the_start():
    anew = move(30, 0, 0, lo={}, hi={}, stage="otree", trigger="reconcile", base_version=6, rows=0)
    begun = replace(
        two_views().versions[-1],
        version=7,
        move_id=30,
        layout=None,
        bounds={0: Cut(start=0, batch_hi=0, stream_hi=20, buffer_hi=30)},
    )
    again = replace(begun, version=8, move_id=31, bounds={0: Cut(start=0, batch_hi=20, stream_hi=20, buffer_hi=30)})
    look = batch_look(
        (),
        two_views(
            versions=[*two_views().versions, begun, again],
            moves=[*two_views().moves, anew, move(31, 0, 20, stage="otree")],
            positions={0: position(batch_hi=20)},
        ),
    )

    rules = (fsck_batch.merges_tile, fsck_ledger.bounds_only_rise, fsck_ledger.version_is_its_move)
    assert [found for check in rules for found in check(look)] == []
