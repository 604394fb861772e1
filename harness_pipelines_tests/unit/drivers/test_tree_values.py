"""What engines have as Arrow, in the domain of the region tree."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.layout.columns import IndexedColumn

NUMBERS = [None, Decimal("-999999999999.99"), Decimal("0.01"), Decimal("0.00"), None, Decimal("12.30")]


@pytest.mark.parametrize("type_", ["decimal(14,2)", "decimal(30,2)"])
def test_decimals_are_their_whole_numbers_in_any_chunks(type_: str):
    arrow = pa.decimal128(*map(int, type_[8:-1].split(",")))
    chunks = [pa.array(NUMBERS, arrow), pa.array(NUMBERS, arrow).slice(2, 3), pa.array([], arrow)]
    found = to_values(pa.chunked_array(chunks, arrow), IndexedColumn("x", type_))
    expected = [*NUMBERS, *NUMBERS[2:5]]
    assert found.is_null.tolist() == [value is None for value in expected]
    assert [v for v, null in zip(found.values.tolist(), found.is_null, strict=True) if not null] == [
        int(value * 100) for value in expected if value is not None
    ]
    assert found.values.dtype == (np.int64 if type_ == "decimal(14,2)" else object)
