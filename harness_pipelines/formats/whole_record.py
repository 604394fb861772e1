"""Columns with a part of the record: ``from: headers``, ``raw_key`` and ``raw_value``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.formats.base import NO_TEXT, Decoded, Headers, Reason, Refused
from harness_pipelines.formats.columns.chunked import left
from harness_pipelines.formats.columns.shapes import Unfit
from harness_pipelines.formats.raw import RawCodec
from harness_pipelines.formats.refusals import refusal
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.table import TableSpec


def fields_of(spec: TableSpec) -> tuple[Column, ...]:
    """The columns that are fields of the value."""
    if spec.format == "raw":
        return ()
    return tuple(c for c in spec.columns if c.source not in WHOLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The bytes of some records; all sequences have the same length."""

    values: Sequence[bytes | None]
    keys: Sequence[bytes | None]
    headers: Sequence[Headers | None] | None  #: none: they were not asked for

    def part(self, low: int, high: int | None) -> Records:
        """Those from position *low* to below *high*."""
        headers = None if self.headers is None else self.headers[low:high]
        return Records(values=self.values[low:high], keys=self.keys[low:high], headers=headers)

    def at(self, places: Sequence[int]) -> Records:
        """Those at *places*."""
        headers = None if self.headers is None else [self.headers[i] for i in places]
        return Records(values=[self.values[i] for i in places], keys=[self.keys[i] for i in places], headers=headers)


class WholeColumns:
    """Adds columns to decoded rows. In a delete all but those of the key are NULL."""

    def __init__(self, spec: TableSpec) -> None:
        fields = fields_of(spec)
        self._columns = [c for c in spec.columns if c not in fields]
        self._key = frozenset(spec.key)
        self._names = [c.name for c in spec.columns]

    def __bool__(self) -> bool:
        return bool(self._columns)

    def added(self, decoded: Decoded, records: Records) -> Decoded:
        """*decoded* with its columns in the order of the spec; a record of which one does not fit is refused."""
        count = len(decoded.accepted)
        puts = np.ones(count, np.bool_)
        if OPERATION in decoded.rows.column_names:
            puts = pc.equal(decoded.rows.column(OPERATION), PUT).to_numpy().astype(np.bool_)
        refused: dict[int, Refused] = {}
        made: dict[str, pa.Array] = {}
        for column in self._columns:
            rows = np.arange(count) if column.name in self._key else np.flatnonzero(puts)
            array, found, wrong = _column(column, records, decoded.accepted[rows])
            places = np.full(count, -1, np.int64)
            places[rows[found]] = np.arange(len(found))
            made[column.name] = array.take(pa.array(places, mask=places < 0))
            for one in wrong:
                refused.setdefault(one.index, one)
        keep = np.array([i not in refused for i in decoded.accepted.tolist()], np.bool_)
        table = {name: decoded.rows.column(name) for name in decoded.rows.column_names} | made
        names = [name for name in (OPERATION, *self._names) if name in table]
        rows = pa.table([table[name] for name in names], names=names)
        return Decoded(
            rows=rows.filter(pa.array(keep)) if refused else rows,
            accepted=decoded.accepted[keep],
            refused=sorted([*decoded.refused, *refused.values()], key=lambda one: one.index),
        )


def _column(
    column: Column, records: Records, wanted: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.int64], list[Refused]]:
    """Return the column of the records at *wanted*, the ones of *wanted* that it covers, and the refused records."""
    if column.source == "headers":
        return _headers(column, records, wanted)
    source = records.keys if column.source == "raw_key" else records.values
    found = RawCodec(column).decode([source[i] for i in wanted.tolist()])
    refused = [Refused(index=int(wanted[r.index]), reason=r.reason, detail=r.detail) for r in found.refused]
    return found.rows.column(0).combine_chunks(), found.accepted, refused


def _headers(
    column: Column, records: Records, wanted: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.int64], list[Refused]]:
    assert records.headers is not None, "a table with headers is decoded with them"
    cells = [records.headers[i] for i in wanted.tolist()]
    wrong = {at: why for at, cell in enumerate(cells) if (why := _header_trouble(cell, column)) is not None}
    if not wrong:
        return _header_array(cells, column), np.arange(len(cells)), []
    fine = left(len(cells), wrong)
    refused = [refusal(int(wanted[at]), why) for at, why in wrong.items()]
    return _header_array([cells[at] for at in fine.tolist()], column), fine, refused


def _header_trouble(cell: Headers | None, column: Column) -> Unfit | None:
    if not cell:
        if not column.required:
            return None
        return Unfit(Reason.MISSING_FIELD, f"`{column.name}`: required, but the record has no headers")
    if any(NO_TEXT in name for name, _ in cell):
        return Unfit(Reason.MALFORMED, f"`{column.name}`: the name of a header is not UTF-8")
    return None


def _header_array(cells: Sequence[Headers | None], column: Column) -> pa.Array:
    named = [None if not cell else [{"key": key, "value": value} for key, value in cell] for cell in cells]
    return pa.array(named, arrow_type(column.type))
