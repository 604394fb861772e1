"""The effect of a record's schema on a table, by `evolution` of its spec.

The result depends only on the spec and the schema, so it is the same in every process and for every batch. Accepted
changes only add, widen, make optional, or rename to a name that the column never had. After them the schema needs no
further change, so two schemas cannot change a table back and forth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from harness_pipelines.protocol.schema.evolution import (
    WIDER,
    ColumnChanges,
    EvolutionRefused,
    Evolved,
    changes_between,
    evolved,
)
from harness_pipelines.protocol.shape import view_set_of
from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.table import TableSpec
from harness_pipelines.spec.types import (
    DecimalType,
    FieldType,
    ListType,
    MapType,
    Primitive,
    StructType,
    Type,
    iceberg_fields,
)

_FRESH_ID = 1_000_000  #: ids of a trial, which are not kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """A field that a schema has."""

    name: str
    type: Type | None  #: of a column made for it; None: there is none, as `why` says
    nullable: bool = False
    aliases: tuple[str, ...] = ()  #: names that it had before
    description: str | None = None  #: for people
    always: bool = True  #: every record of the schema has it, with null or not
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Records of the schema are refused."""

    why: str


Gives = Callable[[Offered, Column], str | None]  #: why a field's values do not become a column's; None: they do


def verdict(spec: TableSpec, offered: Sequence[Offered], gives: Gives) -> ColumnChanges | Refusal:
    """What the table must become before records of a schema with the fields *offered* are rows; no changes: nothing."""
    try:
        if spec.evolution == "strict":
            _check_exact(spec, offered, gives)
        if spec.evolution != "compatible":
            return ColumnChanges()
        changes = _asked(spec, offered, gives)
        if changes and _asked(tried(spec, changes).spec, offered, gives):
            raise EvolutionRefused("with all that it asks for the table would not have its columns")
        return changes
    except EvolutionRefused as refused:
        return Refusal(why=str(refused).removeprefix(f"{spec.table}: "))


def tried(spec: TableSpec, changes: ColumnChanges) -> Evolved:
    """Return *spec* after *changes*, with field ids of a trial. Raises: EvolutionRefused."""
    return evolved(spec, iceberg_fields(spec.stored), changes, next_id=_FRESH_ID)


def _asked(spec: TableSpec, offered: Sequence[Offered], gives: Gives) -> ColumnChanges:
    """Raises: EvolutionRefused."""
    columns: list[Column] = []
    known: set[str] = set()
    for column in spec.columns:
        fields = _fields_of(spec, column, offered)
        known |= {*column.names, *(field.name for field in fields)}
        columns.append(column if column.source in WHOLE else _followed(spec, column, fields, gives))
    columns += [_new(field) for field in offered if field.name not in known]
    changes = changes_between(spec, spec.model_copy(update={"columns": tuple(columns)}))
    if changes:
        tried(spec, changes)
    return changes


def _fields_of(spec: TableSpec, column: Column, offered: Sequence[Offered]) -> list[Offered]:
    """The fields that *column* may be in, in the order in which they count; one of another column's name is not its.

    Raises: EvolutionRefused.
    """
    others = {name for other in spec.columns if other is not column for name in other.names}
    found: list[Offered] = []
    for name in column.names if column.source not in WHOLE else ():
        named = [f for f in offered if f.name == name]
        named = named or [f for f in offered if name in f.aliases and f.name not in others]
        if len(named) > 1:
            told = " and ".join(f"`{field.name}`" for field in named)
            raise EvolutionRefused(f"{told} both have the alias `{name}`")
        found += [field for field in named if field not in found]
        if found and found[-1].always:
            break
    return found


def _followed(spec: TableSpec, column: Column, fields: Sequence[Offered], gives: Gives) -> Column:
    """*column* as the schema would have it. Raises: EvolutionRefused."""
    if not fields:
        if column.required and column.default is None:
            raise EvolutionRefused(
                f"it has no field for column {column.name!r}, which is required; a column that is optional may be left "
                f"out (`harness evolve {spec.table} --optional {column.name}`)"
            )
        return column
    made = column
    for field in fields:
        if column.source is None and field.type is not None:
            made = replace(made, type=_wider(made.type, field.type))
        if (why := gives(field, made)) is not None:
            # The rule for changes refuses this one, and its message names the alternative.
            is_nested = isinstance(column.type, ListType | MapType | StructType)
            made = made if field.type is None or is_nested else replace(made, type=field.type)
            if field.type is None or is_nested or made.type == column.type:
                raise EvolutionRefused(f"field {field.name!r} does not give column {column.name!r}: {why}")
            break
    if any(field.nullable for field in fields) and not _is_found_by(spec, column):
        made = replace(made, required=False)
    if (name := fields[0].name) not in column.names:
        made = replace(made, name=name, aliases=column.names)
    return made


def _is_found_by(spec: TableSpec, column: Column) -> bool:
    """Rows are found by it, so it stays required: records that have null there are refused one by one."""
    return column.name in spec.key or (view_set_of(spec).clustered and column.name in spec.indexed)


def _wider(have: Type, offered: Type) -> Type:
    """The type that holds both if there is one; else *have*."""
    match have, offered:
        case Primitive(name), Primitive(other) if WIDER.get(name) == other:
            return offered
        case DecimalType(digits, scale), DecimalType(others, finer):
            if finer > scale:
                return offered
            return DecimalType(max(digits, others - finer + scale), scale)
        case ListType(element), ListType(other_element):
            return ListType(_wider(element, other_element))
        case MapType(key, value), MapType(other_key, other_value):
            return MapType(_wider(key, other_key), _wider(value, other_value))
        case StructType(fields), StructType(others_fields):
            there = {field.name: field.type for field in others_fields}
            kept = [FieldType(f.name, _wider(f.type, there.pop(f.name, f.type))) for f in fields]
            return StructType((*kept, *(FieldType(name, type_) for name, type_ in there.items())))
    return have


def _new(field: Offered) -> Column:
    if field.type is None:
        raise EvolutionRefused(
            f"field {field.name!r} is new, and no column can be made for it: {field.why}; one of a type that takes it "
            "can be added by hand (`harness evolve --add`)"
        )
    return Column(name=field.name, type=field.type, description=field.description)


def _check_exact(spec: TableSpec, offered: Sequence[Offered], gives: Gives) -> None:
    """Raises: EvolutionRefused."""
    by_name = {field.name: field for field in offered}
    known: set[str] = set()
    for column in (c for c in spec.columns if c.source not in WHOLE):
        field = next((by_name[name] for name in column.names if name in by_name), None)
        if field is None:
            raise _not_exact(f"column {column.name!r} has no field in it")
        known |= set(column.names)
        if (why := gives(field, column)) is not None:
            raise _not_exact(f"field {field.name!r} does not give column {column.name!r}: {why}")
        if column.source is None and field.type not in (None, column.type):
            raise _not_exact(f"field {field.name!r} is {field.type}, the column is {column.type}")
    if unknown := [name for name in by_name if name not in known]:
        raise _not_exact(f"field {unknown[0]!r} has no column")


def _not_exact(why: str) -> EvolutionRefused:
    return EvolutionRefused(f"{why}; `evolution: strict` takes what the columns are exactly (`harness evolve`)")
