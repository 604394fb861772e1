"""Rules of fsck on books written by hand: what no database lets a test plant, and what only two looks can tell."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.audit.fsck import buffer, lake, ledger
from harness_pipelines.audit.fsck import run as module
from harness_pipelines.audit.fsck.rule import RULES, LogSeen, Look, Objection, Rule, named_versions, rule, spelled
from harness_pipelines.drivers.postgres import PostgresUnreachable
from harness_pipelines.errors import TryAgain
from harness_pipelines.ports.files import Unreadable
from harness_pipelines.ports.source import TopicIdentity, Watermark
from harness_pipelines.ports.table_state import SegmentRow, protocol_versions
from harness_pipelines.protocol.bounds import BoundsBroken
from harness_pipelines.spec.table import TableSpec
from harness_pipelines_tests.unit.audit.books import NOW, books, claim, details, file, move, position, surveyed, version


def hints(check, look_books):
    return [f.detail for f in check(Look(books=look_books, surveys=None, log=None)) if f.hint]


# -- the registry -------------------------------------------------------------------------------------------


def test_every_rule_names_an_invariant_of_the_design_and_says_it_once():
    assert all(re.fullmatch(r"S([1-9]|[12][0-9]|3[0-9])|L([1-9]|10)|F[1-9]", r.invariant) for r in RULES)
    assert max(Counter(r.title for r in RULES).values()) == 1


def test_a_sound_ledger_breaks_no_rule():
    look = Look(books=books(), surveys=None, log=None)

    assert [(r.invariant, found) for r in RULES if not r.needs for found in r.check(look)] == []


def test_files_of_what_a_foreign_catalog_may_show_must_be_there():
    kept = books(versions=[version(1, 0), version(2, 10), version(3, 20)], retained_from=3)
    assert set(named_versions(kept)) == {3}
    assert set(named_versions(replace(kept, mirrored=frozenset({1})))) == {1, 3}


def test_runs_of_numbers_are_spelled_short():
    assert spelled([5, 1, 2, 3, 9, 3]) == "1-3, 5, 9"
    assert spelled([]) == ""


# -- ledger -------------------------------------------------------------------------------------------------


def test_a_gap_and_an_overlap_between_moves_are_named_with_the_move():
    gap = books(moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 8), move(12, 10, 20)])
    overlap = books(moves=[move(10, 0, 30, stage="ingest"), move(11, 0, 13), move(12, 10, 20)])

    assert details(ledger.moves_tile, gap) == [
        "tier move 12 took [10, 20) of partition 0; it leaves a gap after move 11, which ends at 8"
    ]
    assert details(ledger.moves_tile, overlap) == [
        "tier move 12 took [10, 20) of partition 0; it overlaps move 11, which ends at 13"
    ]


def test_what_a_revert_undid_does_not_count_and_its_range_may_be_moved_again():
    reverted = [*books().versions, version(4, 10, move_id=13, revert_of=2), version(5, 20, move_id=14)]
    revert = move(13, 0, 0, stage="revert", epoch=0, rows=0)
    moves = [*books().moves[:2], move(12, 10, 20, undone_by=13), revert, move(14, 10, 20)]

    sound = books(versions=reverted, moves=moves)
    assert details(ledger.moves_tile, sound) == []
    assert details(ledger.bounds_only_rise, sound) == []
    assert [m.move_id for m in Look(books=sound, surveys=None, log=None).tier_moves] == [11, 14]

    assert details(ledger.undone_moves_are_marked, sound) == []
    wrong = [replace(moves[1], undone_by=13), replace(moves[2], undone_by=None), *moves[3:]]
    assert details(ledger.undone_moves_are_marked, replace(sound, moves=wrong)) == [
        "tier move 11 is marked as undone by revert 13, but its rows are in the head",
        "tier move 12 was undone by a revert and is not marked so",
    ]

    by_hand = books(versions=[*reverted[:3], replace(reverted[3], revert_of=None), reverted[4]], moves=moves)
    assert details(ledger.bounds_only_rise, by_hand) == ["version 4, partition 0: stream_hi falls from 20 to 10"]


def test_without_a_buffer_tier_reads_the_log_and_a_revert_forgets_nothing_of_it():
    spec = TableSpec(table="shop.orders", columns={"id": "long"}, buffer="none")
    back = [*books().versions, version(4, 10, move_id=13, revert_of=2)]
    moves = [*books().moves[1:], move(13, 0, 0, stage="revert", epoch=0, rows=0)]
    sound = books(spec=spec, moves=moves, versions=back, positions={0: position(10, 20)})

    assert details(ledger.moves_tile, sound) == []
    assert details(ledger.moves_tile, replace(sound, positions={0: position(10, 25)})) == [
        "partition 0: buffer_hi is 25, with `buffer: none` it is what tier has read: 20"
    ]


def test_moves_that_reconcile_took_over_share_one_version():
    taken = [move(11, 0, 10, trigger="reconcile", epoch=0), move(12, 10, 20, trigger="reconcile", epoch=0)]
    adopted = books(versions=[version(1, 0, buffer_hi=0), version(2, 20, move_id=12)], moves=[books().moves[0], *taken])

    for check in (ledger.moves_and_versions, ledger.version_is_its_move, ledger.moves_tile):
        assert details(check, adopted) == []


def test_rows_of_another_writer_that_were_accepted_belong_to_no_partition():
    accepted = move(13, 0, 4, lo={-1: 0}, hi={-1: 4}, trigger="accept-foreign", epoch=0)
    sound = books(versions=[*books().versions, version(4, 20, move_id=13)], moves=[*books().moves, accepted])

    for check in (ledger.moves_tile, ledger.version_is_its_move, buffer.nothing_dropped):
        assert details(check, sound) == []


def test_two_open_moves_of_a_stage_are_named():
    twice = [move(13, 20, 25, state="PLANNED"), move(14, 25, 30, state="PLANNED")]

    assert details(ledger.one_open_move, books(moves=twice)) == ["2 open moves of tier, shard 0: 13-14"]


def test_an_epoch_that_falls_is_named():
    falling = books(moves=[move(11, 0, 10, epoch=3), move(12, 10, 20, epoch=2)])

    assert details(ledger.epochs_rise, falling) == [
        "tier move 12 has epoch 2, the earlier 11 3",
        "the claim of tier, shard 0, is at epoch 1, move 11 has 3: a late holder would not be fenced",
    ]


def test_partitions_in_two_schemas_are_named():
    mixed = {0: position(), 1: replace(position(), partition=1, schema_version=2)}

    assert details(ledger.one_schema_at_a_time, books(positions=mixed)) == [
        "a schema publish moves all partitions at once; found partition 0 in schema 1, partition 1 in schema 2"
    ]


def test_an_open_move_whose_holder_is_gone_and_one_that_failed_are_hints():
    left = books(
        moves=[move(13, 20, 30, state="PLANNED")],
        claims={("tier", 0): claim(4, alive=False)},
    )
    stuck = books(moves=[move(13, 20, 30, state="QUARANTINED", error="boom")])

    assert "with move 13 open" in hints(ledger.claims_left, left)[0]
    assert hints(ledger.moves_left, stuck) == ["tier move 13 failed in every attempt and holds its stage: boom"]


def test_a_lease_above_its_age_and_one_on_no_version_are_broken():
    old = {"version": 9, "holder": "reader", "born": NOW - timedelta(hours=25), "until": NOW, "alive": True}

    assert len(details(ledger.leases_end, books(leases=[old]))) == 2
    assert details(ledger.leases_end, books(leases=[{**old, "alive": False}])) == []


def test_a_table_that_waits_too_long_or_was_stopped_is_a_hint():
    late = books(since_tier_s=3600.0, stopped="records lost")

    first, second = hints(ledger.lake_lag, late)
    assert first == "10 offsets are not in the lake yet, no move of tier for 3600 s (goal 900 s)"
    assert second == "the table is stopped: records lost"


# -- buffer -------------------------------------------------------------------------------------------------


def test_a_trim_floor_above_what_an_old_version_reads_from_the_buffer_is_named():
    trimmed = books(positions={0: position(trim_floor=15)}, versions=[*books().versions[:2], version(3, 20)])

    [detail] = details(buffer.floor_leaves_reads, trimmed)
    assert detail == "version 2 needs [10, 30) of partition 0 from the buffer, the trim floor is 15"
    assert details(buffer.floor_leaves_reads, replace(trimmed, retained_from=3)) == []


def test_a_retired_segment_that_is_never_dropped_is_a_hint():
    segment = SegmentRow(
        name="seg", state="retired", schema_version=1, max_hi={0: 0}, retired_at=NOW - timedelta(days=1), stored=True
    )

    assert "retired 24.0 h ago" in hints(buffer.leftovers, books(segments=[segment]))[0]


# -- lake ---------------------------------------------------------------------------------------------------


def test_a_file_that_reaches_above_stream_hi_breaks_s37():
    survey = surveyed((file(high=20),))

    assert details(lake.files_below_stream_hi, survey=survey) == [
        "file:///t/data/a.parquet holds offset 20 of partition 0, stream_hi is 20"
    ]


def test_a_delete_file_breaks_s26_and_is_no_data():
    survey = surveyed((file(), file("file:///t/data/d.parquet", deletes="equality", rows=3)))

    assert details(lake.deletes_of_live_files, survey=survey) == [
        "equality delete file file:///t/data/d.parquet with 3 rows"
    ]
    assert details(lake.lake_rows_fit_offsets, survey=survey) == []


def test_records_that_the_filter_left_out_explain_offsets_without_a_row():
    look = {"survey": surveyed((file(rows=10, high=19),))}

    [told] = details(lake.lake_rows_fit_offsets, books(filtered={0: 9}), **look)
    assert "10 rows, 0 in quarantine, 9 left out by the filter, 20 offsets: gaps of the log" in told
    assert details(lake.lake_rows_fit_offsets, books(filtered={0: 10}), **look) == []


def test_a_file_that_is_live_twice_and_one_without_bounds_are_named():
    assert "live 2 times" in details(lake.files_once, survey=surveyed((file(), file())))[0]
    assert "no bounds of its offsets" in details(lake.files_inside_bounds, survey=surveyed((file(low=None),)))[0]
    assert "does not have" in details(lake.files_inside_bounds, survey=surveyed((file(partition=4),)))[0]


def test_rows_of_a_move_are_counted_in_its_files_alone():
    halves = (file(rows=10, high=9), file("file:///t/data/b.parquet", rows=9, low=10))
    across = (file(low=5, high=15, rows=20),)

    assert details(lake.move_rows, survey=surveyed(halves)) == [
        "tier move 12 brought 10 rows, its files in the head hold 9"
    ]
    assert "no committed move brought them" in details(lake.move_rows, survey=surveyed(across))[0]


def test_moves_whose_rows_compact_brought_into_one_file_are_counted_together():
    compact = move(13, 0, 0, lo={}, hi={}, stage="compact", rows=20)
    versions = [*books().versions[:2], version(3, 20, move_id=12), version(4, 20, move_id=13)]
    compacted = books(moves=[*books().moves, compact], versions=versions)
    whole, short = (surveyed((file(rows=rows),), number=4) for rows in (20, 19))

    assert details(lake.move_rows, compacted, survey=whole) == []
    assert details(lake.move_rows, compacted, survey=short) == [
        "tier moves 11-12 brought 20 rows, their files in the head hold 19"
    ]


def test_a_head_whose_manifest_is_gone_is_not_counted():
    survey = surveyed(Unreadable("file:///t/m", "there is no such file"))

    assert details(lake.move_rows, survey=survey) == []
    assert details(lake.lake_rows_fit_offsets, survey=survey) == []


def test_other_engines_may_not_be_allowed_to_remove_files():
    assert details(lake.nobody_else_removes, survey=surveyed(())) == [
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
    found = list(buffer.log_has_the_rest(Look(books=books(), surveys=None, log=log)))

    assert [(text in f.detail, f.hint) for f in found] == ([] if text is None else [(True, hint)])


def test_a_table_that_was_stopped_by_its_log_kept_the_invariant():
    look = Look(books=books(stopped="recreated"), surveys=None, log=None, log_trouble="the topic is another one")

    assert [f.hint for f in buffer.log_has_the_rest(look)] == [True]


# -- two looks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("second", "reported"), [(["a"], ["a"]), ([], []), (["b"], [])])
def test_only_what_two_looks_saw_is_reported(monkeypatch, second, reported):
    seen = iter([["a"], second])
    monkeypatch.setattr(module, "RULES", [])

    class Looks:
        trouble: dict[tuple[str, str], str]
        stores = SimpleNamespace(table_states=SimpleNamespace(held=lambda _: nullcontext()))

        def look(self, _name: str) -> Look:
            subjects = next(seen)
            only = Rule(invariant="S1", title="t", check=lambda _: [Objection(subject=s, detail=s) for s in subjects])
            module.RULES[:] = [only]
            return Look(books=books(), surveys=None, log=None)

    report = module.FsckReport()
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


def test_a_claim_or_a_lease_that_a_clock_ahead_has_given_is_named():
    day = timedelta(hours=24)
    [found] = details(ledger.claims_left, books(claims={("ingest", 0): claim(7, ahead=day)}))
    assert "ingest is claimed by somebody (epoch 7) until 2026" in found
    assert "`harness reconcile shop.orders --yes` ends it" in found
    held = {"version": 3, "holder": "reader", "born": NOW, "alive": True}
    assert details(ledger.leases_end, books(leases=[{**held, "until": NOW + day}])) == []
    [found] = details(ledger.leases_end, books(leases=[{**held, "until": NOW + 2 * day}]))
    assert "later than any may" in found


def test_a_spec_with_other_columns_than_the_schema_is_named():
    fields = [{"id": 1, "name": "id", "type": "long", "required": False}]
    assert details(ledger.spec_has_the_schema, books(fields=fields)) == []
    more = {"id": 2, "name": "more", "type": "string", "required": False}
    [found] = details(ledger.spec_has_the_schema, books(fields=[*fields, more]))
    assert "only the schema has more string" in found
    [found] = details(ledger.spec_has_the_schema, books(fields=[{**fields[0], "type": "int"}]))
    assert "only the spec has id long, only the schema has id int" in found


def _of(*names: str) -> Any:
    """Stores of a ledger with these tables."""
    return SimpleNamespace(table_states=SimpleNamespace(names=lambda *_: list(names)))


@pytest.mark.parametrize(
    "error", [BoundsBroken("stream_hi 9 is above buffer_hi 7"), KeyError("lo"), ValueError("tire")]
)
def test_one_sick_table_never_keeps_the_others_from_being_checked(monkeypatch, error):
    seen: list[str] = []

    def check(_looks: object, name: str, _report: module.FsckReport) -> None:
        seen.append(name)
        if name == "a.sick":
            raise error

    monkeypatch.setattr(module, "_check", check)
    report = module.fsck(_of("a.sick", "b.well"))

    assert seen == ["a.sick", "b.well"]
    [found] = report.broken
    assert (found.table, str(error) in found.detail) == ("a.sick", True)


def test_a_table_that_cannot_be_looked_at_now_is_unchecked_and_no_database_ends_fsck(monkeypatch):
    errors: list[Exception] = [TryAgain("the lake is away")]

    def check(*_: object) -> None:
        raise errors[-1]

    monkeypatch.setattr(module, "_check", check)
    report = module.fsck(_of("a.b"))
    assert (report.ok, {one.why_not for one in report.unchecked}) == (True, {"the lake is away"})
    errors.append(PostgresUnreachable("no answer"))
    with pytest.raises(PostgresUnreachable):
        module.fsck(_of("a.b"))


def test_a_snapshot_needs_the_version_that_answers_for_its_own_bounds_and_no_other():
    versions = [version(n, stream_hi, buffer_hi=high) for n, stream_hi, high in ((1, 0, 10), (2, 10, 20), (3, 20, 30))]
    [first, *_] = protocol_versions(versions)
    later = replace(first, bounds={0: replace(first.bounds[0], buffer_hi=15)})  # it was made when more was buffered
    named = books(versions=versions, retained_from=3, snapshots=[later])
    assert set(named_versions(named)) == {1, 3}

    leased = replace(named, leases=[{"version": 1, "alive": True}])  # by its number: up to its own bounds
    assert set(named_versions(leased)) == {1, 2, 3}
