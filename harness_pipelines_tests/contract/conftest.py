"""Fixtures of the contract tests that need a real system."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness_pipelines.ledgers.postgres.migrations import migrate
from harness_pipelines_tests.contract.bystander import Bystander
from harness_pipelines_tests.contract.mirror_rig import mirrored, server, started
from harness_pipelines_tests.contract.stores_rig import MemoryRig, RealRig, StoresRig

__all__ = ["mirrored", "server", "started"]  #: fixtures of a mirror, which lie beside its rig


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
