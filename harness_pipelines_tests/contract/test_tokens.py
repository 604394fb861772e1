"""Access tokens: found by their secret alone, for the tables that they were made for, while they are valid."""

from __future__ import annotations

import uuid
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from typing import Any

import psycopg
import pytest

from harness_pipelines.drivers.postgres import READER, WORKER
from harness_pipelines.drivers.postgres_session import session_dsn
from harness_pipelines.errors import UsageError
from harness_pipelines.ledgers.postgres.tokens import PREFIX, Tokens
from harness_pipelines.ports.serving.tokens import LASTS_MAX, Token, TokenExists, TokensFull, TokenUnknown, is_named
from harness_pipelines_tests.contract.stores_rig import HOUR, RealRig


@pytest.fixture
def tokens(real: RealRig) -> Iterator[Tokens]:
    real.ask("DELETE FROM harness.tokens")  # of other tests
    yield Tokens(lambda: real.readers, lambda: real.database)
    real.ask("DELETE FROM harness.tokens")


def checked(tokens: Tokens, secret: str) -> Token | None:
    [found] = tokens.check([secret])
    return found


def name() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_a_token_is_found_by_its_secret_and_by_nothing_else(tokens: Tokens, real: RealRig):
    made = tokens.create(name(), ["shop.*", "hr.people"], lasts=HOUR)
    other = tokens.create(name(), ["*"], lasts=None)

    assert checked(tokens, made.secret) == made.token
    assert checked(tokens, other.secret) == other.token
    assert made.token.valid and made.token.globs == ("shop.*", "hr.people")
    assert made.token.expires_at is not None and other.token.expires_at is None
    wrong = ["", PREFIX, made.token.name, made.secret.removeprefix(PREFIX), made.secret[:-1], made.secret + "A"]
    wrong += [
        made.secret[:-2] + "__",
        "x" * 10_000,
        made.secret.replace(PREFIX, PREFIX.upper()),
        f"{PREFIX}é" + "A" * 42,
    ]
    assert tokens.check(wrong) == [None] * len(wrong)
    both = [made.secret, *wrong, other.secret, made.secret]
    assert tokens.check(both) == [made.token, *[None] * len(wrong), other.token, made.token], "many by one question"


def test_the_ledger_has_the_digest_of_a_secret_alone(tokens: Tokens, real: RealRig):
    made = tokens.create(name(), ["*"], lasts=None)
    random = urlsafe_b64decode(made.secret.removeprefix(PREFIX) + "=")
    [row] = real.ask("SELECT t::text AS all_of_it, hash FROM harness.tokens t WHERE name = %s", [made.token.name])
    assert len(random) == 32 and row["hash"] == sha256(random).digest()
    assert made.secret.removeprefix(PREFIX) not in row["all_of_it"] and random.hex() not in row["all_of_it"]
    assert made.secret not in repr(made)


def test_a_token_that_expired_or_was_revoked_is_found_no_more(tokens: Tokens, real: RealRig):
    made, revoked = (tokens.create(name(), ["*"], lasts=HOUR) for _ in range(2))
    real.ask("UPDATE harness.tokens SET expires_at = clock_timestamp() WHERE name = %s", [made.token.name])
    gone = tokens.revoke(revoked.token.name)
    assert gone.revoked_at is not None and not gone.valid
    assert checked(tokens, made.secret) is checked(tokens, revoked.secret) is None
    assert tokens.revoke(revoked.token.name) == gone, "when it was revoked first"
    assert {t.name: t.valid for t in tokens.list()} == {made.token.name: False, revoked.token.name: False}
    with pytest.raises(TokenUnknown, match="nothing was revoked"):
        tokens.revoke("nobody")


def test_a_rotated_token_has_a_new_secret_and_the_old_one_for_the_overlap(tokens: Tokens, real: RealRig):
    made = tokens.create(name(), ["shop.*"], lasts=None)
    again = tokens.rotate(made.token.name, lasts=2 * HOUR, overlap=HOUR)
    assert again.secret != made.secret
    assert again.token.token_id == made.token.token_id and again.token.globs == made.token.globs
    new, old = tokens.check([again.secret, made.secret])
    assert new == again.token and old is not None and old.name == new.name
    assert old.expires_at == new.old_until, "a server takes the old secret for good up to then"
    assert new.expires_at is not None and new.old_until is not None
    assert new.expires_at - new.old_until == HOUR

    third = tokens.rotate(made.token.name, lasts=None, overlap=HOUR)
    assert [one is not None for one in tokens.check([third.secret, again.secret, made.secret])] == [True, True, False]
    at_once = tokens.rotate(made.token.name, lasts=None, overlap=timedelta())
    assert [one is not None for one in tokens.check([at_once.secret, third.secret])] == [True, False]
    tokens.revoke(made.token.name)
    assert tokens.check([at_once.secret, third.secret]) == [None, None]


def test_a_rotation_makes_no_secret_good_for_longer_than_it_was(tokens: Tokens, real: RealRig):
    made = tokens.create(name(), ["*"], lasts=HOUR)
    again = tokens.rotate(made.token.name, lasts=None, overlap=24 * HOUR)
    assert again.token.old_until == made.token.expires_at
    real.ask("UPDATE harness.tokens SET expires_at = clock_timestamp() WHERE name = %s", [made.token.name])
    third = tokens.rotate(made.token.name, lasts=None, overlap=HOUR)
    assert [one is not None for one in tokens.check([third.secret, again.secret])] == [True, False]


@pytest.mark.parametrize("overlap", [-HOUR, 31 * 24 * HOUR])
def test_only_a_token_that_is_there_is_rotated(tokens: Tokens, overlap: timedelta):
    made = tokens.create(name(), ["*"], lasts=None)
    with pytest.raises(UsageError, match="0 s to 30 days"):
        tokens.rotate(made.token.name, lasts=None, overlap=overlap)
    tokens.revoke(made.token.name)
    for one in (made.token.name, "none"):
        with pytest.raises(TokenUnknown, match="nothing was changed"):
            tokens.rotate(one, lasts=None, overlap=HOUR)


def test_a_name_is_given_once(tokens: Tokens):
    made = tokens.create(name(), ["*"], lasts=None)
    tokens.revoke(made.token.name)
    with pytest.raises(TokenExists):
        tokens.create(made.token.name, ["*"], lasts=None)
    assert [t.name for t in tokens.list()] == [made.token.name]


@pytest.mark.parametrize("wrong", ["", "A", "1a", "a b", "a" * 64, "a\n", "ä", "a;"])
def test_a_name_is_of_few_letters(tokens: Tokens, wrong: str):
    with pytest.raises(UsageError, match="names no token"):
        tokens.create(wrong, ["*"], lasts=None)
    assert tokens.list() == []


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            [],
            ["shop"],
            ["a.b.c"],
            ["shop.*", "Shop.x"],
            ["shop.[ab]"],
            ["../x"],
            ["shop. x"],
            [""],
            ["x." + "a" * 200],
        ),
        [f"a.t{n}" for n in range(101)],
    ],
)
def test_globs_are_patterns_of_tables(tokens: Tokens, wrong: list[str]):
    with pytest.raises(UsageError, match="pattern"):
        tokens.create(name(), wrong, lasts=None)
    assert tokens.list() == []


def test_a_token_allows_the_tables_of_its_patterns(tokens: Tokens):
    token = tokens.create(name(), ["shop.*", "hr.p?ople", "shop.*"], lasts=None).token
    assert token.globs == ("shop.*", "hr.p?ople")
    asked = ["shop.orders", "shop.orders__stream", "shopping.orders", "hr.people", "hr.pople", "SHOP.orders", "shop"]
    assert [is_named(one, token.globs) for one in asked] == [True, True, False, True, False, False, False]
    assert is_named("any.table", tokens.create(name(), ["*"], lasts=None).token.globs)


@pytest.mark.parametrize("lasts", [timedelta(), -HOUR, LASTS_MAX + HOUR])
def test_a_token_lasts_for_a_time_that_is_one(tokens: Tokens, lasts: timedelta):
    with pytest.raises(UsageError, match="lasts for"):
        tokens.create(name(), ["*"], lasts=lasts)


def test_there_are_ten_thousand_tokens_at_most(tokens: Tokens, real: RealRig):
    real.ask(
        "INSERT INTO harness.tokens (name, hash, globs) "
        "SELECT 'n' || n, sha256(n::text::bytea), '{*}' FROM generate_series(1, 10000) n"
    )
    with pytest.raises(TokensFull):
        tokens.create(name(), ["*"], lasts=None)


@pytest.mark.parametrize(
    ("role", "statement"),
    [
        (READER, "SELECT * FROM harness.tokens"),
        (READER, "SELECT name FROM harness.tokens"),
        (READER, "SELECT harness.token_create('a', sha256('a'), '{*}', NULL)"),
        (READER, "SELECT harness.token_revoke('a')"),
        (READER, "SELECT harness.token_rotate('a', sha256('a'), NULL, interval '1h')"),
        (WORKER, "SELECT old_hash FROM harness.tokens"),
        (WORKER, "SELECT hash FROM harness.tokens"),
        (WORKER, "SELECT t FROM harness.tokens t"),
        (WORKER, "UPDATE harness.tokens SET revoked_at = NULL"),
        (WORKER, "DELETE FROM harness.tokens"),
        (WORKER, "INSERT INTO harness.tokens (name, hash, globs) VALUES ('a', sha256('a'), '{*}')"),
    ],
)
def test_no_login_lists_digests_or_changes_tokens_but_by_the_functions(real: RealRig, role: str, statement: Any):
    dsn = session_dsn(real.dsn, role=role)
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement)


def test_the_database_takes_no_token_that_it_could_not_name(real: RealRig, tokens: Tokens):
    wrong = [
        ("A", sha256(b"a").digest(), ["*"]),
        ("a", b"short", ["*"]),
        ("a", sha256(b"a").digest(), []),
        ("a", sha256(b"a").digest(), ["*"] * 101),
        ("a", sha256(b"a").digest(), [None]),
        ("a", sha256(b"a").digest(), ["x" * 20_000]),
    ]
    for its_name, digest, globs in wrong:
        dsn = session_dsn(real.dsn, role=WORKER)
        with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.CheckViolation):
            connection.execute("SELECT harness.token_create(%s, %s, %s, NULL)", [its_name, digest, globs])
