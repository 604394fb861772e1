"""Keys that a server hands out to engines: such as may read, for a store, and not those that it writes with."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness_pipelines.drivers.object_stores.roles import ReadingKeys, RoleAway, RoleRefused
from harness_pipelines.errors import UsageError
from harness_pipelines.extras import ExtraMissing
from harness_pipelines.serve.storage import AGAIN, ByRole, Storage, handed_out
from harness_pipelines.serve.values import CutAnswer
from harness_pipelines.spec.settings import READING_KEYS, Settings

STORE = {
    "HARNESS_WAREHOUSE": "s3://lake/w",
    "HARNESS_S3_ENDPOINT": "http://127.0.0.1:9000",
    "HARNESS_S3_ACCESS_KEY": "writer",
    "HARNESS_S3_SECRET_KEY": "w-secret",
}
ROLE = {"HARNESS_SERVE_S3_ROLE": "arn:aws:iam::123456789012:role/reader"}
TABLE: Any = SimpleNamespace(table_id=1, name="shop.orders")
OTHER: Any = SimpleNamespace(table_id=2, name="shop.payments")
KEEP = timedelta(minutes=15)
KEYS = dict(zip(READING_KEYS, ("reader", "r-secret"), strict=True))


def settings(tmp_path: Path, **values: str) -> Settings:
    return Settings.from_env({"HARNESS_HOME": str(tmp_path), **values})


def given(found: Settings, *, keep: timedelta = KEEP) -> Storage:
    """What engines get for a table."""
    return handed_out(found, keep=keep, folders=lambda table: [f"s3://lake/w/{table.name}"]).of(TABLE)


def test_engines_get_the_keys_that_read_and_where_the_store_is(tmp_path: Path):
    found = given(settings(tmp_path, **STORE, **KEYS))
    config = found.config
    assert found.credentials() == [{"prefix": "s3://lake/", "config": config}]
    assert config == {
        "s3.access-key-id": "reader",
        "s3.secret-access-key": "r-secret",
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.endpoint": "http://127.0.0.1:9000",
    }
    assert not {"writer", "w-secret"} & {*config.values()}
    assert given(settings(tmp_path, **STORE)).credentials() == []
    of_aws = {"HARNESS_WAREHOUSE": "s3://lake/w", "HARNESS_S3_REGION": "eu-central-1", **KEYS}
    of = given(settings(tmp_path, **of_aws)).config
    assert (of["s3.region"], "s3.endpoint" in of, of["s3.path-style-access"]) == (
        "eu-central-1", False, "false",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**STORE, READING_KEYS[0]: "reader"}, "belong together"),
        ({**STORE, READING_KEYS[1]: "r-secret"}, "belong together"),
        ({**STORE, **KEYS, READING_KEYS[0]: "writer"}, "this server writes with"),
        ({"HARNESS_WAREHOUSE": "/srv/lake", **KEYS}, "for a warehouse on an object store"),
        ({"HARNESS_WAREHOUSE": "/srv/lake", **ROLE}, "HARNESS_SERVE_S3_ROLE is for a warehouse on an object store"),
        ({**STORE, **KEYS, **ROLE}, "keep the keys or the role"),
        ({**STORE, **ROLE, "HARNESS_WAREHOUSE": "s3://lake/a*"}, "stand for other names"),
    ],
)
def test_keys_that_cannot_be_meant_are_refused_and_not_shown(tmp_path: Path, values: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said) as refused:
        given(settings(tmp_path, **values))
    assert "secret" not in str(refused.value).replace("SECRET", "")


def test_settings_do_not_show_them(tmp_path: Path):
    found = settings(tmp_path, **STORE, **KEYS)
    assert "r-secret" not in repr(found) + repr(given(found))


# -- by a role ----------------------------------------------------------------------------------------------------


class Store:
    """Gives keys by a role; counts how often it is asked, and raises `trouble`."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.asked: list[tuple[str, Sequence[str], timedelta]] = []
        self.trouble: Exception | None = None

    def assume(self, role: str, folders: Sequence[str], s3: Any, *, name: str, lasts: timedelta) -> ReadingKeys:
        assert (role, s3.access_key) == (ROLE["HARNESS_SERVE_S3_ROLE"], "writer")
        self.asked.append((name, folders, lasts))
        if self.trouble:
            raise self.trouble
        number = len(self.asked)
        return ReadingKeys(
            access_key=f"k{number}", secret_key="s-secret", session_token=f"t{number}", until=self.now + lasts
        )


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    monkeypatch.setattr("harness_pipelines.serve.storage.assume", found.assume)
    return found


@pytest.fixture
def by_role(tmp_path: Path, store: Store) -> ByRole:
    made = handed_out(
        settings(tmp_path, **STORE, **ROLE), keep=KEEP, folders=lambda table: [f"s3://lake/w/{table.name}"]
    )
    assert isinstance(made, ByRole)
    made._now = lambda: store.now
    return made


def test_a_table_gets_keys_of_a_session_for_its_folders_with_their_end(by_role: ByRole, store: Store):
    found = by_role.of(TABLE)
    [credentials] = found.credentials()
    assert credentials["prefix"] == "s3://lake/"
    assert credentials["config"] == {
        "s3.access-key-id": "k1",
        "s3.secret-access-key": "s-secret",
        "s3.session-token": "t1",
        "s3.session-token-expires-at-ms": str(int((store.now + timedelta(hours=1)).timestamp() * 1000)),
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.endpoint": "http://127.0.0.1:9000",
    }
    assert store.asked == [("shop.orders", ["s3://lake/w/shop.orders"], timedelta(hours=1))]
    assert "s-secret" not in repr(found)


def test_loads_share_the_keys_of_a_table_until_a_quarter_of_their_time_is_left(by_role: ByRole, store: Store):
    first = by_role.of(TABLE)
    store.now += timedelta(minutes=44)
    assert by_role.of(TABLE) is first
    assert by_role.of(OTHER).config["s3.access-key-id"] == "k2", "another table has others"
    store.now += timedelta(minutes=1)
    assert by_role.of(TABLE).config["s3.access-key-id"] == "k3"
    assert [name for name, _, _ in store.asked] == ["shop.orders", "shop.payments", "shop.orders"]


@pytest.mark.parametrize(
    ("keep", "lasts"),
    [
        (timedelta(minutes=1), timedelta(minutes=15)),
        (timedelta(minutes=15), timedelta(hours=1)),
        (timedelta(hours=2), timedelta(hours=8)),
        (timedelta(days=1), timedelta(hours=12)),
    ],
)
def test_keys_last_for_the_files_of_a_cut_when_they_are_given_and_for_half_a_day_at_most(
    tmp_path: Path, store: Store, keep: timedelta, lasts: timedelta
):
    given(settings(tmp_path, **STORE, **ROLE), keep=keep)
    assert [one[2] for one in store.asked] == [lasts]


@pytest.mark.parametrize("kind", [RoleRefused, RoleAway])
def test_a_store_that_gives_no_keys_is_named_and_not_asked_with_each_load(
    by_role: ByRole, store: Store, kind: type[RoleRefused | RoleAway]
):
    store.trouble = kind("it says no")
    for _ in range(5):
        with pytest.raises(kind, match="it says no"):
            by_role.of(TABLE)
    assert len(store.asked) == 1
    store.now += AGAIN
    store.trouble = None
    assert by_role.of(TABLE).config["s3.access-key-id"] == "k2"


def test_keys_that_still_last_are_given_while_the_store_does_not_answer_but_not_against_its_will(
    by_role: ByRole, store: Store
):
    first = by_role.of(TABLE)
    store.now += timedelta(minutes=46)
    store.trouble = RoleAway("it does not answer")
    assert by_role.of(TABLE) is first
    store.now += timedelta(minutes=13)
    with pytest.raises(RoleAway):
        by_role.of(TABLE)
    store.now += AGAIN
    store.trouble = None
    by_role.of(TABLE)
    store.now += timedelta(minutes=46)
    store.trouble = RoleRefused("the role is gone")
    with pytest.raises(RoleRefused):
        by_role.of(TABLE)
    store.now += AGAIN
    store.trouble = RoleAway("it does not answer")
    with pytest.raises(RoleAway):
        by_role.of(TABLE)


def test_loads_at_the_same_time_ask_once(by_role: ByRole, store: Store, monkeypatch: pytest.MonkeyPatch):
    arrived, go_on, ask = threading.Event(), threading.Event(), by_role._keys

    def slow(name: str, folders: Sequence[str]) -> ReadingKeys:
        arrived.set()
        assert go_on.wait(60)
        return ask(name, folders)

    monkeypatch.setattr(by_role, "_keys", slow)
    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(by_role.of, TABLE) for _ in range(8)]
        assert arrived.wait(60)
        go_on.set()
        assert len({load.result(60).config["s3.access-key-id"] for load in loads}) == 1
    assert len(store.asked) == 1


def test_a_client_that_has_the_cut_gets_new_keys_before_its_own_end(by_role: ByRole, store: Store):
    def tag() -> str:
        return CutAnswer(snapshot_id=7, metadata_location="m", metadata=b"", storage=by_role.of(TABLE)).etag

    first = tag()
    store.now += timedelta(minutes=10)
    assert tag() == first
    store.now += timedelta(minutes=40)
    assert tag() != first
    assert CutAnswer(snapshot_id=7, metadata_location="m", metadata=b"").etag not in (first, tag())


def test_a_role_without_the_package_that_asks_for_it_is_refused_before_anything_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setattr("harness_pipelines.extras.find_spec", lambda _: None)
    with pytest.raises(ExtraMissing, match=r"harness-pipelines\[s3\]"):
        given(settings(tmp_path, **STORE, **ROLE))


def test_a_client_that_has_a_cut_gets_the_keys_that_the_server_was_given_since(tmp_path: Path):
    """The old ones may be revoked, and a table that does not move keeps its cut."""

    def tag(key: str) -> str:
        given = settings(tmp_path, **STORE, **dict(zip(READING_KEYS, (key, "r-secret"), strict=True)))
        vending = handed_out(given, keep=KEEP, folders=lambda _: ())
        return CutAnswer(snapshot_id=7, metadata_location="m", metadata=b"", storage=vending.of(TABLE)).etag

    assert tag("reader-1") == tag("reader-1")
    assert tag("reader-1") != tag("reader-2")
