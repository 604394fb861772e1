"""The settings ``key`` and ``delete`` of a spec."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from harness_pipelines.spec.columns import Column
from harness_pipelines.spec.part import SpecPart
from harness_pipelines.spec.sections.transform import input_columns
from harness_pipelines.spec.sources import WHOLE
from harness_pipelines.spec.types import DecimalType, MapType, Primitive, StructType, Type
from harness_pipelines.spec.wording import quote, unknown_name

if TYPE_CHECKING:
    from harness_pipelines.spec.table import TableSpec

KEY_COLUMNS_MAX = 16
FIRST_PRINTED = 0x20  #: below are the control characters
#: Floats are no keys: NaN is unequal to itself and -0.0 equals 0.0, and each engine has other rules.
KEY_TYPES = ("boolean", "int", "long", "decimal", "date", "time", "timestamp", "timestamptz", "string", "uuid",
             "binary")  # fmt: skip
#: What values of a type are in a rule. Times, decimals and bytes are written in ways that their column says.
_VALUES: Mapping[str, type] = {"string": str, "boolean": bool, "int": int, "long": int}
_NEVER = frozenset({"float", "double"})
_BITS = {"int": 31, "long": 63}


def _rule_value(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise ValueError(f"write text, a whole number, true or false, not {quote(value)}")
    return value


def _readable(name: str) -> str:
    if odd := next((one for one in name if one in '"\\' or ord(one) < FIRST_PRINTED), None):
        raise ValueError(f"{quote(name)} has the character {quote(odd)}, with which no field of a record is looked up")
    return name


class DeleteRule(SpecPart):
    """Records that have one of ``values`` in the field ``field`` of their value delete their key."""

    field: Annotated[
        str,
        AfterValidator(_readable),
        Field(
            min_length=1,
            description="A field of the record's value, a column or not, its path (payload.op), or a column that "
            "`transform` makes.",
        ),
    ]
    values: Annotated[
        tuple[Annotated[str | int | bool, Field(union_mode="smart"), BeforeValidator(_rule_value)], ...],
        Field(min_length=1, description="A record with one of these values is a delete."),
    ]

    def column_of(self, names: Container[str]) -> str | None:
        """Which of *names* the field is, or begins with: a name may have dots. None where it is none of them."""
        parts = self.field.split(".")
        found = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((name for name in found if name in names), None)


def _delete(value: Any) -> Any:
    if value == "tombstone" or isinstance(value, DeleteRule):
        return value
    if isinstance(value, dict):
        return DeleteRule.inside(value)
    raise ValueError(f"{quote(value)} is not a delete rule; allowed: tombstone, {{field: op, values: [d]}}")


Delete = Annotated[Literal["tombstone"] | DeleteRule, BeforeValidator(_delete)]


def key_trouble(key: tuple[str, ...], types: Mapping[str, Type]) -> str | None:
    """Return the error of *key* in a table whose columns have *types*."""
    if len(set(key)) != len(key):
        return f"{max(key, key=key.count)!r} is named twice; remove one"
    for name in key:
        if name not in types:
            return unknown_name(name, list(types))
        if not isinstance(types[name], DecimalType) and str(types[name]) not in KEY_TYPES:
            return f"column {name!r} of type {types[name]} cannot be a key; key types: {', '.join(KEY_TYPES)}"
    return None


# Delete rules that no record can match: rows deleted at the source would silently stay


def never_fires(spec: TableSpec) -> str | None:
    """Return why no record can match the delete rule of *spec*, and a remedy; None if one can."""
    rule = spec.delete
    if not isinstance(rule, DeleteRule):
        return None
    made = spec.transform.derive if spec.transform else {}
    columns = {name: column for column in (*spec.columns, *input_columns(spec)) for name in column.names}
    name = rule.column_of(columns)
    if name is None:
        return None  # a field that is no column, of which nothing is known
    column = columns[name]
    inner = rule.field[len(name) + 1 :].split(".") if rule.field != name else []
    said = f"`{rule.field}` can never delete: "
    if column.source in WHOLE:
        return f"{said}column {name!r} is `from: {column.source}`, not a field; derive a column from it and name that"
    found = _type_at(column.type, inner)
    if isinstance(found, str):
        return said + found
    if column.name in made and str(found) not in _VALUES:
        words = ", ".join(_VALUES)
        return f"{said}column {name!r} gives {found}, and values of a rule are {words}; derive one of these"
    return _value_trouble(said, rule, column, found, is_nested=bool(inner))


def _type_at(type_: Type, path: list[str]) -> Type | str:
    """The type at *path* of a value, or why there is nothing."""
    for name in path:
        if isinstance(type_, MapType):
            type_ = type_.value
            continue
        if not isinstance(type_, StructType):
            return f"{name!r} would be inside a {type_}; name a field of a struct"
        inner = next((field.type for field in type_.fields if field.name == name), None)
        if inner is None:
            return f"the struct has no field {name!r}; fields: {', '.join(field.name for field in type_.fields)}"
        type_ = inner
    return type_


def _value_trouble(said: str, rule: DeleteRule, column: Column, type_: Type, *, is_nested: bool) -> str | None:
    kind = str(type_)
    listed = ", ".join(map(repr, rule.values))
    if kind in _NEVER or not isinstance(type_, Primitive):
        if isinstance(type_, DecimalType):
            return None
        return f"{said}a {kind} is compared with no value; name a field that is text, a whole number or a boolean"
    wanted = _VALUES.get(kind)
    if wanted is None or (column.source is not None and not is_nested):
        return None
    if any(type(value) is wanted and _fits(kind, value) for value in rule.values):
        return None
    hint = {str: "put the values in quotes", bool: "write true or false, without quotes"}.get(
        wanted, "write whole numbers that it can hold, without quotes"
    )
    return f"{said}it is of type {kind}, and none of its values can be [{listed}]; {hint}"


def _fits(kind: str, value: str | int | bool) -> bool:
    if kind not in _BITS or not isinstance(value, int):
        return True
    bound: int = 1 << _BITS[kind]
    return -bound <= value < bound
