"""Keys by a role of the store: what the policy lets through, what is asked, and each refusal by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError, ReadTimeoutError
from botocore.stub import Stubber

from harness_pipelines.drivers.object_stores.clients import token_service
from harness_pipelines.drivers.object_stores.roles import ReadingKeys, RoleAway, RoleRefused, assume, policy
from harness_pipelines.spec.object_stores import S3Settings
from harness_pipelines_tests.store import moto_store

ROLE = "arn:aws:iam::123456789012:role/reader"
FOLDERS = ["s3://lake/w/shop/orders__stream", "s3://lake/w/shop/orders", "s3://lake/w/shop/orders__fresh-0a1b2c3d"]
STORE = S3Settings(endpoint="http://127.0.0.1:9", region="us-east-1", access_key="writer", secret_key="w-secret")
HOUR = timedelta(hours=1)


@pytest.fixture
def stub() -> Iterator[Stubber]:
    """What the store answers."""
    with Stubber(token_service(FOLDERS[0], STORE)) as found:
        yield found


def asked() -> ReadingKeys:
    return assume(ROLE, FOLDERS, STORE, name="shop.orders", lasts=HOUR)


def answer(**changed: Any) -> dict[str, Any]:
    keys = {
        "AccessKeyId": "ASIA" + "0" * 16,
        "SecretAccessKey": "s-secret",
        "SessionToken": "token",
        "Expiration": datetime(2026, 1, 1, 13, tzinfo=UTC),
    }
    return {"Credentials": keys | changed}


def allows(text: str, action: str, resource: str, prefix: str | None = None) -> bool:
    """Whether a policy allows it, as IAM reads it."""
    for statement in json.loads(text)["Statement"]:
        of = statement["Resource"]
        fits = any(fnmatchcase(resource, one) for one in ([of] if isinstance(of, str) else of))
        wanted = statement.get("Condition", {}).get("StringLike", {}).get("s3:prefix", [prefix])
        if statement["Action"] == action and fits and any(fnmatchcase(prefix or "", one or "") for one in wanted):
            return bool(statement["Effect"] == "Allow")
    return False


@pytest.mark.parametrize("folder", ["orders", "orders__stream", "orders__fresh-0a1b2c3d"])
def test_the_policy_lets_the_folders_of_the_table_be_read_and_listed(folder: str):
    text = policy(ROLE, FOLDERS)
    assert allows(text, "s3:GetObject", f"arn:aws:s3:::lake/w/shop/{folder}/data/1.parquet")
    assert allows(text, "s3:ListBucket", "arn:aws:s3:::lake", f"w/shop/{folder}/")


@pytest.mark.parametrize(
    "place", ["w/shop/payments/data/1", "w/shop/orders2/data/1", "w/shop/ordersX", "w/shop/orders", "w/shop/", "x", ""]
)
def test_the_policy_lets_nothing_else_be_read_or_listed_and_nothing_be_written(place: str):
    text = policy(ROLE, FOLDERS)
    assert not allows(text, "s3:GetObject", f"arn:aws:s3:::lake/{place}")
    assert not allows(text, "s3:GetObject", f"arn:aws:s3:::other/{FOLDERS[1].removeprefix('s3://lake/')}/data/1")
    assert not allows(text, "s3:ListBucket", "arn:aws:s3:::lake", place)
    assert not allows(text, "s3:ListBucket", "arn:aws:s3:::lake")
    assert {statement["Action"] for statement in json.loads(text)["Statement"]} == {"s3:GetObject", "s3:ListBucket"}
    assert len(text) < 2048


def test_of_aws_a_bucket_that_encrypts_by_kms_is_read_by_s3_alone():
    *others, kms = json.loads(policy(ROLE, FOLDERS, decrypts=True))["Statement"]
    assert others == json.loads(policy(ROLE, FOLDERS))["Statement"]
    assert (kms["Action"], list(kms["Condition"])) == ("kms:Decrypt", ["StringLike"])
    aws = S3Settings(region="eu-central-1", access_key="writer", secret_key="w-secret")
    with Stubber(token_service(FOLDERS[0], aws)) as stubbed:
        given = {"RoleArn": ROLE, "RoleSessionName": "harness-x", "DurationSeconds": 3600}
        stubbed.add_response("assume_role", answer(), given | {"Policy": policy(ROLE, FOLDERS, decrypts=True)})
        assume(ROLE, FOLDERS, aws, name="x", lasts=HOUR)


def test_the_policy_is_of_the_part_of_aws_that_the_role_is_of():
    assert "arn:aws-cn:s3:::lake/w/" in policy("arn:aws-cn:iam::123456789012:role/reader", ["s3://lake/w"])
    assert "arn:aws:s3:::lake/w/" in policy("a-name-of-another-store", ["s3://lake/w/"])


def test_the_role_is_taken_on_with_this_policy_under_the_name_of_the_table_for_a_while(stub: Stubber):
    expected = {
        "RoleArn": ROLE,
        "RoleSessionName": "harness-shop.orders",
        "DurationSeconds": 3600,
        "Policy": policy(ROLE, FOLDERS),
    }
    stub.add_response("assume_role", answer(), expected)
    found = asked()
    assert (found.access_key, found.session_token) == ("ASIA" + "0" * 16, "token")
    assert found.until == datetime(2026, 1, 1, 13, tzinfo=UTC)
    assert "s-secret" not in repr(found) and "token" not in repr(found).replace("session_token", "")


@pytest.mark.parametrize("changed", [{"AccessKeyId": "writer" + "0" * 10}, {"SessionToken": ""}])
def test_keys_that_are_none_of_a_session_reach_no_engine(stub: Stubber, changed: dict[str, str]):
    own = S3Settings(endpoint=STORE.endpoint, region="us-east-1", access_key="writer" + "0" * 10, secret_key="w")
    with Stubber(token_service(FOLDERS[0], own)) as other:
        other.add_response("assume_role", answer(**changed))
        with pytest.raises(RoleRefused, match="none of a session") as refused:
            assume(ROLE, FOLDERS, own, name="shop.orders", lasts=HOUR)
    assert "s-secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        ("AccessDenied", "User is not authorized to perform: sts:AssumeRole", "trust policy"),
        ("ValidationError", "DurationSeconds exceeds the MaxSessionDuration set for this role", "lower --keep"),
        ("PackedPolicyTooLarge", "Packed policy consumes 120%", "shorter prefix"),
        ("InvalidClientTokenId", "The security token included in the request is invalid", "HARNESS_S3_ACCESS_KEY"),
        ("SignatureDoesNotMatch", "wrong", "HARNESS_S3_SECRET_KEY"),
        ("ValidationError", "Value 'x' at 'roleArn' failed to satisfy constraint", "no name of a role"),
        ("InvalidAction", "Could not find operation AssumeRole", "gives no keys by roles"),
        ("MethodNotAllowed", "The specified method is not allowed", "gives no keys by roles"),
        ("Odd", "something new", "the answer says why"),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_to_do(stub: Stubber, code: str, message: str, said: str):
    stub.add_client_error("assume_role", code, message, 400)
    with pytest.raises(RoleRefused, match=said) as refused:
        asked()
    text = str(refused.value)
    assert all(word in text for word in (ROLE, *FOLDERS, "3600 s", "http://127.0.0.1:9", message))
    assert "w-secret" not in text
    assert "HARNESS_SERVE_S3_ROLE" in refused.value.todo()


@pytest.mark.parametrize(
    ("code", "status"), [("Throttling", 400), ("ServiceUnavailable", 503), ("InternalError", 500), ("SlowDown", 503)]
)
def test_a_store_that_asks_to_be_asked_less_is_asked_again(stub: Stubber, code: str, status: int):
    stub.add_client_error("assume_role", code, "later", status)
    with pytest.raises(RoleAway, match="does not answer now"):
        asked()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (EndpointConnectionError(endpoint_url="http://127.0.0.1:9"), RoleAway),
        (ReadTimeoutError(endpoint_url="http://127.0.0.1:9"), RoleAway),
        (NoCredentialsError(), RoleRefused),
    ],
    ids=lambda one: type(one).__name__,
)
def test_trouble_of_the_sdk_has_a_name(monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]):
    def fails(**_: Any) -> None:
        raise error

    monkeypatch.setattr(token_service(FOLDERS[0], STORE), "assume_role", fails)
    with pytest.raises(kind):
        asked()


def test_a_store_gives_keys_that_end():
    with moto_store() as (s3, warehouse):
        found = assume(ROLE, [f"{warehouse}/shop/orders"], s3, name="shop.orders", lasts=HOUR)
        assert found.access_key != s3.access_key and found.session_token
        assert timedelta(minutes=50) < found.until - datetime.now(UTC) <= timedelta(minutes=61)
