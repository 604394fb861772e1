"""The keyed table of the bench: loaded once, then its keys are put again and again."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree.otree import otree_once
from harness_pipelines_tests.bench.base import Run, timed
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog, value
from harness_pipelines_tests.rig import INGEST, TIER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES = 16
BATCHES = 50_000  #: records that are produced at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What it took to bring everything to the batch view."""

    seconds: float  #: of the merges
    written: int  #: bytes, by the merges
    relayout_s: float  #: of relayouts that came in between
    relaid: int  #: bytes, by these


@dataclass
class Keyed:
    """The table, and its producer."""

    run: Run
    table: hp.Table
    topic: str
    rows: int  #: keys 0, 1, ... that were loaded
    _round: int = field(default=0)

    @property
    def head(self) -> Version:
        return self.run.harness.stores.ledger.head(self.table.row)

    @property
    def batch(self) -> str:
        """The metadata file of the batch view."""
        return self.head.views["batch"].metadata

    def send(self, ids: Sequence[int]) -> None:
        """New values of *ids* in the buffer."""
        self._round += 1
        again = b'"note":"round %d of' % self._round
        at: dict[int, list[bytes | None]] = defaultdict(list)
        for number in ids:
            at[number % PARTITIONS].append(value(number).replace(b'"note":"order', again))
        for partition, values in at.items():
            for low in range(0, len(values), BATCHES):
                self.run.kafka.produce(self.topic, partition, values[low : low + BATCHES])
        self.run.work(self.table, INGEST)

    def put(self, ids: Sequence[int]) -> None:
        """New values of *ids* in the stream view."""
        self.send(ids)
        self.run.work(self.table, TIER)

    def merge(self) -> Merged:
        """Moves of otree until the batch view has everything."""
        stores = self.run.harness.stores
        claim = stores.ledger.claim(
            self.table.row, Stage.OTREE, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=15)
        )
        assert claim is not None
        seconds, written = {True: 0.0, False: 0.0}, {True: 0, False: 0}
        try:
            while any(b.batch_hi < b.stream_hi for b in self.head.bounds.values()):
                before = self.head
                took_s = timed(lambda: otree_once(stores, self.table.row, claim, trigger="bench"))
                is_merge = self.head.bounds != before.bounds
                seconds[is_merge] += took_s
                written[is_merge] += 0 if self.head.version == before.version else added_bytes(self.batch)
        finally:
            stores.ledger.release(claim)
        return Merged(
            seconds=seconds[True], written=written[True], relayout_s=seconds[False], relaid=written[False]
        )  # fmt: skip

    def digest(self) -> tuple[int, int]:
        return digest(self.run.harness.stores.spark().read.format("iceberg").load(self.batch))


def keyed_table(run: Run) -> Keyed:
    """The table with all rows in its batch view; made by the first who asks."""
    if "keyed" not in run.shared:
        rows = run.size(2_000_000, 100_000)
        run.say(f"keyed: {rows:,} rows are loaded")
        topic = run.topic()
        table = run.table(topic, key=["id"], layout={"columns": ["at", "id"], "regions": FILES})
        produce_backlog(run.harness.settings, topic, count=rows)
        made = Keyed(run, table, topic, rows)
        made.put(())
        made.merge()
        run.shared["keyed"] = made
    found = run.shared["keyed"]
    assert isinstance(found, Keyed)
    return found


def added_bytes(metadata: str) -> int:
    """Of the files that the newest snapshot brought."""
    snapshot = StaticTable.from_metadata(metadata).metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["added-files-size"] or 0)


def digest(rows: DataFrame) -> tuple[int, int]:
    """Number of rows, and a sum of hashes that tells which they are."""
    from pyspark.sql import functions as f

    found = rows.agg(f.count(f.lit(1)), f.sum(f.hash("id", "amount", "note", "_kafka_offset").cast("long"))).first()
    assert found is not None
    return int(found[0]), int(found[1])
