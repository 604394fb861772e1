"""A read plan says the same in JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol.bounds import Bounds
from harness_pipelines.protocol.reading.plan import (
    PLAN_FORMAT,
    BufferPart,
    LakePart,
    OverlayPart,
    ReadPlan,
    SegmentRef,
    TailPart,
    UnknownPlanFormat,
)

ranges = st.dictionaries(
    st.integers(0, 100), st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)).map(sorted), min_size=1, max_size=3
).map(lambda found: {"low": {p: r[0] for p, r in found.items()}, "high": {p: r[1] for p, r in found.items()}})
text = st.text(min_size=1, max_size=20)
streams = st.builds(lambda m, r: LakePart(metadata=m, **r), text, ranges)
segments = st.lists(st.builds(SegmentRef, name=text, schema_version=st.integers(1, 9)), max_size=3).map(tuple)
plans = st.builds(
    ReadPlan,
    table=text,
    table_id=st.integers(1, 9),
    version=st.integers(1, 2**40),
    schema_version=st.integers(1, 9),
    fields=st.just(({"id": 1, "name": "id", "type": "long", "required": True},)),
    bounds=st.dictionaries(st.integers(0, 100), st.builds(Bounds.at, st.integers(0, 2**62)), max_size=3),
    lake=st.lists(streams, max_size=2).map(tuple),
    buffer=st.none() | st.builds(lambda s, r: BufferPart(segments=s, **r), segments, ranges),
    tail=st.none() | st.builds(lambda t, r: TailPart(topic=t, schema_version=1, **r), text, ranges),
    lease_id=st.uuids().map(str),
    lease_until=st.datetimes(timezones=st.just(UTC)),
    key=st.lists(text, max_size=2).map(tuple),
    overlay=st.none() | st.builds(lambda s, r: OverlayPart(segments=s, **r), segments, ranges),
)


@given(plans)
def test_a_plan_survives_json(plan: ReadPlan):
    assert ReadPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


@given(plans, st.none() | st.integers().filter(lambda n: n != PLAN_FORMAT))
def test_a_plan_of_another_format_is_not_guessed_at(plan: ReadPlan, number: int | None):
    with pytest.raises(UnknownPlanFormat, match=f"read plan of format {number!r}; this harness reads {PLAN_FORMAT}"):
        ReadPlan.from_json({**plan.to_json(), "format": number})


def test_offsets_keep_their_precision():
    plan = ReadPlan(
        table="a.b",
        table_id=1,
        version=1,
        schema_version=1,
        fields=(),
        bounds={0: Bounds.at(2**62 + 1)},
        lake=(),
        buffer=None,
        tail=TailPart(topic="t", schema_version=1, low={0: 2**62 + 1}, high={0: 2**62 + 3}),
        lease_id="x",
        lease_until=datetime(2026, 1, 1, tzinfo=UTC),
    )
    assert plan.to_json()["tail"]["ranges"] == {"0": [2**62 + 1, 2**62 + 3]}
