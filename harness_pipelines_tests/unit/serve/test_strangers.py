"""Those without a login: however many come, and whatever they send, clients with a good token are answered."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from harness_pipelines.errors import HarnessError, TryAgain
from harness_pipelines.ports.errors import LakeAway
from harness_pipelines.serve.auth import KnownTokens, Principal
from harness_pipelines.serve.logins import Logins, LoginsFull, SharedCall
from harness_pipelines.serve.places import CONNECTIONS_MIN, Places, connections_max
from harness_pipelines.serve.server import listening, serving, url_of
from harness_pipelines.serve.strangers import ADDRESSES_MAX, Strangers
from harness_pipelines_tests.producer import DEADLINE_S, wait_until
from harness_pipelines_tests.served import ALL, MemoryCatalog, MemoryTokens, application, cut_of, login

ORDERS = "/v1/namespaces/shop/tables/orders"
#: What a stranger learns of: none of these is in an answer without a login.
SECRETS = ("10.9.8.7", "5432", "harness_reader", "/srv/lake", "shop", "orders", "psycopg", "starlette", "uvicorn")


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog({"shop.orders": cut_of("shop.orders")})


# -- look-ups -----------------------------------------------------------------------------------------------------


class Slow(MemoryTokens):
    """Answers once it is let go on; notes what each question was about."""

    def __init__(self) -> None:
        super().__init__()
        self.about: list[Sequence[str]] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        self.about.append(list(secrets))
        assert self.go_on.wait(DEADLINE_S)
        return super().check(secrets)


async def until(condition: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0)


def test_a_thousand_wrong_tokens_are_two_questions_and_a_good_one_is_in_the_second_of_them():
    tokens = Slow()

    async def flood() -> Principal | None:
        logins = Logins(KnownTokens(tokens), every_s=0)
        tokens.go_on.clear()
        strangers = [asyncio.create_task(logins.holder(f"wrong {number}")) for number in range(999)]
        await until(lambda: tokens.about)
        mine = asyncio.create_task(logins.holder(ALL))
        more = [asyncio.create_task(logins.holder(f"more {number}")) for number in range(500)]
        await asyncio.sleep(0)
        tokens.go_on.set()
        found = await mine
        assert {await one for one in (*strangers, *more)} == {None}
        return found

    assert asyncio.run(flood()) == tokens.principals[ALL]
    assert tokens.questions == 2
    assert ALL in tokens.about[1]


def test_a_token_that_was_good_is_asked_for_first_and_never_refused():
    tokens, now = Slow(), [0.0]

    async def flood() -> None:
        logins = Logins(KnownTokens(tokens, clock=lambda: now[0]), every_s=0, waiting_max=2000)
        assert await logins.holder(ALL) is not None
        now[0] = 10.0  # what is known is old
        tokens.go_on.clear()
        first = asyncio.create_task(logins.holder("wrong"))
        await until(lambda: len(tokens.about) == 2)
        strangers = [asyncio.create_task(logins.holder(f"wrong {number}")) for number in range(2000)]
        await asyncio.sleep(0)
        with pytest.raises(LoginsFull):
            await logins.holder("one more")
        mine = asyncio.create_task(logins.holder(ALL))
        await asyncio.sleep(0)
        tokens.go_on.set()
        assert await mine is not None
        assert [one for one in await asyncio.gather(first, *strangers) if one] == []

    asyncio.run(flood())
    assert tokens.about[2][0] == ALL


def test_the_ledger_is_asked_no_oftener_than_a_rate():
    tokens = MemoryTokens()

    async def ask() -> float:
        logins = Logins(KnownTokens(tokens), every_s=0.05)
        began = time.monotonic()
        for number in range(5):
            assert await logins.holder(f"wrong {number}") is None
        return time.monotonic() - began

    assert asyncio.run(ask()) >= 0.2
    assert tokens.questions == 5


def test_many_requests_with_one_token_wait_for_one_look_up_and_get_its_error():
    tokens = Slow()
    tokens.trouble = TryAgain("away")

    async def ask() -> None:
        logins = Logins(KnownTokens(tokens), every_s=0)
        found = await asyncio.gather(*(logins.holder(ALL) for _ in range(50)), return_exceptions=True)
        assert {type(one) for one in found} == {TryAgain}
        tokens.trouble = None
        assert await logins.holder(ALL) is not None

    asyncio.run(ask())
    assert [list(one) for one in tokens.about] == [[ALL], [ALL]]


def test_a_client_that_is_gone_ends_no_look_up_of_another_one():
    tokens = Slow()

    async def ask() -> None:
        logins = Logins(KnownTokens(tokens), every_s=0)
        tokens.go_on.clear()
        gone, stays = (asyncio.create_task(logins.holder(ALL)) for _ in range(2))
        await until(lambda: tokens.about)
        gone.cancel()
        tokens.go_on.set()
        assert await stays is not None

    asyncio.run(ask())


def test_health_is_asked_for_once_for_all_who_ask_at_the_time():
    asked = []

    async def ask() -> None:
        shared = SharedCall(lambda: asked.append(1) or {"ok": True}, keep_s=60)  # type: ignore[func-returns-value]
        for _ in range(3):
            assert await asyncio.gather(*(shared.get() for _ in range(100))) == [{"ok": True}] * 100
        soon = SharedCall(lambda: asked.append(2), keep_s=0)
        for _ in range(3):
            await soon.get()

    asyncio.run(ask())
    assert asked == [1, 2, 2, 2]


# -- the log ------------------------------------------------------------------------------------------------------


def request(address: str = "203.0.113.9") -> Request:
    scope = {"type": "http", "path": "/v1/config", "headers": [], "query_string": b"", "client": (address, 1)}
    return Request({**scope, "method": "GET", "server": ("localhost", 80), "scheme": "http"})


def test_a_flood_makes_one_line_at_once_and_one_a_minute():
    async def flood() -> None:
        strangers = Strangers(every_s=0.05)
        for number in range(1000):
            strangers.came(request(f"203.0.113.{number % 250}"), why="no token" if number % 2 else "a wrong token")
        await until(lambda: len(logged) == 2)
        strangers.came(request(), why="no token")
        assert len(logged) == 2, "the next minute has begun"
        await until(lambda: len(logged) == 3)
        await until(lambda: not strangers._is_summing)  # a quiet minute is over
        strangers.came(request(), why="no token")

    with capture_logs() as logged:
        asyncio.run(flood())
    first, more, again, last = logged
    assert (first["event"], first["address"], first["path"]) == ("serve.unknown", "203.0.113.0", "/v1/config")
    assert (more["event"], more["requests"], len(more["some_addresses"])) == ("serve.unknown_more", 999, ADDRESSES_MAX)
    assert more["why"] == {"no token": 500, "a wrong token": 499}
    assert (again["event"], again["requests"]) == ("serve.unknown_more", 1)
    assert last["event"] == "serve.unknown"


# -- what they are told -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "trouble",
    [
        LakeAway("Postgres at 10.9.8.7:5432 refused the login harness_reader: psycopg"),
        HarnessError("/srv/lake/shop/orders is broken"),
        ZeroDivisionError("10.9.8.7 /srv/lake"),
    ],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("path", ["/v1/config", ORDERS, "/v1/oauth/tokens", "/health", "/metrics", "/nowhere"])
def test_an_answer_without_a_login_names_nothing_behind_the_server(
    catalog: MemoryCatalog, trouble: Exception, path: str
):
    tokens = MemoryTokens()
    tokens.trouble = trouble
    found = {"ok": False, "services": {"postgres": {"answers": False, "why": "10.9.8.7:5432 is away"}}}
    client = TestClient(application(catalog, tokens, health=lambda: found), base_url="http://localhost")
    form = {"grant_type": "client_credentials", "client_secret": "x"}
    method, data = ("POST", form) if path.endswith("/tokens") else ("GET", None)
    answers = [client.request(method, path, data=data, headers=login()), client.get(path)]
    for answer in answers:
        said = f"{answer.headers} {answer.text}".replace(path, "")
        # A port is no part of a longer number: among the metrics are sizes and times.
        assert [secret for secret in SECRETS if re.search(rf"(?<![\d.]){re.escape(secret)}(?!\d)", said)] == []
    if path == "/v1/config" and isinstance(trouble, TryAgain):
        assert (answers[0].status_code, answers[0].headers["retry-after"]) == (503, "1")


# -- connections --------------------------------------------------------------------------------------------------


def pairs(count: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    return (socket.socketpair() for _ in range(count))


def is_ended(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_strangers_have_half_of_the_places_and_the_oldest_that_waits_goes_first():
    with ExitStack() as stack:
        places, clients = Places(8), []
        for number, (mine, client) in enumerate(pairs(10)):
            stack.enter_context(mine)
            clients.append(stack.enter_context(client))
            places.admit(mine)
            if number == 0:
                places.mark_known(mine.fileno())
            if number == 1:
                places.mark_http(mine.fileno(), lambda: True)
        assert len(places) == 5
        ended = [number for number, client in enumerate(clients) if is_ended(client)]
        assert ended == [2, 3, 4, 5, 6], "neither the one that is known, nor the one that is being answered"


def test_a_descriptor_that_is_given_again_is_another_connection():
    places = Places(8)
    for _ in range(20):
        mine, client = socket.socketpair()
        with mine, client:
            places.admit(mine)
            assert not is_ended(client)
            places.mark_known(mine.fileno())
    assert len(places) <= 2


def test_connections_fit_into_the_files_that_the_process_may_open(monkeypatch: pytest.MonkeyPatch):
    import resource

    for files, wanted in ((1024, 768), (100, CONNECTIONS_MIN), (10**6, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections_max() == wanted


def test_a_login_is_answered_under_idle_sockets_and_a_flood_of_wrong_tokens(catalog: MemoryCatalog):
    """200 silent sockets, one hundred wrong tokens at any time, and a ledger that takes a while for each question."""

    class Ledger(MemoryTokens):
        def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
            stop.wait(0.02)
            return super().check(secrets)

    tokens, stop, sent = Ledger(), threading.Event(), [0]
    with (
        ExitStack() as stack,
        listening("127.0.0.1", 0) as listener,
        serving(application(catalog, tokens), listener, most=100) as server,
        ThreadPoolExecutor(4) as pool,
        capture_logs() as logged,
        httpx.Client(trust_env=False, timeout=DEADLINE_S) as known,
    ):
        url = url_of(listener, host="127.0.0.1", tls=False)
        assert known.get(f"{url}{ORDERS}", headers=login()).status_code == 200

        def flood(which: int) -> set[int]:
            found = set()
            with httpx.Client(trust_env=False, timeout=DEADLINE_S) as client:
                while not stop.is_set():
                    sent[0] += 1
                    headers = login(f"wrong {which} {sent[0]}")
                    try:
                        found.add(client.get(f"{url}/v1/config", headers=headers).status_code)
                    except httpx.TransportError:  # its place went to another one
                        found.add(0)
            return found

        for _ in range(200):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)))
        floods = [pool.submit(flood, which) for which in range(4)]
        wait_until(lambda: sent[0] > 50, "the flood runs")
        began, before = time.monotonic(), tokens.questions
        assert known.get(f"{url}{ORDERS}", headers=login()).status_code == 200, "its connection is still there"
        fresh = httpx.get(f"{url}{ORDERS}", headers=login(), timeout=DEADLINE_S, trust_env=False)
        took, asked = time.monotonic() - began, tokens.questions - before
        stop.set()
        assert fresh.status_code == 200
        assert set().union(*(one.result(DEADLINE_S) for one in floods)) <= {0, 401}
        assert asked <= took / 0.05 + 2, "questions to the ledger have a rate, whatever strangers send"
        assert server.connections <= 100
        wait_until(lambda: len([one for one in logged if one["event"] == "serve.unknown"]) == 1, "one line")
