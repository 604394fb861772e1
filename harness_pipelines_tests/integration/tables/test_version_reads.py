"""A version that is asked for by its number shows the same rows for ever, the head too, by every route."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from pyspark.sql.types import Row

import harness_pipelines as hp
from harness_pipelines_tests.faults.conftest import MakeRig
from harness_pipelines_tests.integration.tables.test_otree import merged, taken
from harness_pipelines_tests.keyed import NumbersRig
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import ALL, COORDINATES, TableRig

NAMES = ["id", *COORDINATES]
LOOKS = 15  #: reads of one version while everything moves


def of_rows(rows: list[Row]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in (*COORDINATES, "id")) for row in rows)


def routes(rig: TableRig, version: int) -> dict[str, Callable[[], Any]]:
    """Every way to the rows of *version*; those that stream or aggregate are brought to the same form."""
    spark = rig.stores.spark()

    def source() -> Any:
        rig.harness.register_spark(spark)
        frame = (
            spark.read.format("harness")
            .option("table", rig.name)
            .option("at", str(version))
            .option("columns", ",".join(NAMES))
            .load()
        )
        return of_rows(frame.collect())

    def reader() -> Any:
        with rig.table.reader(at=version, columns=["id", *COORDINATES]) as batches:
            return Counter(tuple(row[name] for name in (*COORDINATES, "id")) for b in batches for row in b.to_pylist())

    def plan() -> Any:
        made = rig.table.plan(at=version)
        rig.table.release(made)
        return made.bounds

    def changes(**options: Any) -> Counter[tuple[Any, ...]]:
        found = rig.table.changes(1, version, **options)
        return Counter(zip(*(found.column(name).to_pylist() for name in (*COORDINATES, "id")), strict=True))

    return {
        "read": lambda: rig.read(at=version),
        "read with a limit above all": lambda: rig.read(at=version, limit=10**6),
        "read with the tail": lambda: rig.read(at=version, tail=True),
        "reader": reader,
        "plan": plan,
        "changes": changes,
        "spark": lambda: of_rows(rig.table.to_spark(spark, at=version, columns=NAMES).collect()),
        "sample": lambda: rig.table.sample(0.5, at=version).num_rows,
        "source": source,
    }


def test_reads_of_the_head_version_give_the_same_rows_while_everything_moves(make_rig: MakeRig):
    rig = make_rig(views="both", tier={"max_age": "1s"})
    taken(rig, 20)
    rig.produce(5)
    rig.ingest()
    merged(rig)
    rig.produce(5)
    rig.ingest()  # buffered since the head was published
    version = rig.stores.ledger.head(rig.table.row).version
    ways = routes(rig, version)
    first = {name: way() for name, way in ways.items()}
    assert first["read"].total() == 2 * 25, "what was buffered when it was published, and nothing since"
    assert first["read"] == first["spark"] == first["reader"] == first["read with the tail"]
    assert rig.read().total() == 2 * 30, "without a number the newest rows are shown"

    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.05):
            rig.produce(2)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with rig.working(ALL):
            for _ in range(LOOKS):
                assert rig.read(at=version) == first["read"]
            wait_until(
                lambda: rig.stores.ledger.head(rig.table.row).version > version + 1,
                "the table moved on",
                deadline_s=120,
            )
            for name, way in ways.items():
                assert way() == first[name], name
    finally:
        ended.set()
        producer.join()


def test_a_row_by_its_key_is_that_of_the_version_that_was_asked_for(harness: hp.Harness, kafka: KafkaRig):
    rig = NumbersRig(harness, kafka)
    rig.put_numbers({1: 10, 2: 20})
    rig.ingest()
    rig.tier()
    version = rig.stores.ledger.head(rig.table.row).version

    rig.put_numbers({1: 11})
    rig.delete_numbers(2)
    rig.ingest()

    assert rig.table.get_many([1, 2], at=version) == [{"id": 1, "n": 10}, {"id": 2, "n": 20}]
    assert rig.table.get(1, at=version) == {"id": 1, "n": 10}
    assert rig.table.get_many([1, 2]) == [{"id": 1, "n": 11}, None]
