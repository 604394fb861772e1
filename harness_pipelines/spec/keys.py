"""The settings ``key`` and ``delete`` of a spec."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from harness_pipelines.spec.types import DecimalType
from harness_pipelines.spec.wording import quote, unknown_name

if TYPE_CHECKING:
    from harness_pipelines.spec.types import Type

KEY_COLUMNS_MAX = 16
FIRST_PRINTED = 0x20  #: below are the control characters
#: Floats are no keys: NaN is unequal to itself and -0.0 equals 0.0, and each engine has other rules.
KEY_TYPES = ("boolean", "int", "long", "decimal", "date", "time", "timestamp", "timestamptz", "string", "uuid",
             "binary")  # fmt: skip


def _rule_value(value: Any) -> Any:
    if not isinstance(value, str | int | bool):
        raise ValueError(f"write text, a whole number, true or false, not {quote(value)}")
    return value


def _readable(name: str) -> str:
    if odd := next((one for one in name if one in '"\\' or ord(one) < FIRST_PRINTED), None):
        raise ValueError(f"{quote(name)} has the character {quote(odd)}, with which no field of a record is looked up")
    return name


class DeleteRule(BaseModel):
    """Records that have one of ``values`` in the field ``field`` of their value delete their key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        return DeleteRule.model_validate(value)
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
