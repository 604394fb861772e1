"""An object store in this process, behind a proxy that can spoil its answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines_tests.store import moto_store
from harness_pipelines_tests.store_proxy import StoreProxy


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[StoreProxy, str]]:
    """The proxy, and a warehouse on the store behind it."""
    with moto_store() as (s3, warehouse), StoreProxy(s3) as proxy:
        BOUND.bind(warehouse, proxy.settings)
        yield proxy, warehouse


@pytest.fixture
def proxy(started: tuple[StoreProxy, str]) -> Iterator[StoreProxy]:
    """The proxy without rules, before and after a test."""
    started[0].forget()
    yield started[0]
    started[0].heal()
