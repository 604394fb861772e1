"""Keys as numbers: the same key has the same one however it came, and different keys have different ones."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.protocol import key_hashes
from harness_pipelines.protocol.key_hashes import WORDS_MAX, KeyHasher, among, in_order, matches, same_as_before
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.sections.keys import KEY_TYPES
from harness_pipelines.spec.types import parse_type
from harness_pipelines_tests.unit.read.values import values

HASHER = KeyHasher(b"s" * 32)
KINDS = st.sampled_from([*(kind for kind in KEY_TYPES if kind != "decimal"), "decimal(9,2)", "decimal(38,10)"])


@st.composite
def columns(draw: st.DrawFn, rows_max: int = 12) -> list[pa.Array]:
    count = draw(st.integers(1, rows_max))
    kinds = [parse_type(draw(KINDS)) for _ in range(draw(st.integers(1, 3)))]
    return [pa.array(draw(st.lists(values(kind), min_size=count, max_size=count)), arrow_type(kind)) for kind in kinds]


def numbers(of: list[pa.Array], hasher: KeyHasher = HASHER) -> list[tuple[int, int]]:
    found = hasher.of([pa.chunked_array([one]) for one in of])
    return list(zip(*found.tolist(), strict=True))


@given(columns())
def test_two_rows_have_the_same_number_if_and_only_if_they_have_the_same_key(of: list[pa.Array]):
    keys = list(zip(*(column.to_pylist() for column in of), strict=True))
    found = numbers(of)
    assert [[a == b for b in keys] for a in keys] == [[a == b for b in found] for a in found]


@given(columns(), st.data())
def test_the_number_of_a_key_does_not_depend_on_the_rows_around_it(of: list[pa.Array], data: st.DataObject):
    whole = numbers(of)
    at = data.draw(st.integers(0, len(of[0])))
    pieces = [pa.chunked_array([column.slice(0, at), column.slice(at)]) for column in of]
    assert list(zip(*HASHER.of(pieces).tolist(), strict=True)) == whole
    order = data.draw(st.permutations(range(len(of[0]))))
    assert numbers([column.take(pa.array(order)) for column in of]) == [whole[place] for place in order]


def test_rows_of_several_batches_have_the_numbers_of_one(monkeypatch):
    of = [pa.array([f"key {i}" * (i % 7) for i in range(100)]), pa.array(range(100))]
    whole = numbers(of)
    monkeypatch.setattr(key_hashes, "AT_ONCE", 7)
    assert numbers(of) == whole


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["", "ab"], ["a", "b"]),
        (["ab", ""], ["a", "b"]),
        ([None, "a"], ["", "a"]),
        ([None, "a"], ["a", None]),
        (["a\0", ""], ["a", ""]),
        (["a" * 4, "b"], ["a" * 8, "b"]),
        (["x" * 5000, ""], ["x" * 4999 + "y", ""]),
        (["x" * (4 * WORDS_MAX), ""], ["x" * (4 * WORDS_MAX + 1), ""]),
    ],
)
def test_keys_of_texts_that_look_alike_differ(one: list[Any], other: list[Any]):
    of = [pa.array(pair, pa.string()) for pair in zip(one, other, strict=True)]
    assert len(set(numbers(of))) == 2


def test_what_lies_behind_a_null_does_not_count():
    for kind, two in (
        (pa.int64(), [1, 2]),
        (pa.decimal128(9, 2), [Decimal(1), Decimal(2)]),
        (pa.date32(), [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
        (pa.string(), ["a", "b"]),
    ):
        there = pa.array(two, kind)
        masked = pa.Array.from_buffers(kind, 2, [pa.py_buffer(b"\0"), *there.buffers()[1:]])
        assert masked.null_count == 2
        first, second = numbers([masked])
        assert first == second


def test_another_process_has_other_numbers():
    of = [pa.array(range(50))]
    assert not set(numbers(of)) & set(numbers(of, KeyHasher()))


def test_the_halves_of_many_keys_are_as_random_as_they_look():
    """Neighbouring whole numbers, the usual keys: no two have the same half, and each bit is set in about half."""
    found = KeyHasher().of([pa.chunked_array([pa.array(range(100_000))])])
    assert all(len(np.unique(half)) == 100_000 for half in found)
    for half in found:
        for bit in range(64):
            assert abs(np.mean((half >> np.uint64(bit)) & np.uint64(1)) - 0.5) < 0.4  # a line is no coin; it is spread


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)))
)
def test_all_pairs_are_found_even_of_keys_that_share_a_half(one: list[tuple[int, int]], other: list[tuple[int, int]]):
    keys, known = (np.array(some, np.uint64).reshape(-1, 2).T.copy() for some in (one, other))
    known = known[:, in_order(known)]
    pairs = sorted(zip(*(places.tolist() for places in matches(keys, known)), strict=True))
    sorted_other = sorted(other)
    assert pairs == [(i, j) for i, a in enumerate(one) for j, b in enumerate(sorted_other) if a == b]
    assert among(keys, known).tolist() == [a in other for a in one]
    assert same_as_before(known).tolist() == [
        j > 0 and sorted_other[j] == sorted_other[j - 1] for j in range(len(other))
    ]
