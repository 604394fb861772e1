"""A catalog in memory, and clients of its routes."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from harness_pipelines_tests.served import SHOP, MemoryCatalog, application, client_of, cut_of


@pytest.fixture
def catalog() -> MemoryCatalog:
    names = ("shop.orders", "shop.payments", "bank.ledger")
    return MemoryCatalog({name: cut_of(name) for name in names})


@pytest.fixture
def client(catalog: MemoryCatalog) -> TestClient:
    return client_of(application(catalog))


@pytest.fixture
def shop(catalog: MemoryCatalog) -> TestClient:
    """A client that may see one namespace."""
    return client_of(application(catalog), SHOP)
