"""What a replay means for the batch view of a keyed table: the newest version of a key wins, whenever it came.

The stream view is a changelog, which takes every record. The batch view shows one version of each key: a record that
is put back is that version only where the changelog has no newer one, a delete among them, below the bound of the
batch view. Newer ones beyond it hide the record from readers, and are merged over it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.protocol.corrections import ReplayRefused
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.protocol.overlays import named as told_of
from harness_pipelines.read.fold import Folded, KeyNumbers, Numbers, fold, int_column, key_text
from harness_pipelines.read.point import KEYS_PER_READ, KeyForm
from harness_pipelines.read.selection import ReadColumn
from harness_pipelines.spec.predicate import OFFSET, PARTITION, TRUE, Predicate
from harness_pipelines.stores.conform import conformed
from harness_pipelines.stores.lake_scan import LakeColumn, LakeQuery, LakeStats, located, scan
from harness_pipelines.stores.overlays import schema_of
from harness_pipelines.stores.segment_types import OPERATION

if TYPE_CHECKING:
    from harness_pipelines.protocol.versions import Version, ViewName
    from harness_pipelines.stores.lake_deletes import Positions
    from harness_pipelines.stores.ports import TableRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the batch view shows of the records that are put back."""

    rows: pa.Table
    hidden: Mapping[str, Positions] = field(default_factory=dict)  #: rows that these take the place of, by data file

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or self.hidden)


def shown_in_batch(table: TableRow, head: Version, pointers: Mapping[ViewName, str], rows: pa.Table) -> Shown:
    """What becomes of *rows* (puts and deletes, with coordinates) in the batch view of *head*, read at *pointers*.

    Raises: ReplayRefused where rows are recalled; KeyInTwoPartitions; LakeFileMissing, LakeUnreadable.
    """
    if head.overlays:
        raise ReplayRefused(
            f"{table.name} has rows recalled to Postgres ({told_of(head.overlays)}), which a record that is put back "
            f"might have to replace; nothing was put back. `harness recall {table.name} --release`, then repeat this"
        )
    return _Look(table, head, rows).shown(pointers)


class _Look:
    """The views below the bound of the batch view, as far as they have the keys of some records."""

    def __init__(self, table: TableRow, head: Version, rows: pa.Table) -> None:
        self._table, self._head, self._key = table, head, table.spec.key
        self._newest: Folded = fold(table.name, rows, self._key)
        assert self._newest.numbers is not None
        self._keys: KeyNumbers = self._newest.numbers
        ids = {f["name"]: int(f["id"]) for f in table.fields}
        self._columns = [
            *(LakeColumn(name=name, field_id=ids[name]) for name in self._key),
            *(LakeColumn(name=name, field_id=None) for name in (PARTITION, OFFSET)),
        ]
        known = schema_of(table.spec)
        self._schema = pa.schema([known.field(column.name) for column in self._columns])

    def shown(self, pointers: Mapping[ViewName, str]) -> Shown:
        newest = self._newest.offsets >= self._latest(pointers["stream"])
        hidden = self._older(pointers["batch"], newest)
        of_row = self._keys.of([self._newest.rows.column(name) for name in self._key])
        puts = pc.equal(self._newest.rows.column(OPERATION), PUT)
        return Shown(rows=self._newest.rows.filter(pc.and_(pa.array(newest[of_row]), puts)), hidden=hidden)

    def _latest(self, stream: str) -> Numbers:
        """By the number of a key: the offset of its newest record that the batch view has taken in, else -1."""
        latest = np.full(len(self._keys), -1, np.int64)
        offsets = self._newest.offsets
        low = {p: int(offsets[self._newest.partitions == p].min()) for p in set(self._newest.partitions.tolist())}
        ranges = {p: (at, b.batch_hi) for p, at in low.items() if at < (b := self._head.bounds[p]).batch_hi}
        for part in scan(stream, self._query(ranges), LakeStats()):
            rows, numbers, at = self._of_keys(part)
            np.maximum.at(latest, numbers, int_column(rows, OFFSET)[at])
        return latest

    def _older(self, batch: str, newest: NDArray[np.bool_]) -> dict[str, Positions]:
        """Where the batch view shows older versions of those keys whose *newest* version is to be put back."""
        hidden: dict[str, Positions] = {}
        ranges = {p: (b.start, b.batch_hi) for p, b in self._head.bounds.items() if b.start < b.batch_hi}
        for part in located(batch, self._query(ranges), LakeStats()):
            _, numbers, at = self._of_keys(part.rows)
            if len(older := at[newest[numbers]]):
                hidden[part.file.data.file_path] = part.positions[older]
        return hidden

    def _query(self, ranges: Mapping[int, tuple[int, int]]) -> LakeQuery:
        return LakeQuery(
            table=self._table.name,
            version=self._head.version,
            ranges=dict(ranges),
            columns=self._columns,
            where=self._where(),
        )

    def _where(self) -> Predicate:
        """Rules files out that have none of the keys; of many keys none would be."""
        if len(self._keys) > KEYS_PER_READ:
            return TRUE
        columns = {c.name: c for c in self._table.spec.columns}
        form = KeyForm(
            table=self._table.name,
            columns=tuple(
                ReadColumn(
                    name=c.name, type=columns[c.name].type, required=columns[c.name].required, field_id=c.field_id
                )
                for c in self._columns[: len(self._key)]
            ),
        )
        return form.where(list(form.of(self._newest.rows)))

    def _of_keys(self, rows: pa.Table) -> tuple[pa.Table, Numbers, Numbers]:
        """*rows* in exact types; of those with one of the keys the key's number, and their places among *rows*.

        Raises: KeyInTwoPartitions.
        """
        rows = conformed(rows, self._schema)
        numbers = self._keys.of([rows.column(name) for name in self._key])
        at = np.flatnonzero(numbers >= 0)
        numbers = numbers[at]
        moved = np.flatnonzero(int_column(rows, PARTITION)[at] != self._newest.partitions[numbers])
        if len(moved):
            row, number = int(at[moved[0]]), int(numbers[moved[0]])
            raise key_in_two_partitions(
                self._table.name,
                key_text(rows, self._key, row),
                first=(rows.column(PARTITION)[row].as_py(), rows.column(OFFSET)[row].as_py()),
                second=(int(self._newest.partitions[number]), int(self._newest.offsets[number])),
            )
        return rows, numbers, at
