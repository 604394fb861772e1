"""Engines attach `harness serve` and read tables while their data moves: every read is one cut, and none goes back."""

from __future__ import annotations

import json
import signal
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

import harness_pipelines as hp
from harness_pipelines.drivers.object_stores.clients import spark_options
from harness_pipelines.protocol.changes.reverts import RevertRefused, RevertWaits
from harness_pipelines.protocol.claims import Stage
from harness_pipelines.protocol.schema.evolution import ColumnChanges
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.settings import Settings
from harness_pipelines.spec.types import parse_type
from harness_pipelines.stages.table.revert import revert_table
from harness_pipelines_tests.engines import READERS, duckdb_with_iceberg
from harness_pipelines_tests.keyed import KeyedRig
from harness_pipelines_tests.other_catalog import pyiceberg_options
from harness_pipelines_tests.producer import KafkaRig, wait_until
from harness_pipelines_tests.rig import COORDINATES, Command, TableRig

SOON: Mapping[str, Any] = {"tier": {"max_age": "1s"}, "freshness": {"lake": "2s"}}
SLOW = ("Daft", "chDB", "DataFusion", "Polars")  #: whose import takes seconds
READS = 10
STAGES = frozenset({Stage.INGEST, Stage.TIER, Stage.COMPACT, Stage.OTREE})
Read = Callable[[str], pa.Table]  #: rows of a table by its name, through the catalog
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A running `harness serve`."""

    url: str
    token: str
    settings: Settings

    def catalog(self, **more: str) -> Any:
        warehouse = self.settings.warehouse or ""
        return load_catalog("h", type="rest", uri=self.url, token=self.token, **pyiceberg_options(warehouse), **more)


@contextmanager
def serving(harness: hp.Harness, folder: Path, *options: str) -> Iterator[tuple[Command, Served]]:
    secret = harness.stores.tokens.create(f"t-{uuid.uuid4().hex[:10]}", ["*"], lasts=None).secret
    file = folder / "serve.json"
    with Command(harness.settings, "serve", "--port", "0", "--json", str(file), *options) as command:
        wait_until(lambda: file.exists() and file.read_bytes().endswith(b"}\n"), "the server has started")
        yield command, Served(url=json.loads(file.read_text())["url"], token=secret, settings=harness.settings)
        command.send(signal.SIGTERM)
        code, said = command.await_end()
        assert code == 0, said


@pytest.fixture(scope="module")
def served(harness: hp.Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(harness, tmp_path_factory.mktemp("serve")) as (_, found):
        yield found


# -- engines ---------------------------------------------------------------------------------------------------


def by_pyiceberg(served: Served, harness: hp.Harness) -> Read:
    catalog = served.catalog()
    return lambda name: catalog.load_table(name).scan().to_arrow()


def by_duckdb(served: Served, harness: hp.Harness) -> Read:
    connection = duckdb_with_iceberg(served.settings.warehouse or "")
    connection.execute(f"ATTACH '' AS h (TYPE iceberg, ENDPOINT '{served.url}', TOKEN '{served.token}')")
    return lambda name: connection.execute(f"FROM h.{name}").to_arrow_table()


def by_spark(served: Served, harness: hp.Harness) -> Read:
    session = harness.stores.spark()
    name = f"h_{uuid.uuid4().hex[:8]}"
    options = {
        "": "org.apache.iceberg.spark.SparkCatalog", "type": "rest", "uri": served.url, "token": served.token,
        "cache-enabled": "false", **spark_options(served.settings.warehouse or "", served.settings.s3),
    }  # fmt: skip
    for word, value in options.items():
        session.conf.set(f"spark.sql.catalog.{name}{'.' if word else ''}{word}", value)
    return lambda table: session.table(f"{name}.{table}").toArrow()


def by_file(engine: str) -> Callable[[Served, hp.Harness], Read]:
    """Engines that open the metadata file which the catalog names."""

    def made(served: Served, harness: hp.Harness) -> Read:
        catalog, read = served.catalog(), READERS[engine]
        return lambda name: read(catalog.load_table(name).metadata_location, "n >= 0")

    return made


ENGINES: Mapping[str, Callable[[Served, hp.Harness], Read]] = {
    "PyIceberg": by_pyiceberg,
    "DuckDB": by_duckdb,
    "Spark": by_spark,
    **{engine: by_file(engine) for engine in SLOW},
}
engines = pytest.mark.parametrize(
    "engine", [pytest.param(name, marks=[pytest.mark.long] if name in SLOW else []) for name in ENGINES]
)


def rows_of(found: pa.Table, columns: Sequence[str]) -> Counter[Row]:
    return Counter(zip(*(found.column(name).to_pylist() for name in columns), strict=True))


# -- what moves -------------------------------------------------------------------------------------------------


@contextmanager
def moving(rig: TableRig) -> Iterator[None]:
    """A worker moves the table, and a producer sends until the block ends."""
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.2):
            rig.produce(15)

    with rig.working(STAGES):
        producer = threading.Thread(target=produce)
        producer.start()
        try:
            yield
        finally:
            ended.set()
            producer.join()


def moved(rig: TableRig, before: object) -> Mapping[int, tuple[int, int]]:
    """Wait until the table has other ends than *before*, and return these."""
    wait_until(lambda: rig.status() != before, f"{rig.name} moves")
    return rig.status()


def changed(rig: TableRig, number: int) -> None:
    """What people do to a table meanwhile."""
    head = rig.stores.ledger.head(rig.table.row).version
    if number == READS // 3 and head > 1:
        with suppress(RevertRefused, RevertWaits):  # a move runs, or has just changed what can be restored
            revert_table(rig.stores, rig.table.row, to=head - 1)
    if number == 2 * READS // 3:
        rig.table.evolve(ColumnChanges(add=(Column(name="more", type=parse_type("int")),)))


# -- tests ------------------------------------------------------------------------------------------------------


@engines
def test_each_read_of_an_append_table_is_a_cut_and_none_goes_back(
    harness: hp.Harness, kafka: KafkaRig, served: Served, engine: str
):
    rig = TableRig(harness, kafka, views="both", layout={"columns": ["n"], "regions": 4}, **SOON)
    read, reads = ENGINES[engine](served, harness), list[Counter[Row]]()
    with moving(rig):
        at = None
        for number in range(READS):
            changed(rig, number)
            at = moved(rig, at)
            reads.append(rows_of(read(rig.name), (*COORDINATES, "id")))
        wait_until(lambda: rig.stores.ledger.head(rig.table.row).batch is not None, "something was merged")
        reads.append(rows_of(read(rig.name), (*COORDINATES, "id")))
    truth, before = rig.truth, {0: 0, 1: 0}
    for number, found in enumerate(reads):
        assert not found - truth, f"read {number} of {engine} has rows that nobody produced, or doubled ones"
        ends = {p: 1 + max((row[1] for row in found if row[0] == p), default=-1) for p in before}
        assert found.total() == sum(ends.values()), f"read {number} of {engine} has holes: {ends}"
        assert all(ends[p] >= before[p] for p in ends), f"read {number} of {engine} goes back: {before}, {ends}"
        before = ends
    assert len({found.total() for found in reads}) > READS // 3, "the data did not move"


@engines
def test_each_read_of_a_keyed_table_is_a_state_and_none_goes_back(
    harness: hp.Harness, kafka: KafkaRig, served: Served, engine: str
):
    rig = KeyedRig(harness, kafka, **SOON)
    columns = ("id", "region", "n", "s", *COORDINATES)
    read, reads = ENGINES[engine](served, harness), list[Counter[Row]]()
    rig.produce(30)
    rig.merge_all()
    with moving(rig):
        at = None
        for number in range(READS):
            changed(rig, number)
            at = moved(rig, at)
            reads.append(rows_of(read(rig.name), columns))

    def state(partition: int, end: int) -> set[Row]:
        """Without the column that was added."""
        return {(*row[:4], *row[-2:]) for row in rig.state({partition: end}).values()}

    ends = {p: 1 + max(at) for p, at in rig.kafka.acked(rig.topic).items() if at}
    for partition, end in ends.items():
        before = 0
        for number, found in enumerate(reads):
            mine = {row for row in found if row[-2] == partition}
            low = max([before, *(row[-1] + 1 for row in mine)])
            found_at = next((at for at in range(low, end + 1) if state(partition, at) == mine), None)
            assert found_at is not None, (
                f"read {number} of {engine} is no state of partition {partition} at {low} or later"
            )
            before = found_at
    assert all(found.total() == len(found) for found in reads), "a row is there twice"
    assert len({frozenset(found) for found in reads}) > READS // 3, "the data did not move"
