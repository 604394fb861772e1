"""Worlds on the shared services."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from harness_pipelines.engines.spark.session import open_spark
from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Endpoints
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.integration.read.world import World, standard_rows


@pytest.fixture(scope="session")
def dsn(make_database: Callable[[], str]) -> str:
    """A database with the ledger's schema and roles, for worlds alone: others would find their tables sick."""
    made = make_database()
    migrate(made)
    return made


@pytest.fixture(scope="session")
def spark(endpoints: Endpoints, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on the shared Spark Connect server."""
    settings = endpoints.fill(Settings(home=tmp_path_factory.mktemp("home"), dsn=dsn))
    session = open_spark(settings)
    yield session
    session.stop()


@pytest.fixture
def world(dsn: str, tmp_path: Path) -> Iterator[World]:
    """An empty table of standard columns."""
    found = World(dsn, tmp_path)
    yield found
    found.close()


@pytest.fixture(scope="module")
def union(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three partitions: lake [0, 300), buffer [300, 400), and leftovers of each tier in the other's range.

    The lake has three files per partition; the last reaches to 320. Segments hold [250, 350) and [350, 420).
    """
    made = World(dsn, tmp_path_factory.mktemp("lake"))
    fill(made)
    yield made
    made.close()


@pytest.fixture
def counted(dsn: str, tmp_path: Path) -> Iterator[World]:
    """The same for one test. Its sessions have a name in common that no other session has."""
    made = World(make_conninfo(dsn, application_name=f"counted_{uuid.uuid4().hex[:10]}"), tmp_path)
    fill(made)
    yield made
    made.close()


def fill(made: World) -> None:
    for low, high in ((0, 100), (100, 200), (200, 320)):
        made.append_to_lake(*(standard_rows(made, p, low, high) for p in range(3)))
    for low, high in ((250, 350), (350, 420)):
        made.add_segment(*(standard_rows(made, p, low, high) for p in range(3)))
