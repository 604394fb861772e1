"""Fixtures that all tests share: the embedded services, started once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings as hypothesis_settings

from harness_pipelines.services import Endpoints, Services

if TYPE_CHECKING:
    from playwright.sync_api import Page


def pytest_configure() -> None:
    """Let Ctrl-C mean something: what a shell started in the background ignores it, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    hypothesis_settings.register_profile("harness", deadline=None)  # a busy machine is no failure
    hypothesis_settings.load_profile("harness")


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What `harness`, called in this process, set for its logs, no later test sees."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """All three services, running. HARNESS_TEST_HOME names a home to reuse; its services are left running."""
    reused = os.environ.get("HARNESS_TEST_HOME")
    found = Services(Path(reused) if reused else tmp_path_factory.mktemp("services"))
    try:
        found.up()
        yield found
    finally:
        if not reused:
            found.down()


@pytest.fixture(scope="session")
def endpoints(services: Services) -> Endpoints:
    """Where the shared services answer. The database's login is its owner: tests make databases, and damage them."""
    found = services.current()
    return replace(found, postgres=found.owner, spark_login=None)


@pytest.fixture
def browser_page() -> Iterator[Page]:
    """An empty page of a headless Chromium; the test fails on an error of a script in it."""
    from harness_pipelines_tests.browser import browsing

    errors: list[str] = []
    with browsing() as page:
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
    assert errors == []
