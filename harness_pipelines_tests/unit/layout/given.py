"""Columns, rows and trees for the tests of the region tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from harness_pipelines.layout.build import build
from harness_pipelines.layout.columns import ALLOWED, ColumnValues, IndexedColumn, Value, column_values
from harness_pipelines.layout.files import Extent, FileStats
from harness_pipelines.layout.histogram import CellHistogram, edges_of
from harness_pipelines.layout.tree import RegionTree

TYPES = tuple("decimal(30, 2)" if name == "decimal(p,s)" else name for name in ALLOWED)
NAN = math.nan
Row = tuple[Value | None, ...]


def values_of(column: IndexedColumn) -> st.SearchStrategy[Value]:
    """Values of the column, few of them often, its ends and infinities too; no NULL, no NaN."""
    ends = [value for value in (column.least, column.greatest) if value is not None]
    if column.is_float:
        some: st.SearchStrategy[Any] = st.floats(allow_nan=False, width=32 if column.type == "float" else 64)
    elif column.type == "string":
        some = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    elif column.type == "uuid":
        some = st.binary(min_size=16, max_size=16)
    else:
        some = st.integers(column.least, column.greatest)
        few = st.integers(0, 1 if column.type == "boolean" else 9)
        return st.one_of(few, some, st.sampled_from(ends))
    return st.one_of(some, st.sampled_from(ends))


def cells_of(column: IndexedColumn) -> st.SearchStrategy[Value | None]:
    """As `values_of`, with NULL (None) and NaN."""
    also: list[Value | None] = [None, NAN] if column.is_float else [None]
    return st.one_of(values_of(column), st.sampled_from(also))


@st.composite
def some_columns(draw: st.DrawFn, most: int = 4) -> tuple[IndexedColumn, ...]:
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=most))
    return tuple(IndexedColumn(f"c{i}", name) for i, name in enumerate(types))


@st.composite
def some_rows(draw: st.DrawFn, columns: Sequence[IndexedColumn], most: int = 40) -> list[Row]:
    return draw(st.lists(st.tuples(*(cells_of(column) for column in columns)), max_size=most))


@st.composite
def tables(draw: st.DrawFn, most: int = 4) -> tuple[tuple[IndexedColumn, ...], list[Row]]:
    columns = draw(some_columns(most))
    return columns, draw(some_rows(columns))


def arrays(columns: Sequence[IndexedColumn], rows: Sequence[Row]) -> list[ColumnValues]:
    return [column_values(column, [row[axis] for row in rows]) for axis, column in enumerate(columns)]


def histogram_of(columns: Sequence[IndexedColumn], rows: Sequence[Row]) -> CellHistogram:
    """On a grid with a line at every value, and on both sides of those that come twice."""
    edges = [
        edges_of(column, [row[axis] for row in rows if row[axis] is not None and row[axis] == row[axis]])
        for axis, column in enumerate(columns)
    ]
    return CellHistogram.count(columns, edges, arrays(columns, rows))


def tree_of(columns: Sequence[IndexedColumn], rows: Sequence[Row], target_rows: float = 3) -> RegionTree:
    return build(histogram_of(columns, rows), target_rows=target_rows)


def file_of(name: str, rows: Sequence[Row], columns: Sequence[IndexedColumn], *, sequence: int = 1) -> FileStats:
    """With the bounds that Iceberg keeps: text cut to 16 characters, rounded down below and up above."""
    extents = tuple(_extent(column, [row[axis] for row in rows]) for axis, column in enumerate(columns))
    return FileStats(path=name, rows=len(rows), bytes=len(rows) * 10, sequence=sequence, extents=extents)


def _extent(column: IndexedColumn, values: Sequence[Value | None]) -> Extent:
    nans = sum(value is not None and value != value for value in values)
    known = [value for value in values if value is not None and value == value]
    nulls, nans_kept = len(values) - len(known) - nans, nans if column.is_float else None
    if not known:
        return Extent(None, None, nulls, nans_kept)
    if column.type == "string":
        return Extent(min(known)[:16], _rounded_up(max(known)), nulls, nans_kept)
    return Extent(min(known), max(known), nulls, nans_kept)


def _rounded_up(text: str) -> str | None:
    if len(text) <= 16:
        return text
    for end in range(16, 0, -1):
        after = ord(text[end - 1]) + 1
        if after <= 0x10FFFF:
            return text[: end - 1] + chr(0xE000 if 0xD800 <= after < 0xE000 else after)
    return None


def skewed(rows: int, seed: int) -> tuple[tuple[IndexedColumn, ...], list[ColumnValues]]:
    """Two columns of doubles: clusters of very unlike density, and some rows far out."""
    random = np.random.default_rng(seed)
    centre = random.uniform(0, 1000, (12, 2))
    at = centre[random.choice(12, rows, p=random.dirichlet(np.ones(12)))] + random.normal(size=(rows, 2)) ** 3
    at[random.random(rows) < 0.001] *= 1000
    return (IndexedColumn("x", "double"), IndexedColumn("y", "double")), [
        ColumnValues(column) for column in at.T.copy()
    ]


def quantile_histogram(columns: Sequence[IndexedColumn], values: Sequence[ColumnValues], lines: int) -> CellHistogram:
    edges = []
    for column, column_ in zip(columns, values, strict=True):
        known = np.sort(column_.values[~column_.is_null & ~column_.is_nan])
        at = (np.arange(1, lines) * len(known)) // lines
        edges.append(edges_of(column, known[at].tolist() if len(known) else []))
    return CellHistogram.count(columns, edges, values)
