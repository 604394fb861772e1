"""Split lists, maps and structs into columns of their parts, and join them again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.columns.shapes import Cells, Convert, Misfits, Unfit
from harness_pipelines.spec.types import Primitive, Type


def below(path: str, convert: Convert, cells: Cells, ends: NDArray[np.int32] | None = None) -> pa.Array:
    """Convert the parts of some rows: one each, or those up to the row's end in *ends*; a misfit is its row's."""
    try:
        return convert(cells)
    except Misfits as misfits:
        found: dict[int, Unfit] = {}
        for position, why in misfits.found.items():
            row = position if ends is None else int(np.searchsorted(ends, position, side="right")) - 1
            found.setdefault(row, replace(why, path=path + why.path))
        raise Misfits(found) from None


def below_rows(rows: Sequence[int], convert: Convert, cells: Cells) -> pa.Array:
    """Convert some *rows* of *cells*; a misfit has its position in all of them."""
    try:
        return convert([cells[row] for row in rows])
    except Misfits as misfits:
        raise Misfits({rows[position]: why for position, why in misfits.found.items()}) from None


def nulls(cells: Cells) -> pa.Array | None:
    return pa.array([cell is None for cell in cells]) if None in cells else None


def row_ends(cells: Cells) -> NDArray[np.int32]:
    """Where the parts of each row end, 0 first; shape (rows + 1,)."""
    ends = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(np.fromiter((len(cell) if cell else 0 for cell in cells), np.int32, len(cells)), out=ends[1:])
    return ends


def flat(parts: Iterable[Iterable[Any]]) -> Cells:
    return list(chain.from_iterable(parts))


def list_of(kind: pa.DataType, inner: Convert) -> Convert:
    """Lists of what *inner* converts."""

    def convert(cells: Cells) -> pa.Array:
        ends = row_ends(cells)
        values = below("[...]", inner, flat(filter(None, cells)), ends)
        return pa.ListArray.from_arrays(pa.array(ends), values, type=kind, mask=nulls(cells))

    return convert


def refuse_twins(names: pa.Array, ends: NDArray[np.int32], key: Type) -> None:
    """Two texts may be one key (1.0 and 1.00). Engines refuse a map with both only when they read it."""
    if key not in (Primitive("string"), Primitive("int"), Primitive("long")):  # a dict has each of these once
        refuse_same(names, ends)


def refuse_same(names: pa.Array, ends: NDArray[np.int32]) -> None:
    found = names.to_pylist()
    twins = [row for row, (low, high) in enumerate(pairwise(ends)) if len(set(found[low:high])) != high - low]
    if twins:
        why = Unfit(Reason.WRONG_TYPE, "two keys of the map are the same value", " key")
        raise Misfits(dict.fromkeys(twins, why))
