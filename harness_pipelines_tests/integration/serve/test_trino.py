"""Trino at a running `harness serve`, by the very block that this prints: every read is one cut, and none goes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness_pipelines as hp
from harness_pipelines.serve.attach import VARIABLE, blocks
from harness_pipelines_tests.integration.serve.judged import Read, read_append, read_keyed
from harness_pipelines_tests.integration.serve.server import Served, serving
from harness_pipelines_tests.other_catalog import pyiceberg_options
from harness_pipelines_tests.producer import KafkaRig
from harness_pipelines_tests.trino import Trino, TrinoRefused, trino

JARS = Path(os.environ.get("HARNESS_JARS", Path(__file__).parents[3] / ".cache" / "jars"))
READS = 50
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(harness: hp.Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(harness, tmp_path_factory.mktemp("serve")) as found:
        yield found


@pytest.fixture(scope="module")
def server(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    warehouse = served.settings.warehouse or ""
    block = blocks(served.url, table="shop.orders", warehouse=warehouse)["Trino"]
    text = block.split("<<END\n")[1].split("END\n")[0].replace(f"${VARIABLE}", served.token)
    if warehouse.startswith("s3"):  # where the store is: of Trino's own, and not for us to say
        options = pyiceberg_options(warehouse)
        text += f"s3.endpoint={options['s3.endpoint']}\ns3.path-style-access=true\n"
        text += (
            f"s3.aws-access-key={options['s3.access-key-id']}\ns3.aws-secret-key={options['s3.secret-access-key']}\n"
        )
    with trino({"harness": text}, tmp_path_factory.mktemp("trino"), jars=JARS) as running:
        yield running


@pytest.fixture(scope="module")
def read(server: Trino) -> Read:
    return lambda name: server.query(f"SELECT * FROM harness.{name}")


def test_each_read_of_an_append_table_is_a_cut_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_append(harness, kafka, read, times=READS)


def test_each_read_of_a_keyed_table_is_a_state_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_keyed(harness, kafka, read, times=READS)


def test_what_writes_is_refused(server: Trino):
    with pytest.raises(TrinoRefused):
        server.query("CREATE SCHEMA harness.new")
