"""A table with records in every tier, and ways to damage it behind the harness's back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

import harness_pipelines as hp
from harness_pipelines.app.client import Harness
from harness_pipelines.app.table import Table
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.locations import normal
from harness_pipelines.stages.run.worker import Worker, WorkerOptions
from harness_pipelines_tests.lake_files import content, parquet, put
from harness_pipelines_tests.lake_files import rewrite as rewrite_file
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.rig import engine_of_test

from .flips import unnoted
from .scratch import Scratch, scratch

COLUMNS = {"id": {"type": "long", "required": True}, "price": "decimal(12,2)", "name": "string", "tags": "list<string>"}
LAKE, BUFFER, TAIL = 100, 50, 10  #: records per partition and tier; the third of each partition and tier is refused
ONLY_INGEST = frozenset({Stage.INGEST})
ROUND = 20  #: of `sound`: records per partition and move; the third of each is refused
MOVES = 3
WAITING = 10  #: records per partition that only the buffer has


def record(number: int) -> bytes:
    return b'{"id": %d, "price": %d.25, "name": "n %d", "tags": ["a", "%d"]}' % (number, number, number, number)


def records(first: int, count: int) -> list[bytes]:
    made = [record(first + i) for i in range(count)]
    made[2] = b'{"id": "no number"}'
    return made


@dataclass
class Rig:
    """One table, its topic, and the hands that damage it."""

    harness: Harness
    kafka: KafkaRig
    table: Table
    dsn: str = field(repr=False)

    @property
    def topic(self) -> str:
        return self.table.spec.topic

    def work(self, stages: frozenset[Stage] = frozenset(Stage)) -> None:
        Worker(self.harness.stores, [self.table.row], WorkerOptions(until_idle=True, stages=stages)).run()

    def sql(self, text: str, *parameters: object) -> list[Any]:
        with psycopg.connect(self.dsn) as connection:
            cursor = connection.execute(text, parameters)
            return cursor.fetchall() if cursor.description else []

    def lake_files(self, partition: int) -> list[str]:
        from harness_pipelines.lakes.iceberg.read.scan import pinned

        view = pinned(self.harness.stores.ledger.head(self.table.row).stream.metadata)
        return [normal(f.path) for f in view.files if f.partition == partition]

    def segment(self) -> str:
        (name,) = self.sql("SELECT segment FROM harness.segments WHERE table_id = %s", self.table.row.table_id)[0]
        return f"harness_buffer.{name}"


def make(endpoints: Endpoints, *, partitions: int, **spec: object) -> Rig:
    assert endpoints.kafka is not None
    assert endpoints.postgres is not None
    harness = hp.connect(home=endpoints.home)
    harness.init()
    kafka = KafkaRig(endpoints.kafka, properties=endpoints.kafka_login)
    topic = kafka.create(partitions, topic=f"audit_{uuid.uuid4().hex[:8]}")
    words: dict[str, Any] = {"views": "stream", **spec}  # what is planted is in one view; `test_two_views` has both
    table = harness.apply(hp.TableSpec(table=f"audit.{topic}", topic=topic, columns=COLUMNS, **words))
    return Rig(harness=harness, kafka=kafka, table=table, dsn=endpoints.postgres)


@pytest.fixture(scope="package")
def whole(endpoints: Endpoints) -> Iterator[Rig]:
    """Records in lake, buffer, quarantine and tail. Tests that damage it repair it again."""
    rig = make(endpoints, partitions=2)
    try:
        for partition in range(2):
            rig.kafka.produce(rig.topic, partition, records(0, LAKE), key=b"k")
        rig.work()
        for partition in range(2):
            rig.kafka.produce(rig.topic, partition, records(LAKE, BUFFER))
        rig.work(ONLY_INGEST)
        for partition in range(2):
            rig.kafka.produce(rig.topic, partition, records(LAKE + BUFFER, TAIL))
        yield rig
    finally:
        rig.kafka.close()
        rig.harness.close()


@pytest.fixture(scope="package")
def sound(endpoints: Endpoints) -> Iterator[Rig]:
    """Three moves in the lake, rows that only the buffer has, records in quarantine. Tests that damage it repair it."""
    rig = make(endpoints, partitions=2)
    try:
        for number in range(MOVES + 1):
            for partition in range(2):
                count = ROUND if number < MOVES else WAITING
                rig.kafka.produce(rig.topic, partition, records(number * ROUND, count))
            rig.work(frozenset(Stage) if number < MOVES else ONLY_INGEST)
        yield rig
    finally:
        rig.kafka.close()
        rig.harness.close()


@pytest.fixture
def fresh(endpoints: Endpoints) -> Iterator[Rig]:
    """A table of one partition of which nothing was read yet."""
    rig = make(endpoints, partitions=1, engine=engine_of_test())
    yield rig
    rig.kafka.close()
    rig.harness.close()


@pytest.fixture
def rewritten(whole: Rig) -> Iterator[object]:
    """`rewrite(partition, change)` replaces a data file in place by ``change(its table)``; undone at the end."""
    undo: list[tuple[str, bytes]] = []

    def rewrite(partition: int, change: object) -> None:
        path = whole.lake_files(partition)[0]
        undo.append((path, content(path)))
        assert callable(change)
        rewrite_file(path, change(parquet(path)))
        unnoted(path)

    yield rewrite
    for path, whole_file in undo:
        put(path, whole_file)


@pytest.fixture
def without_row(whole: Rig) -> Iterator[object]:
    """`remove(table, condition)` deletes rows of Postgres by hand; they come back at the end."""
    undo: list[tuple[str, str]] = []

    def remove(table: str, condition: str) -> None:
        kept = f"public.kept_{uuid.uuid4().hex[:8]}"
        whole.sql(f"CREATE TABLE {kept} AS SELECT * FROM {table} WHERE {condition}")
        whole.sql(f"DELETE FROM {table} WHERE {condition}")
        undo.append((table, kept))

    yield remove
    for table, kept in undo:
        whole.sql(f"INSERT INTO {table} SELECT * FROM {kept}")
        whole.sql(f"DROP TABLE {kept}")


@pytest.fixture
def place(endpoints: Endpoints, tmp_path: Path) -> Iterator[Scratch]:
    """A database and a warehouse of the test's own."""
    with scratch(endpoints, tmp_path) as made:
        yield made
