"""The order of rows in a file of the batch view: near in value is near in the file."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_pipelines.layout import curve
from harness_pipelines.layout.boxes import At
from harness_pipelines.layout.columns import ColumnValues, IndexedColumn
from harness_pipelines.layout.tree import LAYER, RegionTree

X, Y = IndexedColumn("x", "double"), IndexedColumn("y", "long")


def placed(tree: RegionTree, *columns: ColumnValues) -> list[int]:
    leaf = tree.route(columns)
    found: list[int] = curve.places(tree, columns, leaf, curve.extents_of(tree, columns)).tolist()
    return found


def test_bits_of_the_columns_take_turns():
    corners = [(0.0, 0), (1.0, 0), (0.0, 100), (1.0, 100)]
    x, y = (np.array([corner[i] for corner in corners]) for i in (0, 1))
    found = placed(RegionTree.single([X, Y]), ColumnValues(x), ColumnValues(y))
    ones, twos = int("01" * curve.CELL_BITS, 2), int("10" * curve.CELL_BITS, 2)
    assert found == [0, ones, twos, ones | twos]


def test_null_and_nan_and_what_the_sample_had_not_lie_at_the_ends():
    tree = RegionTree.single([X])
    sample = ColumnValues(np.array([0.0, 10.0]))
    extents = curve.extents_of(tree, [sample])
    rows = ColumnValues(np.array([np.nan, 5.0, -np.inf, np.inf, 99.0, 3.0]), np.array([False] * 5 + [True]))
    found = curve.places(tree, [rows], tree.route([rows]), extents).tolist()
    assert found == [curve.LAST, curve.LAST // 2, 0, curve.LAST, curve.LAST, curve.LAST]


def test_each_region_has_its_own_extents():
    tree = RegionTree.of([Y], [(0, At(50)), None, None])
    y = ColumnValues(np.array([0, 49, 50, 1_000]))
    assert placed(tree, y) == [0, curve.LAST, 0, curve.LAST]


def test_decimals_are_compared_as_numbers_and_the_layer_takes_no_part():
    columns = [LAYER, IndexedColumn("d", "decimal(12,2)")]
    layer, d = ColumnValues(np.array([0, 1, 0])), ColumnValues(np.array([100, 150, 200]))
    assert placed(RegionTree.single(columns), layer, d) == [0, curve.LAST // 2, curve.LAST]


def test_one_value_alone_and_the_widest_extent_have_places():
    widest = np.array([-np.finfo(float).max, np.finfo(float).max])
    assert placed(RegionTree.single([X]), ColumnValues(np.array([7.0, 7.0]))) == [0, 0]
    assert placed(RegionTree.single([X]), ColumnValues(widest)) == [0, curve.LAST]


@pytest.mark.parametrize(("digits", "scale"), [(18, 6), (18, 17), (38, 10), (38, 30), (38, 0)])
@given(st.data())
def test_decimals_are_the_doubles_that_the_jvm_makes_of_them(digits: int, scale: int, data: st.DataObject):
    """The nearest ones. With a double further on, a row at the end of an extent had the last cell but one."""
    bound = 10**digits - 1
    drawn = data.draw(st.lists(st.integers(-bound, bound), min_size=1, max_size=8))
    column = IndexedColumn("d", f"decimal({digits},{scale})")
    numbers = [float(Decimal(value).scaleb(-scale)) for value in drawn]
    low, width = min(numbers), max(numbers) - min(numbers) or 1.0
    expected = [int((number - low) / width * curve.LAST) for number in numbers]
    assert placed(RegionTree.single([column]), ColumnValues(np.array(drawn, column.dtype))) == expected
