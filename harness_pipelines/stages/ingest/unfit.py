"""Rows that Postgres cannot store: quarantine them and commit the others.

Codecs refuse what no row can be. What they let through and Postgres refuses all the same (a row that is larger than a
page, a value that its type does not take) would refuse its whole batch again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from harness_pipelines.formats.base import Reason
from harness_pipelines.formats.culprits import Notices
from harness_pipelines.formats.refusals import DETAIL_CHARS
from harness_pipelines.ports.decoded import DecodedRange, RowsUnfit
from harness_pipelines.ports.ledger import RefusedRecord, TableRow
from harness_pipelines.ports.source import PartitionBatch

Try = Callable[[pa.Table], RowsUnfit | None]  #: whether rows can be stored, without a trace
_NOTICES = Notices()


Unfit = Mapping[tuple[int, int], RefusedRecord]  #: by partition and offset


def unfit_of(
    table: TableRow, batches: Sequence[PartitionBatch], decoded: Sequence[DecodedRange], trouble: Try
) -> Unfit:
    """The records of *batches* whose *decoded* rows cannot be stored."""
    found: dict[tuple[int, int], RefusedRecord] = {}
    for batch, taken in zip(batches, decoded, strict=True):
        offsets = taken.rows.column("_kafka_offset").to_pylist()
        for at, why in _culprits(taken.rows, 0, trouble):
            found[batch.partition, offsets[at]] = _refused(table, batch, offsets[at], why)
    return found


def without(unfit: Unfit, taken: DecodedRange) -> DecodedRange:
    """*taken* with the *unfit* ones of its rows quarantined."""
    offsets = taken.rows.column("_kafka_offset").to_pylist()
    mine = {at: unfit[key] for at, offset in enumerate(offsets) if (key := (taken.partition, offset)) in unfit}
    if not mine:
        return taken
    kept = np.ones(len(offsets), np.bool_)
    kept[list(mine)] = False
    refused = sorted([*taken.refused, *mine.values()], key=lambda one: one.offset)
    return replace(taken, rows=taken.rows.filter(pa.array(kept)).combine_chunks(), refused=refused)


def _culprits(rows: pa.Table, first: int, trouble: Try) -> Iterator[tuple[int, RowsUnfit]]:
    """The positions, counted from *first*, of all *rows* that cannot be stored."""
    if not rows.num_rows or (why := trouble(rows)) is None:
        return
    if rows.num_rows == 1:
        yield first, why
        return
    middle = rows.num_rows // 2
    yield from _culprits(rows.slice(0, middle), first, trouble)
    yield from _culprits(rows.slice(middle), first + middle, trouble)


def _refused(table: TableRow, batch: PartitionBatch, offset: int, why: RowsUnfit) -> RefusedRecord:
    at = int(np.searchsorted(batch.offsets, offset))
    reason = Reason.TOO_LARGE if why.is_too_large else Reason.UNDECODABLE
    detail = f"the buffer does not store it: {why.said}"[:DETAIL_CHARS]
    _NOTICES.note(table.name, detail)
    return RefusedRecord(
        partition=batch.partition,
        offset=offset,
        reason=reason,
        detail=detail,
        key=batch.keys[at],
        value=batch.values[at],
        headers=batch.headers[at] or (),
        kafka_ms=int(batch.timestamps_ms[at]),
    )
