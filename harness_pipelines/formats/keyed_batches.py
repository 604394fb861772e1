"""Split records of keyed tables into parts with the same decoding, and join the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.formats.base import Codec, Decoded, Refused
from harness_pipelines.formats.refusals import DETAIL_CHARS
from harness_pipelines.protocol.keys import PUT

if TYPE_CHECKING:
    from harness_pipelines.formats.whole_record import Records

Retold = Callable[[Refused, int], Refused]  #: the same refusal, at its position in the input


def moved(refused: Refused, index: int) -> Refused:
    return replace(refused, index=index)


def inside(where: str) -> Retold:
    """What the refusals of a part begin with."""
    return lambda refused, index: replace(refused, index=index, detail=f"{where}: {refused.detail}"[:DETAIL_CHARS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Records that do the same: a put has all columns, a delete those of the key, all else is NULL."""

    operation: str  #: 'put' or 'delete'
    codec: Codec
    values: Sequence[Any]  #: what *codec* takes
    places: NDArray[np.int64]  #: their positions in the input, ascending
    retold: Retold = moved


class Sorter(Protocol):
    """Tells what records do. A record's part never depends on the records beside it."""

    def sort(self, records: Records) -> tuple[list[Part], list[Refused]]:
        """Sort *records*; all are in a part or refused."""
        ...


def decode_parts(parts: Iterable[Part], refused: Iterable[Refused], schema: pa.Schema) -> Decoded:
    """Decode all *parts*; *schema*: that of the rows, `_op` first."""
    found = [(part, part.codec.decode(part.values)) for part in parts]
    places = [part.places[decoded.accepted] for part, decoded in found]
    accepted = np.concatenate([np.empty(0, np.int64), *places])
    rows = pa.concat_tables([schema.empty_table(), *(_rows(part, decoded, schema) for part, decoded in found)])
    if len(found) > 1:
        in_order = np.argsort(accepted, kind="stable")
        rows, accepted = rows.take(pa.array(in_order)), accepted[in_order]
    all_refused = [*refused]
    for part, decoded in found:
        all_refused += [part.retold(one, int(part.places[one.index])) for one in decoded.refused]
    return Decoded(
        rows=rows.combine_chunks(), accepted=accepted, refused=sorted(all_refused, key=lambda one: one.index)
    )


def _rows(part: Part, decoded: Decoded, schema: pa.Schema) -> pa.Table:
    found, count = decoded.rows, len(decoded.accepted)
    columns: list[Any] = [pa.repeat(pa.scalar(part.operation), count)]
    if part.operation == PUT:
        columns += found.columns
    else:
        there = set(found.column_names)
        columns += [
            found.column(field.name) if field.name in there else pa.nulls(count, field.type)
            for field in list(schema)[1:]
        ]
    return pa.table(columns, schema=schema)


def places_of(chosen: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The positions that are *chosen*, as one part; no part where there is none."""
    found = np.flatnonzero(chosen)
    return [found] if len(found) else []


def at(records: Sequence[bytes | None], places: NDArray[np.int64]) -> Sequence[bytes | None]:
    return records if len(places) == len(records) else [records[i] for i in places.tolist()]
