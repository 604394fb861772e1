"""Access tokens: secrets by which an engine asks a server for tables. The ledger has their digests alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Protocol

from harness_pipelines.errors import HarnessError, UsageError

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
LASTS_MAX = timedelta(days=3653)
OVERLAP_MAX = timedelta(days=30)
SOON = timedelta(days=7)  #: before a token expires, its users are warned
GLOBS_MAX = 100
_GLOB = re.compile(r"[a-z0-9_*?]+(\.[a-z0-9_*?]+)?")  #: of `namespace.name`; both are of a-z, 0-9 and `_`
_GLOB_CHARS_MAX = 160


class TokenExists(HarnessError):
    """There is, or was, a token of that name."""

    way_on = "choose another name: one that was revoked keeps it, so that a log names one token by it"


class TokenUnknown(HarnessError):
    """No token has that name, or it was revoked."""

    way_on = "`harness serve token list` shows those that there are"


class TokensFull(HarnessError):
    """There are as many tokens as there may be."""

    way_on = "let several engines share a token; the owner of the database may delete old rows of harness.tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token: all but its secret."""

    token_id: int
    name: str
    globs: tuple[str, ...]
    created_at: datetime
    created_by: str  #: the login
    expires_at: datetime | None  #: None: it does not expire
    revoked_at: datetime | None
    old_until: datetime | None  #: the secret before the last rotation is good up to then, too
    valid: bool  #: by the database's clock, when it was looked at

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "tables": list(self.globs),
            "created_at": self.created_at.isoformat(),
            "created_by": self.created_by,
            "expires_at": self.expires_at and self.expires_at.isoformat(),
            "revoked_at": self.revoked_at and self.revoked_at.isoformat(),
            "old_secret_until": self.old_until and self.old_until.isoformat(),
            "valid": self.valid,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeToken:
    """A token with its secret, which is shown once."""

    token: Token
    secret: str = field(repr=False)


class TokenBook(Protocol):
    """A worker's login creates, lists, rotates and revokes; a reader's may look tokens up by their secrets."""

    def create(self, name: str, globs: Sequence[str], *, lasts: timedelta | None) -> MadeToken:
        """Raises: UsageError, TokenExists, TokensFull."""
        ...

    def rotate(self, name: str, *, lasts: timedelta | None, overlap: timedelta) -> MadeToken:
        """Another secret for the token *name*, which lasts from now; the old one stays good for *overlap*.

        It is good for no longer than it was. One before it ends at once. Raises: UsageError, TokenUnknown.
        """
        ...

    def list(self) -> Sequence[Token]:
        """All of them by name, with those that have expired or were revoked."""
        ...

    def revoke(self, name: str) -> Token:
        """Let it be valid no more, for good. Raises: TokenUnknown."""
        ...

    def check(self, secrets: Sequence[str]) -> Sequence[Token | None]:
        """The token of each secret, if it is valid now."""
        ...


def check_globs(globs: Sequence[str]) -> tuple[str, ...]:
    """*globs* as patterns of table names: `shop.*`, `*.orders`, `*`. Raises: UsageError."""
    found = tuple(dict.fromkeys(globs))
    if not 1 <= len(found) <= GLOBS_MAX:
        raise UsageError(
            f"a token is for 1 to {GLOBS_MAX} patterns of tables, not {len(found)}; write `*` for all tables"
        )
    for glob in found:
        if len(glob) > _GLOB_CHARS_MAX or not _GLOB.fullmatch(glob) or ("." not in glob and "*" not in glob):
            raise UsageError(
                f"{glob!r} is no pattern of tables; write `namespace.name` of a-z, 0-9 and `_`, with `*` for any text "
                "and `?` for one character, such as `shop.*`; or `*`"
            )
    return found


def is_named(table: str, globs: Iterable[str]) -> bool:
    """Return whether a table, by its name with the namespace, is among those of *globs*."""
    return any(fnmatchcase(table, glob) for glob in globs)


def ends_soon(expires_at: datetime | None, now: datetime) -> bool:
    """Return whether a token expires so soon that another secret is due."""
    return expires_at is not None and expires_at - SOON <= now < expires_at


def check_overlap(overlap: timedelta) -> None:
    """Raises: UsageError."""
    if not timedelta() <= overlap <= OVERLAP_MAX:
        raise UsageError(f"the old secret stays good for 0 s to {OVERLAP_MAX.days} days, not {overlap}")


def check_token(name: str, lasts: timedelta | None) -> None:
    """Raises: UsageError for a name or a time that no token has."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} names no token; write a-z, 0-9, `_`, `-` and `.`, beginning with a letter, 63 at most"
        )
    if lasts is not None and not timedelta() < lasts <= LASTS_MAX:
        raise UsageError(f"a token lasts for more than no time and for ten years at most, not {lasts}")
