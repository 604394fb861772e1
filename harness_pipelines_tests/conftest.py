"""Fixtures that all tests share: the embedded services, started once."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog
from hypothesis import settings as hypothesis_settings

from harness_pipelines.services import Endpoints, Services

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


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
    """Where the shared services answer."""
    return services.current()


@pytest.fixture
def browser_page() -> Iterator[Page]:
    """An empty page of a headless Chromium; the test fails on an error of a script in it.

    A browser per test: while Playwright runs, its event loop is that of the thread, and others could not have one.
    """
    from playwright.sync_api import sync_playwright

    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.fail(
            "no Chromium on PATH: `deploy/run test` installs Debian's package chromium, else install it yourself"
        )
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    errors: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(30_000)  # a busy machine is no failure
            page.on("pageerror", lambda error: errors.append(str(error)))
            yield page
        finally:
            browser.close()
    assert errors == []
