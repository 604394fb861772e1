"""Clients of object stores, one for each bucket and settings in a process; and their options for other engines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from harness_pipelines.drivers.object_stores.bound import BOUND
from harness_pipelines.extras import needs
from harness_pipelines.spec.locations import local_path
from harness_pipelines.spec.object_stores import S3Settings, check_scheme

if TYPE_CHECKING:
    from obstore.store import S3Store
    from pyarrow.fs import FileSystem

ANY_REGION = "us-east-1"  #: accepted by S3-compatible stores without a configured region
SERVICES_OF_S3 = "s3.*.amazonaws.com*"  #: as KMS calls S3 of each region, when it asks for a client
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
TOKEN_TIMEOUT_S, TOKEN_TRIES_MAX = 10.0, 2  #: an engine waits for the answer
RETRIES_MAX = 4  #: within some seconds; then the stage shows its trouble and tries again by itself


def filesystem(location: str) -> FileSystem:
    """Arrow's file system of the store that *location* is in. Raises: StoreUnsupported; OSError."""
    check_scheme(location)
    return _filesystem(bucket_of(location)[0], BOUND.of(location))


def objects(location: str) -> tuple[S3Store, str]:
    """The client for what Arrow has not (conditional writes, bulk deletes), and the key of *location* in its bucket.

    Raises: ExtraMissing, StoreUnsupported.
    """
    check_scheme(location)
    bucket, key = bucket_of(location)
    return _objects(bucket, BOUND.of(location)), key


def administration(location: str) -> Any:
    """The client of the AWS SDK for what neither Arrow nor obstore can ask of the bucket of *location*.

    Raises: ExtraMissing, StoreUnsupported.
    """
    check_scheme(location)
    return _administration(bucket_of(location)[0], BOUND.of(location))


def bucket_of(location: str) -> tuple[str, str]:
    """Bucket and key of a location on an object store."""
    bucket, _, key = location.partition("://")[2].partition("/")
    return bucket, key


@lru_cache(maxsize=64)
def _filesystem(bucket: str, s3: S3Settings) -> FileSystem:
    from pyarrow.fs import S3FileSystem

    given: dict[str, Any] = {
        "region": _region(bucket, s3),
        "endpoint_override": None if s3.endpoint is None else s3.endpoint.rstrip("/"),
        "access_key": s3.access_key,
        "secret_key": s3.secret_key,
        "session_token": s3.session_token,
        "force_virtual_addressing": not s3.is_path_style,
        "connect_timeout": CONNECT_TIMEOUT_S,
        "request_timeout": REQUEST_TIMEOUT_S,
    }
    # What is opened is read at once, and what is written is looked at when it is closed: no request only to open it.
    return S3FileSystem(allow_delayed_open=True, **{name: value for name, value in given.items() if value is not None})


@lru_cache(maxsize=64)
def _objects(bucket: str, s3: S3Settings) -> S3Store:
    with needs("s3", "A warehouse on an object store"):
        from obstore.store import S3Store

    given: dict[str, Any] = {
        "endpoint": s3.endpoint,
        "region": _region(bucket, s3),
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key,
        "session_token": s3.session_token,
        "virtual_hosted_style_request": not s3.is_path_style,
    }
    known = {name: value for name, value in given.items() if value is not None}
    client: Any = {"connect_timeout": f"{CONNECT_TIMEOUT_S:g}s", "timeout": f"{REQUEST_TIMEOUT_S:g}s"}
    client["allow_http"] = s3.is_plain
    retry: Any = {"max_retries": RETRIES_MAX, "retry_timeout": timedelta(seconds=REQUEST_TIMEOUT_S)}
    return S3Store(bucket, client_options=client, retry_config=retry, **known)


@lru_cache(maxsize=64)
def _administration(bucket: str, s3: S3Settings) -> Any:
    with needs("s3", "A warehouse on an object store"):
        from botocore.config import Config
        from botocore.session import get_session

    how = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=REQUEST_TIMEOUT_S,
        retries={"total_max_attempts": RETRIES_MAX, "mode": "standard"},
        s3={"addressing_style": "path" if s3.is_path_style else "virtual"},
    )
    session = get_session()
    # The SDK's own parser of times takes three quarters of the time that a page of a listing takes.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    client = _aws_client(session, "s3", how, bucket, s3)
    client.meta.events.register("before-call.s3", _stay)
    return client


def token_service(location: str, s3: S3Settings) -> Any:
    """The client of what gives keys by roles (STS), beside the store of *location*. Raises: ExtraMissing."""
    return _token_service(bucket_of(location)[0], s3)


@lru_cache(maxsize=64)
def _token_service(bucket: str, s3: S3Settings) -> Any:
    with needs("s3", "A role of an object store"):
        from botocore.config import Config
        from botocore.session import get_session

    how = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=TOKEN_TIMEOUT_S,
        retries={"total_max_attempts": TOKEN_TRIES_MAX, "mode": "standard"},
    )
    return _aws_client(get_session(), "sts", how, bucket, s3)


def _aws_client(session: Any, service: str, how: Any, bucket: str, s3: S3Settings) -> Any:
    """The AWS SDK's client of *service*, with the keys and the endpoint of *s3*."""
    return session.create_client(
        service,
        endpoint_url=s3.endpoint,
        region_name=_region(bucket, s3),
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key,
        aws_session_token=s3.session_token,
        config=how,
    )


def _stay(params: dict[str, Any], **_: object) -> None:
    """Follow no redirect to another region: the SDK asks for that by a request which it redirects again, without end,
    where a gateway redirects them all. The settings have the region, and the other clients name it if it is wrong."""
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _moment(text: str) -> datetime:
    """A time in an answer: of ISO 8601 in bodies, of RFC 822 in headers."""
    from botocore.utils import parse_timestamp

    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        found = parse_timestamp(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@lru_cache(maxsize=64)
def _region(bucket: str, s3: S3Settings) -> str | None:
    """Of the bucket: as set; of another store than AWS any; else as AWS says."""
    if s3.region is not None:
        return s3.region
    if s3.endpoint is not None:
        return ANY_REGION
    from pyarrow.fs import resolve_s3_region

    return str(resolve_s3_region(bucket))


def reader_options(
    access_key: str, secret_key: str, s3: S3Settings, *, session: tuple[str, datetime] | None = None
) -> dict[str, str]:
    """By which any engine of Iceberg reaches the store of *s3* with other keys than these settings have.

    *session*: the token of keys that are good for a while, and their end.
    """
    region = s3.region or (ANY_REGION if s3.endpoint is not None else None)
    given = {
        "s3.access-key-id": access_key,
        "s3.secret-access-key": secret_key,
        "s3.region": region,
        "client.region": region,  # as Iceberg for Java calls it
        "s3.endpoint": s3.endpoint,
        "s3.path-style-access": str(s3.is_path_style).lower(),
    }
    if session is not None:
        given |= {
            "s3.session-token": session[0],
            "s3.session-token-expires-at-ms": str(int(session[1].timestamp() * 1000)),
        }
    return {name: value for name, value in given.items() if value is not None}


def spark_options(warehouse: str, s3: S3Settings) -> dict[str, str]:
    """Properties of an Iceberg catalog in Spark that opens files of *warehouse*; none for a local folder.

    Iceberg's own access, which needs the jar `iceberg-aws-bundle`. They hold the keys, if there are any.
    """
    if not warehouse or local_path(warehouse) is not None:
        return {}
    check_scheme(warehouse)
    given = {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": s3.region or (ANY_REGION if s3.endpoint is not None else None),
        "s3.endpoint": s3.endpoint,
        "s3.path-style-access": str(s3.is_path_style).lower(),
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": s3.secret_key,
        "s3.session-token": s3.session_token,
        "io.manifest.cache-enabled": "true",  # manifests never change, and a merge plans several scans of them
    }
    return {name: value for name, value in given.items() if value is not None}
