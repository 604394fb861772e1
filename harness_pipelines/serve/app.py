"""The application: who may ask, the routes, and an answer in the protocol's form to whatever goes wrong."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from harness_pipelines.errors import HarnessError
from harness_pipelines.serve import answers, oauth
from harness_pipelines.serve.answers import Refused
from harness_pipelines.serve.auth import KnownTokens, Principal, bearer
from harness_pipelines.serve.logins import Expiries, Logins, SharedCall
from harness_pipelines.serve.metrics import ServeMetrics
from harness_pipelines.serve.page.routes import PATHS, Page, StatusFacts
from harness_pipelines.serve.requests import KNOWN, LOADS_MAX, READS, Asked, Threads, is_local, parts_of
from harness_pipelines.serve.routes import Routes
from harness_pipelines.serve.strangers import Strangers
from harness_pipelines.serve.values import Catalog

log = structlog.get_logger(__name__)
OTHER = "other"
HEALTH_S = 1.0  #: an answer on health is given again for so long: who has no token may ask, too
Health = Callable[[], Mapping[str, Any]]  #: `ok`, and more for clients with a token; it may block for some seconds


class Application:
    """One catalog, and the status page over *facts*, by HTTP (ASGI).

    *local_only*: the server listens on the loopback only, so a request must name this machine as its host. *plans*: it
    plans scans for engines that ask for that.
    """

    def __init__(
        self,
        catalog: Catalog,
        tokens: KnownTokens,
        *,
        local_only: bool,
        facts: StatusFacts | None = None,
        plans: bool = False,
        health: Health | None = None,
    ) -> None:
        self.metrics = ServeMetrics()
        self._routes = Routes(catalog, self.metrics, plans=plans)
        self._logins = Logins(tokens)
        self._strangers, self._expiries = Strangers(), Expiries()
        self._health = SharedCall(health or (lambda: {"ok": True}), keep_s=HEALTH_S)
        self._local_only = local_only
        self._page = None
        if facts is not None:
            self._page = Page(facts, self._logins, self._strangers, local_only=local_only)
        self._loads = Threads(LOADS_MAX)  # logins wait for none of them: a load may take seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request, began = Request(scope, receive), time.perf_counter()
        request.state.route = OTHER
        with self.metrics.running.track_inprogress():
            found = await self._answered(request)
        self.metrics.answered(request.state.route, found.status_code, time.perf_counter() - began)
        await found(scope, receive, send)

    async def _answered(self, request: Request) -> Response:
        """Raises nothing: a client never gets a trace."""
        try:
            return await self._answer(request)
        except Refused as refused:
            return refused.answer()
        except HarnessError as error:
            if getattr(request.state, KNOWN, False):
                return answers.of_error(error).answer()
            self._strangers.came(request, why=f"tokens cannot be looked up: {type(error).__name__}")
            return answers.before_login(error).answer()
        except ClientDisconnect:
            return Response(status_code=400)  # goes nowhere
        except Exception:
            number = secrets.token_hex(8)
            log.exception("serve.broken", table=None, id=number, route=request.state.route)
            said = f"an unexpected error; the server's log has more under the id {number}"
            return answers.error(500, "InternalServerError", said)

    async def _answer(self, request: Request) -> Response:
        if self._local_only and not is_local(request.headers.get("host", "")):
            raise Refused(403, "ForbiddenException", "ask for this server as 127.0.0.1 or localhost")
        parts, method = parts_of(request), request.method
        if parts == ["health"] and method in READS:
            request.state.route = "health"
            return await self._healthy(request)
        if parts == ["metrics"] and method in READS:
            request.state.route = "metrics"
            return self.metrics.answer()
        if parts == ["v1", "oauth", "tokens"] and method == "POST":
            request.state.route = "token"
            return await oauth.token(request, self._logins, self._strangers)
        if self._page and (path := "/".join(parts)) in PATHS:
            request.state.route = "page"
            return await self._page.answer(request, path)
        principal = await self._principal(request)
        if parts[0] != "v1":
            raise self._elsewhere(method, parts)
        request.state.route, warehouse, handler = self._routes.find(method, parts[1:])
        return await handler(Asked(request=request, principal=principal, warehouse=warehouse, threads=self._loads))

    def _elsewhere(self, method: str, parts: list[str]) -> Refused:
        if method in READS:
            return Refused(404, "NotFoundException", f"no such path: /{answers.shown('/'.join(parts))}")
        return answers.read_only()

    async def _principal(self, request: Request) -> Principal:
        """Raises: Refused with 401, in the form of RFC 6750."""
        secret = bearer(request.headers.get("authorization"))
        if secret is None:
            self._strangers.came(request, why="no token")
            said = "a bearer token is needed: `harness serve token create` makes one"
            raise Refused(401, "NotAuthorizedException", said, {"www-authenticate": 'Bearer realm="harness"'})
        found = await self._logins.holder(secret)
        if found is None:
            self._strangers.came(request, why="a token that is wrong, expired or revoked")
            challenge = 'Bearer realm="harness", error="invalid_token"'
            said = "the token is wrong, expired or revoked"
            raise Refused(401, "NotAuthorizedException", said, {"www-authenticate": challenge})
        setattr(request.state, KNOWN, True)
        self._expiries.look(found, datetime.now(UTC))
        return found

    async def _healthy(self, request: Request) -> Response:
        """Balancers ask without a token, and see only whether the server is well; why not may name other servers."""
        found = await self._health.get()
        is_known = await self._is_known(bearer(request.headers.get("authorization")))
        return answers.answer(found if is_known else {"ok": found["ok"]}, 200 if found["ok"] else 503)

    async def _is_known(self, secret: str | None) -> bool:
        """False too while tokens cannot be looked up: then health alone is answered."""
        try:
            return secret is not None and await self._logins.holder(secret) is not None
        except HarnessError:
            return False
