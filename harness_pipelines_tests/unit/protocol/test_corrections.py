"""A correction is seen by the versions from its own on, and by no older one, whatever comes later."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.changes.corrections import (
    Kind,
    Recorded,
    change_of,
    corrected,
    net,
    settled_below,
    waiting,
)
from harness_pipelines.protocol.versions import Version, View, ViewName, answering_version

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def version(number: int, stream_hi: int, buffer_hi: int, *, batch_hi: int | None = None) -> Version:
    view = View(metadata=f"{number}.metadata.json", snapshot=number)
    low = stream_hi if batch_hi is None else batch_hi
    return Version(
        table_id=1,
        version=number,
        stream=view,
        batch=None if batch_hi is None else View(metadata=f"b{number}.json", snapshot=number),
        schema_version=1,
        bounds={0: Bounds(start=0, batch_hi=low, stream_hi=stream_hi, buffer_hi=buffer_hi)},
        move_id=None,
        committed_at=NOW,
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Version], int]:
    """Versions of one partition, oldest first, and how many of them there are when the correction is published."""
    made, stream, buffer = [], 0, 0
    count = draw(st.integers(1, 8))
    for number in range(1, count + 1):
        buffer += draw(st.integers(0, 3))
        stream = draw(st.integers(stream, buffer))
        made.append(version(number, stream, buffer))
    return made, draw(st.integers(1, count))


@given(histories(), st.integers(0, 24))
def test_no_older_version_ever_sees_a_correction(history: tuple[list[Version], int], offset: int):
    versions, known = history
    before = versions[:known]
    head = before[-1]
    if waiting([(0, offset)], table="t", head=head, readable=before, versions=before):
        return
    # Versions behind the head have the correction; those that answer for older ones are found among all of them.
    for old in before:
        bounds = old.bounds[0]
        if offset < bounds.stream_hi:
            continue  # from its own metadata
        if offset < bounds.buffer_hi:
            answering = answering_version(old, versions)
            assert answering is not None
            assert answering.version <= head.version, f"version {old.version} would see it"


def test_what_waits_says_for_what():
    old, head = version(1, 0, 10), version(2, 8, 20, batch_hi=5)
    assert settled_below(head) == {0: 5}
    found = waiting([(0, 3), (0, 5), (0, 9), (1, 0)], table="a.b", head=head, readable=[old], versions=[old, head])
    assert found.keys() == {(0, 3), (0, 5), (0, 9), (1, 0)}
    assert "version 1" in found[0, 3].why, "its buffered rows are read from a version to come"
    assert "not passed" in found[0, 5].why
    assert "harness run a.b" in found[0, 9].way_on
    answered = version(3, 20, 20, batch_hi=20)
    assert waiting([(0, 3)], table="a.b", head=answered, readable=[old, head], versions=[old, head, answered]) == {}


def test_a_correction_moves_no_bound_of_the_lake():
    head = version(4, 8, 20, batch_hi=5)
    views: dict[ViewName, View] = {"stream": View(metadata="s", snapshot=7), "batch": View(metadata="b", snapshot=8)}
    made = corrected(head, views=views, buffer_hi={0: 25}, move_id=9, now=NOW)
    assert (made.version, made.stream.metadata, made.move_id) == (5, "s", 9)
    assert made.bounds == {0: Bounds(start=0, batch_hi=5, stream_hi=8, buffer_hi=25)}


@pytest.mark.parametrize(
    ("was", "now", "refused", "kind"),
    [
        ("a", "a", False, None),
        ("a", "b", False, Kind.REPLACED),
        ("a", None, True, Kind.REMOVED),
        ("a", None, False, Kind.REMOVED),
        (None, "b", False, Kind.ADDED),
        (None, None, True, Kind.REFUSED),
        (None, None, False, None),
    ],
)
def test_a_change_has_the_digests_of_what_was_and_is(
    was: str | None, now: str | None, refused: bool, kind: Kind | None
):
    found = change_of(was, now, refused=refused)
    assert (found is None) == (kind is None)
    if found is not None:
        assert (found.kind, found.was, found.digest) == (kind, was, now)


def test_what_a_reader_is_told_is_the_net_of_what_it_has_not_and_a_revert_turns_it_round():
    recorded = [
        Recorded(at=(0, 1), version=3, digest="new", was="old"),
        Recorded(at=(0, 2), version=3, digest=None, was="old"),
        Recorded(at=(0, 3), version=4, digest="new", was=None),
        Recorded(at=(0, 1), version=4, digest="old", was="new"),
    ]
    assert net(recorded, since={1, 2}, to={1, 2, 3}) == {(0, 1): Kind.REPLACED, (0, 2): Kind.REMOVED}
    assert net(recorded, since={1, 2}, to={1, 2, 3, 4}) == {(0, 2): Kind.REMOVED, (0, 3): Kind.ADDED}
    undone = net(recorded, since={1, 2, 3, 4}, to={1, 2, 5})
    assert undone == {(0, 2): Kind.ADDED, (0, 3): Kind.REMOVED}
