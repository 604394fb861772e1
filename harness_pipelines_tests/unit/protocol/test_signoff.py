"""A signed-off range stands exactly as long as the same files and quarantined records answer for it."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.lake.signoff import (
    Answering,
    Entry,
    Raw,
    SignOff,
    StoredSize,
    covered,
    evidence,
    why_again,
)

THEN = datetime(2026, 1, 1, tzinfo=UTC)
LATER = THEN + timedelta(seconds=1)
FILES = [Entry(path=f"file:///lake/{i}", rows=10, bytes=100 + i, low=10 * i, high=10 * i + 10) for i in range(3)]
HELD = [Raw(offset=4, value=b"a", key=None), Raw(offset=25, value=None, key=b"k")]
ALL = Answering(files=FILES, held=HELD)


def a_signoff(low: int, high: int, *, of: Answering = ALL) -> SignOff:
    return SignOff(
        partition=0,
        low=low,
        high=high,
        rows=high - low,
        refused=0,
        digest="v1:0",
        evidence=evidence(of.within(low, high)),
        status="verified",
        witness="kafka",
        version=3,
        audited_at=THEN,
    )


def stored(files: list[Entry] = FILES, *, at: datetime = THEN) -> dict[str, StoredSize]:
    return {f.path: StoredSize(bytes=f.bytes, modified=at) for f in files}


def test_nothing_changed_nothing_is_read():
    assert why_again(a_signoff(0, 30), ALL, stored()) is None


@pytest.mark.parametrize(
    ("change", "read"),
    [
        (lambda a: replace(a, files=a.files[1:]), True),
        (lambda a: replace(a, files=[*a.files, a.files[0]]), True),
        (lambda a: replace(a, files=[replace(a.files[0], rows=9), *a.files[1:]]), True),
        (lambda a: replace(a, files=[replace(a.files[0], path="file:///other"), *a.files[1:]]), True),
        (lambda a: replace(a, files=[*a.files, replace(a.files[2], low=9, path="reaches in")]), True),
        (lambda a: replace(a, held=a.held[1:]), True),
        (lambda a: replace(a, held=[replace(a.held[0], value=b"b"), a.held[1]]), True),
        (lambda a: replace(a, held=[replace(a.held[0], value=b"", key=None), a.held[1]]), True),
        (lambda a: replace(a, files=a.files[::-1], held=a.held[::-1]), False),
        (lambda a: replace(a, files=a.files[:2], held=a.held[:1]), False),
    ],
    ids=["gone", "twice", "other count", "other path", "another reaches in", "record gone", "record changed",
         "empty is not null", "other order", "only above it"],
)  # fmt: skip
def test_a_range_is_read_again_when_other_things_answer_for_it(change, read):
    now = change(ALL)
    listed = stored([*FILES, *now.files])

    assert (why_again(a_signoff(0, 20), now, listed) is not None) == read


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (stored(FILES[1:]), "0 is gone"),
        (stored(FILES) | {FILES[0].path: StoredSize(bytes=99, modified=THEN)}, "0 has 99 bytes, not 100"),
        (
            stored(FILES) | {FILES[0].path: StoredSize(bytes=100, modified=THEN + timedelta(seconds=1))},
            "0 was written again",
        ),
    ],
)
def test_a_range_is_read_again_when_the_storage_does_not_have_its_files_as_they_were(listed, why):
    assert why_again(a_signoff(0, 10), ALL, listed) == why
    assert why_again(a_signoff(10, 20), ALL, listed) is None


RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 8)), max_size=6)


@given(ranges=RANGES, low=st.integers(0, 30), span=st.integers(1, 12), seed=st.integers())
def test_covered_means_that_every_offset_is_in_some_range(ranges, low, span, seed):
    signed = [a_signoff(at, at + length) for at, length in ranges]
    random.Random(seed).shuffle(signed)
    inside = {o for s in signed for o in range(s.low, s.high)}

    assert covered(low, low + span, signed) == ({*range(low, low + span)} <= inside)
