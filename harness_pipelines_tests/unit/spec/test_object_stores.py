"""What is said of an object store is checked before anything is asked of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness_pipelines.errors import UsageError
from harness_pipelines.secret import redact
from harness_pipelines.services import Services
from harness_pipelines.spec.locations import warehouse_location
from harness_pipelines.spec.object_stores import S3Settings, StoreUnsupported
from harness_pipelines.spec.settings import Settings

KEYS = {
    "HARNESS_S3_ACCESS_KEY": "AKIAthekey",
    "HARNESS_S3_SECRET_KEY": "thesecret",
    "HARNESS_S3_SESSION_TOKEN": "thetoken",
}


def test_settings_come_from_the_environment_and_go_back_into_one():
    words = {
        **KEYS,
        "HARNESS_S3_ENDPOINT": "https://minio.example:9000",
        "HARNESS_S3_REGION": "eu-central-1",
        "HARNESS_S3_PATH_STYLE": "false",
    }
    found = S3Settings.from_env(words)
    assert found.environment() == words
    assert S3Settings.from_env(found.environment()) == found
    assert S3Settings.from_env({}) == S3Settings()


def test_a_name_that_is_no_setting_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"HARNESS_S3_ENPOINT is set, and no such .* HARNESS_S3_ENDPOINT, "):
        S3Settings.from_env({"HARNESS_S3_ENPOINT": "https://minio.example:9000"})
    assert S3Settings.from_env({"HARNESS_S3_ENPOINT": ""}) == S3Settings()


@pytest.mark.parametrize("name", ["HARNESS_S3_SSE_TYPE", "HARNESS_S3_SSE_KEY", "HARNESS_S3_KMS_KEY_ID"])
def test_encryption_by_request_is_refused_for_not_every_client_sends_it(name: str):
    with pytest.raises(UsageError, match=rf"{name} .* Arrow cannot send it.* bucket encrypt by default.*SSE-C"):
        S3Settings.from_env({name: "aws:kms"})


ENCRYPTING = (
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
)


@pytest.mark.parametrize("name", ENCRYPTING)
def test_variables_by_which_one_client_alone_would_encrypt_are_refused_for_a_lake_on_a_store(name: str, tmp_path):
    words = {"HARNESS_WAREHOUSE": "s3://b/lake", name: "CANARY"}
    with pytest.raises(UsageError, match=f"{name} is set, .* Unset it") as raised:
        Settings.from_env(words, home=tmp_path)
    assert "CANARY" not in str(raised.value)
    Settings.from_env({**words, "HARNESS_WAREHOUSE": "/a/folder"}, home=tmp_path)


@pytest.mark.parametrize("name", ENCRYPTING)
def test_they_are_refused_for_the_embedded_store_too_before_it_starts_and_where_it_runs(name: str, tmp_path: Path):
    home = tmp_path / "home"
    settings = Settings.from_env({name: "CANARY"}, home=home)
    with pytest.raises(UsageError, match=f"{name} is set, .* Unset it"):
        Services.from_settings(settings).up(s3=True)
    assert not home.exists()
    place: dict[str, Any] = {"dsn": "postgresql://a", "kafka": "k:1", "spark": "sc://b"}
    with pytest.raises(UsageError, match=f"{name} is set, .* Unset it") as raised:
        settings.with_services(**place, warehouse="s3://harness/warehouse", s3=S3Settings(region="us-east-1"))
    assert "CANARY" not in str(raised.value)
    assert settings.with_services(**place, warehouse="file:///a/folder").warehouse == "file:///a/folder"


def test_no_key_is_in_a_repr_or_in_a_shown_text(tmp_path):
    settings = Settings.from_env({**KEYS, "HARNESS_WAREHOUSE": "s3://b/lake"}, home=tmp_path)
    assert not any(key in f"{settings!r} {settings.s3!r}" for key in KEYS.values())
    shown = redact(" ".join(f"{name}={value}" for name, value in settings.s3.environment().items()))
    assert not any(key in shown for key in KEYS.values())


@pytest.mark.parametrize(
    "text",
    [
        "s3.secret-access-key=CANARY",
        "AWS_SECRET_ACCESS_KEY=CANARY",
        "'s3.session-token': 'CANARY'",
        "https://b.example/k?X-Amz-Signature=CANARY&X-Amz-Date=1",
        "X-Amz-Security-Token=CANARY",
        "adls.account-key=CANARY",
        "https://a.example/c?sv=1&sig=CANARY",
        "credential=id:CANARY",
        "Authorization: Bearer CANARYCANARY",
    ],
)
def test_secrets_of_stores_are_hidden_in_texts(text: str):
    assert "CANARY" not in redact(text)


def test_a_store_of_ones_own_is_asked_by_path_and_aws_by_name():
    assert S3Settings(endpoint="https://minio.example").is_path_style
    assert not S3Settings().is_path_style
    assert not S3Settings(endpoint="https://r2.example", path_style=False).is_path_style


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"HARNESS_S3_ACCESS_KEY": "a"}, "HARNESS_S3_SECRET_KEY"),
        ({"HARNESS_S3_SECRET_KEY": "a"}, "HARNESS_S3_ACCESS_KEY"),
        ({"HARNESS_S3_SESSION_TOKEN": "a"}, "HARNESS_S3_ACCESS_KEY"),
        ({"HARNESS_S3_PATH_STYLE": "perhaps"}, "true or false"),
        ({"HARNESS_S3_ENDPOINT": "minio:9000"}, "https://minio.example:9000"),
        ({"HARNESS_S3_ENDPOINT": "https://h:notaport"}, "HARNESS_S3_ENDPOINT"),
        ({"HARNESS_S3_ENDPOINT": "https://h/bucket"}, "host and port alone"),
        ({"HARNESS_S3_ENDPOINT": "https://me:CANARY@h"}, "a login in its address"),
        ({"HARNESS_S3_ENDPOINT": "http://minio.example:9000"}, "HARNESS_S3_ALLOW_HTTP"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(words: dict[str, str], said: str):
    with pytest.raises(UsageError, match=said) as refused:
        S3Settings.from_env(words)
    assert "CANARY" not in str(refused.value)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000"])
def test_this_machine_is_asked_without_tls(endpoint: str):
    assert S3Settings(endpoint=endpoint).is_plain


def test_another_machine_is_asked_without_tls_only_where_that_is_said():
    words = {"HARNESS_S3_ENDPOINT": "http://minio.example", "HARNESS_S3_ALLOW_HTTP": "true"}
    assert S3Settings.from_env(words).is_plain


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("s3a://b/lake", "write s3://"),
        ("s3n://b/lake", "write s3://"),
        ("gs://b/lake", "Google Cloud Storage"),
        ("abfss://c@a.dfs.core.windows.net/lake", "Azure"),
        ("s3://key:CANARY@b/lake", "a login in its address"),
        ("hdfs://n/lake", "does not know"),
    ],
)
def test_a_store_that_is_not_known_to_work_is_refused_by_name(location: str, said: str):
    with pytest.raises(StoreUnsupported, match=said) as refused:
        warehouse_location(location)
    assert "CANARY" not in str(refused.value)
