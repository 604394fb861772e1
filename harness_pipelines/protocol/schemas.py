"""The schemas of a table: which one is in force, and how rows of one look in another.

A column is its Iceberg field id: names and places change, the id does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.errors import HarnessError, Recovery

Fields = Sequence[Mapping[str, Any]]  #: Iceberg's JSON form of columns, with field ids


class SchemaMoved(HarnessError):
    """The table's schema was changed since this was planned or decoded: read the table again."""

    recovery = Recovery.REFRESH


def check_schema(table: str, *, planned: int, found: int, what: str) -> None:
    """What was planned for one schema is not published on another (S21, S22). Raises: SchemaMoved (REFRESH)."""
    if planned != found:
        raise SchemaMoved(
            f"{table}: {what} with schema {planned}, the table is at {found}; nothing of it was done, begin anew"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRow:
    """One schema of a table, as its publish recorded it."""

    schema_version: int
    fields: tuple[Mapping[str, Any], ...]  #: Iceberg's JSON form of the user's columns, with field ids
    spec: Mapping[str, Any]  #: the words of the spec as it was published; settings may have changed since
    starts: Mapping[int, int]  #: by partition the first offset that is decoded with it; of schema 1 none


@dataclass(frozen=True, slots=True, kw_only=True)
class Other:
    """A column that rows of another schema have under another name, in another type, or not at all."""

    name: str  #: that is asked for
    stored: str | None  #: there; None: they have none, so it is NULL
    type: str | None = None  #: there, as Iceberg's text; None: a nested one, which is the same


def others(wanted: Fields, stored: Fields) -> tuple[Other, ...]:
    """The columns of *wanted* that rows of the schema *stored* have otherwise, by field id; () for none."""
    by_id = {f["id"]: f for f in stored}
    found = []
    for field in wanted:
        there = by_id.get(field["id"])
        if there is None:
            found.append(Other(name=field["name"], stored=None))
        elif there["name"] != field["name"] or there["type"] != field["type"]:
            type_ = there["type"] if isinstance(there["type"], str) else None
            found.append(Other(name=field["name"], stored=there["name"], type=type_))
    return tuple(found)


def first_names(history: Sequence[SchemaRow]) -> dict[int, str]:
    """By field id the name that each column had first: digests of rows are made with it, so they outlive a rename.

    A name that another field had first is told apart by the id. *history* from the first schema on.
    """
    found: dict[int, str] = {}
    for schema in history:
        for field in schema.fields:
            if (id_ := field["id"]) not in found:
                taken = field["name"] in found.values()
                found[id_] = f"{field['name']}#{id_}" if taken else field["name"]
    return found
