"""Fixtures that all tests share: the embedded services, started once."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import structlog
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from psycopg import sql
from psycopg.conninfo import make_conninfo

from harness_pipelines.services import Endpoints, Services, ToolMissing
from harness_pipelines.spec.settings import ENGINES, Settings
from harness_pipelines_tests import turns
from harness_pipelines_tests.store import moto_store

if TYPE_CHECKING:
    from playwright.sync_api import Page

TESTS = Path(__file__).parent
#: Options of the shared services' Java: its second compiler takes more time of two cores than it saves in an hour.
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
SHORT_LAST = ("contract", "defs", "bench", "model", "unit")  #: folders whose tests are short; the others come first


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C mean something: what a shell started in the background ignores it, and so would all that it starts."""
    if config.getoption("--engine"):
        os.environ["HARNESS_ENGINE"] = config.getoption("--engine")  # of processes that tests start too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(Turns())
    slow = [HealthCheck.too_slow]
    hypothesis_settings.register_profile("harness", deadline=None, suppress_health_check=slow)  # as busy machines are
    hypothesis_settings.load_profile("harness")


class Turns:
    """Before `-m` chooses among the tests. A module has one hook of a name."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        turns.mark_long(items)


@pytest.hookimpl(trylast=True)  # after the tests were brought into their random order
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put long tests first: processes that share the files then end together. A folder's files stay beside each other.

    Folders, the files of one and the tests of a file are in random order all the same. A folder's fixtures are made
    once, not again after each file of another folder.
    """
    folders: dict[Path, int] = {}
    for item in items:
        folders.setdefault(item.path.parent, len(folders))
    items.sort(key=lambda item: (_shortness(item.path), folders[item.path.parent]))
    if config.getoption("--warehouse") == "s3":
        for item in items:
            if (mark := item.get_closest_marker("folder")) is not None:
                item.add_marker(pytest.mark.skip(reason=f"only for a lake in a local folder: {mark.args[0]}"))


def _shortness(path: Path) -> int:
    room = path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""
    return SHORT_LAST.index(room) if room in SHORT_LAST else -1


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the lake of the tests on real services is, and what moves rows of tables whose spec does not say it."""
    parser.addoption("--warehouse", choices=("folder", "s3"), default="folder", help="where the lake of the tests is")
    parser.addoption("--engine", choices=ENGINES, default=None, help="what moves the rows of all tables")


@pytest.fixture
def by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark moves the rows of this test, whatever the others take: it is about Spark."""
    monkeypatch.setenv("HARNESS_ENGINE", "spark")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What `harness`, called in this process, set for its logs, no later test sees."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Services]:
    """All services, running; each process of pytest-xdist has its own.

    HARNESS_TEST_HOME names a home to reuse (the processes use folders in it: gw0, gw1); its services are left running.
    """
    reused = os.environ.get("HARNESS_TEST_HOME")
    process = os.environ.get("PYTEST_XDIST_WORKER", "")
    found = Services(Path(reused) / process if reused else tmp_path_factory.mktemp("services"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
            try:
                found.up(s3=pytestconfig.getoption("--warehouse") == "s3")
            except ToolMissing:  # of the embedded store, or what the next call misses too: `endpoints` has another one
                found.up()
        _sync_nothing(found)
        yield found
        if not reused:
            _assert_none_sick(found)
    finally:
        if not reused:
            found.down()


def _assert_none_sick(services: Services) -> None:
    """No test may leave a table behind that cannot be read: to commands that look at all tables it is a fault."""
    from harness_pipelines.drivers.postgres import Database
    from harness_pipelines.ledgers.postgres.ledger import PostgresLedger

    owner = services.current().owner
    assert owner is not None
    with psycopg.connect(owner) as connection:
        if connection.execute("SELECT to_regclass('harness.tables')").fetchone() == (None,):
            return  # no test made a ledger
    database = Database(owner, size=1)
    try:
        _, sick = PostgresLedger(database, catalog=Settings(home=services.home).catalog_name).survey()
    finally:
        database.close()
    assert not sick, f"tests left tables behind that cannot be read: {sick}"


def _sync_nothing(services: Services) -> None:
    """Let Postgres wait for no disk: its files matter as long as the machine runs, and a kill of it loses nothing.

    What a crash of the machine leaves is proven by `test_services.py` on clusters with the settings of the product.
    """
    owner = services.current().owner
    assert owner is not None
    with psycopg.connect(owner, autocommit=True) as connection:
        for name in ("fsync", "full_page_writes"):
            connection.execute(f"ALTER SYSTEM SET {name} = off".encode())
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture(scope="session")
def endpoints(services: Services, pytestconfig: pytest.Config) -> Iterator[Endpoints]:
    """Where the shared services answer. The database's login is its owner: tests make databases, and damage them.

    A reused home may have an object store from another call: the warehouse is where this call says.
    """
    found = services.current()
    found = replace(found, postgres=found.owner, spark_login=None)
    if pytestconfig.getoption("--warehouse") == "folder":
        yield replace(found, s3=None, warehouse=(services.home / "warehouse").as_uri())
    elif found.s3 is not None:
        yield found
    else:
        with moto_store() as (s3, warehouse):
            yield replace(found, s3=s3, warehouse=warehouse)


@pytest.fixture(scope="session")
def make_database(endpoints: Endpoints) -> Iterator[Callable[[], str]]:
    """Makes empty databases, each dropped at the end; gives their addresses."""
    assert endpoints.postgres is not None
    made: list[str] = []
    with psycopg.connect(endpoints.postgres, autocommit=True) as connection:

        def make() -> str:
            made.append(f"test_{uuid.uuid4().hex[:10]}")
            name = sql.Identifier(made[-1])
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
            connection.execute(sql.SQL("ALTER DATABASE {} SET synchronous_commit = off").format(name))
            return make_conninfo(endpoints.postgres or "", dbname=made[-1])

        yield make
        for name in made:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def browser_page() -> Iterator[Page]:
    """An empty page of a headless Chromium; the test fails on an error of a script in it."""
    from harness_pipelines_tests.browser import browsing

    errors: list[str] = []
    with browsing() as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
    assert errors == []
