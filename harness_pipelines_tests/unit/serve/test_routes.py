"""Each route of the protocol as clients ask for it: what it answers, and what of it other clients never see."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from harness_pipelines.errors import HarnessError, OutcomeUnknown, TryAgain, UsageError
from harness_pipelines.ports.ledger import LeaseEnded, TableUnknown
from harness_pipelines.serve.auth import Principal
from harness_pipelines.serve.storage import Storage
from harness_pipelines.serve.values import NAME_MAX, TableNotServed
from harness_pipelines_tests.served import (
    ALL,
    ORDERS,
    MemoryCatalog,
    MemoryTokens,
    application,
    client_of,
    cut_of,
    error,
    login,
)

SEVEN = cut_of("shop.orders", 7).etag


# -- configuration ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["", "?warehouse=", "?warehouse=fresh"])
def test_the_configuration_of_the_newest_state_sets_nothing(client: TestClient, asked: str):
    found = client.get(f"/v1/config{asked}").json()
    assert (found["defaults"], found["overrides"]) == ({}, {})


def test_only_routes_that_answer_are_named_and_none_that_writes(client: TestClient):
    endpoints = client.get("/v1/config").json()["endpoints"]
    for one in endpoints:
        method, path = one.split()
        filled = path.replace("{prefix}/", "").format(namespace="shop", table="orders")
        assert client.request(method, filled, content=b"{}").status_code in (200, 204), one
    assert [one for one in endpoints if one.startswith("POST") and not one.endswith("/metrics")] == []
    assert not any(one.startswith(("DELETE", "PUT")) for one in endpoints)


@pytest.mark.parametrize("word", ["pin:5s", "pin:1s", "pin:300s", "pin:5m", "lake", "at:month-end"])
def test_a_state_is_a_prefix_that_all_later_paths_have(client: TestClient, catalog: MemoryCatalog, word: str):
    config = client.get("/v1/config", params={"warehouse": word}).json()
    assert config["overrides"] == {"prefix": word}
    assert client.get(f"/v1/{word}/namespaces/shop/tables/orders").status_code == 200
    assert client.get(f"/v1/{word.replace(':', '%3A')}/namespaces").status_code == 200
    assert catalog.asked == [("shop.orders", word)]


@pytest.mark.parametrize(
    "word",
    ["at:", "at:Month", "at:state:orders", "at:7", "at:a/b", "at:" + "x" * 64, "pin:0s", "pin:5", "pin:1d", "pin:301s",
     "pin:6m", "pin:1.5s", "Lake", "s3://b", "x" * 5000, "\0", "pin:\u0665s"],
)  # fmt: skip
def test_a_state_that_is_not_offered_is_refused_and_those_that_are_are_named(client: TestClient, word: str):
    answer = client.get("/v1/config", params={"warehouse": word})
    assert error(answer) == (400, "BadRequestException")
    said = answer.json()["error"]["message"]
    assert "is not offered" in said
    assert "pin:5s" in said
    assert len(answer.text) < 1000


def test_a_named_snapshot_has_its_own_tables_and_others_are_not_there(client: TestClient, catalog: MemoryCatalog):
    catalog.named["month-end"] = ["shop.orders"]
    assert client.get("/v1/at:month-end/namespaces").json() == {"namespaces": [["shop"]]}
    found = client.get("/v1/at:month-end/namespaces/shop/tables").json()["identifiers"]
    assert found == [{"namespace": ["shop"], "name": "orders"}]
    assert client.head("/v1/at:month-end/namespaces/shop/tables/orders").status_code == 204
    assert client.head("/v1/at:month-end/namespaces/shop/tables/payments").status_code == 404
    assert client.get("/v1/at:none/namespaces").json() == {"namespaces": []}
    catalog.cuts["shop.payments"] = TableUnknown("shop.payments is in no snapshot month-end")
    answer = client.get("/v1/at:month-end/namespaces/shop/tables/payments")
    assert error(answer) == (404, "NoSuchTableException")
    assert answer.json()["error"]["message"] == "Table does not exist in snapshot month-end: shop.payments"


def test_a_table_that_may_not_be_seen_is_answered_as_one_that_a_snapshot_lacks(shop: TestClient):
    answer = shop.get("/v1/at:month-end/namespaces/bank/tables/ledger")
    assert error(answer) == (404, "NoSuchTableException")
    assert answer.json()["error"]["message"] == "Table does not exist in snapshot month-end: bank.ledger"


@pytest.mark.parametrize("word", ["at:Month", "nope"])
def test_a_prefix_that_no_configuration_gave_is_no_path(client: TestClient, catalog: MemoryCatalog, word: str):
    for path in (f"/v1/{word}/namespaces", f"/v1/{word}/namespaces/shop/tables/orders"):
        assert error(client.get(path)) == (404, "NotFoundException")
    assert catalog.asked == []


# -- lists --------------------------------------------------------------------------------------------------------


def test_namespaces_and_tables_are_listed_in_order(client: TestClient):
    assert client.get("/v1/namespaces").json() == {"namespaces": [["bank"], ["shop"]]}
    found = client.get("/v1/namespaces/shop/tables").json()
    assert found == {
        "identifiers": [{"namespace": ["shop"], "name": "orders"}, {"namespace": ["shop"], "name": "payments"}]
    }
    assert client.get("/v1/namespaces/shop").json() == {"namespace": ["shop"], "properties": {}}
    assert client.head("/v1/namespaces/shop").status_code == 204


def test_no_namespace_is_inside_of_another_one(client: TestClient):
    assert client.get("/v1/namespaces?parent=shop").json() == {"namespaces": []}
    assert client.get("/v1/namespaces?parent=").json() == {"namespaces": [["bank"], ["shop"]]}
    assert error(client.get("/v1/namespaces?parent=none")) == (404, "NoSuchNamespaceException")
    assert client.head("/v1/namespaces/shop%1Fdeep").status_code == 404
    assert error(client.get("/v1/namespaces/shop%1Fdeep/tables")) == (404, "NoSuchNamespaceException")


def test_a_list_comes_in_pages_that_have_each_table_once():
    names = [f"shop.t{number:04}" for number in range(1005)]
    catalog = MemoryCatalog({name: cut_of(name) for name in reversed(names)})
    client = client_of(application(catalog))
    path, found, token, sizes = "/v1/namespaces/shop/tables", [], "", []
    while token is not None:
        answer = client.get(path, params={"pageToken": token, "pageSize": "400"}).json()
        found += [f"shop.{one['name']}" for one in answer["identifiers"]]
        sizes.append(len(answer["identifiers"]))
        token = answer.get("next-page-token")
    assert (found, sizes) == (names, [400, 400, 205])
    assert len(client.get(path).json()["identifiers"]) == 1005, "all of them, for a client that knows no pages"
    assert len(client.get(path, params={"pageToken": "", "pageSize": "999999"}).json()["identifiers"]) == 1000


def test_a_table_that_goes_between_two_pages_moves_none():
    catalog = MemoryCatalog({f"shop.{name}": cut_of(name) for name in "abcd"})
    client = client_of(application(catalog))
    path = "/v1/namespaces/shop/tables"
    first = client.get(path, params={"pageToken": "", "pageSize": "2"}).json()
    del catalog.cuts["shop.a"], catalog.cuts["shop.b"]
    second = client.get(path, params={"pageToken": first["next-page-token"], "pageSize": "2"}).json()
    assert [one["name"] for one in second["identifiers"]] == ["c", "d"]
    assert "next-page-token" not in second


@pytest.mark.parametrize("query", ["pageToken=!!", "pageToken=_w", "pageToken=&pageSize=0", "pageToken=&pageSize=x"])
def test_a_page_that_is_none_is_a_bad_request(client: TestClient, query: str):
    for path in ("/v1/namespaces", "/v1/namespaces/shop/tables"):
        assert error(client.get(f"{path}?{query}")) == (400, "BadRequestException")


def test_there_are_no_views(client: TestClient):
    assert client.get("/v1/namespaces/shop/views").json() == {"identifiers": []}
    assert error(client.get("/v1/namespaces/shop/views/orders")) == (404, "NoSuchViewException")
    assert client.head("/v1/namespaces/shop/views/orders").status_code == 404
    assert error(client.get("/v1/namespaces/none/views")) == (404, "NoSuchNamespaceException")


# -- tables -------------------------------------------------------------------------------------------------------


def test_a_load_answers_with_the_cut_and_its_metadata_as_it_is(client: TestClient, catalog: MemoryCatalog):
    answer = client.get(f"{ORDERS}?snapshots=all")
    cut = catalog.cuts["shop.orders"]
    assert not isinstance(cut, Exception)
    assert cut.metadata in answer.content
    assert answer.json() == {
        "metadata-location": cut.metadata_location, "metadata": json.loads(cut.metadata), "config": {}
    }  # fmt: skip
    assert answer.headers["etag"] == SEVEN
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "private, no-cache", "a proxy gives no client the table of another one"


@pytest.mark.parametrize("tags", [SEVEN, f"W/{SEVEN}", f'"6", {SEVEN}', "*"])
def test_a_client_that_has_the_newest_cut_gets_no_body(client: TestClient, tags: str):
    answer = client.get(ORDERS, headers={"if-none-match": tags})
    assert (answer.status_code, answer.content, answer.headers["etag"]) == (304, b"", SEVEN)


def test_a_client_that_has_an_older_cut_gets_the_new_one(client: TestClient, catalog: MemoryCatalog):
    etag = client.get(ORDERS).headers["etag"]
    catalog.cuts["shop.orders"] = cut_of("shop.orders", 8)
    answer = client.get(ORDERS, headers={"if-none-match": etag})
    assert (answer.status_code, answer.json()["metadata"]["current-snapshot-id"]) == (200, 8)


def test_the_same_rows_in_other_files_are_another_answer(client: TestClient, catalog: MemoryCatalog):
    """A table at rest has the same snapshot again once its cut was forgotten, and the former files may be gone."""
    tag, cut = client.get(ORDERS).headers["etag"], catalog.cuts["shop.orders"]
    assert not isinstance(cut, Exception)
    catalog.cuts["shop.orders"] = replace(cut, metadata_location=f"{cut.metadata_location}.again")
    assert client.get(ORDERS, headers={"if-none-match": tag}).status_code == 200


def test_a_table_is_known_without_a_cut_being_made(client: TestClient, catalog: MemoryCatalog):
    assert client.head(ORDERS).status_code == 204
    assert client.head("/v1/namespaces/shop/tables/none").status_code == 404
    assert client.head("/v1/namespaces/none/tables/orders").status_code == 404
    assert catalog.asked == []


def test_which_snapshots_are_wanted_is_a_word_of_the_protocol(client: TestClient):
    assert client.get(f"{ORDERS}?snapshots=refs").status_code == 200
    assert error(client.get(f"{ORDERS}?snapshots=some")) == (400, "BadRequestException")


def test_without_keys_for_engines_none_are_given_out(client: TestClient):
    assert client.get(f"{ORDERS}/credentials").json() == {"storage-credentials": []}
    loaded = client.get(ORDERS).json()
    assert (loaded["config"], "storage-credentials" in loaded) == ({}, False)


def test_keys_for_engines_come_with_each_table_that_the_token_may_see(client: TestClient, catalog: MemoryCatalog):
    keys = {"s3.access-key-id": "reader", "s3.secret-access-key": "hush"}
    catalog.keys = Storage(prefix="s3://lake/", config=keys)
    loaded = client.get(ORDERS).json()
    assert loaded["config"] == keys
    assert loaded["storage-credentials"] == [{"prefix": "s3://lake/", "config": keys}]
    with capture_logs() as logged:
        given = client.get(f"{ORDERS}/credentials")
    assert given.json() == {"storage-credentials": loaded["storage-credentials"]}
    assert given.headers["cache-control"] == "no-store"
    assert [(one["event"], one["table"], one["reader"]) for one in logged] == [
        ("serve.keys_given", "shop.orders", "everything")
    ]
    assert "hush" not in str(logged)
    refused = client.get("/v1/namespaces/shop/tables/none/credentials")
    assert refused.status_code == 404
    assert "hush" not in repr(catalog.keys)
    assert error(client.get("/v1/namespaces/shop/tables/none/credentials")) == (404, "NoSuchTableException")


@pytest.mark.parametrize(("prefix", "shown"), [("", ""), ("pin:5s/", "pin%3A5s/"), ("at:a/", "at%3Aa/")])
def test_keys_that_end_come_with_the_path_of_new_ones(catalog: MemoryCatalog, prefix: str, shown: str):
    client = client_of(application(catalog))
    keys = {"s3.access-key-id": "reader", "s3.session-token": "hush"}
    catalog.keys = Storage(prefix="s3://lake/", config=keys, until=datetime(2026, 1, 1, tzinfo=UTC))
    catalog.named["a"] = ["shop.orders"]
    path = f"/v1/{shown}namespaces/shop/tables/orders/credentials"
    loaded = client.get(f"/v1/{prefix}namespaces/shop/tables/orders").json()
    assert loaded["config"] == {**keys, "client.refresh-credentials-endpoint": path}
    assert loaded["storage-credentials"] == [{"prefix": "s3://lake/", "config": loaded["config"]}]
    again = client.get(path).json()
    assert again == {"storage-credentials": loaded["storage-credentials"]}
    catalog.keys = Storage(prefix="s3://lake/", config=keys)
    assert client.get(ORDERS).json()["config"] == keys, "Iceberg for Java refuses new keys that have no end"


def test_keys_of_a_table_that_may_not_be_seen_are_given_to_no_client(shop: TestClient, catalog: MemoryCatalog):
    catalog.keys = Storage(prefix="s3://lake/", config={"s3.access-key-id": "reader"})
    hidden = shop.get("/v1/namespaces/bank/tables/ledger/credentials")
    missing = shop.get("/v1/namespaces/none/tables/ledger/credentials")
    assert (hidden.status_code, hidden.text) == (404, missing.text.replace("none", "bank"))
    assert catalog.asked == []


def test_what_an_engine_measured_reaches_the_catalog(client: TestClient, catalog: MemoryCatalog):
    report = {"report-type": "scan-report", "snapshot-id": 7}
    answer = client.post(f"{ORDERS}/metrics", json=report)
    assert (answer.status_code, answer.content) == (204, b"")
    assert catalog.reports == [("shop.orders", 7)]
    assert client.post(f"{ORDERS}/metrics", json={"snapshot-id": 6}).status_code == 204, "one that is over is no error"
    assert client.post("/v1/namespaces/shop/tables/none/metrics", json=report).status_code == 404
    shown = client.get("/metrics").text
    assert [f'harness_serve_reports_total{{outcome="{one}"}} 1.0' in shown for one in ("kept", "over")] == [True, True]


@pytest.mark.parametrize("snapshot", [None, "1", 1.0e300, [1], True, 0, -1, 2**63])
def test_a_report_that_names_no_snapshot_is_taken_and_does_nothing(
    client: TestClient, catalog: MemoryCatalog, snapshot: object
):
    assert client.post(f"{ORDERS}/metrics", json={"snapshot-id": snapshot}).status_code == 204
    assert client.post(f"{ORDERS}/metrics", json={"report-type": "commit-report"}).status_code == 204
    assert catalog.reports == []
    assert 'harness_serve_reports_total{outcome="other"} 2.0' in client.get("/metrics").text


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_report_that_is_none_is_a_bad_request(client: TestClient, body: bytes):
    assert error(client.post(f"{ORDERS}/metrics", content=body)) == (400, "BadRequestException")


def test_a_report_without_an_end_is_not_read(client: TestClient):
    assert error(client.post(f"{ORDERS}/metrics", content=b" " * 1_100_000)) == (413, "BadRequestException")


# -- names --------------------------------------------------------------------------------------------------------

HOSTILE = [
    "..", "%2e%2e", "a%2Fb", "%00", "or%00ders", "orders%0a", "%F0%9F%98%80", "orders;drop",
    "'%20or%201=1", "Orders",
    "*", "%1F", "orders%20", "a" * (NAME_MAX + 1), "x" * 20_000, "%E2%80%AEsredro", "ord%65rs.x",
    "shop.orders",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_no_table_has_is_not_found_and_never_asked_for(name: str, catalog: MemoryCatalog):
    """The path goes to the application as it is written, past what a client would make of it."""
    for path in (f"/v1/namespaces/shop/tables/{name}", f"/v1/namespaces/{name}/tables/orders"):
        answer = raw(catalog, path)
        assert error(answer)[0] == 404, path
        assert len(answer.text) < 1000
        assert answer.text.isprintable()
    assert catalog.asked == []


def raw(catalog: MemoryCatalog, path: str) -> httpx.Response:
    """A request whose path is what is given, byte for byte."""

    class Raw(httpx.URL):
        @property
        def raw_path(self) -> bytes:
            return path.encode()

    class Transport(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            request.url = Raw(str(request.url))
            return await super().handle_async_request(request)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=Transport(application(catalog)), base_url="http://localhost") as client:
            return await client.get("/", headers=login())

    return asyncio.run(ask())


def test_a_name_is_decoded_once(client: TestClient, catalog: MemoryCatalog):
    assert raw(catalog, "/v1/namespaces/sh%6Fp/tables/%6Frders").status_code == 200
    assert error(raw(catalog, "/v1/namespaces/shop/tables/%256Frders"))[0] == 404


@pytest.mark.parametrize("path", ["/v1/namespaces/%ff", "/%ff", "/v1/namespaces/shop/tables/%c3%28"])
def test_a_path_that_is_no_text_is_a_bad_request(catalog: MemoryCatalog, path: str):
    assert error(raw(catalog, path)) == (400, "BadRequestException")


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v2/config", "/v1/config/more", "/v1/x/y/z", "/v1/nope/namespaces", "/%00"]
)
def test_a_path_that_does_not_exist_is_an_error_of_the_protocol(client: TestClient, path: str):
    assert error(client.get(path)) == (404, "NotFoundException")


# -- writes -------------------------------------------------------------------------------------------------------

WRITES = [
    ("POST", "/v1/namespaces"), ("DELETE", "/v1/namespaces/shop"), ("POST", "/v1/namespaces/shop/properties"),
    ("POST", "/v1/namespaces/shop/tables"), ("POST", ORDERS), ("DELETE", ORDERS),
    ("POST", "/v1/namespaces/shop/register"), ("POST", "/v1/tables/rename"), ("POST", "/v1/transactions/commit"),
    ("POST", "/v1/namespaces/shop/views"), ("PUT", ORDERS), ("PATCH", "/anything"), ("POST", "/v1/config"),
    ("POST", "/v1/pin:5s/namespaces/shop/tables/orders"), ("DELETE", "/health"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), WRITES)
def test_a_write_is_refused_and_the_answer_says_how_a_table_is_written(client: TestClient, method: str, path: str):
    answer = client.request(method, path, content=b"{}")
    assert error(answer) == (403, "ForbiddenException")
    assert "written by its topic" in answer.json()["error"]["message"]


def test_other_methods_are_not_allowed(client: TestClient):
    answer = client.request("OPTIONS", ORDERS)
    assert error(answer) == (405, "BadRequestException")
    assert "GET" in answer.headers["allow"]


# -- what a client may see ----------------------------------------------------------------------------------------


def test_a_table_that_may_not_be_seen_is_like_one_that_does_not_exist(shop: TestClient, catalog: MemoryCatalog):
    assert shop.get("/v1/namespaces").json() == {"namespaces": [["shop"]]}
    for path in (
        "/v1/namespaces/{}/tables/ledger",
        "/v1/namespaces/{}/tables",
        "/v1/namespaces/{}",
        "/v1/namespaces/{}/views",
    ):
        hidden, missing = shop.get(path.format("bank")), shop.get(path.format("none"))
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text == missing.text.replace("none", "bank")
    assert shop.post("/v1/namespaces/bank/tables/ledger/metrics", json={}).status_code == 404
    assert catalog.asked == []
    assert catalog.reports == []


def test_an_unknown_table_is_not_answered_with_the_names_of_others(shop: TestClient):
    answer = shop.get("/v1/namespaces/shop/tables/order")
    assert error(answer) == (404, "NoSuchTableException")
    assert "bank" not in answer.text


def test_a_grant_of_one_table_shows_that_table_alone(catalog: MemoryCatalog):
    tokens = MemoryTokens({ALL: Principal(name="one", globs=("shop.pay*", "none.*"))})
    client = client_of(application(catalog, tokens))
    found = client.get("/v1/namespaces/shop/tables").json()["identifiers"]
    assert [one["name"] for one in found] == ["payments"]
    assert client.head(ORDERS).status_code == 404
    assert error(client.get(ORDERS)) == (404, "NoSuchTableException")


# -- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "status", "kind"),
    [
        (TryAgain("the ledger is away"), 503, "ServiceUnavailableException"),
        (LeaseEnded("the lease of this read has ended"), 503, "ServiceUnavailableException"),
        (OutcomeUnknown("lost"), 503, "ServiceUnavailableException"),
        (UsageError("wrong"), 400, "BadRequestException"),
        (TableNotServed("only a changelog"), 501, "UnsupportedOperationException"),
        (HarnessError("a file is missing"), 500, "HarnessError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_an_error_of_ours_has_its_status_and_its_message(
    client: TestClient, catalog: MemoryCatalog, raised: HarnessError, status: int, kind: str
):
    catalog.cuts["shop.orders"] = raised
    answer = client.get(ORDERS)
    assert error(answer) == (status, kind)
    assert str(raised) in answer.json()["error"]["message"]
    assert answer.headers.get("retry-after") == ("1" if status == 503 else None)


def test_a_list_says_that_the_ledger_is_away(client: TestClient, catalog: MemoryCatalog):
    catalog.trouble = TryAgain("the ledger is away")
    for path in ("/v1/namespaces", "/v1/namespaces/shop", "/v1/namespaces/shop/tables"):
        assert error(client.get(path)) == (503, "ServiceUnavailableException")


def test_an_unexpected_error_has_an_id_that_the_log_has_too(client: TestClient, catalog: MemoryCatalog):
    catalog.cuts["shop.orders"] = ZeroDivisionError("secret detail")
    with capture_logs() as logged:
        answer = client.get(ORDERS)
    assert error(answer) == (500, "InternalServerError")
    assert "secret detail" not in answer.text
    [broken] = [one for one in logged if one["event"] == "serve.broken"]
    assert broken["id"] in answer.json()["error"]["message"]
    assert broken["exc_info"]


# -- the log of readers and the metrics ---------------------------------------------------------------------------


def test_each_load_is_logged_with_who_read_what_and_from_where(client: TestClient):
    with capture_logs() as logged:
        client.get(ORDERS, headers={"user-agent": "Trino/476", "x-forwarded-for": "203.0.113.9"})
        client.get(ORDERS, headers={"if-none-match": SEVEN})
        client.head(ORDERS)
    first, second = logged
    expected: dict[str, Any] = {
        "event": "serve.loaded", "log_level": "info", "table": "shop.orders", "reader": "everything", "snapshot": 7,
        "unchanged": False, "state": "fresh", "address": "testclient", "agent": "Trino/476",
        "forwarded_for": "203.0.113.9",
    }  # fmt: skip
    assert first == expected
    assert second["unchanged"]


def test_a_refused_load_is_logged_too(shop: TestClient):
    with capture_logs() as logged:
        shop.get("/v1/namespaces/bank/tables/ledger", headers={"user-agent": "x\ny" * 200})
        shop.get("/v1/namespaces/shop/tables/none")
    assert [(one["event"], one["table"], one["reader"]) for one in logged] == [
        ("serve.refused", "bank.ledger", "shop"),
        ("serve.refused", "shop.none", "shop"),
    ]
    assert all(one["agent"].isprintable() and len(one["agent"]) < 300 for one in logged)


def test_metrics_count_requests_by_route_and_name_no_table(client: TestClient):
    client.get(ORDERS)
    client.get(ORDERS, headers={"if-none-match": SEVEN})
    client.get("/nowhere")
    shown = client.get("/metrics", headers={"authorization": ""}).text
    assert 'harness_serve_requests_total{route="table",status="200"} 1.0' in shown
    assert 'harness_serve_requests_total{route="table",status="304"} 1.0' in shown
    assert 'harness_serve_requests_total{route="other",status="404"} 1.0' in shown
    assert "harness_serve_load_seconds_count 2.0" in shown
    assert "orders" not in shown


def test_metrics_count_named_snapshots_and_planned_scans_by_result(catalog: MemoryCatalog):
    client = client_of(application(catalog, plans=True))
    assert client.get("/v1/at:a/namespaces/shop/tables/orders").status_code == 200
    assert client.get(ORDERS).status_code == 200
    catalog.cuts["shop.payments"] = TableNotServed("no")
    assert client.get("/v1/at:a/namespaces/shop/tables/payments").status_code == 501
    assert client.post(f"{ORDERS}/plan", json={}).status_code == 200
    assert client.post("/v1/namespaces/shop/tables/none/plan", json={}).status_code == 404
    shown = client.get("/metrics").text
    for line in (
        'harness_serve_named_loads_total{result="again"} 1.0',
        'harness_serve_named_loads_total{result="made"} 0.0',
        'harness_serve_named_loads_total{result="TableNotServed"} 1.0',
        "harness_serve_named_load_seconds_count 1.0",
        'harness_serve_plans_total{result="planned"} 1.0',
        'harness_serve_plans_total{result="TableUnknown"} 1.0',
        "harness_serve_plan_seconds_count 1.0",
    ):
        assert f"{line}\n" in shown


def test_the_page_on_metrics_names_those_of_the_catalog(client: TestClient):
    client.get(ORDERS)
    page = (Path(__file__).parents[3] / "docs/reference/metrics.md").read_text()
    documented = re.findall(r"^\| `(harness_serve_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    shown = client.get("/metrics").text
    kinds = [one for one in re.findall(r"^# TYPE (\S+) (\S+)$", shown, re.MULTILINE) if not one[0].endswith("_created")]
    assert [(name, kind) for name, kind, _, _ in documented] == kinds
    for name, _, labels, meaning in documented:
        assert f"# HELP {name} {meaning}" in shown
        assert all(f"{label}=" in shown for label in re.findall(r"`(\w+)`", labels))


def test_health_says_why_only_to_clients_with_a_token(catalog: MemoryCatalog):
    found = {"ok": True, "services": {"postgres": {"answers": True, "why": None}}}
    app = application(catalog, health=lambda: found)
    client = client_of(app, None)
    assert client.get("/health").json() == {"ok": True}
    assert client.get("/health", headers=login("wrong")).json() == {"ok": True}
    assert client.get("/health", headers=login()).json() == found
    found["ok"] = False
    assert (client.get("/health").status_code, client.get("/health").json()) == (503, {"ok": False})
    assert client.head("/health").status_code == 503
