"""Rules of fsck for the columns of the views: engines read files by the ids of fields, whatever they are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness_pipelines.audit.fsck.rule import Look, Objection, ViewSeen, rule
from harness_pipelines.ports.files import MetadataSeen
from harness_pipelines.spec.types import lake_fields

Fields = Sequence[Mapping[str, Any]]  #: of Iceberg's JSON


@rule("S22", "the columns of each view have the field ids and types of the schema in force", "lake")
def columns_of_views(look: Look) -> Iterator[Objection]:
    """Of the columns that the spec names; those of coordinates have their ids from the code."""
    books, head = look.books, look.head
    if head is None or not books.schemas or head.schema_version != books.schemas[-1]:
        return  # another rule says so
    expected = dict(columns(lake_fields(books.fields)))
    for view in look.views.values():
        found = _found(view)
        for path, told in expected.items() if found is not None else ():
            if (there := (found or {}).get(path)) != told:
                yield Objection(
                    f"column {path} of {view.name}",
                    f"column {path} of {view.title} is {there or 'not there'}, in schema {head.schema_version} of the "
                    f"ledger it is {told}: reads of this view give other values, NULL, or an error",
                )


def _found(view: ViewSeen) -> dict[str, str] | None:
    seen = None if view.head is None else view.survey.metadata.get(view.head.metadata)
    return dict(columns(seen.fields)) if isinstance(seen, MetadataSeen) else None


def columns(fields: Fields, *, inside: str = "") -> Iterator[tuple[str, str]]:
    """Each field by its path, those of structs, lists and maps too: its id and its type."""
    for field in fields:
        path = f"{inside}{field['name']}"
        yield from _of_type(path, field["id"], field["type"])


def _of_type(path: str, number: int, kind: str | Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(kind, str):
        yield path, f"field {number} of type {kind.replace(' ', '')}"
        return
    yield path, f"field {number}, a {kind['type']}"
    if kind["type"] == "struct":
        yield from columns(kind["fields"], inside=f"{path}.")
        return
    for part in ("element",) if kind["type"] == "list" else ("key", "value"):
        yield from _of_type(f"{path}.{part}", kind[f"{part}-id"], kind[part])
