"""Trino and Flink at a running `harness serve`: every read is one cut, and none goes back.

Trino attaches it by the very block that the command prints, Flink by that of its page, and reads in batch mode.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest

import harness_pipelines as hp
from harness_pipelines.serve.attach import VARIABLE
from harness_pipelines.serve.attach import blocks as printed
from harness_pipelines_tests.flink import FlinkRefused, flink
from harness_pipelines_tests.integration.serve.judged import Read, read_append, read_keyed
from harness_pipelines_tests.integration.serve.server import Served
from harness_pipelines_tests.other_catalog import pyiceberg_options
from harness_pipelines_tests.page_code import ENGINES, ROOT, blocks, statements
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.trino import TrinoRefused, trino

JARS = Path(os.environ.get("HARNESS_JARS", ROOT / ".cache" / "jars"))
READS = 50
pytestmark = pytest.mark.long


class Engine(NamedTuple):
    """One that has attached the catalog as `harness`."""

    query: Callable[[str], pa.Table]
    quote: str  #: around each part of a name
    write: str  #: a statement that writes
    refused: type[Exception]  #: what the statement raises
    says: str  #: a pattern in its message


@contextmanager
def by_trino(served: Served, folder: Path) -> Iterator[Engine]:
    warehouse = served.settings.warehouse or ""
    block = printed(served.url, table="shop.orders", warehouse=warehouse)["Trino"]
    text = block.split("<<END\n")[1].split("END\n")[0].replace(f"${VARIABLE}", served.token)
    if warehouse.startswith("s3"):  # where the store is: of Trino's own, and not for us to say
        options = pyiceberg_options(warehouse)
        text += f"s3.endpoint={options['s3.endpoint']}\ns3.path-style-access=true\n"
        text += (
            f"s3.aws-access-key={options['s3.access-key-id']}\ns3.aws-secret-key={options['s3.secret-access-key']}\n"
        )
    with trino({"harness": text}, folder, jars=JARS) as running:
        yield Engine(running.query, "", "CREATE SCHEMA harness.new", TrinoRefused, ".")


@contextmanager
def by_flink(served: Served, folder: Path) -> Iterator[Engine]:
    [block] = blocks(ENGINES / "flink.md", "sql")
    attach = next(one for one in statements(block) if one.startswith("CREATE CATALOG harness"))
    attach = attach.replace("$HARNESS_URL", served.url).replace("$HARNESS_TOKEN", served.token)
    # Where the store is, and how Flink logs in: nothing on a folder.
    store = {"s3.path-style-access": "true", **pyiceberg_options(served.settings.warehouse or "")}
    store["client.region"] = store.pop("s3.region", "us-east-1")
    words = "".join(f", '{name}' = '{value}'" for name, value in store.items())
    with flink(folder, jars=JARS) as running:
        running.query(attach.removesuffix(")") + f"{words})")
        yield Engine(running.query, "`", "CREATE DATABASE harness.new_one", FlinkRefused, "does not support endpoint")


@pytest.fixture(scope="module", params=[by_trino, by_flink], ids=["Trino", "Flink"])
def engine(
    request: pytest.FixtureRequest, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    with request.param(served, tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture(scope="module")
def read(engine: Engine) -> Read:
    def rows(name: str) -> pa.Table:
        quoted = ".".join(f"{engine.quote}{part}{engine.quote}" for part in name.split("."))
        return engine.query(f"SELECT * FROM harness.{quoted}")

    return rows


def test_each_read_of_an_append_table_is_a_cut_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_append(harness, kafka, read, times=READS)


def test_each_read_of_a_keyed_table_is_a_state_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_keyed(harness, kafka, read, times=READS)


def test_what_writes_is_refused(engine: Engine):
    with pytest.raises(engine.refused, match=engine.says):
        engine.query(engine.write)
