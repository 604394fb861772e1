"""The effect of each record of a keyed table: its changelog with replaced rows, as Flink's row kinds.

A put of a key that had no row is ``+I``; of one that had, ``-U`` with the row that was and ``+U`` with the one that is.
A delete is ``-D`` with the row that was; of a key that had none it changed nothing, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness_pipelines.errors import UsageError
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.protocol.reading.fold import KeyNumbers, Numbers, int_column, key_text
from harness_pipelines.protocol.reading.plan import ReadPlan
from harness_pipelines.protocol.reading.selection import Selection, work_of
from harness_pipelines.read.point import KEYS_PER_READ, key_form
from harness_pipelines.read.union import ArrowReader
from harness_pipelines.spec.arrow import COORDINATES, to_arrow
from harness_pipelines.spec.predicate import OFFSET, PARTITION, TRUE, all_of

CHANGE = "_change_type"
INSERTED, WAS, IS, DELETED = "+I", "-U", "+U", "-D"
NONE = -1


def read_pre_images(
    reader: ArrowReader, log: ReadPlan, before: ReadPlan, selection: Selection, *, check_lease: Callable[[], None]
) -> pa.Table:
    """The changes of *log* (`changes_plan`) to the state of *before*, its older version, in offset order.

    The columns of *selection*, the coordinates of the record that made the change, and `_change_type`. A `where` is
    asked of each of the rows: of an update that leaves it, ``-U`` alone is returned.
    Raises: UsageError of a table without a key, and as `ArrowReader.read`.
    """
    if not before.key:
        raise UsageError(f"{before.table} has no key: its records replace nothing, so nothing was there before them")
    work = work_of(log, replace(selection, coordinates=True, changelog=False))
    wanted = Selection(columns=[c.name for c in work.needed], matching=work.asked)
    records = reader.read(log, replace(wanted, changelog=True), check_lease=check_lease)
    keys = KeyNumbers([records.column(name) for name in before.key])
    if len(keys) <= KEYS_PER_READ:  # so few of them that most files are ruled out
        form = key_form(before)
        one_of_each = records.take(np.unique(keys.first, return_index=True)[1])
        wanted = replace(wanted, matching=all_of(work.asked, form.where(list(form.of(one_of_each)))))
    rows = [records]
    if len(keys):
        for batch in reader.batches(before, wanted, check_lease=check_lease):
            table = pa.Table.from_batches([batch])
            rows.append(table.filter(pa.array(keys.of([table.column(name) for name in before.key]) >= 0)))
    found = _changes(before.table, before.key, pa.concat_tables(rows), records.num_rows)
    if work.where != TRUE:
        found = found.filter(to_arrow(work.where))
    return found.select([*(c.name for c in work.columns), CHANGE])


def _changes(table: str, key: Sequence[str], rows: pa.Table, records: int) -> pa.Table:
    """The changes that the first *records* of *rows* made; the others are what was there before them."""
    replaced = _replaced(table, key, rows, records)
    is_put = np.asarray(pc.equal(rows.column(OPERATION), PUT))
    replaced = np.where((replaced >= 0) & is_put[replaced], replaced, NONE)  # a delete left nothing
    partitions, offsets = int_column(rows, PARTITION)[:records], int_column(rows, OFFSET)[:records]
    records_in_order = np.lexsort((offsets, partitions))
    was, put = replaced[records_in_order], is_put[records_in_order]
    happened = np.stack([was != NONE, put], axis=1)  # what was goes, what is comes
    kinds = np.stack([np.where(put, WAS, DELETED), np.where(was != NONE, IS, INSERTED)], axis=1)[happened]
    values = np.stack([was, records_in_order], axis=1)[happened]
    causes = np.stack([records_in_order, records_in_order], axis=1)[happened]
    shown, told = rows.take(values), rows.take(causes)
    for name in COORDINATES.names:
        shown = shown.set_column(shown.column_names.index(name), told.schema.field(name), told.column(name))
    return shown.append_column(CHANGE, pa.array(kinds, pa.string()))


def _replaced(table: str, key: Sequence[str], rows: pa.Table, records: int) -> Numbers:
    """For each of the first *records* rows the row before it of the same key, NONE where there is none.

    Raises: KeyInTwoPartitions.
    """
    numbers = KeyNumbers([rows.column(name) for name in key]).first
    offsets, partitions = int_column(rows, OFFSET), int_column(rows, PARTITION)
    in_order = np.lexsort((offsets, numbers))
    same = numbers[in_order[1:]] == numbers[in_order[:-1]]
    moved = np.flatnonzero(same & (partitions[in_order[1:]] != partitions[in_order[:-1]]))
    if len(moved):
        one, other = int(in_order[moved[0]]), int(in_order[moved[0] + 1])
        raise key_in_two_partitions(
            table,
            key_text(rows, key, one),
            first=(partitions[one], offsets[one]),
            second=(partitions[other], offsets[other]),
        )
    found = np.full(rows.num_rows, NONE, np.int64)
    found[in_order[1:][same]] = in_order[:-1][same]
    return found[:records]
