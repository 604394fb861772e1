"""Cuts: what their names and their order depend on, and when what may go."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.errors import Recovery
from harness_pipelines.protocol.cuts import (
    BEHIND_MS,
    MAKING_MAX,
    UNNAMED_MAX,
    Chunk,
    CutBounds,
    OlderCut,
    bounds_json,
    bounds_of_json,
    check_newest,
    chunk_json,
    chunk_of_json,
    etag,
    follows,
    is_young,
    may_begin_with,
    may_condemn,
    may_forget,
    next_sequence,
    next_timestamp,
    part_key,
    snapshot_id,
    table_uuid,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SNAPSHOT_ID = 5838905793980862305  #: of one cut, for ever


# -- identity ---------------------------------------------------------------------------------------------------

BOUNDS: CutBounds = {0: (0, 1, 2, 3), 1: (0, 0, 0, 9)}
few = st.integers(0, 2)
bounds = st.dictionaries(few, st.tuples(few, few, few, few), max_size=2)
makers = st.frozensets(st.sampled_from(["schema 1", "schema 2"]))
states = st.tuples(few, few, bounds, makers, few)


@given(states, states)
def test_cuts_have_one_id_if_and_only_if_they_have_one_content(one, other):
    first, second = (snapshot_id(t, v, b, makers=m, sequence=n) for t, v, b, m, n in (one, other))

    assert 0 < first < 2**63
    assert (first == second) == (one == other)


def test_an_id_does_not_change_with_the_harness():
    """Servers of two releases share the cuts of a table."""
    assert snapshot_id(1, 5, BOUNDS, makers=("b", "a"), sequence=7) == snapshot_id(
        1, 5, dict(reversed(list(BOUNDS.items()))), makers=("a", "b"), sequence=7
    )
    assert snapshot_id(1, 5, BOUNDS, makers=("a",), sequence=7) == SNAPSHOT_ID


def test_the_uuid_is_that_of_the_table_in_its_warehouse():
    assert table_uuid("s3://lake", 1) == table_uuid("s3://lake/", 1)
    assert len({table_uuid(w, t) for w in ("s3://lake", "s3://other") for t in (1, 2)}) == 4


def test_the_tag_of_an_answer_is_that_of_its_files_and_not_of_its_state():
    assert etag("a/1.json") == etag("a/1.json") != etag("a/2.json")
    assert etag("a/1.json").startswith('"')


def test_a_part_is_made_again_when_its_metadata_or_what_it_leaves_out_changes():
    assert part_key("a", {0: 1, 1: 2}) == part_key("a", {1: 2, 0: 1})
    assert len({part_key("a", {0: 1}), part_key("b", {0: 1}), part_key("a", {0: 2}), part_key("a", {})}) == 4
    assert len({part_key("a", {0: (1, 2)}, 7), part_key("a", {0: (1, 3)}, 7), part_key("a", {0: (1, 2)}, 8)}) == 3


def test_bounds_and_chunks_come_back_from_their_json():
    bounds = {0: (0, 1, 2, 3), 11: (4, 5, 6, 7)}
    one = Chunk(path="a", ranges={3: (1, 2)}, rows=1, bytes=9, sequence=4, maker="m", entry="{}", held=5, read_as="r")
    assert bounds_of_json(json.loads(json.dumps(bounds_json(bounds)))) == bounds
    assert chunk_of_json(json.loads(json.dumps(chunk_json(one)))) == one


# -- order ------------------------------------------------------------------------------------------------------


class Order(NamedTuple):
    sequence: int
    version: int
    bounds: CutBounds


BEFORE = Order(7, 5, {0: (0, 2, 4, 6)})


def test_a_cut_follows_one_that_shows_no_more():
    follows("a.b", BEFORE, Order(8, 5, {0: (0, 2, 4, 6)}))
    follows("a.b", BEFORE, Order(8, 6, {0: (0, 0, 1, 6), 1: (0, 0, 0, 0)}))  # a revert, and a partition that joins


@pytest.mark.parametrize(
    ("following", "why"),
    [
        (Order(7, 5, BEFORE.bounds), "sequence 7 cannot follow 7"),
        (Order(8, 4, BEFORE.bounds), "version 4 cannot follow one of version 5"),
        (Order(8, 6, {0: (0, 2, 4, 5)}), "partition 0 of a cut ends at offset 5, that of the cut before at 6"),
        (Order(8, 6, {1: (0, 2, 4, 6)}), "without partition 0 cannot follow one with it, below 6"),
    ],
)
def test_an_older_cut_is_refused_by_name(following: Order, why: str):
    with pytest.raises(OlderCut, match=f"^a.b: .*{why}") as refused:
        follows("a.b", BEFORE, following)
    assert refused.value.recovery is Recovery.REFRESH


def test_only_a_revert_lowers_the_merged_state_of_a_keyed_table():
    merged = Order(7, 5, {0: (0, 6, 6, 6)})

    follows("a.b", merged, Order(8, 6, {0: (0, 4, 4, 4)}))
    for following in (Order(8, 5, {0: (0, 4, 4, 4)}), Order(8, 6, {0: (0, 3, 4, 5)})):
        with pytest.raises(OlderCut):
            follows("a.b", merged, following)


def test_a_cut_that_was_made_after_another_one_is_refused():
    check_newest("a.b", newest=None, previous=None)
    check_newest("a.b", newest=3, previous=3)
    for newest, previous in ((4, 3), (None, 3), (3, None)):
        with pytest.raises(OlderCut, match="was not published"):
            check_newest("a.b", newest=newest, previous=previous)


def test_a_sequence_number_is_above_those_of_the_views_and_of_the_last_cut():
    assert next_sequence(None, (4, 9)) == 10
    assert next_sequence(12, (4, 9)) == 13
    assert next_sequence(None, ()) == 1


def test_a_cut_has_a_time_before_that_of_the_transactions_that_read_it():
    assert next_timestamp(None, 50_000) == 50_000 - BEHIND_MS
    assert next_timestamp(1_000, 50_000) == 50_000 - BEHIND_MS
    assert next_timestamp(40_000, 50_000) == 40_001


# -- times ------------------------------------------------------------------------------------------------------


def young_for(*, every: timedelta, keep: timedelta, until: timedelta) -> timedelta:
    """For how long after its look a cut is given out without a look, to a tenth of a second."""
    tenth = timedelta(milliseconds=100)
    ages = [n * tenth for n in range(1, 400)]
    return next(a for a in ages if not is_young(NOW, NOW + until, now=NOW + a, every=every, keep=keep)) - tenth


def test_a_cut_is_given_out_without_a_look_for_a_short_time_and_longer_the_longer_files_are_kept():
    short, day = timedelta(milliseconds=100), timedelta(days=1)
    assert young_for(every=short, keep=MINUTE, until=MINUTE) == timedelta(0)
    assert young_for(every=10 * short, keep=MINUTE, until=MINUTE) == 9 * short
    assert young_for(every=short, keep=day, until=MINUTE) == timedelta(seconds=17.2)
    assert young_for(every=short, keep=MINUTE, until=day) == timedelta(seconds=17.2), "another server promised a day"
    hours = timedelta(hours=5)  # a table that rests: its cut is old, and was prolonged all the time
    assert not is_young(NOW, NOW + hours + MINUTE, now=NOW + hours, every=short, keep=MINUTE)
    assert not is_young(NOW, NOW + MINUTE, now=NOW - short, every=short, keep=MINUTE), "the ledger's clock was set back"


def test_a_row_goes_when_the_grace_after_its_promise_has_passed():
    assert not may_forget(NOW, now=NOW + MINUTE, grace=2 * MINUTE)
    assert may_forget(NOW, now=NOW + 2 * MINUTE, grace=2 * MINUTE)


@pytest.mark.parametrize("grace", [timedelta(0), 60 * MINUTE])
def test_a_file_of_a_cut_that_is_being_made_is_no_orphan(grace: timedelta):
    assert not may_condemn(NOW, now=NOW + UNNAMED_MAX + MAKING_MAX, grace=grace)
    assert may_condemn(NOW, now=NOW + max(grace, UNNAMED_MAX + 2 * MAKING_MAX), grace=grace)


def test_a_chunk_that_no_cut_names_is_used_only_while_it_is_too_young_to_be_an_orphan_at_the_publication():
    latest = NOW + UNNAMED_MAX

    assert may_begin_with(NOW, now=latest)
    assert not may_begin_with(NOW, now=latest + timedelta(milliseconds=1))
    assert not may_condemn(NOW, now=latest + MAKING_MAX, grace=timedelta(0))
