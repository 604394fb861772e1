"""Who asks: bearer tokens, what each may see, and for how long an answer of the ledger is taken for true."""

from __future__ import annotations

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Protocol

from harness_pipelines.ports.serving.tokens import Token, is_named

KNOWN_S = 3.0  #: a token that is revoked is refused everywhere after so long
KNOWN_MAX = 4096  #: wrong tokens that are known as such; strangers may send any number of them
SECRET_MAX = 512  #: characters; a longer one is none of ours, and is not asked for
LOCAL = "local"  #: name of the token of one run


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The holder of a token."""

    name: str
    globs: Sequence[str]  #: on ``namespace.table``
    expires: datetime | None = None  #: None: it does not

    def may_see(self, table: str) -> bool:
        return is_named(table, self.globs)

    def is_over(self, now: datetime) -> bool:
        return self.expires is not None and self.expires <= now


class TokenCheck(Protocol):
    """Knows tokens. It may block."""

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        """The holder of each; None for a token that is unknown, expired or revoked. Raises: TryAgain."""
        ...


class RunToken:
    """One token that lives in this process only, as notebook servers print one. It may see every table served."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._principal = Principal(name=LOCAL, globs=("*",))

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        mine = digest_of(self.secret)  # what the first bytes of a digest give away says nothing of the secret
        return [self._principal if digest_of(secret) == mine else None for secret in secrets]


class LedgerTokens:
    """The tokens of the ledger: *check* is its look-up by secrets."""

    def __init__(self, check: Callable[[Sequence[str]], Sequence[Token | None]]) -> None:
        self._check = check

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        return [
            None if one is None else Principal(name=one.name, globs=one.globs, expires=one.expires_at)
            for one in self._check(secrets)
        ]


class FirstOf:
    """Asks several in order; the first that knows a token answers."""

    def __init__(self, *checks: TokenCheck) -> None:
        self._checks = checks

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        found: dict[str, Principal | None] = dict.fromkeys(secrets)
        for one in self._checks:
            left = [secret for secret, principal in found.items() if principal is None]
            found.update(zip(left, one.check(left) if left else (), strict=True))
        return [found[secret] for secret in secrets]


class KnownTokens:
    """Keeps what another one answered, for `KNOWN_S`, so that the ledger is not asked with each request.

    It knows secrets by their digest alone. A look-up needs no comparison in constant time: how long it takes depends on
    digests, and who can choose these has broken SHA-256.
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
        self._good: dict[bytes, tuple[float, Principal]] = {}  #: as many as there are tokens
        self._wrong: OrderedDict[bytes, float] = OrderedDict()  #: strangers' fill no place of the others

    def known(self, secret: str) -> tuple[bool, Principal | None]:
        """Whether the answer is known, and which it is. Never blocks."""
        if not secret or len(secret) > SECRET_MAX:
            return True, None
        digest, now = digest_of(secret), self._clock()
        with self._lock:
            if digest in self._good:
                until, found = self._good[digest]
                return now < until, self._valid(found)
            return now < self._wrong.get(digest, now), None

    def was_good(self, secret: str) -> bool:
        """Whether it was good when it was looked up last."""
        with self._lock:
            return digest_of(secret) in self._good

    def check(self, secrets: Sequence[str]) -> Sequence[Principal | None]:
        """Ask for all of them, and keep the answers. Raises: TryAgain."""
        until = self._clock() + self._known_s  # of before the question: what it says may be old when it arrives
        found = self._inner.check(secrets)
        with self._lock:
            for secret, principal in zip(secrets, found, strict=True):
                self._keep(digest_of(secret), until, principal)
        return [self._valid(principal) for principal in found]

    def _keep(self, digest: bytes, until: float, found: Principal | None) -> None:
        self._good.pop(digest, None)
        self._wrong.pop(digest, None)
        if found is not None:
            self._good[digest] = until, found
            return
        self._wrong[digest] = until
        if len(self._wrong) > self._known_max:
            self._wrong.popitem(last=False)

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


def digest_of(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogatepass")).digest()
