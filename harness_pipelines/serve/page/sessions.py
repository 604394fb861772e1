"""Sessions of browsers, in the memory of one server: who logged in, by a random number that is the browser's cookie.

A session is no right by itself. It holds the token that the person logged in with, which is looked up again with each
request, so that a session ends with its token. It is found by the digest of its number, for the reason that tokens are
(`KnownTokens`): how long that takes depends on digests, which no client can choose.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness_pipelines.serve.auth import SECRET_MAX, digest_of

LASTS_S = 12 * 3600.0
SESSIONS_MAX = 1000
OF_ONE_MAX = 16  #: of one token: who has one ends no sessions of others by logging in again and again


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A browser that logged in."""

    reader: str  #: the token's name
    secret: str = field(repr=False)  #: the token
    until: float  #: monotonic seconds


class Sessions:
    """Those of one server; used on its event loop alone. The oldest ends where there are too many."""

    def __init__(
        self,
        *,
        most: int = SESSIONS_MAX,
        of_one: int = OF_ONE_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most, self._of_one, self._clock = most, of_one, clock
        self._open: dict[bytes, Session] = {}  #: by the digest of the number, the oldest first

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, *, reader: str, secret: str) -> str:
        """Open a session and return its number, which only the browser has."""
        of_it = [key for key, one in self._open.items() if one.reader == reader]
        for key in of_it[: max(len(of_it) - self._of_one + 1, 0)]:
            del self._open[key]
        while len(self._open) >= self._most:
            del self._open[next(iter(self._open))]
        number = secrets.token_urlsafe(32)
        self._open[digest_of(number)] = Session(reader=reader, secret=secret, until=self._clock() + LASTS_S)
        return number

    def find(self, number: str | None) -> Session | None:
        """The session of that number while it lasts."""
        if not number or len(number) > SECRET_MAX:
            return None
        found = self._open.get(digest_of(number))
        if found is not None and found.until <= self._clock():
            self.end(number)
            return None
        return found

    def end(self, number: str | None) -> None:
        if number and len(number) <= SECRET_MAX:
            self._open.pop(digest_of(number), None)
