"""Sockets, TLS and time: the application served on a thread, and an end that lets running loads finish.

The socket is made first, so that an address that is taken or wrong fails before anything else is done.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from harness_pipelines.errors import HarnessError, UsageError
from harness_pipelines.serve.places import Listener, Places, connections_max
from harness_pipelines.serve.requests import KNOWN

log = structlog.get_logger(__name__)
GRACE_S = 8  #: for running loads after a signal; the command ends itself by force ten seconds after SIGTERM
STEP_S = 0.2  #: in which the end is waited for
PATIENCE_S = 30.0  #: for a client to send the head of a request, and to take a part of an answer
IDLE_S = 75  #: a connection stays open between two requests, longer than balancers keep theirs
HEAD_BYTES_MAX = 64 * 1024
BACKLOG = 1024


class ServerEnded(HarnessError):
    """The server's thread ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The files of a certificate, and the context that connections are made with."""

    certificate: Path
    key: Path
    context: ssl.SSLContext

    @classmethod
    def of(cls, certificate: Path, key: Path) -> Tls:
        """Raises: UsageError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        made = cls(certificate=certificate, key=key, context=context)
        made.load()
        return made

    def load(self) -> None:
        """Read both files again: later connections get what they have now. Raises: UsageError."""
        try:
            # Without an answer of ours, OpenSSL would ask on the terminal for the password of a key that has one.
            self.context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except OSError as error:  # SSLError is one
            raise UsageError(
                f"TLS cannot be served with the certificate {self.certificate} and the key {self.key}: "
                f"{error.strerror or error}. Both are PEM files that belong together, the key without a password"
            ) from error


class CertificateFiles:
    """Looks whether the files of a certificate were renewed."""

    def __init__(self, tls: Tls, *, every_s: float) -> None:
        self._tls, self._every_s = tls, every_s
        self._looked, self._seen = time.monotonic(), self._state()

    def look(self) -> None:
        """Take new files, at most once in `every_s`. What is wrong with them is logged; the old ones stay in use."""
        if time.monotonic() - self._looked < self._every_s:
            return
        self._looked, state = time.monotonic(), self._state()
        if state == self._seen:
            return
        try:
            self._tls.load()
        except UsageError as error:
            log.warning("serve.certificate_refused", table=None, why=str(error))
        else:
            log.info("serve.certificate_renewed", table=None)
        self._seen = state

    def _state(self) -> tuple[tuple[int, int] | None, ...]:
        """When each file was written, and its bytes; None where it is away for a moment."""
        return tuple(_written(path) for path in (self._tls.certificate, self._tls.key))


def _written(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def listening(host: str, port: int, *, option: str = "--port") -> Listener:
    """A socket on *port*, which *option* gave, of the address *host*; 0 is any free port. Raises: UsageError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # `localhost` has two addresses. Clients that get both try the other one, too.
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
        listener = Listener(family, kind, protocol)
    except OSError as error:
        raise UsageError(f"--host {host} is not an address of this machine: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"the catalog cannot be served at {host}:{port}: {error.strerror or error}; nothing was done. Give "
            f"{option} a free port (0: any), and --host an address of this machine"
        ) from error
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches *listener*."""
    return ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


@contextmanager
def serving(
    application: ASGIApp,
    listener: Listener,
    *,
    tls: Tls | None = None,
    grace_s: int = GRACE_S,
    patience_s: float = PATIENCE_S,
    most: int | None = None,
) -> Iterator[Serving]:
    """Serve *application* while the block lasts. At its end no connection is taken any more, and loads that run get
    *grace_s* to finish. It takes *most* connections.
    """
    places = Places(most or connections_max())
    listener.admit = places.admit
    config = Config(
        application,
        loop="asyncio", http=_patient(patience_s, places), ws="none", lifespan="off", interface="asgi3",
        # The application logs what it refuses; all that is left are requests that were cut off.
        log_config=None, log_level="critical", access_log=False,
        proxy_headers=False, server_header=False, h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        backlog=BACKLOG, timeout_keep_alive=IDLE_S, timeout_graceful_shutdown=grace_s,
    )  # fmt: skip
    config.load()
    config.ssl = tls.context if tls else None
    served, wait_s = Serving(Server(config), listener), grace_s + 2.0
    try:
        served.start()
        yield served
    except KeyboardInterrupt:  # a second Ctrl-C that came before the wait for running loads began
        wait_s = 0.0
        raise
    finally:
        served.stop(wait_s)


class Serving:
    """A server that runs on its thread."""

    def __init__(self, server: Server, listener: socket.socket) -> None:
        self._server, self._listener = server, listener
        self.port: int = listener.getsockname()[1]
        # A daemon, and so are the threads that it makes: a load that waits for Postgres holds up no Ctrl-C.
        self._thread = threading.Thread(target=server.run, args=([listener],), name="serve", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._server.server_state.connections)

    def check(self) -> None:
        """Raises: ServerEnded."""
        if not self._thread.is_alive():
            raise ServerEnded(f"the server of port {self.port} ended unexpectedly; the log may say why")

    def stop(self, wait_s: float) -> None:
        """End it. It does not raise where a load hangs: its thread ends with the process."""
        self._server.should_exit = True
        until = time.monotonic() + wait_s
        while self._thread.is_alive() and time.monotonic() < until:
            # In steps: the system may give Ctrl-C to another thread, which does not wake this one for its handler.
            self._thread.join(STEP_S)
        self._listener.close()


def _patient(patience_s: float, places: Places) -> type[H11Protocol]:
    """Uvicorn's protocol, which drops clients that send no request, or take no answer, for *patience_s*.

    Uvicorn alone waits without an end for the first request of a connection, and for a client that does not read. Its
    own limit of connections would refuse all clients where strangers fill it.
    """

    class Patient(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
            super().connection_made(transport)
            self._number = transport.get_extra_info("socket").fileno()
            places.mark_http(self._number, self._works)
            self._unsent, self._moved = 0, self.loop.time()
            self._timer = self.loop.call_later(patience_s / 4, self._look)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.cancel()
            places.forget(self._number)
            super().connection_lost(exc)

        def on_response_complete(self) -> None:
            if self.scope["state"].get(KNOWN):
                places.mark_known(self._number)
            super().on_response_complete()

        def _look(self) -> None:
            unsent, now = self.transport.get_write_buffer_size(), self.loop.time()
            if unsent != self._unsent or (not unsent and not self._awaits_request()):
                self._unsent, self._moved = unsent, now
            elif now - self._moved >= patience_s:
                self.transport.abort()
                return
            self._timer = self.loop.call_later(patience_s / 4, self._look)

        def _awaits_request(self) -> bool:
            """Not while the application works, nor between two requests, which `IDLE_S` limits."""
            return not self._works() and self.timeout_keep_alive_task is None

        def _works(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

    return Patient


def url_of(listener: socket.socket, *, host: str, tls: bool) -> str:
    """The address that clients use: a server on all addresses is named as this machine is."""
    address: Any = ip_address(listener.getsockname()[0].partition("%")[0])
    name = socket.gethostname() if address.is_unspecified else host
    return f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}"
