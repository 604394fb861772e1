"""The status page beside the catalog: who sees it, by which login, for how long, and what other sites get of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.cookies import Morsel, SimpleCookie
from typing import Any

import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.serve.app import Application
from harness_pipelines.serve.auth import KNOWN_S, KnownTokens, Principal
from harness_pipelines.serve.page.sessions import LASTS_S, Sessions
from harness_pipelines_tests.served import ALL, SHOP, MemoryCatalog, MemoryFacts, MemoryTokens, application, login

NAMES = ("shop.orders", "bank.ledger")
OWN = {"sec-fetch-site": "same-origin"}  #: what a browser says of a form of this server's pages
FOREIGN_HOSTS = ("evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example", "203.0.113.9", "")
ALL_PATHS = ("/", "/page.js", "/page.css", "/draw.js", "/login", "/api/status")


class Clock:
    """Seconds that a test lets pass."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def facts() -> MemoryFacts:
    return MemoryFacts(*NAMES)


@pytest.fixture
def tokens() -> MemoryTokens:
    return MemoryTokens()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def here(facts: MemoryFacts) -> TestClient:
    """A browser on the server's machine."""
    return TestClient(application(MemoryCatalog({}), facts=facts), base_url="http://localhost")


@pytest.fixture
def served(facts: MemoryFacts, tokens: MemoryTokens, clock: Clock) -> Application:
    """A server that other machines reach."""
    return Application(MemoryCatalog({}), KnownTokens(tokens, clock=clock), local_only=False, facts=facts)


@pytest.fixture
def far(served: Application) -> TestClient:
    """A browser on another machine."""
    return TestClient(served, base_url="https://serve.example", follow_redirects=False)


def log_in(client: TestClient, secret: str = ALL, **headers: str) -> Any:
    return client.post("/login", data={"token": secret}, headers=headers or OWN)


def tables(client: TestClient) -> list[str]:
    answer = client.get("/api/status")
    assert answer.status_code == 200, answer.text
    return [one["table"] for one in answer.json()["tables"]]


def cookie_of(answer: Any) -> Morsel[str]:
    [(_, found)] = SimpleCookie(answer.headers["set-cookie"]).items()
    return found


# -- on the loopback ----------------------------------------------------------------------------------------------


def test_a_browser_on_the_server_s_machine_needs_no_login(here: TestClient):
    assert "<!doctype html>" in here.get("/").text
    assert tables(here) == list(NAMES)
    assert here.get("/api/status").json()["reader"] is None
    found = here.get("/api/status", params={"table": "shop.orders", "drawn": "7"}).json()
    assert (found["open"], found["drawn"]) == ("shop.orders", "7")
    assert here.get("/login", follow_redirects=False).headers["location"] == "/"


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_name_of_another_host_that_leads_here_gets_nothing(here: TestClient, host: str):
    """A foreign page can point its own name to 127.0.0.1, and ask from the browser of a person on this machine."""
    for path in ALL_PATHS:
        assert here.get(path, headers={"host": host}).status_code == 403, path
    assert log_in(here, host=host, **OWN).status_code == 403


@pytest.mark.parametrize("host", ["LOCALHOST:80", "127.0.0.1:8181", "[::1]:8000", "[::1]", "127.0.0.2"])
def test_a_tunnel_may_have_any_name_of_this_machine(here: TestClient, host: str):
    assert here.get("/api/status", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via", "x-real-ip", "X-Forwarded-Host"])
def test_what_a_proxy_passes_on_comes_from_elsewhere_and_needs_a_login(here: TestClient, header: str):
    passed_on = {header: "for=203.0.113.9"}
    assert here.get("/api/status", headers=passed_on).status_code == 401
    assert "form" in here.get("/login", headers=passed_on).text
    assert log_in(here, **OWN, **passed_on).status_code == 200, "it was sent to the page"
    assert here.get("/api/status", headers=passed_on).json()["reader"] == "everything"


# -- files and methods --------------------------------------------------------------------------------------------


def test_no_script_but_the_page_s_may_run_and_nothing_is_loaded_from_elsewhere(far: TestClient):
    log_in(far)
    for path in ALL_PATHS:
        answer = far.get(path)
        assert answer.status_code == 200, path
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'" in policy and "frame-ancestors 'none'" in policy
        assert "form-action 'self'" in policy and "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert re.findall(r"https?://[\w./]+", answer.text) in ([], ["http://www.w3.org/2000/svg"]), path


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_page_is_only_read(far: TestClient, method: str):
    for path in ("/", "/page.js", "/api/status"):
        answer = far.request(method, path, headers=OWN)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
    if method != "POST":
        assert far.request(method, "/login").headers["allow"] == "GET, HEAD, POST"
        assert far.request(method, "/logout").headers["allow"] == "POST"


def test_the_rest_of_the_paths_is_the_catalog_s(far: TestClient):
    log_in(far)
    assert far.get("/v1/namespaces").status_code == 401, "a browser's session is no token of an engine"
    assert far.get("/nothing").status_code == 401
    assert far.get("/nothing", headers=login()).status_code == 404
    assert far.get("/api/status", headers={**login(), "cookie": ""}).status_code == 401
    assert 'route="page",status="303"' in far.get("/metrics").text


# -- login --------------------------------------------------------------------------------------------------------


def test_from_another_machine_the_page_shows_nothing_before_a_login(far: TestClient):
    assert far.get("/").status_code == 200, "its code is public, and asks for the state"
    for path in ("/", "/page.js", "/draw.js", "/login"):
        assert not any(name in far.get(path).text for name in NAMES)
    answer = far.get("/api/status?table=shop.orders")
    assert (answer.status_code, answer.json()) == (401, {"trouble": "Log in again."})


def test_a_token_opens_a_session_with_a_cookie_that_scripts_and_other_sites_do_not_get(far: TestClient):
    with capture_logs() as logged:
        answer = log_in(far)
    assert (answer.status_code, answer.headers["location"], answer.content) == (303, "/", b"")
    cookie = cookie_of(answer)
    assert cookie.key == "__Host-harness", "browsers take it by TLS, from this host, for all of its paths alone"
    assert (cookie["httponly"], cookie["secure"], cookie["samesite"].lower()) == (True, True, "strict")
    assert (cookie["path"], cookie["domain"], cookie["max-age"]) == ("/", "", "43200")
    assert ALL not in answer.headers["set-cookie"] and len(cookie.value) >= 43
    assert tables(far) == list(NAMES)
    assert far.get("/api/status").json()["reader"] == "everything"
    assert [(one["event"], one["reader"]) for one in logged] == [("serve.logged_in", "everything")]
    assert cookie_of(log_in(far)).value != cookie.value, "a number is given once"


def test_without_tls_on_the_loopback_the_cookie_is_one_that_a_browser_sends(here: TestClient):
    answer = here.post("/login", data={"token": ALL}, headers=OWN, follow_redirects=False)
    cookie = cookie_of(answer)
    assert (cookie.key, cookie["secure"], cookie["httponly"]) == ("harness", "", True)


def test_a_token_shows_its_tables_alone(far: TestClient):
    log_in(far, SHOP)
    answer = far.get("/api/status")
    assert [one["table"] for one in answer.json()["tables"]] == ["shop.orders"]
    assert "bank" not in answer.text


@pytest.mark.parametrize("secret", ["unknown", "", " ", "x" * 600, "everything", f"{ALL}2", "\u0663"])
def test_a_wrong_token_opens_nothing_and_is_counted_among_strangers(far: TestClient, secret: str):
    with capture_logs() as logged:
        answer = log_in(far, secret)
    assert answer.status_code == 403
    assert "wrong, expired or revoked" in answer.text
    assert "set-cookie" not in answer.headers
    assert far.get("/api/status").status_code == 401
    assert [one["event"] for one in logged] == ["serve.unknown"]
    assert len(secret) < 600 or secret not in str(logged)


def test_guesses_ask_the_ledger_no_more_than_other_strangers_do(far: TestClient, tokens: MemoryTokens):
    for _ in range(5):
        assert log_in(far, "wrong").status_code == 403
    assert tokens.questions == 1, "a wrong token is known as such"
    with capture_logs() as logged:
        log_in(far, "also wrong")
    assert len(logged) <= 1


@pytest.mark.parametrize("number", ["", "x", "A" * 43, "A" * 5000, "'; DROP", "%00"])
def test_a_cookie_that_no_login_gave_is_no_session(far: TestClient, number: str):
    for name in ("__Host-harness", "harness"):
        assert far.get("/api/status", headers={"cookie": f"{name}={number}"}).status_code == 401


def test_a_login_takes_no_number_that_the_browser_brought_and_ends_the_session_before(far: TestClient):
    far.cookies.set("__Host-harness", "chosen", domain="serve.example")
    first = cookie_of(log_in(far)).value
    assert first != "chosen"
    second = cookie_of(log_in(far, SHOP)).value
    for number, status in (("chosen", 401), (first, 401), (second, 200)):
        answer = TestClient(far.app, base_url="https://serve.example").get(
            "/api/status", headers={"cookie": f"__Host-harness={number}"}
        )
        assert answer.status_code == status


# -- the end of a session -----------------------------------------------------------------------------------------


def test_a_session_ends_with_its_token_within_the_time_of_every_token(
    far: TestClient, tokens: MemoryTokens, clock: Clock
):
    log_in(far)
    del tokens.principals[ALL]
    clock.at += KNOWN_S
    assert far.get("/api/status").status_code == 401
    tokens.principals[ALL] = Principal(name="everything", globs=("*",))
    clock.at += KNOWN_S
    assert far.get("/api/status").status_code == 401, "it does not come back"


def test_a_session_ends_when_its_token_expires(facts: MemoryFacts, tokens: MemoryTokens):
    now = [datetime.now(UTC)]
    soon = now[0] + timedelta(days=1)
    tokens.principals[ALL] = Principal(name="everything", globs=("*",), expires=soon)
    known = KnownTokens(tokens, now=lambda: now[0])
    served = Application(MemoryCatalog({}), known, local_only=False, facts=facts)
    far = TestClient(served, base_url="https://serve.example", follow_redirects=False)
    log_in(far)
    assert tables(far) == list(NAMES)
    now[0] = soon
    assert far.get("/api/status").status_code == 401
    assert log_in(far).status_code == 403


def test_grants_that_change_change_what_a_session_sees(far: TestClient, tokens: MemoryTokens, clock: Clock):
    log_in(far)
    tokens.principals[ALL] = Principal(name="everything", globs=("bank.*",))
    clock.at += KNOWN_S
    assert tables(far) == ["bank.ledger"]


def test_a_logout_ends_the_session_and_takes_the_cookie(far: TestClient):
    number = cookie_of(log_in(far)).value
    with capture_logs() as logged:
        answer = far.post("/logout", headers=OWN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert cookie_of(answer)["max-age"] == "0"
    assert [(one["event"], one["reader"]) for one in logged] == [("serve.logged_out", "everything")]
    assert far.get("/api/status", headers={"cookie": f"__Host-harness={number}"}).status_code == 401
    assert far.post("/logout", headers=OWN).status_code == 303, "a second one does nothing"


def test_a_session_lasts_for_half_a_day_at_most(clock: Clock):
    sessions = Sessions(clock=clock)
    number = sessions.begin(reader="me", secret="hush")
    clock.at += LASTS_S - 1
    found = sessions.find(number)
    assert found is not None and found.reader == "me"
    assert "hush" not in repr(found)
    clock.at += 1
    assert sessions.find(number) is None
    assert len(sessions) == 0


def test_the_number_of_sessions_has_a_limit_for_each_token_and_for_all():
    sessions = Sessions(most=4, of_one=2)
    other = sessions.begin(reader="other", secret="o")
    mine = [sessions.begin(reader="me", secret="m") for _ in range(50)]
    assert [sessions.find(number) is not None for number in mine] == [False] * 48 + [True] * 2
    assert sessions.find(other), "who has one token ends no session of others"
    more = [sessions.begin(reader=f"r{number}", secret="r") for number in range(3)]
    assert [sessions.find(number) is not None for number in (other, *mine[-2:], *more)] == [False] * 2 + [True] * 4
    assert len(sessions) == 4


# -- other sites --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"sec-fetch-site": "cross-site", "origin": "https://serve.example"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://serve.example.evil.example"},
        {"origin": ""},
        {"referer": "https://serve.example/"},
    ],
    ids=str,
)
def test_a_form_of_another_site_neither_logs_in_nor_out(far: TestClient, headers: Mapping[str, str]):
    log_in(far)
    assert log_in(far, SHOP, **headers).status_code == 403
    assert far.post("/logout", headers=headers).status_code == 403
    assert far.get("/api/status").json()["reader"] == "everything"


def test_a_browser_that_names_only_the_origin_may_log_in(far: TestClient):
    assert log_in(far, origin="https://serve.example").status_code == 303


# -- what goes wrong ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"token=" + b"x" * 5000, 413), (b"token=a&token=b", 400), (b"\xff=1", 400), (b"token", 400), (b"", 403)],
)
def test_a_body_that_is_no_login_is_refused_and_the_form_is_shown_again(far: TestClient, body: bytes, status: int):
    answer = far.post("/login", content=body, headers=OWN)
    assert (answer.status_code, "<form" in answer.text) == (status, True)


@pytest.mark.parametrize("secret", [ALL, "another"])
def test_while_the_ledger_is_away_a_login_is_asked_for_again_and_no_server_is_named(
    far: TestClient, tokens: MemoryTokens, secret: str
):
    tokens.trouble = TryAgain("Postgres at db.internal:5432 does not answer")
    answer = log_in(far, secret)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "cannot be looked up now" in answer.text
    assert "db.internal" not in answer.text


def test_a_session_outlives_a_ledger_that_is_away(far: TestClient, tokens: MemoryTokens, clock: Clock):
    log_in(far)
    tokens.trouble = TryAgain("Postgres at db.internal:5432 does not answer")
    clock.at += KNOWN_S
    answer = far.get("/api/status")
    assert answer.status_code == 503
    assert "db.internal" not in answer.text
    tokens.trouble = None
    assert tables(far) == list(NAMES)


def test_trouble_of_the_ledger_is_said_without_secrets(here: TestClient, facts: MemoryFacts):
    facts.trouble = HarnessError("no answer of postgresql://me:hush@db/harness")
    answer = here.get("/api/status")
    assert answer.status_code == 503
    assert "The ledger cannot be read" in answer.json()["trouble"]
    assert "hush" not in answer.text


def test_an_unexpected_error_has_an_id_that_the_log_has_too(here: TestClient, facts: MemoryFacts):
    facts.trouble = ZeroDivisionError("bank.ledger")
    with capture_logs() as logged:
        answer = here.get("/api/status")
    assert answer.status_code == 500
    assert "bank" not in answer.text
    [broken] = [one for one in logged if one["event"] == "serve.broken"]
    assert broken["id"] in answer.json()["error"]["message"]


def test_what_the_page_s_script_reads_of_answers_is_what_they_have(here: TestClient):
    script = here.get("/page.js").text
    for word in ("answer.status === 401", "found.trouble", "found.error?.message", "seen.reader"):
        assert word in script
