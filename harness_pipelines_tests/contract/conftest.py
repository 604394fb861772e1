"""Fixtures of the contract tests that need a real system."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines.services import Endpoints
from harness_pipelines_tests.contract.bystander import Bystander
from harness_pipelines_tests.contract.stores_rig import MemoryRig, RealRig, StoresRig


@pytest.fixture(scope="session")
def make_database(endpoints: Endpoints) -> Iterator[Callable[[], str]]:
    """Makes empty databases, each dropped at the end; gives their addresses."""
    assert endpoints.postgres is not None
    made: list[str] = []
    with psycopg.connect(endpoints.postgres, autocommit=True) as connection:

        def make() -> str:
            made.append(f"contract_{uuid.uuid4().hex[:10]}")
            name = sql.Identifier(made[-1])
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
            return make_conninfo(endpoints.postgres or "", dbname=made[-1])

        yield make
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def ledger_dsn(make_database: Callable[[], str]) -> str:
    """A database that has the ledger."""
    dsn = make_database()
    migrate(dsn)
    return dsn


@pytest.fixture(scope="session")
def opened(ledger_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealRig]:
    made = RealRig(ledger_dsn, tmp_path_factory.mktemp("warehouse"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def bystander(opened: RealRig) -> Bystander:
    """A table of everything, which no test is about."""
    return Bystander(opened)


@pytest.fixture
def real(opened: RealRig, bystander: Bystander) -> Iterator[RealRig]:
    """Stores over Postgres and a folder, for the rules that memory cannot have. No test touches another table."""
    opened.made.clear()
    yield opened
    bystander.assert_untouched()
    for table in opened.made:
        assert opened.untouched_namesakes(table) == 2 * len(table.views), (
            f"tables called like {table.name} were touched"
        )


@pytest.fixture(params=["memory", "real"])
def stores(request: pytest.FixtureRequest) -> StoresRig:
    """The reference, and the real stores."""
    found: StoresRig = MemoryRig() if request.param == "memory" else request.getfixturevalue("real")
    return found
