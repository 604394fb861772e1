"""Digest v1: equal for equal rows in any order and form, different for different ones, and fixed for ever."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from decimal import Decimal
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness_pipelines.protocol.digest import added, lake_digests, lake_digests_of, row_digests, shown, total_digest
from harness_pipelines_tests.unit.read.values import tables

SAMPLE = {
    "id": pa.array([1, None, -3], pa.int64()),
    "price": pa.array([Decimal("1.50"), Decimal("-7.00"), None], pa.decimal128(12, 2)),
    "ratio": pa.array([0.5, math.nan, None], pa.float64()),
    "name": pa.array(["a", None, "x" * 300], pa.string()),
    "tags": pa.array([["p", None], [], None], pa.list_(pa.string())),
}
SAMPLE_DIGEST = "v1:65cbee0efd48da95"


def total(table: pa.Table) -> tuple[int, int]:
    return table.num_rows, total_digest(row_digests(table))


@given(drawn=tables(), seed=st.integers())
def test_neither_the_order_of_rows_nor_the_way_they_are_cut_changes_the_digest(drawn, seed):
    _, table = drawn
    order = list(range(table.num_rows))
    random.Random(seed).shuffle(order)
    cut = random.Random(seed).randint(0, table.num_rows)

    parts = [total_digest(row_digests(part)) for part in (table.slice(0, cut), table.slice(cut))]

    assert total(table.take(pa.array(order, pa.int64()))) == total(table)
    assert added(*parts) == total_digest(row_digests(table))


@given(drawn=tables(), seed=st.integers())
def test_the_order_of_columns_does_not_matter_and_a_column_of_nulls_adds_nothing(drawn, seed):
    _, table = drawn
    names = list(table.column_names)
    random.Random(seed).shuffle(names)
    with_nulls = table.append_column("added later", pa.nulls(table.num_rows, pa.int32()))

    assert row_digests(table.select(names)).tolist() == row_digests(table).tolist()
    assert row_digests(with_nulls).tolist() == row_digests(table).tolist()


@given(drawn=tables(), seed=st.integers(), block=st.integers(1, 9))
def test_the_digest_of_a_row_does_not_depend_on_the_tables_beside_it(drawn, seed, block):
    _, table = drawn
    cut = random.Random(seed).randint(0, table.num_rows)
    parts = [(table.slice(cut), 2), (pa.table({"other": ["x", None]}), 1), (table, 2), (table.slice(0, cut), 3)]
    alone = [lake_digests(rows, schema_version=version).tolist() for rows, version in parts]

    with mock.patch("harness_pipelines.protocol.digest.BLOCK_ROWS", block):
        beside = [found.tolist() for found in lake_digests_of(parts)]

    assert beside == alone


@given(drawn=tables(rows_max=8))
def test_rows_have_the_same_digest_exactly_if_they_are_equal(drawn):
    _, table = drawn
    digests = row_digests(table).tolist()
    seen: dict[int, str] = {}
    for digest, row in zip(digests, table.to_pylist(), strict=True):
        assert seen.setdefault(digest, repr(row)) == repr(row)
    assert len(set(digests)) == len({repr(row) for row in table.to_pylist()})


@given(value=st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=400), at=st.integers(0, 399))
def test_one_changed_character_changes_the_digest_of_texts_of_every_length(value, at):
    assume(value)
    at %= len(value)
    other = value[:at] + ("a" if value[at] != "a" else "b") + value[at + 1 :]
    first, second, longer = row_digests(pa.table({"s": [value, other, value + "\0"]})).tolist()

    assert len({first, second, longer}) == 3


def test_a_value_beside_a_long_one_keeps_its_digest():
    alone = row_digests(pa.table({"s": ["short"]}))
    beside = row_digests(pa.table({"s": ["x" * 100_000, "short", None, ""]}))

    assert beside[1] == alone[0]
    assert beside[2] != beside[3]


def test_every_nan_is_the_same_and_a_null_is_none_of_the_values():
    payload = np.array([0x7FF8000000000001, 0xFFF8000000000000], dtype=np.uint64).view(np.float64)
    digests = row_digests(pa.table({"f": pa.array([*payload, math.nan, None, 0.0], from_pandas=False)})).tolist()

    assert digests[0] == digests[1] == digests[2]
    assert len(set(digests[2:])) == 3


def test_equal_numbers_of_wider_types_have_the_same_digest():
    narrow = pa.table({"n": pa.array([5, -1], pa.int32()), "f": pa.array([0.5, 1.25], pa.float32())})
    wide = pa.table({"n": pa.array([5, -1], pa.int64()), "f": pa.array([0.5, 1.25], pa.float64())})

    assert row_digests(narrow).tolist() == row_digests(wide).tolist()


@pytest.mark.parametrize("at", range(3))
def test_the_same_value_in_another_column_is_another_row(at):
    names = ["a", "b", "c"]
    row = {name: pa.array([7 if i == at else None], pa.int64()) for i, name in enumerate(names)}
    moved = {name: pa.array([7 if i == (at + 1) % 3 else None], pa.int64()) for i, name in enumerate(names)}

    assert row_digests(pa.table(row))[0] != row_digests(pa.table(moved))[0]


def test_digest_v1_stays_what_it_is_in_every_process():
    code = (
        "from harness_pipelines_tests.unit.protocol.test_digest import SAMPLE, total\n"
        "from harness_pipelines.protocol.digest import shown\nimport pyarrow as pa\n"
        "print(shown(total(pa.table(SAMPLE))[1]))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    assert told == shown(total(pa.table(SAMPLE))[1]) == SAMPLE_DIGEST
