"""The judge of requests: what is written, listed and read twice is counted, and priced."""

from __future__ import annotations

import pytest

from harness_pipelines_tests.bench.stores import PRICES, Act
from harness_pipelines_tests.store_proxy import Request

SPARK, PYTHON = "aws-sdk-java/2.1 md/io#sync", "aws-sdk-cpp/1.11"


def of(kind: str, path: str = "/b/metadata/x.json", agent: str = PYTHON) -> Request:
    return Request(kind=kind, path=path, agent=agent)


def test_metadata_that_one_process_reads_twice_is_named_and_what_two_read_is_not():
    twice = Act(
        requests=(of("GET"), of("GET"), of("GET", "/b/metadata/y.avro"), of("GET", "/b/metadata/y.avro", SPARK))
    )
    assert twice.read_twice == ["/b/metadata/x.json"]
    assert Act(requests=(of("GET", agent=SPARK), of("GET", agent=SPARK))).read_twice == ["/b/metadata/x.json"]
    mark = of("GET", "/b/.harness-owner.json")
    assert Act(requests=(mark, mark)).read_twice == [], "it may change at any time"
    parts = Act(requests=(of("GET", "/b/d.parquet"), of("GET", "/b/d.parquet"), of("HEAD"), of("HEAD")))
    assert parts.read_twice == [], "a data file is read by its footer and its columns"


def test_requests_are_counted_by_kind_and_cost_what_the_store_asks_for_them():
    act = Act(requests=(of("PUT"), of("CREATE"), of("LIST"), of("GET"), of("BULK")))
    assert (act.count("PUT", "CREATE"), act.count("DELETE")) == (2, 0)
    assert act.dollars == pytest.approx(3 * 0.005 / 1000 + 0.0004 / 1000)


@pytest.mark.parametrize(
    ("method", "address", "headers"),
    [
        ("PUT", "/b/k", {}),
        ("PUT", "/b/k", {"If-None-Match": "*"}),
        ("PUT", "/b/k", {"If-Match": '"1"'}),
        ("POST", "/b?delete", {}),
        ("POST", "/b/k?uploads", {}),
        ("DELETE", "/b/k", {}),
        ("GET", "/b?list-type=2", {}),
        ("GET", "/b?uploads", {}),
        ("GET", "/b?versioning", {}),
        ("GET", "/b/k", {}),
        ("HEAD", "/b/k", {}),
    ],
)
def test_every_kind_of_request_has_a_price(method: str, address: str, headers: dict[str, str]):
    assert Request.of(method, address, headers).kind in PRICES
