"""How the object store of a warehouse is reached: ``HARNESS_S3_*``, checked once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from harness_pipelines.errors import UsageError

PREFIX = "HARNESS_S3_"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
NAMES = ("ENDPOINT", "REGION", "PATH_STYLE", "ACCESS_KEY", "SECRET_KEY", "SESSION_TOKEN", "ALLOW_HTTP")
#: By which the client that writes metadata alone would encrypt: with a customer's key nobody else could read the table.
_ENCRYPTION = (
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_SSE_CUSTOMER_KEY_BASE64",
)
_ENCRYPT = (
    "of the clients that write files there Arrow cannot send it, so some files would be encrypted by it and others "
    "not. Unset it and let the bucket encrypt by default (SSE-S3 or SSE-KMS). A customer's key (SSE-C) can be no "
    "bucket's default and is not supported"
)
_SAID = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
#: Spellings of other systems that the harness does not take, and what is meant.
_OTHERWISE = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
#: Stores that the code has a place for and no test has run on.
_UNTESTED = {"gs": "Google Cloud Storage", "abfss": "Azure Data Lake Storage"}


class StoreUnsupported(UsageError):
    """The warehouse names a store that the harness does not work on; nothing was read or written."""

    way_on = "write a folder, or s3://bucket/prefix; a store that speaks S3 is reached by HARNESS_S3_ENDPOINT"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Where S3 is and how it is asked. What is `None` comes from the SDKs' own chains: role, profile, ``AWS_*``."""

    endpoint: str | None = None  #: of a store that speaks S3; `None`: AWS
    region: str | None = None
    path_style: bool | None = None  #: bucket in the path, not in the host's name; `None`: with an endpoint
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    allow_http: bool = False  #: to another machine than this one

    def __post_init__(self) -> None:
        """Raises: UsageError for what cannot be meant."""
        if (self.access_key is None) != (self.secret_key is None):
            raise UsageError(f"{PREFIX}ACCESS_KEY and {PREFIX}SECRET_KEY belong together: set both or none")
        if self.session_token is not None and self.access_key is None:
            raise UsageError(f"{PREFIX}SESSION_TOKEN belongs to {PREFIX}ACCESS_KEY, which is not set")
        if self.endpoint is not None:
            _check_endpoint(self.endpoint, allow_http=self.allow_http)

    @property
    def is_path_style(self) -> bool:
        return self.endpoint is not None if self.path_style is None else self.path_style

    @property
    def is_plain(self) -> bool:
        """Whether it is asked without TLS."""
        return self.endpoint is not None and self.endpoint.lower().startswith("http://")

    @classmethod
    def from_env(cls, values: Mapping[str, str]) -> S3Settings:
        """Read ``HARNESS_S3_*``. Raises: UsageError for what cannot be meant, and for a name that is no setting."""
        for name in sorted(values):
            if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in NAMES and values[name]:
                raise UsageError(_unknown(name))

        def given(name: str) -> str | None:
            return values.get(PREFIX + name) or None

        return cls(
            endpoint=given("ENDPOINT"),
            region=given("REGION"),
            path_style=_flag(values, "PATH_STYLE"),
            access_key=given("ACCESS_KEY"),
            secret_key=given("SECRET_KEY"),
            session_token=given("SESSION_TOKEN"),
            allow_http=_flag(values, "ALLOW_HTTP") or False,
        )

    def environment(self) -> dict[str, str]:
        """These settings as the variables that `from_env` reads."""
        flags = {"PATH_STYLE": self.path_style, "ALLOW_HTTP": self.allow_http or None}
        texts = {
            "ENDPOINT": self.endpoint,
            "REGION": self.region,
            "ACCESS_KEY": self.access_key,
            "SECRET_KEY": self.secret_key,
            "SESSION_TOKEN": self.session_token,
            **{name: None if value is None else str(value).lower() for name, value in flags.items()},
        }
        return {PREFIX + name: value for name, value in texts.items() if value is not None}


def encrypting(values: Mapping[str, str]) -> tuple[str, ...]:
    """The variables by which one of the clients would encrypt what it writes, and the others not."""
    return tuple(name for name in _ENCRYPTION if values.get(name))


def check_encryption(names: Sequence[str]) -> None:
    """Of `encrypting`, for a warehouse on an object store: none is set. Raises: UsageError."""
    if names:
        raise UsageError(f"{', '.join(names)} is set, and the warehouse is on an object store: {_ENCRYPT}")


def _unknown(name: str) -> str:
    if any(word in name for word in ("SSE", "ENCRYPT", "KMS")):
        return f"{name} is set, and no such setting exists: {_ENCRYPT}"
    return f"{name} is set, and no such setting exists; there are {', '.join(PREFIX + one for one in NAMES)}"


def check_scheme(location: str) -> None:
    """The store of *location* is one that the harness works on. Raises: StoreUnsupported."""
    scheme, rest = location.partition(":")[0], location.partition("://")[2]
    if (meant := _OTHERWISE.get(scheme.lower())) is not None:
        raise StoreUnsupported(
            f"HARNESS_WAREHOUSE begins with {scheme}://, which engines spell differently; write {meant}://"
        )
    if "@" in rest.partition("/")[0] and scheme.lower() != "abfss":
        raise StoreUnsupported(
            f"HARNESS_WAREHOUSE has a login in its address ({scheme}://...@...); set {PREFIX}ACCESS_KEY and "
            f"{PREFIX}SECRET_KEY, or use a role or a profile"
        )
    if (name := _UNTESTED.get(scheme.lower())) is not None:
        raise StoreUnsupported(f"HARNESS_WAREHOUSE is on {name} ({scheme}://), which is not tested yet")
    if scheme != "s3":
        raise StoreUnsupported(f"HARNESS_WAREHOUSE begins with {scheme}://, which the harness does not know")


def _check_endpoint(endpoint: str, *, allow_http: bool) -> None:
    shown = endpoint.rpartition("@")[2]
    try:
        place = urlsplit(endpoint)
        host = place.hostname
        _ = place.port
    except ValueError as error:
        raise UsageError(f"{PREFIX}ENDPOINT cannot be read: {error}") from error
    if place.scheme not in ("http", "https") or not host:
        raise UsageError(f"{PREFIX}ENDPOINT is {shown!r}; expected an address, as https://minio.example:9000")
    if place.username is not None:
        raise UsageError(f"{PREFIX}ENDPOINT has a login in its address; set {PREFIX}ACCESS_KEY and {PREFIX}SECRET_KEY")
    if place.path not in ("", "/") or place.query or place.fragment:
        raise UsageError(f"{PREFIX}ENDPOINT is {shown!r}; expected scheme, host and port alone")
    if place.scheme == "http" and host not in LOOPBACK and not allow_http:
        raise UsageError(
            f"{PREFIX}ENDPOINT is {shown!r}: anyone on the way could read and change the lake. Write https://, or "
            f"set {PREFIX}ALLOW_HTTP=true if the network is trusted"
        )


def _flag(values: Mapping[str, str], name: str) -> bool | None:
    text = values.get(PREFIX + name) or None
    if text is None:
        return None
    if text.lower() not in _SAID:
        raise UsageError(f"{PREFIX}{name} is {text!r}; expected true or false")
    return _SAID[text.lower()]
