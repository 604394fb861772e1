"""The schema registry as codecs use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness_pipelines.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenSchema:
    """A schema with all that it refers to."""

    kind: str  #: AVRO, PROTOBUF or JSON
    text: str
    references: Mapping[str, str] = field(default_factory=dict)  #: name -> text, a schema after those it refers to
    lacks: str | None = None  #: a reference that the registry does not have


class Schemas(Protocol):
    """A schema registry, or what stands for one."""

    def by_id(self, schema_id: int) -> WrittenSchema | None:
        """The schema with this id; None: the registry knows none.

        Raises: RegistryAway and the like, so that no verdict is given while the registry cannot be asked.
        """
        ...

    def close(self) -> None: ...


class SchemaSource(Protocol):
    """Where a schema registry is; it can be sent to other processes."""

    def open(self) -> Schemas:
        """The registry; nothing is asked yet."""
        ...


class NoSchemas:
    """`Schemas` where no registry is known."""

    def by_id(self, schema_id: int) -> WrittenSchema | None:
        """Raises: UsageError."""
        raise UsageError(
            f"a record names schema {schema_id}, and no schema registry is known: set HARNESS_REGISTRY, or give the "
            "spec a `schema` where records are written without an id"
        )

    def close(self) -> None: ...


class SchemaUnusable(UsageError):
    """The schema that a spec has cannot be read, or does not give its columns."""
