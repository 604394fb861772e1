"""Who calls Flight SQL: a token as bearer, or as the password of any name."""

from __future__ import annotations

import threading
import time
from typing import Any

import pyarrow.flight as fl
import structlog

from harness_pipelines.errors import HarnessError
from harness_pipelines.serve.answers import before_login, shown
from harness_pipelines.serve.auth import KnownTokens, Principal, basic, bearer
from harness_pipelines.serve.logins import LOOK_EVERY_S, LoginsFull
from harness_pipelines.serve.strangers import Strangers, on_thread

log = structlog.get_logger(__name__)
AUTH = "auth"
STRANGERS_MAX = 20  #: logins that wait for the look-up of a token that was never good
UNAVAILABLE = 503


class Login(fl.ServerMiddleware):  # type: ignore[misc]  # PyArrow has no types
    """Who calls. A client that logs in by name and password gets its token back, to send with later calls."""

    def __init__(self, principal: Principal, secret: str) -> None:
        self.principal, self._secret = principal, secret

    def sending_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._secret}"}


class FlightLogins(fl.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets calls with a token in."""

    def __init__(self, tokens: KnownTokens, strangers: Strangers | None = None) -> None:
        self._tokens = tokens
        self._strangers = strangers or Strangers(later=on_thread)
        self._turn, self._next = threading.Lock(), 0.0
        self._places = threading.BoundedSemaphore(STRANGERS_MAX)

    def start_call(self, info: Any, headers: dict[str, list[str]]) -> Login:
        """Raises: FlightUnauthenticatedError, FlightUnavailableError; neither says what is behind the server."""
        by_name = {name.lower(): values for name, values in headers.items() if values}
        said = by_name.get("authorization", [None])[0]
        named = basic(said)
        secret = bearer(said) or (named[1] if named else None)
        # The address of a client is not known before its call is let in.
        place = {"address": "flight", "agent": shown(str(by_name.get("user-agent", [""])[0]))}
        try:
            principal = self._principal(secret) if secret else None
        except HarnessError as error:
            why = f"tokens cannot be looked up: {type(error).__name__}"
            self._strangers.came_from(place, why=why, method=str(info.method))
            told = before_login(error)
            kind = fl.FlightUnavailableError if told.status == UNAVAILABLE else fl.FlightInternalError
            raise kind(told.message) from None
        if principal is None or secret is None:
            why = "no token" if not secret else "a token that is wrong, expired or revoked"
            self._strangers.came_from(place, why=why, method=str(info.method))
            raise fl.FlightUnauthenticatedError("a token is needed that is known, not expired and not revoked")
        return Login(principal, secret)

    def _principal(self, secret: str) -> Principal | None:
        """Raises: LoginsFull; TryAgain while the ledger is away."""
        is_known, found = self._tokens.known(secret)
        if is_known:
            return found
        if self._tokens.was_good(secret):  # of these there are as many as the ledger has tokens
            return self._tokens.check([secret])[0]
        if not self._places.acquire(blocking=False):
            raise LoginsFull(f"{STRANGERS_MAX} tokens wait for their look-up already; try again")
        try:
            with self._turn:  # whatever strangers send, the ledger gets one question at a time, and few a second
                time.sleep(max(self._next - time.monotonic(), 0.0))
                self._next = time.monotonic() + LOOK_EVERY_S
                return self._tokens.check([secret])[0]
        finally:
            self._places.release()


class NoHandshake(fl.ServerAuthHandler):  # type: ignore[misc]
    """The older login of Flight, which clients call to get the header of `Login`."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        pass

    def is_valid(self, token: bytes) -> str:
        return ""


def principal_of(context: Any) -> Principal:
    """Who makes the call of *context*."""
    login = context.get_middleware(AUTH)
    assert isinstance(login, Login)
    return login.principal
