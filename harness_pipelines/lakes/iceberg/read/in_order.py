"""Read the stream view in offset order, file by file, in batches with bounded memory.

A file lies in offset order within each of its Kafka partitions, so nothing is sorted; only files whose offsets overlap
(a replay leaves such until they are compacted) are read together. A file is taken once it is the next one in each of
its partitions; of those that are, the one with the oldest first record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.types import LongType

from harness_pipelines.errors import HarnessError
from harness_pipelines.lakes.iceberg.read.scan import (
    PinnedView,
    chosen_places,
    named_errors,
    opened_file,
    pinned,
    read_file,
)
from harness_pipelines.ports.errors import LakeFileBroken
from harness_pipelines.ports.lake import LakeFile, OrderedRows
from harness_pipelines.protocol.coordinates import OFFSET, PARTITION, TIMESTAMP
from harness_pipelines.protocol.lake.order import offset_order
from harness_pipelines.protocol.reading.queries import LakeColumn, LakeQuery, LakeStats

BATCH_ROWS = 65_536
BATCHES_AHEAD = 2  #: decoded by Arrow's threads while the caller works on an earlier one


class NotInOrder(HarnessError):
    """The view has no offset order: its files mix Kafka partitions."""


def scan_in_order(metadata: str, query: LakeQuery, stats: LakeStats) -> Iterator[OrderedRows]:
    """What `scan` gives, strictly in offset order within each partition; *query* asks for `_kafka_offset` too.

    Raises: NotInOrder, LakeFileMissing, LakeFileBroken, LakeUnreadable.
    """
    with named_errors(query, metadata):
        view = pinned(metadata)
    places = chosen_places(view, query, stats)
    chosen = view.files.many(places)
    for file in chosen:
        if file.runs is None:
            raise NotInOrder(
                f"{query.table}: {file.path} mixes partitions, so it has no offset order: "
                "`views: both` keeps a view that has"
            )
    timestamp_id = view.schema.find_field(TIMESTAMP).field_id
    firsts = (view.files.lower(timestamp_id, place) for place in places.tolist())
    begins = {file.path: _time(first) for file, first in zip(chosen, firsts, strict=True)}
    for together in by_time(chosen, begins):
        stats.files_opened += len(together)
        reached: dict[int, int] = {}
        for rows in filter(len, _tables(view, together, query)):
            stats.rows_read += rows.num_rows
            for partition, mine in _by_partition(rows, together):
                reached[partition] = _check_order(mine, reached.get(partition, -1), query, together[0])
                yield OrderedRows(partition=partition, rows=mine)


def _with_partition(query: LakeQuery, file: LakeFile) -> LakeQuery:
    """*query*, which asks for the partition too where *file* mixes several."""
    if file.extents is None or any(column.name == PARTITION for column in query.columns):
        return query
    return replace(query, columns=[*query.columns, LakeColumn(name=PARTITION, field_id=None)])


def _by_partition(rows: pa.Table, together: Sequence[LakeFile]) -> Iterator[tuple[int, pa.Table]]:
    """Runs of *rows*, of the files *together*, that are of one partition each."""
    if (partition := together[0].partition) is not None and len({file.partition for file in together}) == 1:
        yield partition, rows
        return
    partitions = rows.column(PARTITION).to_numpy()
    ends = [0, *(np.flatnonzero(partitions[1:] != partitions[:-1]) + 1).tolist(), len(partitions)]
    for low, high in pairwise(ends):
        yield int(partitions[low]), rows.slice(low, high - low)


def _time(bound: bytes | None) -> int:
    return 0 if bound is None else int(from_bytes(LongType(), bound))


def by_time(files: Sequence[LakeFile], begins: Mapping[str, int]) -> Iterator[list[LakeFile]]:
    """Files that are read together, in offset order within each partition, else those of the oldest records first.

    *begins* is the time of a file's first record, by path.
    """
    runs = [{run.partition: (run.low, run.high) for run in file.runs or ()} for file in files]
    ages = [(begins[file.path], min(found, default=0)) for file, found in zip(files, runs, strict=True)]
    for group in offset_order(runs, ages):
        yield [files[number] for number in group]


def _tables(view: PinnedView, together: list[LakeFile], query: LakeQuery) -> Iterator[pa.Table]:
    [file, *others] = together
    query = _with_partition(query, next((one for one in together if one.extents is not None), file))
    if others or file.deletes is not None:
        parts = [read_file(view, one, query) for one in together]
        # Those that a replay wrote have large strings.
        whole = pa.concat_tables(parts, promote_options="permissive")
        by = [OFFSET] if PARTITION not in whole.column_names else [PARTITION, OFFSET]
        yield whole.sort_by([(name, "ascending") for name in by])
    else:
        yield from _in_batches(view, file, query)


def _in_batches(view: PinnedView, file: LakeFile, query: LakeQuery) -> Iterator[pa.Table]:
    with opened_file(view, file, query) as opened:
        scanner = opened.scanner(batch_size=BATCH_ROWS, batch_readahead=BATCHES_AHEAD)
        for batch in scanner.to_batches():
            yield opened.shaped(pa.Table.from_batches([batch]))


def _check_order(rows: pa.Table, reached: int, query: LakeQuery, file: LakeFile) -> int:
    """The last offset of *rows* (not empty), once all are known to ascend from *reached*. Raises: LakeFileBroken."""
    offsets = rows.column(OFFSET).to_numpy()
    if offsets[0] <= reached or np.any(offsets[1:] <= offsets[:-1]):
        raise LakeFileBroken(
            f"{query.table}, version {query.version}: {file.path} is not in offset order; nothing more is returned"
        )
    return int(offsets[-1])
