"""The grid of a histogram from a sample of rows."""

from __future__ import annotations

import numpy as np

from harness_pipelines.layout.columns import Array, ColumnValues, IndexedColumn
from harness_pipelines.layout.histogram import edges_of


def quantile_edges(column: IndexedColumn, values: ColumnValues, *, count: int) -> Array:
    """Grid lines at *count* quantiles of the values that are neither NULL nor NaN; ascending, maybe fewer."""
    known = values.values[~(values.is_null | values.is_nan)]
    if not len(known):
        return edges_of(column, [])
    ordered = np.sort(known)
    at = np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    return edges_of(column, ordered[at].tolist())
