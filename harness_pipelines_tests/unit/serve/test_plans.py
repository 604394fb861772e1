"""Scans that the server plans for an engine: of which snapshot, and for whom."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from harness_pipelines.ports.serving.scans import ScanWanted
from harness_pipelines_tests.served import ORDERS, SHOP, MemoryCatalog, application, client_of, error


def test_the_server_plans_no_scans_unless_it_was_started_for_that(client: TestClient):
    assert error(client.post(f"{ORDERS}/plan", json={})) == (501, "UnsupportedOperationException")
    assert not [one for one in client.get("/v1/config").json()["endpoints"] if one.endswith("/plan")]


@pytest.fixture
def planner(catalog: MemoryCatalog) -> TestClient:
    return client_of(application(catalog, plans=True))


def test_a_scan_is_planned_of_the_snapshot_that_the_engine_names(planner: TestClient, catalog: MemoryCatalog):
    endpoints = planner.get("/v1/config").json()["endpoints"]
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}/plan" in endpoints
    where = {"type": "eq", "term": "id", "value": 5}
    body = {"snapshot-id": 7, "filter": where, "case-sensitive": False, "select": ["id"], "min-rows-requested": 5}
    with capture_logs() as logs:
        assert planner.post(f"{ORDERS}/plan", json=body).json()["status"] == "completed"
        assert planner.post("/v1/at:a/namespaces/shop/tables/orders/plan", json={}).status_code == 200
    assert catalog.scans == [
        ("shop.orders", ScanWanted(snapshot_id=7, where=where, case_sensitive=False)),
        ("shop.orders", ScanWanted()),
    ]
    assert catalog.asked[-1] == ("shop.orders", "at:a")
    assert [(one["event"], one["snapshot"], one["state"]) for one in logs] == [
        ("serve.planned", 7, "fresh"),
        ("serve.planned", None, "at:a"),
    ]


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (b"{", (400, "BadRequestException")),
        (b"[]", (400, "BadRequestException")),
        (b'{"snapshot-id": true}', (400, "BadRequestException")),
        (b'{"snapshot-id": -1}', (400, "BadRequestException")),
        (b'{"case-sensitive": "no"}', (400, "BadRequestException")),
        (b'{"start-snapshot-id": 1, "end-snapshot-id": 7}', (501, "UnsupportedOperationException")),
        (b'{"snapshot-id": 9}', (404, "NoSuchSnapshotException")),
        (b" " * 1_100_000, (413, "BadRequestException")),
    ],
)
def test_what_is_no_scan_of_a_snapshot_is_refused(planner: TestClient, body: bytes, wanted: tuple[int, str]):
    assert error(planner.post(f"{ORDERS}/plan", content=body)) == wanted


def test_a_scan_of_a_table_that_may_not_be_seen_is_one_of_none(catalog: MemoryCatalog):
    shop = client_of(application(catalog, plans=True), SHOP)
    for name in ("ledger", "none"):
        answer = shop.post(f"/v1/namespaces/bank/tables/{name}/plan", json={})
        assert error(answer) == (404, "NoSuchTableException")
    assert catalog.scans == []
