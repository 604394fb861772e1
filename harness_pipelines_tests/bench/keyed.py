"""The bench of keyed tables: what a merge of upserts costs, against Spark's MERGE INTO of the same rows."""

from __future__ import annotations

import random
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from pyiceberg.table import StaticTable

import harness_pipelines as hp
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.versions import Version
from harness_pipelines.stages.otree import otree_once
from harness_pipelines.stores.spark import catalog_options
from harness_pipelines_tests.bench.base import Figure, Group, Run
from harness_pipelines_tests.bench.records import PARTITIONS, produce_backlog, value
from harness_pipelines_tests.rig import INGEST, TIER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CATALOG, NAMESPACE = "bench_peer", "bench"
FILES = 16  #: of either table
BATCHES = 50_000  #: records that are produced at once
GOAL = 0.5  #: of MERGE INTO's time


def upserts(run: Run) -> Sequence[Figure]:
    """Merge batches of random keys, nine in ten of them known, and one of neighbouring keys."""
    rows, rng = run.size(1_000_000, 100_000), random.Random(1)
    large = run.size(100_000, 10_000)
    run.say(f"keyed: {rows:,} rows are loaded")
    topic = run.topic()
    table = run.table(topic, key=["id"], layout={"columns": ["at", "id"], "regions": FILES})
    produce_backlog(run.harness.settings, topic, count=rows)
    ours = _Ours(run, table, topic)
    ours.to_stream()
    ours.merge()
    figures = []
    with _peer(run, table) as peer:
        for name, ids in (
            ("warm_up", _random(rng, rows, 1_000)),
            ("1000", _random(rng, rows, 1_000)),
            ("neighbours", list(range(rows // 2, rows // 2 + 1_000))),
            ("large", _random(rng, rows, large)),
        ):
            run.say(f"keyed: {len(ids):,} upserts ({name})")
            ours.put(ids)
            before = ours.head
            took_s, written = ours.merge()
            peer_s, peer_written = peer.merge(before, ours.head)
            assert ours.digest() == peer.digest(), f"{name}: the tables differ"
            if name == "warm_up":
                continue
            run.note(f"upserts.{name}.seconds", took_s, "s")
            run.note(f"upserts.{name}.merge_into_seconds", peer_s, "s")
            run.note(f"upserts.{name}.written", written / 2**20, "MiB")
            run.note(f"upserts.{name}.merge_into_written", peer_written / 2**20, "MiB")
            figures.append(
                Figure(figure=f"upserts.{name}.of_merge_into", value=took_s / peer_s, unit="x", goal=GOAL, sense="<=")
            )
    return figures


def _random(rng: random.Random, rows: int, count: int) -> list[int]:
    return sorted({*rng.sample(range(rows), count * 9 // 10), *range(rows, rows + count // 10)})


@dataclass
class _Ours:
    """The keyed table."""

    run: Run
    table: hp.Table
    topic: str
    _round: int = field(default=0)

    @property
    def head(self) -> Version:
        return self.run.harness.stores.ledger.head(self.table.row)

    def put(self, ids: Sequence[int]) -> None:
        """New values of *ids* in the stream view."""
        self._round += 1
        again = b'"note":"round %d of' % self._round
        at: dict[int, list[bytes | None]] = defaultdict(list)
        for number in ids:
            at[number % PARTITIONS].append(value(number).replace(b'"note":"order', again))
        for partition, values in at.items():
            for low in range(0, len(values), BATCHES):
                self.run.kafka.produce(self.topic, partition, values[low : low + BATCHES])
        self.to_stream()

    def to_stream(self) -> None:
        self.run.work(self.table, INGEST)
        self.run.work(self.table, TIER)

    def merge(self) -> tuple[float, int]:
        """One merge; seconds, and bytes written."""
        stores = self.run.harness.stores
        claim = stores.ledger.claim(
            self.table.row, Stage.OTREE, shard=0, holder=str(uuid.uuid4()), lease=timedelta(minutes=15)
        )
        assert claim is not None
        began = time.monotonic()
        try:
            assert otree_once(stores, self.table.row, claim, trigger="bench") is not None
        finally:
            stores.ledger.release(claim)
        took_s = time.monotonic() - began
        bounds = self.head.bounds.values()
        assert all(b.batch_hi == b.stream_hi for b in bounds), "a relayout came first"
        return took_s, _added_bytes(self.head.views["batch"].metadata)

    def digest(self) -> tuple[int, int]:
        return _digest(self.run.harness.stores.spark().read.format("iceberg").load(self.head.views["batch"].metadata))


@dataclass
class _Peer:
    """A plain Iceberg table with the same rows, in as many files, that MERGE INTO keeps up with the stream view."""

    run: Run
    name: str

    def merge(self, before: Version, after: Version) -> tuple[float, int]:
        """What the stream view has of the merge between the two versions; seconds, and bytes written."""
        from pyspark.sql import functions as f

        spark = self.run.harness.stores.spark()
        rows = spark.read.format("iceberg").load(after.stream.metadata)
        condition = f.lit(False)
        for p, bounds in after.bounds.items():
            offset = f.col("_kafka_offset")
            new = (offset >= before.bounds[p].batch_hi) & (offset < bounds.batch_hi)
            condition |= (f.col("_kafka_partition") == p) & new
        # Spark 4.1 cannot plan a MERGE from a view of a path, so its changes stand in a table too.
        changes = f"{self.name}_changes"
        rows.where(condition).writeTo(changes).using("iceberg").createOrReplace()
        newest = "row_number() OVER (PARTITION BY id ORDER BY _kafka_offset DESC) AS r"
        source = f"SELECT * EXCEPT (r) FROM (SELECT *, {newest} FROM {changes}) WHERE r = 1"
        began = time.monotonic()
        spark.sql(
            f"MERGE INTO {self.name} t USING ({source}) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        took_s = time.monotonic() - began
        summary = spark.sql(f"SELECT summary FROM {self.name}.snapshots ORDER BY committed_at DESC LIMIT 1").first()
        assert summary is not None
        return took_s, int(summary[0]["added-files-size"])

    def digest(self) -> tuple[int, int]:
        return _digest(self.run.harness.stores.spark().table(self.name))


@contextmanager
def _peer(run: Run, table: hp.Table) -> Iterator[_Peer]:
    stores = run.harness.stores
    spark = stores.spark()
    for word, given in catalog_options(stores.dsn, warehouse=f"{stores.warehouse}/bench_peer").items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.{word}" if word else f"spark.sql.catalog.{CATALOG}", given)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
    name = f"{CATALOG}.{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
    head = stores.ledger.head(table.row)
    rows = spark.read.format("iceberg").load(head.views["batch"].metadata).drop("_sample")
    writer = rows.repartitionByRange(FILES, "at", "id").writeTo(name).using("iceberg")
    for word, given in (("write.merge.mode", "copy-on-write"), ("write.parquet.compression-codec", "zstd")):
        writer = writer.tableProperty(word, given)
    writer.create()
    try:
        yield _Peer(run, name)
    finally:
        for made in (name, f"{name}_changes"):
            spark.sql(f"DROP TABLE IF EXISTS {made} PURGE")


def _added_bytes(metadata: str) -> int:
    snapshot = StaticTable.from_metadata(metadata).metadata.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    return int(snapshot.summary["added-files-size"] or 0)


def _digest(rows: DataFrame) -> tuple[int, int]:
    """Number of rows, and a sum of hashes that tells which they are."""
    from pyspark.sql import functions as f

    found = rows.agg(f.count(f.lit(1)), f.sum(f.hash("id", "amount", "note", "_kafka_offset").cast("long"))).first()
    assert found is not None
    return int(found[0]), int(found[1])


#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {"upserts": upserts}
