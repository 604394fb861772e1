"""The bench of keyed tables: what a merge of upserts costs, against Spark's MERGE INTO of the same rows."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import harness_pipelines as hp
from harness_pipelines.engines.spark.session import catalog_options
from harness_pipelines.protocol.versions import Version
from harness_pipelines_tests.bench import keyed_reads, keyed_rounds
from harness_pipelines_tests.bench.base import Figure, Group, Run, timed
from harness_pipelines_tests.bench.keyed_table import FILES, digest, keyed_table

if TYPE_CHECKING:
    pass

CATALOG, NAMESPACE = "bench_peer", "bench"
MODES = {"copy_on_write": "copy-on-write", "merge_on_read": "merge-on-read"}
GOAL = 0.5  #: of MERGE INTO's time


def upserts(run: Run) -> Sequence[Figure]:
    """Merge batches of random keys, nine in ten of them known, and one of neighbouring keys."""
    ours, rng = keyed_table(run), random.Random(1)
    rows, large = ours.rows, run.size(100_000, 10_000)
    figures = []
    with ExitStack() as stack:
        peers = {mode: stack.enter_context(_peer(run, ours.table, MODES[mode])) for mode in MODES}
        for name, ids in (
            ("warm_up", _random(rng, rows, 1_000)),
            ("1000", _random(rng, rows, 1_000)),
            ("neighbours", list(range(rows // 2, rows // 2 + 1_000))),
            ("large", _random(rng, rows, large)),
        ):
            run.say(f"keyed: {len(ids):,} upserts ({name})")
            ours.put(ids)
            before = ours.head
            merged = ours.merge()
            theirs = {mode: peer.merge(before, ours.head) for mode, peer in peers.items()}
            for mode, peer in peers.items():
                assert ours.digest() == peer.digest(), f"{name}: the tables differ ({mode})"
            if name == "warm_up":
                continue
            run.note(f"upserts.{name}.seconds", merged.seconds, "s")
            run.note(f"upserts.{name}.written", merged.written / 2**20, "MiB")
            for mode, (seconds, written) in theirs.items():
                run.note(f"upserts.{name}.{mode}_seconds", seconds, "s")
                run.note(f"upserts.{name}.{mode}_written", written / 2**20, "MiB")
                figures.append(
                    Figure(
                        figure=f"upserts.{name}.of_{mode}",
                        value=merged.seconds / seconds,
                        unit="x",
                        goal=GOAL,
                        sense="<=",
                    )
                )
    return figures


def _random(rng: random.Random, rows: int, count: int) -> list[int]:
    return sorted({*rng.sample(range(rows), count * 9 // 10), *range(rows, rows + count // 10)})


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
        merge = (
            f"MERGE INTO {self.name} t USING ({source}) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        took_s = timed(lambda: spark.sql(merge))
        summary = spark.sql(f"SELECT summary FROM {self.name}.snapshots ORDER BY committed_at DESC LIMIT 1").first()
        assert summary is not None
        return took_s, int(summary[0]["added-files-size"])

    def digest(self) -> tuple[int, int]:
        return digest(self.run.harness.stores.spark().table(self.name))


@contextmanager
def _peer(run: Run, table: hp.Table, mode: str) -> Iterator[_Peer]:
    stores = run.harness.stores
    spark = stores.spark()
    for word, given in catalog_options(stores.dsn, warehouse=f"{stores.warehouse}/bench_peer").items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.{word}" if word else f"spark.sql.catalog.{CATALOG}", given)
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{NAMESPACE}")
    name = f"{CATALOG}.{NAMESPACE}.t_{uuid.uuid4().hex[:10]}"
    head = stores.ledger.head(table.row)
    rows = spark.read.format("iceberg").load(head.views["batch"].metadata).drop("_sample")
    writer = rows.repartitionByRange(FILES, "at", "id").writeTo(name).using("iceberg")
    for word, given in (("write.merge.mode", mode), ("write.parquet.compression-codec", "zstd")):
        writer = writer.tableProperty(word, given)
    writer.create()
    try:
        yield _Peer(run, name)
    finally:
        for made in (name, f"{name}_changes"):
            spark.sql(f"DROP TABLE IF EXISTS {made} PURGE")


#: Groups of figures in the order in which they are measured; what --only names.
FIGURES: Mapping[str, Group] = {
    "upserts": upserts,
    "rounds": keyed_rounds.measure,
    "reads": keyed_reads.union,
    "get": keyed_reads.get,
}
