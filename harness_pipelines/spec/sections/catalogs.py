"""Foreign catalogs that a table's views are published in: the word `catalogs` of a spec."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator

from harness_pipelines.errors import UsageError
from harness_pipelines.files import SECRET_BYTES_MAX, Unreadable, read_text
from harness_pipelines.secret import HIDDEN, redact
from harness_pipelines.spec.columns import list_of_names
from harness_pipelines.spec.part import SpecPart

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
_NAMESPACE = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*")
_LATER = {"hive": "no Hive metastore was run with it yet"}
CATALOGS_MAX = 4  # each is asked in turn
MirroredView = Literal["stream", "batch"]


class CatalogSecretMissing(UsageError):
    """A property of a foreign catalog is to come from the environment or a file, and is not there."""

    way_on = "set the variable, or write the file, where the worker runs"


class SecretPlace(SpecPart):
    """Where a secret is, on the machine of the worker; the ledger never has it."""

    env: Annotated[str | None, Field(description="Name of an environment variable.")] = None
    file: Annotated[str | None, Field(description="Path of a file; its first line counts.")] = None

    @model_validator(mode="after")
    def _one(self) -> SecretPlace:
        if (self.env is None) == (self.file is None):
            raise ValueError("write either {env: NAME} or {file: PATH}")
        return self

    def value(self, name: str) -> str:
        """The secret, for the property *name*. Raises: CatalogSecretMissing."""
        if self.env is not None:
            if not (found := os.environ.get(self.env)):
                raise CatalogSecretMissing(f"property {name!r} of the catalog: the variable {self.env} is not set")
            return found
        try:
            return read_text(str(self.file), SECRET_BYTES_MAX).partition("\n")[0].strip()
        except Unreadable as error:
            raise CatalogSecretMissing(f"property {name!r} of the catalog: {self.file} {error}") from error


class CatalogSpec(SpecPart):
    """One foreign catalog that follows the table's published versions."""

    name: Annotated[str, Field(description="Its name in commands, metrics and messages.")]
    type: Annotated[
        Literal["rest", "glue"], Field(description="rest: a server of the Iceberg REST protocol. glue: AWS Glue.")
    ]
    uri: Annotated[
        str | None,
        Field(description="Address of the server, without a login; for Glue only where it is not that of the region."),
    ] = None
    tables: Annotated[
        tuple[MirroredView, ...],
        BeforeValidator(list_of_names, json_schema_input_type=MirroredView | list[MirroredView]),
        Field(description="The views to publish; default: all that the table has."),
    ] = ()
    namespace: Annotated[
        str | None, Field(description="Namespace in that catalog, which must exist; default: the table's.")
    ] = None
    properties: Annotated[
        Mapping[str, str | SecretPlace],
        Field(
            description="Properties of PyIceberg's client, such as `warehouse`. Secrets come from {env: NAME} or "
            "{file: PATH}."
        ),
    ] = {}

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"{value!r} is not a name; write a-z, 0-9 and _, beginning with a letter")
        return value

    @field_validator("type", mode="before")
    @classmethod
    def _later(cls, value: Any) -> Any:
        if isinstance(value, str) and value in _LATER:
            raise ValueError(
                f"`type: {value}` is planned: {_LATER[value]}; write `type: rest` or `type: glue`, or remove the "
                "catalog"
            )
        return value

    @field_validator("uri")
    @classmethod
    def _uri(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            place = urlsplit(value)
        except ValueError as error:
            raise ValueError(f"it cannot be read: {error}") from error
        if place.scheme not in ("http", "https") or not place.hostname:
            raise ValueError(f"{redact(value)!r} is not an address; write https://catalog.example/iceberg")
        if place.username is not None:
            raise ValueError("it has a login; write it as `properties: {credential: {env: NAME}}`")
        return value

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, value: str | None) -> str | None:
        if value is not None and not _NAMESPACE.fullmatch(value):
            raise ValueError(f"{value!r} is not a namespace; write names of A-Z, a-z, 0-9 and _, with dots between")
        return value

    @field_validator("properties")
    @classmethod
    def _no_secrets(cls, value: Mapping[str, str | SecretPlace]) -> Mapping[str, str | SecretPlace]:
        for name, given in value.items():
            if isinstance(given, str) and HIDDEN in redact(f"{name}={given}"):
                raise ValueError(
                    f"{name!r} is a secret, and the ledger keeps the spec: write {{env: NAME}} or {{file: PATH}}"
                )
        return value

    @model_validator(mode="after")
    def _fits_its_type(self) -> CatalogSpec:
        if self.type == "rest" and self.uri is None:
            raise ValueError(
                "`type: rest` needs the address of its server: write `uri: https://catalog.example/iceberg`"
            )
        if self.type == "glue" and self.namespace is not None and "." in self.namespace:
            raise ValueError(f"`namespace: {self.namespace}`: Glue's databases are not in one another; write one name")
        return self

    def opened(self) -> dict[str, str]:
        """The properties with their secrets. Raises: CatalogSecretMissing."""
        return {name: given if isinstance(given, str) else given.value(name) for name, given in self.properties.items()}


def catalogs_trouble(catalogs: tuple[CatalogSpec, ...], views: str) -> str | None:
    """What is wrong with the catalogs of a table that has *views*, the word of its spec."""
    names = [one.name for one in catalogs]
    if len(set(names)) != len(names):
        return f"{max(names, key=names.count)!r} is named twice"
    if len(names) > CATALOGS_MAX:
        return f"{len(names)} catalogs; at most {CATALOGS_MAX}"
    for one in catalogs:
        if strange := [view for view in one.tables if views not in ("both", view)]:
            return f"catalog {one.name!r} is to have the {strange[0]} view, which a table with `views: {views}` lacks"
    return None
