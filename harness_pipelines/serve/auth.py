"""Who asks: bearer tokens, what each may see, and for how long an answer of the ledger is taken for true."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Protocol

KNOWN_S = 3.0  #: a token that is revoked is refused everywhere after so long
KNOWN_MAX = 4096  #: tokens whose state is kept; strangers may send any number of them
SECRET_MAX = 512  #: characters; a longer one is none of ours, and is not asked for
LOCAL = "local"  #: name of the token of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a token."""

    name: str
    globs: Sequence[str]  #: on ``namespace.table``
    expires: datetime | None = None  #: None: it does not

    def may_see(self, table: str) -> bool:
        return any(fnmatchcase(table, glob) for glob in self.globs)

    def is_over(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now


class TokenCheck(Protocol):
    """Knows tokens. It may block."""

    def check(self, secret: str) -> Principal | None:
        """The holder; None for a token that is unknown, expired or revoked. Raises: TryAgain."""
        ...


class RunToken:
    """One token that lives in this process only, as notebook servers print one. It may see every table served."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._principal = Principal(name=LOCAL, globs=("*",))

    def check(self, secret: str) -> Principal | None:
        return self._principal if hmac.compare_digest(_digest(self.secret), _digest(secret)) else None


class Token(Protocol):
    """What the ledger knows of a token (`ports/serving/tokens.py`)."""

    @property
    def name(self) -> str: ...

    @property
    def globs(self) -> tuple[str, ...]: ...

    @property
    def expires_at(self) -> datetime | None: ...


class LedgerTokens:
    """The tokens of the ledger: *check* is its look-up by a secret."""

    def __init__(self, check: Callable[[str], Token | None]) -> None:
        self._check = check

    def check(self, secret: str) -> Principal | None:
        found = self._check(secret)
        return None if found is None else Principal(name=found.name, globs=found.globs, expires=found.expires_at)


class AnyOf:
    """Asks several in order; the first that knows the token answers."""

    def __init__(self, *checks: TokenCheck) -> None:
        self._checks = checks

    def check(self, secret: str) -> Principal | None:
        return next((found for one in self._checks if (found := one.check(secret)) is not None), None)


class KnownTokens:
    """Keeps what another one answered, for `KNOWN_S`, so that the ledger is not asked with each request.

    It knows secrets by their digest alone. That also makes a look-up take the same time for all that are wrong.
    """

    def __init__(
        self,
        inner: TokenCheck,
        *,
        known_s: float = KNOWN_S,
        known_max: int = KNOWN_MAX,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._inner, self._known_s, self._known_max, self._clock, self._now = inner, known_s, known_max, clock, now
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[float, Principal | None]] = OrderedDict()

    def known(self, secret: str) -> tuple[bool, Principal | None]:
        """Whether the answer is known, and which it is. Never blocks."""
        if not secret or len(secret) > SECRET_MAX:
            return True, None
        with self._lock:
            until, found = self._known.get(_digest(secret), (float("-inf"), None))
        return self._clock() < until, self._valid(found)

    def check(self, secret: str) -> Principal | None:
        """As `TokenCheck.check`."""
        is_known, found = self.known(secret)
        if is_known:
            return found
        until = self._clock() + self._known_s  # of before the question: what it says may be old when it arrives
        found = self._inner.check(secret)
        with self._lock:
            self._known[_digest(secret)] = until, found
            self._known.move_to_end(_digest(secret))
            while len(self._known) > self._known_max:
                self._known.popitem(last=False)
        return self._valid(found)

    def _valid(self, found: Principal | None) -> Principal | None:
        return None if found is None or found.is_over(self._now()) else found


def bearer(authorization: str | None) -> str | None:
    """The token of the header ``Authorization``; None without one."""
    scheme, _, value = (authorization or "").strip().partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def basic(authorization: str | None) -> tuple[str, str] | None:
    """Name and secret of a client that logs in by HTTP's own scheme; None without them, or if they are malformed."""
    scheme, _, value = (authorization or "").strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, secret = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, secret) if colon else None


def visible(names: Iterable[str], principal: Principal) -> list[str]:
    return [name for name in names if principal.may_see(name)]


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()
