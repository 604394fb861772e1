"""The tables of the fault tests, on the embedded object store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness_pipelines.services import Endpoints, Services, ToolMissing
from harness_pipelines_tests.faults.conftest import harness, kafka, make_rig, rig, settings
from harness_pipelines_tests.store import moto_store
from harness_pipelines_tests.store_proxy import StoreProxy

__all__ = ["harness", "kafka", "make_rig", "rig", "settings"]


@pytest.fixture(scope="session")
def endpoints(services: Services) -> Iterator[Endpoints]:
    """Of the shared services, with the warehouse on an object store: theirs, one beside them, or moto."""
    found = replace(services.current(), postgres=services.current().owner, spark_login=None)
    if found.s3 is not None:
        yield found
        return
    jars = os.environ.get("HARNESS_JARS")
    store = Services(services.home / "store", jars=Path(jars) if jars else None)
    try:
        beside = store.up(only=["s3"])
    except ToolMissing:
        with moto_store() as (s3, warehouse):
            yield replace(found, s3=s3, warehouse=warehouse)
        return
    try:
        yield replace(found, s3=beside.s3, warehouse=beside.warehouse)
    finally:
        store.down()


@pytest.fixture
def proxy(endpoints: Endpoints) -> Iterator[StoreProxy]:
    """Between a test and the store: counts requests, and breaks them."""
    assert endpoints.s3 is not None
    with StoreProxy(endpoints.s3) as made:
        yield made
