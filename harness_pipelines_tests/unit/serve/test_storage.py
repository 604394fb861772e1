"""Keys that a server hands out to engines: such as may read, for a store, and not those that it writes with."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines.serve.storage import handed_out
from harness_pipelines.spec.settings import READING_KEYS, Settings

STORE = {
    "HARNESS_WAREHOUSE": "s3://lake/w",
    "HARNESS_S3_ENDPOINT": "http://127.0.0.1:9000",
    "HARNESS_S3_ACCESS_KEY": "writer",
    "HARNESS_S3_SECRET_KEY": "w-secret",
}
KEYS = dict(zip(READING_KEYS, ("reader", "r-secret"), strict=True))


def settings(tmp_path: Path, **values: str) -> Settings:
    return Settings.from_env({"HARNESS_HOME": str(tmp_path), **values})


def test_engines_get_the_keys_that_read_and_where_the_store_is(tmp_path: Path):
    found = handed_out(settings(tmp_path, **STORE, **KEYS))
    given = found.config
    assert found.credentials() == [{"prefix": "s3://lake/", "config": given}]
    assert given == {
        "s3.access-key-id": "reader",
        "s3.secret-access-key": "r-secret",
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.endpoint": "http://127.0.0.1:9000",
    }
    assert not {"writer", "w-secret"} & {*given.values()}
    assert handed_out(settings(tmp_path, **STORE)).credentials() == []
    of_aws = {"HARNESS_WAREHOUSE": "s3://lake/w", "HARNESS_S3_REGION": "eu-central-1", **KEYS}
    of = handed_out(settings(tmp_path, **of_aws)).config
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
    ],
)
def test_keys_that_cannot_be_meant_are_refused_and_not_shown(tmp_path: Path, values: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said) as refused:
        handed_out(settings(tmp_path, **values))
    assert "secret" not in str(refused.value).replace("SECRET", "")


def test_settings_do_not_show_them(tmp_path: Path):
    found = settings(tmp_path, **STORE, **KEYS)
    assert "r-secret" not in repr(found) + repr(handed_out(found))
