"""What lineage is asked for, and which files a record may be in."""

from __future__ import annotations

import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.bounds import Bounds, OffsetRange
from harness_pipelines.protocol.lake.lineage import (
    FileAsked,
    FileMade,
    MoveAsked,
    RecordAsked,
    asked_of,
    may_hold,
    place_of,
)

NAME = "00000-7-4be3c3b4-0-00001.parquet"
STORED = f"file:///lake/shop/orders__stream-1/data/_kafka_partition=0/{NAME}"


@pytest.mark.parametrize(
    ("what", "meant"),
    [
        ("412", MoveAsked(412)),
        (" 0:181223 ", RecordAsked(0, 181223)),
        (NAME, FileAsked(NAME)),
        (STORED, FileAsked(STORED)),
        ("s3://bucket/lake/a.parquet", FileAsked("s3://bucket/lake/a.parquet")),
    ],
)
def test_what_is_asked_for_is_told_by_how_it_is_written(what, meant):
    assert asked_of(what) == meant


@pytest.mark.parametrize("what", ["", "-5", "0:", ":3", "0:1:2", "0:1.5", "a:b.parquet", "tier", "9" * 19, "0:-1", "/"])
def test_what_is_none_of_the_three_is_wrong_usage(what):
    with pytest.raises(UsageError, match=r"no data file.*PARTITION:OFFSET"):
        asked_of(what)


@pytest.mark.parametrize(
    "spelled",
    [
        NAME,
        STORED,
        STORED.removeprefix("file://"),
        STORED.replace("file:///", "file:/"),
        f"data/_kafka_partition=0/{NAME}",
    ],
)
def test_a_file_is_found_by_its_name_by_the_end_of_its_path_and_by_either_spelling_of_it(spelled):
    assert FileAsked(spelled).fits(STORED)
    assert FileAsked(spelled).fits(STORED.replace("file:///", "file:/"))


@pytest.mark.parametrize("spelled", [f"1{NAME}", NAME[1:], f"_kafka_partition=1/{NAME}", f"/other{STORED}"])
def test_a_file_of_another_name_or_folder_is_another_file(spelled):
    assert not FileAsked(spelled).fits(STORED)


@pytest.mark.parametrize(
    ("offset", "with_batch", "without"),
    [(2, "batch", "stream"), (5, "stream", "stream"), (8, "buffer", "buffer"), (9, "kafka", "kafka")],
)
def test_the_tier_that_answers_follows_from_the_bounds(offset, with_batch, without):
    bounds = Bounds(start=2, batch_hi=5, stream_hi=8, buffer_hi=9)

    assert place_of(bounds, offset, has_batch=True, has_buffer=True) == with_batch
    assert place_of(bounds, offset, has_batch=False, has_buffer=True) == without


def test_without_a_buffer_what_is_above_the_lake_is_in_kafka_whatever_was_taken_before_a_revert():
    bounds = Bounds(start=0, batch_hi=0, stream_hi=8, buffer_hi=20)

    assert place_of(bounds, 10, has_batch=False, has_buffer=False) == "kafka"


RECORD = RecordAsked(1, 10)
OF_IT, OF_OTHERS = (
    OffsetRange(partition=1, low=10, high=20),
    OffsetRange(partition=0, low=5, high=30),
)


@pytest.mark.parametrize(
    ("version", "ranges", "keyed", "holds"),
    [
        (5, (OF_IT, OF_OTHERS), False, True),  # the merge itself
        (4, (), False, False),  # a relayout before it
        (6, (), False, True),  # a relayout after it
        (6, (OF_OTHERS,), False, False),  # a later merge, whose rows are its own
        (6, (OF_OTHERS,), True, True),  # a later merge may write rows of its files again
        (4, (OF_OTHERS,), True, False),
        (None, (), False, True),  # nothing is known of it
        (None, (OF_OTHERS,), False, False),
    ],
)
def test_a_file_is_left_out_when_its_move_cannot_have_had_the_record(version, ranges, keyed, holds):
    made = FileMade(version=version, ranges=ranges)

    assert may_hold(made, RECORD, since=5, keyed=keyed) == holds


def test_nothing_is_left_out_for_its_age_while_it_is_not_known_when_the_record_came():
    assert may_hold(FileMade(version=1, ranges=()), RECORD, since=None, keyed=False)


def test_a_range_ends_before_its_high_offset():
    made = FileMade(version=5, ranges=(OffsetRange(partition=1, low=5, high=10),))

    assert not may_hold(made, RECORD, since=None, keyed=False)
