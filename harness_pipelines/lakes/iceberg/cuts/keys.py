"""`BatchKeys` over the files of a batch view: an index of each file that may hold a key, made once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from harness_pipelines.drivers.conform import conformed
from harness_pipelines.lakes.iceberg.checked_io import KEPT
from harness_pipelines.lakes.iceberg.cuts.hidden import choose
from harness_pipelines.lakes.iceberg.cuts.key_bounds import may_hold
from harness_pipelines.lakes.iceberg.cuts.key_indexes import ROW_BYTES, KeyIndex, KeyIndexes
from harness_pipelines.lakes.iceberg.read.scan import PinnedView, named_errors, opened_file, pinned
from harness_pipelines.layout.files import Positions
from harness_pipelines.ports.lake import LakeFile
from harness_pipelines.ports.serving.keys import CutOverLimits
from harness_pipelines.protocol.coordinates import PARTITION
from harness_pipelines.protocol.key_hashes import KeyHasher, Keys, matches
from harness_pipelines.protocol.keyed_cuts import Cold
from harness_pipelines.protocol.reading.fold import int_column
from harness_pipelines.protocol.reading.plan import LakePart, ReadPlan, ranges_of
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery
from harness_pipelines.protocol.reading.selection import ReadColumn, table_columns

AT_ONCE = 4  #: files whose keys are read at once, each row group by row group


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Search:
    """What is looked for, and where."""

    plan: ReadPlan
    view: PinnedView
    columns: Sequence[ReadColumn]  #: of the key
    keys: Keys  #: in order

    @property
    def kind(self) -> str:
        """What an index is made of: a column that was widened has other numbers."""
        return ", ".join(f"{column.field_id} {column.arrow.type}" for column in self.columns)


class IcebergKeys:
    """Finds rows by keys; what it has read of a file it keeps in *indexes*, by the numbers of *hasher*."""

    def __init__(self, hasher: KeyHasher, indexes: KeyIndexes) -> None:
        self._hasher, self._indexes = hasher, indexes

    def files(self, plan: ReadPlan) -> Mapping[str, str]:
        """By the path of each file of the batch view the path of its delete file, or "". Raises: as the port."""
        part = _batch_part(plan)
        if part is None:
            return {}
        view = _view(plan, part)
        chosen = choose(view, ranges_of(part))
        if np.any(chosen.straddling | chosen.outside) or not np.all(view.files.mixed):
            raise CutOverLimits(
                f"{plan.table}, version {plan.version}: the batch view has files that are partitioned, or rows outside "
                f"of the offsets that the version has there; a cut of its newest versions does not hide them"
            )
        return {file.path: file.deletes.path if file.deletes else "" for file in view.files}

    def find(self, plan: ReadPlan, values: pa.Table, keys: Keys, *, among: Collection[int] | None) -> Cold:
        """All rows with one of *keys*, hidden ones too. Raises: as the port."""
        part = _batch_part(plan)
        if part is None or not keys.shape[1] or (among is not None and not among):
            return Cold.none()
        search = _Search(plan=plan, view=_view(plan, part), columns=_key_columns(plan), keys=keys)
        wanted = may_hold(search.view, search.columns, values)
        if among is not None:
            only = np.zeros(len(wanted), np.bool_)
            only[list(among)] = True
            wanted &= only
        numbers = np.flatnonzero(wanted)
        files = search.view.files.many(numbers)
        self._check_room(plan, files)
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="keys") as pool:
            found = list(pool.map(partial(self._in_file, search), numbers.tolist(), files))
        return Cold.of(found)

    def live(self, plan: ReadPlan, cold: Cold) -> NDArray[np.bool_]:
        """Which rows of *cold* no delete file hides. Raises: as the port."""
        found = np.ones(len(cold), np.bool_)
        part = _batch_part(plan)
        numbers = np.unique(cold.files)
        if part is not None and len(numbers):
            view = _view(plan, part)
            for number, file in zip(numbers.tolist(), view.files.many(numbers), strict=True):
                mine = np.flatnonzero(cold.files == number)
                found[mine] = _is_live(plan, view, file, cold.places[mine])
        return found

    def _check_room(self, plan: ReadPlan, files: Sequence[LakeFile]) -> None:
        needed = ROW_BYTES * sum(file.stored for file in files)
        if needed > self._indexes.bytes_max:
            raise CutOverLimits(
                f"{plan.table}: the keys of {len(files):,} files of the batch view, which may have rows of the newest "
                f"versions, take {needed:,} bytes; there is room for {self._indexes.bytes_max:,}"
            )

    def _in_file(self, search: _Search, number: int, file: LakeFile) -> Cold:
        index = self._indexes.get(f"{file.path}, keys {search.kind}", partial(self._made, search, file))
        one, other = matches(search.keys, index.keys)
        places = index.places[other].astype(np.int64)
        return Cold(
            keys=search.keys[:, one],
            files=np.full(len(one), number),
            places=places,
            live=_is_live(search.plan, search.view, file, places),
            partitions=index.partitions[other].astype(np.int64),
        )

    def _made(self, search: _Search, file: LakeFile) -> KeyIndex:
        """Of all rows that are stored in *file*."""
        columns = search.columns
        schema = pa.schema([*(column.arrow.with_nullable(True) for column in columns), pa.field(PARTITION, pa.int32())])
        asked = [LakeColumn(name=c.name, field_id=c.field_id, type=c.type) for c in columns]
        query = _query(search.plan, [*asked, LakeColumn(name=PARTITION, field_id=None)])
        keys, partitions = [np.empty((2, 0), np.uint64)], [np.empty(0, np.int64)]
        with opened_file(search.view, file, query) as opened:
            for group in opened.fragment.row_groups:
                rows = opened.fragment.subset(row_group_ids=[group.id]).to_table(columns=opened.columns)
                found = conformed(opened.shaped(rows), schema)
                keys.append(self._hasher.of(found.columns[:-1]))
                partitions.append(int_column(found, PARTITION))
        return KeyIndex.of(np.concatenate(keys, axis=1), np.concatenate(partitions))


def _batch_part(plan: ReadPlan) -> LakePart | None:
    return next((part for part in plan.lake if part.view == "batch"), None)


def _key_columns(plan: ReadPlan) -> list[ReadColumn]:
    known = table_columns(plan)
    return [known[name] for name in plan.key]


def _query(plan: ReadPlan, columns: Sequence[LakeColumn] = ()) -> LakeQuery:
    return LakeQuery(table=plan.table, version=plan.version, ranges={}, columns=columns)


def _view(plan: ReadPlan, part: LakePart) -> PinnedView:
    with named_errors(_query(plan), part.metadata):
        return pinned(part.metadata)


def _is_live(plan: ReadPlan, view: PinnedView, file: LakeFile, places: Positions) -> NDArray[np.bool_]:
    """Which of the rows at *places* of *file* its delete file does not hide."""
    if file.deletes is None or not len(places):
        return np.ones(len(places), np.bool_)

    def read() -> Positions:
        hidden = view.hidden(file)
        assert hidden is not None
        return hidden

    with named_errors(_query(plan), file.path):
        hidden = KEPT.get(file.deletes.path, read, kind="positions", weigh=lambda found: int(found.nbytes) + 64)
    at = np.minimum(np.searchsorted(hidden, places), len(hidden) - 1)
    return hidden[at] != places if len(hidden) else np.ones(len(places), np.bool_)
