"""The setting ``transform`` of a spec: derived columns and a filter.

Fields of the record that are not stored, columns that an expression makes of fields, and a condition that a record has
to hold to become a row. Expressions are SQL over one record; what they may hold is judged where they are compiled
(`harness_pipelines.formats.transform`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from harness_pipelines.spec.columns import Column, Columns, alias_troubles
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.types import ListType, MapType, StructType, Type, parse_type
from harness_pipelines.spec.wording import folded, quote, unknown_name, why_same

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec


SOURCE = "source"
_SOURCE_TYPE = "struct<connector: string, name: string, db: string, schema: string, table: string, collection: string>"
_SOURCE_WORD = re.compile(rf'(?<!["\w.]){SOURCE}(?!["\w])|"{SOURCE}"', re.IGNORECASE)


def _expression(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f'write an SQL expression as text, such as "amount > 0", not {quote(value)}')
    return value.strip()


Expression = Annotated[str, BeforeValidator(_expression)]


class Transform(SpecPart):
    """Derived columns and a filter for records."""

    model_config = ConfigDict(populate_by_name=True)

    fields: Annotated[
        Columns | None,
        Field(description="Fields of the record for expressions that are not columns: names to types."),
    ] = None
    derive: Annotated[
        Mapping[str, Expression],
        Field(description="Derived columns: name to an SQL expression over fields, such as price * quantity."),
    ] = {}
    filter: Annotated[
        Expression | None, Field(description="Only records for which this SQL condition is true become rows.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformTrouble:
    """An error in a transform: its place below ``transform`` and the reason."""

    place: tuple[str | int, ...]
    why: str
    found: Any


def input_columns(spec: TableSpec) -> tuple[Column, ...]:
    """What is decoded of a record: the columns that no expression makes, then the fields that are no columns."""
    made: Mapping[str, str] = spec.transform.derive if spec.transform else {}
    more = (spec.transform.fields or ()) if spec.transform else ()
    beside = source_column(spec)
    return (*(c for c in spec.columns if c.name not in made), *(c for c in more if c is not beside))


def source_column(spec: TableSpec) -> Column | None:
    """What expressions over change events know as `source`: where the event is from, beside its row.

    The spec may name its fields (`fields: {source: "struct<table: string>"}`); else it has those that connectors share.
    None: no expression reads it, or the row has a field of this name.
    """
    transform = spec.transform
    if transform is None or not spec.format.startswith("debezium"):
        return None
    for one in transform.fields or ():
        if one.name == SOURCE and isinstance(one.type, StructType):
            return one
    taken = {folded(name) for c in (*spec.columns, *(transform.fields or ())) for name in c.names}
    expressions = [*transform.derive.values(), *([transform.filter] if transform.filter else [])]
    if SOURCE in taken or not any(_SOURCE_WORD.search(sql) for sql in expressions):
        return None
    return Column(name=SOURCE, type=parse_type(_SOURCE_TYPE))


def transform_troubles(spec: TableSpec) -> Iterator[TransformTrouble]:
    """Yield the parts of the transform that do not fit the rest of *spec*."""
    transform = spec.transform
    if transform is None:
        return
    if not transform.derive and transform.filter is None:
        yield TransformTrouble(place=(), why="write `derive`, `filter` or both", found=transform)
    columns = {c.name: c for c in spec.columns}
    taken = {folded(name): c.name for c in spec.columns for name in c.names}
    for one in transform.fields or ():
        if other := taken.get(folded(one.name)):
            what = f"{other!r} is a column" if folded(other) == folded(one.name) else f"column {other!r} has this alias"
            why = f"{what} already ({why_same(one.name, other)}); `fields` are fields without a column"
            yield TransformTrouble(place=("fields", one.name), why=why, found=one.name)
        elif one.source in WHOLE:
            yield TransformTrouble(
                place=("fields", one.name), why=f"from: {one.source} makes a column, not a field", found=one.source
            )
        for at, why in alias_troubles(one, taken):
            yield TransformTrouble(place=("fields", one.name, "aliases", at), why=why, found=one.aliases[at])
    for name in transform.derive:
        if trouble := _derived_trouble(spec, columns.get(name), name):
            yield TransformTrouble(place=("derive", name), why=trouble, found=name)
    if not input_columns(spec):
        yield TransformTrouble(
            place=("derive",), why="no field of the record is decoded; name its `fields`", found=None
        )


def _derived_trouble(spec: TableSpec, column: Column | None, name: str) -> str | None:
    if column is None:
        return f"{unknown_name(name, [c.name for c in spec.columns])}; add it to `columns` with its type"
    if name in spec.key:
        return f"{name!r} is a key column; a tombstone has only the record's key, so key columns must be fields"
    if column.source is not None:
        return f"{name!r} has `from: {column.source}`, and a derived column is not read from the record; remove one"
    if column.aliases:
        return (
            f"{name!r} has `aliases: [{', '.join(column.aliases)}]`, and a derived column is not read from the record; "
            "remove one"
        )
    if column.default is not None:
        return f"{name!r} has a `default`, and a derived column is not read from the record; write coalesce(...)"
    return "an expression cannot derive a uuid; store its text" if _has_uuid(column.type) else None


def _has_uuid(type_: Type) -> bool:
    match type_:
        case ListType(element):
            return _has_uuid(element)
        case MapType(key, value):
            return _has_uuid(key) or _has_uuid(value)
        case StructType(fields):
            return any(_has_uuid(f.type) for f in fields)
    return str(type_) == "uuid"
