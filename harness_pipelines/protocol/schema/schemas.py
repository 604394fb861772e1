"""The schemas of a table: the current one, and how rows of one schema map to another.

A column is its Iceberg field id: names and places change, the id does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_pipelines.errors import HarnessError, Recovery, TryAgain
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import type_from_json

Fields = Sequence[Mapping[str, Any]]  #: Iceberg's JSON form of columns, with field ids


class SchemaMoved(HarnessError):
    """The table's schema changed since this was planned or decoded: read the table again."""

    recovery = Recovery.REFRESH


def check_schema(table: str, *, planned: int, found: int, what: str) -> None:
    """Check that work planned for one schema is not published on another (S21, S22). Raises: SchemaMoved (REFRESH)."""
    if planned != found:
        raise SchemaMoved(
            f"{table}: {what} with schema {planned}, the table is at {found}; nothing was done, start again"
        )


class SpecMoved(TryAgain):
    """The table's spec changed since it was read, so the write was validated against an older spec."""


class SpecDisagrees(HarnessError):
    """The columns of the spec differ from the current schema: records would silently lose values."""

    way_on = "`harness evolve` changes columns; a row that was restored: `harness reconcile TABLE --yes`"


def check_spec(table: str, *, read: TableSpec, found: TableSpec, what: str) -> None:
    """Check that a changed spec is based on the current one (S21, S22). Raises: SpecMoved."""
    if read != found:
        words = sorted(word for word in type(read).model_fields if getattr(read, word) != getattr(found, word))
        raise SpecMoved(
            f"{table}: {what} of a spec that was changed meanwhile ({', '.join(words)} differ); nothing was "
            f"written. Compare yours with the spec of now (`harness table show {table}`) and repeat the command"
        )


def check_columns(spec: TableSpec, *, fields: Fields, schema_version: int) -> None:
    """The columns of *spec* are the *fields* of the schema in force, in their order. Raises: SpecDisagrees."""
    wanted = [(c.name, str(c.type), c.required) for c in spec.stored]
    found = [(f["name"], str(type_from_json(f["type"])), bool(f["required"])) for f in fields]
    if wanted != found:
        odd = ", ".join(_spelled(one) for one in wanted if one not in found)
        lacks = ", ".join(_spelled(one) for one in found if one not in wanted)
        differ = f"only the spec has {odd or 'none'}, only the schema has {lacks or 'none'}"
        raise SpecDisagrees(
            f"{spec.table}: the spec's columns are not those of schema {schema_version}, which its rows have: "
            f"{differ if odd or lacks else 'their order differs'}; nothing is taken until they agree. "
            f"`harness reconcile {spec.table} --yes` gives the spec the columns of the schema again"
        )


def _spelled(column: tuple[str, str, bool]) -> str:
    name, type_, required = column
    return f"{name} {type_}{' required' if required else ''}"


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
    #: There, as Iceberg's text, in which fields of structs have the names that are asked for; None: a nested one, which
    #: is the same.
    type: str | None = None


def others(wanted: Fields, stored: Fields) -> tuple[Other, ...]:
    """The columns of *wanted* that rows of the schema *stored* have otherwise, by field id; () for none."""
    by_id = {f["id"]: f for f in stored}
    found = []
    for field in wanted:
        there = by_id.get(field["id"])
        if there is None:
            found.append(Other(name=field["name"], stored=None))
        elif there["name"] != field["name"] or there["type"] != field["type"]:
            type_ = there["type"]
            if not isinstance(type_, str):
                same = type_ == field["type"]
                type_ = None if same else str(type_from_json(_as_asked(type_, field["type"])))
            found.append(Other(name=field["name"], stored=there["name"], type=type_))
    return tuple(found)


def _as_asked(there: Any, wanted: Any) -> Any:
    """The type *there* with *wanted*'s names for the same fields, and unreachable names for the others."""
    if isinstance(there, str):
        return there
    if there["type"] != "struct":
        return {**there, **{word: _as_asked(there[word], wanted[word]) for word in _PARTS if word in there}}
    asked = {f["id"]: f for f in wanted["fields"]}
    fields = []
    for field in there["fields"]:
        one = asked.get(field["id"], {"name": f"\x1f{field['id']}", "type": field["type"]})
        fields.append({**field, "name": one["name"], "type": _as_asked(field["type"], one["type"])})
    return {**there, "fields": fields}


_PARTS = ("element", "key", "value")


def ids_of(value: Any) -> Iterator[int]:
    """All ids in fields of Iceberg's JSON form, those inside of columns too."""
    if isinstance(value, Mapping):
        for word, part in value.items():
            if word == "id" or word.endswith("-id"):
                yield part
            else:
                yield from ids_of(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from ids_of(part)


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


@dataclass(frozen=True, slots=True)
class Slot:
    """A field of a struct in the text that digests are made of."""

    place: int | None  #: in the struct as it is now; None: it was dropped
    always: bool  #: it was there from the first; others are in the text only where they have a value
    inside: DigestLayout | None


@dataclass(frozen=True, slots=True)
class DigestLayout:
    """How a struct is written for digests, or what the elements of a list, or the values of a map, are."""

    slots: tuple[Slot, ...] = ()  #: in the order in which the fields came
    element: DigestLayout | None = None


def first_layouts(history: Sequence[SchemaRow]) -> dict[int, DigestLayout]:
    """By field id, how a column whose struct was changed is digested: in its first form.

    A field that came later adds nothing where it is null, and one that was dropped is null. *history* from the first
    schema on.
    """
    known: dict[int, dict[int, bool]] = {}
    for schema in history:
        for field in schema.fields:
            _note(field["type"], field["id"], known)
    found = {field["id"]: _layout(field["type"], field["id"], known) for field in history[-1].fields}
    return {id_: layout for id_, layout in found.items() if layout is not None}


def _note(type_: Any, owner: int, known: dict[int, dict[int, bool]]) -> None:
    """Add the fields of structs in *type_* to *known*: of each struct, by what has it, whether they were its first."""
    if isinstance(type_, str):
        return
    if type_["type"] != "struct":
        word = "element" if type_["type"] == "list" else "value"  # keys of maps hold no structs
        _note(type_[word], type_[f"{word}-id"], known)
        return
    is_first = owner not in known
    fields = known.setdefault(owner, {})
    for field in type_["fields"]:
        fields.setdefault(field["id"], is_first)
        _note(field["type"], field["id"], known)


def _layout(type_: Any, owner: int, known: Mapping[int, Mapping[int, bool]]) -> DigestLayout | None:
    """None: it is written as it is."""
    if isinstance(type_, str):
        return None
    if type_["type"] != "struct":
        word = "element" if type_["type"] == "list" else "value"
        inside = _layout(type_[word], type_[f"{word}-id"], known)
        return None if inside is None else DigestLayout(element=inside)
    there = {f["id"]: (place, f) for place, f in enumerate(type_["fields"])}
    slots = []
    for id_, always in known[owner].items():
        place, field = there.get(id_, (None, None))
        inside = None if field is None else _layout(field["type"], id_, known)
        slots.append(Slot(place, always, inside))
    plain = all(slot == Slot(at, always=True, inside=None) for at, slot in enumerate(slots))
    return None if plain else DigestLayout(slots=tuple(slots))
