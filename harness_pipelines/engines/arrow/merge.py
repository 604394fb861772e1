"""Arrow's part of a keyed merge: the newest version of each key, and the files with older ones.

What is held is the newest record of each key: the key, where it is and what it does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from harness_pipelines.drivers.tree_values import to_values
from harness_pipelines.engines.arrow.sources import FileRows, Kept, Mask, Source, Together, ints
from harness_pipelines.layout.files import Extent
from harness_pipelines.layout.tree import key_columns
from harness_pipelines.ports.engine import POSITIONS_MAX, Met, Rows
from harness_pipelines.ports.errors import StagedWrong
from harness_pipelines.protocol.coordinates import OFFSET, OPERATION, PARTITION
from harness_pipelines.protocol.keys import key_in_two_partitions
from harness_pipelines.protocol.reading.fold import Folded, KeyNumbers, fold, key_text
from harness_pipelines.protocol.reading.queries import schema_of

if TYPE_CHECKING:
    from harness_pipelines.layout.columns import IndexedColumn
    from harness_pipelines.layout.files import FileStats, Positions
    from harness_pipelines.ports.lake import LakeReads
    from harness_pipelines.ports.ledger import TableRow

FOLD_ROWS = 262_144  #: records that are looked at together, or as many as there are keys so far


def newest_of(table: TableRow, source: Source, *, recalled: Source | None) -> Folded:
    """The newest record of each key of *source*, but of the keys of *recalled*. Raises: KeyInTwoPartitions."""
    key = table.spec.key
    columns = (*key, PARTITION, OFFSET, OPERATION)
    apart = _keys_of(recalled, key) if recalled is not None else None
    found = fold(table.name, pa.schema([schema_of(table.spec).field(c) for c in columns]).empty_table(), key)
    waiting, rows = list[pa.Table](), 0
    for part in source.tables(columns):
        mine = part if apart is None else part.filter(pa.array(apart.of([part.column(c) for c in key]) < 0))
        waiting.append(mine)
        rows += mine.num_rows
        # Each fold hashes all keys so far, so it waits for as many records as there are.
        if rows >= max(FOLD_ROWS, found.rows.num_rows):
            found, waiting, rows = fold(table.name, pa.concat_tables([found.rows, *waiting]), key), [], 0
    return fold(table.name, pa.concat_tables([found.rows, *waiting]), key)


def _keys_of(source: Source, key: Sequence[str]) -> KeyNumbers | None:
    tables = list(source.tables(key))
    rows = pa.concat_tables(tables) if tables else None
    return KeyNumbers([rows.column(name) for name in key]) if rows is not None and rows.num_rows else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowKeyChanges:
    """`harness_pipelines.ports.engine.KeyChanges`; *folded* has the newest record of each key."""

    table: TableRow
    lake: LakeReads
    source: Source  #: all rows of the move
    folded: Folded

    @property
    def keys(self) -> int:
        return int(self.folded.rows.num_rows)

    @property
    def puts(self) -> int:
        return int(self.folded.puts.num_rows)

    @property
    def box(self) -> tuple[Extent, ...]:
        return tuple(_extent(self.folded.rows.column(column.name), column) for column in key_columns(self.table.spec))

    @property
    def rows(self) -> Rows:
        return Rows(self._puts)

    @property
    def _puts(self) -> Source:
        at = _by_partition(self.folded.puts)

        def is_newest(rows: pa.Table) -> Mask:
            partitions, offsets = ints(rows, PARTITION), ints(rows, OFFSET)
            found = np.zeros(rows.num_rows, np.bool_)
            for partition, wanted in at.items():
                found |= (partitions == partition) & _among(offsets, wanted)
            return found

        return Kept(source=self.source, keep=is_newest, by=(PARTITION, OFFSET))

    def met_in(self, metadata: str, files: Sequence[FileStats]) -> Mapping[str, Met]:
        if not files or self.folded.numbers is None:
            return {}
        view = FileRows(lake=self.lake, table=self.table, metadata=metadata, files=files)
        met: dict[str, list[Positions]] = {}
        read = 0
        for path, rows, positions in view.placed((*self.table.spec.key, PARTITION, OFFSET)):
            read += rows.num_rows
            if len(covered := self._covered(rows)):
                met.setdefault(path, []).append(positions[covered])
        if read < (live := sum(file.live for file in files)):
            raise StagedWrong(
                f"{self.table.name}: {read} of the {live} keys in {len(files)} files of the batch view were compared "
                "with those that changed; nothing was published, for a key may be there twice"
            )
        listed = self.keys <= POSITIONS_MAX
        places = {path: np.concatenate(parts) for path, parts in met.items()}
        return {path: Met(len(at), at if listed else None) for path, at in places.items()}

    def _covered(self, rows: pa.Table) -> Positions:
        """Places of the *rows* with a changed key. Raises: KeyInTwoPartitions."""
        assert self.folded.numbers is not None
        key = self.table.spec.key
        covered, there = self.folded.numbers.among([rows.column(name) for name in key])
        moved = np.flatnonzero(ints(rows, PARTITION)[covered] != self.folded.partitions[there])
        if len(moved):
            row, number = int(covered[moved[0]]), int(there[moved[0]])
            raise key_in_two_partitions(
                self.table.name,
                key_text(rows, key, row),
                first=(int(ints(rows, PARTITION)[row]), int(ints(rows, OFFSET)[row])),
                second=(int(self.folded.partitions[number]), int(self.folded.offsets[number])),
            )
        return covered

    def beside(self, older: Rows) -> Rows:
        key, numbers = self.table.spec.key, self.folded.numbers

        def stays(rows: pa.Table) -> Mask:
            if numbers is None:
                return np.ones(rows.num_rows, np.bool_)
            return np.asarray(numbers.of([rows.column(name) for name in key]) < 0)

        return Rows(Together((Kept(source=cast("Source", older), keep=stays, by=key), self._puts)))


def _extent(column: pa.ChunkedArray, of: IndexedColumn) -> Extent:
    """Where the values of a key's column lie, as the bounds of a file would say it."""
    values = to_values(column, of)
    known = values.values[~values.is_null].tolist()
    return Extent(lower=min(known, default=None), upper=max(known, default=None), nulls=int(values.is_null.sum()))


def _by_partition(rows: pa.Table) -> dict[int, Positions]:
    """Ascending offsets."""
    partitions, offsets = ints(rows, PARTITION), ints(rows, OFFSET)
    return {p: np.sort(offsets[partitions == p]) for p in np.unique(partitions).tolist()}


def _among(
    values: np.ndarray[tuple[int], np.dtype[np.int64]], known: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> Mask:
    """Which of *values* are among *known*, which ascend."""
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[at] == values)
