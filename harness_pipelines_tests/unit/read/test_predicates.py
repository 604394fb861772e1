"""What a predicate means does not depend on the engine."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness_pipelines.buffers.postgres.predicates import to_postgres
from harness_pipelines.protocol.reading.narrowing import narrowed
from harness_pipelines.spec.arrow import to_arrow
from harness_pipelines.spec.predicate import FALSE, TRUE, Compare, Like, OneOf, Op, Ref, all_of, any_of, relaxed
from harness_pipelines.spec.types import Primitive
from harness_pipelines.spec.where import parse_where
from harness_pipelines_tests.unit.read.predicates import holds, physical, predicates
from harness_pipelines_tests.unit.read.values import primitive_types, tables

PARTITION, OFFSET = Ref(("_kafka_partition",), Primitive("int")), Ref(("_kafka_offset",), Primitive("long"))
small = st.integers(-3, 12)


places = st.sampled_from([PARTITION, OFFSET])
leaves = st.builds(Compare, places, st.sampled_from(Op), small) | st.builds(
    OneOf, places, st.lists(small, max_size=3).map(tuple), st.booleans()
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda ps: all_of(*ps))
        | st.lists(inner, min_size=1, max_size=3).map(lambda ps: any_of(*ps))
    ),
    max_leaves=6,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_arrow_lets_through_exactly_the_rows_for_which_a_predicate_is_true(data):
    columns, table = data.draw(tables(kinds=primitive_types()))
    predicate = data.draw(predicates(dict(columns)))

    found = table.append_column("row", pa.array(range(table.num_rows), pa.int64())).filter(to_arrow(predicate))

    rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*map(physical, table.columns), strict=True)]
    assert found.column("row").to_pylist() == [i for i, row in enumerate(rows) if holds(predicate, row)]


@pytest.mark.parametrize(
    "pattern", ["a\\\\b%", "C:\\\\dir%", "%a\\\\b", "%a\\\\b%", "%\\\\", "_\\\\_", "\\\\%", "%\\\\\\%", ".*"]
)
def test_a_quoted_backslash_is_a_backslash_wherever_a_pattern_has_it(pattern):
    texts = ["a\\b", "C:\\dir\\x", "\\", "x\\", "a\nb\\", "é\\é", "\\%", "ab", "", None]
    table = pa.table({"s": pa.array(texts, pa.string())})

    for negated in (False, True):
        like = Like(Ref(("s",), Primitive("string")), pattern, negated)

        assert table.filter(to_arrow(like)).column("s").to_pylist() == [t for t in texts if holds(like, {"s": t})]


@given(trees)
def test_pruning_by_coordinates_never_loses_a_matching_offset(predicate):
    ranges = {0: (0, 10), 1: (3, 5), 2: (7, 7)}

    kept = narrowed(ranges, predicate)

    for partition, (low, high) in ranges.items():
        run = kept.get(partition, (0, 0))
        for offset in range(low, high):
            if holds(predicate, {"_kafka_partition": partition, "_kafka_offset": offset}):
                assert run[0] <= offset < run[1]


def test_pruning_cuts_ranges_to_what_the_offsets_allow():
    late = all_of(Compare(PARTITION, Op.EQ, 1), Compare(OFFSET, Op.GE, 40))

    assert narrowed({0: (0, 100), 1: (0, 100)}, late) == {1: (40, 100)}
    assert narrowed({0: (0, 100)}, any_of(Compare(OFFSET, Op.LT, 3), Compare(OFFSET, Op.EQ, 7))) == {0: (0, 8)}
    assert narrowed({0: (0, 10)}, Compare(OFFSET, Op.GE, 10)) == {}


def test_what_an_engine_cannot_ask_is_left_to_the_filter_behind_it():
    exact, unknown = Compare(OFFSET, Op.EQ, 1), Compare(PARTITION, Op.EQ, 1)

    assert relaxed(all_of(exact, unknown), lambda leaf: leaf == exact) == exact
    assert relaxed(any_of(exact, unknown), lambda leaf: leaf == exact) == TRUE


@pytest.mark.parametrize(
    ("moment", "written"),
    [
        ("9999-12-31T23:59:59-05:00", None),
        ("0001-01-01T00:00:00+05:00", None),
        ("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59.999999+00"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00"),
    ],
)
def test_a_moment_that_a_zone_takes_out_of_the_calendar_is_left_to_the_filter_behind_postgres(moment, written):
    asked = to_postgres(parse_where(f"_kafka_timestamp < '{moment}'", {"_kafka_timestamp": Primitive("timestamptz")}))

    expected = None if written is None else f"\"_kafka_timestamp\" < '{written}'::timestamptz"
    assert (None if asked is None else asked.as_string()) == expected


def test_constants_are_folded():
    leaf = Compare(OFFSET, Op.EQ, 1)

    assert all_of(leaf, FALSE) == FALSE
    assert any_of(leaf, FALSE) == leaf
    assert any_of() == FALSE
    assert all_of() == TRUE
