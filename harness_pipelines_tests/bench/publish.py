"""What the boundary commit costs, and whether it stays so cheap after many moves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DataFile
from pyiceberg.types import LongType

import harness_pipelines as hp
from harness_pipelines.lakes.iceberg.read.scan import staged_file
from harness_pipelines.ports.lake import Staged
from harness_pipelines.ports.ledger import MoveDraft
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.moves import Move
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.tier.sources import Attempt
from harness_pipelines.stages.tier.tier import publish
from harness_pipelines_tests.bench.base import Figure, Run
from harness_pipelines_tests.bench.records import PARTITIONS

ROWS = 100  #: of each partition in each move
WINDOW = 100


def measure(run: Run) -> Sequence[Figure]:
    """Time 1,500 publishes at default retention; each references one new file per partition.

    No Spark: every move is planned, gets its branch, and is published with files that are described as the ones of
    a template were. A publish reads and writes manifests and metadata; it never opens a data file.
    """
    moves = run.size(1_500, 300)
    run.say(f"publish: {moves:,} boundary commits")
    table = run.table(run.topic(), buffer="none")
    stores = run.harness.stores
    claim = stores.ledger.claim(table.row, Stage.TIER, shard=0, holder=str(uuid4()), lease=timedelta(minutes=15))
    assert claim is not None
    try:
        took_s = _publishes(table, claim, moves)
    finally:
        stores.ledger.release(claim)
    first, last = float(np.median(took_s[:WINDOW])), float(np.median(took_s[-WINDOW:]))
    run.note("publish.first_100_p50", first, "s")
    run.note("publish.p99", float(np.percentile(took_s, 99)), "s")
    return [
        Figure(figure="publish.p50", value=last, unit="s", goal=0.06, sense="<="),
        Figure(figure="publish.last_to_first", value=last / first, unit="x", goal=1.5, sense="<="),
    ]


def _publishes(table: hp.Table, claim: Claim, moves: int) -> list[float]:
    stores = table.harness.stores
    head = stores.ledger.head(table.row)
    files = Files.of(table, head, rows=ROWS)
    took_s = []
    for number in range(moves):
        move = stores.ledger.plan_move(claim, draft(table, head, number, rows=ROWS))
        stores.lake.make_branch(table.row, move, head.stream)
        attempt = Attempt(staged=files.of_move(move))
        began = time.monotonic()
        head = publish(stores, table.row, claim, move, attempt)
        took_s.append(time.monotonic() - began)
    return took_s


def draft(table: hp.Table, head: Version, number: int, *, rows: int) -> MoveDraft:
    """The *number*-th of equal moves, *rows* of each partition."""
    return MoveDraft(
        stage=Stage.TIER,
        shard=0,
        lo=dict.fromkeys(range(PARTITIONS), number * rows),
        hi=dict.fromkeys(range(PARTITIONS), (number + 1) * rows),
        base_version=head.version,
        schema_version=table.row.schema_version,
        trigger="rows",
    )


@dataclass(frozen=True, slots=True)
class Files:
    """Descriptions of data files, made from those of real ones."""

    templates: Mapping[int, DataFile]  #: by partition
    offset_id: int

    @classmethod
    def of(cls, table: hp.Table, head: Version, *, rows: int) -> Files:
        """Write one real file per partition with *rows* rows."""
        view = table.harness.stores.lake.load(table.row, head.stream.metadata)
        table_of_rows = _rows(rows).cast(view.schema().as_arrow().remove_metadata(), safe=True)
        made = _dataframe_to_data_files(view.metadata, table_of_rows, view.io)
        return cls({int(file.partition[0]): file for file in made}, view.schema().find_field("_kafka_offset").field_id)

    def originals(self) -> list[str]:
        """Paths of the real files, in the order of `of_move`."""
        return [self.templates[partition].file_path for partition in sorted(self.templates)]

    def of_move(self, move: Move, *, each: int = 1) -> Staged:
        """*each* files of each partition, which share the move's offsets."""
        files = tuple(self._file(move, p, number, each) for p in sorted(self.templates) for number in range(each))
        size = sum(file.file_size_in_bytes for file in files)
        found = tuple(staged_file(file, low=0, high=2**63 - 1) for file in files)
        return Staged(files=found, rows=sum(file.stored for file in found), bytes=size, written=files)

    def _file(self, move: Move, partition: int, number: int, of: int) -> DataFile:
        file = copy(self.templates[partition])
        file._data = list(file._data)
        folder = file.file_path.rpartition("/")[0]
        low, span = move.lo[partition], move.hi[partition] - move.lo[partition]
        first, end = low + span * number // of, low + span * (number + 1) // of
        file[1] = f"{folder}/{move.move_id:08}-{partition}-{number}.parquet"
        file[10] = {**file.lower_bounds, self.offset_id: to_bytes(LongType(), first)}
        file[11] = {**file.upper_bounds, self.offset_id: to_bytes(LongType(), end - 1)}
        return file


def _rows(rows: int) -> pa.Table:
    """*rows* rows of each partition, with all columns of the view."""
    count, now = rows * PARTITIONS, datetime.now(UTC)
    ids = list(range(count))
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array(ids, pa.int32()),
            "amount": pa.array(ids, pa.decimal128(12, 2)),
            "status": pa.array(["shipped"] * count),
            "note": pa.array([f"order {i}" for i in ids]),
            "at": pa.array([now] * count, pa.timestamp("us", "UTC")),
            "_kafka_partition": pa.array([i % PARTITIONS for i in ids], pa.int32()),
            "_kafka_offset": pa.array([i // PARTITIONS for i in ids], pa.int64()),
            "_kafka_timestamp": pa.array([now] * count, pa.timestamp("us", "UTC")),
            "_op": pa.array(["c"] * count),
            "_schema_version": pa.array([1] * count, pa.int32()),
        }
    )
