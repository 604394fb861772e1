"""A real browser without a screen, for the tests of what people look at."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Page, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
PATIENCE_MS = 60_000  #: for a page on a busy machine


@contextmanager
def browser_page() -> Iterator[Page]:
    """An empty page of Chromium."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.fail(f"no Chromium here ({', '.join(PROGRAMS)}); `deploy/run test` installs it")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1000})
            page.set_default_timeout(PATIENCE_MS)
            yield page
        finally:
            browser.close()
