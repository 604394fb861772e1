"""The setting ``default`` of a column: the value for records that lack the field."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from harness_pipelines.spec.contract import literal
from harness_pipelines.spec.predicate import Compare, Op, Ref, Value
from harness_pipelines.spec.types import ListType, MapType, StructType, Type
from harness_pipelines.spec.where import WhereError, compared

Default = bool | int | float | str  #: as it is written: dates, times and UUIDs are text, binaries hexadecimal text


def plain_default(value: Any) -> Any:
    """*value* as a spec keeps it. Raises: ValueError."""
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"write a number, text, true or false, not {value!r}; dates and times are text")


def default_value(type_: Type, default: Default) -> Value:
    """*default* in the physical form of a column of *type_*. Raises: WhereError when it does not fit exactly."""
    if isinstance(type_, ListType | MapType | StructType):
        raise WhereError(f"a column of type {type_} cannot have a default; only single values can")
    found = compared(Ref(("the column",), type_), Op.EQ, literal(default, type_))
    value = found.value if isinstance(found, Compare) else None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise WhereError(f"{default!r} does not fit {type_} exactly")
    if isinstance(value, str) and "\x00" in value:
        raise WhereError("the text holds U+0000, which the buffer cannot store")
    return value
