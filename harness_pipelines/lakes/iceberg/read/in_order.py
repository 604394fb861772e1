"""Read the stream view in offset order, file by file, in batches with bounded memory.

Each file has one Kafka partition and lies in offset order, so nothing is sorted; only files whose offsets overlap (a
replay leaves such until they are compacted) are read together. Files of several partitions are taken by the time of
their first records.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

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
from harness_pipelines.protocol.coordinates import OFFSET, TIMESTAMP
from harness_pipelines.protocol.reading.queries import LakeQuery, LakeStats

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
        if file.partition is None:
            raise NotInOrder(
                f"{query.table}: {file.path} mixes partitions, so it has no offset order: "
                "`views: both` keeps a view that has"
            )
    timestamp_id = view.schema.find_field(TIMESTAMP).field_id
    firsts = (view.files.lower(timestamp_id, place) for place in places.tolist())
    begins = {file.path: _time(first) for file, first in zip(chosen, firsts, strict=True)}
    for together in _by_time(chosen, begins):
        stats.files_opened += len(together)
        reached = -1
        for rows in filter(len, _tables(view, together, query)):
            reached = _check_order(rows, reached, query, together[0])
            stats.rows_read += rows.num_rows
            yield OrderedRows(partition=together[0].partition or 0, rows=rows)


def _time(bound: bytes | None) -> int:
    return 0 if bound is None else int(from_bytes(LongType(), bound))


def _by_time(files: list[LakeFile], begins: Mapping[str, int]) -> Iterator[list[LakeFile]]:
    """Files that are read together, in offset order within each partition, else those of the oldest records first.

    *begins* is the time of a file's first record, by path.
    """
    left: defaultdict[int, deque[list[LakeFile]]] = defaultdict(deque)
    for file in files:
        groups = left[file.partition or 0]
        if groups and file.low < max(other.high for other in groups[-1]):
            groups[-1].append(file)
        else:
            groups.append([file])

    def age(partition: int) -> tuple[int, int]:
        return begins[left[partition][0][0].path], partition

    heads = [age(partition) for partition in left]
    heapq.heapify(heads)
    while heads:
        _, partition = heapq.heappop(heads)
        yield left[partition].popleft()
        if left[partition]:
            heapq.heappush(heads, age(partition))


def _tables(view: PinnedView, together: list[LakeFile], query: LakeQuery) -> Iterator[pa.Table]:
    [file, *others] = together
    if others or file.deletes is not None:
        parts = [read_file(view, one, query) for one in together]
        # Those that a replay wrote have large strings.
        yield pa.concat_tables(parts, promote_options="permissive").sort_by(OFFSET)
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
