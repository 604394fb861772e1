"""The keyed union read: the newest put per key over all tiers, whatever is asked of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_pipelines.protocol.keys import KeyInTwoPartitions
from harness_pipelines.protocol.reading import fold as module
from harness_pipelines.protocol.reading.fold import KeyNumbers, Sieve, fold
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.spec.arrow import COORDINATES, arrow_type
from harness_pipelines.spec.sections.keys import KEY_TYPES
from harness_pipelines.spec.types import Type, parse_type
from harness_pipelines_tests.unit.read.keyed import Record, Tiers, expected, replay, table_of
from harness_pipelines_tests.unit.read.values import values

KINDS = [parse_type("decimal(12,2)" if name == "decimal" else name) for name in KEY_TYPES] + [
    parse_type("decimal(38,0)")
]
FLAT = {0: 0, 1: 0}


def tiers(*log: Record, cold_below: int = 0, stream_below: int | None = None) -> Tiers:
    """*log* with the same bounds in both partitions; what is above them is in the buffer."""
    end = max((r.offset for r in log), default=0) + 1
    batch_hi = dict.fromkeys((0, 1), min(cold_below, end))
    stream_hi = dict.fromkeys((0, 1), min(max(cold_below, stream_below or 0), end))
    ends = dict.fromkeys((0, 1), end)
    return Tiers(log=log, batch_hi=batch_hi, stream_hi=stream_hi, buffer_hi=ends, end=ends)


def put(a: int | None, v: int | None, offset: int, *, partition: int = 0) -> Record:
    return Record(a, "x", v, partition, offset)


def delete(a: int | None, offset: int) -> Record:
    return Record(a, "x", None, 0, offset, "delete")


def rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(found.column(name).to_pylist() for name in ("a", "v")), strict=True), key=repr)


@pytest.mark.parametrize("stream_below", [0, 2])
def test_the_trap_cold_k_200_hot_k_50_filter_above_100_returns_nothing(stream_below):
    trap = tiers(put(1, 200, 0), put(1, 50, 1), cold_below=1, stream_below=stream_below)

    assert rows(trap.read(Selection(where="v > 100"))) == []
    assert rows(trap.read(Selection(where="v > 100 and a = 1"))) == []
    assert rows(trap.read(Selection(where="_kafka_offset = 0"))) == []
    assert rows(trap.read(Selection(where="v < 100 or a = 7"))) == [(1, 50)]


def test_a_delete_hides_what_is_cold_and_what_is_hot_and_a_later_put_shows_again():
    log = [put(1, 10, 0), put(2, 20, 1), put(3, 30, 2), delete(1, 3), put(2, 21, 4), delete(2, 5), delete(3, 6)]

    assert rows(tiers(*log, cold_below=3).read()) == []
    assert rows(tiers(*log, put(3, 31, 7), cold_below=3).read()) == [(3, 31)]
    assert rows(tiers(*log, put(3, 31, 7), cold_below=3).read(Selection(where="_op = 'delete'"))) == []


def test_null_is_a_value_of_a_key():
    log = [put(None, 1, 0), put(0, 2, 1), Record(None, None, 3, 0, 2), put(None, 4, 3)]

    assert rows(tiers(*log, cold_below=3).read()) == [(0, 2), (None, 3), (None, 4)]


def test_what_is_asked_of_the_hot_side_speaks_of_the_key_and_the_partition_only():
    plan = tiers(put(1, 1, 0), put(1, 2, 1), cold_below=1).plan
    where = "v > 1 and (a = 1 or b like 'x%') and _kafka_partition = 0 and _kafka_offset >= 1 and (a = 2 or v = 3)"

    work = work_of(plan, Selection(columns=["v"], where=where))

    assert str(work.asked) == str(
        work_of(plan, Selection(where="(a = 1 or b like 'x%') and _kafka_partition = 0")).where
    )
    assert work.buffer == {0: (1, 2)}
    assert work.cold == ()  # all its offsets are below 1
    assert [column.name for column in work.needed] == ["v", "a", "b", "_kafka_partition", "_kafka_offset", "_op"]


def test_the_cold_side_is_asked_for_all_of_where():
    plan = tiers(put(1, 1, 0), put(2, 2, 1), cold_below=1).plan
    [cold] = work_of(plan, Selection(columns=["v"], where="v > 1 and a = 1")).cold

    assert str(cold.where) == str(work_of(plan, Selection(where="v > 1 and a = 1")).where)
    assert [column.name for column in cold.columns] == ["v", "a", "b", "_kafka_partition", "_kafka_offset"]


def test_a_limit_counts_keys_and_not_versions():
    log = [put(i % 3, i, i) for i in range(30)]

    for cold_below in (0, 15, 30):
        assert tiers(*log, cold_below=cold_below).read(Selection(limit=2)).num_rows == 2
        assert tiers(*log, cold_below=cold_below).read(Selection(limit=9)).num_rows == 3
        assert tiers(*log, cold_below=cold_below).read(Selection(limit=0)).num_rows == 0


def test_a_key_updated_a_thousand_times_is_one_row():
    log = [put(i % 2, i, i) for i in range(1_000)]

    assert rows(tiers(*log).read()) == [(0, 998), (1, 999)]


def test_a_key_in_two_partitions_is_named_where_two_hot_rows_meet():
    met = tiers(put(1, 1, 3), put(1, 2, 8, partition=1))

    message = r"t.keyed: key a=1, b='x' is in partition . \(offset (3|8)\) and in partition . \(offset (3|8)\)"
    with pytest.raises(KeyInTwoPartitions, match=message):
        met.read()


def test_a_key_in_two_partitions_is_named_where_hot_meets_cold():
    met = tiers(put(1, 1, 3), put(1, 2, 8, partition=1), cold_below=5)

    with pytest.raises(KeyInTwoPartitions, match=r"in partition 0 \(offset 3\) and in partition 1 \(offset 8\)"):
        met.read()


def test_cold_rows_are_looked_up_in_parts_and_not_all_held(monkeypatch):
    monkeypatch.setattr(module, "COLD_ROWS_MIN", 2)
    monkeypatch.setattr(module, "COLD_ROWS_PER_KEY", 1)
    cold = [table_of([put(i, i, i)], {0: (0, 9)}) for i in range(5)]
    folded = fold("t", table_of([put(9, 9, 5), put(1, 11, 6)], {0: (0, 9)}), ("a",))

    assert [rows(part) for part in folded.uncovered(cold)] == [[(0, 0)], [(2, 2), (3, 3)], [(4, 4)]]
    assert [part.num_rows for part in folded.uncovered(cold, at_once=True)] == [1, 0, 1, 1, 1]


def test_a_number_that_the_sieve_lets_through_is_compared_all_the_same():
    rng = np.random.default_rng(5)
    hot, cold = rng.integers(-(2**62), 2**62, (2, 20_000))
    keys = KeyNumbers([pa.chunked_array([hot])])
    places, numbers = keys.among([pa.chunked_array([np.concatenate([cold, hot[:9]])])])

    assert places.tolist() == list(range(20_000, 20_009))
    assert numbers.tolist() == keys.first[:9].tolist()
    assert len(Sieve(hot).maybe(cold)) in range(1, 5_000)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=8)
@given(data=st.data())
def test_keys_of_every_type_are_compared_exactly(kind, data):
    _compare_with_a_dictionary(data, (kind,))


@settings(max_examples=20)
@given(data=st.data())
def test_keys_of_several_columns_are_compared_column_by_column(data):
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=2, max_size=4).map(tuple))
    _compare_with_a_dictionary(data, kinds)


def _compare_with_a_dictionary(data: Any, kinds: tuple[Type, ...]) -> None:
    """Fold and anti-join of drawn keys, in chunks, against a dictionary of them."""
    pool = data.draw(st.lists(st.tuples(*map(values, kinds)), min_size=1, max_size=5))
    hot = data.draw(st.lists(st.tuples(st.sampled_from(pool), st.sampled_from(["put", "delete"])), max_size=12))
    cold = data.draw(st.lists(st.sampled_from(pool), max_size=8))
    names = tuple(f"k{i}" for i in range(len(kinds)))

    def table(keys: list[Any], ops: list[str], order: list[int]) -> pa.Table:
        fields = [pa.field(name, arrow_type(kind)) for name, kind in zip(names, kinds, strict=True)]
        arrays = [pa.array([key[i] for key in keys], f.type) for i, f in enumerate(fields)]
        count = len(keys)
        stamps = pa.nulls(count, COORDINATES.field("_kafka_timestamp").type)
        arrays += [pa.array([0] * count, pa.int32()), pa.array(order, pa.int64()), stamps]
        arrays += [pa.array(ops, pa.string()), pa.array([1] * count, pa.int32())]
        return pa.table(arrays, schema=pa.schema([*fields, *COORDINATES]))

    order = data.draw(st.permutations(range(len(hot))))
    whole = table([key for key, _ in hot], [op for _, op in hot], [o + 100 for o in order])
    half = len(hot) // 2
    newest = {repr(hot[i][0]): i for i in sorted(range(len(hot)), key=order.__getitem__)}
    cold_rows = table(cold, ["put"] * len(cold), list(range(len(cold))))

    folded = fold("t", pa.concat_tables([whole.slice(0, half), whole.slice(half)]), names)
    shown = pa.concat_tables(
        [cold_rows.schema.empty_table(), *folded.uncovered([cold_rows.slice(0, 2), cold_rows.slice(2)])]
    )

    assert folded.puts["_kafka_offset"].to_pylist() == [
        order[i] + 100 for i in sorted(newest.values()) if hot[i][1] == "put"
    ]
    assert shown["_kafka_offset"].to_pylist() == [i for i, key in enumerate(cold) if repr(key) not in newest]


LEAF = st.one_of(
    st.builds(
        "{} {} {}".format, st.sampled_from(["a", "v"]), st.sampled_from(["=", "!=", "<", ">="]), st.integers(0, 4)
    ),
    st.builds("_kafka_offset {} {}".format, st.sampled_from(["=", "<", ">="]), st.integers(0, 25)),
    st.builds("_kafka_partition {} {}".format, st.sampled_from(["=", "!="]), st.integers(0, 1)),
    st.builds("{} is {}null".format, st.sampled_from(["a", "b", "v"]), st.sampled_from(["", "not "])),
    st.sampled_from(
        ["b = 'x'", "b in ('x', 'z')", "b like 'y%'", "_op = 'put'", "_op = 'delete'", "_op != 'put'", "true"]
    ),
)
WHERE = st.recursive(
    LEAF,
    lambda inner: (
        st.builds("({} and {})".format, inner, inner)
        | st.builds("({} or {})".format, inner, inner)
        | st.builds("not ({})".format, inner)
    ),
    max_leaves=4,
)


@st.composite
def cuts(draw: st.DrawFn) -> Tiers:
    """A log of a few keys with gaps, cut anywhere."""
    log = []
    for partition in (0, 1):
        offset = 0
        for _ in range(draw(st.integers(0, 14))):
            offset += draw(st.sampled_from([1, 1, 1, 3]))
            a, b = draw(st.sampled_from([None, partition, partition + 2])), draw(st.sampled_from([None, "x", "y"]))
            b = f"{partition}" if a is None and b is None else b if a is not None else f"{b}{partition}"
            op = draw(st.sampled_from(["put", "put", "delete"]))
            log.append(Record(a, b, draw(st.sampled_from([None, 0, 1, 2, 3])), partition, offset, op))
    marks = {p: sorted(draw(st.lists(st.integers(0, 30), min_size=4, max_size=4))) for p in (0, 1)}
    batch, stream, buffer, end = ({p: marks[p][i] for p in marks} for i in range(4))
    return Tiers(log=log, batch_hi=batch, stream_hi=stream, buffer_hi=buffer, end=end)


@settings(max_examples=100)
@given(cut=cuts(), where=st.none() | WHERE)
def test_any_cut_of_a_log_and_any_filter_give_what_a_dictionary_gives(cut, where):
    assert cut.coordinates(where=where) == expected(cut.log, cut.end, where)


@settings(max_examples=20)
@given(cut=cuts())
def test_the_rows_are_those_of_the_newest_puts(cut):
    found = cut.read(Selection(columns=["a", "b", "v", "_kafka_offset", "_op"]))

    want = [(r.a, r.b, r.v, r.offset, "put") for r in replay(cut.log, cut.end)]
    assert sorted(map(repr, zip(*(c.to_pylist() for c in found.columns), strict=True))) == sorted(map(repr, want))
