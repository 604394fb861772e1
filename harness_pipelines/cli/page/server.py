"""HTTP server of the status page: four paths, GET only, for browsers on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import TYPE_CHECKING

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

from harness_pipelines.cli.page.content import Facts
from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.secret import redact
from harness_pipelines.show.output import to_json

if TYPE_CHECKING:
    from harness_pipelines.app.client import Harness

ADDRESS = "127.0.0.1"
NAMES = frozenset({"127.0.0.1", "localhost", "[::1]"})  #: by which a browser of this machine, or of a tunnel, asks
END_S = 5
_FILES = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
}
_HEADERS = (
    # Whatever text a table or an error brings along: no script but ours runs, and nothing is sent elsewhere.
    (b"content-security-policy", b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
     b"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)  # fmt: skip


@contextmanager
def serving(harness: Harness, port: int | None = None) -> Iterator[str]:
    """Serve the page of *harness* on *port*, by default a free one; yield its URL. Raises: UsageError."""
    with _listening(port) as listener:
        facts = Facts(harness)
        config = Config(
            application(facts),
            loop="asyncio", http="h11", ws="none", lifespan="off",
            # The page shows errors; any other log line is a request that was cut off at its end.
            log_config=None, log_level="critical", access_log=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = Server(config)
        # A daemon, and so are the threads that it makes: a request that waits for Postgres holds up no Ctrl-C.
        thread = threading.Thread(target=server.run, args=([listener],), name="status-page", daemon=True)
        thread.start()
        try:
            yield f"http://{ADDRESS}:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(END_S)
            facts.close()


@contextmanager
def _listening(port: int | None) -> Iterator[socket.socket]:
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((ADDRESS, port or 0))
        except OSError as error:
            raise UsageError(f"the status page cannot be served on port {port}: {error.strerror or error}") from error
        listener.listen()
        yield listener


def application(facts: Facts) -> ASGIApp:
    """Build the page's application over *facts*."""

    def status(request: Request) -> Response:
        asked = request.query_params
        try:
            found, code = facts.status(asked.get("table"), drawn=asked.get("drawn")), 200
        except HarnessError as error:  # the page says it, and shows the numbers before as old ones
            found, code = {"trouble": redact(f"The ledger cannot be read: {error}")}, 503
        except Exception as error:
            structlog.get_logger().exception("page.broken")
            found, code = {"trouble": redact(f"The page met an unexpected error: {error!r}")}, 500
        return Response(to_json(found), code, media_type="application/json")

    routes = [Route(path, _file(name, kind)) for path, (name, kind) in _FILES.items()]
    return _Guard(Starlette(routes=[*routes, Route("/api/status", status)]))


def _file(name: str, kind: str) -> ASGIApp:
    content = (files(__package__) / "static" / name).read_bytes()
    return Response(content, media_type=kind)


class _Guard:
    """Accept only GET requests whose Host header names this machine.

    Otherwise a foreign page could point its own host name to 127.0.0.1 and read this one.
    """

    def __init__(self, inner: ASGIApp) -> None:
        self._inner = inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        host = Headers(scope=scope).get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        inner = self._inner
        if name.lower() not in NAMES:
            inner = PlainTextResponse(f"open this page as {ADDRESS} or localhost\n", 403)
        elif scope["method"] != "GET":
            inner = PlainTextResponse("this page is read-only\n", 405, headers={"allow": "GET"})

        async def send_guarded(message: object) -> None:
            assert isinstance(message, dict)
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        await inner(scope, receive, send_guarded)
