"""The access tokens of one ledger. No secret is stored: a token is found by the digest of its secret.

A secret is 32 random bytes, which cannot be guessed. So a plain SHA-256 is enough, and a look-up by it is safe to time.
"""

from __future__ import annotations

import binascii
import builtins
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from hashlib import sha256
from secrets import token_bytes
from typing import Any

import psycopg

from harness_pipelines.drivers.postgres import Database, sql
from harness_pipelines.ports.serving.tokens import (
    MadeToken,
    Token,
    TokenExists,
    TokensFull,
    TokenUnknown,
    check_globs,
    check_overlap,
    check_token,
)

PREFIX = "harness_"  #: by which scanners of repositories find a secret that was committed
BYTES = 32


class Tokens:
    """Tokens of one ledger. *readers* and *workers* open a session of their role when it is needed."""

    def __init__(self, readers: Callable[[], Database], workers: Callable[[], Database]) -> None:
        self._readers, self._workers = readers, workers

    def create(self, name: str, globs: Sequence[str], *, lasts: timedelta | None) -> MadeToken:
        """Make a token for the tables of *globs*; its secret is in the answer alone.

        Raises: UsageError, TokenExists, TokensFull; OutcomeUnknown when the answer was lost: revoke it.
        """
        check_token(name, lasts)
        random = token_bytes(BYTES)
        given = {"name": name, "hash": _digest(random), "globs": list(check_globs(globs)), "lasts": lasts}
        with self._workers().transaction() as connection:
            try:
                made = connection.execute(sql("tokens/create"), given).fetchone()
            except psycopg.Error as error:
                if error.sqlstate != "HP019":
                    raise
                raise TokensFull(f"{error.diag.message_primary}; {name} was not made") from error
            assert made is not None, "the function returns one row"
            if made["token_id"] is None:
                raise TokenExists(f"there is a token {name} already, or there was; nothing was made")
            row = connection.execute(sql("tokens/all"), {"name": name}).fetchone()
        assert row is not None, "it was made in this transaction"
        return MadeToken(token=_token(row), secret=_secret(random))

    def rotate(self, name: str, *, lasts: timedelta | None, overlap: timedelta) -> MadeToken:
        """Another secret for the token *name*, which lasts from now; the old one stays good for *overlap*.

        It is good for no longer than it was. Raises: UsageError, TokenUnknown; OutcomeUnknown when the answer was lost:
        rotate it again, which ends the secret that was lost, and leaves the one before no time.
        """
        check_token(name, lasts)
        check_overlap(overlap)
        random = token_bytes(BYTES)
        given = {"name": name, "hash": _digest(random), "lasts": lasts, "overlap": overlap}
        with self._workers().transaction() as connection:
            done = connection.execute(sql("tokens/rotate"), given).fetchone()
            row = connection.execute(sql("tokens/all"), {"name": name}).fetchone()
        if done is None or not done["done"] or row is None:
            raise TokenUnknown(f"there is no token {name}, or it was revoked; nothing was changed")
        return MadeToken(token=_token(row), secret=_secret(random))

    def list(self) -> builtins.list[Token]:
        """All of them by name, with those that have expired or were revoked."""
        return [_token(row) for row in self._workers().rows("tokens/all", {"name": None})]

    def revoke(self, name: str) -> Token:
        """Let it be valid no more, for good. Raises: TokenUnknown."""
        with self._workers().transaction() as connection:
            done = connection.execute(sql("tokens/revoke"), {"name": name}).fetchone()
            row = connection.execute(sql("tokens/all"), {"name": name}).fetchone()
        if done is None or not done["there"] or row is None:
            raise TokenUnknown(f"there is no token {name}; nothing was revoked")
        return _token(row)

    def check(self, secrets: Sequence[str]) -> builtins.list[Token | None]:
        """The token of each secret, if it is valid now; None for any text that is none. It is one question for all."""
        texts = [_random(secret) for secret in secrets]
        digests = [None if random is None else _digest(random) for random in texts]
        asked = [digest for digest in digests if digest is not None]
        rows = self._readers().rows("tokens/check", {"hashes": asked}) if asked else []
        found = {bytes(row.pop("hash")): _token(row) for row in rows}
        return [None if digest is None else found.get(digest) for digest in digests]


def _random(secret: str) -> bytes | None:
    """The random bytes that *secret* was written from, by this spelling of them alone."""
    text = secret.removeprefix(PREFIX)
    if text == secret or len(text) != 43 or not text.isascii():
        return None
    try:
        random = urlsafe_b64decode(text + "=")
    except binascii.Error:
        return None
    return random if urlsafe_b64encode(random).decode().rstrip("=") == text else None


def _secret(random: bytes) -> str:
    return PREFIX + urlsafe_b64encode(random).decode().rstrip("=")


def _digest(random: bytes) -> bytes:
    return sha256(random).digest()


def _token(row: Mapping[str, Any]) -> Token:
    return Token(**{**row, "globs": tuple(row["globs"])})
