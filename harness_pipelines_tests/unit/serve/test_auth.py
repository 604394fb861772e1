"""Tokens: what is asked of the ledger and how often, what each may see, and OAuth for clients that know only that."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from harness_pipelines.errors import TryAgain
from harness_pipelines.serve.app import Application
from harness_pipelines.serve.auth import FirstOf, KnownTokens, Principal, RunToken, basic, bearer
from harness_pipelines.serve.logins import Expiries
from harness_pipelines_tests.served import ALL, AT, SHOP, MemoryCatalog, MemoryTokens, application, cut_of, login

FORM = {"grant_type": "client_credentials", "client_id": "shop", "client_secret": SHOP, "scope": "catalog"}


def asked(app: Application, path: str = "/v1/config", **headers: str) -> Any:
    return TestClient(app, base_url="http://localhost").get(path, headers=headers)


def log_in(form: dict[str, str] | str, **headers: str) -> Any:
    content = form if isinstance(form, str) else str(httpx.QueryParams(form))
    app = application(MemoryCatalog({"shop.orders": cut_of("shop.orders")}))
    return TestClient(app, base_url="http://localhost").post("/v1/oauth/tokens", content=content, headers=headers)


# -- bearer tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/config", "/v1/namespaces/shop/tables/orders", "/nowhere"])
def test_nothing_is_answered_without_a_token_not_even_what_exists(path: str):
    app = application(MemoryCatalog({"shop.orders": cut_of("shop.orders")}))
    for method in ("GET", "POST", "DELETE"):
        answer = TestClient(app, base_url="http://localhost").request(method, path)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "NotAuthorizedException"
        assert answer.headers["www-authenticate"] == 'Bearer realm="harness"'


@pytest.mark.parametrize("header", ["Bearer wrong", "Bearer ", "Bearer", "Basic dTpw", ALL, "Bearer " + "x" * 20_000])
def test_a_wrong_token_is_refused_and_logged_without_itself(header: str):
    with capture_logs() as logged:
        answer = asked(application(MemoryCatalog({})), authorization=header)
    assert answer.status_code == 401
    assert [one["event"] for one in logged] == ["serve.unknown"]
    assert "wrong" not in repr({**logged[0], "why": ""})


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(scheme: str):
    assert asked(application(MemoryCatalog({})), authorization=f"{scheme} {ALL}").status_code == 200


def test_a_ledger_that_is_away_is_no_wrong_token():
    tokens = MemoryTokens()
    tokens.trouble = TryAgain("the ledger is away")
    answer = asked(application(MemoryCatalog({}), tokens), **login())
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")


def holder(known: KnownTokens, secret: str) -> Principal | None:
    is_known, found = known.known(secret)
    return found if is_known else known.check([secret])[0]


class Clock:
    """Seconds, and the date that goes with them."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at

    def known(self, tokens: MemoryTokens, **options: int) -> KnownTokens:
        return KnownTokens(tokens, clock=self, now=lambda: AT + timedelta(seconds=self.at), **options)


def test_the_ledger_is_asked_for_a_token_once_in_three_seconds():
    clock, tokens = Clock(), MemoryTokens()
    known = clock.known(tokens)
    assert known.known(ALL) == (False, None)
    assert [holder(known, ALL) for _ in range(100)] == [tokens.principals[ALL]] * 100
    assert [holder(known, "wrong") for _ in range(100)] == [None] * 100
    assert tokens.asked == 2
    del tokens.principals[ALL]  # revoked
    clock.at = 2.9
    assert holder(known, ALL) is not None
    clock.at = 3.0
    assert known.was_good(ALL)
    assert holder(known, ALL) is None
    assert not known.was_good(ALL)


def test_a_token_ends_at_its_second_though_it_is_known():
    clock = Clock()
    tokens = MemoryTokens({ALL: Principal(name="a", globs=("*",), expires=AT + timedelta(seconds=1))})
    known = clock.known(tokens)
    assert holder(known, ALL) is not None
    clock.at = 1.0
    assert known.known(ALL) == (True, None)


def test_strangers_fill_no_memory_and_a_secret_is_kept_as_its_digest():
    tokens = MemoryTokens()
    known = Clock().known(tokens, known_max=10)
    assert holder(known, ALL) is not None
    for number in range(1000):
        holder(known, f"wrong {number}")
    assert len(known._wrong) == 10
    assert known.known(ALL) == (True, tokens.principals[ALL]), "strangers take no place of a good one"
    assert holder(known, "x" * 513) is None
    assert holder(known, "") is None
    assert tokens.asked == 1001, "what no token can be is not asked for"
    assert ALL not in repr(known.__dict__)
    assert holder(known, "\ud800") is None


def test_an_error_of_the_ledger_is_not_kept():
    tokens = MemoryTokens()
    known = Clock().known(tokens)
    tokens.trouble = TryAgain("away")
    with pytest.raises(TryAgain):
        known.check([ALL])
    tokens.trouble = None
    assert holder(known, ALL) is not None


def test_a_token_of_one_run_sees_all_and_another_run_has_another_one():
    one, other = RunToken(), RunToken()
    tokens = MemoryTokens()
    both = FirstOf(one, tokens)
    [found] = both.check([one.secret])
    assert tokens.asked == 0
    assert found is not None
    assert found.may_see("shop.orders")
    assert both.check([SHOP, one.secret, "wrong", SHOP]) == [
        tokens.principals[SHOP],
        found,
        None,
        tokens.principals[SHOP],
    ]
    assert one.check([other.secret]) == [None]
    assert len(one.secret) >= 43


@pytest.mark.parametrize(
    ("glob", "seen"),
    [("*", True), ("shop.*", True), ("shop.orders", True), ("*.orders", True), ("shop.order?", True),
     ("shop", False), ("Shop.*", False), ("shop.orders_old", False), ("bank.*", False)],
)  # fmt: skip
def test_a_glob_is_compared_with_the_whole_name(glob: str, seen: bool):
    assert Principal(name="a", globs=("none.*", glob)).may_see("shop.orders") is seen


def test_headers_are_read_as_the_standards_have_them():
    assert bearer("  Bearer   abc ") == "abc"
    assert bearer(None) is None
    assert basic("Basic " + base64.b64encode(b"name:se:cret").decode()) == ("name", "se:cret")
    assert [basic(wrong) for wrong in (None, "Basic", "Basic !!", "Basic /w==", "Basic bmFtZQ==", "Bearer x")] == [
        None
    ] * 6


# -- the host -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8181", "127.0.0.1:1", "127.8.8.8", "[::1]", "[::1]:80", "LOCALHOST"]
)
def test_a_client_of_this_machine_names_it(host: str):
    assert asked(application(MemoryCatalog({})), host=host, **login()).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8181", "", "10.0.0.1", "127.0.0.1.evil.example", "[::2]"]
)
def test_a_foreign_host_name_is_refused_on_the_loopback_alone(host: str):
    assert asked(application(MemoryCatalog({})), host=host, **login()).status_code == 403
    assert asked(application(MemoryCatalog({}), local_only=False), host=host, **login()).status_code == 200


# -- OAuth --------------------------------------------------------------------------------------------------------


def test_a_client_gets_the_token_that_it_has_as_an_access_token():
    answer = log_in(FORM)
    assert answer.json() == {
        "access_token": SHOP,
        "token_type": "bearer",
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
    }
    assert answer.headers["cache-control"] == "no-store"


def test_the_secret_alone_is_enough_and_may_be_in_the_header():
    grant = {"grant_type": "client_credentials"}
    assert log_in({**grant, "client_secret": SHOP}).json()["access_token"] == SHOP
    both = base64.b64encode(f"shop:{SHOP}".encode()).decode()
    assert log_in(grant, authorization=f"Basic {both}").json()["access_token"] == SHOP


@pytest.mark.parametrize(
    ("form", "status", "kind"),
    [
        ({**FORM, "client_secret": "wrong"}, 401, "invalid_client"),
        ({**FORM, "client_id": "everything"}, 401, "invalid_client"),
        ({**FORM, "client_secret": ""}, 400, "invalid_request"),
        ({"grant_type": "password", "username": "a"}, 400, "unsupported_grant_type"),
        ({"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange"}, 400, "unsupported_grant_type"),
        ({"client_id": "shop"}, 400, "invalid_request"),
        ("", 400, "invalid_request"),
        ("no form", 400, "invalid_request"),
        ("grant_type=a&grant_type=b", 400, "invalid_request"),
        ("x=1&" * 100 + "y=1", 400, "invalid_request"),
        ("x" * 70_000, 413, "invalid_request"),
    ],
)
def test_errors_of_a_login_have_the_form_of_oauth(form: dict[str, str] | str, status: int, kind: str):
    answer = log_in(form)
    assert (answer.status_code, answer.json()["error"]) == (status, kind)
    assert set(answer.json()) == {"error", "error_description"}
    assert ("www-authenticate" in answer.headers) == (status == 401)


def test_a_login_has_no_other_method():
    app = application(MemoryCatalog({}))
    assert asked(app, "/v1/oauth/tokens", **login()).status_code == 404


def test_a_secret_that_ends_soon_is_warned_of_once_a_day():
    now = [0.0]
    expiries = Expiries(clock=lambda: now[0])
    soon = Principal(name="trino", globs=("*",), expires=AT + timedelta(days=6))
    with capture_logs() as logged:
        for now[0] in (0.0, 1.0, 86399.0, 86400.0):
            expiries.look(soon, AT)
        expiries.look(Principal(name="a", globs=("*",), expires=AT + timedelta(days=8)), AT)
        expiries.look(Principal(name="b", globs=("*",)), AT)
    assert [(one["event"], one["reader"], one["log_level"]) for one in logged] == [
        ("serve.token_ends", "trino", "warning")
    ] * 2
