"""Whatever JSON objects a topic has, the proposed spec is one, and takes all of them."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.errors import UsageError
from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.infer.proposal import propose
from harness_pipelines.formats.records import RecordCodec
from harness_pipelines.formats.schema.registry import NoSchemas
from harness_pipelines.spec.table import TableSpec

NAMES = st.one_of(
    st.sampled_from(["id", "ID", "amount", "created_at", "date", "a b", "_op", "payload", "1"]), st.text(max_size=4)
)
TEXTS = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["2026-01-01", "2026-01-01T00:00:00Z", "2026-13-01", "12:00:00", "1.50", "nan", "\ud800", "\0"]),
)
LEAVES: Any = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(1_700_000_000, 1_800_000_000)
    | st.integers(1_700_000_000_000, 1_800_000_000_000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(-1_000, 1_000, places=2).map(float)
    | TEXTS
)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3))
OBJECTS = st.lists(st.dictionaries(NAMES, VALUES, max_size=5), min_size=1, max_size=6)


@settings(max_examples=200)
@given(OBJECTS)
def test_the_proposal_is_a_spec_that_takes_every_object(objects: list[dict[str, Any]]):
    values = [json.dumps(one).encode() for one in objects]
    try:
        found = propose(values, [None] * len(values), NoSchemas())
    except UsageError as why:
        assert "column" in str(why)
        return
    if found.format != "json":
        return
    columns = {
        one.column.name: {"type": str(one.column.type), "from": one.column.source} for one in found.fields.columns
    }
    spec = TableSpec(table="a.b", columns=columns)

    decoded = RecordCodec(spec).decode(values, [None] * len(values))

    assert {one.reason for one in decoded.refused} <= {Reason.MALFORMED}  # half of a surrogate pair
