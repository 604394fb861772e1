"""A real browser without a screen, for the tests of what people look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, expect, sync_playwright

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  #: a busy machine is no failure


@contextmanager
def browsing() -> Iterator[Page]:
    """An empty page of a headless Chromium.

    A browser per test: while Playwright runs, its event loop is that of the thread, and others could not have one.
    """
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.fail(
            "no Chromium on PATH: `deploy/run test` installs Debian's package chromium, else install it yourself"
        )
    expect.set_options(timeout=PATIENCE_MS)
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments, timeout=PATIENCE_MS)
        try:
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()
