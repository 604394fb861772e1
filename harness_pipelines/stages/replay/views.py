"""What a replay means for the views, and for the batch view of a keyed table: there the newest version of a key wins,
whenever it came.

The stream view is a changelog, which takes every record. The batch view shows one version of each key: a record that
is put back is that version only where the changelog has no newer one, a delete among them, below the bound of the
batch view. Newer ones beyond it hide the record from readers, and are merged over it.

Where rows of the changelog become others, or none, the keys that they had and have are folded again: a row whose newest
version is another one goes, and one that had been replaced may come back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.protocol.bounds import OffsetRange
from harness_pipelines.protocol.changes.corrections import CorrectionsMoved, ReplayRefused
from harness_pipelines.protocol.coordinates import OPERATION
from harness_pipelines.protocol.coordinates import SCHEMA_VERSION as VERSION
from harness_pipelines.protocol.keys import PUT, key_in_two_partitions
from harness_pipelines.protocol.lake.overlays import named as told_of
from harness_pipelines.protocol.reading.fold import Folded, KeyNumbers, Numbers, fold, int_column, key_text
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats, schema_of
from harness_pipelines.protocol.reading.selection import ReadColumn
from harness_pipelines.read.point import KEYS_PER_READ, KeyForm
from harness_pipelines.spec.arrow import arrow_schema
from harness_pipelines.spec.predicate import OFFSET, PARTITION, TRUE, Predicate

if TYPE_CHECKING:
    from harness_pipelines.layout.files import Positions
    from harness_pipelines.ports.lake import LakeReads
    from harness_pipelines.ports.ledger import TableRow
    from harness_pipelines.protocol.versions import Version, ViewName


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredRows:
    """The batch view's rows of the records that are restored."""

    rows: pa.Table
    hidden: Mapping[str, Positions] = field(default_factory=dict)  #: rows that these take the place of, by data file

    def __bool__(self) -> bool:
        return bool(self.rows.num_rows or self.hidden)


def shown_in_batch(
    lake: LakeReads, table: TableRow, head: Version, pointers: Mapping[ViewName, str], rows: pa.Table
) -> RestoredRows:
    """What becomes of *rows* (puts and deletes, with coordinates) in the batch view of *head*, read at *pointers*.

    Raises: ReplayRefused where rows are recalled; KeyInTwoPartitions; LakeFileMissing, LakeUnreadable.
    """
    _check_none_recalled(table, head)
    return _Look(lake, table, head, rows).shown(pointers)


def _check_none_recalled(table: TableRow, head: Version) -> None:
    if head.overlays:
        raise ReplayRefused(
            f"{table.name} has rows recalled to Postgres ({told_of(head.overlays)}), which a record that is put back "
            f"might have to replace; nothing was put back. `harness recall {table.name} --release`, then repeat this"
        )


def stored_rows(lake: LakeReads, table: TableRow, metadata: str, wanted: OffsetRange) -> pa.Table:
    """The rows of *wanted* in the view that *metadata* fixes, all columns in exact types, by offset.

    Raises: LakeFileMissing, LakeUnreadable.
    """
    schema = stored_schema(table)
    query = LakeQuery(
        table=table.name,
        version=0,
        ranges={wanted.partition: (wanted.low, wanted.high)},
        columns=columns_of(table, schema.names),
    )
    parts = [conformed(part, schema) for part in lake.scan(metadata, query, LakeStats())]
    return pa.concat_tables([schema.empty_table(), *parts]).sort_by(OFFSET)


def stored_schema(table: TableRow) -> pa.Schema:
    """All columns of a view, in exact types; what a damaged file holds must be readable too."""
    return pa.schema([f.with_nullable(True) for f in arrow_schema(table.spec.stored, coordinates=True)])


def columns_of(table: TableRow, names: Sequence[str]) -> list[LakeColumn]:
    """How columns of a view are found, by their names of now."""
    ids = {f["name"]: int(f["id"]) for f in table.fields}
    return [LakeColumn(name=name, field_id=ids.get(name)) for name in names]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rewritten:
    """Rows of a range that become others, or none; all columns that their view has."""

    wanted: OffsetRange
    old: pa.Table  #: the rows that go, with all coordinates
    new: pa.Table  #: what stands there from now on

    def hidden(self, lake: LakeReads, table: TableRow, metadata: str) -> dict[str, Positions]:
        """Where the rows that go are in the view that *metadata* fixes, by data file. Raises: CorrectionsMoved."""
        gone = self.old[OFFSET].to_numpy()
        if not len(gone):
            return {}
        query = LakeQuery(
            table=table.name,
            version=0,
            ranges={self.wanted.partition: (int(gone.min()), int(gone.max()) + 1)},
            columns=columns_of(table, [PARTITION, OFFSET]),
        )
        found: dict[str, Positions] = {}
        for part in lake.located(metadata, query, LakeStats()):
            at = np.flatnonzero(np.isin(int_column(part.rows, OFFSET), gone))
            if len(at):
                found[part.file.path] = part.positions[at]
        if (count := sum(map(len, found.values()))) != len(gone):
            raise CorrectionsMoved(
                f"{table.name}: {len(gone):,} rows were to be replaced, a view has {count:,}; nothing was changed"
            )
        return found


def shown_rewritten(
    lake: LakeReads, table: TableRow, head: Version, pointers: Mapping[ViewName, str], change: Rewritten
) -> RestoredRows:
    """What becomes of *change* in the batch view of *head*, read at *pointers*.

    Raises: ReplayRefused where rows are recalled; KeyInTwoPartitions; LakeFileMissing, LakeUnreadable.
    """
    _check_none_recalled(table, head)
    names = [*table.spec.key, PARTITION, OFFSET, OPERATION]
    touched = pa.concat_tables([part.select(names) for part in (change.old, change.new)], promote_options="permissive")
    return _Look(lake, table, head, touched).rewritten(pointers, change)


class _Look:
    """The rows of the views below the batch view's bound that have the keys of some records."""

    def __init__(self, lake: LakeReads, table: TableRow, head: Version, rows: pa.Table) -> None:
        self._lake, self._table, self._head, self._key = lake, table, head, table.spec.key
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

    def shown(self, pointers: Mapping[ViewName, str]) -> RestoredRows:
        newest = self._newest.offsets >= self._latest(pointers["stream"])
        hidden = self._older(pointers["batch"], newest)
        of_row = self._keys.of([self._newest.rows.column(name) for name in self._key])
        puts = pc.equal(self._newest.rows.column(OPERATION), PUT)
        return RestoredRows(rows=self._newest.rows.filter(pc.and_(pa.array(newest[of_row]), puts)), hidden=hidden)

    def rewritten(self, pointers: Mapping[ViewName, str], change: Rewritten) -> RestoredRows:
        """The rows after *change* in the changelog: its keys are folded again."""
        latest, is_put = self._folded(pointers["stream"], change)
        fresh = np.isin(latest, change.new[OFFSET].to_numpy())  # the newest version is one that was made now
        stays = np.zeros(len(latest), np.bool_)
        hidden: dict[str, Positions] = {}
        ranges = {p: (b.start, b.batch_hi) for p, b in self._head.bounds.items() if b.start < b.batch_hi}
        for part in self._lake.located(pointers["batch"], self._query(ranges), LakeStats()):
            rows, numbers, at = self._of_keys(part.rows)
            same = is_put[numbers] & ~fresh[numbers] & (int_column(rows, OFFSET)[at] == latest[numbers])
            stays[numbers[same]] = True
            if len(older := at[~same]):
                hidden[part.file.path] = part.positions[older]
        made = change.new.filter(pa.array(np.isin(change.new[OFFSET].to_numpy(), latest[fresh & is_put])))
        back = self._back(pointers["stream"], change.wanted.partition, latest[~fresh & is_put & ~stays])
        constant = pa.repeat(pa.scalar(self._table.schema_version, pa.int32()), made.num_rows)
        made = made.append_column(VERSION, constant).select(back.column_names).cast(back.schema)
        return RestoredRows(rows=pa.concat_tables([back, made]).sort_by(OFFSET), hidden=hidden)

    def _folded(self, stream: str, change: Rewritten) -> tuple[Numbers, NDArray[np.bool_]]:
        """By the number of a key: the offset of its newest version below batch_hi, else -1; is it a put?"""
        latest = np.full(len(self._keys), -1, np.int64)
        is_put = np.zeros(len(self._keys), np.bool_)
        gone = change.old[OFFSET].to_numpy()
        partition = change.wanted.partition
        bounds = self._head.bounds[partition]
        names = [*self._key, PARTITION, OFFSET, OPERATION]
        query = replace(
            self._query({partition: (bounds.start, bounds.batch_hi)}), columns=columns_of(self._table, names)
        )
        parts = ((part, gone) for part in self._lake.scan(stream, query, LakeStats()))
        for part, without in (*parts, (change.new.select(names), gone[:0])):
            rows, numbers, at = self._of_keys(part)
            offsets = int_column(rows, OFFSET)[at]
            puts = np.asarray(pc.equal(part.column(OPERATION), PUT).to_numpy())[at]
            in_order = np.argsort(offsets, kind="stable")
            in_order = in_order[~np.isin(offsets[in_order], without)]
            in_order = in_order[offsets[in_order] > latest[numbers[in_order]]]
            # Of several that are assigned to a place the last one stays.
            latest[numbers[in_order]] = offsets[in_order]
            is_put[numbers[in_order]] = puts[in_order]
        return latest, is_put

    def _back(self, stream: str, partition: int, offsets: Numbers) -> pa.Table:
        """The rows of the changelog at *offsets*, whole."""
        schema = stored_schema(self._table)
        if not len(offsets):
            return schema.empty_table()
        ranges = {partition: (int(offsets.min()), int(offsets.max()) + 1)}
        query = replace(self._query(ranges), columns=columns_of(self._table, schema.names))
        found = [schema.empty_table()]
        for part in self._lake.scan(stream, query, LakeStats()):
            rows = conformed(part, schema)
            found.append(rows.filter(pa.array(np.isin(int_column(rows, OFFSET), offsets))))
        return pa.concat_tables(found)

    def _latest(self, stream: str) -> Numbers:
        """By the number of a key: the offset of its newest record that the batch view has taken in, else -1."""
        latest = np.full(len(self._keys), -1, np.int64)
        offsets = self._newest.offsets
        low = {p: int(offsets[self._newest.partitions == p].min()) for p in set(self._newest.partitions.tolist())}
        ranges = {p: (at, b.batch_hi) for p, at in low.items() if at < (b := self._head.bounds[p]).batch_hi}
        for part in self._lake.scan(stream, self._query(ranges), LakeStats()):
            rows, numbers, at = self._of_keys(part)
            np.maximum.at(latest, numbers, int_column(rows, OFFSET)[at])
        return latest

    def _older(self, batch: str, newest: NDArray[np.bool_]) -> dict[str, Positions]:
        """Where the batch view shows older versions of those keys whose *newest* version is to be put back."""
        hidden: dict[str, Positions] = {}
        ranges = {p: (b.start, b.batch_hi) for p, b in self._head.bounds.items() if b.start < b.batch_hi}
        for part in self._lake.located(batch, self._query(ranges), LakeStats()):
            _, numbers, at = self._of_keys(part.rows)
            if len(older := at[newest[numbers]]):
                hidden[part.file.path] = part.positions[older]
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
        rows = conformed(rows.select(self._schema.names), self._schema)
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
