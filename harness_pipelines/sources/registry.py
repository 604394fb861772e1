"""The schema registry over Confluent's REST API, with Confluent's client.

A schema never changes under its id, so what was seen is kept as long as the process lives. That there is none is asked
again after a while: schemas are registered at any time, and a replica may lag behind.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness_pipelines.drivers.certificates import CertificateRefused, why_refused
from harness_pipelines.errors import HarnessError, TryAgain, UsageError
from harness_pipelines.extras import needs
from harness_pipelines.files import endless
from harness_pipelines.formats.schema.registry import NoSchemas, Schemas, WrittenSchema
from harness_pipelines.secret import redact
from harness_pipelines.spec.settings import Settings

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

ABSENT_S = 5.0  #: how long a schema that the registry does not know is not asked for again
REFERENCES_MAX = 1_000
_DEFAULTS: Mapping[str, float] = {"timeout": 5.0, "max.retries": 0}  # the worker waits between the attempts
_NUMBERS = frozenset({"timeout", "max.retries", "retries.wait.ms", "retries.max.wait.ms", "cache.capacity"})
_NOT_THERE = frozenset({40401, 40402, 40403})  #: the registry's codes for subject, version and schema


class RegistryAway(TryAgain):
    """The schema registry gave no answer, or one that it will not give later; nothing was decoded."""

    way_on = "nothing: workers continue by themselves; is HARNESS_REGISTRY right?"

    def __init__(self, url: str, *, doing: str, detail: str) -> None:
        self.url = url
        super().__init__(
            f"the schema registry at {url} gave no answer while {doing} ({detail}); nothing was written. Check that it "
            "runs and that HARNESS_REGISTRY names it; the same work is tried again"
        )


class RegistryLoginFailed(HarnessError):
    """The registry refused the login."""

    way_on = "`HARNESS_REGISTRY_*`; then start the worker again. After a change at the registry it continues by itself"

    def __init__(self, url: str, *, detail: str) -> None:
        super().__init__(
            f"the login at the schema registry {url} failed: {detail}. Check HARNESS_REGISTRY_BASIC_AUTH_USER_INFO "
            "(user:password) and HARNESS_REGISTRY_SSL_*. A worker tries again by itself; another login it takes when "
            "it is started again"
        )


class RegistryPropertyRefused(UsageError):
    """A property given for the registry's client is unknown or has a bad value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAddress:
    """`SchemaSource` of the registry that the settings name."""

    url: str | None = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> RegistryAddress:
        return cls(url=settings.registry, properties=dict(settings.registry_properties))

    def open(self) -> Schemas:
        """The registry's client; it sends no request yet."""
        return Registry(self.url, self.properties) if self.url else NoSchemas()


class Registry:
    """`Schemas` of a registry. Safe for use by several threads."""

    def __init__(self, url: str, properties: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._properties, self._clock = url, properties, clock
        self._shown = redact(url)
        self._lock = threading.Lock()
        self._client: SchemaRegistryClient | None = None
        self._known: dict[int, WrittenSchema] = {}
        self._absent: dict[int, float] = {}  #: until when

    def by_id(self, schema_id: int) -> WrittenSchema | None:
        """Raises: RegistryAway, RegistryLoginFailed, CertificateRefused, RegistryPropertyRefused, ExtraMissing."""
        found = self._known.get(schema_id)
        if found is not None:
            return found
        with self._lock:
            if schema_id in self._known:
                return self._known[schema_id]
            if self._clock() < self._absent.get(schema_id, 0.0):
                return None
            try:
                found = self._ask(schema_id)
            except HarnessError:
                self._forget_client()
                raise
            if found is None or found.lacks is not None:
                self._absent[schema_id] = self._clock() + ABSENT_S if found is None else 0.0
            else:
                self._known[schema_id] = found
                self._absent.pop(schema_id, None)
            return found

    def _ask(self, schema_id: int) -> WrittenSchema | None:
        client = self._opened()
        schema = self._answer(f"asking for schema {schema_id}", lambda: _checked(client.get_schema(schema_id)))
        if schema is None:
            return None
        references: dict[str, str] = {}
        lacks = self._add_references(schema, references)
        kind = (schema.schema_type or "AVRO").upper()
        return WrittenSchema(kind=kind, text=schema.schema_str, references=references, lacks=lacks)

    def _add_references(self, schema: Schema, found: dict[str, str]) -> str | None:
        """Add what *schema* refers to, what that refers to first; returns what the registry has not."""
        for reference in schema.references or []:
            name = str(reference.name)
            if name in found:
                continue
            if len(found) >= REFERENCES_MAX:
                return f"more than {REFERENCES_MAX:,} references"
            there = self._reference(reference)
            if there is None:
                return f"{name} (subject {reference.subject}, version {reference.version})"
            found[name] = ""  # it may be referred to in a circle
            if (lacks := self._add_references(there, found)) is not None:
                return lacks
            del found[name]
            found[name] = there.schema_str
        return None

    def _reference(self, reference: SchemaReference) -> Any:
        client, subject, version = self._opened(), str(reference.subject), int(reference.version or 0)
        return self._answer(
            f"asking for version {version} of {subject}",
            lambda: _checked(client.get_version(subject, version, deleted=True).schema),
        )

    def _answer(self, doing: str, ask: Callable[[], Any]) -> Any:
        """The registry's answer; None: not found."""
        import httpx2
        from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

        try:
            return ask()
        except SchemaRegistryError as error:
            if error.error_code in _NOT_THERE:
                return None
            detail = redact(f"{error.error_message} (HTTP {error.http_status_code}, code {error.error_code})")[:300]
            if error.http_status_code in {401, 403}:
                raise RegistryLoginFailed(self._shown, detail=detail) from error
            raise RegistryAway(self._shown, doing=doing, detail=detail) from error
        except OAuthTokenError as error:
            raise RegistryLoginFailed(self._shown, detail=redact(str(error))[:300]) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError, AttributeError) as error:
            detail = redact(f"{type(error).__name__}: {error}")[:300]  # the last three: what answers is no registry
            why = why_refused(detail)
            if why is not None:
                server, settings = f"the schema registry at {self._shown}", "HARNESS_REGISTRY, HARNESS_REGISTRY_SSL_*"
                raise CertificateRefused(server, why=why, said=detail, settings=settings) from error
            raise RegistryAway(self._shown, doing=doing, detail=detail) from error

    def _forget_client(self) -> None:
        """The next question is a new client's: it reads files of certificates again, and keeps no wrong answer."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self) -> SchemaRegistryClient:
        if self._client is None:
            with needs("formats", "HARNESS_REGISTRY"):
                from confluent_kafka.schema_registry import SchemaRegistryClient
            try:
                self._client = SchemaRegistryClient({"url": self._url, **_DEFAULTS, **self._converted()})
            except (ValueError, TypeError, OSError) as error:  # OSError: a file of certificates
                raise RegistryPropertyRefused(
                    f"the schema registry's client does not take HARNESS_REGISTRY or HARNESS_REGISTRY_*: "
                    f"{redact(str(error))}"
                ) from None
        return self._client

    def _converted(self) -> dict[str, str | float]:
        made: dict[str, str | float] = {}
        for name, value in self._properties.items():
            variable = f"HARNESS_REGISTRY_{name.upper().replace('.', '_')}"
            if name.endswith(".location") and (why := endless(value)) is not None:
                raise RegistryPropertyRefused(f"{variable}: the file {value} {why}")
            try:
                made[name] = float(value) if name in _NUMBERS else value
            except ValueError:
                raise RegistryPropertyRefused(f"{variable} is {value!r}; expected a number") from None
        return made

    def close(self) -> None:
        with self._lock:
            self._forget_client()


def _checked(schema: Schema) -> Schema:
    """*schema*, if it is one: a gateway's answer in JSON must not stand for a schema, by which records are refused.

    Raises: ValueError.
    """
    texts = [schema.schema_str, schema.schema_type or "AVRO"]
    numbers: list[Any] = []
    for one in schema.references or []:
        texts += [one.name, one.subject]
        numbers.append(one.version)
    if not all(isinstance(text, str) and text for text in texts) or not all(isinstance(n, int) for n in numbers):
        raise ValueError("the answer holds no schema, so who answers is no schema registry")
    return schema
