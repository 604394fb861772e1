"""`harness serve` and its tokens: what it refuses, what it prints, and whom it lets in."""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from harness_pipelines.cli.main import cli
from harness_pipelines.cli.operate import serve, serve_token
from harness_pipelines.drivers.postgres import MissingRole
from harness_pipelines.errors import UsageError
from harness_pipelines.serve import catalog as catalogs
from harness_pipelines.spec.settings import Settings
from harness_pipelines_tests.certificates import Authority
from harness_pipelines_tests.producer import DEADLINE_S
from harness_pipelines_tests.served import AT, MemoryCatalog, MemoryFacts, cut_of

SECRET = "harness_secret"


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token of the ledger, as `ports/serving/tokens.py` has it."""

    name: str = "trino"
    globs: tuple[str, ...] = ("shop.*",)
    valid: bool = True
    expires_at: Any = None
    revoked_at: Any = None
    old_until: Any = None
    created_at: Any = AT
    created_by: str = "me"

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "tables": list(self.globs), "valid": self.valid}


class Tokens:
    """The ledger's tokens; *lists* is False for a login that may only look one up."""

    def __init__(self) -> None:
        self.all: list[Token] = []
        self.lists = True

    def list(self) -> Sequence[Token]:
        if not self.lists:
            raise MissingRole("this login is no worker")
        return self.all

    def check(self, secrets: Sequence[str]) -> Sequence[Token | None]:
        return [self.all[0] if secret == SECRET and self.all else None for secret in secrets]

    def rotate(self, name: str, *, lasts: timedelta | None, overlap: timedelta) -> Any:
        made = replace(self.all[0], expires_at=lasts and AT + lasts, old_until=AT + overlap)
        return SimpleNamespace(token=made, secret=SECRET)

    def create(self, name: str, globs: Sequence[str], *, lasts: timedelta | None) -> Any:
        if "*" not in globs[0]:
            raise UsageError(f"{globs[0]!r} is no pattern")
        made = Token(name=name, globs=tuple(globs), expires_at=lasts and AT + lasts)
        self.all.append(made)
        return SimpleNamespace(token=made, secret=SECRET)

    def revoke(self, name: str) -> Token:
        return replace(self.all[0], revoked_at=AT, valid=False)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Tokens:
    made = Tokens()
    stores = SimpleNamespace(tokens=made, warehouse="/lake")
    harness = SimpleNamespace(stores=stores, settings=Settings(home=tmp_path))

    @contextmanager
    def opened(_settings: Settings, **_options: Any) -> Iterator[Any]:
        yield harness

    monkeypatch.setattr(serve, "opened", opened)
    monkeypatch.setattr(serve_token, "opened", opened)
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the catalog was opened with, and what a client is answered as soon as the server has started.

    The client has the token `with`, or the one of the run. Then the server is stopped.
    """
    found: dict[str, Any] = {}

    def opened(_stores: Any, **options: Any) -> MemoryCatalog:
        found.update(options)
        return MemoryCatalog({"shop.orders": cut_of("shop.orders")})

    stop = serve.Stop()

    @contextmanager
    def interruptible() -> Iterator[serve.Stop]:
        yield stop

    shown = serve._show

    def show(started: dict[str, Any], json_target: str | None) -> None:
        url = re.sub(r"//[^:/\]]+:", "//localhost:", started["url"])
        header = {
            "authorization": f"Bearer {started['token'] or found.get('with', 'none')}",
            **found.get("headers", {}),
        }
        answer = httpx.get(
            f"{url}{found.get('path', '/v1/namespaces')}",
            headers=header,
            timeout=DEADLINE_S,
            trust_env=False,
            verify=found.get("verify", True),
        )
        found.update(status=answer.status_code, started=started)
        shown(started, json_target)
        stop(found.get("signal", 15), None)

    monkeypatch.setattr(catalogs, "fresh_catalog", opened)
    monkeypatch.setattr(serve, "interruptible", interruptible)
    monkeypatch.setattr(serve, "_show", show)
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["serve", *words])


# -- the server ---------------------------------------------------------------------------------------------------


def test_on_this_machine_a_token_is_made_and_printed_once(tokens: Tokens, asked: dict[str, Any]):
    done = run("--port", "0")
    assert (done.exit_code, asked["status"]) == (0, 200), done.output
    secret = asked["started"]["token"]
    assert done.stdout.count(secret) == 1
    assert secret not in done.stderr
    assert f"export HARNESS_TOKEN={secret}" in done.stdout
    for engine in ("DuckDB", "Trino", "PyIceberg", "Spark"):
        assert f"{engine}:\n" in done.stdout
    assert "shop.orders" in done.stdout


def test_the_start_is_one_object_for_programs(tokens: Tokens, asked: dict[str, Any]):
    found = json.loads(run("--port", "0", "--json").stdout)
    assert found == asked["started"]
    assert set(found) == {"url", "page", "flight", "token", "attach"}
    assert found["page"] == f"{found['url']}/"
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", found["url"])


def test_with_tokens_in_the_ledger_none_is_made(tokens: Tokens, asked: dict[str, Any]):
    tokens.all, asked["with"] = [Token()], SECRET
    done = run("--port", "0")
    assert (done.exit_code, asked["status"], asked["started"]["token"]) == (0, 200, None), done.output
    assert "export" not in done.stdout
    assert "harness serve token create" in done.stdout


def test_tokens_that_have_expired_count_as_none(tokens: Tokens, asked: dict[str, Any]):
    tokens.all = [Token(valid=False)]
    assert run("--port", "0").exit_code == 0
    assert asked["started"]["token"]


def test_a_login_that_may_only_read_serves_too(tokens: Tokens, asked: dict[str, Any]):
    tokens.lists = False
    assert (run("--port", "0").exit_code, asked["status"]) == (0, 200)
    tokens.all, asked["with"] = [Token()], SECRET
    done = run("--host", "0.0.0.0", "--port", "0", "--behind-proxy")
    assert (done.exit_code, asked["status"]) == (0, 200), done.output


def test_options_reach_the_catalog(tokens: Tokens, asked: dict[str, Any]):
    run("--port", "0", "--tables", "shop.*", "--tables", "bank.*", "--keep", "2h", "--every", "50ms")
    assert asked["globs"] == ("shop.*", "bank.*")
    assert (asked["keep"], asked["every"]) == (timedelta(hours=2), timedelta(milliseconds=50))
    run("--port", "0")
    assert asked["globs"] == ("*",)
    assert (asked["keep"], asked["every"]) == (timedelta(minutes=15), timedelta(milliseconds=100))


def test_the_status_page_has_the_tables_that_are_served_and_ends_with_the_server(
    tokens: Tokens, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    seen: list[object] = []

    class Facts(MemoryFacts):
        def __init__(self, _harness: Any, *, globs: Sequence[str]) -> None:
            super().__init__("shop.orders")
            seen.append(globs)

        def close(self) -> None:
            seen.append("closed")

    monkeypatch.setattr("harness_pipelines.serve.page.content.Facts", Facts)
    asked["path"] = "/api/status"
    done = run("--port", "0", "--tables", "shop.*")
    assert (done.exit_code, asked["status"]) == (0, 200), done.output
    assert seen == [("shop.*",), "closed"]
    assert "status page" in done.stdout

    tokens.all = [Token()]
    asked["with"] = SECRET
    run("--port", "0", "--behind-proxy")
    assert asked["status"] == 401, "other machines reach it by the proxy: a browser logs in"


def test_other_machines_are_served_by_tls_or_by_a_proxy_alone(tokens: Tokens, asked: dict[str, Any], tmp_path: Path):
    tokens.all, asked["with"] = [Token()], SECRET
    refused = run("--host", "0.0.0.0", "--port", "0")
    assert (refused.exit_code, "status" in asked) == (2, False)
    assert "--tls-cert" in refused.stderr
    assert "--behind-proxy" in refused.stderr
    authority = Authority(tmp_path)
    pair = authority.sign("server")
    asked["verify"] = ssl.create_default_context(cafile=str(authority.root))
    tls = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    done = run("--host", "0.0.0.0", "--port", "0", *tls)
    assert (done.exit_code, asked["status"]) == (0, 200), done.output
    assert asked["started"]["url"].startswith("https://")


def test_other_machines_need_a_token_of_the_ledger(tokens: Tokens, asked: dict[str, Any]):
    done = run("--host", "0.0.0.0", "--port", "0", "--behind-proxy")
    assert (done.exit_code, "status" in asked) == (2, False)
    assert "harness serve token create" in done.stderr
    done = run("--port", "0", "--behind-proxy")
    assert done.exit_code == 2, "a proxy on this machine is for other machines"


@pytest.mark.parametrize(("words", "status"), [((), 403), (("--behind-proxy",), 200)])
def test_only_behind_a_proxy_any_host_name_is_answered(
    tokens: Tokens, asked: dict[str, Any], words: tuple[str, ...], status: int
):
    tokens.all = [Token()]
    asked.update({"with": SECRET, "headers": {"host": "tables.example.com"}})
    run("--port", "0", *words)
    assert asked["status"] == status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--tls-cert", "a.crt"), "given together"),
        (("--tls-key", "a.key"), "given together"),
        (("--tls-cert", "a.crt", "--tls-key", "a.key", "--behind-proxy"), "proxy ends TLS"),
        (("--tls-cert", "a.crt", "--tls-key", "a.key"), "PEM"),
        (("--keep", "5s"), "--keep"),
        (("--keep", "soon"), "duration"),
        (("--every", "2m"), "--every"),
        (("--host", "203.0.113.1"), "--host"),
        (("--port", "70000"), "70000"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_options_are_wrong_usage_and_nothing_is_served(
    tokens: Tokens, asked: dict[str, Any], words: tuple[str, ...], said: str
):
    done = run("--port", "0", *words)
    assert (done.exit_code, "status" in asked) == (2, False), done.output
    assert said in done.stderr


def test_ctrl_c_ends_with_130(tokens: Tokens, asked: dict[str, Any]):
    asked["signal"] = 2
    assert run("--port", "0").exit_code == 130


def test_options_of_the_server_are_not_lost_before_a_sub_command(tokens: Tokens):
    done = run("--port", "0", "token", "list")
    assert done.exit_code == 2
    assert "token" in done.stderr


def test_help_has_examples_and_names_the_sub_command():
    done = run("--help")
    assert "harness serve --host 0.0.0.0" in done.stdout
    assert "  token " in done.stdout
    for name in ("create", "list", "rotate", "revoke"):
        assert "Example" in run("token", name, "--help").stdout


# -- tokens -------------------------------------------------------------------------------------------------------


def test_a_new_token_is_the_only_line_on_standard_output(tokens: Tokens):
    done = run("token", "create", "trino", "--tables", "shop.*", "--tables", "bank.*")
    assert (done.exit_code, done.stdout) == (0, f"{SECRET}\n")
    assert SECRET not in done.stderr
    assert "shown only now" in done.stderr
    [made] = tokens.all
    assert made.globs == ("shop.*", "bank.*")
    assert made.expires_at - AT == timedelta(days=90)


def test_a_new_token_as_one_object(tokens: Tokens):
    found = json.loads(run("token", "create", "trino", "--tables", "*", "--json").stdout)
    assert found == {"name": "trino", "tables": ["*"], "valid": True, "secret": SECRET}


@pytest.mark.parametrize(("text", "lasts"), [("12h", timedelta(hours=12)), ("never", None)])
def test_a_token_lasts_as_long_as_is_said(tokens: Tokens, text: str, lasts: timedelta | None):
    run("token", "create", "trino", "--tables", "*", "--expires", text)
    assert tokens.all[0].expires_at == (lasts and AT + lasts)


@pytest.mark.parametrize("words", [(), ("--tables", "orders"), ("--tables", "*", "--expires", "soon")])
def test_a_token_that_cannot_be_is_wrong_usage(tokens: Tokens, words: tuple[str, ...]):
    assert run("token", "create", "trino", *words).exit_code == 2
    assert tokens.all == []


def test_the_list_shows_how_each_token_stands_and_no_secret(tokens: Tokens):
    tokens.all = [
        Token(name="a"),
        Token(name="b", expires_at=AT),
        Token(name="c", expires_at=AT, valid=False),
        Token(name="d", revoked_at=AT, valid=False),
    ]
    lines = run("token", "list").stdout.splitlines()
    at = "2026-01-02 00:00:00 UTC"
    states = ["does not expire", f"expires at {at}", f"expired at {at}", f"revoked at {at}"]
    assert [line.split("; ")[1] for line in lines] == states
    assert all("shop.*" in line and "by me" in line for line in lines)
    assert [one["name"] for one in json.loads(run("token", "list", "--json").stdout)["tokens"]] == list("abcd")


def test_the_list_warns_of_a_token_that_expires_soon_and_names_the_end_of_an_old_secret(tokens: Tokens):
    now = datetime.now(UTC)
    tokens.all = [Token(name=f"in-{days}", expires_at=now + timedelta(days=days)) for days in (6, 8)]
    tokens.all += [Token(name="rotated", old_until=AT), Token(name="gone", old_until=AT, revoked_at=AT, valid=False)]
    soon, later, rotated, gone = run("token", "list").stdout.splitlines()
    assert "; expires soon, at " in soon
    assert "; expires at " in later
    assert "; does not expire, its old secret at 2026-01-02 00:00:00 UTC; " in rotated
    assert "old secret" not in gone


def test_a_token_gets_another_secret(tokens: Tokens):
    tokens.all = [Token()]
    done = run("token", "rotate", "trino", "--overlap", "2d", "--expires", "30d")
    assert (done.exit_code, done.stdout) == (0, f"{SECRET}\n")
    assert "its old secret at 2026-01-04 00:00:00 UTC" in done.stderr
    found = json.loads(run("token", "rotate", "trino", "--json").stdout)
    assert (found["name"], found["secret"]) == ("trino", SECRET)
    assert run("token", "rotate", "trino", "--overlap", "soon").exit_code == 2


def test_an_empty_list_says_what_to_do(tokens: Tokens):
    assert "harness serve token create" in run("token", "list").stdout


def test_a_token_is_revoked(tokens: Tokens):
    tokens.all = [Token()]
    assert "revoked at" in run("token", "revoke", "trino").stdout
    assert json.loads(run("token", "revoke", "trino", "--json").stdout)["valid"] is False
