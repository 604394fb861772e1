"""A table that is filled through the stores' ports, without Kafka and Spark, so that its sizes are exact and quick.

A cut does not depend on who moved the rows: what is here commits to the buffer, tiers and merges as a worker does. The
rows are those of `bench.records`, made by whole columns.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import harness_pipelines as hp
from harness_pipelines.drivers.files import listed
from harness_pipelines.ports.buffer import BufferWriter
from harness_pipelines.ports.decoded import DecodedRange, with_coordinates
from harness_pipelines.ports.ledger import Boundary, MoveDraft, Swap
from harness_pipelines.ports.source import TopicIdentity
from harness_pipelines.protocol.claims import Claim, Stage
from harness_pipelines.protocol.cuts import cut_folder
from harness_pipelines.protocol.versions import Version
from harness_pipelines.spec.types import iceberg_fields
from harness_pipelines_tests.bench.base import NAMESPACE, Run
from harness_pipelines_tests.bench.records import COLUMNS, PARTITIONS

LEASE = timedelta(hours=1)
AT_ONCE = 100_000  #: rows of one commit to the buffer
MARCH_US = 1_772_323_200_000_000  #: the first of March 2026
SENT_MS = 1_774_000_000_000  #: Kafka's timestamp of every record
STATUS = ("placed", "paid", "shipped", "returned")
Ids = NDArray[np.int64]


def columns_of(ids: Ids, rounds: Ids) -> pa.Table:
    """The columns of the records *ids* as `records.value` has them; in a later round note and amount are others."""
    whole = (ids * 31 % 9_000 + 100 + rounds) * 100 + ids % 100
    second = ids // 86_400 % 28 * 86_400 + ids // 3600 % 24 * 3600 + ids // 60 % 60 * 60 + ids % 60
    order = pc.binary_join_element_wise("order", _text(ids), " ")
    again = pc.binary_join_element_wise("round", _text(rounds), "of", _text(ids), " ")
    return pa.table(
        {
            "id": pa.array(ids),
            "customer": pa.array((ids * 7919 % 100_000).astype(np.int32)),
            "amount": _cents(whole),
            "status": pa.array(STATUS).take(pa.array(ids % len(STATUS))),
            "note": pc.if_else(pa.array(rounds > 0), again, order),
            "at": pa.array(MARCH_US + second * 1_000_000 + ids * 997 % 1_000_000).cast(pa.timestamp("us", "UTC")),
        }
    )


def _text(numbers: Ids) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _cents(whole: Ids) -> pa.Array:
    """Hundredths as decimals: Arrow has them as integers of 128 bits, the lower half first."""
    halves = np.zeros((len(whole), 2), np.int64)
    halves[:, 0] = whole
    return pa.Decimal128Array.from_buffers(pa.decimal128(12, 2), len(whole), [None, pa.py_buffer(halves)])


class Filled:
    """A table, and where the offsets of each of its partitions end; id i is in partition ``i % PARTITIONS``."""

    def __init__(self, run: Run, **spec: Any) -> None:
        self.harness = run.harness
        name = f"{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
        wanted = hp.TableSpec.model_validate(
            {
                "table": name,
                "topic": "none",
                "columns": COLUMNS,
                "layout": {"columns": ["id"], "sample": 0},
                **spec,
            }
        )
        stores = run.harness.stores
        views, fields = stores.lake.make_views(wanted, iceberg_fields(wanted.columns))
        topic = TopicIdentity(
            cluster_id="bench", topic=wanted.topic, topic_id=uuid.uuid4().hex, partitions=tuple(range(PARTITIONS))
        )
        self.ends = dict.fromkeys(range(PARTITIONS), 0)
        self.row = stores.ledger.create_table(wanted, topic, starts=self.ends, fields=fields, views=views)
        self.rows = self._round = 0  #: the next id of an append table; the round of the newest versions
        run.drops(hp.Table(run.harness, self.row))
        run.keep(closing(self))
        self._claim: Claim | None = None
        self._writer: BufferWriter | None = None

    @property
    def name(self) -> str:
        return self.row.name

    @property
    def head(self) -> Version:
        return self.harness.stores.ledger.head(self.row)

    # -- the buffer -------------------------------------------------------------------------------------------

    def ingest(self, count: int) -> None:
        """The next *count* records."""
        ids = np.arange(self.rows, self.rows + count)
        self._put(ids, np.zeros(count, np.int64))
        self.rows += count

    def put(self, ids: Ids) -> None:
        """Newer versions of *ids*."""
        self._round += 1
        self._put(ids, np.full(len(ids), self._round))

    def index(self) -> None:
        """Give the open segment its index, as ingest does once it has caught up."""
        segments = self.harness.stores.segments
        segments.index(self.row, segments.open_segment(self.row))

    def close(self) -> None:
        """End ingest: a table is not dropped while it is claimed."""
        if self._writer is not None and self._claim is not None:
            self._writer.close()
            self.harness.stores.ledger.release(self._claim)
        self._writer = self._claim = None

    def _put(self, ids: Ids, rounds: Ids) -> None:
        for low in range(0, len(ids), AT_ONCE):
            part = slice(low, low + AT_ONCE)
            self._commit(ids[part], rounds[part])

    def _commit(self, ids: Ids, rounds: Ids, *, is_loaded: bool = False) -> None:
        """Rows of one commit; of those that the lake has only the offsets, as of records that a filter leaves out."""
        taken = []
        for p, mine in self._of_partitions(ids):
            rows = self._rows(ids[mine], rounds[mine], partition=p)
            low, count = self.ends[p], rows.num_rows
            taken.append(
                DecodedRange(
                    partition=p,
                    low=low,
                    high=low + count,
                    rows=rows.slice(0, 0) if is_loaded else rows,
                    refused=[],
                    leader_epoch=None,
                    filtered=count if is_loaded else 0,
                )
            )
        segment = self.harness.stores.segments.open_segment(self.row)
        self._writing.commit(segment, taken, confirm=lambda: None)
        self.ends |= {one.partition: one.high for one in taken}

    @property
    def _writing(self) -> BufferWriter:
        if self._writer is None:
            claim = self._claim = self._claimed(Stage.INGEST)
            self._writer = self.harness.stores.buffer_writer(self.row, lambda: claim)
        return self._writer

    def _claimed(self, stage: Stage) -> Claim:
        claim = self.harness.stores.ledger.claim(self.row, stage, shard=0, holder=str(uuid.uuid4()), lease=LEASE)
        assert claim is not None, f"{stage} of {self.name} is claimed"
        return claim

    @staticmethod
    def _of_partitions(ids: Ids) -> Iterator[tuple[int, NDArray[np.intp]]]:
        for p in range(PARTITIONS):
            if len(mine := np.flatnonzero(ids % PARTITIONS == p)):
                yield p, mine

    def _rows(self, ids: Ids, rounds: Ids, *, partition: int) -> pa.Table:
        """The next rows of a partition, as ingest decodes them."""
        rows = columns_of(ids, rounds)
        if self.row.spec.key:
            rows = rows.append_column("_op", pa.repeat(pa.scalar("put"), len(ids)))
        low = self.ends[partition]
        return with_coordinates(
            rows,
            partition=partition,
            offsets=pa.array(np.arange(low, low + len(ids))),
            timestamps_ms=pa.array(np.full(len(ids), SENT_MS)),
            columns=self.row.spec.columns,
        )

    # -- the lake ---------------------------------------------------------------------------------------------

    def load(self, ids: Ids, *, files: int, rounds: Ids | None = None) -> None:
        """Rows of new *ids*, ascending, in both views, and as *files* files in the batch view. The buffer has none."""
        of = np.zeros(len(ids), np.int64) if rounds is None else rounds
        for part in np.array_split(np.arange(len(ids)), files):
            rows = self._lake_rows(ids[part], of[part])
            self._commit(ids[part], of[part], is_loaded=True)
            self._move(Stage.TIER, rows)
            self._move(Stage.OTREE, rows.sort_by("id"))
        self.rows = int(ids[-1]) + 1

    def tier(self, count: int) -> None:
        """The next *count* records, in the stream view alone."""
        ids, rounds = np.arange(self.rows, self.rows + count), np.zeros(count, np.int64)
        rows = self._lake_rows(ids, rounds)
        self._commit(ids, rounds, is_loaded=True)
        self._move(Stage.TIER, rows)
        self.rows += count

    def _lake_rows(self, ids: Ids, rounds: Ids) -> pa.Table:
        parts = [self._rows(ids[mine], rounds[mine], partition=p) for p, mine in self._of_partitions(ids)]
        rows = pa.concat_tables(parts)
        if "_op" not in rows.column_names:
            rows = rows.append_column("_op", pa.repeat(pa.scalar("put"), rows.num_rows))
        number = pa.scalar(self.row.schema_version, pa.int32())
        return rows.append_column("_schema_version", pa.repeat(number, rows.num_rows))

    def _move(self, stage: Stage, rows: pa.Table) -> None:
        """Move *rows*, all that lies above the view of *stage*, as a worker does."""
        stores, row, head = self.harness.stores, self.row, self.head
        base = head.views[head.tiered if stage is Stage.TIER else "batch"]
        lo = {p: b.stream_hi if stage is Stage.TIER else b.batch_hi for p, b in head.bounds.items()}
        claim = self._claimed(stage)
        try:
            draft = MoveDraft(
                stage=stage, shard=0, lo=lo, hi=self.ends, base_version=head.version, schema_version=row.schema_version,
                trigger="bench",
            )  # fmt: skip
            move = stores.ledger.plan_move(claim, draft)
            stores.lake.make_branch(row, move, base)
            stores.lake.append_to_branch(row, move, rows)
            staged = stores.lake.staged(row, move, rows=rows.num_rows)

            def build(on: str) -> Swap:
                return stores.lake.build_append(row, move, staged, base=on, keep=50)

            stores.ledger.publish(row, Boundary(claim=claim, move=move, rows=rows.num_rows, bytes=rows.nbytes), build)
        finally:
            stores.ledger.release(claim)

    # -- cuts -------------------------------------------------------------------------------------------------

    def cut_bytes(self) -> int:
        """Of all files of cuts: expire, which deletes some, does not run."""
        return sum(one.bytes for one in listed(cut_folder(self.row.spec.name, self.head.stream.metadata)))

    def buffered_bytes(self) -> int:
        """What Postgres holds of the table's records, without its index."""
        return sum(int(one["bytes"]) for one in self.harness.stores.segments.sizes(self.row))
