"""Codecs that decode records to columns, one chunk at a time.

Only where a column cannot be made are single records looked at, by the same code on fewer records: the verdict on a
record never depends on others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.formats.base import Decoded, Refused
from harness_pipelines.formats.columns.arrow import storable_text
from harness_pipelines.formats.columns.shapes import ABSENT, Cells, Convert, Misfits, Unfit, complete, required
from harness_pipelines.formats.refusals import refusal
from harness_pipelines.spec.arrow import arrow_type
from harness_pipelines.spec.columns import Column, default_value
from harness_pipelines.spec.types import Primitive

CHUNK_RECORDS = 2_048  #: values of a chunk stay in the processor's cache: 1.4 times the rate of whole batches
CHUNK_BYTES = 8 * 2**20


class ColumnCodec(ABC):
    """`Codec` that reads records and makes a column of the cells that each `Maker` gets from them."""

    def __init__(self, schema: pa.Schema, makers: Sequence[Maker]) -> None:
        self._schema, self._makers = schema, makers

    @abstractmethod
    def _unsound(self, values: Sequence[bytes | None]) -> dict[int, Unfit]:
        """Return why some of *values* are refused before they are read, by position."""

    @abstractmethod
    def _records(self, values: Sequence[bytes | None], refused: dict[int, Unfit]) -> list[Any]:
        """The records of *values* but the *refused* ones, to which those are added that cannot be read."""

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """Decode *values*; all of them appear in the result, as a row or as refused."""
        chunks = [self._chunk(values[low:high], low) for low, high in ranges(values)]
        rows = pa.Table.from_batches([chunk.rows for chunk in chunks], self._schema)
        return Decoded(
            rows=rows.combine_chunks(),
            accepted=np.concatenate([np.empty(0, np.int64), *(chunk.accepted for chunk in chunks)]),
            refused=[refused for chunk in chunks for refused in chunk.refused],
        )

    def _chunk(self, values: Sequence[bytes | None], first: int) -> _Chunk:
        refused = self._unsound(values)
        records = self._records(values, refused)
        return self._made(records, refused, len(values), first)

    def rows_of(self, records: list[Any]) -> Decoded:
        """The rows of *records* that are read already, as many as a chunk has at most."""
        chunk = self._made(records, {}, len(records), 0)
        return Decoded(rows=pa.Table.from_batches([chunk.rows]), accepted=chunk.accepted, refused=chunk.refused)

    def _made(self, records: list[Any], refused: dict[int, Unfit], count: int, first: int) -> _Chunk:
        places = left(count, refused)
        arrays, wrong = self._arrays(records)
        if wrong:
            refused |= {int(places[position]): why for position, why in wrong.items()}
            arrays, _ = self._arrays([record for position, record in enumerate(records) if position not in wrong])
            places = left(count, refused)
        return _Chunk(
            rows=pa.RecordBatch.from_arrays(arrays, schema=self._schema),
            accepted=places + first,
            refused=[refusal(first + i, refused[i]) for i in sorted(refused)],
        )

    def _arrays(self, records: list[Any]) -> tuple[list[pa.Array], dict[int, Unfit]]:
        """The columns of *records*, or the records that keep them from being made, by position."""
        arrays: list[pa.Array] = []
        wrong: dict[int, Unfit] = {}
        for maker in self._makers:
            cells = list(map(maker.getter, records))
            try:
                arrays.append(maker.convert(cells))
            except Misfits as misfits:
                for position, why in misfits.found.items():
                    wrong.setdefault(position, Unfit(why.reason, f"`{maker.name}{why.path}`: {why.detail}"))
        return arrays, wrong


@dataclass(frozen=True, slots=True)
class Maker:
    """One column."""

    name: str
    getter: Callable[[Any], Any]  #: the cell of a record
    convert: Convert


@dataclass(frozen=True, slots=True)
class _Chunk:
    rows: pa.RecordBatch
    accepted: NDArray[np.int64]
    refused: list[Refused]


def left(count: int, refused: Collection[int]) -> NDArray[np.int64]:
    """Positions below *count* that are not refused."""
    return np.delete(np.arange(count, dtype=np.int64), list(refused)) if refused else np.arange(count, dtype=np.int64)


def ranges(values: Sequence[bytes | None]) -> Iterator[tuple[int, int]]:
    """Positions of chunks: few enough records, and bytes that an Arrow array can hold."""
    for low in range(0, len(values), CHUNK_RECORDS):
        yield from _halved(values, low, min(low + CHUNK_RECORDS, len(values)))


def _halved(values: Sequence[bytes | None], low: int, high: int) -> Iterator[tuple[int, int]]:
    if high - low > 1 and sum(map(len, filter(None, values[low:high]))) > CHUNK_BYTES:
        middle = (low + high) // 2
        yield from _halved(values, low, middle)
        yield from _halved(values, middle, high)
    else:
        yield low, high


def finished(column: Column, convert: Convert, *, null: Any = None) -> Convert:
    """*convert* with what holds for a column as a whole; its `Misfits` names every row that does not fit.

    *null*: the cell that stands for null.
    """
    return checked(column, stored(column, convert, null=null))


def stored(column: Column, convert: Convert, *, null: Any = None) -> Convert:
    """*convert* of cells that the buffer can store; those that are `ABSENT` become the column's default."""
    convert = storable_text(convert) if column.type == Primitive("string") else convert
    if column.default is None:
        return convert
    default = pa.scalar(default_value(column.type, column.default), arrow_type(column.type))

    def filled(cells: Cells) -> pa.Array:
        lacking = [cell is ABSENT for cell in cells]
        if not any(lacking):
            return convert(cells)
        array = convert([null if cell is ABSENT else cell for cell in cells])
        return pc.if_else(pa.array(lacking), default, array)

    return filled


def checked(column: Column, convert: Convert) -> Convert:
    return complete(required(convert) if column.required else convert)
