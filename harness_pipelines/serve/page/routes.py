"""The page over HTTP: its files, the login of a person by a token, and the state of the tables as JSON.

A browser sends cookies by itself, also where another site makes it ask. So the cookie goes with no request of another
site (`SameSite=Strict`), forms are taken from pages of this server alone, and no answer but these carries a right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from html import escape
from importlib.resources import files
from typing import Any, Protocol

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from harness_pipelines.errors import HarnessError
from harness_pipelines.secret import redact
from harness_pipelines.serve import answers
from harness_pipelines.serve.answers import Refused
from harness_pipelines.serve.audit_log import place_of
from harness_pipelines.serve.auth import LOCAL, Principal
from harness_pipelines.serve.logins import Logins
from harness_pipelines.serve.page.sessions import LASTS_S, Sessions
from harness_pipelines.serve.requests import KNOWN, READS, Threads, body_of, form_of
from harness_pipelines.serve.strangers import Strangers
from harness_pipelines.show.output import to_json

log = structlog.get_logger(__name__)
LOOKS_MAX = 8  #: that wait for the ledger at once; browsers share one look of it
FORM_BYTES_MAX = 4096
FILES = {
    "": ("index.html", "text/html"),
    "page.css": ("page.css", "text/css"),
    "page.js": ("page.js", "text/javascript"),
    "draw.js": ("draw.js", "text/javascript"),
}
PATHS = frozenset({*FILES, "api/status", "login", "logout"})
HEADERS = {
    # Whatever text a table or an error brings along: no script but ours runs, and nothing is sent elsewhere.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # not `no-referrer`: a browser would not say then where a form comes from
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
#: What a proxy adds to a request that it passes on.
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
WRONG = "The token is wrong, expired or revoked."
FOREIGN = "The form was sent by another page than this server's. Log in here."


class StatusFacts(Protocol):
    """What the page shows (`content.Facts`). It may block."""

    def status(self, opened: str | None, *, sees: Callable[[str], bool], drawn: str | None) -> Mapping[str, Any]:
        """The tables that *sees* lets through, and details of *opened*. Raises: HarnessError."""
        ...


class Page:
    """Answers browsers; used on one event loop.

    *local_only*: the server listens on the loopback only, so who asks is on this machine and needs no login, unless a
    proxy passes the request on.
    """

    def __init__(
        self,
        facts: StatusFacts,
        logins: Logins,
        strangers: Strangers,
        *,
        local_only: bool,
    ) -> None:
        self._facts, self._logins, self._strangers, self._local_only = facts, logins, strangers, local_only
        self._sessions = Sessions()
        self._threads = Threads(LOOKS_MAX)  # loads of engines wait for no browser
        self._files = {path: _content(name) for path, (name, _) in FILES.items()}
        self._form = _content("login.html").decode()

    async def answer(self, request: Request, path: str) -> Response:
        """Answer a request for one of `PATHS`. Raises what the facts raise that is no HarnessError."""
        found = await self._found(request, path)
        found.headers.update(HEADERS)
        return found

    async def _found(self, request: Request, path: str) -> Response:
        posts = request.method == "POST" and path in ("login", "logout")
        if not posts and (request.method not in READS or path == "logout"):
            allowed = "POST" if path == "logout" else "GET, HEAD, POST" if path == "login" else "GET, HEAD"
            return Response("this page is read-only\n", 405, {"allow": allowed}, "text/plain")
        if path == "api/status":
            return await self._status(request)
        if posts:
            return await (self._login(request) if path == "login" else self._logout(request))
        if path == "login":
            return self._login_form() if self._needs_login(request) else RedirectResponse("/", 303)
        return Response(self._files[path], media_type=FILES[path][1])

    def _needs_login(self, request: Request) -> bool:
        return not self._local_only or any(name in request.headers for name in PASSED_ON)

    async def _status(self, request: Request) -> Response:
        needs_login = self._needs_login(request)
        try:
            viewer = await self._viewer(request) if needs_login else Principal(name=LOCAL, globs=("*",))
        except HarnessError as error:
            return _json({"trouble": self._not_looked_up(request, error).message}, 503)
        if viewer is None:
            self._strangers.came(request, why="no session of the status page")
            return _json({"trouble": "Log in again."}, 401)
        asked = request.query_params
        look = partial(self._facts.status, asked.get("table"), sees=viewer.may_see, drawn=asked.get("drawn"))
        try:
            found = await self._threads.run(look)
        except HarnessError as error:  # the page says it, and shows the numbers before as old ones
            return _json({"trouble": redact(f"The ledger cannot be read: {error}")}, 503)
        return _json({**found, "reader": viewer.name if needs_login else None})

    async def _viewer(self, request: Request) -> Principal | None:
        """The holder of the token that the session began with, while both last. Raises: TryAgain."""
        number = request.cookies.get(self._cookie(request))
        session = self._sessions.find(number)
        if session is None:
            return None
        found = await self._logins.holder(session.secret)
        if found is None:
            self._sessions.end(number)
            return None
        setattr(request.state, KNOWN, True)
        return found

    async def _login(self, request: Request) -> Response:
        if not _is_own(request):
            return self._login_form(FOREIGN, 403)
        try:
            secret = form_of(await body_of(request, most=FORM_BYTES_MAX)).get("token", "").strip()
            found = await self._logins.holder(secret)
        except Refused as wrong:
            return self._login_form(wrong.message, wrong.status, wrong.headers)
        except HarnessError as error:
            refused = self._not_looked_up(request, error)
            return self._login_form(refused.message, refused.status, refused.headers)
        if found is None:
            self._strangers.came(request, why="a login to the status page with a wrong token")
            return self._login_form(WRONG, 403)
        setattr(request.state, KNOWN, True)
        self._sessions.end(request.cookies.get(self._cookie(request)))
        number = self._sessions.begin(reader=found.name, secret=secret)
        log.info("serve.logged_in", table=None, reader=found.name, **place_of(request))
        answer = RedirectResponse("/", 303)
        self._set_cookie(request, answer, number, lasts_s=int(LASTS_S))
        return answer

    async def _logout(self, request: Request) -> Response:
        if not _is_own(request):
            return self._login_form(FOREIGN, 403)
        number = request.cookies.get(self._cookie(request))
        if (session := self._sessions.find(number)) is not None:
            log.info("serve.logged_out", table=None, reader=session.reader, **place_of(request))
        self._sessions.end(number)
        answer = RedirectResponse("/login", 303)
        self._set_cookie(request, answer, "", lasts_s=0)
        return answer

    def _not_looked_up(self, request: Request, error: HarnessError) -> Refused:
        """What is said while tokens cannot be looked up, to a browser that is not known."""
        self._strangers.came(request, why=f"tokens cannot be looked up: {type(error).__name__}")
        return answers.before_login(error)

    def _login_form(self, said: str = "", status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
        return Response(self._form.replace("{said}", escape(said)), status, headers, "text/html")

    def _is_secure(self, request: Request) -> bool:
        """Whether the browser speaks TLS: to this server, or to the proxy in front, which other machines need."""
        return not self._local_only or request.url.scheme == "https"

    def _cookie(self, request: Request) -> str:
        """Its name. Browsers take one with the prefix from this very host alone, and by TLS."""
        return "__Host-harness" if self._is_secure(request) else "harness"

    def _set_cookie(self, request: Request, answer: Response, number: str, *, lasts_s: int) -> None:
        answer.set_cookie(
            self._cookie(request), number, max_age=lasts_s, path="/",
            secure=self._is_secure(request), httponly=True, samesite="strict",
        )  # fmt: skip


def _is_own(request: Request) -> bool:
    """Whether a page of this server sent a form.

    Browsers say it by one header, and old ones, and where the address has no TLS, by the origin.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    host = request.headers.get("host")
    return bool(host) and request.headers.get("origin", "").partition("://")[2] == host


def _content(name: str) -> bytes:
    return (files(__package__) / "static" / name).read_bytes()


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(to_json(content), status, media_type=answers.JSON)
