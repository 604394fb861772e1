"""Flink at a running `harness serve`, by the block of its page: every batch read is one cut, and none goes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness_pipelines as hp
from harness_pipelines_tests.flink import Flink, FlinkRefused, flink
from harness_pipelines_tests.integration.serve.judged import Read, read_append, read_keyed
from harness_pipelines_tests.integration.serve.server import Served, serving
from harness_pipelines_tests.other_catalog import pyiceberg_options
from harness_pipelines_tests.page_code import ENGINES, ROOT, blocks, statements
from harness_pipelines_tests.producer import KafkaRig

JARS = Path(os.environ.get("HARNESS_JARS", ROOT / ".cache" / "jars"))
READS = 50
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(harness: hp.Harness, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(harness, tmp_path_factory.mktemp("serve")) as found:
        yield found


@pytest.fixture(scope="module")
def engine(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flink]:
    [block] = blocks(ENGINES / "flink.md", "sql")
    attach = next(one for one in statements(block) if one.startswith("CREATE CATALOG harness"))
    attach = attach.replace("$HARNESS_URL", served.url).replace("$HARNESS_TOKEN", served.token)
    # Where the store is, and how Flink logs in: nothing on a folder.
    store = {"s3.path-style-access": "true", **pyiceberg_options(served.settings.warehouse or "")}
    store["client.region"] = store.pop("s3.region", "us-east-1")
    words = "".join(f", '{name}' = '{value}'" for name, value in store.items())
    with flink(tmp_path_factory.mktemp("flink"), jars=JARS) as running:
        running.query(attach.removesuffix(")") + f"{words})")
        yield running


@pytest.fixture(scope="module")
def read(engine: Flink) -> Read:
    return lambda name: engine.query(f"SELECT * FROM harness.{_quoted(name)}")


def test_each_read_of_an_append_table_is_a_cut_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_append(harness, kafka, read, times=READS)


def test_each_read_of_a_keyed_table_is_a_state_and_none_goes_back(harness: hp.Harness, kafka: KafkaRig, read: Read):
    read_keyed(harness, kafka, read, times=READS)


def test_what_writes_is_refused(engine: Flink):
    with pytest.raises(FlinkRefused, match="does not support endpoint"):
        engine.query("CREATE DATABASE harness.new_one")


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
